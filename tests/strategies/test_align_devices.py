"""Hooks of Accelerate on a small model: the time of a pass by hand, bytes, and parts that repeat."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import simoffload as so
from simoffload.hardware import load_platform
from simoffload.models import ModelShape, Sequences, load_model
from simoffload.schedule import Schedule
from simoffload.strategies import Phase
from simoffload.strategies.cache.cache_updates import CACHE_LABEL
from simoffload.strategies.passes.pass_writer import Call, Part, PassWriter, StagePass
from simoffload.strategies.passes.timing import PassTimings
from simoffload.strategies.programs.accelerate import AlignDevices, HiddenStates, NewTensors, Offloaded
from tests.strategies import scenarios
from tests.strategies.scenarios import bytes_of

MODEL = {"family": "llama", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8}
MODEL |= {"num_key_value_heads": 2, "intermediate_size": 4096, "vocab_size": 32000, "dtype": "float16"}
BATCH = (Sequences(2, 1, 17),)
MACHINE = load_platform("dgx-h200").machine(nodes=1)
RESULT = NewTensors(16 << 20, 1)


def written(offloaded: range, *, gpus: int = 1, **keys: Any) -> tuple[Schedule, ModelShape, PassTimings]:
    """Return a pass of the layers alone, the model and its times; the last GPU computes the upper half."""
    model = load_model(MODEL)
    timings = PassTimings(machine=MACHINE, model=model, modules=model.distinct_modules, zero3=False)
    disk, kinds, parts = bool(keys.get("folder")), dict[Any, tuple[Call, ...]](), []
    for number, layer in enumerate(model.layers):
        kind = number in offloaded, gpus - 1 if number >= 4 and number not in offloaded else 0

        def call(module: Any, kind: tuple[bool, int] = kind) -> Call:
            sizes = tuple(size for one in module.parameters for _, size in one.stored_tensors(2))
            return Call(module, kind[1], Offloaded(bool(sizes), sizes if kind[0] else (), disk))

        parts.append(Part("layer", kinds.setdefault(kind, tuple(map(call, layer))), number))
    hooks = (AlignDevices(lambda *_: (RESULT,), **keys), *([HiddenStates(2048, 0)] if gpus > 1 else ()))
    out = PassWriter(name="pass", machine=MACHINE, hooks=hooks, compute=gpus)
    return out.write([StagePass(parts, timings.timing(BATCH), BATCH)]), model, timings


def sizes_of(model: ModelShape, layers: int) -> list[int]:
    return layers * [
        size for m in model.layers[0] for one in m.parameters for _, size in one.stored_tensors(2)
    ]


@pytest.mark.parametrize("count", [2, 8])
def test_the_host_thread_takes_as_long_as_by_hand(count: int) -> None:
    """Fixed times of hooks, tensors and launches, cold caches, and new memory of each result: it is given
    back with the next tensor, if there is one."""
    schedule, model, timings = written(range(count))
    host, memory, timing = MACHINE.host, MACHINE.accelerator.allocation, timings.timing(BATCH)
    assert memory is not None
    path, sizes = MACHINE.host_to_device(0, pinned=False), sizes_of(model, count)
    costs, wait = host.eager_costs, host.deepspeed
    hand = 40 * costs.operation.value + len(sizes) * costs.tensor.value
    for size in sizes:
        hand += size / memory.allocate_rate.value + size / memory.release_rate.value
        cold = wait.cold_share.value * (path.latency + size / path.curve.rate(size))
        hand += min(wait.cold_limit.value, cold)
    emptied, allocated, released = False, 0, 0
    for number, layer in enumerate(model.layers):
        for module in layer:
            hand += costs.hook.value * bool(module.parameters)
            if module.parameters:
                emptied = number < count
                released = allocated if emptied else released
            if timing.compute(module):
                hand += timing.launch_s(module)
                allocated += emptied
    hand += allocated * RESULT.seconds(memory.allocate.value, memory.allocate_rate.value)
    hand += released * RESULT.seconds(memory.release.value, memory.release_rate.value)
    host_ps = sum(op.fixed * block.repeat for block in schedule.blocks for op in block.ops if not op.stream)
    assert 0 < released < allocated
    assert host_ps == pytest.approx(hand * 1e12, abs=1000)


@pytest.mark.parametrize(
    ("layers", "gpus", "moves"), [(range(2), 1, 0), (range(2), 2, 1), (range(5, 7), 2, 3)]
)
def test_each_offloaded_tensor_is_copied_once(layers: range, gpus: int, moves: int) -> None:
    schedule, model, _ = written(layers, gpus=gpus)
    states = bytes_of(schedule, "copy", "hidden states")
    assert bytes_of(schedule, "copy") - states == sum(sizes_of(model, len(layers)))
    assert states == moves * 2 * 2048


@pytest.mark.parametrize("cached", [True, False])
def test_files_are_read_and_copied(cached: bool) -> None:
    schedule, model, _ = written(range(2), folder="raid", page_cache=cached)
    size = sum(sizes_of(model, 2))
    assert (bytes_of(schedule, "read"), bytes_of(schedule, "copy")) == (0 if cached else size, size)


CACHES = ({}, {"tier": "dram"}, {"tier": "raid", "implementation": "streamed"})
MAPS: tuple[dict[str, Any], ...] = (
    {"device_map": "cpu"},
    {"device_map": 3, "num_gpus": 2},
    {"device_map": 3, "offload_folder": "raid", "page_cache": False},
    {"device_map": {"": 1, "model.layers.2": 0, "model.layers.5.mlp": "cpu"}, "num_gpus": 3},
)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("keys", MAPS)
def test_parts_repeat_rightly_and_copies_of_weights_overlap_no_kernel(
    keys: dict[str, Any], cache: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = {"batch_size": 2, "prompt_length": 16, "steps": 2}
    found = scenarios.scenario(model=MODEL, **work, strategy={"kind": "accelerate", **keys}, cache=cache)
    phases = [one if isinstance(one, Phase) else one.step(1) for one in found.plan().phases]
    repeated = [one.schedule({}) for one in phases]
    monkeypatch.setattr(PassWriter, "verify", True)
    assert [one.schedule({}) for one in phases] == repeated
    for timeline in so.simulate(found, keep_timelines=True).timelines.values():
        ops = [one for one in timeline if one.op.stream and one.op.label != CACHE_LABEL]
        ordered = sorted((one.start, one.end) for one in ops if one.start < one.end)
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
