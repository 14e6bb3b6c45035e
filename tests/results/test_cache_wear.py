"""Wear of drives that take the key-value cache: what is written, and how long drives last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simoffload.planning.answers import simulate
from simoffload.planning.compare import compare_scenarios
from simoffload.report.from_comparison import comparison_document
from simoffload.report.terminal import terminal_text
from simoffload.scenario import read_scenario

SMALL = (
    "engine.decode_extrapolation=off",
    "workload.batch_size=12",
    "workload.prompt_length=64",
    "workload.output_length=4",
    "strategy.cache_cpu_percent=0",
    "strategy.disk=nvme",
    "strategy.page_cache=false",
)
LAYERS, HIDDEN = 48, 7168  # OPT-30B


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("strategy.cpu_attention=false",),
        ("strategy.compress_cache=true",),
        ("strategy.compress_cache=true", "strategy.cpu_attention=false"),
        ("strategy.activations_cpu_percent=0",),
        ("strategy.activations_cpu_percent=0", "strategy.sep_layer=false"),
        ("strategy.weights_cpu_percent=40",),
        ("strategy.cache_cpu_percent=50",),
        ("strategy.gpu_batches=1",),
    ],
)
def test_traffic_of_flexgen_is_what_its_passes_move(overrides: tuple[str, ...]) -> None:
    result: Any = simulate(read_scenario("flexgen/opt-30b", overrides=[*SMALL, *overrides]))
    (traffic,) = result.traffic
    passes = (result.prefill, *result.decode)
    assert len(passes) == 4
    for way, size in (("read", traffic.read), ("write", traffic.written)):
        shares = (share for one in passes for share in one.shares)
        assert size == sum(share.size for share in shares if share.cause_text.startswith(f"nvme {way}"))


def test_every_position_is_written_once() -> None:
    result: Any = simulate(read_scenario("flexgen/opt-30b", overrides=SMALL))
    assert result.traffic[0].written == 2 * 2 * LAYERS * HIDDEN * 12 * (64 + 3)


def test_files_in_the_page_cache_are_written_to_the_drive_as_well() -> None:
    result: Any = simulate(read_scenario("flexgen/opt-30b", overrides=[*SMALL, "strategy.page_cache=true"]))
    assert result.traffic[0].read == 0
    assert result.traffic[0].written == 2 * 2 * LAYERS * HIDDEN * 12 * (64 + 3)
    assert [one for one in result.decode[0].shares if one.group == "storage"] == []


def test_a_cache_in_memory_wears_no_drive() -> None:
    result: Any = simulate(read_scenario("flexgen/opt-30b"))
    assert (result.traffic, result.drive_lifetime) == ((), ())


def test_lifetime_under_flexgen_by_hand() -> None:
    """Four PM1733 of 3.84 TB in RAID0, rated for one drive write a day over five years."""
    overrides = ["platform=dgx-a100", "strategy.cache_cpu_percent=0", "strategy.disk=raid"]
    result: Any = simulate(read_scenario("flexgen/opt-30b", overrides=overrides))
    (worn,) = result.drive_lifetime
    written = 2 * 2 * LAYERS * HIDDEN * 144 * (512 + 31)
    per_drive_day = written / 4 * 86_400 / result.e2e_s
    assert worn.drive_lifetime.per_step == written
    assert worn.drive_lifetime.per_drive_day == pytest.approx(per_drive_day)
    assert worn.drive_lifetime.years == pytest.approx(3.84e12 * 365 * 5 / per_drive_day / 365)
    assert any("drives wear out: raid: 108 GB a generation" in one for one in result.warnings)
    assert result.costs.to_dict() is not None
    assert result.to_dict()["drive_lifetime"][0]["tier"] == "raid"


def test_lifetime_under_a_connector_by_hand(tmp_path: Path) -> None:
    """Two replicas of a server that only prefills: every new full block is written once a generation."""
    file = tmp_path / "store.yaml"
    file.write_text(
        "{name: store, model: llama-3.1-8b, platform: dgx-a100,"
        " workload: {batch_size: 4, prompt_length: 8200, output_length: 1},"
        " strategy: {kind: vllm, data_parallel_size: 2,"
        " kv_cache: {connector: {tier: raid, prefix: 4096}}}}"
    )
    result: Any = simulate(read_scenario(file))
    (worn,) = result.drive_lifetime
    blocks = 8200 // 16 - 4096 // 16  # the last 8 tokens fill none
    written = 2 * 4 * blocks * 16 * 32 * 2 * 8 * 128 * 2
    assert result.traffic[0].written == written == worn.drive_lifetime.per_step
    per_drive_day = written / 4 * 86_400 / result.ttft_s
    assert worn.drive_lifetime.per_drive_day == pytest.approx(per_drive_day)
    assert worn.drive_lifetime.years == pytest.approx(3.84e12 * 5 / per_drive_day)
    assert worn.drive_lifetime.verdict == "within_a_year"


def test_a_comparison_has_the_lifetime_beside_the_costs() -> None:
    scenarios = {
        tier: read_scenario("flexgen/opt-30b", overrides=["platform=dgx-a100", *more])
        for tier, more in {"dram": [], "raid": ["strategy.cache_cpu_percent=0", "strategy.disk=raid"]}.items()
    }
    results = compare_scenarios(scenarios).results
    text = terminal_text(comparison_document(tuple(results.values())), color=False, width=160)
    assert "raid: 2.4 years" in text
