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

from simoffload_calibrate.host_costs import COSTS, SCALED, TRACED, Observation
from simoffload_calibrate.reference import ReferenceCost

FACTORS = (0.3, 6.0)
"""Factors on the reference host outside of these say that a measurement went wrong."""
_OWN = 4.0
"""A cost that deviates by more than this factor from the reference of the same host is not believed."""
_FEWEST = 5
"""With fewer steps of small models only the factor is fitted."""
_FLOOR = 0.03
"""The least relative standard deviation of a time: two runs of one small model differ by this."""
_TRACE_LEVEL = 10.0
"""Standard deviation of the level of a traced step: it shows proportions alone, as it is one moment."""
_ANY, _NOTHING = 10.0, 1e-6
"""Standard deviations of priors that allow everything and nothing."""
_LARGEST_STEP, _LARGEST_OWN = 1.0, 3.0
"""Bounds of the logarithms by which one round changes the factor, and by which a cost may deviate."""
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
    """Relative standard deviation of each cost apart from the factor: the reference's, where its cost is
    used."""
    residuals: dict[str, tuple[float, float]]
    """Mean and largest absolute relative error of the predicted times by kind of pass."""
    steps: int
    """The number of times of passes; those of traced modules are not counted."""
    seen: frozenset[str]
    """Costs that occur in a measured time, without those that are the reference's."""
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


def scaled(reference: Mapping[str, float], factor: float) -> dict[str, float]:
    """Return the costs of a host that takes ``factor`` times as long; shares stay."""
    return {key: value * (factor if key in SCALED else 1.0) for key, value in reference.items()}


class HostState(NamedTuple):
    """An estimate of a host's unknowns."""

    factor: float
    """Logarithm of the host's factor."""
    levels: Array
    """Logarithm of each stretch of time's factor over the host's."""
    own: Array
    """Logarithm of each cost over the reference's on such a host."""

    def costs(self, known: Mapping[str, float]) -> dict[str, float]:
        """Return the host's costs from those of the reference host."""
        return {
            key: value * exp(float(own))
            for (key, value), own in zip(scaled(known, exp(self.factor)).items(), self.own, strict=True)
        }

    def after(self, found: Array) -> HostState:
        """Return the estimate that follows from the solution of its ``Equations``."""
        levels, own = np.split(found[1:], [len(self.levels)])
        step = float(np.clip(found[0], -_LARGEST_STEP, _LARGEST_STEP))
        return HostState(self.factor + step, levels, np.clip(own, -_LARGEST_OWN, _LARGEST_OWN))


class Equations(NamedTuple):
    """Linear equations for the change of a host's factor, its levels and its own costs."""

    table: Array
    target: Array
    noise: Array
    """Standard deviation of each row."""
    prior: Array
    """Standard deviation of each unknown, whose mean is zero."""
    scatter: float
    """Relative standard deviation of the levels: that of the times of passes."""


class HostTimes:
    """Measured times of one host, by the stretches of time in which they were measured.

    Stretches are the sections, decode and training, and the traced step of each model.
    """

    def __init__(self, steps: Sequence[Observation]) -> None:
        self._steps = steps
        self._sections = sorted({_section(one) for one in steps})
        self._traced = sorted({one.model for one in steps if one.kind == TRACED})
        within = [
            [_section(one) == section for section in self._sections]
            + [one.kind == TRACED and one.model == model for model in self._traced]
            for one in steps
        ]
        self._at = np.array(within, dtype=float)

    def begin(self, known: Mapping[str, float]) -> HostState:
        """Return the estimate of a host with the proportions of ``known`` costs."""
        factor = float(np.median(_logarithms(self._steps, known)[1]))
        return HostState(factor, np.zeros(self._at.shape[1]), np.zeros(len(COSTS)))

    def equations(self, known: Mapping[str, float], state: HostState, spreads: Array) -> Equations:
        """Return the equations around an estimate; ``spreads`` are the costs' among hosts."""
        share, difference = _logarithms(self._steps, state.costs(known))
        time = (share @ np.array([key in SCALED for key in COSTS], dtype=float))[:, None]
        left = difference - (self._at * time) @ state.levels
        passes = [index for index, one in enumerate(self._steps) if one.kind != TRACED]
        scatter = _scatter(left[passes])
        levels = [scatter] * len(self._sections) + [_TRACE_LEVEL] * len(self._traced)
        return Equations(
            np.hstack([time, self._at * time, share]),
            difference + share @ state.own,
            _huber(left, _noises(self._steps, left)),
            np.array([_ANY, *levels, *spreads]),
            scatter,
        )


def _section(one: Observation) -> str:
    """Return the section in which a step was measured: decode or training."""
    return "decode" if one.kind in ("decode", TRACED) else "training"


def _logarithms(steps: Sequence[Observation], values: Mapping[str, float]) -> tuple[Array, Array]:
    """Return the share of each cost in each predicted time, and log(measured / predicted)."""
    costs = np.array([values[key] for key in COSTS])
    spent = np.array([one.counts for one in steps]) * costs
    predicted = np.maximum(spent.sum(axis=1) + np.array([one.base for one in steps]), 1e-9)
    measured = np.array([one.seconds for one in steps])
    return spent / predicted[:, None], np.log(measured / predicted)


def _scatter(residual: Array) -> float:
    """Return the standard deviation of residuals from their median size, which late ones do not change."""
    return max(_FLOOR, 1.48 * float(np.median(np.abs(residual))))


def _noises(steps: Sequence[Observation], residual: Array) -> Array:
    """Return the standard deviation of each time: the scatter of its kind, or its own if that is larger."""
    found = np.empty(len(steps))
    for kind in {one.kind for one in steps}:
        rows = [index for index, one in enumerate(steps) if one.kind == kind]
        found[rows] = np.maximum(_scatter(residual[rows]), [steps[row].spread for row in rows])
    return found


def _huber(residual: Array, noise: Array) -> Array:
    """Return the noise that makes late residuals count by their size only."""
    far = np.maximum(np.abs(residual) / noise / _HUBER, 1.0)
    grown: Array = noise * np.sqrt(far)
    return grown


class _Solution(NamedTuple):
    """The estimate after all rounds, and the last round's equations with their solution."""

    state: HostState
    around: Equations
    found: Ridge


def _solve(times: HostTimes, known: Mapping[str, float], spreads: Array) -> _Solution:
    """Return the estimate after Gauss-Newton rounds, with new noise in each."""
    state = times.begin(known)
    for _ in range(_ROUNDS):
        around = times.equations(known, state, spreads)
        found = ridge(around.table, around.target, noise=around.noise, prior=around.prior)
        state = state.after(found.values)
    return _Solution(state, around, found)


def fit_host(steps: Sequence[Observation], reference: Mapping[str, ReferenceCost]) -> HostFit:
    """Fit factor and costs of one host to at least one step.

    Where costs deviate so much that they are not believed, everything else is fitted again with the
    reference's for these.

    Raises FactorError for a factor out of ``FACTORS``.
    """
    passes = [one for one in steps if one.kind != TRACED]
    known = {key: reference[key].value for key in COSTS}
    few = len(passes) < _FEWEST
    spreads = np.array([reference[key].spread for key in COSTS])
    times, free = HostTimes(steps), np.full(len(COSTS), _NOTHING) if few else spreads
    state, around, found = _solve(times, known, free)
    refused = np.abs(state.own) > log(_OWN)
    if refused.any():
        state, around, found = _solve(times, known, np.where(refused, _NOTHING, free))
        refused |= np.abs(state.own) > log(_OWN)
    factor = exp(state.factor)
    if not FACTORS[0] <= factor <= FACTORS[1]:
        raise FactorError(f"small models took {factor:.2g} times as long as on the reference host")
    values = state._replace(own=np.where(refused, 0.0, state.own)).costs(known)
    remarks = [
        f"{key} deviated by more than a factor of {_OWN:g} and is that of the reference host"
        for key, no in zip(COSTS, refused, strict=True)
        if no
    ]
    if few:
        text = f"only {len(passes)} steps were measured, so the proportions are those of the reference host"
        remarks.append(text)
    deviations = np.sqrt(np.diag(found.covariance))
    of_reference = refused | few
    own = np.where(of_reference, spreads, deviations[-len(COSTS) :])
    seen = np.any([one.counts for one in passes], axis=0) & ~of_reference
    return HostFit(
        factor=factor,
        factor_spread=float(np.hypot(deviations[0], around.scatter)),
        values=values,
        spreads=dict(zip(COSTS, map(float, own), strict=True)),
        residuals=residuals(passes, values),
        steps=len(passes),
        seen=frozenset(key for key, yes in zip(COSTS, seen, strict=True) if yes),
        remarks=tuple(remarks),
    )


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
