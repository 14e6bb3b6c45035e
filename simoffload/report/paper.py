"""Lines of a terminal: names at the left, tables and running text to the right of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from simoffload.errors import printable
from simoffload.report.columns import columns

__all__ = ["MARGIN", "Paper", "shortened"]

MARGIN = 10
"""Columns of the section names at the left."""
_SHORTEST_NAME = 16
"""Characters that a name in a table keeps."""


def shortened(text: str, width: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"


class Paper:
    """Lines under section names, with ANSI colours or without."""

    def __init__(self, *, color: bool, width: int) -> None:
        self.lines: list[str] = []
        self.width = max(60, width)
        self._color = color

    def ink(self, text: str, style: str) -> str:
        """The text in a style, if there are colours."""
        code = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}[style]
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and text else text

    def section(self, name: str, lines: Iterable[str]) -> None:
        """Lines to the right of a name."""
        for line in lines:
            self.lines.append((self.ink(name.ljust(MARGIN), "bold") + line).rstrip())
            name = ""

    def paragraph(self, name: str, text: str, style: str = "") -> None:
        """Running text to the right of a name."""
        lines = wrap(text, self.width - MARGIN, break_on_hyphens=False) or [""]
        self.section(name, (self.ink(line, style) if style else line for line in lines))

    def headed(self, table: Sequence[Sequence[str]], *, right: Sequence[int]) -> list[str]:
        """A table under its first row, cut where the paper ends; names are shortened to save numbers."""
        room, lines = self.width - MARGIN, columns(table, right=right)
        last = max(right, default=0) + 1
        over = max(map(len, columns([row[:last] for row in table], right=right))) - room
        if over > 0:
            names = [printable(row[0]) for row in table]
            longest = max(_SHORTEST_NAME, max(map(len, names)) - over)
            short = (shortened(name, longest) for name in names)
            lines = columns([[name, *row[1:]] for name, row in zip(short, table, strict=True)], right=right)
        head, *rows = (shortened(line.rstrip(), room) for line in lines)
        return [self.ink(head, "dim"), *rows]

    def detail(self, text: str) -> list[str]:
        """Running text under a row of a table."""
        return [self.ink("  " + line, "dim") for line in wrap(text, self.width - MARGIN - 2)]

    def wrapped(self, text: str) -> list[str]:
        """Running text, its later lines set in."""
        return wrap(text, self.width - MARGIN, subsequent_indent="  ", break_on_hyphens=False)

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"
