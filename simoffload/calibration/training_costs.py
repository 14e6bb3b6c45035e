"""Fit of the time that training costs DeepSpeed's host thread per event, from steps of small models.

In small models a phase takes almost only the time of the Python thread, which is a sum of costs times their
numbers of events. The numbers come from simulating the phase with one cost slightly larger; the costs
minimize the absolute residuals over all phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from simoffload.calibration.host_costs import REAL_MODELS, non_negative
from simoffload.engine import execute
from simoffload.errors import InputError, Problem
from simoffload.hardware.profiles import TrainingCosts
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.plan import ZeroTrainingPlan

__all__ = ["TrainingFit", "fit_training_costs", "measured_part"]

_PICO = 1e-12
_COSTS = tuple(TrainingCosts.model_fields)
_NUDGE = {"graph": 0.05}
"""The increase of a cost for counting its events; others get ``_NUDGE_S``."""
_NUDGE_S = 20e-6  # [s]
_DEEP = 16
"""The number of layers from which a model's modules exceed the CPU's caches, as those of real models do, so
that its costs need no factor (older records have models of 8 layers)."""
_ROUNDS = 2
"""The number of fits, each around the previous costs, because what the thread hides depends on them."""


class TrainingFit(NamedTuple):
    """The fitted costs of training and the residuals of the fit."""

    values: dict[str, float]
    """[s] Costs by the names of ``TrainingCosts``; ``graph`` is a share."""
    mean_residual: float
    """The mean relative difference between the fitted and the measured time of a phase."""
    worst_residual: float
    phases: int
    factor: float
    """The factor on the fitted times for models of real size."""


class _Phase(NamedTuple):
    plan: ZeroTrainingPlan
    part: StepPart
    seconds: float


def measured_part(run: Mapping[str, Any], part: StepPart, *, accumulation: int) -> float | None:
    """Return the median time [s] of a part of a recorded run; None if it was not measured."""
    last = accumulation - 1

    def belongs(one: Mapping[str, Any]) -> bool:
        step = one.get("micro_step", 0)
        if one["name"] != part.phase:
            return False
        if part.phase == "forward":
            return True
        if part.phase == "optimizer" or part.boundary:
            return bool(step == last)
        return bool(step == 0 if part.micro_step == 0 else 0 < step < last)

    times = [float(one["seconds"]) for one in run["passes"] if belongs(one)]
    return median(times) if times else None


def fit_training_costs(runs: Iterable[tuple[Mapping[str, Any], ZeroTrainingPlan]]) -> TrainingFit:
    """Fit all costs to the phases of recorded runs; raises InputError if none was measured."""
    phases = list(_phases(runs))
    if not phases:
        text = "no phase of a training step was measured; measure again, or with --skip hooks"
        raise InputError([Problem("", None, None, "sections.hooks.training", text)])
    training = phases[0].plan.machine.host.training
    values = {key: float(getattr(training, key).value) for key in _COSTS}
    for _ in range(_ROUNDS):
        values = _fitted(phases, values)
    residuals = [abs(_simulated(one, values) / one.seconds - 1) for one in phases]
    deep = all(one.plan.model.num_hidden_layers >= _DEEP for one in phases)
    factor = 1.0 if deep else REAL_MODELS
    scaled = {key: value * (1.0 if key == "graph" else factor) for key, value in values.items()}
    return TrainingFit(scaled, float(np.mean(residuals)), max(residuals), len(phases), factor)


def _phases(runs: Iterable[tuple[Mapping[str, Any], ZeroTrainingPlan]]) -> Iterator[_Phase]:
    for run, plan in runs:
        for part in plan.parts:
            seconds = measured_part(run, part, accumulation=plan.workload.gradient_accumulation_steps)
            if seconds is not None:
                yield _Phase(plan, part, seconds)


def _fitted(phases: Sequence[_Phase], around: Mapping[str, float]) -> dict[str, float]:
    table, target = [], []
    for one in phases:
        base = _simulated(one, around)
        slopes = [
            (_simulated(one, {**around, key: around[key] + _nudge(key)}) - base) / _nudge(key)
            for key in _COSTS
        ]
        remaining = (
            one.seconds - base + sum(slope * around[key] for slope, key in zip(slopes, _COSTS, strict=True))
        )
        # Residuals are relative, so a phase of 2 ms counts as much as one of 50 ms.
        table.append([slope / one.seconds for slope in slopes])
        target.append(remaining / one.seconds)
    scale = np.array([_nudge(key) for key in _COSTS])
    costs = non_negative(np.array(table) * scale, np.array(target), negligible=0.02) * scale
    return {key: float(value) for key, value in zip(_COSTS, costs, strict=True)}


def _nudge(key: str) -> float:
    return _NUDGE.get(key, _NUDGE_S)


def _simulated(phase: _Phase, values: Mapping[str, float]) -> float:
    """Return the simulated time [s] of the phase with these costs."""
    machine = phase.plan.machine
    known = machine.host.training
    update = {key: getattr(known, key).model_copy(update={"value": value}) for key, value in values.items()}
    host = machine.host.model_copy(update={"training": known.model_copy(update=update)})
    plan = replace(phase.plan, machine=replace(machine, host=host))
    return execute(plan.schedule(phase.part)).makespan * _PICO
