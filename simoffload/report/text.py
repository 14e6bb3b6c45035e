"""Results as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap

from simoffload.errors import printable
from simoffload.report.columns import columns
from simoffload.report.comparison import Group, Published, Row, groups, in_common, warnings
from simoffload.report.phrases import (
    alike,
    bottleneck,
    bound,
    counted,
    group_links,
    headline,
    metric_rows,
    milliseconds,
    origins,
    percent,
    step_time,
    verdict,
)
from simoffload.results.capacity import TierUse
from simoffload.results.passes import PassResult
from simoffload.results.result import FORMULAS, SimulationResult
from simoffload.units import format_bytes, format_rate, format_seconds

__all__ = ["compare_text", "result_text"]

_MARGIN = 10
"""Columns of the section names at the left."""
_MAX_LINKS = 8
_LEGEND = f"ms/token = {FORMULAS['per_token_s']}; bound = fraction of the speed of light that a step reaches"


class _Paper:
    """Lines under section names, with ANSI colours or without."""

    def __init__(self, *, color: bool, width: int) -> None:
        self.lines: list[str] = []
        self.width = max(60, width)
        self._color = color

    def ink(self, text: str, style: str) -> str:
        code = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}[style]
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and text else text

    def section(self, name: str, lines: Iterable[str]) -> None:
        """Lines to the right of a name."""
        for line in lines:
            self.lines.append((self.ink(name.ljust(_MARGIN), "bold") + line).rstrip())
            name = ""

    def paragraph(self, name: str, text: str, style: str = "") -> None:
        """Running text to the right of a name."""
        lines = wrap(text, self.width - _MARGIN, break_on_hyphens=False) or [""]
        self.section(name, (self.ink(line, style) if style else line for line in lines))

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def result_text(result: SimulationResult, *, color: bool = False, width: int = 100) -> str:
    """Describe one result: verdict, capacity, speed, causes, bound, links, warnings, origin of the inputs."""
    paper = _Paper(color=color, width=width)
    paper.lines += [paper.ink(line, "bold") for line in wrap(" · ".join(headline(result)), paper.width)]
    paper.paragraph("Verdict", verdict(result), "green" if result.fits else "red")
    paper.section("Capacity", _capacity(paper, result.capacity))
    if result.step is not None:
        paper.section("Speed", _speed(paper, result))
        paper.section("Why", _causes(paper, result.step))
        paper.paragraph("Bound", f"{bottleneck(result.step)}; {bound(result.step)}.", "bold")
        paper.section("Links", _links(paper, result.step))
    for warning in result.warnings:
        paper.paragraph("Warning", printable(warning), "yellow")
    paper.paragraph(
        "Inputs", f"{origins(result.provenance.origins) or 'none'}; errors on real runs: docs/VALIDATION.md"
    )
    return str(paper)


def _capacity(paper: _Paper, uses: Sequence[TierUse]) -> list[str]:
    table: list[tuple[str, ...]] = [("tier", "needed", "has", "free", "", "")]
    for use in uses:
        sizes = (counted(size, use) for size in (use.needed, use.capacity, use.headroom))
        table.append((printable(use.tier), *sizes, use.scope, "fits" if use.fits else "does not fit"))
    head, *rows = columns(table, right=(1, 2, 3))
    lines = [paper.ink(head.rstrip(), "dim")]
    for use, row in zip(uses, rows, strict=True):
        lines.append(row.rstrip() if use.fits else paper.ink(row.rstrip(), "red"))
        terms = ", ".join(
            f"{printable(term.name)} {counted(term.size, use)}{' (pinned)' if term.pinned else ''}"
            for term in use.terms
        )
        lines += (paper.ink("  " + line, "dim") for line in wrap(terms, paper.width - _MARGIN - 2))
    return lines


def _speed(paper: _Paper, result: SimulationResult) -> list[str]:
    rows = metric_rows(result)
    lines = columns([(key, value, "") for key, _, value in rows], right=(1,))
    told = []
    for (key, _, _), line in zip(rows, lines, strict=True):
        first, *rest = wrap(FORMULAS[key], max(20, paper.width - _MARGIN - len(line)))
        told.append(line + paper.ink(first, "dim"))
        told += (" " * len(line) + paper.ink(more, "dim") for more in rest)
    return told


def _causes(paper: _Paper, step: PassResult) -> list[str]:
    table = [
        (f"{printable(step.name)}, {format_seconds(step.time_s)}", "exposed", "share", "busy", "held back by")
    ]
    for share in step.shares:
        part = percent(share.exposed_s / step.time_s)
        exposed, busy = format_seconds(share.exposed_s), format_seconds(share.busy_s)
        table.append((printable(share.cause), exposed, part, busy, printable(share.limit)))
    return _headed(paper, table, right=(1, 2, 3))


def _links(paper: _Paper, step: PassResult) -> list[str]:
    found = group_links(step.links)
    table = [("link", "moved", "busy", "full", "capacity")]
    for group in found[:_MAX_LINKS]:
        use = group.use
        times = (percent(use.busy_s / step.time_s), percent(use.saturated_s / step.time_s))
        table.append(
            (_short(alike(group.names), 48), format_bytes(use.size), *times, format_rate(use.capacity))
        )
    more = [f"and {len(found) - _MAX_LINKS} more"] if len(found) > _MAX_LINKS else []
    return [*_headed(paper, table, right=(1, 2, 3, 4)), *more]


def _headed(paper: _Paper, table: Sequence[Sequence[str]], *, right: Sequence[int]) -> list[str]:
    """A table under its first row, cut where the paper ends."""
    head, *rows = (_short(line.rstrip(), paper.width - _MARGIN) for line in columns(table, right=right))
    return [paper.ink(head, "dim"), *rows]


def compare_text(
    results: Sequence[SimulationResult],
    *,
    published: Mapping[str, Published] | None = None,
    baseline: str | None = None,
    color: bool = False,
    width: int = 100,
) -> str:
    """Tabulate several results, one table for each model; ``groups`` explains the arguments.

    Raises ValueError if ``baseline`` names no result.
    """
    paper = _Paper(color=color, width=width)
    found = groups(results, published=published, baseline=baseline)
    for group in found:
        if paper.lines:
            paper.lines.append("")
        title = " · ".join(in_common([row.result for row in group.rows]))
        paper.lines += [paper.ink(line, "bold") for line in wrap(title, paper.width)]
        paper.lines += _table(paper, group)
    if any(result.step for result in results):
        paper.lines += (paper.ink(line, "dim") for line in wrap(_LEGEND, paper.width))
    for text in warnings(found):
        paper.paragraph("Warning", text, "yellow")
    return str(paper)


def _table(paper: _Paper, group: Group) -> list[str]:
    with_published = any(row.published for row in group.rows)
    against = f"vs {_short(group.baseline, 12)}" if group.baseline else "ratio"
    names = ["weights", "TTFT", "step", "tokens/s", "ms/token", against, "published"]
    last = len(names) if with_published else len(names) - 1
    numbers = [names[:last], *([_short(row.label, 24), *_cells(row)][:last] for row in group.rows)]
    lines = columns(numbers, right=range(1, last))
    room = max(12, paper.width - len(lines[0]) - 2 - 2 - len("bound"))
    reasons = columns(
        [("bottleneck", "bound"), *(_reason(row.result, room) for row in group.rows)], right=(1,)
    )
    head, *rows = (f"{line}  {reason}".rstrip() for line, reason in zip(lines, reasons, strict=True))
    told = [paper.ink(head, "dim")] if any(row.result.step for row in group.rows) else []
    margin = max(len(cells[0]) for cells in numbers) + 2
    for row, line in zip(group.rows, rows, strict=True):
        told += [line] if row.result.step else _without_times(paper, row, margin)
    return told


def _cells(row: Row) -> list[str]:
    """TTFT, step, tokens/s, ms per token, ratio, published ratio."""
    result = row.result
    published = f"{row.published.ratio:.3g}×" if row.published else ""
    step = step_time(result)
    if step is None or result.ttft_s is None or not result.tokens_per_s or not result.per_token_s:
        return [""] * 5 + [published]
    return [
        format_seconds(result.ttft_s),
        format_seconds(step),
        f"{result.tokens_per_s:,.0f}" if result.tokens_per_s >= 100 else f"{result.tokens_per_s:.3g}",
        milliseconds(result.per_token_s),
        f"{row.ratio:.3g}×" if row.ratio is not None else "",
        published,
    ]


def _reason(result: SimulationResult, room: int) -> tuple[str, str]:
    """Bottleneck with its share, and the fraction of the bound that is reached."""
    step = result.step
    if step is None:
        return "", ""
    share = f" {percent(step.bottleneck.exposed_s / step.time_s)}"
    cause = _short(printable(step.bottleneck.cause), room - len(share))
    return cause + share, percent(step.bound_s / step.time_s)


def _without_times(paper: _Paper, row: Row, margin: int) -> list[str]:
    result = row.result
    if result.fits:
        filled = (
            f"{printable(use.tier)} {counted(use.needed, use)} of {counted(use.capacity, use)}"
            for use in result.capacity
        )
        text, style = f"fits: {', '.join(filled)}", "green"
    else:
        text, style = f"does not fit: {'; '.join(map(printable, result.advice))}", "red"
    first, *rest = wrap(text, paper.width - margin)
    told = [_short(row.label, 24).ljust(margin) + paper.ink(first, style)]
    return [*told, *(" " * margin + paper.ink(line, style) for line in rest)]
