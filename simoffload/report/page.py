"""Results as one HTML file that loads nothing: no server, no network, tables that read without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.planning.explanation import Explanation
from simoffload.report import comparison_figures
from simoffload.report.comparison import (
    Group,
    Published,
    by_kind,
    group_verdict,
    groups,
    in_common,
    keys,
    warnings,
)
from simoffload.report.kinds import words
from simoffload.report.phrases import LIMITS, alike, counted, origins, percent
from simoffload.report.summary import headline
from simoffload.report.view import Charts, lines, view
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.units import format_bytes, format_rate, format_seconds

__all__ = ["write_comparison", "write_report"]

_MOST_BARS = 12_000
"""Operations drawn on a page, about 2 MB."""


def write_report(
    result: SimulationResult,
    path: str | Path,
    *,
    explanation: Explanation | None = None,
    command: str = "",
) -> None:
    """Write a page about one result, with its ``explanation``; ``command`` is what reproduces it.

    Raises OSError if the file cannot be written.
    """
    charts = Charts()
    title = f"simoffload: {', '.join(headline(result))}"
    shown = view(result, charts, bars=_MOST_BARS, explanation=explanation)
    _write(path, "single.html", charts, title=title, view=shown, command=lines(command))


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
    charts = Charts()
    found = groups(results, published=published, baseline=baseline)
    rows = [(f"{group.title}, {row.label}", row) for group in found for row in group.rows]
    inputs = dict.fromkeys(number for _, row in rows for number in row.result.provenance.inputs)
    count = Counter(origin for _, _, _, origin, _, _ in inputs)
    _write(
        path,
        "comparison.html",
        charts,
        title=f"simoffload: {', '.join(group.title for group in found)}",
        headline=in_common(results) or ("comparison",),
        verdicts=[group_verdict(group) for group in found],
        warnings=warnings(found),
        groups=found,
        kinds=[_kind(kind, mine, charts) for kind, mine in by_kind(found).items()],
        published=any(row.published for _, row in rows),
        sources=[
            (label, row.published.source) for label, row in rows if row.published and row.published.source
        ],
        views=[(label, view(row.result, charts, bars=_MOST_BARS // len(rows))) for label, row in rows],
        inputs=list(inputs),
        origins=origins(count),
        profiles=list(dict.fromkeys(use for _, row in rows for use in row.result.provenance.profiles)),
        versions=list(dict.fromkeys(v for _, row in rows for v in row.result.provenance.versions.items())),
        command=lines(command),
    )


def _kind(kind: str, found: Sequence[Group], charts: Charts) -> dict[str, Any]:
    """What the template says about the results of one kind of work."""
    first = found[0].rows[0].result
    timed = any(row.result.step for group in found for row in group.rows)
    return {
        "kind": kind,
        "unit": first.unit,
        "groups": [(group, *keys(group)) for group in found],
        "formulas": [(name, first.formulas[name]) for name in words(first).formulas],
        "times": charts.add(comparison_figures.times_compared(found), f"time per {first.unit} of each target")
        if timed
        else None,
        "phases": charts.add(comparison_figures.phases_compared(found), "phases of a step of each target")
        if timed and isinstance(first, TrainingResult)
        else None,
        "shares": charts.add(comparison_figures.causes_compared(found), "causes of time of each target")
        if timed
        else None,
    }


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
        "cells": lambda result: words(result).cells,
        "counted": counted,
        "in_common": in_common,
        "percent": percent,
        "rate": format_rate,
        "seconds": format_seconds,
    }
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _write(path: str | Path, template: str, charts: Charts, **values: Any) -> None:
    # jinja's tojson escapes <, >, & and ' for use inside a script.
    page = _environment().get_template(template)
    text = page.render(**values, figures=charts.figures, plotly=Markup(get_plotlyjs()), limits=LIMITS)
    with replacing(path) as file:
        file.write(text)
