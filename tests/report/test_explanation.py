"""What explains a result, in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simoffload.planning.bandwidth import BandwidthPoint, RequiredRate, StorageCurve
from simoffload.planning.explanation import Explanation, Sensitivity, SensitivityRow
from simoffload.planning.profile_parameters import ProfileParameter
from simoffload.report.charts import bandwidth, tornado
from simoffload.report.from_result import findings
from simoffload.report.html import write_report
from simoffload.report.sections.advice import STORAGE, TOP, explained
from simoffload.results.inference import InferenceResult
from tests.report.conftest import EVIL, GB, checked, result_text
from tests.report.test_page import Page

Make = Callable[..., InferenceResult]

TOLD = """\
Storage bandwidth and throughput
  the storage (raid) reads 25 GB/s
  it is the bottleneck below 40 GB/s
  above 80 GB/s faster storage gains less than 2 % (2.5 times the throughput at most)
  storage  tokens/s  upper bound
  13 GB/s         2          2.5
  25 GB/s         4            5  this platform
  50 GB/s         7            8  limit of ports and connections

Sensitivity to inputs
  how the time per token of all sequences changes if one input is 10 % lower or higher: 3 inputs
    have an effect, 5 have none, 7 are unused
  input    lower  higher  elasticity  origin    profile
  read    +8.0 %  −7.0 %       −0.75  spec      drive/pm1733
  hook            +1.5 %       +0.15  estimate  host/box
  launch          +0.5 %       +0.05  estimate  host/box
"""


@pytest.fixture
def explanation(make_result: Make) -> Explanation:
    """Reading is three quarters of the time; two estimates of one source are a fifth."""
    result = make_result()
    time = result.compared_s
    assert time is not None

    def row(
        profile: str, key: str, origin: str, low: float | None, high: float, elasticity: float
    ) -> SensitivityRow:
        low_s = None if low is None else time * (1 + low)
        swing = high if low is None else low - high
        number = ProfileParameter(profile, key, "7 GB/s", origin, "a source")
        return SensitivityRow(number, low_s, time * (1 + high), elasticity, swing)

    rows = (
        row("drive/pm1733", "read", "spec", 0.08, -0.07, -0.75),
        row("host/box", "hook", "estimate", None, 0.015, 0.15),
        row("host/box", "launch", "estimate", None, 0.005, 0.05),
    )
    found = Sensitivity(result, 0.1, rows, without_effect=5, left_out=7)
    own = BandwidthPoint(25 * GB, 4.0, 5.0)
    curve = StorageCurve(
        tier="raid",
        verb="reads",
        unit="token",
        points=(BandwidthPoint(13 * GB, 2.0, 2.5), own, BandwidthPoint(50 * GB, 7.0, 8.0)),
        own=own,
        fastest=10.0,
        hidden=RequiredRate(40 * GB, 1.6, 6.0, {"drive/pm1733": {"read": "10 GB/s"}}),
        enough=RequiredRate(80 * GB, 3.2, 9.9, {"drive/pm1733": {"read": "20 GB/s"}}),
        held_back="raid.0 -> cpu",
    )
    return Explanation(found, curve)


def test_a_terminal_shows_bandwidth_and_what_the_result_hangs_on(
    make_result: Make, explanation: Explanation
) -> None:
    text = result_text(make_result(explanation=explanation))
    assert TOLD in text
    assert text.index("Confidence") < text.index(STORAGE) < text.index("Sensitivity to inputs")


def test_without_an_explanation_only_how_sure_is_told(make_result: Make, make_refusal: Make) -> None:
    (sure,) = (one for one in findings(make_result()) if one.title == "Confidence")
    interval, errors = sure.sentences
    assert (
        interval
        == "80 % interval of the throughput: 3.28 to 5.45 tokens/s (raid, 81 % of the time, estimated)"
    )
    assert errors.startswith("error on real runs: too few real runs were like it; expect more than ±13.8 %, ")
    assert "Confidence" not in [one.title for one in findings(make_refusal())]


def test_no_storage_is_a_sentence(explanation: Explanation) -> None:
    there = replace(explanation, storage=None)
    bandwidth_told = explained(there)[0]
    assert bandwidth_told.sentences == (
        "weights and optimizer are in memory, so the speed of storage has no effect",
    )
    assert bandwidth_told.tables == ()
    assert bandwidth_told.charts == ()


def test_a_bottleneck_that_stays_says_what_holds_it_back(explanation: Explanation) -> None:
    assert explanation.storage is not None
    stays = replace(explanation.storage, hidden=None)
    text = "however fast the drives are, storage takes the most time:"
    assert stays.sentences[1] == f"{text} the link raid.0 -> cpu limits it"
    late = replace(stays, held_back="the latency of each transfer", fastest=stays.own.throughput * 1.04)
    assert late.sentences[1:] == (
        f"{text} the latency of each transfer remains",
        "a higher rate hardly helps: it gains 4 % at most, above 80 GB/s less than 2 %",
    )
    assert len(bandwidth(stays)["layout"]["shapes"]) == 1


def test_the_tornado_has_bars_to_both_sides(explanation: Explanation) -> None:
    figure = checked(tornado(explanation.sensitivity, most=TOP))
    lower, higher = figure["data"]
    assert (lower["name"], lower["y"], lower["x"]) == ("10 % lower", [0], pytest.approx([0.08]))
    assert higher["x"] == pytest.approx([-0.07, 0.015, 0.005])
    assert [lower["marker"]["pattern"]["shape"], higher["marker"]["pattern"]["shape"]] == ["/", ""]
    assert figure["layout"]["yaxis"]["ticktext"][0] == "read, drive/pm1733"


def test_the_platform_is_on_the_curve(explanation: Explanation) -> None:
    assert explanation.storage is not None
    figure = checked(bandwidth(explanation.storage))
    roof, simulated, own = figure["data"]
    assert (simulated["x"], simulated["y"]) == ([13, 25, 50], [2, 4, 7])
    assert roof["y"] == [2.5, 5, 8]
    assert (own["x"], own["y"], own["text"]) == ([25], [4], ["this platform"])
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [40, 80]


def test_a_page_says_the_same_without_scripts(
    make_result: Make, explanation: Explanation, tmp_path: Path
) -> None:
    write_report(make_result(), tmp_path / "plain.html")
    write_report(make_result(explanation=explanation), tmp_path / "explained.html")
    before, after = Page(tmp_path / "plain.html"), Page(tmp_path / "explained.html")
    assert after.charts == before.charts + 2
    assert "Confidence 80 % interval of the throughput: 3.28 to 5.45 tokens/s" in before.text
    assert "Sensitivity to inputs" not in before.text
    assert "It is the bottleneck below 40 GB/s." in after.text
    assert "read +8.0 % −7.0 % −0.75 spec drive/pm1733" in after.text
    assert "25 GB/s 4 5 this platform" in after.text


def test_names_stay_text(make_result: Make, explanation: Explanation, tmp_path: Path) -> None:
    assert explanation.storage is not None
    rows = tuple(
        row._replace(number=row.number._replace(profile=EVIL, key=EVIL))
        for row in explanation.sensitivity.rows
    )
    found = replace(explanation.sensitivity, rows=rows)
    hostile = Explanation(found, replace(explanation.storage, tier=EVIL, hidden=None))
    result = make_result(explanation=hostile)
    write_report(result, tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert "img" not in page.tags
    assert page.handlers == []
    assert "\u202e" not in page.text
    assert "\u202e" not in result_text(result)
