"""Charts: what they draw, and that plotly knows every key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simoffload.report.charts import bounds, capacity, causes, schedule, windows
from simoffload.report.comparison import Published, causes_compared, groups, times_compared
from simoffload.report.plotting import plain
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.timeline import Timeline
from tests.report.conftest import checked

Make = Callable[..., SimulationResult]


def step_of(result: SimulationResult) -> PassResult:
    assert result.step is not None
    return result.step


def test_capacity_is_a_fraction_of_the_tier(make_refusal: Make) -> None:
    figure = checked(capacity(make_refusal().capacity))
    assert [(trace["name"], trace["y"], trace["x"]) for trace in figure["data"]] == [
        ("gathered parameters, peak", [0], [0.075]),
        ("activations", [0], [0.025]),
        ("swap buffers (pinned)", [1], [0.01171875]),
        ("weights", [2], [1.4]),
        ("beyond capacity", [2], [pytest.approx(0.4)]),
    ]
    assert figure["layout"]["xaxis"]["range"][1] == pytest.approx(1.4 * 1.08)
    assert figure["layout"]["annotations"][2]["text"] == " 14 GB of 10 GB (140 %)"


def test_a_tier_far_too_small_leaves_room_for_the_others(make_result: Make) -> None:
    uses = make_result().capacity
    figure = checked(capacity([uses[0], uses[2]._replace(needed=10**16)]))
    assert figure["layout"]["xaxis"]["range"] == [0, 2.5]


def test_exposed_and_hidden_time_make_up_what_was_busy(make_result: Make) -> None:
    step = step_of(make_result())
    exposed, hidden = checked(causes(step))["data"]
    total = [a + b for a, b in zip(exposed["x"], hidden["x"], strict=True)]
    assert total == pytest.approx([share.busy_s for share in step.shares])


def test_bounds_stay_left_of_the_time(make_result: Make) -> None:
    figure = checked(bounds(step_of(make_result()), most=2))
    assert figure["data"][0]["x"] == pytest.approx([1.48, 0.3])
    assert figure["layout"]["shapes"][0]["x0"] == 2.0


def test_the_timeline_has_a_row_for_each_stream(timeline: Timeline) -> None:
    figure = checked(schedule(windows(timeline, most=100)[0]))
    assert figure["layout"]["yaxis"]["ticktext"] == ["host", "copy", "compute", "io"]
    (reads,) = (trace for trace in figure["data"] if trace["name"] == "raid read")
    assert reads["base"][:2] == pytest.approx([3.0, 803.0]), "in ms"
    assert (
        reads["hovertext"][0] == "mlp.weight<br>read on io<br>starts at 3 ms, takes 800 ms<br>4 GB, raid read"
    )


def test_times_are_sorted_and_have_intervals(make_result: Make, make_refusal: Make) -> None:
    results = [make_refusal(target="hbm"), make_result(target="nfs", time_s=20), make_result(target="dram")]
    figure = checked(times_compared(groups(results, published={"nfs": Published(0.1)}, baseline="nfs")))
    assert figure["layout"]["yaxis"]["ticktext"] == ["dram", "nfs", "hbm"]
    fast, slow, marks = figure["data"]
    assert (fast["y"], fast["x"]) == ([0], pytest.approx([3.855421686746988]))
    assert (slow["y"], slow["x"]) == ([1], pytest.approx([0.3855421686746988]))
    assert (marks["y"], marks["x"]) == ([1], pytest.approx([3.855421686746988]))
    assert figure["layout"]["xaxis"]["rangemode"] == "tozero"
    texts = [note["text"].strip() for note in figure["layout"]["annotations"]]
    assert texts == [
        "3.86 tokens/s [3.28 to 5.45], fastest",
        "0.386 tokens/s [0.328 to 0.545], 10× as long",
        "does not fit",
    ]


def test_a_logarithmic_axis_is_drawn_on_request(make_result: Make) -> None:
    found = groups([make_result(target="nfs", time_s=20), make_result(target="dram")])
    assert checked(times_compared(found, log=True))["layout"]["xaxis"]["type"] == "log"


def test_times_of_several_models_stay_together(make_result: Make) -> None:
    results = [make_result(model=model, target=target) for model in ("a", "b") for target in ("dram", "nfs")]
    figure = checked(times_compared(groups(results)))
    assert figure["layout"]["yaxis"]["ticktext"] == ["a, dram", "a, nfs", "b, dram", "b, nfs"]


def test_causes_of_each_target_add_up(make_result: Make) -> None:
    figure = checked(causes_compared(groups([make_result(target="dram"), make_result(target="raid")])))
    sums = [0.0, 0.0]
    for trace in figure["data"]:
        for y, x in zip(trace["y"], trace["x"], strict=True):
            sums[y] += x
    assert sums == pytest.approx([1.0, 1.0])
    reads = {trace["name"]: trace["y"] for trace in figure["data"] if "read" in trace["name"]}
    assert reads == {"raid read": [0], "storage read": [1]}, "reading from the target itself has one name"


def test_names_bring_no_markup() -> None:
    assert plain('<a href="x">y</a>') == '‹a href="x"›y‹/a›'


def test_how_full_a_tier_is_stands_above_its_bar(make_refusal: Make) -> None:
    layout = checked(capacity(make_refusal().capacity))["layout"]
    top = (1 - layout["bargap"]) / 2
    assert [(one["x"], one["y"], one["yanchor"]) for one in layout["annotations"]] == [
        (0, row - top, "bottom") for row in range(len(make_refusal().capacity))
    ]
