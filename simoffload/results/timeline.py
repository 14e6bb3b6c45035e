"""The recorded execution of one schedule, and the operations of each stream of each rank.

Repeated operations are recorded once with a count; equal ranks are recorded as one. Iterating over a
timeline, or reading a column, produces all operations; reading tracks or parts does not. An operation of a
track is identified by its ordinal, which is its number on its stream from 0, or by its place: the recorded
entry, and the number of the copy of this entry, 0 for the original.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple

from simoffload.brief import brief
from simoffload.schedule import CompiledOp, CompiledSchedule, Op, Schedule


class WindowSequence(NamedTuple):
    """A WindowSequence is some windows of a run that take place one after the other, ``times`` times."""

    windows: tuple[int, ...]
    times: int
    later: tuple[int, ...]
    """Time from each window when it was recorded to its first occurrence here [ps]."""
    length: int
    """Time of one occurrence of all of them [ps]."""


class Order(NamedTuple):
    """An Order states in which order the windows of a run, which were each recorded once, take place."""

    items: tuple[WindowSequence, ...]
    begins: tuple[int, ...]
    """Begin of every window when it was recorded, which is when it took place first [ps]."""

    @classmethod
    def of(cls, phrases: Sequence[tuple[tuple[int, ...], int]], lengths: Sequence[int]) -> Order:
        """Return the order from the windows of each item, and how often they take place, and the ``lengths``
        of the windows [ps]."""
        time, begins, items = 0, [-1] * len(lengths), []
        for windows, times in phrases:
            later, begin = [], time
            for window in windows:
                if begins[window] < 0:
                    begins[window] = time
                later.append(time - begins[window])
                time += lengths[window]
            items.append(WindowSequence(windows, times, tuple(later), time - begin))
            time += (times - 1) * (time - begin)
        return cls(tuple(items), tuple(begins))

    @property
    def times(self) -> list[int]:
        """How often every window takes place."""
        times = [0] * len(self.begins)
        for item in self.items:
            for window in item.windows:
                times[window] += item.times
        return times


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


class Piece(NamedTuple):
    """A Piece is the entries from ``first`` to before ``last``, which take place ``times`` times."""

    first: int
    last: int
    ordinal: int
    """Ordinal of the first entry at its first occurrence."""
    times: int
    step: int
    """Number of operations from one occurrence to the next."""
    length: int
    """Time from one occurrence to the next [ps]."""
    later: int
    """Time from the recorded entries to their first occurrence [ps]."""


class OperationPlace(NamedTuple):
    """An OperationPlace is that of an operation in the order of windows."""

    item: int
    round: int
    """Number of the occurrence of the item, from 0."""
    slot: int
    """Index of the window in the item."""
    entry: int


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
    as many operations later as the window of the copy begins later on the track of the predecessor.
    """
    items: tuple[WindowSequence, ...] = ()
    """Order of the windows, the same for all tracks; () = one window with all entries."""
    spans: tuple[tuple[int, int], ...] = ()
    """First entry, and entry after the last, of every window."""
    ordinals: list[list[int]] = field(init=False, compare=False, repr=False)
    """By item, ordinal of the first entry of each of its windows at its first occurrence, and the one after
    the last."""
    recorded: list[int] = field(init=False, compare=False, repr=False)
    """Ordinal of the first entry of every window when it was recorded."""
    firsts: list[int] = field(init=False, compare=False, repr=False)
    """Ordinal of the first entry of every item."""
    repeats: tuple[Repeat, ...] = field(init=False, compare=False, repr=False)
    """Ranges of entries that repeat, if copies only follow immediately on what they copy."""

    def __post_init__(self) -> None:
        """Count the operations of all windows."""
        keep = object.__setattr__
        if not self.items:
            keep(self, "items", (WindowSequence((0,), 1, (0,), 0),))
            keep(self, "spans", ((0, len(self.end)),))
        sizes = [last - first for first, last in self.spans]
        recorded, ordinals, ordinal = [-1] * len(sizes), [], 0
        for windows, times, _, _ in self.items:
            own = [ordinal, *accumulate([sizes[window] for window in windows], initial=ordinal)][1:]
            for window, begin in zip(windows, own, strict=False):
                if recorded[window] < 0:
                    recorded[window] = begin
            ordinals.append(own)
            ordinal += times * (own[-1] - ordinal)
        keep(self, "ordinals", ordinals)
        keep(self, "recorded", recorded)
        keep(self, "firsts", [own[0] for own in ordinals])
        keep(self, "repeats", tuple(self._repeats()) if self.is_simple else ())

    def _repeats(self) -> Iterator[Repeat]:
        for number, ((windows, times, _, length), own) in enumerate(
            zip(self.items, self.ordinals, strict=True)
        ):
            first, last = self.spans[windows[0]]
            if times > 1 and last > first:
                yield Repeat(first, last - first, times - 1, length, own[0], number)

    def __len__(self) -> int:
        """Return the number of operations."""
        begin, *_, end = self.ordinals[-1]
        return begin + self.items[-1].times * (end - begin)

    @property
    def is_simple(self) -> bool:
        """Whether copies only follow immediately on what they copy."""
        return len(self.items) == len(self.spans)

    def pieces(self) -> Iterator[Piece]:
        """Yield the entries in the order of their first occurrence in each item."""
        for (windows, times, later, length), own in zip(self.items, self.ordinals, strict=True):
            step = own[-1] - own[0]
            for window, shift, ordinal in zip(windows, later, own, strict=False):
                first, last = self.spans[window]
                if last > first:
                    yield Piece(first, last, ordinal, times, step, length, shift)

    def totals(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first entry of every window, the one after the last, and how often it takes place."""
        times = [0] * len(self.spans)
        for item in self.items:
            for window in item.windows:
                times[window] += item.times
        for (first, last), count in zip(self.spans, times, strict=True):
            if last > first:
                yield first, last, count

    def find(self, ordinal: int) -> OperationPlace:
        """Return the place of the operation with an ordinal. Raises IndexError."""
        if not 0 <= ordinal < len(self):
            raise IndexError(ordinal)
        item = bisect_right(self.firsts, ordinal) - 1
        own = self.ordinals[item]
        number, rest = divmod(ordinal - own[0], own[-1] - own[0])
        slot = bisect_right(own, own[0] + rest) - 1 if len(own) > 2 else 0
        return OperationPlace(
            item, number, slot, self.spans[self.items[item].windows[slot]][0] + own[0] + rest - own[slot]
        )

    def ordinal(self, entry: int, copy: int) -> int:
        """Return the ordinal of a copy of an entry, where copies only follow on what they copy."""
        before = entry
        for repeat in self.repeats:
            if entry < repeat.last:
                return before + (copy * repeat.size if entry >= repeat.first else 0)
            before += repeat.times * repeat.size
        return before

    def start_of(self, ordinal: int) -> int:
        """Return the start [ps] of an operation. Raises IndexError."""
        place = self.find(ordinal)
        return self.start[place.entry] + self._later(place)

    def end_of(self, ordinal: int) -> int:
        """Return the end [ps] of an operation. Raises IndexError."""
        place = self.find(ordinal)
        return self.end[place.entry] + self._later(place)

    def _later(self, place: OperationPlace) -> int:
        item = self.items[place.item]
        return item.later[place.slot] + place.round * item.length


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

    __repr__ = brief

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
    _compiled: CompiledSchedule | None = field(default=None, compare=False, repr=False)

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

    @property
    def is_simple(self) -> bool:
        """Whether copies only follow immediately on what they copy."""
        return all(track.is_simple for track in self.tracks[:1])

    def written_out(self) -> Timeline:
        """Return the same timeline in which copies only follow immediately on what they copy: windows that
        take place again later are recorded again, without predecessors."""
        return self if self.is_simple else replace(self, tracks=tuple(map(self._written_out, self.tracks)))

    def _written_out(self, track: Track) -> Track:
        steps, start, end = list[CompiledOp](), array("q"), array("q")
        items, spans = list[WindowSequence](), list[tuple[int, int]]()
        for number, (item, own) in enumerate(zip(track.items, track.ordinals, strict=True)):
            begin = len(end)
            for window, later, ordinal in zip(item.windows, item.later, own, strict=False):
                first, last = track.spans[window]
                for entry in range(first, last):
                    step = track.steps[entry]
                    steps.append(self._where(step, ordinal + entry - first)[0])
                    start.append(track.start[entry] + later)
                    end.append(track.end[entry] + later)
            items.append(WindowSequence((number,), item.times, (0,), item.length))
            spans.append((begin, len(end)))
        return Track(track.rank, track.stream, steps, start, end, array("q"), tuple(items), tuple(spans))

    @property
    def repeats_in_blocks(self) -> bool:
        """Whether every copy belongs to the block of the operation that it copies."""
        blocks = self.schedule.blocks
        return all(
            step.iteration(repeat.ordinal + place + repeat.times * repeat.size) < blocks[step.block].repeat
            for track in self.tracks
            for repeat in track.repeats
            for place, step in enumerate(track.steps[repeat.first : repeat.last])
        )

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
            for row in self._rows_of(track, rank, piece, entry, _overlapping(track, piece, entry, start, end))
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
        step = self._compile().steps(block)[position]
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
            self._all_rows(track, rank)
            for track in self.tracks
            for rank in self.ranks_by_class[track.rank]
            if track.end
        ]

    def _all_rows(self, track: Track, rank: int) -> Iterator[_Row]:
        steps, ends, starts, where = track.steps, track.end, track.start, self._where
        for (windows, times, later, length), own in zip(track.items, track.ordinals, strict=True):
            for number in range(times):
                for window, shift, begin in zip(windows, later, own, strict=False):
                    first, last = track.spans[window]
                    more = shift + number * length
                    ordinals = range(begin + number * (own[-1] - own[0]), sys.maxsize)
                    for entry, ordinal in zip(range(first, last), ordinals, strict=False):
                        step = steps[entry]
                        at, iteration = where(step, ordinal)
                        yield ends[entry] + more, at.block, iteration, at.position, rank, starts[entry] + more

    def _rows_of(self, track: Track, rank: int, piece: Piece, entry: int, copies: range) -> Iterator[_Row]:
        """Yield the copies of an entry, one row each."""
        for copy in copies:
            ordinal = piece.ordinal + entry - piece.first + copy * piece.step
            step, iteration = self._where(track.steps[entry], ordinal)
            later = piece.later + copy * piece.length
            end, start = track.end[entry] + later, track.start[entry] + later
            yield end, step.block, iteration, step.position, rank, start

    def _where(self, step: CompiledOp, ordinal: int) -> tuple[CompiledOp, int]:
        """Return an operation, or the copy of it that has this number on its stream, and its iteration; the
        block of a copy may have others on other streams."""
        iteration = step.iteration(ordinal)
        if 0 <= iteration < self.schedule.blocks[step.block].repeat:
            return step, iteration
        compiled, stream = self._compile(), step.op.stream
        block = bisect_right(compiled.written, ordinal, key=itemgetter(stream)) - 1
        own = compiled.on_stream(block, stream)
        iteration, number = divmod(ordinal - compiled.written[block][stream], len(own))
        return own[number], iteration

    def _compile(self) -> CompiledSchedule:
        if self._compiled is None:
            self._compiled = CompiledSchedule(self.schedule)
        return self._compiled


_Row = tuple[int, int, int, int, int, int]
"""(end, block, iteration, position, rank, start); sorted, rows are in order of completion, program and
rank."""


def _overlapping(track: Track, piece: Piece, entry: int, start: int, end: int) -> range:
    """Return the copies of an operation that overlap with a span of time."""
    began, ended = track.start[entry] + piece.later, track.end[entry] + piece.later
    if not piece.length:
        return range(piece.times if began < end and ended > start else 0)
    # began + copy * length < end and ended + copy * length > start
    first, last = (start - ended) // piece.length + 1, -((began - end) // piece.length)
    return range(max(0, first), min(piece.times, last))
