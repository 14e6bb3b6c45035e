"""Draw docs/images: recorded runs beside their predictions (`python docs/figures.py`; needs matplotlib).

The same runs give the same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from simoffload.calibration.compare import ComparedPass
from simoffload.calibration.streams import LayerStarts
from simoffload.validation.figures import SCATTER, passes, shown_steps
from simoffload.validation.measured import MeasuredRun, compare_measured

IMAGES = Path(__file__).parent / "images"
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#666",
    "axes.grid": True,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "simoffload",
}
_BAND = 0.12
"""Of what was measured; the bar for the worst decode step."""
_BELOW = 10
"""The naive predictions that are lower than this part of the fastest run stand at the edge."""
_PARTS = {"holdout": ("held out", "#1f5fa8"), "fit": ("in view", "#e08a1e")}
_KINDS = (
    ({"decode"}, "o", True, "decode step"),
    ({"prefill"}, "s", False, "prefill"),
    ({"step", "forward", "backward", "optimizer"}, "^", False, "training"),
)
"""Names of passes, how they are marked, whether that is filled, and what they are called."""
_SIMULATED = "#1f5fa8"


def draw(runs: Sequence[MeasuredRun], folder: Path) -> list[Path]:
    """Draw all figures of recorded runs into a folder; the files that were written."""
    with mpl.rc_context(_STYLE):
        drawn = {SCATTER: scatter(list(passes(runs)))} if any(passes(runs)) else {}
        for step in shown_steps(runs):
            drawn[step.name] = timeline(step.layers, title=step.title)
        for name, figure in drawn.items():
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Creator": None, "Date": None})
            lines = (line.rstrip() for line in text.getvalue().splitlines())
            (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [folder / name for name in drawn]


def scatter(points: Sequence[tuple[MeasuredRun, ComparedPass]]) -> Figure:
    """Predicted over measured times, ours and naive, with the diagonal and a band around it."""
    times = [time * 1e3 for _, one in points for time in (one.measured, one.predicted) if time]
    low, high = min(times) / 1.4, max(times) * 1.4
    figure = Figure(figsize=(6.5, 6.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
    axes.set(xlim=(low, high), ylim=(low / _BELOW, high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_locator(LogLocator(subs=()))
    for part, (description, color) in _PARTS.items():
        for names, marker, face, called in _KINDS:
            mine = [one for row, one in points if row.part == part and one.name in names]
            style = {"marker": marker, "facecolor": color if face else "#fff", "edgecolor": color}
            found = [(one.measured, one.predicted) for one in mine]
            _dots(axes, found, label=f"{called}, {description}", **style)
    naive = [(one.measured, max(one.naive, 1.04e-3 * low / _BELOW)) for _, one in points]
    _dots(axes, naive, marker="x", color="#9a9a9a", label="bytes over bandwidth", zorder=1)
    ends = [low, high]
    axes.plot(ends, ends, color="#5b8c4a", linewidth=1, label=f"equal; band ±{_BAND:.0%}", zorder=1)
    below, above = ([end * (1 + share) for end in ends] for share in (-_BAND, _BAND))
    axes.fill_between(ends, below, above, color="#e8f0e4", zorder=0)
    axes.legend(loc="lower right")
    return figure


def _dots(axes: Axes, seconds: Sequence[tuple[float, float]], **style: object) -> None:
    """Points in milliseconds."""
    x, y = ([pair[i] * 1e3 for pair in seconds] for i in (0, 1))
    axes.scatter(x, y, **{"s": 22, "linewidth": 1.1, "zorder": 2, **style})


def timeline(layers: LayerStarts, *, title: str) -> Figure:
    """Measured and simulated begin of each layer, with the deviation below."""
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


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    sys.stdout.write("".join(f"wrote {path}\n" for path in draw(compare_measured(), IMAGES)))
