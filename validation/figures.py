"""This module draws recorded runs and their predictions with matplotlib, for docs/images.

The same runs give the same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from simoffload.units import plural
from simoffload_calibrate.records import LayerStarts
from validation.accuracy import WORST_DECODE
from validation.measured import PASSES, MeasuredRun, changed

_SCATTER = "measured-scatter.svg"
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#666",
    "axes.grid": True,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "simoffload",
}
_BELOW = 10
"""Naive predictions that are lower than the fastest run by more than this factor are drawn at the lower
edge."""
_PARTS = {"holdout": ("held out", "#1f5fa8"), "fit": ("fit set", "#e08a1e")}
_KINDS = (
    ({"decode"}, "o", True, "decode step"),
    ({"prefill"}, "s", False, "prefill"),
    ({"step", "forward", "backward", "optimizer"}, "^", False, "training"),
)
"""Names of passes, their marker, whether it is filled, and their text in the legend."""
_SIMULATED = "#1f5fa8"


class Drawing(NamedTuple):
    """A figure of the page docs/validation/real-runs.md."""

    name: str
    """The file name in docs/images."""
    about: str
    """The caption on the page."""
    figure: Figure

    def svg(self) -> str:
        """Return the figure as SVG text without its date."""
        text = io.StringIO()
        with mpl.rc_context(_STYLE):
            self.figure.savefig(text, format="svg", metadata={"Creator": None, "Date": None})
        return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def drawings(runs: Sequence[MeasuredRun]) -> list[Drawing]:
    """Draw the times of all recorded runs, and the layers of one decode step for each number of GPUs."""
    about = "Predicted over measured times of decode steps, prefills and training"
    with mpl.rc_context(_STYLE):
        scattered = scatter(points(runs))
        drawn = [Drawing(_SCATTER, f"{about}; crosses at the lower edge are below it", scattered)]
        for gpus, (run, layers) in sorted(_steps(runs).items()):
            name = f"timeline-{gpus}-gpu{'s' if gpus > 1 else ''}.svg"
            figure = timeline(layers, title=f"Begin of each layer of one decode step: {run}")
            drawn.append(Drawing(name, f"Begin of each layer, measured and simulated: {run}", figure))
    return drawn


def _steps(runs: Sequence[MeasuredRun]) -> dict[int, tuple[str, LayerStarts]]:
    """Choose one run with CPU offload for each number of GPUs, preferring held-out runs and default
    settings."""
    chosen: dict[int, tuple[str, LayerStarts]] = {}
    for row in sorted(runs, key=lambda row: (row.part != "holdout", bool(changed(row.compared.run)))):
        run, layers = row.compared.run, row.compared.layers
        if layers is not None and run.offload == "cpu":
            about = f"{run.name}, {plural(run.ranks, 'GPU')}, {row.part} set, machine {row.machine}"
            chosen.setdefault(run.ranks, (about, layers))
    return chosen


class Point(NamedTuple):
    """A pass of a recorded run with its times [ms]."""

    part: str
    name: str
    measured: float
    predicted: float
    naive: float


def points(runs: Sequence[MeasuredRun]) -> list[Point]:
    """Return the passes of all runs that have a measured time and both predictions."""
    found = ((row.part, row.compared.find(name)) for row in runs for name in PASSES)
    return [
        Point(part, one.name, one.measured * 1e3, one.predicted * 1e3, one.naive * 1e3)
        for part, one in found
        if one is not None and one.measured and one.predicted and one.naive
    ]


def scatter(shown: Sequence[Point]) -> Figure:
    """Draw simulated and naive over measured times, with the diagonal and a band around it."""
    times = [time for one in shown for time in (one.measured, one.predicted)]
    low, high = min(times) / 1.4, max(times) * 1.4
    figure = Figure(figsize=(6.5, 6.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    axes.set(xlim=(low, high), ylim=(low / _BELOW, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_locator(LogLocator(subs=()))
    dots: dict[str, Any] = {"s": 22, "linewidth": 1.1, "zorder": 2}
    for part, (words, color) in _PARTS.items():
        for names, marker, face, called in _KINDS:
            mine = [one for one in shown if one.part == part and one.name in names]
            x, y = [one.measured for one in mine], [one.predicted for one in mine]
            colors = {"facecolor": color if face else "#fff", "edgecolor": color}
            axes.scatter(x, y, label=f"{called}, {words}", **{**dots, **colors, "marker": marker})
    x, y = [one.measured for one in shown], [max(one.naive, 1.04 * low / _BELOW) for one in shown]
    gray = {**dots, "marker": "x", "color": "#9a9a9a", "zorder": 1}
    axes.scatter(x, y, label="bytes over bandwidth", **gray)
    ends = [low, high]
    axes.plot(ends, ends, color="#5b8c4a", linewidth=1, label=f"equal; band ±{WORST_DECODE:.0%}", zorder=1)
    below, above = ([end * (1 + share) for end in ends] for share in (-WORST_DECODE, WORST_DECODE))
    axes.fill_between(ends, below, above, color="#e8f0e4", zorder=0)
    axes.legend(loc="lower right")
    return figure


def timeline(layers: LayerStarts, *, title: str) -> Figure:
    """Draw the measured and the simulated begin of each layer, and the deviation below them."""
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.set_title(title.replace("$", r"\$"), fontsize=9, loc="left", wrap=True)
    measured, simulated = (*layers.measured, layers.step_s), (*layers.simulated, layers.simulated_step_s)
    about = "measured (scaled to the step without tracing)"
    for begins, style in (
        (measured, {"color": "#222", "label": about}),
        (simulated, {"color": _SIMULATED, "linestyle": "--", "label": "simulated"}),
    ):
        # Each layer lasts until the next begins, and the last one to the end of the step.
        edges = [begin * 1e3 for begin in begins]
        above.stairs(range(len(layers.measured)), edges, baseline=None, linewidth=1.6, **style)
    above.set_ylabel("layer")
    above.yaxis.set_major_locator(MaxNLocator(integer=True))
    above.legend(loc="upper left")
    reach = max(0.02, 1.1 * layers.largest)
    below.scatter([begin * 1e3 for begin in layers.measured], layers.deviations, s=12, color=_SIMULATED)
    below.axhline(0, color="#666", linewidth=1)
    below.set(ylim=(-reach, reach), xlabel="time since the step began, ms", ylabel="deviation")
    below.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.set_xlim(0, 1.02e3 * max(layers.step_s, layers.simulated_step_s))
    return figure
