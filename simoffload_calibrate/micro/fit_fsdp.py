"""What PyTorch's FSDP and AdamW cost on the host, from steps of tiny models and from AdamW by itself.

The section ``fsdp`` of a record, which the records of two machines have (docs/measurements/fsdp.md), are the
times of FSDP's functions: medians over their calls, each without what it calls. What the thread does apart
from FSDP is in the same models' steps without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np

from simoffload.hardware import Machine
from simoffload.models import load_model
from simoffload.models.modules import SINGLE
from simoffload.strategies.passes.timing import TrainingTiming
from simoffload.strategies.zero.trace import Event, micro_step
from simoffload.workload import Training
from simoffload_calibrate.micro.fitted import Fitted, central, non_negative, rate_text, seconds_text

Run = Mapping[str, Any]

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
    costs = {field: _time(values, about) for field, values in found.items() if values}
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
    return {field: _time([value / _MICRO for value in values], about) for field, values in found.items()}


class _Pair:
    """A tiny model's steps without checkpointing and with it."""

    def __init__(self, kept: Run, again: Run, machine: Machine) -> None:
        self._kept, self._again = kept, again
        model = load_model({**again["model"], "attention": again["attention"]})
        self.layers = model.num_hidden_layers
        self.trace = micro_step(model, checkpointing=True)
        self._timing = TrainingTiming(machine=machine, model=model, batch=1, length=1, zero3=False)
        backs = (event.instance.module for event in self.trace.backward if event.kind == "back")
        self.backwards = sum(self._timing.backward(module) > 0 for module in backs)

    def seconds(self, name: str) -> float:
        """[s] of a pass without checkpointing."""
        return float(self._kept["seconds"][name])

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


def _time(values: Sequence[float], about: str) -> Fitted:
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
