"""What costs say on a terminal: prices in round numbers, and shipped scenarios."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import simoffload as so
from simoffload.planning.costs import CostList, load_costs
from simoffload.planning.economics import economics
from simoffload.report.document import ReportDocument, ReportSection
from simoffload.report.sections.costs import Costed, costs, costs_compared
from simoffload.report.terminal import terminal_text
from tests.planning.costs.conftest import ROUND, TODAY

ONE, SIX = "opt-30b on one L40S, weights on a drive", "opt-30b on six L40S"


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> CostList:
    path = tmp_path_factory.mktemp("costs") / "round.yaml"
    path.write_text(ROUND)
    return load_costs(path, today=TODAY)


def costed(name: str, prices: CostList, *overrides: str) -> Costed:
    scenario = so.load_scenario(name, overrides=overrides)
    result = so.simulate(scenario)
    return Costed(scenario.name, result, economics(scenario, result, prices))


@pytest.fixture(scope="module")
def drive(prices: CostList) -> Costed:
    return costed("micron/opt-30b-nvme", prices, "workload.output_length=2")


@pytest.fixture(scope="module")
def memory(prices: CostList) -> Costed:
    return costed("micron/opt-30b-hbm", prices, "workload.output_length=2")


def lines(section: ReportSection, width: int = 100) -> list[str]:
    """The section as a terminal of so many columns shows it."""
    return terminal_text(ReportDocument((), None, (), (), (section,)), width=width).splitlines()


def test_one_result_in_six_sentences(drive: Costed) -> None:
    first, details = costs(drive.result, drive.economics)
    found = drive.economics.metrics()
    assert first.sentences[0] == (
        "machine and storage cost 18,328 USD (machine 17,560 USD, gen5 768 USD), which is 4.18 USD per hour "
        "over 1 year"
    )
    assert first.sentences[1].endswith("; with a PUE of 2, electricity costs 0.0878 USD per hour")
    assert f"a million output tokens cost {found['cost_per_million_tokens']:.0f} USD" in first.sentences[2]
    why = "the rent of accelerator/l40s (2 USD an hour) includes no storage"
    prompts = found["cost_per_million_prompt_tokens"] or 0.0
    assert first.sentences[3] == f"a million prompt tokens cost {prompts:.3g} USD (time of the prefill)"
    assert first.sentences[4] == f"no cost on rented hardware: {why}"
    assert first.sentences[5].startswith("one generation (all 48 sequences, 2 tokens each) costs 0.0135 USD")
    kwh = (found["energy_per_run_j"] or 0.0) * 2 / 3.6e6
    assert first.sentences[5].endswith(f" and takes {kwh:.3g} kWh (PUE included)")
    assert not [text for text in first.sentences if "estimate" in text], "a list of quotes"
    assert details.page_only, "the bill is not for a terminal"


def test_the_bill_on_a_page_sums_up_to_the_purchase(drive: Costed) -> None:
    _, details = costs(drive.result, drive.economics)
    (bill,) = (table for table in details.tables if table.caption == "Bill of materials")
    *parts, total = bill.texts
    assert total[-1] == "18,328 USD"
    assert sum(float(row[-1].split()[0].replace(",", "")) for row in parts) == 18_328


@pytest.mark.parametrize("width", [60, 80, 100])
def test_two_results_fit_on_the_terminal_with_all_their_numbers(
    drive: Costed, memory: Costed, width: int
) -> None:
    (section,) = costs_compared([drive, memory])
    shown = lines(section, width)
    assert max(map(len, shown)) <= width
    (table,) = section.tables
    text = "\n".join(shown)
    assert "…" not in text
    for number in (cell for row in table.texts for cell in row[1:]):
        assert f" {number}" in text


def test_columns_without_room_follow_under_the_same_names(drive: Costed, memory: Costed) -> None:
    (section,) = costs_compared([drive, memory])
    heads = [line.split() for line in lines(section, 60) if line.lstrip().startswith("result ")]
    assert len(heads) > 1
    ends = [head.split()[-1] for head in section.tables[0].head[1:]]
    assert [word for head in heads for word in head[1:] if word in ends] == ends


def test_the_cheaper_one_and_the_prices_that_turn_it_round(drive: Costed, memory: Costed) -> None:
    (section,) = costs_compared([memory, drive])
    first, turns, gathered, dated, rent = section.sentences
    assert dated == "prices of 2026-11-01"
    assert rent.startswith(f"{ONE}: no cost on rented hardware, as the rent of accelerator/l40s")
    assert [bool(row[-1]) for row in section.tables[0].texts] == [True, False], "the drive is not in the rent"
    assert first == f"{ONE} has the lowest cost per token; {SIX} costs 1.73 times as much"
    assert turns == (
        f"{SIX} would cost less per token than {ONE} if all hardware of {SIX} cost less than 38,600 USD (now "
        "67,560 USD), or if one GPU (accelerator/l40s) cost less than 2,560 USD (now 10,000 USD), or if all "
        f"hardware of {ONE} cost more than 32,000 USD (now 18,328 USD)"
    )
    assert gathered.startswith(f"{SIX}: ZeRO-3 gathers every layer on every GPU")


def test_a_filesystem_is_counted_in_full_and_its_price_stated_once(prices: CostList) -> None:
    """The appliance is the only part that the second result buys alone: its price, not the sum, is stated."""
    stored, served = (
        costed("ddn/bloom-mod-1", prices, "workload.output_length=2", f"strategy.weights={tier}")._replace(
            label=tier
        )
        for tier in ("raid", "ai400x2")
    )
    (section,) = costs_compared([stored, served])
    (turns,) = (text for text in section.sentences if "would cost less" in text)
    assert turns.startswith("ai400x2 would cost less per token than raid if ")
    assert "if the filesystem (pfs/ddn-ai400x2) cost less than " in turns
    assert "all hardware of ai400x2" not in turns
    assert (
        "ai400x2 is counted at its full price (500,000 USD), as if no other machine used it"
        in section.sentences
    )
    assert not [text for text in section.sentences if text.startswith("raid is counted")]


def test_equal_bills_have_no_break_even(prices: CostList) -> None:
    """Weights in memory or on the drives of the same machine: no price tells them apart."""
    held, stored = (
        costed("ddn/bloom-7b1", prices, "workload.output_length=2", f"strategy.weights={tier}")
        for tier in ("dram", "raid")
    )
    (section,) = costs_compared([held._replace(label="dram"), stored._replace(label="raid")])
    assert re.match("dram has the lowest cost per token; raid costs ", section.sentences[0])
    assert not [text for text in section.sentences if "would cost less" in text or "no change" in text]


def test_only_the_same_work_is_compared(drive: Costed, prices: CostList) -> None:
    """A token of one model is no token of another, and no checkpoint."""
    other = costed("ddn/bloom-7b1", prices, "workload.output_length=2", "strategy.weights=raid")
    saved = costed("checkpoint/mlperf-8b", prices)
    (section,) = costs_compared([drive, other, saved])
    assert not [text for text in section.sentences if "costs least" in text or "would cost" in text]
    (table,) = section.tables
    assert "work per price" not in table.head


def test_drives_of_training_wear_out(prices: CostList) -> None:
    """The optimizer's states are written at each step; in memory they wear nothing out."""
    stored = costed("xinnor/llama-1b", prices, "strategy.optimizer=nvme")
    held = costed("xinnor/llama-1b", prices, "strategy.optimizer=dram")
    (section,) = costs_compared([stored, held._replace(label="in memory")])
    (table,) = section.tables
    at = table.head.index("worn out")
    assert [row[at] for row in table.rows] == ["nvme: 6.8 days", ""]
    assert max(map(len, lines(section))) <= 100


def test_without_any_price_power_is_still_told(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("{kind: costs, id: own, name: own, currency: CHF, date: 2026-11-01, electricity: 0.2}")
    one = costed("micron/opt-30b-nvme", load_costs(own, today=TODAY), "workload.output_length=2")
    told_of_one, _ = costs(one.result, one.economics)
    assert told_of_one.sentences[0] == "no price is known for this machine"
    (section,) = costs_compared([one])
    (table,) = section.tables
    assert table.head == ("result", "power", "J/token excl. PUE", "kWh/1M incl. PUE")


def test_names_command_no_terminal(drive: Costed, memory: Costed) -> None:
    (section,) = costs_compared([drive._replace(label="\x1b[31mred\nalert"), memory])
    shown = "\n".join(lines(section))
    assert "\x1b" not in shown
    assert "\\x1b[31mred\\nalert" in shown


def test_what_costs_the_same_is_said_so(drive: Costed) -> None:
    (section,) = costs_compared([drive, drive._replace(label="its twin")])
    assert section.sentences[0] == f"{ONE} and its twin cost the same per token"
    assert not [text for text in section.sentences if "would cost less" in text or "times as much" in text]


def test_idle_gpus_of_a_machine_are_told_once(prices: CostList) -> None:
    few = costed("ddn/bloom-7b1", prices, "strategy.ranks=3", "workload.output_length=2")
    all_ = costed("ddn/bloom-7b1", prices, "workload.output_length=2")
    found = [few._replace(label="a"), few._replace(label="b"), all_]
    (section,) = costs_compared(found)
    (idle,) = (text for text in section.sentences if "idle" in text)
    assert idle.startswith("a; b: 5 of 8 GPUs are idle")
