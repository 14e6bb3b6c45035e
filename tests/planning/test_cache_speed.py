"""How fast the tier of the key-value cache is, and from which rate on it no longer shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simoffload.engine import execute
from simoffload.planning.answers import simulate
from simoffload.planning.bandwidth import storage_curve
from simoffload.planning.caches import CacheSpeed, FasterCache, cache_speed, with_speeds
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.explanation import Explanation, Sensitivity
from simoffload.report.sections.advice import explained
from simoffload.results import cause_text
from simoffload.scenario import LoadedScenario, read_scenario

FLEXGEN = "flexgen/opt-30b"
ON_DISK = ("strategy.cache_cpu_percent=0", "strategy.disk=nvme", "strategy.page_cache=false")
ON_GPU = "strategy.cpu_attention=false"


@pytest.fixture
def offloaded(tmp_path: Path) -> LoadedScenario:
    file = tmp_path / "long.yaml"
    file.write_text(
        "{name: long, model: llama-3.1-8b, platform: dgx-h200,"
        " workload: {batch_size: 16, prompt_length: 32000, output_length: 64},"
        " strategy: {kind: transformers, kv_cache: {tier: dram}}}"
    )
    return read_scenario(file)


def speed(scenario: LoadedScenario) -> CacheSpeed:
    found = cache_speed(scenario)
    assert found is not None
    return found


def flexgen(*overrides: str) -> LoadedScenario:
    return read_scenario(FLEXGEN, overrides=overrides)


def test_bytes_and_latency_of_the_cache_shrink_and_nothing_else(offloaded: LoadedScenario) -> None:
    phase: Any = next(one for one in offloaded.plan().phases if one.kind == "prefill")
    plain = phase.schedule({})
    assert with_speeds(plain) == plain
    faster = with_speeds(plain, cache=4)
    pairs = [
        (op, other)
        for one, two in zip(plain.blocks, faster.blocks, strict=True)
        for op, other in zip(one.ops, two.ops, strict=True)
    ]
    moved = [(op, other) for op, other in pairs if op != other]
    assert {cause_text(plain.routes[op.route].cause) for op, _ in moved} == {
        f"{way} (key-value cache on dram)" for way in ("GPU to host", "host to GPU")
    }
    assert all(other.size == op.size // 4 and other.fixed == round(op.fixed / 4) for op, other in moved)
    assert execute(faster).makespan < execute(plain).makespan


def test_an_infinitely_fast_tier_is_as_fast_as_hbm(offloaded: LoadedScenario) -> None:
    """Only ``torch.cat`` and the launches of copies remain, which a cache in HBM has as well or hides."""
    found = speed(offloaded)
    inside = simulate(read_scenario(offloaded.document.path, overrides=["strategy.kv_cache.tier=hbm"]))
    assert found.fastest_s == pytest.approx(inside.decode[0].time_s, rel=0.02)  # type: ignore[attr-defined]
    assert (found.tier, found.name, found.way) == ("dram", "decode 1", "GPU to host")
    assert found.limit.startswith("the PCIe link of the GPU (")


def test_rates_are_those_of_the_bytes(offloaded: LoadedScenario) -> None:
    """32 layers x 16 sequences x 32,001 tokens x 4096 B go back in each step, while as many come."""
    found = speed(offloaded)
    assert found.size == 32 * 16 * 32_001 * 2 * 8 * 128 * 2
    assert found.rate == pytest.approx(found.size / (found.time_s - found.fastest_s), rel=0.02)
    assert found.links == 55_500_000_000


@pytest.mark.parametrize("overrides", [(), (ON_GPU,), ON_DISK, (*ON_DISK, ON_GPU)])
def test_from_that_rate_on_the_step_is_within_five_per_cent(overrides: tuple[str, ...]) -> None:
    scenario = flexgen(*overrides)
    faster = FasterCache.of(Evaluator(scenario))
    assert faster is not None
    found = faster.speed()
    assert faster.time_s() == pytest.approx(found.time_s)
    factor = found.enough / found.rate
    assert faster.time_s(cache=factor) <= 1.05 * found.fastest_s
    assert faster.time_s(cache=factor / 1.02) > 1.05 * found.fastest_s


@pytest.mark.parametrize(
    ("scenario", "overrides", "tier", "way", "limit"),
    [
        (FLEXGEN, (), "dram", "loops over tensors", "the speed of the CPU"),
        (FLEXGEN, ON_DISK, "nvme", "nvme read", "the storage nvme (nvme both ways)"),
        ("zero-inference-2023/opt-30b-kv", (), "dram", "attention on the CPU", "the speed of the CPU"),
    ],
)
def test_what_limits_the_tier_has_a_name(
    scenario: str, overrides: tuple[str, ...], tier: str, way: str, limit: str
) -> None:
    found = speed(read_scenario(scenario, overrides=overrides))
    assert (found.tier, found.way, found.limit) == (tier, way, limit)
    assert found.links is None or way == "nvme read", "rates of the CPU are not compared with links"


def test_drives_that_hold_only_the_cache_have_a_curve() -> None:
    """The prefill, which takes most of the time, writes it. With the same cache in host memory no drive is
    used."""
    short = "workload.output_length=2"
    curve = storage_curve(flexgen(*ON_DISK, short))
    assert curve is not None
    assert (curve.tier, curve.verb) == ("nvme", "writes")
    assert curve.fastest > 1.04 * curve.own.throughput
    assert storage_curve(flexgen(short)) is None


@pytest.mark.parametrize("name", ["ddn/bloom-176b", "training/gpt-1t"])
def test_without_an_offloaded_cache_there_is_none(name: str) -> None:
    assert cache_speed(name) is None


def test_the_explanation_says_it(offloaded: LoadedScenario) -> None:
    found = speed(offloaded)
    told = explained(Explanation(Sensitivity(simulate(offloaded), 0.1, (), 0, 0), None, None, found))
    assert [one.title for one in told] == ["Tier of the key-value cache", "Sensitivity to inputs"]
    first, second = told[0].sentences
    assert first.startswith("decode 1 takes 1.41 s, 22.6 times the 62.5 ms")
    assert "limited by the PCIe link of the GPU" in second
    assert "which is more than the 55.5 GB/s of the links of its GPUs" in second
    data = Explanation(Sensitivity(simulate(offloaded), 0.1, (), 0, 0), None, None, found).to_dict()
    assert data["cache"]["enough"] == found.enough
    assert "prefix" not in data


def test_the_verdict_names_the_cache_and_its_tier(offloaded: LoadedScenario) -> None:
    result = simulate(offloaded)
    assert result.bottleneck == "GPU to host (key-value cache on dram)"
    weights, cache = "host to GPU", "nvme read (key-value cache on nvme)"
    on_disk = simulate(flexgen(*ON_DISK, ON_GPU))
    assert on_disk.bottleneck == cache
    assert on_disk.step is not None
    assert {weights, cache} <= {one.cause_text for one in on_disk.step.shares}, "weights are told apart"
