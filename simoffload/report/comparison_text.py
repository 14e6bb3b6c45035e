"""Several results as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from simoffload.errors import printable
from simoffload.report.comparison import (
    Group,
    Published,
    Row,
    by_kind,
    groups,
    in_common,
    keys,
    tie_rule,
    warnings,
)
from simoffload.report.comparison_sections import costs_of
from simoffload.report.kinds import words
from simoffload.report.paper import Paper
from simoffload.report.phrases import counted, percent
from simoffload.report.text import told
from simoffload.results.result import SimulationResult
from simoffload.units import format_number

__all__ = ["compare_text"]

_BOTTLENECK = "bottleneck"


def compare_text(
    results: Sequence[SimulationResult],
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    color: bool = False,
    width: int = 100,
) -> str:
    """Tabulate several results, one table for each model and kind of work; ``groups`` explains the arguments.

    Raises ValueError if ``baseline`` names no result.
    """
    paper = Paper(color=color, width=width)
    found = groups(results, published=published, baseline=baseline)
    for group in found:
        if paper.lines:
            paper.lines.append("")
        title = " · ".join(in_common([row.result for row in group.rows]))
        paper.lines += [paper.ink(line, "bold") for line in wrap(title, paper.width)]
        paper.lines += _table(paper, group)
        paper.lines += (paper.ink(line, "dim") for line in wrap(_held_back(group), paper.width))
    for alike in by_kind(found).values():
        timed = (row.result for group in alike for row in group.rows if row.result.step)
        legend = next((words(result).legend for result in timed), "")
        if any(group.throughput_apart for group in alike):
            legend += "; throughput: ratio of tokens/s"
        if any(row.published for group in alike for row in group.rows):
            legend += "; published: ratio of times over the tokens of all sequences"
        paper.lines += (paper.ink(line, "dim") for line in wrap(legend, paper.width))
    paper.lines += (paper.ink(line, "dim") for line in wrap(tie_rule(found), paper.width))
    for one in costs_of(found):
        paper.section(one.short, told(paper, one))
    for text in warnings(found):
        paper.paragraph("Warning", text, "yellow")
    return str(paper)


def _table(paper: Paper, group: Group) -> list[str]:
    heads, names = keys(group)
    timed = any(row.result.step for row in group.rows)
    table = [[*heads, *_heads(group)] if timed else ["" for _ in (*heads, "")]]
    for cells, row in zip(names, group.rows, strict=True):
        told = _numbers(group, row) if row.result.step else [_without_times(row.result)]
        table.append([*cells, *told])
    right = [at for at, head in enumerate(table[0]) if timed and at >= len(heads) and head != _BOTTLENECK]
    styles = ["" if row.result.step else "green" if row.result.fits else "red" for row in group.rows]
    return paper.headed(table, right=right, keys=len(heads), margin=0, styles=styles)


def _heads(group: Group) -> list[str]:
    """Heads of ``_numbers``."""
    against = f"vs {group.against}" if group.against else "ratio"
    published = ["published"] if any(row.published for row in group.rows) else []
    throughput = ["throughput"] if group.throughput_apart else []
    cells = (cell.short for cell in words(group.rows[0].result).cells)
    return [*cells, against, *throughput, *published, _BOTTLENECK, *([] if group.narrow else ["bound"])]


def _numbers(group: Group, row: Row) -> list[str]:
    """What the kind of work shows, ratios, published ratio, bottleneck with its share; the fraction of the
    bound that is reached where there is room."""
    step = row.result.step
    assert step is not None
    published = [f"{format_number(row.published.ratio)}×" if row.published else ""]
    shown = published if any(each.published for each in group.rows) else []
    throughput = [row.throughput_text] if group.throughput_apart else []
    cause = f"{step.bottleneck.cause} {percent(step.bottleneck.exposed_s / step.time_s)}"
    bound = [] if group.narrow else [percent(row.result.bound_fraction or 0.0)]
    cells = (cell.value for cell in words(row.result).cells)
    return [*cells, row.ratio_text, *throughput, *shown, cause, *bound]


def _held_back(group: Group) -> str:
    """What else holds the bottlenecks back: "held back: ai400x2 read by ib0 in"; by row where they differ."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in group.rows:
        cause, limit = row.result.bottleneck, row.result.limit
        if cause and limit and limit != cause:
            found.setdefault(cause, {}).setdefault(limit, []).append(row.label)
    told = (
        f"{printable(cause)} by {printable(limit)}" + (f" ({', '.join(labels)})" if len(limits) > 1 else "")
        for cause, limits in found.items()
        for limit, labels in limits.items()
    )
    return f"held back: {'; '.join(told)}" if found else ""


def _without_times(result: SimulationResult) -> str:
    """Whether it fits."""
    if not result.fits:
        return result.shortfall
    filled = (
        f"{use.tier} {counted(use.needed, use)} of {counted(use.capacity, use)}" for use in result.capacity
    )
    return f"fits: {', '.join(filled)}"
