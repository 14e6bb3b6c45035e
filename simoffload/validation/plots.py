"""Plots of recorded runs beside their predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from simoffload.calibration.compare import ComparedPass
from simoffload.calibration.streams import LayerStarts
from simoffload.validation.knobs import changed
from simoffload.validation.measured import PASSES, MeasuredRun
from simoffload.validation.svg import Axis, Drawing, linear_ticks, log_ticks

__all__ = ["Plot", "plots", "scatter", "timeline"]

_BAND = 0.12
"""Of what was measured; the bar for the worst decode step."""
_BELOW = 10
"""The naive predictions that are lower than this part of the fastest run stand at the edge."""
_COLORS = {"holdout": "#1f5fa8", "fit": "#e08a1e"}
_NAIVE = "#9a9a9a"
_MEASURED, _SIMULATED = "#222222", "#1f5fa8"

Plot = tuple[str, str, str]
"""Name of the file, what it shows in words, SVG text."""


def plots(runs: Sequence[MeasuredRun]) -> Iterator[Plot]:
    """The scatter plot of all runs, and for each number of GPUs the layers of one decode step."""
    rows = [row for row in runs if not row.host_thread_only]
    if any(_points(rows)):
        about = "Predicted over measured times of decode steps and prefills"
        yield "measured-scatter.svg", f"{about}; crosses at the lower edge lie below it", scatter(rows)
    for ranks, row in _shown(rows):
        gpus = f"{ranks}-gpu" if ranks == 1 else f"{ranks}-gpus"
        assert row.compared.layers is not None
        about = f"{row.compared.run.name}, {ranks} GPU(s), {row.part} set, machine {row.machine}"
        text = timeline(row.compared.layers, title=f"Begin of each layer of one decode step: {about}")
        yield f"timeline-{gpus}.svg", f"Begin of each layer, measured and simulated: {about}", text


def _shown(rows: Sequence[MeasuredRun]) -> list[tuple[int, MeasuredRun]]:
    """By number of GPUs the first run with CPU offload: held-out ones and DeepSpeed's defaults come first."""
    chosen: dict[int, MeasuredRun] = {}
    for row in sorted(rows, key=lambda row: (row.part != "holdout", bool(changed(row.compared.run)))):
        if row.compared.layers is not None and row.compared.run.offload == "cpu":
            chosen.setdefault(row.compared.run.ranks, row)
    return sorted(chosen.items())


def _points(rows: Sequence[MeasuredRun]) -> Iterator[tuple[MeasuredRun, ComparedPass]]:
    for row in rows:
        for name in PASSES:
            one = row.compared.find(name)
            if one is not None and one.measured and one.predicted and one.naive:
                yield row, one


def scatter(rows: Sequence[MeasuredRun]) -> str:
    """Predicted over measured times as SVG, ours and naive, with the diagonal and a band around it."""
    points = list(_points(rows))
    times = [time * 1e3 for _, one in points for time in (one.measured, one.predicted) if time]
    x = Axis(min(times) / 1.4, max(times) * 1.4, 70, 620, log=True)
    y = Axis(x.low / _BELOW, x.high, 560, 50, log=True)
    drawing = Drawing(650, 620, title="Predicted over measured times")
    drawing.area(_wedge(x, y), color="#e8f0e4")
    drawing.grid_x(x, y, log_ticks(x.low, x.high))
    drawing.grid_y(x, y, log_ticks(y.low, y.high))
    drawing.path([(x(t), y(t)) for t in (x.low, x.high)], color="#5b8c4a", width=1.2)
    drawing.frame(x, y)
    for _, one in points:
        assert one.measured
        assert one.naive
        drawing.cross((x(one.measured * 1e3), y(max(one.naive * 1e3, 1.04 * y.low))), color=_NAIVE)
    for row, one in points:
        _mark(drawing, row, one, x, y)
    drawing.text((345, 604), "measured, ms", anchor="middle", size=13)
    drawing.text((18, 305), "predicted, ms", anchor="middle", size=13, turned=True)
    _legend(drawing)
    return str(drawing)


def _wedge(x: Axis, y: Axis) -> list[tuple[float, float]]:
    """Where predictions are within the band; both axes end at the same time."""
    above, below = 1 + _BAND, 1 - _BAND
    corners = [(x.low, x.low * above), (x.high / above, x.high), (x.high, x.high)]
    corners += [(x.high, x.high * below), (x.low, x.low * below)]
    return [(x(measured), y(predicted)) for measured, predicted in corners]


def _mark(drawing: Drawing, row: MeasuredRun, one: ComparedPass, x: Axis, y: Axis) -> None:
    assert one.measured
    assert one.predicted
    at, color = (x(one.measured * 1e3), y(one.predicted * 1e3)), _COLORS[row.part]
    title = f"{row.compared.run.name}, {one.name}: {one.error:+.1%}"
    shape = drawing.dot if one.name == "decode" else drawing.square
    shape(at, color=color, filled=one.name == "decode", title=title)


def _legend(drawing: Drawing) -> None:
    left, top = 438, 436
    low, high = (left - 14, top - 14), (left + 176, top + 116)
    drawing.area([low, (high[0], low[1]), high, (low[0], high[1])], color="#ffffff")
    for number, (part, color) in enumerate(_COLORS.items()):
        words = {"holdout": "held out", "fit": "in view"}[part]
        drawing.dot((left, top + 40 * number), color=color)
        drawing.text((left + 12, top + 4 + 40 * number), f"decode step, {words}")
        drawing.square((left, top + 20 + 40 * number), color=color, filled=False)
        drawing.text((left + 12, top + 24 + 40 * number), f"prefill, {words}")
    drawing.cross((left, top + 80), color=_NAIVE)
    drawing.text((left + 12, top + 84), "bytes over bandwidth")
    drawing.line((left - 6, top + 100), (left + 6, top + 100), color="#5b8c4a", width=1.5)
    drawing.text((left + 12, top + 104), f"equal; band ±{_BAND:.0%}")


def timeline(layers: LayerStarts, *, title: str) -> str:
    """Measured and simulated begin of each layer as SVG, with the deviation below."""
    last = max(layers.step_s, layers.simulated_step_s) * 1e3 * 1.02
    count = len(layers.measured)
    x = Axis(0, last, 70, 690)
    y = Axis(-0.5, count - 0.5, 340, 50)
    drawing = Drawing(720, 520, title=title)
    ticks = linear_ticks(0, last, about=8)
    drawing.grid_x(x, y, ticks, labels=False)
    drawing.grid_y(x, y, [tick for tick in linear_ticks(0, count - 1) if tick == int(tick)])
    drawing.frame(x, y)
    _steps(drawing, (*layers.measured, layers.step_s), x, y, color=_MEASURED)
    _steps(drawing, (*layers.simulated, layers.simulated_step_s), x, y, color=_SIMULATED, dashed=True)
    drawing.text((70, 24), _fitting(title), size=12)
    drawing.text((26, 195), "layer", anchor="middle", turned=True)
    drawing.line((90, 66), (120, 66), color=_MEASURED, width=2)
    drawing.text((126, 70), "measured (scaled to the step without tracing)")
    drawing.path([(90, 84), (120, 84)], color=_SIMULATED, width=2, dashed=True)
    drawing.text((126, 88), "simulated")
    _deviations(drawing, layers, x, ticks)
    return str(drawing)


def _fitting(title: str) -> str:
    return title if len(title) <= 105 else f"{title[:104]}…"


def _steps(
    drawing: Drawing, begins: Sequence[float], x: Axis, y: Axis, *, color: str, dashed: bool = False
) -> None:
    """A staircase: each layer lasts until the next begins, and the last one to the end of the step."""
    points = [(x(time * 1e3), y(n)) for n, pair in enumerate(pairwise(begins)) for time in pair]
    drawing.path(points, color=color, width=1.8, dashed=dashed)


def _deviations(drawing: Drawing, layers: LayerStarts, x: Axis, ticks: Sequence[float]) -> None:
    shares = [share * 100 for share in layers.deviations]
    reach = max(2.0, 1.1 * layers.largest * 100)
    y = Axis(-reach, reach, 470, 370)
    drawing.grid_x(x, y, ticks)
    drawing.grid_y(x, y, linear_ticks(-reach, reach, about=4), unit=" %")
    drawing.path([(x(x.low), y(0)), (x(x.high), y(0))], color="#666", width=1)
    drawing.frame(x, y)
    for begin, share in zip(layers.measured, shares, strict=True):
        drawing.dot((x(begin * 1e3), y(share)), color=_SIMULATED, radius=2.6)
    drawing.text((380, 506), "time since the step began, ms", anchor="middle")
    drawing.text((26, 420), "deviation", anchor="middle", turned=True)
