"""The chain of operations that determined how long a run took.

Every operation began at the end of another one. Walking back from the last gives a chain without gaps or
overlaps. In what a timeline holds once and repeats, the walk itself repeats: once it comes to the same
operation some periods earlier, whole rounds are counted and not walked.
"""

from __future__ import annotations

from typing import NamedTuple

from simoffload.results.timeline import Timeline
from simoffload.results.track import Track

__all__ = ["Part", "Place", "last_of", "walk"]


class Place(NamedTuple):
    """An operation of a class of ranks, found in a timeline."""

    track: int
    """Index into ``Timeline.tracks``."""
    entry: int
    copy: int
    """Periods after the one that is held."""


class Part(NamedTuple):
    """A part of the chain."""

    track: int
    entry: int
    times: int
    """How often the chain goes through it, one period earlier or later."""


def last_of(timeline: Timeline, stream: int | None = None) -> Place | None:
    """What ends last, on a ``stream`` if one is named; of several the one that began first."""
    best: tuple[int, int, Place] | None = None  # -end, start, place: the least one
    for number, track in enumerate(timeline.tracks):
        if not track.end or stream not in (None, track.stream):
            continue
        ordinal = len(track) - 1
        end = track.end_of(ordinal)
        while ordinal and track.end_of(ordinal - 1) == end:
            ordinal -= 1
        found = -end, track.start_of(ordinal), Place(number, *track.find(ordinal))
        best = found if best is None else min(best, found)
    return best[2] if best else None


def walk(timeline: Timeline, last: Place) -> list[Part]:
    """The chain that ends with ``last``, from its end to its beginning."""
    walker = _Walker(timeline)
    chain: list[Part] = []
    met: dict[tuple[int, int], tuple[int, int]] = {}  # -> (copy, length of the chain) when it was come to
    track, entry, copy = last
    while entry >= 0:
        chain.append(Part(track, entry, 1))
        before = copy
        track, entry, copy = walker.before(track, entry, copy)
        if copy < before:
            known = met.get((track, entry))
            if known is None:
                met[track, entry] = copy, len(chain)
            else:
                copy = walker.skip(chain, track, entry, copy, *known)
                met.clear()
        elif copy > before:  # another period's copies are counted anew
            met.clear()
    return chain


class _Walker:
    """Steps from an operation to the one at whose end it began."""

    def __init__(self, timeline: Timeline) -> None:
        self._tracks: tuple[Track, ...] = timeline.tracks
        self._number = len(timeline.tracks)
        self._firsts = [{repeat.first: repeat for repeat in track.repeats} for track in timeline.tracks]
        self._lasts = [{repeat.last: repeat for repeat in track.repeats} for track in timeline.tracks]
        self._windows = [{repeat.window: repeat for repeat in track.repeats} for track in timeline.tracks]

    def before(self, number: int, entry: int, copy: int) -> tuple[int, int, int]:
        """Track, entry and copy; entry -1 before the first operation."""
        track = self._tracks[number]
        after = track.after[entry]
        if after < 0:
            if copy:
                repeat = self._firsts[number].get(entry)
                return (number, entry - 1, copy) if repeat is None else (number, repeat.last - 1, copy - 1)
            repeat = self._lasts[number].get(entry)
            return (number, entry - 1, repeat.times if repeat is not None else 0)
        ordinal, number = divmod(after, self._number)
        if copy:
            repeat = self._windows[number].get(self._window(track, entry))
            ordinal += copy * repeat.size if repeat is not None else 0
        entry, copy = self._tracks[number].find(ordinal)
        return number, entry, copy

    @staticmethod
    def _window(track: Track, entry: int) -> int:
        """Of the steady state in which a repeated entry lies."""
        repeat = track.repeat_of(entry)
        assert repeat is not None
        return repeat.window

    def skip(self, chain: list[Part], number: int, entry: int, copy: int, met: int, since: int) -> int:
        """Count rounds of the chain's last part, up to where the walk might reach what was before; the copy
        from which it goes on. It was at that entry in the copy ``met`` when the chain had ``since`` parts."""
        rounds = (copy - self._reach(self._window(self._tracks[number], entry))) // (met - copy)
        if rounds < 1:
            return copy
        chain[since:] = [part._replace(times=part.times * (1 + rounds)) for part in chain[since:]]
        return copy - rounds * (met - copy)

    def _reach(self, window: int) -> int:
        """Periods of a steady state that its operations reach back, at most."""
        most = 1
        for track, windows in zip(self._tracks, self._windows, strict=True):
            repeat = windows.get(window)
            for after in track.after[repeat.first : repeat.last] if repeat is not None else ():
                if after >= 0:
                    ordinal, number = divmod(after, self._number)
                    other = self._windows[number].get(window)
                    if other is not None and ordinal < other.ordinal:
                        most = max(most, -((ordinal - other.ordinal) // other.size))
        return most
