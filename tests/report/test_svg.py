"""Figures as SVG: places in per cent, round ticks, no overlap, and colours that can be read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from simoffload.planning.answers import simulate
from simoffload.planning.question import question
from simoffload.report import plotting as draw
from simoffload.report.charts import capacity
from simoffload.report.svg import drawn, stylesheet
from simoffload.results.result import SimulationResult

Attributes = dict[str, str]


def chart(data: Sequence[Any], **layout: Any) -> ElementTree.Element:
    figure = draw.figure(data, 100, **layout)
    return ElementTree.fromstring(str(drawn(figure, "a chart")))


def shapes(root: ElementTree.Element, tag: str) -> list[Attributes]:
    return [one.attrib for one in root.find("div").iter(tag)]  # type: ignore[union-attr]


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()) for one in root.iter("text")]


def rows(names: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"xaxis": draw.axis("time", range=[0, 10]), "yaxis": draw.names_axis(names), **more}


def bar(x: Sequence[float], **more: Any) -> Any:
    return draw.bars("a", y=range(len(x)), x=x, hover=["" for _ in x], color=draw.BLUE, **more)


def test_bars_are_in_per_cent_of_the_axis() -> None:
    root = chart([bar([5, 10])], **rows(["one", "two"]))
    assert [one["width"] for one in shapes(root, "rect")] == ["50%", "100%"]
    assert [text for text in texts(root) if text] == ["0", "2", "4", "6", "8", "10", "time", "one", "two"]
    image = root.find("div/svg")
    assert image is not None
    assert (image.get("role"), image.get("aria-label")) == ("img", "a chart")


def test_stacked_bars_begin_where_the_last_one_ends() -> None:
    root = chart([bar([2, 3]), bar([4, 1])], barmode="stack", **rows(["one", "two"]))
    found = [one["x"] for one in shapes(root, "rect") if one["class"] != "edge"]
    assert found == ["0%", "0%", "20%", "30%"]


def test_neighbours_differ_in_grey_print() -> None:
    """A part that would look like the one before it has lines along its edges."""

    def edged(*colours: str) -> list[str]:
        data = [draw.bars("a", y=[0], x=[2], hover=[""], color=one) for one in colours]
        marks = shapes(chart(data, barmode="stack", **rows(["one"])), "rect")
        return [one["x"] for one in marks if one["class"] == "edge"][::2]

    assert edged(draw.BLUE, draw.BLUE, draw.BLUE) == ["20%"]
    assert edged(draw.GREY, draw.PURPLE) == ["20%"]
    assert edged(draw.BLACK, draw.YELLOW, draw.BLUE) == []


def test_a_name_keeps_its_colour() -> None:
    """Whatever else a tier holds, in which order, and however much of it."""
    found: dict[str, set[str]] = {}
    for model in ("gpt-oss-120b", "qwen3-8b"):
        for memory in ("64GB", "128GB", "160GB"):
            for program in ("vllm", "llama_cpp", "accelerate", "deepspeed"):
                result = simulate(question(model, gpu="rtx-4090", memory=memory, program=program))
                for bars in capacity(result.capacity)["data"]:
                    found.setdefault(bars["name"].removesuffix(" (pinned)"), set()).add(
                        bars["marker"]["color"]
                    )
    assert len(found) > 10
    assert [name for name, colours in found.items() if len(colours) > 1] == []
    assert draw.held_colour("reserve of 8% (assumed)", "working") == draw.held_colour(
        "reserve of 8%", "working"
    )


def test_intervals_are_lines_with_ends() -> None:
    error = {"type": "data", "symmetric": False, "array": [2], "arrayminus": [1]}
    lines = shapes(chart([bar([5], error_x=error)], **rows(["one"])), "line")
    found = [(one["x1"], one["x2"]) for one in lines if one["class"] == "interval"]
    assert found == [("40%", "70%"), ("40%", "40%"), ("70%", "70%")]


def test_a_name_without_room_is_below_its_bar() -> None:
    wide, narrow = (
        {**bar([x], text=[name], textposition="inside"), "name": name}
        for x, name in ((9, "wide"), (1, "a long name"))
    )
    root = chart([wide, narrow], barmode="stack", showlegend=True, **rows(["one"]))
    inside = {one.text: one.get("class") for one in root.iter("text") if "in " in one.get("class", "")}
    assert inside == {"wide": "in on-blue"}
    below = ["".join(one.itertext()).strip() for one in root.iter("text") if "below" in one.get("class", "")]
    assert below == ["■ a long name"]


def test_equal_bars_of_a_row_are_named_once() -> None:
    """As the operations of a stream are: where none has room for the name, below the row."""
    short = draw.bars(
        "read",
        y=[0, 0, 0],
        x=[1, 1, 1],
        hover=[""] * 3,
        color=draw.BLUE,
        base=[0, 2, 4],
        **draw.labelled("a long name", 3),
    )
    root = chart([short], barmode="overlay", **rows(["one"]))
    assert sum("a long name" in text for text in texts(root)) == 1


def test_names_beside_points_do_not_overlap() -> None:
    lines = [
        draw.points(
            name,
            x=[0, 10],
            y=[0, y],
            hover=["", ""],
            mode="lines+text",
            line={"color": draw.BLUE},
            **draw.at_one(name, 2, -1),
        )
        for name, y in (("one", 5.0), ("two", 5.01), ("three", 5.02))
    ]
    root = chart(lines, xaxis=draw.axis("x"), yaxis=draw.axis("y", range=[0, 10]))
    heights = sorted(float(one.attrib["y"]) for one in root.iter("text") if one.get("class") == "name")
    assert len(heights) == 3
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 16


def test_hover_texts_are_titles_and_names_stay_text() -> None:
    trace = draw.bars("a", y=[0], x=[1], hover=["<b>bold</b>&"], color=draw.BLUE)
    root = chart([trace], **rows(["<script>"]))
    assert [one.text for one in root.iter("title")] == ["<b>bold</b>&"]
    assert not list(root.iter("script"))


def test_what_exceeds_a_tier_is_hatched(make_refusal: Callable[..., SimulationResult]) -> None:
    figure = capacity(make_refusal().capacity)
    root = ElementTree.fromstring(str(drawn(figure, "memory")))
    assert any(one.get("class") == "hollow s-black" for one in shapes(root, "rect"))
    below = ["".join(one.itertext()) for one in root.iter("text") if "below" in one.get("class", "")]
    assert any("beyond capacity" in one for one in below)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 0.3, [0, 0.1, 0.2, 0.3]),
        (3, 7.5, [3, 4, 5, 6, 7]),
        (-20, 20, [-20, -10, 0, 10, 20]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert draw.round_ticks(low, high) == pytest.approx(ticks)


def test_a_logarithmic_axis_has_its_own_ticks() -> None:
    axis = draw.ChartAxis.of(draw.axis("rate", type="log"), [1, 100])
    assert [text for _, text in axis.ticks] == ["1", "2", "5", "10", "20", "50", "100"]
    assert axis.at(10) == pytest.approx(0.5)


@pytest.mark.parametrize("most", [3e-6, 0.02, 1.5, 40])
def test_times_have_ticks_in_a_unit_that_suits_them(most: float) -> None:
    axis = draw.ChartAxis.of(draw.seconds_axis("time", most), [])
    assert all(len(text) <= 5 for _, text in axis.ticks)
    assert len({text for _, text in axis.ticks}) == len(axis.ticks) >= 3


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("value", draw.PALETTE)
def test_names_in_bars_can_be_read(value: str) -> None:
    colour = draw.PALETTE[value]
    assert contrast(value, colour.on) >= 4.5
    assert contrast(colour.dark, colour.on_dark) >= 4.5


def test_every_colour_with_a_meaning_is_in_the_palette() -> None:
    held = {shade for shades in draw._HELD.values() for shade in shades}
    given = held | {*draw._CAUSES.values(), *draw._PHASES.values(), *draw.CHANGES.values()}
    assert given <= draw.PALETTE.keys()
    names = re.findall(r"\.f-([\w-]+)", str(stylesheet()))
    assert len(names) == len(set(names)) == len(draw.PALETTE)


def test_a_band_is_an_area_between_the_ends() -> None:
    ends = [(0.0, 4.0), (2.0, 4.0)]
    data = [draw.band("80 %", x=[0, 10], ends=ends, color=draw.BLUE)]
    axes = {"xaxis": draw.axis("load", range=[0, 10]), "yaxis": draw.axis("time", range=[0, 4])}
    root = chart(data, **axes)
    ((corners, paint),) = ((one["points"], one["class"]) for one in shapes(root, "polygon"))
    (bottom, top) = (float(text.partition(",")[2]) for text in corners.split()[:3:2])
    middle = (bottom + top) / 2
    assert [tuple(map(float, one.split(","))) for one in corners.split()] == [
        (0, bottom),
        (100, middle),
        (100, top),
        (0, top),
    ]
    assert paint == "f-blue"
    assert shapes(root, "circle") == []


def test_a_short_bar_is_seen() -> None:
    root = chart([bar([0.01, 0.5, 0])], **rows(["short", "long", "none"]))
    assert [one["width"] for one in shapes(root, "rect")] == ["0.1%", "2", "5%", "0%"]


def test_numbers_have_an_axis_and_names_have_none() -> None:
    near = draw.number_axis("batch", ["1", "2", "4"])
    assert near is not None
    assert (near[1], near[0].get("type")) == ([1, 2, 4], None)
    far = draw.number_axis("read", ["0.09 GB/s", "9 GB/s", "9,000 GB/s"])
    assert far is not None
    assert (far[1], far[0]["type"], far[0]["title"]["text"]) == ([0.09, 9, 9000], "log", "read [GB/s]")
    assert draw.number_axis("read", ["900 MB/s", "9 GB/s"]) is None
    assert draw.number_axis("weights", ["dram", "1"]) is None
