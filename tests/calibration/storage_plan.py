"""The storage operations that the simulator expects in one pass, in the form of a recorded run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from simoffload.documents import Document
from simoffload.scenario import resolve
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload.strategies.zero.coordinator import CoordinatorSink, Tensor
from simoffload.strategies.zero.replay import hook

LAYER = re.compile(r"^(?:model\.decoder|model|transformer)\.(?:layers|h)\.(\d+)(?:\.|$)")
"""The prefix of full names before the names that repeat in every layer."""


class Row(NamedTuple):
    """One call to the storage library."""

    operation: str
    """The operation: read or wait read."""
    layer: int
    """The number of the layer; 0 outside the layers."""
    tensor: str
    size: int
    """[B] Size of the request."""
    free_buffers: int
    """The number of free swap buffers after the call."""


def plan_of(run: Mapping[str, Any], *, version: str) -> ZeroInferencePlan:
    """Return the simulator's plan for a recorded run, on a machine with a drive and enough GPUs."""
    strategy = {**run["strategy"], "deepspeed_version": version}
    plan = resolve(Document("", {**run, "strategy": strategy, "platform": "dgx-a100"})).plan()
    assert isinstance(plan, ZeroInferencePlan)
    return plan


def module_names(plan: ZeroInferencePlan) -> list[str]:
    """Return every module in the order of its calls, those in leaf modules included; "" is the layer
    itself."""
    model = plan.model
    inside = (one for layer in model.layers for one in layer)
    modules = (*model.modules_before, *inside, *model.modules_after)
    return ["" if one is model.layers[0][0] else one.name for one in modules if one.hooked]


def planned_rows(plan: ZeroInferencePlan, *, first: bool) -> list[Row]:
    """Return all reads of one rank in order, with the waits of its host thread."""
    sizes = _sizes(plan, first=first)
    whole = plan.layered.full
    layers = _layers(whole.parameters.tensors)
    rows: list[Row] = []

    class Storage(CoordinatorSink):
        def read(self, tensors: Sequence[Tensor], /) -> None:
            free = coordinator._free_buffers
            rows.extend(Row("read", layers[id(one)], one.name, next(sizes), free) for one in tensors)

        def wait_reads(self) -> None:
            rows.append(Row("wait read", 0, "", 0, coordinator._free_buffers))

    coordinator = whole.coordinator(plan.layered.fetching, plan.layered.ranks, Storage(), warm=not first)
    for event in whole.trace.forward:
        hook(event, coordinator, whole.parameters)
    assert next(sizes, None) is None
    return _in_one_order(rows)


def recorded_rows(storage: Sequence[Sequence[Any]], *, tied: str) -> list[Row]:
    """Return a record's rows without times; ``tied`` is the word embedding that is also ``lm_head``."""
    rows = []
    for operation, name, size, _begin, _duration, free in storage:
        full = tied if name == "lm_head.weight" and tied else name
        found = LAYER.match(full)
        rows.append(Row(operation, int(found[1]) if found else 0, LAYER.sub("", full), size, free))
    return _in_one_order(rows)


def _in_one_order(rows: Sequence[Row]) -> list[Row]:
    """DeepSpeed fetches the tensors of one module in the order of a Python set."""
    modules = groupby(rows, key=lambda row: (row.operation, row.layer, row.tensor.rpartition(".")[0]))
    return [row for _, group in modules for row in sorted(group)]


def _sizes(plan: ZeroInferencePlan, *, first: bool) -> Iterator[int]:
    """Return the bytes of all reads in the schedule [B]."""
    schedule = plan.schedule(plan.forward("pass", 1, 8, first=first))
    for block in schedule.blocks:
        for _ in range(block.repeat):
            yield from (op.size for op in block.ops if op.kind == "read")


def _layers(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Return the layer of every tensor, which is how often its name occurred before."""
    seen: Counter[str] = Counter()
    layers = {}
    for tensor in tensors:
        layers[id(tensor)] = seen[tensor.name]
        seen[tensor.name] += 1
    return layers
