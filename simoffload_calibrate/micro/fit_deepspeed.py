"""DeepSpeed on the host: the fields of ``DeepSpeedCosts``, ``TrainingCosts`` and ``CpuOptimizer``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, hypot, log
from statistics import median, pstdev
from typing import Any, NamedTuple

import numpy as np

from simoffload.errors import InputError, Problem
from simoffload.hardware import DEFAULT_SPREADS, P90, Machine, TimeInput
from simoffload.models import load_model
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.programs.zero_inference import ZeroInference, ZeroInferencePlan
from simoffload.strategies.programs.zero_training import ZeroTraining, ZeroTrainingPlan
from simoffload.strategies.training.state import DEEPSPEED_ADAM, overflow_check_traffic
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
from simoffload_calibrate.host_fit import FACTORS, FactorError, HostFit, fit_host, scaled, signed_errors
from simoffload_calibrate.micro.fit_parts import copy_seconds, wait_s
from simoffload_calibrate.micro.fitted import Fitted, non_negative, rate_text, seconds_text
from simoffload_calibrate.micro.noise import probe_level
from simoffload_calibrate.reference import REFERENCE_PROBE, reference_costs

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
    return ThreadFit(None, 1.0, DEFAULT_SPREADS[TimeInput.HOST].other, {}, (remark,), believed=False)


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
        if getattr(known, key) is not None
    }
    update = {key: getattr(known, key).model_copy(update={"value": value}) for key, value in values.items()}
    optimizer = known.model_copy(update=update)
    return replace(machine, host=machine.host.model_copy(update={"cpu_optimizer": optimizer}))


def small_plan(run: Mapping[str, Any], machine: Machine) -> ZeroInferencePlan | ZeroTrainingPlan:
    """The plan of a small model on a machine."""
    config = DeepSpeedConfig.model_validate(run["ds_config"])
    model = load_model({**run["model"], "attention": run["attention"]})
    if run["workload"]["kind"] == "training":
        threads = run.get("threads") if isinstance(run.get("threads"), int) else None
        training = ZeroTraining(ranks=run["ranks"], ds_config=config, cpu_threads=threads)
        return training.plan(model, Training.model_validate(run["workload"]), machine)
    inference = ZeroInference(ranks=run["ranks"], ds_config=config)
    return inference.plan(model, Inference.model_validate(run["workload"]), machine)


# -- Adam -----------------------------------------------------------------------------------------


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
    return found if check is None else {**found, "overflow_thread": check[0], "overflow_limit": check[1]}


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
