"""Every way to offload weights with every key-value cache: none fails, and bytes are neither lost nor made.

The combinations are those of the page ``docs/reference/programs.md``.
"""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import simoffload as so
from simoffload.schedule import Schedule
from simoffload.strategies.passes.pass_writer import PassWriter
from tests.strategies.staging import excess, parts_apart

COMBINATIONS = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "combinations.py"))
WEIGHTS, CACHES, CELL = (COMBINATIONS[name] for name in ("WEIGHTS", "CACHES", "Cell"))
LAYERS, WIDTH, VOCABULARY = 32, 4096, 50272
TOKEN = LAYERS * 2 * WIDTH * 2
"""[B] of keys and values of a token."""
BATCH, EARLIER = 2, 97
"""Sequences of a replica, and earlier tokens of each in the second decode step."""
HEAD = VOCABULARY * WIDTH * 2
"""[B] of the head, which is the embedding: it is stored once and moved twice."""


class Moved(NamedTuple):
    """Bytes that a pass moves, of all ranks."""

    weights: int
    """To the GPUs, or read by their kernels in host memory."""
    files: int
    """Of weights, from files."""
    loaded: int
    """Of keys and values, to the GPUs."""
    stored: int
    """Of keys and values, from the GPUs."""


def moved(schedule: Schedule) -> Moved:
    sizes = Counter[tuple[str, bool]]()
    ranks = {stream: len(one.ranks) for one in schedule.parts for stream in one.streams}
    for block in schedule.blocks:
        for op in block.ops:
            if op.route >= 0:
                cause = schedule.routes[op.route].cause
                sizes[cause.kind, cause.moves_cache] += op.size * block.repeat * ranks[op.stream]
    return Moved(
        weights=sizes["host-to-gpu", False] + sizes["in-place", False],
        files=sizes["read", False] + sizes["mapped-copies", False] // 2,  # a copy reads and writes
        loaded=sizes["host-to-gpu", True],
        stored=sizes["gpu-to-host", True],
    )


class Found(NamedTuple):
    """What one combination is, and what it does."""

    plan: Any
    replicas: int
    step: Moved
    result: Any

    def held(self, name: str) -> Counter[str]:
        """Bytes of a name by tier, of the last stage of the run."""
        sizes = Counter[str]()
        for one in self.plan.held:
            if one.name == name:
                sizes[one.tier] += one.size
        return sizes


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every part that repeats is written, too, and compared."""
    monkeypatch.setattr(PassWriter, "verify", True)
    with COMBINATIONS["example"]():
        yield


def found(weights: str, cache: str) -> Found:
    scenario = CELL(weights, cache).load()
    plan: Any = scenario.plan()
    schedule = plan.phases[-1] if plan.phases[-1].kind == "decode" else plan.phases[-2]
    return Found(
        plan, scenario.scenario.strategy.replicas, moved(schedule.step(2).schedule({})), so.simulate(scenario)
    )


@pytest.mark.parametrize("weights", WEIGHTS)
def test_bytes_are_conserved_whatever_the_cache_is(weights: str) -> None:
    plain = found(weights, "in HBM")
    held = plain.held("weights")
    offloaded = sum(held.values()) - held["hbm"]
    twice = HEAD if not held["hbm"] and offloaded else 0
    # ZeRO keeps small parameters on the GPU; kernels that read in place read tables by rows.
    assert plain.step.weights == pytest.approx(offloaded + twice, rel=1e-3)
    assert plain.step.files == pytest.approx(held["raid"] + twice * (held["raid"] > 0), rel=1e-3)
    for cache in CACHES:
        answer = CELL(weights, cache).answer()
        if answer.startswith("no: "):
            assert any(name in answer for name in ("vLLM", "FlexGen", "num_gpus")), answer
            continue
        one = plain if cache == "in HBM" else found(weights, cache)
        assert one.result.fits, cache
        assert one.result.ttft_s > 0.0
        assert one.result.tpot_s > 0.0
        # FlexGen brings what the CPU's attention returns beside the weights.
        results = 1e-4 if cache == "attention on the CPU" else 0.0
        assert one.step.weights == pytest.approx(plain.step.weights, rel=results, abs=0), cache
        assert one.step.files == plain.step.files, cache
        assert one.held("weights") == held, cache
        warned = any("what if: " in text for text in one.result.warnings)
        assert warned == answer.startswith("what-if: "), cache
        with parts_apart():
            assert excess(CELL(weights, cache).load().plan()) == {}, cache
        if cache.startswith("streamed") and weights != COMBINATIONS["FLEXGEN"]:
            assert one.step.loaded == one.replicas * BATCH * EARLIER * TOKEN, cache
            assert one.step.stored == one.replicas * BATCH * TOKEN, cache


def test_a_cache_moves_its_bytes_whatever_brings_the_weights() -> None:
    """All that transformers offloads moves the same keys and values, on one GPU or several."""
    rows = ("Accelerate, host memory", "Accelerate, several GPUs", "resident", "homes and hooks")
    steps = {row: found(row, "offloaded").step for row in rows}
    assert len({(one.loaded, one.stored) for one in steps.values()}) == 1, steps
