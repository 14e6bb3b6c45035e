"""Results that are too near to each other to tell which is faster."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt
from pathlib import Path
from typing import get_args

import pytest
from markupsafe import Markup

from simoffload.hardware import P90
from simoffload.planning import confidence as module
from simoffload.planning.compare import Comparison
from simoffload.planning.errors import ErrorTable, LimitedBy, RealTimes
from simoffload.report.comparison import groups
from simoffload.report.from_comparison import comparison_document
from simoffload.report.html import write_comparison
from simoffload.report.markdown import write_markdown
from simoffload.report.summary import group_summary
from simoffload.results.result import SimulationResult
from tests.report.conftest import compare_text

Make = Callable[..., SimulationResult]

ENDS = exp(P90 * 0.05 / sqrt(2 - 2 * 0.8))
"""P90 of a time whose ratio to another one has a sigma of 5 %."""
TABLE = ErrorTable(
    tuple(
        RealTimes("zero", limit, "estimated", f"{number}", True, (1 / ENDS,) * 5 + (ENDS,) * 5)
        for limit in get_args(LimitedBy)
        for number in range(1000)
    )
)
RULE = (
    "tie: within ±6.6 % of the baseline, so that the 80 % interval of the ratio contains 1 and either may "
    "be faster"
)


@pytest.fixture(autouse=True)
def _known_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "calibration_errors", lambda: TABLE)


@pytest.fixture
def near(make_result: Make, make_refusal: Make) -> list[SimulationResult]:
    """Drives, memory 4 % slower, and a file server at twice the time.

    The ratio of two has a sigma of 5 %: 80 % of ratios are within 6.6 %.
    """
    return [
        make_result(target="raid"),
        make_result(target="dram", time_s=2.08),
        make_result(target="nfs", time_s=4),
        make_refusal(target="hbm"),
    ]


def test_a_comparison_knows_its_ties(near: list[SimulationResult]) -> None:
    comparison = Comparison({one.target: one for one in near})
    found = {row["label"]: row for row in comparison.to_dict()["compared"]}
    assert {label: row["tie_with_baseline"] for label, row in found.items()} == {
        "raid": None,  # is the baseline
        "dram": True,
        "nfs": False,
        "hbm": None,  # has no time
    }
    assert found["dram"]["margin"] == pytest.approx(exp(P90 * 0.05) - 1, rel=2e-3)
    assert found["raid"]["margin"] is found["hbm"]["margin"] is None
    columns, rows = comparison.table()
    ties = {row[0]: row[columns.index("tie_with_baseline")] for row in rows}
    assert ties == {"raid": None, "dram": True, "nfs": False, "hbm": None}


def test_the_baseline_decides_what_is_a_tie(near: list[SimulationResult]) -> None:
    comparison = Comparison({one.target: one for one in near}, baseline="nfs")
    assert [comparison.tie(one.target) for one in near] == [False, False, None, None]


def test_a_terminal_marks_ties_and_says_the_rule_once(near: list[SimulationResult]) -> None:
    lines = compare_text(near).splitlines()
    cells = {line.split()[0]: line for line in reversed(lines) if line}
    assert "1.04× tie" in cells["dram"]
    assert "2×" in cells["nfs"]
    assert "tie" not in cells["nfs"]
    assert " ".join(" ".join(lines).split()).count(RULE) == 1
    assert max(map(len, lines)) <= 100


def test_no_rule_where_there_is_no_tie(make_result: Make) -> None:
    text = compare_text([make_result(target="raid"), make_result(target="dram", time_s=4)])
    assert "× tie" not in text
    assert "tie:" not in text


def test_margins_that_differ_are_a_range(make_result: Make) -> None:
    """Errors of one model on one machine mostly cancel, and those of two machines not."""
    three = [
        make_result(name=name, platform=platform)
        for name, platform in zip("abc", ("dgx-a100", "dgx-h100", "dgx-a100"), strict=True)
    ]
    assert "tie: within ±6.6 % to ±15 % of the baseline" in " ".join(compare_text(three).split())


def test_page_and_markdown_mark_them_too(near: list[SimulationResult], tmp_path: Path) -> None:
    write_comparison(near, tmp_path / "page.html")
    write_markdown(comparison_document(near), tmp_path / "page.md")
    for text in ((tmp_path / name).read_text() for name in ("page.html", "page.md")):
        assert "1.04× tie" in text
        assert RULE in Markup(text).striptags()


def test_the_verdict_says_it(near: list[SimulationResult]) -> None:
    (group,) = groups(near)
    assert group_summary(group) == (
        "raid gives 3.86 tokens/s of all 8 sequences (3.48 to 4.27); "
        "dram is as fast within the uncertainty; hbm does not fit."
    )


def test_a_wide_table_of_training_stays_within_its_width(make_training: Make) -> None:
    three = [make_training(optimizer_target=target) for target in ("raid", "dram", "hbm")]
    text = compare_text(three)
    assert "1× tie" in text
    assert max(map(len, text.splitlines())) <= 100
    assert max(map(len, compare_text(three, width=80).splitlines())) <= 100
