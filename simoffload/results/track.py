"""What one stream of one rank did, one operation after the other.

What repeats is held once and counted. An operation is named by its ordinal, its number on its stream from 0,
or by its place: the entry that holds it and the copy of that entry, 0 for what is held itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simoffload.schedule.program import Step

__all__ = ["Piece", "Repeat", "Track"]


class Repeat(NamedTuple):
    """Entries that are held once and happen ``times`` times more after themselves."""

    first: int
    """Index of the first entry."""
    size: int
    """Entries."""
    times: int
    length: int
    """[ps] by which each copy is later than the one before."""
    ordinal: int
    """Of the first entry, in what is held."""
    window: int
    """Number of the steady state, the same on all tracks."""

    @property
    def last(self) -> int:
        """The entry after the last one."""
        return self.first + self.size


class Piece(NamedTuple):
    """Entries from ``first`` to before ``last``, which happen ``times`` times, one after the other."""

    first: int
    last: int
    ordinal: int
    """Of the first entry the first time."""
    times: int = 1
    length: int = 0


@dataclass(frozen=True, slots=True)
class Track:
    """Operations in order, as columns."""

    rank: int
    """The class of ranks (an index into ``Timeline.classes``)."""
    stream: int
    steps: Sequence[Step]
    start: array[int]
    """[ps]"""
    end: array[int]
    """[ps]"""
    after: array[int]
    """What each began at the end of: ``ordinal * tracks + track``, the last of what it waited for; -1 is the
    one before it on its own stream, or nothing for the first. Of a copy it is as many copies later."""
    repeats: tuple[Repeat, ...] = ()

    def __len__(self) -> int:
        """Operations."""
        return len(self.end) + sum([repeat.times * repeat.size for repeat in self.repeats])

    def pieces(self) -> Iterator[Piece]:
        """The entries in order, cut where what repeats begins and ends."""
        begin = ordinal = 0
        for first, size, times, length, _, _ in self.repeats:
            if first > begin:
                yield Piece(begin, first, ordinal)
                ordinal += first - begin
            yield Piece(first, first + size, ordinal, times + 1, length)
            ordinal += size * (times + 1)
            begin = first + size
        if begin < len(self.end):
            yield Piece(begin, len(self.end), ordinal)

    def find(self, ordinal: int) -> tuple[int, int]:
        """The entry that holds an operation, and which of its copies it is. Raises IndexError."""
        if self.repeats and ordinal >= self.repeats[0].ordinal:
            number = bisect_right(self.repeats, ordinal, key=_ordinal) if len(self.repeats) > 1 else 1
            first, size, times, _, begin, _ = self.repeats[number - 1]
            copy, index = divmod(ordinal - begin, size)
            if copy <= times:
                return first + index, copy
            ordinal = first + ordinal - begin - size * times
        if not 0 <= ordinal < len(self.end):
            raise IndexError(ordinal)
        return ordinal, 0

    def ordinal(self, entry: int, copy: int) -> int:
        """The ordinal of the operation at a place."""
        before = entry
        for repeat in self.repeats:
            if entry < repeat.last:
                return before + (copy * repeat.size if entry >= repeat.first else 0)
            before += repeat.times * repeat.size
        return before

    def repeat_of(self, entry: int) -> Repeat | None:
        """The repeat in which an entry lies, if any."""
        return next((one for one in self.repeats if one.first <= entry < one.last), None)

    def start_of(self, ordinal: int) -> int:
        """[ps]. Raises IndexError."""
        entry, copy = self.find(ordinal)
        return self.start[entry] + self._later(entry, copy)

    def end_of(self, ordinal: int) -> int:
        """[ps]. Raises IndexError."""
        entry, copy = self.find(ordinal)
        return self.end[entry] + self._later(entry, copy)

    def _later(self, entry: int, copy: int) -> int:
        repeat = self.repeat_of(entry) if copy else None
        return copy * repeat.length if repeat else 0


def _ordinal(repeat: Repeat) -> int:
    return repeat.ordinal
