"""The sentence that answers, of parts of which a narrow place leaves out some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

LONGEST = 200
"""Length of a sentence [characters] that is read at a glance: our choice."""


class VerdictPart(NamedTuple):
    """A VerdictPart of a sentence has its own separator before it."""

    text: str
    rank: int = 1
    """How early it is left out: the largest first, and 0 never."""
    tabled: bool = False
    """Whether tables of a terminal tell it, too."""


class Verdict(str):
    """A Verdict is a sentence as long as is read at a glance, which knows its parts."""

    parts: tuple[VerdictPart, ...]

    @classmethod
    def of(cls, first: str | VerdictPart, *more: VerdictPart) -> Self:
        """Return the sentence of parts, with a full stop, in the order of reading."""
        parts = (first if isinstance(first, VerdictPart) else VerdictPart(first, 0), *more)
        found = cls(_shortened(parts, lambda text: len(text) <= LONGEST))
        found.parts = parts
        return found

    @property
    def in_full(self) -> str:
        """The sentence with all its parts."""
        return _sentence(self.parts)

    def within(self, fits: Callable[[str], bool]) -> str:
        """Return the sentence without the parts for which there is no room: first what tables tell, then the
        least important parts, then the last words."""
        text = str(self)
        if fits(text):
            return text
        return _shortened(tuple(part for part in self.parts if not part.tabled), fits)


def _sentence(parts: Sequence[VerdictPart]) -> str:
    return f"{''.join(part.text for part in parts)}."


def _shortened(parts: tuple[VerdictPart, ...], fits: Callable[[str], bool]) -> str:
    while not fits(_sentence(parts)) and any(part.rank for part in parts):
        _, last = max((part.rank, at) for at, part in enumerate(parts))
        parts = (*parts[:last], *parts[last + 1 :])
    text = _sentence(parts)
    while not fits(text) and " " in text:
        text = text.rpartition(" ")[0].rstrip(",;:…") + "…"
    return text
