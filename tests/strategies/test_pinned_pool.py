"""Waits for pinned memory: a pool that grows until no step waits, and a run that was measured."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import simoffload as so
from simoffload.results import InferenceResult
from simoffload.scenario import LoadedScenario
from simoffload.schedule import Dependency, Op, Schedule, ScheduleBuilder
from simoffload.strategies.cache.cache_updates import CACHE_LABEL, allocation_waits
from simoffload.strategies.passes.timing import copy_cause
from tests.strategies import scenarios

MIB = 1 << 20
LAYERS, COPY_PS, RATE = 8, 10**9, 10**9
_LAUNCH_PS = 10**7
HOST, COMPUTE, CACHE = range(3)


def step(layers: int = LAYERS, *, copy: int = COPY_PS, launch: int = _LAUNCH_PS) -> Schedule:
    """Return a step in which each layer's copies take ``copy`` [ps] each way, one after the other, and its
    launch ``launch`` [ps]."""
    builder = ScheduleBuilder(name="step", ranks=1, streams=("host", "compute", "cache"))
    out, to = (
        builder.route(
            cause=copy_cause(to_device=inward, pinned=True).of_cache("dram"),
            hops=(((0, Fraction(1)),),),
            cap=10**15,
        )
        for inward in (False, True)
    )
    for _ in range(layers):
        builder.segment("layer")
        builder.add(Op("launch", "attention", HOST, launch))
        host = Dependency(HOST)
        builder.add(Op("copy", CACHE_LABEL, CACHE, copy, 1, to, (host, Dependency(COMPUTE))))
        builder.add(Op("copy", CACHE_LABEL, COMPUTE, copy, 1, out, (host,)))
    return builder.build([("link", 10**15)])


def waits(
    steps: int, size: Callable[[int], int] = lambda _: MIB, rate: float = RATE, **how: int
) -> dict[int, int]:
    return allocation_waits(
        steps, lambda number: [(size(number),) * 2] * LAYERS, lambda _: step(**how), rate=rate
    )


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the steps be those of the first generation of a process."""
    monkeypatch.setattr("simoffload.strategies.cache.cache_updates._GENERATIONS", 1)


@pytest.mark.usefixtures("first")
def test_a_long_generation_stops_to_wait_when_there_are_two_sets() -> None:
    found = waits(40 * LAYERS)
    assert found
    # Each step that waits allocates at least one block; two sets have 2 x 2 x LAYERS of them.
    assert max(found) < 2 * LAYERS
    assert all(time > 0 for time in found.values())


def test_no_step_waits_if_the_host_thread_is_slower_than_the_copies() -> None:
    assert waits(50, launch=3 * COPY_PS) == {}


def test_the_second_generation_finds_the_blocks_of_the_first() -> None:
    assert waits(40 * LAYERS) == {}


@pytest.mark.usefixtures("first")
def test_copies_in_the_queue_hide_an_allocation_that_takes_no_longer() -> None:
    """Only those of the first layer, for which nothing is queued yet, are waited for."""
    assert set(waits(50, rate=MIB / (COPY_PS * 1e-12))) <= {1}


def test_tensors_that_outgrow_their_blocks_need_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def size(step: int) -> int:
        return MIB if step < 10 else MIB + 1

    assert 10 not in waits(20, size)  # the blocks of the first generation are free
    monkeypatch.setattr("simoffload.strategies.cache.cache_updates._GENERATIONS", 1)
    first = waits(20, size)
    # All blocks but those of the first layer are new, and twice as large.
    assert first[10] > 2 * (LAYERS - 1) * 2 * MIB / RATE * 1e12 / 2
    assert first[10] > 5 * first.get(9, 0)


# -- a model -------------------------------------------------------------------------------------


def scenario(output_length: int, cache: dict[str, Any], **model: Any) -> LoadedScenario:
    """A model of the shape of Llama 8B, 16 prompts of 4096 tokens, on a measured machine with an H200."""
    shape = {"name": "llama-3.1-8b", "dtype": "float16", **model}
    work = {"batch_size": 16, "prompt_length": 4096, "output_length": output_length}
    return scenarios.scenario(model=shape, **work, cache=cache)


def simulated(output_length: int, cache: dict[str, Any], **model: Any) -> InferenceResult:
    result = so.simulate(scenario(output_length, cache, **model))
    assert isinstance(result, InferenceResult)
    return result


def test_steps_and_waits_are_those_that_were_measured() -> None:
    """In view: docs/measurements/kv-cache.md, second generation: 190, 284, 288, 237 and 261 ms."""
    found = simulated(6, {"tier": "dram"})
    assert found.tpot_s == pytest.approx(0.252, rel=0.15)
    assert found.decode[0].time_s == pytest.approx(0.190, rel=0.05)
    assert found.kv_allocation_s == pytest.approx(0.094 + 0.098 + 0.047 + 0.071, rel=0.4)


def test_waits_are_part_of_the_times() -> None:
    found = simulated(6, {"tier": "dram"})
    waited = found.kv_allocation_s
    assert waited
    assert found.allocation is not None
    assert [share.cause_text for share in found.allocation.shares] == ["new pinned memory"]
    steps = sum(time for one, time in found.spent if one is found.decode[0])
    assert found.decode_total_s == pytest.approx(steps + waited)
    assert found.e2e_s == pytest.approx(sum(time for _, time in found.spent))
    assert found.metrics()["kv_allocation_s"] == waited


@pytest.mark.parametrize("cache", [{}, {"implementation": "static"}, {"format": "int4"}])
def test_a_cache_in_hbm_waits_for_nothing(cache: dict[str, Any]) -> None:
    found = simulated(4, cache)
    assert found.allocation is None
    assert "kv_allocation_s" not in found.to_dict()["metrics"]


def test_a_long_generation_waits_in_its_first_steps_only() -> None:
    short, long = (simulated(length, {"tier": "dram"}, num_hidden_layers=8) for length in (64, 640))
    assert short.kv_allocation_s == pytest.approx(long.kv_allocation_s)
