"""Placements of the key-value cache: what fits with each, and what a move gains."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from simoffload.cli import main
from simoffload.documents import Edit, Location
from simoffload.planning.advise import Advice, EvaluatedChange, advise
from simoffload.planning.advise.options import options_of
from simoffload.planning.answers import fit, simulate
from simoffload.planning.caches import CacheLimits, cache_limits
from simoffload.planning.costs import load_costs
from simoffload.planning.evaluator import Evaluator
from simoffload.report.from_result import result_document
from simoffload.report.terminal import terminal_text
from simoffload.scenario import LoadedScenario, read_scenario

WORK = "workload: {batch_size: 16, prompt_length: 32000, output_length: 64}"
LONG = "name: long prompts, model: llama-3.1-8b, platform: dgx-h200"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


def scenario(folder: Path, strategy: str, *overrides: str, name: str = LONG) -> LoadedScenario:
    file = folder / "scenario.yaml"
    file.write_text(f"{{{name}, {WORK}, strategy: {{{strategy}}}}}")
    return read_scenario(file, overrides=overrides)


FLEXGEN = "flexgen/opt-30b"
ON_DISK = ("strategy.cache_cpu_percent=0", "strategy.disk=nvme")
HOST_64 = "profiles.host/dgx-h200-2tb.memory_capacity=64 GiB"


@cache
def limits(name: str) -> tuple[LoadedScenario, dict[str, CacheLimits]]:
    """A scenario by the name of its case, and its placements."""
    found = CASES[name]
    return found, {one.placement: one for one in cache_limits(found)}


CASES: dict[str, LoadedScenario] = {}


@pytest.fixture(scope="module", autouse=True)
def cases(folder: Path) -> None:
    offloaded = "kind: transformers, kv_cache: {tier: dram}"
    CASES["resident"] = scenario(folder, offloaded)
    CASES["small host"] = scenario(folder, offloaded, HOST_64, "workload.prompt_length=3000")
    CASES["vllm"] = scenario(folder, "kind: vllm", "workload.prompt_length=1000")
    CASES["accelerate"] = scenario(folder, "kind: accelerate, num_gpus: 2, device_map: auto")
    CASES["zero"] = read_scenario("zero-inference-2023/opt-30b-kv")
    CASES["flexgen"] = read_scenario(FLEXGEN)
    CASES["flexgen on disk"] = read_scenario(FLEXGEN, overrides=ON_DISK)


TRANSFORMERS = ["hbm", "hbm, static", "hbm, fp8", "hbm, int4", "hbm, int2", "dram", "dram, static"]


@pytest.mark.parametrize(
    ("case", "now", "placements"),
    [
        ("resident", "dram", TRANSFORMERS),
        ("accelerate", "hbm", TRANSFORMERS),
        ("zero", "dram, attention on the CPU", [*TRANSFORMERS, "dram, attention on the CPU"]),
        ("vllm", "hbm", ["hbm", "hbm, fp8"]),
    ],
)
def test_placements_are_those_of_the_program(case: str, now: str, placements: list[str]) -> None:
    _, found = limits(case)
    assert list(found) == placements
    assert [name for name, one in found.items() if not one.change.edits] == [now]


def test_a_streamed_cache_may_stream_from_any_other_tier(folder: Path) -> None:
    found = cache_limits(
        scenario(folder, "kind: transformers, kv_cache: {tier: raid, implementation: streamed}")
    )
    placements = [one.placement for one in found]
    assert placements[: len(TRANSFORMERS)] == TRANSFORMERS
    assert placements[len(TRANSFORMERS) :] == [
        f"{tier}{bits}, streamed"
        for tier in ("dram", "raid", "nfs", "pfs", "nvmeof")
        for bits in ("", ", fp8", ", int8", ", int4")
    ]
    (now,) = (one.placement for one in found if not one.change.edits)
    assert now == "raid, streamed"
    assert "raid, streamed" not in [one.placement for one in limits("resident")[1].values()]


def test_flexgen_has_its_places_its_compression_and_attention_on_either_side() -> None:
    everywhere = ["", ", attention on the CPU", ", 4 bits", ", 4 bits, attention on the CPU"]
    wanted = ["hbm", "hbm, 4 bits", *(f"{tier}{how}" for tier in ("dram", "nvme") for how in everywhere)]
    assert list(limits("flexgen")[1]) == wanted
    divided = read_scenario(
        FLEXGEN, overrides=["strategy.cache_gpu_percent=10", "strategy.cache_cpu_percent=90"]
    )
    first, *others = cache_limits(divided)
    assert (first.placement, first.change.edits) == ("10 % hbm, 90 % dram", ())
    assert [one.placement for one in others] == wanted


@pytest.mark.parametrize(
    "case", ["resident", "small host", "vllm", "accelerate", "zero", "flexgen", "flexgen on disk"]
)
def test_that_much_fits_and_one_more_does_not(case: str) -> None:
    """By what ``fit`` answers to the very options that a user would set."""
    base, found = limits(case)
    strategy = base.scenario.strategy
    unit = strategy.sizes(base.scenario.workload.batch_size).unit
    for one in found.values():
        there = base.edited(*one.change.edits)
        assert fit(there).fits == one.fits
        for limit, key, step in ((one.batch, "batch_size", unit), (one.context, "prompt_length", 1)):
            if limit.most is None:
                continue
            (most,) = [edit.value for edit in limit.edits if edit.path[-1] == key]
            assert fit(there.edited(*limit.edits)).fits, (one.placement, limit)
            next_one = most + (1 if most < step else step)
            more = strategy.sizes(limit.now).batch(next_one) if key == "batch_size" else prompt(next_one)
            if limit.most < limit.reaches:
                assert not fit(there.edited(*more)).fits, (one.placement, limit)


def prompt(length: int) -> tuple[Edit, ...]:
    path: Location = ("workload", "prompt_length")
    return (Edit(path, length),)


def test_the_largest_batch_is_found_beyond_a_need_that_falls_again() -> None:
    """Pinned blocks of a smaller power of two are kept beside the larger ones, until prompts fill those."""
    base, found = limits("small host")
    evaluator = Evaluator(base)
    fits = [count for count in range(1, 100) if evaluator.fits(*evaluator.batch(count))]
    assert found["dram"].batch.most == max(fits)
    assert found["dram"].full == ("dram",)


def test_contexts_end_with_the_positions_of_the_model() -> None:
    """Llama 3.1 has 131,072 positions, for which there is room if the batch is small."""
    base, _ = limits("vllm")
    found = cache_limits(base.edited(Edit.at("workload.batch_size", 1)))
    assert {one.context.most for one in found} == {131_072}
    assert all(one.context.most == one.context.reaches for one in found)


def test_blocks_of_flexgen_grow_by_gpu_batches() -> None:
    _, found = limits("flexgen")
    for one in found.values():
        if one.fits:
            assert one.batch.most is not None
            assert one.batch.most % 48 == 0
            sizes = {edit.path[-1]: edit.value for edit in one.batch.edits}
            assert sizes.get("gpu_batches", 3) == one.batch.most // 48
    assert found["hbm"].batch.most == 9, "one GPU batch, smaller than before"


def test_blocks_of_a_connector_may_be_on_any_other_tier(folder: Path) -> None:
    connector = "kind: vllm, kv_cache: {connector: {tier: raid, prefix: 1024, direct: true}}"
    found = scenario(folder, connector, "workload.prompt_length=2000")
    placements = {one.placement: one for one in cache_limits(found)}
    tiers = ("dram", "raid", "nfs", "pfs", "nvmeof")
    assert list(placements) == [f"hbm{bits}, blocks on {tier}" for bits in ("", ", fp8") for tier in tiers]
    assert placements["hbm, blocks on raid"].change.edits == ()
    assert placements["hbm, fp8, blocks on nfs"].to_dict()["set"] == [
        "strategy.kv_cache.format=fp8",
        "strategy.kv_cache.connector.tier=nfs",
        "strategy.kv_cache.connector.direct=false",
    ]


def test_fit_moves_blocks_for_which_their_tier_is_too_small(folder: Path) -> None:
    connector = "kind: vllm, kv_cache: {connector: {tier: dram, prefix: 16000}}"
    found = scenario(folder, connector, HOST_64)
    remedies = fit(found).remedies
    assert remedies is not None
    moved = [one for one in remedies.changes if one.description.startswith("key-value")]
    placements = ["hbm, blocks on raid", "hbm, fp8, blocks on dram"]
    assert [one.description for one in moved] == [f"key-value cache on {one}" for one in placements]
    assert all(fit(found.edited(*one.edits)).fits for one in moved)


def test_a_tier_that_is_short_says_by_how_much() -> None:
    base, found = limits("flexgen")
    one = found["hbm"]
    (use,) = one.lacking
    (there,) = (use for use in fit(base.edited(*one.change.edits)).capacity if not use.fits)
    assert (use.tier, -use.headroom) == ("hbm", there.needed - there.capacity)
    assert one.to_dict()["lacking_bytes"] == {"hbm": there.needed - there.capacity}
    assert one.to_dict()["set"] == [
        "strategy.cache_gpu_percent=100",
        "strategy.cache_cpu_percent=0",
        "strategy.cpu_attention=false",
    ]


@pytest.mark.parametrize("name", ["training/gpt-1t", "checkpoint/mlperf-1t"])
def test_other_work_has_no_cache(name: str) -> None:
    assert cache_limits(name) == ()


def test_fit_tells_it_in_a_table_and_a_run_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", FLEXGEN, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    rows = {one["placement"]: one for one in data["caches"]}
    assert rows["dram, attention on the CPU"]["now"]
    assert rows["hbm"]["batch_size"]["most"] == 9
    text = terminal_text(result_document(fit(FLEXGEN)), color=False, width=100)
    assert "Placements of the key-value cache" in text
    assert "hbm lacks 98.9 GiB" in text
    assert simulate(read_scenario(FLEXGEN)).caches == ()


# -- changes -------------------------------------------------------------------------------------


def test_fit_moves_a_cache_for_which_host_memory_is_too_small(folder: Path) -> None:
    found = scenario(folder, "kind: transformers, kv_cache: {tier: dram}", HOST_64)
    remedies = fit(found).remedies
    assert remedies is not None
    moved = {one.description: one for one in remedies.changes if one.description.startswith("key-value")}
    assert list(moved) == ["key-value cache on hbm", "key-value cache on hbm, fp8"]
    assert [one.same_work for one in moved.values()] == [True, False]
    assert all(fit(found.edited(*one.edits)).fits for one in moved.values())


@pytest.fixture(scope="module")
def advice(cases: None) -> Advice:  # noqa: ARG001
    return advise(CASES["zero"])


def tried(advice: Advice) -> dict[str, EvaluatedChange]:
    return {one.change.key: one for one in advice.tried}


def test_moves_are_simulated_as_changes(advice: Advice) -> None:
    base = advice.scenario
    moved = {key: one for key, one in tried(advice).items() if key.startswith("cache-dram")}
    assert set(moved) == {"cache-dram-dynamic", "cache-dram-static"}
    one = moved["cache-dram-dynamic"]
    assert one.change.assignments == ("strategy.kv_cache.implementation=dynamic",)
    alone = simulate(base.edited(*one.change.edits))
    assert alone.unit_s is not None
    assert advice.result.unit_s is not None
    assert one.gain == pytest.approx(advice.result.unit_s / alone.unit_s)
    assert one.result.provenance.exports["generation_config.json"] == {"cache_implementation": "offloaded"}


def test_a_move_that_makes_room_is_tried_with_a_larger_batch(advice: Advice) -> None:
    """137 sequences fit now and 147 with two bits, which does the same work with other answers."""
    larger = {key: one for key, one in tried(advice).items() if "-batch-" in key}
    assert set(larger) == {"cache-hbm-int2-dynamic-batch-147"}
    (one,) = larger.values()
    assert one.change.description == "key-value cache on hbm, int2 (answers change), batch 147 instead of 96"
    assert not one.change.same_work
    assert one.result.workload["batch_size"] == 147


def test_moves_to_a_tier_that_is_too_small_say_so(advice: Advice) -> None:
    barred = {one.key: one.barred for one in advice.impossible}
    assert barred["cache-hbm-dynamic"].startswith("hbm needs 82 GiB per GPU, has 47.4 GiB")


def test_drives_that_hold_only_the_cache_are_options() -> None:
    base = read_scenario(FLEXGEN, overrides=[*ON_DISK, "platform=l40s-server", "strategy.disk=gen5"])
    result = simulate(base)
    keys = {one.key for one in options_of(Evaluator(base), result, load_costs())}
    assert any(key.startswith("gen5-") for key in keys)
