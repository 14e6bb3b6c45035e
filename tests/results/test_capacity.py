"""What tiers hold over a run: the peak, and what stays of it."""

from __future__ import annotations

import pytest

from simoffload.hardware.tiers import Tier
from simoffload.results.capacity import Change, MemoryStage, MemoryTerm, TierUse, peak_uses
from simoffload.scenario import read_scenario
from simoffload.simulation import fit
from simoffload.simulation.capacity import memory_footprint

GIB = 2**30
TIERS = {"dram": Tier("dram", "dram", 100 * GIB, "host")}


def held(name: str, size: int, *, once: bool = False) -> MemoryTerm:
    return MemoryTerm("dram", name, size * GIB, once=once)


def test_what_only_the_start_holds_is_not_steady() -> None:
    start = MemoryStage("initialisation", (held("states", 40), held("copies", 30)), once=True)
    step = MemoryStage(
        "optimizer step", (held("states", 40), held("casts", 15), held("first moments", 10, once=True))
    )
    (use,) = peak_uses((start, step), TIERS)
    assert (use.needed, use.stage, use.steady, use.headroom) == (
        70 * GIB,
        "initialisation",
        55 * GIB,
        30 * GIB,
    )


def test_of_one_moment_all_is_steady() -> None:
    (use,) = peak_uses((MemoryStage("", (held("weights", 40),)),), TIERS)
    assert use.steady == use.needed == 40 * GIB


def test_training_on_drives_starts_with_more_host_memory_than_it_goes_on_with() -> None:
    """The first step has two moments of the largest sub-group, the embedding's eighth, in memory."""
    dram = {use.tier: use for use in fit(read_scenario("training/bloom-176b")).capacity}["dram"]
    assert dram.stage == "optimizer step"
    assert dram.needed - dram.steady == 8 * 2 * 4 * (250_880 * 14_336 // 8)


@pytest.mark.parametrize(
    "name",
    ["ddn/bloom-176b", "training/bloom-176b", "checkpoint/llama-3.1-8b-training", "checkpoint/mlperf-8b"],
)
def test_needs_alone_are_those_of_the_whole_answer(name: str) -> None:
    scenario = read_scenario(name)
    assert memory_footprint(scenario) == fit(scenario).capacity


def test_the_tightest_tier_of_a_change_has_the_smallest_part_left() -> None:
    roomy = TierUse("raid", "nvme", "in all", 90, 100, ())
    full = TierUse("hbm", "hbm", "per GPU", 39, 40, ())
    assert Change("batch", "", (), (full, roomy)).tightest is full
