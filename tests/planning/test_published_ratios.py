"""Published ratios between tiers, to print beside simulated ones."""

from __future__ import annotations

import pytest

from simoffload.planning.compare import published_ratios
from simoffload.scenario import read_scenario


def test_published_ratios_follow_from_each_other() -> None:
    scenario = read_scenario("ddn/bloom-176b")
    ratios = published_ratios(scenario.on("raid"), "dram")
    assert {tier: ratio for tier, (ratio, _) in ratios.items()} == pytest.approx(
        {"ai400x2": 1.01, "raid": 1.8 * 1.01, "nfs": 10 * 1.01}
    )
    first, second = ratios["nfs"][1].split("; ")
    assert first == 'ai400x2 over dram: "comparable performance (<1%)"'
    assert second == 'nfs over ai400x2: "around 10x longer"'


def test_ratios_are_those_of_one_publication_and_one_work() -> None:
    scenario = read_scenario("ddn/bloom-176b")
    assert published_ratios(scenario, "hbm") == {}, "a tier that no ratio names"
    other = read_scenario("ddn/bloom-176b", overrides=["workload.batch_size=1"])
    assert published_ratios(other, "dram") == {}
    assert published_ratios(read_scenario("xinnor/llama-1b"), "dram") == {}
