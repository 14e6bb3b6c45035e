"""Fit of a host thread's costs: those of a reference host, times one factor, as far as the data go.

The logarithm of each measured time of a small model, less that of its predicted time, is a sum of the host's
factor, of the level of the section in which it was measured, and of each cost's own deviation times its share
of the time. All deviations have a prior of mean zero: the costs' is their spread among machines
(``reference_costs.csv``), that of the sections is the scatter of the times themselves. So a noisy host keeps
the proportions of the reference, and a quiet one shows its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simoffload.calibration.host_costs import COSTS, SCALED, TRACED, Observation
from simoffload.calibration.reference import ReferenceCost

__all__ = [
    "FACTORS",
    "TRACE_LEVEL",
    "Array",
    "FactorError",
    "HostFit",
    "Ridge",
    "fit_host",
    "huber",
    "level_spread",
    "logarithms",
    "noises",
    "residuals",
    "ridge",
    "scaled",
    "signed_errors",
    "stretches",
]

FACTORS = (0.3, 6.0)
"""Factors on the reference host outside of these say that a measurement went wrong."""
_OWN = 4.0
"""A cost that deviates by more than this factor from the reference of the same host is not believed."""
_FEWEST = 5
"""With fewer steps of small models only the factor is fitted."""
_FLOOR = 0.03
"""The least relative standard deviation of a time: two runs of one small model differ by this."""
TRACE_LEVEL = 10.0
"""Standard deviation of the level of a traced step: it shows proportions alone, as it is one moment."""
_ANY, _NOTHING = 10.0, 1e-6
"""Standard deviations of priors that allow everything and nothing."""
_LARGEST_STEP = 3.0
_ROUNDS = 12
_HUBER = 1.345
"""[standard deviations] Residuals beyond this count by their size only, not by its square."""

Array = NDArray[np.float64]


class FactorError(ValueError):
    """The factor of a host is out of ``FACTORS``."""


class HostFit(NamedTuple):
    """The costs of one host, relative to the reference host."""

    factor: float
    """Time of the host thread as a multiple of the reference host's."""
    factor_spread: float
    """Relative standard deviation of the factor from one stretch of time to another."""
    values: dict[str, float]
    """[s] Costs by the names of ``COSTS`` for small models; ``graph`` is a share."""
    spreads: dict[str, float]
    """Relative standard deviation of each cost apart from the factor."""
    residuals: dict[str, tuple[float, float]]
    """Mean and largest absolute relative error of the predicted times by kind of pass."""
    steps: int
    """The number of times of passes; those of traced modules are not counted."""
    seen: frozenset[str]
    """Costs that occur in a measured time."""
    remarks: tuple[str, ...]
    """What was not believed, and what was used instead."""


class Ridge(NamedTuple):
    """The solution of a ridge regression."""

    values: Array
    covariance: Array


def ridge(table: Array, target: Array, *, noise: Array, prior: Array) -> Ridge:
    """Solve ``table @ x = target`` with noise and a prior of mean zero, both as standard deviations."""
    weighted = table / noise[:, None]
    precision = weighted.T @ weighted + np.diag(prior**-2.0)
    covariance: Array = np.linalg.inv(precision).astype(np.float64)
    return Ridge(covariance @ (weighted.T @ (target / noise)), covariance)


def huber(residual: Array, noise: Array) -> Array:
    """Return the noise that makes late residuals count by their size only."""
    far = np.maximum(np.abs(residual) / noise / _HUBER, 1.0)
    grown: Array = noise * np.sqrt(far)
    return grown


def scaled(reference: Mapping[str, float], factor: float) -> dict[str, float]:
    """Return the costs of a host that takes ``factor`` times as long; shares stay."""
    return {key: value * (factor if key in SCALED else 1.0) for key, value in reference.items()}


def section(one: Observation) -> str:
    """Return the stretch of time in which a step was measured: decode or training."""
    return "decode" if one.kind in ("decode", TRACED) else "training"


def logarithms(steps: Sequence[Observation], values: Mapping[str, float]) -> tuple[Array, Array]:
    """Return the share of each cost in each predicted time, and log(measured / predicted)."""
    costs = np.array([values[key] for key in COSTS])
    spent = np.array([one.counts for one in steps]) * costs
    predicted = np.maximum(spent.sum(axis=1) + np.array([one.base for one in steps]), 1e-9)
    measured = np.array([one.seconds for one in steps])
    return spent / predicted[:, None], np.log(measured / predicted)


def noises(steps: Sequence[Observation], residual: Array) -> Array:
    """Return the standard deviation of each time: the scatter of its kind, or its own if that is larger."""
    found = np.empty(len(steps))
    for kind in {one.kind for one in steps}:
        rows = [index for index, one in enumerate(steps) if one.kind == kind]
        scatter = max(_FLOOR, 1.48 * float(np.median(np.abs(residual[rows]))))
        found[rows] = [max(scatter, steps[row].spread) for row in rows]
    return found


def stretches(steps: Sequence[Observation]) -> tuple[list[tuple[str, str]], Array]:
    """Return the stretches of time in which steps were measured, and a table of steps by stretches.

    These are the sections, and the traced step of each model within one of them.
    """
    traces = dict.fromkeys((section(one), one.model) for one in steps if one.kind == TRACED)
    known = [*dict.fromkeys((section(one), "") for one in steps), *traces]
    table = np.zeros((len(steps), len(known)))
    for row, one in enumerate(steps):
        table[row, known.index((section(one), ""))] = 1.0
        if one.kind == TRACED:
            table[row, known.index((section(one), one.model))] = 1.0
    return known, table


def level_spread(steps: Sequence[Observation], residual: Array) -> float:
    """Return by how much stretches of time differ: as much as the models measured in one of them."""
    passes = [index for index, one in enumerate(steps) if one.kind != TRACED]
    return max(_FLOOR, 1.48 * float(np.median(np.abs(residual[passes]))))


class _State(NamedTuple):
    """An estimate of the unknowns."""

    factor: float
    level: Array
    own: Array
    """Logarithm of each cost over the reference's on such a host."""
    deviations: Array
    """Standard deviations of the factor's logarithm, of the levels and of ``own``."""
    spread: float
    """Relative standard deviation of the levels."""


def fit_host(steps: Sequence[Observation], reference: Mapping[str, ReferenceCost]) -> HostFit:
    """Fit factor and costs of one host to at least one step.

    Raises FactorError for a factor out of ``FACTORS``.
    """
    passes = [one for one in steps if one.kind != TRACED]
    known = {key: reference[key].value for key in COSTS}
    few = len(passes) < _FEWEST
    prior = np.array([_NOTHING if few else reference[key].spread for key in COSTS])
    names, at = stretches(steps)
    state = _solved(steps, known, prior=prior, names=names, at=at)
    if not FACTORS[0] <= state.factor <= FACTORS[1]:
        raise FactorError(f"small models took {state.factor:.2g} times as long as on the reference host")
    values, remarks = _believed(known, state)
    if few:
        text = f"only {len(passes)} steps were measured, so the proportions are those of the reference host"
        remarks.append(text)
    own = state.deviations[1 + len(names) :]
    return HostFit(
        factor=state.factor,
        factor_spread=float(np.hypot(state.deviations[0], state.spread)),
        values=values,
        spreads={
            key: reference[key].spread if few else float(deviation)
            for key, deviation in zip(COSTS, own, strict=True)
        },
        residuals=residuals(passes, values),
        steps=len(passes),
        seen=frozenset(
            key for column, key in enumerate(COSTS) if any(bool(one.counts[column]) for one in passes)
        ),
        remarks=tuple(remarks),
    )


def _solved(
    steps: Sequence[Observation],
    known: Mapping[str, float],
    *,
    prior: Array,
    names: Sequence[tuple[str, str]],
    at: Array,
) -> _State:
    """Return the most probable state: Gauss-Newton, with new noise in each round."""
    scaling = np.array([key in SCALED for key in COSTS], dtype=float)
    factor = exp(float(np.median(logarithms(steps, known)[1])))
    level, own, deviations, spread = np.zeros(len(names)), np.zeros(len(COSTS)), np.zeros(0), _FLOOR
    for _ in range(_ROUNDS):
        share, difference = logarithms(steps, _values(known, factor, own))
        time = (share @ scaling)[:, None]
        left = difference - (at * time) @ level
        spread = level_spread(steps, left)
        priors = [_ANY, *(TRACE_LEVEL if model else spread for _, model in names), *prior]
        found = ridge(
            np.hstack([time, at * time, share]),
            difference + share @ own,
            noise=huber(left, noises(steps, left)),
            prior=np.array(priors),
        )
        factor *= exp(float(np.clip(found.values[0], -1, 1)))
        level = found.values[1 : 1 + len(names)]
        own = np.clip(found.values[1 + len(names) :], -_LARGEST_STEP, _LARGEST_STEP)
        deviations = np.sqrt(np.diag(found.covariance))
    return _State(factor, level, own, deviations, spread)


def _values(known: Mapping[str, float], factor: float, own: Array) -> dict[str, float]:
    return {
        key: value * exp(float(deviation))
        for (key, value), deviation in zip(scaled(known, factor).items(), own, strict=True)
    }


def _believed(known: Mapping[str, float], state: _State) -> tuple[dict[str, float], list[str]]:
    """Return the costs, with the reference's instead of those that deviate too much, and remarks."""
    values, remarks = _values(known, state.factor, state.own), []
    for key, deviation in zip(known, state.own, strict=True):
        if abs(float(deviation)) > log(_OWN):
            values[key] = scaled(known, state.factor)[key]
            remarks.append(
                f"{key} deviated by more than a factor of {_OWN:g} and is that of the reference host"
            )
    return values, remarks


def residuals(passes: Sequence[Observation], values: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the mean and the largest absolute relative error of the predicted times, by kind of pass."""
    found = _errors(passes, values)
    return {kind: (float(np.mean(np.abs(errors))), max(map(abs, errors))) for kind, errors in found.items()}


def signed_errors(
    passes: Sequence[Observation], values: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the mean and the largest relative error of the predicted times, by kind of pass, with signs."""
    return {
        kind: (float(np.mean(errors)), max(errors, key=abs))
        for kind, errors in _errors(passes, values).items()
    }


def _errors(passes: Sequence[Observation], values: Mapping[str, float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in passes:
        found.setdefault(one.kind, []).append(one.predicted(values) / one.seconds - 1)
    return found
