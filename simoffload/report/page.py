"""Results as one HTML file that loads nothing: no server, no network, tables that read without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.report import comparison_figures
from simoffload.report.chart import Figure
from simoffload.report.comparison import Group, Published, by_kind, groups
from simoffload.report.comparison_sections import charted
from simoffload.report.phrases import uncapitalized
from simoffload.report.sections import Table, shown
from simoffload.report.sections.explanation import figures_of
from simoffload.report.story import Story, story_of, story_of_several
from simoffload.report.view import Chart, Charts, Pictures, pictures
from simoffload.results.result import SimulationResult

__all__ = ["write_advice", "write_comparison", "write_report"]

_MOST_BARS = 12_000
"""Operations drawn on a page, about 2 MB."""


def write_report(result: SimulationResult, path: str | Path, *, command: str = "") -> None:
    """Write a page about one result; ``command`` is what reproduces it.

    Raises InputError if the file cannot be written.
    """
    charts = Charts()
    drawn = pictures(result, charts, bars=_MOST_BARS)
    if result.explanation is not None:
        told = figures_of(result.explanation)
        drawn.charts.update({title: charts.add(*one) for title, one in told.items()})
    _write(path, story_of(result, command=command), charts, drawn)


def write_advice(
    story: Story, result: SimulationResult, path: str | Path, *, figures: Mapping[str, tuple[Figure, str]]
) -> None:
    """Write a page about what to change; ``result`` is of the scenario as it is, ``figures`` are charts by
    the titles of sections of the story.

    Raises InputError if the file cannot be written.
    """
    charts = Charts()
    drawn = {title: charts.add(*one) for title, one in figures.items()}
    _write(path, story, charts, Pictures(drawn | pictures(result, charts, bars=0).charts))


def write_comparison(
    results: Sequence[SimulationResult],
    path: str | Path,
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    command: str = "",
) -> None:
    """Write a page that compares results; ``comparison.groups`` explains ``published`` and ``baseline``.

    Raises ValueError if there are no results or ``baseline`` names none of them, InputError if the file
    cannot be written.
    """
    if not results:
        raise ValueError("there is nothing to compare")
    charts = Charts()
    found = groups(results, published=published, baseline=baseline)
    drawn = _compared(found, charts)
    each_result = [row.result for group in found for row in group.rows]
    each = tuple(pictures(result, charts, bars=_MOST_BARS // len(results)) for result in each_result)
    story = story_of_several(found, command=command)
    _write(path, story, charts, Pictures(drawn, each=each))


def _compared(found: Sequence[Group], charts: Charts) -> dict[str, Chart]:
    """The charts of all results together by the title of their section."""
    drawn = {}
    titles, kinds = charted(found), by_kind(found)
    for kind, (times, phases, causes) in titles.items():
        mine = kinds[kind]
        label = f"{uncapitalized(mine[0].compared)} of each target"
        drawn[times] = charts.add(comparison_figures.times_compared(mine), label)
        if phases:
            label = "phases of a step of each target"
            drawn[phases] = charts.add(comparison_figures.phases_compared(mine), label)
        drawn[causes] = charts.add(comparison_figures.causes_compared(mine), "causes of time of each target")
    return drawn


def _printed(value: object) -> object:
    """Whatever a template prints that is not markup already."""
    return printable(value) if type(value) is str else value


def _lines(text: str) -> Markup:
    """Text of several lines, each safe to show."""
    return Markup("\n").join(printable(line) for line in text.rstrip("\n").split("\n"))


def _by_fold(tables: Sequence[Table]) -> list[tuple[str, list[Table]]]:
    """Tables that are folded up together."""
    return [(folded, list(alike)) for folded, alike in groupby(tables, key=lambda table: table.folded)]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simoffload.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"by_fold": _by_fold, "lines": _lines, "shown": shown}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _write(path: str | Path, story: Story, charts: Charts, drawn: Pictures) -> None:
    # jinja's tojson escapes <, >, & and ' for use inside a script.
    page = _environment().get_template("page.html")
    text = page.render(story=story, drawn=drawn, figures=charts.figures, plotly=Markup(get_plotlyjs()))
    with replacing(path) as file:
        file.write(text)
