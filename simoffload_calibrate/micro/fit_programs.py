"""What programs cost on the host, from steps of small models: DeepSpeed, transformers' own code and FSDP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import exp, hypot, log
from statistics import median, pstdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simoffload.errors import InputError, Problem
from simoffload.hardware import HOST_SPREAD, P90, Machine
from simoffload.models import SINGLE, ModelShape, Sequences, load_model
from simoffload.strategies import in_new_form
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.passes.timing import EAGER_PASS, Timing, TrainingTiming
from simoffload.strategies.programs.accelerate import Accelerate
from simoffload.strategies.programs.transformers import Transformers
from simoffload.strategies.programs.zero_inference import ZeroInference, ZeroInferencePlan
from simoffload.strategies.programs.zero_training import ZeroTraining, ZeroTrainingPlan
from simoffload.strategies.training.state import DEEPSPEED_ADAM, overflow_check_traffic
from simoffload.strategies.zero.trace import Event, micro_step
from simoffload.units import parse_rate
from simoffload.workload import Inference, Training
from simoffload_calibrate.host_costs import (
    COSTS,
    SCALED,
    TRACED,
    TRAINING,
    Observation,
    all_repetitions,
    decode_observation,
    of_real_models,
    rough_factor,
    trace_observations,
    training_observations,
)
from simoffload_calibrate.micro.fit_parts import (
    Fitted,
    central,
    copy_seconds,
    non_negative,
    rate_text,
    seconds_text,
    wait_s,
)
from simoffload_calibrate.micro.noise import probe_level
from simoffload_calibrate.reference import REFERENCE_PROBE, ReferenceCost, reference_costs

# -- fit of a host thread --------------------------------------------------------------------------

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


# -- fits of DeepSpeed's costs ---------------------------------------------------------------------

_SMALL_TENSOR = 128 * 1024
"""[B] of the small models' matrices."""
_LEAST = 256 << 20
"""Parameters of a step that says something about memory: four tensors of 1 GiB. Of smaller ones a part stays
in the caches of a server's CPU (320 MB on an Emerald Rapids)."""

_CHECK = "overflow_check_seconds"


# -- the host thread ------------------------------------------------------------------------------

_ESTIMATES = ("blocking_copy_call", "coalesced_call", "collective_parameter", "cold_limit")
"""Costs of ``DeepSpeedCosts`` that no small model shows; they are the reference's times the factor."""
_DECODE, _TRAINING = ("decode",), ("forward", "backward", "optimizer")


class ThreadFit(NamedTuple):
    """The costs of the host thread, and what they are from."""

    fit: HostFit | None
    """None if only probes were measured."""
    factor: float
    factor_spread: float
    """Relative standard deviation of the factor from one stretch of time to another."""
    held_back: dict[str, tuple[float, float]]
    """Mean and largest error of small models that the fit did not see, by kind of pass, with their signs."""
    remarks: tuple[str, ...]
    believed: bool = True
    """Whether the factor is measured; else it is 1, that of the reference host, with the spread of an
    unmeasured one."""

    def summary(self) -> str:
        """Return a sentence on the factor, and one on small models that the fit did not see."""
        low, high = (self.factor * exp(sign * P90 * self.factor_spread) for sign in (-1, 1))
        text = f"host thread: {self.factor:.2f} x the reference host's time (P10 {low:.2f}, P90 {high:.2f})"
        if self.held_back:
            errors = ", ".join(f"{kind} {mean:+.0%}" for kind, (mean, _) in self.held_back.items())
            text += f"; error of the small models held back from the fit: {errors}"
        return "; ".join((text, *self.remarks))

    def costs(self) -> tuple[dict[str, Fitted], dict[str, Fitted]]:
        """Return the fields of ``DeepSpeedCosts`` and of ``TrainingCosts``, for models of real size."""
        reference = reference_costs()
        known = {key: reference[key].value for key in COSTS}
        base = of_real_models(scaled(known, self.factor))
        values = of_real_models(self.fit.values) if self.fit else base
        tables: tuple[dict[str, Fitted], dict[str, Fitted]] = {}, {}
        for key, value in values.items():
            kinds = _TRAINING if key in TRAINING else _DECODE
            tables[key in TRAINING][key] = self._fitted(key, value, kinds, value / base[key] - 1)
        for key in _ESTIMATES:
            value = reference[key].value * self.factor
            tables[0][key] = self._fitted(key, value, (), 0.0)
        return tables

    def fits(self, runs: Sequence[Mapping[str, Any]]) -> dict[str, Fitted]:
        """Return the factor and all costs by their keys in a host's profile; ``runs`` are decode steps."""
        inference, training = self.costs()
        if runs:
            most = max(run["ranks"] for run in runs)
            inference["ranks"] = Fitted(most, "most ranks with which hooks were measured", 1)
        factor = Fitted(
            float(f"{self.factor:.3g}"),
            self.summary(),
            self.fit.steps if self.fit else 1,
            spread=self.factor_spread,
            measured=self.believed,
        )
        tables = {"deepspeed": inference, "training": training}
        costs = {f"{name}.{key}": one for name, table in tables.items() for key, one in table.items()}
        return {"host_factor": factor, **costs}

    def _fitted(self, key: str, value: float, kinds: Sequence[str], own: float) -> Fitted:
        seen = self.fit is not None and key in self.fit.seen
        errors = [self.fit.residuals[kind] for kind in kinds if self.fit and kind in self.fit.residuals]
        is_time = key in (*SCALED, *_ESTIMATES)
        what = "cost of the reference host (docs/measurements/host-thread.md)"
        what += f" x {self.factor:.3g}" if is_time else ""
        if seen and self.fit:
            names = ", ".join(f"{kind} {mean:.1%}" for kind, (mean, _) in self.fit.residuals.items())
            what += (
                f" and {own:+.1%}, as far as {self.fit.steps} times of small OPT, BLOOM and Llama models "
                f"under ZeRO-3 determine it (their mean errors: {names})"
            )
        spread = self.fit.spreads[key] if seen and self.fit else reference_costs()[key].spread
        return Fitted(
            seconds_text(value) if is_time else round(value, 3),
            what,
            self.fit.steps if self.fit else 1,
            max((worst for _, worst in errors), default=None) if seen else None,
            spread=hypot(spread, self.factor_spread) if is_time else spread,
            measured=seen,
        )


def fit_thread(raw: Mapping[str, Any], machine: Machine) -> ThreadFit | None:
    """Fit the costs of the host thread as far as ``machine`` has GPUs for the ranks of the small models.

    Without small models the factor comes from the probes; None without these, too. Raises InputError for
    models that another version of transformers built.
    """
    reference = reference_costs()
    try:
        steps = list(small_model_times(raw, machine, ("runs", "training")))
        if not steps:
            return _from_probes(raw)
        fit = fit_host(steps, reference)
        held = [
            one for one in small_model_times(raw, machine, ("held_back",), fit.factor) if one.kind != TRACED
        ]
    except FactorError as error:
        return _not_believed(error)
    except ValueError as error:
        text = f"sections.hooks: {error}; measure with the versions of docs/CALIBRATION.md, or --skip hooks"
        raise InputError((Problem("micro.json", None, None, "", text),)) from None
    drift = pstdev([log(probe_level(one)) for one in raw.get("probes", ())] or [0.0])
    spread = max(drift, fit.factor_spread)
    return ThreadFit(fit, fit.factor, spread, signed_errors(held, fit.values), fit.remarks)


def _not_believed(error: FactorError) -> ThreadFit:
    remark = f"{error}: the costs are those of the reference host"
    return ThreadFit(None, 1.0, HOST_SPREAD, {}, (remark,), believed=False)


def _from_probes(raw: Mapping[str, Any]) -> ThreadFit | None:
    """Return the factor of a record with probes and without small models."""
    probes = raw.get("probes", ())
    if not probes:
        return None
    probe = reference_costs()[REFERENCE_PROBE]
    factor = median(map(probe_level, probes)) / probe.value
    if not FACTORS[0] <= factor <= FACTORS[1]:
        return _not_believed(FactorError(f"probes took {factor:.2g} times as long as on the reference host"))
    remark = f"the factor is from {len(probes)} probes, because no small model was measured"
    return ThreadFit(None, factor, probe.spread, {}, (remark,))


def small_model_times(
    raw: Mapping[str, Any], machine: Machine, parts: Sequence[str], factor: float | None = None
) -> Iterator[Observation]:
    """Yield the measured times of small models, linearized around the costs of such a host.

    ``parts`` are those of the section ``hooks``: runs, training and held_back; ``machine`` is replaced by one
    with the measured rates of Adam. Raises ValueError for models with other modules than recorded.
    """
    sections, machine = raw["sections"], _with_adam(raw, machine)
    runs = [run for part in parts for run in all_repetitions(raw, part) if run["ranks"] <= machine.gpus]
    plans = [small_plan(run, machine) for run in runs]
    known = {key: reference_costs()[key].value for key in COSTS}
    around = scaled(known, factor or rough_factor(zip(runs, plans, strict=True), known))
    wait, queued = wait_s(sections), copy_seconds(sections, _SMALL_TENSOR)
    path = machine.host_to_device(0, pinned=True)
    copy = path.latency + _SMALL_TENSOR / path.curve.rate(_SMALL_TENSOR)
    copy = wait[0] + queued if wait and queued else copy
    for run, plan in zip(runs, plans, strict=True):
        if isinstance(plan, ZeroTrainingPlan):
            yield from training_observations(run, plan, around)
        else:
            yield decode_observation(run, plan, around)
            if run["ranks"] == 1:
                yield from trace_observations(run, plan, copy_latency=copy)


def _with_adam(raw: Mapping[str, Any], machine: Machine) -> Machine:
    known = machine.host.cpu_optimizer
    rates = fit_cpu_optimizer(raw["sections"], raw["machine"])
    values = {
        key: parse_rate(one.value) if isinstance(one.value, str) else one.value
        for key, one in rates.items()
        if key != "turn" and getattr(known, key) is not None
    }
    update = {key: getattr(known, key).model_copy(update={"value": value}) for key, value in values.items()}
    optimizer = known.model_copy(update=update)
    return replace(machine, host=machine.host.model_copy(update={"cpu_optimizer": optimizer}))


def small_plan(run: Mapping[str, Any], machine: Machine) -> ZeroInferencePlan | ZeroTrainingPlan:
    """The plan of a small model on a machine."""
    config = DeepSpeedConfig.model_validate(run["ds_config"])
    model = load_model({**run["model"], "attention": run["attention"]})
    if run["workload"]["kind"] == "training":
        threads = run.get("threads")
        threads = threads if isinstance(threads, int) else machine.cores_per_rank(run["ranks"])
        training = ZeroTraining(ranks=run["ranks"], ds_config=config, cpu_threads=threads)
        return training.plan(model, Training.model_validate(run["workload"]), machine)
    inference = ZeroInference(ranks=run["ranks"], ds_config=config)
    return inference.plan(model, Inference.model_validate(run["workload"]), machine)


# -- Adam -----------------------------------------------------------------------------------------

_CROWDED = "_crowded_seconds"


def fit_cpu_optimizer(sections: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Fitted]:
    """Rates of Adam, and of the search for overflow, from their times by threads; empty where Adam was not
    measured with several of them.

    "in_training" are steps inside of real training, from traces of ``calibrate deepspeed`` (the calls of
    ``_optimizer_step``), which an older record of small tensors may be completed with.
    """
    section = sections.get("cpu_adam", {})
    nodes = int(facts.get("numa_nodes", 1))
    steps = [row for row in section.get("steps", []) if row["threads"] == 1 or row["parameters"] >= _LEAST]
    rows = [*steps, *_together(sections, "seconds"), *section.get("in_training", [])]
    what = "DeepSpeed's CPU Adam by threads and processes p, 28 B a parameter"
    adam = _rates(rows, DEEPSPEED_ADAM, nodes, what)
    if adam is None:
        return {}
    found = {
        "cores": Fitted(int(facts["cores"]), "cores that Linux has", 1),
        "numa_nodes": Fitted(nodes, "NUMA nodes that Linux has", 1),
        "thread": adam[0],
        "limit": adam[1],
    }
    few = [row for row in section.get("overflow_checks", []) if row["parameters"] >= _LEAST // 8]
    every = [{**row, "seconds": row[_CHECK]} for row in steps if _CHECK in row]
    what = "ZeRO-3's overflow check in float16 by threads and processes p, 12 B a gradient"
    traffic = overflow_check_traffic()
    check = _rates([*few, *every, *_together(sections, _CHECK)], traffic, 1, what)  # its cores limit it
    if check is not None:
        found |= {"overflow_thread": check[0], "overflow_limit": check[1]}
    turns = list(_turns(sections, int(facts["cores"])))
    if turns and (middle := median(turns)) > 0:
        what = "regions of several processes with all cores' threads each: what is added for each further one"
        found["turn"] = Fitted(seconds_text(middle), what, len(turns))
    return found


def _turns(sections: Mapping[str, Any], cores: int) -> Iterator[float]:
    """Yield what a parallel region loses [s] for each further thread on a core."""
    for section in sections.get("cpu_adam_together", {}).values():
        for row in section["together"]:
            further = row["processes"] * row.get("crowded_threads", 0) / cores - 1
            for key in row if further > 0 else ():
                if key.endswith(_CROWDED):
                    usual = row[key.replace(_CROWDED, "_seconds")]
                    yield (max(row[key]) - max(usual)) / further


def _rates(
    rows: Sequence[Mapping[str, Any]], traffic: int, nodes: int, what: str
) -> tuple[Fitted, Fitted] | None:
    """Rates [B/s] of one thread and of all, for ``traffic`` [B] per element; None if rows do not give them.

    The squared time of a byte is a / threads^2 + b x processes^2: a is of one thread, b of the memory that it
    runs on. A process by itself has the memory of one NUMA node, several have an equal share of all.
    """
    if len({row["threads"] for row in rows}) < 2:
        return None
    threads = np.array([row["threads"] for row in rows], dtype=float)
    # In units of what all nodes together give.
    sharing = np.array([max(nodes, row.get("processes", 1)) for row in rows], dtype=float)
    per_byte = np.array([row["seconds"] / (traffic * row["parameters"]) for row in rows])
    table = np.stack([threads**-2, sharing**2], axis=1) / per_byte[:, None] ** 2
    scale = np.array([per_byte.max(), per_byte.min() / nodes]) ** 2
    found = non_negative(table * scale, np.ones(len(rows)), negligible=0.02) * scale
    if not found.all():
        return None
    residual = float(np.max(np.abs(np.sqrt(table @ found) - 1)))
    what = f"{what}: squared time of a byte = a / threads^2 + b x p^2"
    thread, limit = (Fitted(rate_text(one**-0.5), what, len(rows), residual) for one in found)
    return thread, limit


def _together(sections: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """Steps of several processes at once with the time under a key, that of the slowest of them."""
    for section in sections.get("cpu_adam_together", {}).values():
        for row in section["together"]:
            if row["parameters"] >= _LEAST and key in row:
                yield {**row, "seconds": max(row[key])}


# -- fit eager -------------------------------------------------------------------------------------
# Costs of the host thread in transformers' code without DeepSpeed, from decode steps of small models.


Run = Mapping[str, Any]


def fit_eager(sections: Mapping[str, Any], machine: Machine) -> dict[str, Fitted]:
    """Costs by the name of the field, those that were seen; empty where nothing was measured.

    ``machine`` gives the launches under DeepSpeed, and the rates of copies.
    """
    alone = _by_model(sections.get("eager", {}).get("runs", ()))
    known = machine.host.deepspeed.operation.value
    factors = [_factor(rows["kept"], machine) for rows in alone.values() if "kept" in rows]
    if not factors:
        return {}
    operation = known * median(factors)
    about = "decode steps of small models without DeepSpeed"
    found = {"operation": _eager_time([known * one for one in factors], about)}
    if tensors := [_tensor(rows, machine, operation) for rows in alone.values() if "offloaded" in rows]:
        about = "decode steps of small models under Accelerate with pinned weights, less those on the GPU"
        found["hook"] = Fitted(seconds_text(operation), "time of one PyTorch operation", 1, measured=False)
        found["tensor"] = _eager_time(tensors, about)
    together = [
        _all_reduce(rows["divided"], alone[family]["kept"], machine)
        for part in sections.get("eager_together", {}).values()
        for family, rows in _by_model(part["runs"]).items()
        if "divided" in rows and "kept" in alone.get(family, {})
    ]
    if together:
        about = "decode steps of small models under tensor parallelism, less those of one process"
        found["all_reduce"] = _eager_time(together, about)
    return found


def _by_model(runs: Any) -> dict[str, dict[str, Run]]:
    """Return the runs of each model by what happens to it: kept, offloaded or divided."""
    found: dict[str, dict[str, Run]] = {}
    for run in runs:
        strategy = run["strategy"]
        kept = "kept" if strategy.get("device_map") == "cuda" else "offloaded"
        word = "divided" if "tensor_parallel_size" in strategy else kept
        found.setdefault(run["model"]["family"], {})[word] = run
    return found


def _launched(model: ModelShape, machine: Machine) -> float:
    """[s] of all launches of a decode step under DeepSpeed."""
    timing = Timing(machine=machine, model=model, batch=(Sequences(1, 1, 1),), zero3=False)
    inside = (module for layer in model.layers for module in layer)
    every = (*model.modules_before, *inside, *model.modules_after)
    return sum(timing.launch_s(module) for module in every)


def _factor(run: Run, machine: Machine) -> float:
    """Return the time of launches over that under DeepSpeed."""
    beside = EAGER_PASS * machine.host.deepspeed.operation.value
    return float(run["seconds"] / (beside + _launched(load_model(run["model"]), machine)))


def _tensor(rows: Mapping[str, Run], machine: Machine, operation: float) -> float:
    """[s] per tensor that Accelerate adds, without hooks, copies, and what waiting for these costs."""
    run = rows["offloaded"]
    work = Inference.model_validate(run["workload"])
    plan = Accelerate.model_validate(run["strategy"]).plan(load_model(run["model"]), work, machine)
    path = machine.host_to_device(plan.main, pinned=True)
    sizes = [size for call in plan.copied for size in call]
    copies = sum(size / path.curve.rate(size) + path.latency for size in sizes)
    copies *= 1 + machine.host.deepspeed.cold_share.value
    hooks = operation * sum(1 for call, _ in plan.placed if plan.tree.module(call).parameters)
    return max(0.0, float(run["seconds"] - rows["kept"]["seconds"]) - copies - hooks) / len(sizes)


def _all_reduce(run: Run, alone: Run, machine: Machine) -> float:
    """[s] per summed or gathered result, with what the other process slows this one down."""
    model, work = load_model(run["model"]), Inference.model_validate(run["workload"])
    # The division of the model does not depend on the number of GPUs of the profile that is replaced.
    plan = Transformers.model_validate(in_new_form(run["strategy"])[0]).plan(model, work, machine)
    names = plan.divided.reduced | plan.divided.gathered
    (stage,) = plan.divided.stages
    inside = (module for layer in stage.layers for module in layer)
    count = sum(module.name in names for module in (*stage.modules_before, *inside, *stage.modules_after))
    return max(0.0, float(run["seconds"] - alone["seconds"])) / count


def _eager_time(values: list[float], about: str) -> Fitted:
    middle, residual, count = central(values)
    return Fitted(seconds_text(middle), about, count, residual)


# -- fit fsdp --------------------------------------------------------------------------------------
# What PyTorch's FSDP and AdamW cost on the host, from steps of tiny models and from AdamW by itself.
#
# The section ``fsdp`` of a record, which the records of two machines have (docs/measurements/fsdp.md), are
# the times of FSDP's functions: medians over their calls, each without what it calls. What the thread does
# apart from FSDP is in the same models' steps without it.


_DESCRIPTIONS = {"mul": 2, "lerp": 3, "addcmul": 5, "add": 2, "addcdiv": 4}
"""Numbers read and written for each parameter by operations that make no new tensor."""
_NEW = {"sqrt": 2, "div": 2}
"""The same of those that do: one is read, one is new."""
_HOOKS = {
    "forward_hook": ("forward", "_root_pre_forward", "_pre_forward", "_prefetch_handle", "_post_forward"),
    "gather": ("backward", "handle._all_gather_flat_param"),
    "reshard": ("backward", "_reshard", "handle.reshard", "handle.post_reshard"),
    "reduce": ("backward", "_reduce_grad"),
    "reduce alone": ("backward", "_reduce_grad_no_shard"),
    "copy_call": ("backward", "_offload_grad"),
}
"""FSDP's functions that make up a cost, and the pass in which they are looked at."""
_BACKWARD = ("_pre_backward_hook", "_post_backward_hook", "_prefetch_handle")
_FINAL = ("_post_backward_final_callback", "handle.prepare_gradient_for_optim")
_UNSHARD = (
    *("_unshard", "handle.pre_unshard", "limiter.dequeue"),
    *("handle.unshard", "handle._use_unsharded_flat_param", "handle.post_unshard"),
)
_MICRO = 1e-6


def fit_fsdp(sections: Mapping[str, Any], machine: Machine) -> dict[str, Fitted]:
    """Costs by the name of the field, those that were seen; empty where FSDP was not measured.

    ``machine`` gives the launches of forward, which are PyTorch's own with and without FSDP.
    """
    section = sections.get("fsdp")
    if not section:
        return {}
    sharded = [run for run in section["runs"] if run["strategy"] is not None]
    plain = [run for run in section["runs"] if run["strategy"] is None]
    return {**_hooks(sharded), **_passes(plain, machine), **_adamw(section["operations"])}


def _hooks(runs: Sequence[Run]) -> dict[str, Fitted]:
    """Fit the host time of FSDP's functions."""
    about = "functions of FSDP in steps of tiny models, medians over calls without what they call"
    found: dict[str, list[float]] = {}
    for run in runs:
        model, settings = load_model(run["model"]), run["strategy"]
        forward, backward = run["hooks"]["forward"], run["hooks"]["backward"]
        for field, (where, *names) in _HOOKS.items():
            # Without offloading the function that copies returns at once.
            if all(name in run["hooks"][where] for name in names) and (
                field != "copy_call" or settings.get("cpu_offload")
            ):
                cost = field.removesuffix(" alone")
                found.setdefault(cost, []).append(sum(run["hooks"][where][name] for name in names))
        units = model.num_hidden_layers + 1
        last = backward.get(_FINAL[0], 0.0) / units + backward.get(_FINAL[1], 0.0)
        hooks = sum(backward.get(name, 0.0) for name in _BACKWARD)
        found.setdefault("backward_hook", []).append(hooks + last)
        views = forward["handle._use_unsharded_flat_param"] - backward["handle._use_unsharded_flat_param"]
        tensors = sum(len(module.parameters) for module in model.layers[0])
        found.setdefault("view", []).append(views / tensors)
        if not settings.get("cpu_offload") and settings.get("mixed_precision", True):
            found.setdefault("unshard", []).append(sum(backward.get(name, 0.0) for name in _UNSHARD))
    steps = [run["seconds"]["optimizer"] / _MICRO for run in runs if not run["strategy"].get("cpu_offload")]
    found["step_call"] = steps
    costs = {field: _fsdp_time(values, about) for field, values in found.items() if values}
    if runs:
        most = max(run["ranks"] for run in runs)
        costs["ranks"] = Fitted(most, "most ranks with which FSDP was measured", 1)
    return costs


def _passes(runs: Sequence[Run], machine: Machine) -> dict[str, Fitted]:
    """What launches, backward and checkpointing take, from each tiny model with and without checkpointing."""
    pairs = []
    for _, pair in groupby(sorted(runs, key=_model_key), key=_model_key):
        kept, again = sorted(pair, key=lambda run: bool(_work(run).gradient_checkpointing))
        pairs.append(_Pair(kept, again, machine))
    if not pairs:
        return {}
    overhead, known = machine.host.deepspeed.pass_overhead.value, machine.host.deepspeed.operation.value
    slower = [(one.seconds("forward") - overhead) / one.launched(one.trace.forward) for one in pairs]
    operation = median(slower)
    found: dict[str, list[float]] = {
        "operation": [known * one for one in slower],
        "backward_call": [one.seconds("backward") / one.backwards for one in pairs],
        "checkpoint": [one.more("forward") / one.layers for one in pairs],
        "recompute": [
            (one.more("backward") - operation * one.launched(one.trace.backward)) / one.layers
            for one in pairs
        ],
    }
    about = "steps of tiny models without FSDP, with checkpointing and without"
    return {field: _fsdp_time([value / _MICRO for value in values], about) for field, values in found.items()}


class _Pair:
    """A tiny model's steps without checkpointing and with it."""

    def __init__(self, kept: Run, again: Run, machine: Machine) -> None:
        self._saved, self._again = kept, again
        model = load_model({**again["model"], "attention": again["attention"]})
        self.layers = model.num_hidden_layers
        self.trace = micro_step(model, checkpointing=True)
        self._timing = TrainingTiming(machine=machine, model=model, batch=1, length=1, zero3=False)
        backs = (event.instance.module for event in self.trace.backward if event.kind == "back")
        self.backwards = sum(self._timing.backward(module) > 0 for module in backs)

    def seconds(self, name: str) -> float:
        """[s] of a pass without checkpointing."""
        return float(self._saved["seconds"][name])

    def more(self, name: str) -> float:
        """[s] that checkpointing adds."""
        return float(self._again["seconds"][name]) - self.seconds(name)

    def launched(self, events: Sequence[Event]) -> float:
        """[s] of the launches of forward among ``events``, as the machine's profile has them."""
        return sum(self._timing.launch_s(event.instance.module) for event in events if event.kind == "launch")


def _model_key(run: Run) -> tuple[str, int]:
    return run["model"]["family"], run["model"]["num_hidden_layers"]


def _work(run: Run) -> Training:
    return Training.model_validate(run["workload"])


def _fsdp_time(values: Sequence[float], about: str) -> Fitted:
    middle, residual, count = central(values)
    return Fitted(seconds_text(max(0.0, middle) * _MICRO), about, count, residual)


def _adamw(rows: Sequence[Mapping[str, Any]]) -> dict[str, Fitted]:
    """Rates of the operations of AdamW by threads; squared time of a byte = a / threads^2 + b."""
    threads = np.array([row["threads"] for row in rows], dtype=float)
    if len(set(threads)) < 2:
        return {}
    size = SINGLE * np.array([row["parameters"] for row in rows], dtype=float)
    loops = _sum(rows, _DESCRIPTIONS) / (sum(_DESCRIPTIONS.values()) * size)
    # What the same traffic takes in tensors that are there is taken off.
    pages = (_sum(rows, _NEW) - loops * sum(_NEW.values()) * size) / (len(_NEW) * size)
    found: dict[str, Fitted] = {}
    for name, per_byte in (("adam", loops), ("page", pages)):
        table = np.stack([threads**-2, np.ones(len(rows))], axis=1) / per_byte[:, None] ** 2
        scale = np.array([per_byte.max(), per_byte.min()]) ** 2
        fit = non_negative(table * scale, np.ones(len(rows)), negligible=0.02) * scale
        if not fit.all():
            continue
        residual = float(np.max(np.abs(np.sqrt(table @ fit) - 1)))
        what = "operations of PyTorch's AdamW by threads: squared time of a byte = a / threads^2 + b"
        found[f"{name}_thread"] = Fitted(rate_text(fit[0] ** -0.5), what, len(rows), residual)
        found[f"{name}_limit"] = Fitted(rate_text(fit[1] ** -0.5), what, len(rows), residual)
    return found


def _sum(rows: Sequence[Mapping[str, Any]], names: Mapping[str, int]) -> Any:
    return np.array([sum(row["seconds"][name] for name in names) for row in rows])
