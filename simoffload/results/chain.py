"""The chain of operations that determined how long a run took.

Walking back from the last operation to whichever predecessor ended when it started gives a chain without
gaps or overlaps. In what a timeline records once and repeats, the walk itself repeats: once it comes to the
same operation some periods earlier, whole rounds are counted and not walked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from simoffload.results.timeline import Piece, Timeline
from simoffload.schedule import Op, Schedule

__all__ = ["Chain", "Link", "Place"]


class Place(NamedTuple):
    """An operation of a class of ranks, found in a timeline."""

    entry: int
    """Recorded entry."""
    copy: int
    """Periods after the recorded one."""
    end: int
    """[ps]"""


class Link(NamedTuple):
    """A part of the chain."""

    entry: int
    """Recorded entry."""
    times: int
    """How often the chain goes through it, one period earlier or later."""


class _Run(NamedTuple):
    """Consecutive operations of a lane, recorded once and repeated."""

    first: int
    """Index of the first among the recorded ones of the lane."""
    size: int
    times: int
    length: int
    ordinal: int
    """Of the first among all operations of the lane."""


class Chain:
    """Finds operations in a timeline, and their predecessors."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._recorded = timeline.recorded
        self._blocks = timeline.schedule.blocks
        self._classes = len(timeline.ranks_by_class)
        self._base, self._prefix = _counts(timeline.schedule)
        self._before_op: dict[tuple[int, int], tuple[tuple[int, int, int], ...]] = {}
        self._pieces = list(timeline.pieces())
        streams = len(timeline.schedule.streams)
        self._entries: list[list[list[int]]] = [[[] for _ in range(streams)] for _ in range(self._classes)]
        columns = zip(self._recorded.rank, self._recorded.block, self._recorded.position, strict=True)
        on = [[op.stream for op in block.ops] for block in self._blocks]
        for entry, (rank, block, position) in enumerate(columns):
            self._entries[rank][on[block][position]].append(entry)
        self._runs = [[self._cut(entries) for entries in lanes] for lanes in self._entries]
        self._reached = [[[run.ordinal for run in runs] for runs in lanes] for lanes in self._runs]
        self._begins = [piece.first for piece in self._pieces]

    def op(self, entry: int) -> Op:
        """The operation of a recorded entry."""
        return self._blocks[self._recorded.block[entry]].ops[self._recorded.position[entry]]

    def last(self, stream: int | None = None) -> Place:
        """What ends last, on a ``stream`` if one is named; of several the one that began first."""
        recorded = self._recorded
        best, least = Place(-1, 0, -1), (0, 0)
        for piece in self._pieces:
            copy = piece.times - 1
            later = copy * piece.length
            ends = recorded.end[piece.first : piece.last]
            latest = max(ends) + later if stream is None else 0  # what ends earlier need not be looked at
            for entry, first_end in enumerate(ends, piece.first):
                end = first_end + later
                if end < latest or end < best.end:
                    continue
                if stream is not None and self.op(entry).stream != stream:
                    continue
                key = recorded.start[entry] + later, recorded.rank[entry]
                if end > best.end or key < least:
                    best, least = Place(entry, copy, end), key
        return best

    def walk(self, last: Place) -> list[Link]:
        """The chain that ends with ``last``, from its end to its beginning."""
        chain: list[Link] = []
        met: dict[int, tuple[int, int]] = {}  # entry -> (copy, length of the chain) when it was come to
        place: Place | None = last
        copy = last.copy
        while place is not None:
            if place.copy < copy:
                known = met.get(place.entry)
                if known is None:
                    met[place.entry] = place.copy, len(chain)
                else:
                    place = self._skip(chain, place, *known)
                    met.clear()
            elif place.copy > copy:  # another period's copies are counted anew
                met.clear()
            copy = place.copy
            chain.append(Link(place.entry, 1))
            place = self._before(place)
        return chain

    def _skip(self, chain: list[Link], place: Place, copy: int, since: int) -> Place:
        """Count rounds of the chain's last part, up to where the walk might reach what was before."""
        piece = self._piece(place.entry)
        round_ = copy - place.copy
        rounds = (place.copy - self._reach(piece)) // round_
        if rounds < 1:
            return place
        chain[since:] = [Link(entry, times * (1 + rounds)) for entry, times in chain[since:]]
        earlier = rounds * round_
        return Place(place.entry, place.copy - earlier, place.end - earlier * piece.length)

    def _reach(self, piece: Piece) -> int:
        """Periods of a piece that its operations' dependencies may reach back, and one."""
        block = self._recorded.block[piece.first]
        _, counts = self._base[block]
        backs = (
            -(-(back + 1) // counts[stream])
            for op in self._blocks[block].ops
            for stream, back in op.after
            if counts[stream]
        )
        return 2 + -(-max(backs, default=1) // piece.iterations)

    def _before(self, place: Place) -> Place | None:
        """The predecessor that ended last; for a collective, on whichever rank came last."""
        recorded, (entry, copy, _) = self._recorded, place
        own, block, position = recorded.rank[entry], recorded.block[entry], recorded.position[entry]
        iteration, start = recorded.iteration[entry], recorded.start[entry]
        if copy:
            piece = self._piece(entry)
            iteration += copy * piece.iterations
            start += copy * piece.length
        op = self._blocks[block].ops[position]
        before = self._before_op.get((block, position))
        if before is None:
            before = self._before_op[block, position] = self._predecessors(block, position)
        ranks = (own, *range(self._classes)) if op.collective and self._classes > 1 else (own,)
        best: tuple[int, int, int] | None = None
        ends = recorded.end
        for rank in ranks:
            entries, reached = self._entries[rank], self._reached[rank]
            for stream, first, step in before:
                ordinal = first + iteration * step
                if ordinal < 0:
                    continue
                if reached[stream] and ordinal >= reached[stream][0]:
                    found = self._find(rank, stream, ordinal)
                else:  # before anything repeats
                    known = entries[stream][ordinal]
                    found = known, 0, ends[known]
                if found[2] == start:  # none ends later
                    return Place(*found)
                if best is None or found[2] > best[2]:
                    best = found
        return None if best is None else Place(*best)

    def _predecessors(self, block: int, position: int) -> tuple[tuple[int, int, int], ...]:
        """Streams of what has to be done before, its ordinal for iteration 0 and how it grows from there."""
        first, counts = self._base[block]
        written = self._prefix[block][position]
        op = self._blocks[block].ops[position]
        return tuple(
            [
                (stream, first[stream] + written[stream] - 1 - back, counts[stream])
                for stream, back in ((op.stream, 0), *op.after)
            ]
        )

    def _piece(self, entry: int) -> Piece:
        return self._pieces[bisect_left(self._begins, entry + 1) - 1]

    def _find(self, rank: int, stream: int, ordinal: int) -> tuple[int, int, int]:
        """The place of the operation of a lane that was its number ``ordinal``, from 0, in a run or later."""
        entries, ends = self._entries[rank][stream], self._recorded.end
        number = bisect_right(self._reached[rank][stream], ordinal) - 1
        first, size, times, length, begin = self._runs[rank][stream][number]
        if ordinal < begin + size * times:
            copy, index = divmod(ordinal - begin, size)
            entry = entries[first + index]
            return entry, copy, ends[entry] + copy * length
        entry = entries[first + size + ordinal - begin - size * times]
        return entry, 0, ends[entry]

    def _cut(self, entries: list[int]) -> list[_Run]:
        runs: list[_Run] = []
        more = 0
        for first, last, times, _, length in self._pieces:
            if times > 1:
                begin = bisect_left(entries, first)
                if size := bisect_left(entries, last) - begin:
                    runs.append(_Run(begin, size, times, length, begin + more))
                    more += size * (times - 1)
        return runs


def _counts(schedule: Schedule) -> tuple[list[tuple[list[int], list[int]]], list[list[list[int]]]]:
    """Per block: operations written before it and per iteration; per operation: written before it inside."""
    running = [0] * len(schedule.streams)
    base, prefix = [], []
    for block in schedule.blocks:
        inside = [0] * len(schedule.streams)
        rows = []
        for op in block.ops:
            rows.append(inside.copy())
            inside[op.stream] += 1
        base.append((running.copy(), inside))
        prefix.append(rows)
        running = [count + block.repeat * more for count, more in zip(running, inside, strict=True)]
    return base, prefix
