"""The page of a sweep, and its charts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simoffload.extensions.sweep import report as from_sweep
from simoffload.extensions.sweep.report import sweep_document
from simoffload.extensions.sweep.run import SweepResult, sweep
from simoffload.report.html import write_html
from simoffload.units import plural
from tests.report.conftest import EVIL, checked
from tests.report.test_page import Page

BATCH, WEIGHTS = "workload.batch_size", "strategy.weights"


def row(batch: int, weights: str, rate: float | None, time: float | None = None) -> dict[str, Any]:
    known = rate is not None
    return {
        BATCH: batch,
        WEIGHTS: weights,
        "tpot_s": time,
        "tokens_per_s": rate,
        "tokens_per_s_p10": rate and rate / 2,
        "tokens_per_s_p90": rate and rate * 2,
        "bottleneck": "raid read" if known else None,
        "fits": known,
        "advice": None if known else "hbm lacks 4 GB",
        "error": None,
    }


@pytest.fixture
def found() -> SweepResult:
    rows = (row(1, "dram", 10, 0.1), row(4, "dram", 30, 0.13), row(1, "raid", 5, 0.2), row(4, "raid", None))
    return SweepResult("small", (BATCH, WEIGHTS), rows)


def test_the_best_is_named_first(found: SweepResult) -> None:
    document = sweep_document(found, command="simoffload sweep small.yaml")
    assert document.heading == "small"
    assert document.summary == (
        (
            "batch_size=4, weights=dram is best: 30 tokens/s (15 to 60); 3 times as good as the next, "
            "batch_size=1, weights=dram (80 % intervals overlap); 3 of 4 points have a result."
        ),
    )
    assert document.warnings == ("1 point (25 %) does not fit; batch_size=4, weights=raid: hbm lacks 4 GB",)


def test_two_axes_are_a_heat_map(found: SweepResult) -> None:
    (heat,) = checked(from_sweep.overview(found))["data"]
    assert (heat["x"], heat["y"]) == (["1", "4"], ["dram", "raid"])
    assert heat["z"] == [[10, 30], [5, None]]
    assert heat["text"] == [["10", "30"], ["5", "✕"]]


def test_an_axis_of_numbers_is_a_line_and_one_of_names_has_bars(found: SweepResult) -> None:
    band, line = checked(from_sweep.along(found, BATCH))["data"]
    assert (line["type"], line["x"], line["y"]) == ("scatter", [1, 4], [10, 30])
    assert (band["x"], band["y"]) == ([1, 4, 4, 1], [5, 15, 60, 20])
    figure = checked(from_sweep.along(found, WEIGHTS))
    assert (figure["data"][0]["type"], figure["data"][0]["x"]) == ("bar", [30, 5])
    assert figure["layout"]["annotations"][0]["text"].strip() == "30 tokens/s [15 to 60]"


def test_the_front_has_what_nothing_beats(found: SweepResult) -> None:
    best = from_sweep.front(found)
    assert best is not None
    assert [one[BATCH] for one in best.points] == [1, 4]
    others, front = checked(from_sweep.pareto(found, best))["data"]
    assert (others["x"], others["y"]) == ([0.2], [5])
    assert front["text"] == ["", "batch_size=4, weights=dram"]


def test_no_point_with_a_result_is_a_page_too(found: SweepResult, tmp_path: Path) -> None:
    none = SweepResult("small", found.axes, (row(4, "raid", None), row(1, "raid", None)))
    write_html(sweep_document(none), tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert "None of 2 points has a result." in page.text
    assert page.charts == 0


def test_the_page_has_all_charts_and_names_stay_text(found: SweepResult, tmp_path: Path) -> None:
    bad = SweepResult(EVIL, found.axes, tuple({**one, WEIGHTS: EVIL + one[WEIGHTS]} for one in found.rows))
    write_html(sweep_document(bad, command=EVIL), tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert page.charts == 4
    assert page.tags.count("script") == 1
    assert "img" not in page.tags


def test_python_gets_rows_with_types() -> None:
    found = sweep("xinnor/llama-1b", "workload.batch_size=1,2", workers=1)
    frame = found.to_frame()
    assert (found.axes, list(frame[BATCH])) == ((BATCH,), [1, 2])
    assert frame["tokens_per_s"].dtype == "float64"
    assert checked(found.plot())["data"][-1]["x"] == [1, 2]


def test_it_says_what_was_simulated_and_what_of_it_is_uncertain(found: SweepResult) -> None:
    work = {"kind": "inference", "batch_size": 2, "output_length": 10}
    scenario = {"model": "bloom-7b1", "platform": "dgx-a100", "workload": work}
    rows = tuple({**one, "extrapolates": True, "warnings": "a slot is slow"} for one in found.rows)
    document = sweep_document(replace(found, rows=rows, scenario=scenario))
    assert document.facts[:3] == ("bloom-7b1", "dgx-a100", "output_length 10")
    points = plural(len(rows), "point")
    assert f"beyond the calibrated range (error unknown): {points}" in document.warnings
    assert f"{points}: a slot is slow" in document.warnings
