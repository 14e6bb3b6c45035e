"""Hooks of FlexGen's slots alone: their times, bytes and repetition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simoffload.engine import execute
from simoffload.extensions.programs.flexgen import (
    CopyThreads,
    FlexGenPlan,
    SlotEnds,
    SlotKernels,
    SlotTiming,
    SlotWeights,
    slot_parts,
)
from simoffload.models import Module
from simoffload.schedule import Op, Schedule
from simoffload.strategies.passes.pass_writer import PassWriter, StagePass
from tests.strategies import scenarios

PLACES = [f"{what}_{home}_percent" for what in ("weights", "cache", "activations") for home in ("gpu", "cpu")]


def plan(*percent: int, model: str = "opt-1.3b", **keys: Any) -> FlexGenPlan:
    """Return a plan with the numbers of ``--percent``."""
    strategy = {"kind": "flexgen", **dict(zip(PLACES, percent, strict=True)), **keys}
    shape = {"name": model, "dtype": "float16"}
    work = {"platform": "gcp-t4", "batch_size": 12, "prompt_length": 64}
    found = scenarios.scenario(model=shape, **work, strategy=strategy).plan()
    assert isinstance(found, FlexGenPlan)
    return found


def copies(schedule: Schedule, label: str) -> list[Op]:
    """Return the copies over the link with a label."""
    blocks = [op for block in schedule.blocks for op in block.ops * block.repeat]
    return [op for op in blocks if op.kind == "copy" and op.label == label and op.size]


class Equal(SlotTiming):
    """All slots take the same time on the GPU."""

    duration = 0

    def compute(self, _module: Module, /) -> int:
        return self.duration


def test_the_traffic_of_attention() -> None:
    """12 sequences of OPT-1.3B: ten copies of the hidden states, keys and values of 65 and of the new token,
    and twelve bytes for each score of 32 heads."""
    found = plan(100, 0, 100, 0, 100, 0)
    batch = found.of_gpu_batch(found.forward("decode 1", 1, 65).batch)
    timing = SlotTiming(found.machine, found.model, batch, (found.slots, found.block_cache))
    attention = next(one for one in found.model.layers[0] if one.kind == "attention")
    states, scores = 12 * 2048 * 2, 12 * 32 * 65
    assert timing.cost(attention) == (4 * scores * 64, 10 * states + 2 * 66 * states + 12 * scores)


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("kernels", [10, 50, 100])
def test_weights_delay_the_first_gpu_batch_only(batches: int, kernels: int) -> None:
    """T(slot) = max(next weights, kernels) + (n - 1) kernels: the copies take 34 ms for attention and 69 for
    an MLP, and what the link could do during the other GPU batches is lost."""
    found = plan(0, 100, 100, 0, 100, 0, model="opt-30b", gpu_batches=batches)
    batch = found.of_gpu_batch(found.forward("prefill", 64, 64).batch)
    timing = Equal(found.machine, found.model, batch, (found.slots, found.block_cache))
    timing.duration = kernels * 10**9
    threads = CopyThreads(found)
    hooks = SlotEnds(found, threads), SlotWeights(found, threads), SlotKernels(found), threads
    parts = slot_parts(found.slots, gpu_batches=batches, overlap=True)
    writer = PassWriter(name="pass", machine=found.machine, hooks=hooks)
    schedule = writer.write([StagePass(parts, timing, batch)])
    weights = [
        op.fixed * 1e-9 + op.size / schedule.routes[op.route].cap * 1e3 for op in copies(schedule, "weights")
    ]
    assert len(weights) == 48 * 2 + 2, "one copy in each slot"
    expected = sum(max(one, kernels) + (batches - 1) * kernels for one in weights)
    assert execute(schedule).makespan * 1e-9 == pytest.approx(expected, rel=0.02)


def test_layers_with_the_same_neighbours_are_the_same_calls() -> None:
    """The first layer follows the embedding, and the last one precedes the head."""
    slots = plan(0, 100, 100, 0, 100, 0).slots
    _, first, second, *more, last, _ = slot_parts(slots, gpu_batches=2, overlap=True)
    assert {id(one.calls) for one in more} == {id(second.calls)}
    assert len({id(one.calls) for one in (first, second, last)}) == 3


@pytest.mark.parametrize(
    ("percent", "keys"),
    [
        ((0, 100, 0, 100, 0, 100), {}),
        ((0, 100, 0, 100, 0, 100), {"gpu_batches": 3, "pin_weight": False}),
        ((20, 30, 100, 0, 100, 0), {"disk": "nvme", "page_cache": False}),
        ((20, 30, 50, 25, 0, 0), {"disk": "nvme", "page_cache": True, "gpu_batches": 2}),
        ((0, 0, 0, 0, 0, 0), {"disk": "nvme", "page_cache": False, "gpu_batches": 4}),
        ((50, 50, 50, 50, 100, 0), {"overlap": False}),
        ((0, 100, 0, 100, 0, 100), {"overlap": False, "gpu_batches": 3}),
        ((0, 100, 0, 100, 0, 100), {"sep_layer": False}),
        ((0, 100, 0, 100, 0, 100), {"sep_layer": False, "overlap": False, "gpu_batches": 2}),
        ((0, 100, 0, 100, 100, 0), {"cpu_attention": True, "gpu_batches": 2}),
        ((0, 100, 25, 25, 100, 0), {"cpu_attention": True, "disk": "nvme"}),
        ((0, 100, 0, 100, 100, 0), {"compress_weight": True, "compress_cache": True, "gpu_batches": 2}),
        ((0, 0, 0, 0, 100, 0), {"compress_cache": True, "disk": "nvme", "page_cache": False}),
    ],
)
def test_what_repeats_is_equal_and_no_byte_is_lost(
    percent: tuple[int, ...], keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plan(*percent, **keys)
    for forward, new in ((found.forward("prefill", 64, 64), 64), (found.forward("decode 1", 1, 65), 1)):
        schedule = found.schedule(forward)
        monkeypatch.setattr(PassWriter, "verify", True)
        assert replace(found).schedule(forward) == schedule
        monkeypatch.setattr(PassWriter, "verify", False)
        moved = [
            sum(op.size for op in copies(schedule, what)) for what in ("weights", "cache", "hidden states")
        ]
        tokens = (0 if new == 64 or found.strategy.cpu_attention else 65, new)
        states = 2 * (sum(count for _, count in found.slots.kinds) - 1) * 12 * new * 2048 * 2
        assert moved == [
            sum(map(found.slots.weight_bytes, ("dram", found.strategy.disk_tier))),
            sum(found.cache_bytes(home, number) for home in (1, 2) for number in tokens),
            states if found.strategy.activations.place != "gpu" else 0,
        ]
