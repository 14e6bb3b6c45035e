"""Costs of the host thread in transformers' code without DeepSpeed, from decode steps of small models."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences, load_model
from simoffload.strategies.passes.timing import Timing
from simoffload.strategies.programs.accelerate import Accelerate
from simoffload.strategies.programs.tensor_parallel import TensorParallel
from simoffload.workload import Inference
from simoffload_calibrate.micro.fitted import Fitted, central, seconds_text

Run = Mapping[str, Any]
_LEAST = 0.1
"""Smallest factor of launches, where the rest of a pass takes nearly all of a measured step."""


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
    found = {"operation": _time([known * one for one in factors], about)}
    if tensors := [_tensor(rows, machine, operation) for rows in alone.values() if "offloaded" in rows]:
        about = "decode steps of small models under Accelerate with pinned weights, less those on the GPU"
        found["hook"] = Fitted(seconds_text(operation), "time of one PyTorch operation", 1, measured=False)
        found["tensor"] = _time(tensors, about)
    together = [
        _all_reduce(rows["divided"], alone[family]["kept"], machine)
        for part in sections.get("eager_together", {}).values()
        for family, rows in _by_model(part["runs"]).items()
        if "divided" in rows and "kept" in alone.get(family, {})
    ]
    if together:
        about = "decode steps of small models under tensor parallelism, less those of one process"
        found["all_reduce"] = _time(together, about)
    return found


def _by_model(runs: Any) -> dict[str, dict[str, Run]]:
    """Return the runs of each model by what happens to it: kept, offloaded or divided."""
    found: dict[str, dict[str, Run]] = {}
    for run in runs:
        strategy = run["strategy"]
        kept = "kept" if strategy.get("device_map") == "cuda" else "offloaded"
        word = "divided" if strategy["kind"] == "tensor_parallel" else kept
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
    rest = run["seconds"] - machine.host.deepspeed.pass_overhead.value
    return max(_LEAST, float(rest / _launched(load_model(run["model"]), machine)))


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
    plan = TensorParallel.model_validate(run["strategy"]).plan(model, work, machine)
    names = plan.divided.reduced | plan.divided.gathered
    (stage,) = plan.divided.stages
    inside = (module for layer in stage.layers for module in layer)
    count = sum(module.name in names for module in (*stage.modules_before, *inside, *stage.modules_after))
    return max(0.0, float(run["seconds"] - alone["seconds"])) / count


def _time(values: list[float], about: str) -> Fitted:
    middle, residual, count = central(values)
    return Fitted(seconds_text(middle), about, count, residual)
