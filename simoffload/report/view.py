"""What the templates say about one result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml
from markupsafe import Markup

from simoffload.errors import printable
from simoffload.planning.explanation import Explanation
from simoffload.report import figures, training_figures
from simoffload.report.chart import Figure
from simoffload.report.explanation import explained, figures_of
from simoffload.report.groups import groups
from simoffload.report.kinds import words
from simoffload.report.phrases import bottleneck, bound, group_bounds, group_links, origins, worked
from simoffload.report.sections import sections
from simoffload.report.summary import headline, verdict
from simoffload.report.training_tables import (
    STORAGE_HEADS,
    causes_by_phase,
    estimates,
    moments,
    phase_names,
    storage,
    times,
)
from simoffload.report.window import Bar, Window, windows
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["Charts", "lines", "view"]

_MOST_BOUNDS = 8
_LONGEST = 15
"""Kinds of operations listed under a timeline."""


class _Chart(NamedTuple):
    number: int
    height: float
    label: str


class Charts:
    """Figures of a page, numbered in the order in which they are asked for."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []

    def add(self, figure: Figure, label: str) -> _Chart:
        """Take a figure; what a template needs to make room for it."""
        self.figures.append(figure)
        return _Chart(len(self.figures) - 1, figure["layout"]["height"], label)


def view(
    result: SimulationResult, charts: Charts, *, bars: int, explanation: Explanation | None = None
) -> dict[str, Any]:
    """What is told of one result; ``bars`` operations at most are drawn."""
    told = words(result)
    shown: dict[str, Any] = {
        "result": result,
        "headline": headline(result),
        "verdict": verdict(result),
        "whole": told.whole,
        "capacity": _capacity(result, charts),
        "metrics": [(metric, result.formulas[metric.key]) for metric in told.metrics],
        "note": told.note,
        "training": _training(result, charts) if isinstance(result, TrainingResult) else None,
        "sections": (*sections(result), *explained(result, explanation)),
        "charts": {title: charts.add(*drawn) for title, drawn in figures_of(explanation).items()},
        "origins": origins(result.provenance.origins),
        "engine": worked(result),
        "scenario": lines(_yaml(result.provenance.scenario)),
    }
    step = result.step
    if step is None:
        return shown
    return shown | {
        "bottleneck": bottleneck(step, told.called),
        "causes": charts.add(figures.causes(step), "time by cause"),
        "groups": groups(step),
        "other_passes": [one for one in result.passes if one is not step],
        "bound": bound(step),
        "bounds": charts.add(figures.bounds(step, most=_MOST_BOUNDS), "bounds and simulated time"),
        "all_bounds": group_bounds(step),
        "links": group_links(step.links),
        **_timeline(result, charts, bars=bars),
    }


def _capacity(result: SimulationResult, charts: Charts) -> _Chart:
    """Each tier at its peak, or at every moment where there are several."""
    if isinstance(result, TrainingResult) and len(result.moments) > 1:
        return charts.add(training_figures.memory(result), "what each tier must hold at each moment")
    return charts.add(figures.capacity(result.capacity), "what each tier must hold")


def _training(result: TrainingResult, charts: Charts) -> dict[str, Any]:
    """What only pages about training show."""
    step = result.step_s
    return {
        "moments": moments(result),
        "estimates": estimates(result),
        "phases": [
            (phase.result, times(phase), phase.time_s, phase.time_s / step) for phase in result.phases if step
        ],
        "phase_chart": charts.add(training_figures.phases(result), "time of each phase") if step else None,
        "phase_names": phase_names(result),
        "causes": [split.exposed_s for split in causes_by_phase(result)],
        "storage_heads": STORAGE_HEADS,
        "storage": storage(result),
    }


def _timeline(result: SimulationResult, charts: Charts, *, bars: int) -> dict[str, Any]:
    """The windows of the pass that stands for the run, or of whichever was recorded."""
    told = words(result)
    name = told.shown.name if told.shown else ""
    name = name if name in result.timelines else next(iter(result.timelines), "")
    found = windows(result.timelines[name], most=bars // 2, called=told.parts) if name else ()
    return {
        "timeline_name": name,
        "parts": told.parts,
        "windows": [
            {
                "title": window.title,
                "chart": charts.add(figures.schedule(window), f"{window.title}: operations by stream"),
                "omitted": window.omitted,
                "work": _work(window)[:_LONGEST],
            }
            for window in found
        ],
    }


def _work(window: Window) -> list[tuple[str, str, str, int, float, int]]:
    """(label, kind, stream, count, time [s], bytes) of the window's own operations, longest first."""
    work: dict[tuple[str, str, str], list[Bar]] = {}
    for bar in window.bars:
        if bar.own:
            work.setdefault((bar.label, bar.kind, bar.stream), []).append(bar)
    rows = [
        (*key, len(bars), sum(bar.duration_s for bar in bars), sum(bar.size for bar in bars))
        for key, bars in work.items()
    ]
    return sorted(rows, key=lambda row: -row[4])


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a value again where it occurs again: scenario files have no anchors."""
        return True


def _yaml(tree: Mapping[str, Any]) -> str:
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def lines(text: str) -> Markup:
    """Text of several lines, each safe to show."""
    return Markup("\n").join(printable(line) for line in text.rstrip("\n").split("\n"))
