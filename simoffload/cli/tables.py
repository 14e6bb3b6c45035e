"""Columns of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simoffload.errors import printable

__all__ = ["columns"]


def columns(rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Align cells below each other; the columns in ``right`` to the right, the rest to the left.

    Characters that a terminal would obey are escaped, since cells may come from files.
    """
    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )
    return "\n".join(lines)
