"""The recorded execution of one schedule, and the operations of each stream of each rank.

Repeated operations are recorded once with a count; equal ranks are recorded as one. Iterating over a
timeline, or reading a column, produces all operations; reading tracks or parts does not. An operation of a
track is identified by its ordinal, which is its number on its stream from 0, or by its place: the recorded
entry, and the number of the copy of this entry, 0 for the original.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from simoffload.schedule import CompiledOp, Op, Schedule, steps_of


class Repeat(NamedTuple):
    """A Repeat is a range of recorded entries that is followed by ``times`` copies of itself."""

    first: int
    """Index of the first repeated entry."""
    size: int
    """Number of entries that repeat."""
    times: int
    length: int
    """Time between the beginnings of consecutive copies [ps]."""
    ordinal: int
    """Ordinal of the first entry among the recorded ones."""
    window: int
    """Number of the steady state, the same on all tracks."""

    @property
    def last(self) -> int:
        """Number of the first entry after the repeated ones."""
        return self.first + self.size


_ordinal = attrgetter("ordinal")


class Piece(NamedTuple):
    """A Piece is the entries from ``first`` to before ``last``, which occur ``times`` times in sequence."""

    first: int
    last: int
    ordinal: int
    """Ordinal of the first entry at its first occurrence."""
    times: int = 1
    length: int = 0


@dataclass(frozen=True, slots=True)
class Track:
    """A Track has the operations of one stream of one class of ranks in order, as columns."""

    rank: int
    """Class of ranks, as an index into ``Timeline.classes``."""
    stream: int
    steps: Sequence[CompiledOp]
    start: array[int]
    """Start time of each operation [ps]."""
    end: array[int]
    """End time of each operation [ps]."""
    after: array[int]
    """Predecessor of each operation, the one whose end let it begin, as ``ordinal * tracks + track``.

    -1 is the operation before it on its own stream, or none for the first one. The predecessor of a copy is
    the same number of copies later.
    """
    repeats: tuple[Repeat, ...] = ()

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.end) + sum([repeat.times * repeat.size for repeat in self.repeats])

    def pieces(self) -> Iterator[Piece]:
        """Yield the entries in order, split at the start and the end of every repeated section."""
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
        """Return the entry and the copy that an ordinal identifies. Raises IndexError."""
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
        """Return the ordinal of the operation at a place."""
        before = entry
        for repeat in self.repeats:
            if entry < repeat.last:
                return before + (copy * repeat.size if entry >= repeat.first else 0)
            before += repeat.times * repeat.size
        return before

    def repeat_of(self, entry: int) -> Repeat | None:
        """Return the repeat that contains an entry, if any."""
        for one in self.repeats:
            if one.first <= entry < one.first + one.size:
                return one
        return None

    def start_of(self, ordinal: int) -> int:
        """Return the start [ps] of an operation. Raises IndexError."""
        entry, copy = self.find(ordinal)
        return self.start[entry] + self._later(entry, copy)

    def end_of(self, ordinal: int) -> int:
        """Return the end [ps] of an operation. Raises IndexError."""
        entry, copy = self.find(ordinal)
        return self.end[entry] + self._later(entry, copy)

    def _later(self, entry: int, copy: int) -> int:
        repeat = self.repeat_of(entry) if copy else None
        return copy * repeat.length if repeat else 0


class Interval(NamedTuple):
    """An Interval is one executed operation on one rank."""

    rank: int
    block: int
    iteration: int
    op: Op
    start: int
    """Start time of the operation [ps]."""
    end: int
    """End time of the operation [ps]."""


class Columns(NamedTuple):
    """Columns hold one entry per operation, in order of completion; times are integer picoseconds."""

    rank: array[int]
    block: array[int]
    iteration: array[int]
    position: array[int]
    """Index of each operation in ``Block.ops``."""
    start: array[int]
    end: array[int]


class SkippedPeriods(NamedTuple):
    """SkippedPeriods is a number of complete periods that were added up instead of simulated."""

    block: int
    """Index of the block in ``Schedule.blocks``."""
    name: str
    iteration: int
    """Iteration of the block at whose end the state equalled that of ``period`` iterations before."""
    period: int
    """Number of iterations in a period."""
    length: int
    """Length of a period [ps]."""
    times: int
    """Number of periods that were skipped."""


class How(NamedTuple):
    """How states which shortcuts were used to make a timeline; none of them changes a time."""

    skipped: tuple[SkippedPeriods, ...] = ()
    separate_ranks: str = ""
    """Reason why all ranks were simulated separately; "" if equal ranks were simulated as one."""
    not_steady: tuple[str, ...] = ()
    """Reasons, by block, why repeated iterations were simulated one by one."""


class PassWork(NamedTuple):
    """PassWork counts the operations of a pass, and those that were simulated."""

    name: str
    operations: int
    """Number of operations on all ranks."""
    run: int
    """Number of operations that were simulated, without copies."""
    how: How


@dataclass(slots=True)
class Timeline:
    """A Timeline holds start and end of every executed operation, and the load of every link."""

    schedule: Schedule
    tracks: tuple[Track, ...] = ()
    """Operations of each stream of each class of ranks, by class, in the order of its streams."""
    classes: tuple[tuple[int, ...], ...] = ()
    """Ranks with the same operations at the same times, by class; () = each rank is a class of its own."""
    makespan: int = 0
    """End of the last operation [ps]."""
    link_loads: tuple[int, ...] = ()
    """[B x coefficient] that crossed each link."""
    link_busy: tuple[int, ...] = ()
    """[ps] in which at least one transfer used each link."""
    link_saturated: tuple[int, ...] = ()
    """[ps] in which each link was used to its capacity (within its rounding)."""
    shared: frozenset[int] = frozenset()
    """Routes on which the rate of a transfer may depend on other transfers; on all others it is constant."""
    constant_rates: bool = True
    """Whether every transfer kept its initial rate."""
    how: How = field(default_factory=How)
    _expanded: Columns | None = field(default=None, compare=False, repr=False)
    _steps: list[list[CompiledOp]] | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        """Return the number of operations, repeated ones included."""
        return sum([len(track) * len(self.ranks_by_class[track.rank]) for track in self.tracks])

    def __iter__(self) -> Iterator[Interval]:
        """Yield every operation in order of completion; those that end at the same time in the order of the
        program."""
        blocks = self.schedule.blocks
        for end, block, iteration, position, rank, start in merge(*self._rows()):
            yield Interval(rank, block, iteration, blocks[block].ops[position], start, end)

    @property
    def ranks_by_class(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of every class, the lowest first."""
        return self.classes or tuple([(rank,) for rank in range(self.schedule.ranks)])

    @property
    def link_bytes(self) -> tuple[int, ...]:
        """[B x coefficient / scale] that crossed each link, rounded down."""
        pairs = zip(self.link_loads, self.schedule.links, strict=True)
        return tuple([load // link.scale for load, link in pairs])

    @property
    def entries(self) -> int:
        """Number of recorded entries; repeated ones are counted once."""
        return sum([len(track.end) for track in self.tracks])

    def tracks_of(self, rank: int) -> tuple[Track, ...]:
        """Return the tracks of the streams of a rank. Raises KeyError if there is no such rank."""
        own = next((number for number, ranks in enumerate(self.ranks_by_class) if rank in ranks), None)
        if own is None:
            raise KeyError(rank)
        return tuple([track for track in self.tracks if track.rank == own])

    def during(self, start: int, end: int, *, rank: int = 0) -> list[Interval]:
        """Return the operations of a rank between two times [ps], in order of completion, except those
        without duration."""
        rows = [
            row
            for track in self.tracks_of(rank)
            for piece in track.pieces()
            for entry in range(piece.first, piece.last)
            if track.start[entry] < track.end[entry]
            for row in _rows_of(track, rank, piece, entry, _overlapping(track, piece, entry, start, end))
        ]
        blocks = self.schedule.blocks
        return [
            Interval(rank, block, iteration, blocks[block].ops[position], began, ended)
            for ended, block, iteration, position, _, began in sorted(rows)
        ]

    def start_of(self, block: int, iteration: int, position: int, *, rank: int | None = None) -> int:
        """Return the time [ps] at which a rank began an operation, by default the first rank of its program.
        Raises KeyError if there is none."""
        blocks = self.schedule.blocks
        if not (
            0 <= block < len(blocks)
            and 0 <= iteration < blocks[block].repeat
            and 0 <= position < len(blocks[block].ops)
        ):
            raise KeyError((block, iteration, position, rank))
        if self._steps is None:
            self._steps = steps_of(self.schedule)
        step = self._steps[block][position]
        ranks = self.schedule.owners[step.op.stream].ranks
        for track in self.tracks_of(ranks.start if rank is None else rank):
            if track.stream == step.op.stream:
                return track.start_of(step.first + iteration * step.per_iteration)
        raise KeyError((block, iteration, position, rank))

    # -- everything written out -----------------------------------------------------------------

    @property
    def all_operations(self) -> Columns:
        """All operations as columns, one row per rank and operation; large if much repeats."""
        if self._expanded is None:
            rows = [*zip(*sorted(chain(*self._rows())), strict=True)] or [()] * 6
            end, block, iteration, position, rank, start = rows
            self._expanded = Columns(
                array("H", rank),
                array("I", block),
                array("I", iteration),
                array("I", position),
                array("q", start),
                array("q", end),
            )
        return self._expanded

    def _rows(self) -> list[Iterator[_Row]]:
        """Return the rows of every track and rank, each in order."""
        return [
            _all_rows(track, rank)
            for track in self.tracks
            for rank in self.ranks_by_class[track.rank]
            if track.end
        ]


_Row = tuple[int, int, int, int, int, int]
"""(end, block, iteration, position, rank, start); sorted, rows are in order of completion, program and
rank."""


def _all_rows(track: Track, rank: int) -> Iterator[_Row]:
    steps, ends, starts = track.steps, track.end, track.start
    for piece in track.pieces():
        size = piece.last - piece.first
        for copy in range(piece.times):
            later, ordinal = copy * piece.length, piece.ordinal - piece.first + copy * size
            for entry in range(piece.first, piece.last):
                step = steps[entry]
                iteration = step.iteration(ordinal + entry)
                yield ends[entry] + later, step.block, iteration, step.position, rank, starts[entry] + later


def _rows_of(track: Track, rank: int, piece: Piece, entry: int, copies: range) -> Iterator[_Row]:
    """Yield the copies of an entry, one row each."""
    step = track.steps[entry]
    size = piece.last - piece.first
    for copy in copies:
        iteration = step.iteration(piece.ordinal + entry - piece.first + copy * size)
        later = copy * piece.length
        end, start = track.end[entry] + later, track.start[entry] + later
        yield end, step.block, iteration, step.position, rank, start


def _overlapping(track: Track, piece: Piece, entry: int, start: int, end: int) -> range:
    """Return the copies of an operation that overlap with a span of time."""
    began, ended = track.start[entry], track.end[entry]
    if not piece.length:
        return range(piece.times if began < end and ended > start else 0)
    # began + copy * length < end and ended + copy * length > start
    first, last = (start - ended) // piece.length + 1, -((began - end) // piece.length)
    return range(max(0, first), min(piece.times, last))
