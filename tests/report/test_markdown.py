"""A document as Markdown: the words of the page, in its order, and names that stay text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from simoffload.documents import parse_yaml
from simoffload.report.comparison import Published
from simoffload.report.document import Listing, ReportDocument, ReportSection, ReportTable
from simoffload.report.from_comparison import comparison_document
from simoffload.report.from_result import result_document
from simoffload.report.html import write_comparison, write_report
from simoffload.report.markdown import markdown
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from tests.report.conftest import EVIL

Make = Callable[..., SimulationResult]


def heads(text: str, level: int = 2) -> list[str]:
    return re.findall(f"^{'#' * level} (.*)$", text, re.MULTILINE)


def test_the_answer_comes_first(make_result: Make) -> None:
    text = markdown(result_document(make_result(warnings=("careful",)), command="simoffload run small.yaml"))
    lines = text.split("\n\n")
    assert lines[0] == "# small"
    assert lines[1].startswith("**bloom-7b1 runs with its weights on raid: 3.86 tokens/s of all 8 sequences")
    assert lines[2].startswith(
        "bloom-7b1 · float16 · batch 4 × 2 GPUs · 32 tokens in, 8 out · dgx-a100 · brackets: 80 % interval"
    )
    assert lines[3] == "> **Warning:** careful"
    assert "Command:\n\n```\nsimoffload run small.yaml\n```" in text


def test_tables_are_aligned_as_on_the_page(make_result: Make) -> None:
    text = markdown(result_document(make_result()))
    assert (
        "**decode 1: 2 s, 1 new token per sequence, context 33**\n\n"
        "| cause | exposed | share | busy | limited by |\n"
        "|---|---:|---:|---:|---|\n"
        "| raid read | 1.62 s | 81 % | 1.8 s | raid |\n"
    ) in text


def test_the_scenario_can_be_run_again(make_result: Make) -> None:
    result = make_result()
    (block,) = re.findall("```\n(.*?)```", markdown(result_document(result)), re.DOTALL)
    assert parse_yaml(block, name="report").data == result.provenance.scenario


def test_it_has_the_sections_of_the_page(
    make_training: Callable[..., TrainingResult], tmp_path: Path
) -> None:
    result = make_training()
    write_report(result, tmp_path / "page.html")
    page = re.findall("<h2>(.*?)</h2>", (tmp_path / "page.html").read_text())
    assert heads(markdown(result_document(result))) == page


def test_results_side_by_side(make_result: Make, make_refusal: Make, tmp_path: Path) -> None:
    results = [make_result(target="dram"), make_result(time_s=4.0), make_refusal(target="hbm")]
    published = {"raid": Published(1.8, "white paper, figure 3")}
    text = markdown(comparison_document(results, published=published, command="simoffload compare"))
    assert heads(text) == [
        "Comparison",
        "Capacity",
        "Each result",
        "Inputs and their origin",
        "Versions and profiles",
        "Limits",
    ]
    assert heads(text, 3) == ["bloom-7b1, dram", "bloom-7b1, raid", "bloom-7b1, hbm"]
    assert "| raid | 5 s | 4.03 s | 1.93 | 2× | 1.8× | raid read 81 % | 74 % |" in text
    assert "| hbm |  |  |  |  |  | does not fit |  |" in text
    assert "published for bloom-7b1, raid: white paper, figure 3" in text
    write_comparison(results, tmp_path / "page.html")
    page = re.findall("<h2>(.*?)</h2>", (tmp_path / "page.html").read_text())
    assert [title for title in page if title in heads(text)] == [
        *heads(text)[:2],
        *heads(text)[2:3],
        *["Capacity"] * 3,
        *heads(text)[3:],
    ]


def rendered(*sections: ReportSection) -> str:
    return markdown(ReportDocument(("small",), True, (), (), sections))


def test_names_stay_text() -> None:
    table = ReportTable(EVIL, (EVIL, "x|y"), ((EVIL, "[a](http://b) `c` *d* _e_ $f$ ~g~"),), ())
    text = rendered(ReportSection(EVIL, (EVIL,), (table,), (EVIL,)))
    assert "<" not in text
    assert "\u202e" not in text, "shown as an escape"
    assert r"| \[a\](http://b) \`c\` \*d\* \_e\_ \$f\$ \~g\~ |" in text
    assert r"x\|y" in text


def test_names_of_metrics_stay_readable() -> None:
    assert "tokens_per_s rises." in rendered(ReportSection("Speed", ("tokens_per_s rises",)))


def test_the_beginning_of_a_line_makes_no_list_or_heading() -> None:
    notes = ("# one", "- two", "1. three", "> four", "    five", "=====")
    listing = (Listing("", "x"),)
    lines = rendered(ReportSection("Notes", notes=notes, listings=listing)).strip().split("\n\n")[2:-1]
    assert lines == [r"\# one", r"\- two", r"1\. three", r"\> four", "five", r"\====="]


def test_a_listing_cannot_end_its_fence() -> None:
    text = rendered(ReportSection("Scenario", listings=(Listing("", "name: x\n````\n# not a heading"),)))
    assert text.endswith("`````\nname: x\n````\n# not a heading\n`````\n")
