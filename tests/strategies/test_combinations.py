"""Every way to offload weights with every key-value cache: none fails, and bytes are neither lost nor made.

The combinations are those of the page ``docs/reference/programs.md``.
"""

from __future__ import annotations

import runpy
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import simoffload as so
from simoffload.documents import Edit
from simoffload.engine import execute
from simoffload.models import Sequences
from simoffload.scenario import LoadedScenario
from simoffload.schedule import Schedule
from simoffload.strategies.passes.pass_writer import PassWriter
from tests.examples import one_in
from tests.strategies.staging import excess, parts_apart

COMBINATIONS = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "combinations.py"))
WEIGHTS, CACHES, CELL = (COMBINATIONS[name] for name in ("WEIGHTS", "CACHES", "Cell"))
LAYERS, WIDTH, VOCABULARY = 12, 4096, 50272
TOKEN = LAYERS * 2 * WIDTH * 2
"""[B] of keys and values of a token."""
BATCH, EARLIER = 2, 97
"""Sequences of a replica, and earlier tokens of each in the second decode step."""
LONGEST = 96 + 3
"""Tokens of a sequence after the last decode step, whose own is not kept."""
HEAD = VOCABULARY * WIDTH * 2
"""[B] of the head, which is the embedding: it is stored once and moved twice."""
REFUSING = ("vLLM", "gpt-fast", "FlexGen", "num_gpus", "a pipeline of")
"""Programs that refuse some caches, and the key of another one."""
SHORTCUTS = ("steady_state", "rank_symmetry", "decode_extrapolation")


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
    read: int
    """Of keys and values, from files."""
    written: int
    """Of keys and values, to files."""


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
        read=sizes["read", True],
        written=sizes["write", True],
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


def load(weights: str, cache: str) -> LoadedScenario:
    """The scenario of a combination with fewer layers, of which as large a part is on the first GPU."""
    edits = [Edit.at("model", {"name": "opt-6.7b", "num_hidden_layers": LAYERS})]
    if isinstance(first := WEIGHTS[weights].get("device_map"), int):
        edits.append(Edit.at("strategy.device_map", first * LAYERS // 32))
    return CELL(weights, cache).load().edited(*edits)


def found(weights: str, cache: str) -> Found:
    scenario = load(weights, cache)
    plan: Any = scenario.plan()
    schedule = plan.phases[-1] if plan.phases[-1].kind == "decode" else plan.phases[-2]
    return Found(
        plan, scenario.scenario.strategy.replicas, moved(schedule.step(2).schedule({})), so.simulate(scenario)
    )


@pytest.mark.parametrize(("number", "weights"), list(enumerate(WEIGHTS)))
def test_bytes_are_conserved_whatever_the_cache_is(number: int, weights: str) -> None:
    """With half of the caches, the other half for the next program."""
    plain = found(weights, "in HBM")
    held = plain.held("weights")
    offloaded = sum(held.values()) - held["hbm"]
    twice = HEAD if not held["hbm"] and offloaded else 0
    # ZeRO keeps small parameters on the GPU; kernels that read in place read tables by rows.
    assert plain.step.weights == pytest.approx(offloaded + twice, rel=1e-3)
    assert plain.step.files == pytest.approx(held["raid"] + twice * (held["raid"] > 0), rel=1e-3)
    for cache in one_in(2, CACHES, first=number):
        answer = CELL(weights, cache).answer()
        if answer.startswith("no: "):
            assert any(name in answer for name in REFUSING), answer
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
            assert excess(load(weights, cache).plan()) == {}, cache
        if weights != COMBINATIONS["FLEXGEN"]:
            check_cache(one, cache)


def check_cache(one: Found, cache: str) -> None:
    """What moves, and where it is kept, follows from tokens alone, whatever brings the weights."""
    sequences, kept = one.replicas * BATCH, one.held("key-value cache")
    if cache.startswith("streamed"):
        assert one.step[2:4] == (sequences * EARLIER * TOKEN, sequences * TOKEN), cache
        on_files = one.step[2:4] if "storage" in cache else (0, 0)
        assert one.step[4:] == on_files, cache
        assert kept == {"raid" if "storage" in cache else "dram": sequences * LONGEST * TOKEN}, cache
    elif cache == "offloaded":
        assert one.step.stored == sequences * (EARLIER + 1) * TOKEN, cache
        first = one.step.loaded - sequences * EARLIER * TOKEN
        assert first in (0, sequences * TOKEN // LAYERS), cache
        assert kept == {"dram": sequences * LONGEST * TOKEN}, cache
    elif cache == "attention on the CPU":
        assert kept == {"dram": 2 * sequences * LONGEST * TOKEN}, "in single precision"
    elif cache.startswith("blocks"):
        assert one.held("blocks of the prefixes") == {"dram": sequences * 64 * TOKEN}, cache
        assert set(kept) == {"hbm"}, cache
    elif cache in ("in HBM", "static", "4 bits", "fp8"):
        assert one.step[2:] == (0, 0, 0, 0), cache
        assert set(kept) == {"hbm"}, cache


def test_a_cache_moves_its_bytes_whatever_brings_the_weights() -> None:
    """All that transformers offloads moves the same keys and values, on one GPU or several."""
    rows = ("Accelerate, host memory", "Accelerate, several GPUs", "transformers", "homes and hooks")
    steps = {row: found(row, "offloaded").step for row in rows}
    assert len({(one.loaded, one.stored) for one in steps.values()}) == 1, steps


@pytest.mark.parametrize("weights", [one for one in WEIGHTS if one != COMBINATIONS["FLEXGEN"]])
@pytest.mark.parametrize("cache", ["offloaded", "streamed, host memory", "streamed, storage"])
def test_attention_does_not_overtake_its_cache(weights: str, cache: str) -> None:
    """Nor do the copies overtake attention: there is room for the layers in use and the next one. Long
    contexts, for which everything waits for copies."""
    if CELL(weights, cache).answer().startswith("no: "):
        return
    plan: Any = load(weights, cache).plan()
    schedule = plan.step([Sequences(BATCH, 1, 3000)]).schedule({})
    causes, spans = [one.cause for one in schedule.routes], defaultdict[tuple[int, str], list[Any]](list)
    for one in execute(schedule):
        name = one.op.label.rpartition(".")[2] if one.op.kind == "compute" else ""
        if one.op.kind == "copy" and causes[one.op.route].moves_cache:
            name = causes[one.op.route].kind
        spans[one.rank, name].append((one.start, one.end))
    assert sum(len(found) for (_, name), found in spans.items() if name == "attention") >= LAYERS
    for rank in range(schedule.ranks):
        loads, stores, joins, attention = (
            sorted(spans[rank, name]) for name in ("host-to-gpu", "gpu-to-host", "cat", "attention")
        )
        if cache == "offloaded":  # each layer loads the next one, the last one the first of the next pass
            assert [one for one, load in zip(joins[1:], loads, strict=False) if one[0] < load[1]] == []
            assert [one for one, join in zip(stores, joins, strict=True) if one[0] < join[1]] == []
        else:
            assert [one for one, load in zip(attention, loads, strict=True) if one[0] < load[1]] == []
            assert [one for one, used in zip(loads[2:], attention, strict=False) if one[0] < used[1]] == []
            assert [one for one, used in zip(stores, attention, strict=True) if one[0] < used[1]] == []


@pytest.mark.parametrize(("number", "weights"), one_in(2, enumerate(WEIGHTS)))
def test_shortcuts_change_nothing(number: int, weights: str) -> None:
    """Steady states, equal ranks, and decode steps, of which 16 are simulated and the others derived; for
    each program the next of the caches that grow or move."""
    edits = [Edit.at(f"engine.{one}", "verify") for one in SHORTCUTS]
    caches = [one for one in CACHES if one not in ("in HBM", "static", "4 bits", "fp8")]
    cells = [CELL(weights, one) for one in caches * 2][number % len(caches) :]
    cell = next(one for one in cells if not one.answer().startswith("no: "))
    so.simulate(load(*cell).edited(*edits, Edit.at("workload.output_length", 20)))
