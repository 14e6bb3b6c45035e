"""A document as Markdown: the words of a terminal, text to copy, and names that stay text."""

from __future__ import annotations

import re
from collections.abc import Callable

from simoffload.documents import parse_yaml
from simoffload.report.document import Listing, ReportDocument, ReportSection
from simoffload.report.from_result import result_document
from simoffload.report.markdown import markdown
from simoffload.report.terminal import terminal_text
from simoffload.results.result import SimulationResult
from tests.report.conftest import EVIL

Make = Callable[..., SimulationResult]


def blocks(text: str) -> list[str]:
    """Blocks of code, between which is nothing."""
    found = re.findall(r"^(```+)\n(.*?)^\1\n", text, re.DOTALL | re.MULTILINE)
    assert "\n".join(f"{fence}\n{inner}{fence}\n" for fence, inner in found) == text
    return [inner for _, inner in found]


def test_it_is_what_a_terminal_shows(make_result: Make) -> None:
    document = result_document(make_result(warnings=("careful",)), command="simoffload run small.yaml")
    shown, command, *_ = blocks(markdown(document))
    assert shown == f"small\n{terminal_text(document)}"
    assert command == "simoffload run small.yaml\n"


def test_the_scenario_can_be_run_again(make_result: Make) -> None:
    result = make_result()
    _, block = blocks(markdown(result_document(result)))
    assert parse_yaml(block, name="report").data == result.provenance.scenario


def rendered(*sections: ReportSection) -> str:
    return markdown(ReportDocument((EVIL,), True, (), (), sections))


def test_names_stay_text() -> None:
    (block,) = blocks(rendered(ReportSection(EVIL, (EVIL,))))
    assert "\u202e" not in block, "shown as an escape"


def test_text_cannot_end_its_block() -> None:
    listing = Listing("", "name: x\n````\n# not a heading")
    for page_only in (False, True):
        text = rendered(ReportSection("Scenario", listings=(listing,), page_only=page_only))
        assert "# not a heading\n" in blocks(text)[-1]
