"""Columns of text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from simoffload.errors import printable

__all__ = ["columns"]

_GAP = "  "


def columns(rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Align cells below each other, two spaces apart; the columns in ``right`` to the right.

    Every line is as wide as the table. Characters that a terminal would obey are escaped, since cells may
    come from files.
    """
    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
