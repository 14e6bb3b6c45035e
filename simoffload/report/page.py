"""Results as one HTML file that loads nothing: no server, no network, tables that read without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.report import comparison_figures, figures
from simoffload.report.chart import Figure
from simoffload.report.comparison import Published, group_verdict, groups, in_common, warnings
from simoffload.report.phrases import (
    LIMITS,
    alike,
    bottleneck,
    bound,
    counted,
    group_bounds,
    group_links,
    headline,
    metric_rows,
    milliseconds,
    origins,
    percent,
    step_time,
    verdict,
)
from simoffload.report.window import Bar, Window, windows
from simoffload.results.result import FORMULAS, SimulationResult
from simoffload.units import format_bytes, format_rate, format_seconds

__all__ = ["write_comparison", "write_report"]

_MOST_BARS = 12_000
"""Operations drawn on a page, about 2 MB."""
_MOST_BOUNDS = 8
_LONGEST = 15
"""Kinds of operations listed under a timeline."""


class _Chart(NamedTuple):
    number: int
    height: float
    label: str


class _Charts:
    """Figures of a page, numbered in the order in which they are asked for."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []

    def add(self, figure: Figure, label: str) -> _Chart:
        self.figures.append(figure)
        return _Chart(len(self.figures) - 1, figure["layout"]["height"], label)


def write_report(result: SimulationResult, path: str | Path, *, command: str = "") -> None:
    """Write a page about one result; ``command`` is what reproduces it.

    Raises OSError if the file cannot be written.
    """
    charts = _Charts()
    view = _view(result, charts, bars=_MOST_BARS)
    title = f"simoffload: {', '.join(headline(result))}"
    _write(path, "single.html", charts, title=title, view=view, command=_lines(command))


def write_comparison(
    results: Sequence[SimulationResult],
    path: str | Path,
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    command: str = "",
) -> None:
    """Write a page that compares results; ``comparison.groups`` explains ``published`` and ``baseline``.

    Raises ValueError if there are no results or ``baseline`` names none of them, OSError if the file cannot
    be written.
    """
    if not results:
        raise ValueError("there is nothing to compare")
    charts = _Charts()
    found = groups(results, published=published, baseline=baseline)
    rows = [(group, row) for group in found for row in group.rows]
    timed = any(row.result.step for _, row in rows)
    share = _MOST_BARS // len(rows)
    inputs = dict.fromkeys(number for _, row in rows for number in row.result.provenance.inputs)
    count = Counter(origin for _, _, _, origin, _, _ in inputs)
    labels = [f"{group.model}, {row.label}" for group, row in rows]
    _write(
        path,
        "comparison.html",
        charts,
        title=f"simoffload: {', '.join(group.model for group in found)}",
        headline=in_common(results) or ("comparison",),
        verdicts=[group_verdict(group) for group in found],
        warnings=warnings(found),
        groups=found,
        formulas=[(name, FORMULAS[name]) for name in ("per_token_s", "tpot_s", "tokens_per_s")],
        published=any(row.published for _, row in rows),
        sources=[
            (label, row.published.source)
            for label, (_, row) in zip(labels, rows, strict=True)
            if row.published and row.published.source
        ],
        times=charts.add(comparison_figures.times_compared(found), "time per token of each target")
        if timed
        else None,
        shares=charts.add(comparison_figures.causes_compared(found), "causes of time of each target")
        if timed
        else None,
        views=[
            (label, _view(row.result, charts, bars=share))
            for label, (_, row) in zip(labels, rows, strict=True)
        ],
        inputs=list(inputs),
        origins=origins(count),
        profiles=list(dict.fromkeys(use for _, row in rows for use in row.result.provenance.profiles)),
        versions=list(dict.fromkeys(v for _, row in rows for v in row.result.provenance.versions.items())),
        command=_lines(command),
    )


def _view(result: SimulationResult, charts: _Charts, *, bars: int) -> dict[str, Any]:
    """What the template says about one result."""
    view: dict[str, Any] = {
        "result": result,
        "headline": headline(result),
        "verdict": verdict(result),
        "capacity": charts.add(figures.capacity(result.capacity), "what each tier must hold"),
        "metrics": [(words, value, key, FORMULAS[key]) for key, words, value in metric_rows(result)],
        "origins": origins(result.provenance.origins),
        "scenario": _lines(_yaml(result.provenance.scenario)),
    }
    step = result.step
    if step is None:
        return view
    passes = (result.first_pass, result.prefill, *result.decode)
    view |= {
        "bottleneck": bottleneck(step),
        "causes": charts.add(figures.causes(step), "time by cause"),
        "other_passes": [one for one in passes if one is not None and one is not step],
        "bound": bound(step),
        "bounds": charts.add(figures.bounds(step, most=_MOST_BOUNDS), "bounds and simulated time"),
        "all_bounds": group_bounds(step),
        "links": group_links(step.links),
        **_timeline(result, charts, bars=bars),
    }
    return view


def _timeline(result: SimulationResult, charts: _Charts, *, bars: int) -> dict[str, Any]:
    """The windows of the step that stands for the run, or of whichever pass was recorded."""
    name = result.step.name if result.step else ""
    name = name if name in result.timelines else next(iter(result.timelines), "")
    found = windows(result.timelines[name], most=bars // 2) if name else ()
    return {
        "timeline_name": name,
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


def _lines(text: str) -> Markup:
    """Text of several lines, each safe to show."""
    return Markup("\n").join(printable(line) for line in text.rstrip("\n").split("\n"))


def _shown(value: object) -> object:
    """Whatever a template prints that is not markup already."""
    return printable(value) if type(value) is str else value


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simoffload.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "alike": alike,
        "bytes": format_bytes,
        "counted": counted,
        "in_common": in_common,
        "milliseconds": milliseconds,
        "percent": percent,
        "rate": format_rate,
        "seconds": format_seconds,
        "step_time": step_time,
    }
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _write(path: str | Path, template: str, charts: _Charts, **values: Any) -> None:
    # jinja's tojson escapes <, >, & and ' for use inside a script.
    page = _environment().get_template(template)
    text = page.render(**values, figures=charts.figures, plotly=Markup(get_plotlyjs()), limits=LIMITS)
    with replacing(path) as file:
        file.write(text)
