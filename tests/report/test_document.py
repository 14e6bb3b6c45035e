"""A section is told once, and every face of a result has it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from simoffload.report import from_comparison, from_result
from simoffload.report.document import (
    LONGEST,
    Datum,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.from_comparison import comparison_document
from simoffload.report.from_result import result_document
from simoffload.report.html import write_comparison, write_report
from simoffload.report.markdown import markdown
from simoffload.results import declared_metrics
from simoffload.results.result import SimulationResult
from tests.report.conftest import compare_text, result_text

Make = Callable[..., SimulationResult]

COST = ReportSection(
    "Cost and energy",
    ("a million tokens cost 12.5 credits",),
    (
        ReportTable(
            "A million tokens",
            ("part", "cost"),
            (("hardware", Datum("10 credits", 10.0, "credits")), ("electricity", Datum("2.5 credits", 2.5))),
            (1,),
        ),
    ),
    ("Prices of 2026.",),
)


def flat(text: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", text).split())


class Costs(str):
    """Costs that have no prices."""

    prices = ()

    def at_least(self) -> dict[str, None]:
        return {"cost_per_million_tokens": None}


def priced(target: str) -> Costs:
    return Costs(f"{target}: 1 credit")


def test_what_it_costs_is_told_everywhere(
    make_result: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_result, "costs", lambda _, one: (COST,) if one == "raid: 1 credit" else ())
    result = make_result(costs=priced("raid"))
    assert re.search(
        r"\nCost and energy\n  a million tokens cost 12.5 credits\n  A million tokens\n  part +cost\n",
        result_text(result),
    )
    write_report(result, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    description = (
        "A million tokens cost 12.5 credits. A million tokens part cost hardware 10 credits electricity 2.5"
    )
    assert description in flat(page)
    assert "Prices of 2026." in flat(page)
    assert re.search(r'<td class="number" [^>]*data-value="10.0">10 credits</td>', page)
    assert re.search("\n +hardware +10 credits\n", markdown(result_document(result)))


def test_and_beside_several_results(
    make_result: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for all of them, and not with each."""
    asked = []
    monkeypatch.setattr(from_comparison, "costs_compared", lambda found: asked.append(found) or (COST,))
    results = [make_result(costs=priced(tier), target=tier) for tier in ("raid", "dram")]
    assert "\nCost and energy\n  a million" in compare_text(results)
    assert [(one.label, one.economics) for one in asked[0]] == [
        ("raid", "raid: 1 credit"),
        ("dram", "dram: 1 credit"),
    ]
    assert markdown(comparison_document(results)).count("\nCost and energy\n") == 1
    write_comparison(results, tmp_path / "page.html")
    heads = re.findall("<h2>(.*?)</h2>", (tmp_path / "page.html").read_text())
    assert heads.index("Capacity") < heads.index("Cost and energy") < heads.index("Each result")


def test_what_only_a_page_shows_stays_out_of_the_terminal(
    make_result: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_result, "costs", lambda *_: (COST._replace(page_only=True),))
    assert result_text(make_result(costs=priced("raid"))) == result_text(make_result())


def test_cells_have_their_numbers_in_si_units(make_result: Make) -> None:
    sections = {one["title"]: one["tables"] for one in result_document(make_result()).to_dict()["sections"]}
    (capacity,), (speed,), (links, *_) = sections["Capacity"], sections["Speed"], sections["Links"]
    assert ["raid", "weights", {"text": "14 GB", "value": 14e9, "unit": "B"}, "", "", "", ""] in capacity[
        "rows"
    ]
    wide = next(row for row in links["rows"] if row[0]["name"] == "gpu0.pcie, gpu1.pcie")
    assert wide[2] == {"text": "25 GB/s", "value": 25e9, "unit": "B/s"}
    _, rate, interval, _ = next(row for row in speed["rows"] if row[0]["name"] == "tokens_per_s")
    assert rate["value"] == pytest.approx(8 * 4 * 2 / 16.6)
    assert interval["ends"][0] < rate["value"] < interval["ends"][1]
    assert rate["unit"] == interval["unit"] == "1/s"


def test_units_are_in_the_names_of_metrics() -> None:
    ends = {"_bytes": "B", "bytes_per_s": "B/s", "_per_s": "1/s", "_s": "s", "tflops_per_gpu": "TFLOP/s"}
    for name, metric in declared_metrics().items():
        unit = next((ends[end] for end in sorted(ends, key=len, reverse=True) if name.endswith(end)), "")
        assert metric.unit.name == unit, name


def test_as_json_it_has_every_section_and_number(make_result: Make) -> None:
    document = result_document(make_result(warnings=("careful",)), command="simoffload run small.yaml")
    rendered = json.loads(json.dumps(document.to_dict(), allow_nan=False))
    assert rendered["schema"] == "simoffload/report/1"
    assert (rendered["fits"], rendered["warnings"]) == (True, ["careful"])
    sections = {one["title"]: one for one in rendered["sections"]}
    assert list(sections) == [one.title for one in (*document.sections, *document.background)]
    (table,) = sections["Capacity"]["tables"]
    cell = table["rows"][0][table["columns"].index("needed")]
    assert cell == {"text": "4 GiB", "value": 4 << 30, "unit": "B"}
    assert sections["Scenario"]["listings"][0] == {
        "caption": "Command",
        "text": "simoffload run small.yaml",
    }


def test_endless_amounts_have_no_number_in_json() -> None:
    endless = ReportTable("", ("a",), ((Datum("unknown", math.inf, "USD"),),), (0,))
    assert endless.to_dict()["rows"] == [[{"text": "unknown", "unit": "USD"}]]


def test_of_several_results_json_has_each(make_result: Make) -> None:
    rendered = comparison_document([make_result(), make_result(target="dram")]).to_dict()
    assert [one["label"] for one in rendered["each"]] == ["bloom-7b1, raid", "bloom-7b1, dram"]
    assert rendered["each"][1]["verdicts"][0].startswith("bloom-7b1 runs with its weights in DRAM")


def test_a_sentence_without_room_loses_words_of_its_longest_part_and_no_numbers() -> None:
    description = "a change " + "with many words " * 20
    found = Verdict.of("40 tokens/s", VerdictPart(f"; gain: {description}", 0), VerdictPart(" (16.5×)", 0))
    assert found.startswith("40 tokens/s; gain: a change with many words")
    assert found.endswith("… (16.5×).")
    assert len(found) <= LONGEST
