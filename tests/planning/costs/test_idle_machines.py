"""Machines that are paid for and do nothing are said, wherever their price or power counts."""

from __future__ import annotations

import json

import pytest

from simoffload.planning.advise import advise
from simoffload.planning.compare import compare, compare_scenarios
from simoffload.planning.economics import Costed, economics
from simoffload.report.sections.costs import costs, costs_compared
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import fit, simulate
from tests.report.conftest import compare_text, result_text

SMALL = ("model=bloom-560m", "workload.output_length=2")
IDLE = (
    "15 of 16 hosts are idle but count in prices, power and rent: 8 ranks need 1 host with "
    "8 GPUs each; set nodes: 1, or strategy.ranks: 128"
)
SPARE = "5 of 8 GPUs are idle but paid for, because whole machines are bought"


def scenario(*changes: str, name: str = "ddn/bloom-7b1") -> LoadedScenario:
    return read_scenario(name, overrides=[*SMALL, *changes])


def test_fifteen_idle_hosts_are_billed_and_said() -> None:
    """Sixteen times the price, power and rent of one, for the tokens of one."""
    many, one = scenario("nodes=16").on("dram"), scenario().on("dram")
    result = simulate(many)
    billed, fair = economics(many, result), economics(one, simulate(one))
    assert billed.purchase == pytest.approx(16 * (fair.purchase or 0))
    assert IDLE in result.warnings
    assert IDLE in result.to_dict()["warnings"]
    assert IDLE in " ".join(result_text(result).split())
    assert not any("idle" in text for text in simulate(one).warnings)


def test_every_question_says_it() -> None:
    many = scenario("nodes=16")
    assert IDLE in fit(many).warnings
    found = compare(many, ["dram", "raid"])
    assert f"dram; raid: {IDLE}" in " ".join(compare_text(list(found.results.values())).split())
    assert [IDLE in row["result"]["warnings"] for row in found.to_dict()["compared"]] == [True, True, False]
    assert IDLE.partition(", or ")[0] in found.results["vllm"].warnings
    assert IDLE in json.dumps(advise(many.on("hbm")).to_dict())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("training/bloom-7b1", ["nodes=3", "strategy.ranks=9", "workload.sequence_length=64"]),
        ("checkpoint/mlperf-8b", ["nodes=3", "strategy.ranks=9"]),
    ],
)
def test_all_kinds_of_work(name: str, changes: list[str]) -> None:
    """Nine ranks take two hosts of eight GPUs; a third has none."""
    (text,) = (one for one in read_scenario(name, overrides=changes).warnings if "idle" in one)
    assert text.startswith("1 of 3 hosts are idle")
    assert text.endswith("with 8 GPUs each; set nodes: 2, or strategy.ranks: 24")


def test_idle_gpus_of_a_host_are_noted_beside_its_price() -> None:
    """A buyer gets the machine whole: no slip, but to be known."""
    few = scenario("strategy.ranks=3")
    result = simulate(few)
    priced = economics(few, result)
    assert priced.warnings[0].startswith(SPARE)
    assert priced.to_dict()["warnings"][0] == f"{SPARE}; strategy.ranks: 8 would use all"
    assert not any("idle" in text for text in result.warnings)
    alone, _ = costs(result, priced)
    assert f"{SPARE}; strategy.ranks: 8 would use all" in alone.sentences
    assert economics(scenario(), simulate(scenario())).idle == ""


def test_idle_gpus_beside_idle_hosts_are_those_of_the_hosts_with_work() -> None:
    """Nine of the 40 GPUs of five hosts work: three hosts have nothing to do, one of the others little."""
    few = scenario("nodes=5", "strategy.ranks=9")
    assert economics(few, simulate(few)).idle == (
        "7 of 16 GPUs of the 2 hosts with work are idle but paid for, because whole machines are bought; "
        "strategy.ranks: 16 would use all of them"
    )


def test_several_results_say_whose_gpus_are_idle() -> None:
    few, all_ = scenario("strategy.ranks=3"), scenario()
    found = compare_scenarios({"three": few, "eight": all_}).economics
    results = {"three": simulate(few), "eight": simulate(all_)}
    (section,) = costs_compared([Costed(label, results[label], one) for label, one in found.items()])
    assert f"three: {SPARE}; strategy.ranks: 8 would use all" in section.sentences
