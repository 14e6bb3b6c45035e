"""The comparison with published figures as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from simoffload.validation.published import PublishedRow, Value
from simoffload.validation.tables import Reference

__all__ = ["BEGIN", "END", "insert_tables", "tables"]

BEGIN = "<!-- tables: written by python -m simoffload.validation -->"
END = "<!-- end of tables -->"
_HEAD = """\
| id | simulated | predicted | published | error | bar | holds | note |
|---|---|---:|---:|---:|---|---|---|
"""


def tables(rows: Sequence[PublishedRow]) -> str:
    """One table a publication."""
    parts = []
    for _, group in groupby(rows, key=lambda row: row.reference.publication):
        rows_of_group = list(group)
        first = rows_of_group[0].reference
        parts.append(
            f"### {first.source}\n\n{_summary(rows_of_group)}\n\n{_HEAD}"
            + "\n".join(map(_line, rows_of_group))
        )
    return "\n\n".join(parts) + "\n"


def _summary(rows: Sequence[PublishedRow]) -> str:
    judged = [row for row in rows if row.holds is not None]
    held = sum(1 for row in judged if row.holds)
    return f"{held} of {len(judged)} bars hold; {len(rows) - len(judged)} figures are only set side by side."


def _line(row: PublishedRow) -> str:
    reference = row.reference
    where = _simulated(reference)
    cells = (
        reference.id,
        where,
        _value(row.predicted, reference.metric),
        f"{_value(_published(row), reference.metric)} {reference.unit}".strip(),
        "" if row.error is None else f"{row.error:+.1%}",
        _bar(row),
        {True: "yes", False: "**no**", None: ""}[row.holds],
        reference.note,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _simulated(reference: Reference) -> str:
    """The scenario and where its weights are; in training, where more is changed, how it was changed."""
    where = reference.scenario
    if reference.target:
        where += f" on {reference.target}"
    elif reference.overrides:
        where += f": {reference.overrides.replace(';', '; ')}"
    return f"{where} over {reference.relative_to}" if reference.relative_to else where


def _published(row: PublishedRow) -> Value:
    return row.reference.published if row.reference.metric == "order" else float(row.reference.published)


def _value(value: Value, metric: str) -> str:
    if value is None:
        return "does not fit"
    if metric == "fits":
        return "fits" if value else "does not fit"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _bar(row: PublishedRow) -> str:
    tolerance = row.reference.tolerance
    return {
        "within": f"±{100 * float(tolerance):g}%" if row.reference.rule == "within" else "",
        "factor": f"factor {tolerance}",
        "between": tolerance,
        "at_most": "at most",
        "at_least": "at least",
        "equal": "equal",
        "report": "",
    }[row.reference.rule]


def insert_tables(text: str, written: str, *, begin: str = BEGIN, end: str = END) -> str:
    """Put the tables between the marks of a page.

    Raises ValueError for a page without the marks.
    """
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f'the page lacks the marks "{begin}" and "{end}"')
    return f"{before}{begin}\n\n{written}\n{end}{after}"
