"""The recorded execution of one schedule, as columns.

What repeats is recorded once and counted; ranks that do the same are recorded as one. Iterating over a
timeline, or asking for a column, writes all of it out; ``recorded`` and ``pieces`` do not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from simoffload.schedule import Op, Schedule

__all__ = ["Columns", "How", "Interval", "Jump", "Piece", "Repeat", "Timeline"]


class Interval(NamedTuple):
    """One executed operation on one rank."""

    rank: int
    block: int
    iteration: int
    op: Op
    start: int
    """[ps]"""
    end: int
    """[ps]"""


class Columns(NamedTuple):
    """One entry per operation, in order of completion; times are integer picoseconds."""

    rank: array[int]
    """Where ranks are folded, the class of ranks (an index into ``Timeline.classes``)."""
    block: array[int]
    iteration: array[int]
    position: array[int]
    """Index into ``Block.ops``."""
    start: array[int]
    end: array[int]

    @classmethod
    def empty(cls) -> Columns:
        """Columns without entries."""
        return cls(array("H"), array("I"), array("I"), array("I"), array("q"), array("q"))


class Repeat(NamedTuple):
    """A period of a block's steady state: recorded once, it happens ``times`` times more after itself."""

    first: int
    """Its first entry."""
    last: int
    """The entry after its last one."""
    times: int
    iterations: int
    """Of the block, that one period is long."""
    length: int
    """[ps] that one period takes."""


class Piece(NamedTuple):
    """Entries from ``first`` to before ``last``, which happen ``times`` times, one after the other."""

    first: int
    last: int
    times: int = 1
    iterations: int = 0
    length: int = 0


class Jump(NamedTuple):
    """Whole periods that were counted and not run."""

    block: int
    """Index into ``Schedule.blocks``."""
    name: str
    iteration: int
    """Of the block, at which the state was the same as ``period`` iterations before."""
    period: int
    """Iterations."""
    length: int
    """[ps] of a period."""
    times: int
    """Periods skipped."""


class How(NamedTuple):
    """How a timeline was made; whatever is said here, it is the same to the last picosecond."""

    jumps: tuple[Jump, ...] = ()
    not_folded: str = ""
    """Why every rank was run by itself; "" where ranks that are alike were run as one."""
    not_jumped: tuple[str, ...] = ()
    """For each block that was run iteration by iteration although it repeats: why."""


@dataclass(slots=True)
class Timeline:
    """Start and end of every executed operation and what crossed every link."""

    schedule: Schedule
    recorded: Columns = field(default_factory=Columns.empty)
    """What was run; shorter than what happened if anything was folded or repeated."""
    repeats: tuple[Repeat, ...] = ()
    classes: tuple[tuple[int, ...], ...] = ()
    """Ranks that did the same at the same times, by class; () = each rank is a class."""
    makespan: int = 0
    """[ps] end of the last operation."""
    link_bytes: tuple[int, ...] = ()
    """[B x coefficient / scale] carried by each link, rounded down."""
    link_busy: tuple[int, ...] = ()
    """[ps] during which at least one flow crossed each link."""
    link_saturated: tuple[int, ...] = ()
    """[ps] during which each link was filled to its capacity (within its rounding)."""
    events: int = 0
    """Number of clock events that the run took, or would have taken with everything run."""
    constant_rates: bool = True
    """Whether every transfer kept the rate with which it began."""
    how: How = field(default_factory=How)
    _whole: Columns | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        """Operations that were executed, all of them."""
        return sum(piece.times * self._operations(piece) for piece in self.pieces())

    def __iter__(self) -> Iterator[Interval]:
        """Every operation in order of completion, without holding more than one at a time."""
        blocks, recorded, classes = self.schedule.blocks, self.recorded, self.ranks_by_class
        for first, last, times, iterations, length in self.pieces():
            for copy in range(times):
                for entry in range(first, last):
                    block, position = recorded.block[entry], recorded.position[entry]
                    for rank in classes[recorded.rank[entry]]:
                        yield Interval(
                            rank,
                            block,
                            recorded.iteration[entry] + copy * iterations,
                            blocks[block].ops[position],
                            recorded.start[entry] + copy * length,
                            recorded.end[entry] + copy * length,
                        )

    @property
    def ranks_by_class(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every class, the lowest first."""
        return self.classes or tuple((rank,) for rank in range(self.schedule.ranks))

    def pieces(self) -> Iterator[Piece]:
        """The recorded entries in order, cut where what repeats begins and ends."""
        begin = 0
        for first, last, times, iterations, length in self.repeats:
            if first > begin:
                yield Piece(begin, first)
            yield Piece(first, last, times + 1, iterations, length)
            begin = last
        if begin < len(self.recorded.end):
            yield Piece(begin, len(self.recorded.end))

    def end_of(self, index: int) -> int:
        """[ps] end of the operation that was completed as number ``index``, from 0; IndexError if fewer."""
        left = index
        for piece in self.pieces():
            size = self._operations(piece)
            if left >= size * piece.times:
                left -= size * piece.times
                continue
            copy, left = divmod(left, size)
            for entry in range(piece.first, piece.last):
                left -= len(self.ranks_by_class[self.recorded.rank[entry]])
                if left < 0:
                    return self.recorded.end[entry] + copy * piece.length
        raise IndexError(f"operation {index} of {len(self)}")

    def during(self, start: int, end: int, *, rank: int = 0) -> list[Interval]:
        """What a rank did between two moments [ps], in order of completion; nothing without duration."""
        recorded, blocks = self.recorded, self.schedule.blocks
        own = next(number for number, ranks in enumerate(self.ranks_by_class) if rank in ranks)
        found: list[Interval] = []
        for first, last, times, iterations, length in self.pieces():
            met: list[tuple[int, int]] = []
            for entry in range(first, last):
                began, ended = recorded.start[entry], recorded.end[entry]
                if recorded.rank[entry] != own or began == ended:
                    continue
                copies = range(times)
                if length:  # those with began + copy * length < end and ended + copy * length > start
                    copies = range(
                        max(0, (start - ended) // length + 1), min(times, -((began - end) // length))
                    )
                elif not (began < end and ended > start):
                    continue
                met += [(copy, entry) for copy in copies]
            for copy, entry in sorted(met):
                block, later = recorded.block[entry], copy * length
                op = blocks[block].ops[recorded.position[entry]]
                iteration = recorded.iteration[entry] + copy * iterations
                began, ended = recorded.start[entry] + later, recorded.end[entry] + later
                found.append(Interval(rank, block, iteration, op, began, ended))
        return found

    def start_of(self, block: int, iteration: int, position: int, *, rank: int = 0) -> int:
        """[ps] at which a rank began an operation. Raises KeyError if it was not recorded."""
        recorded = self.recorded
        own = next(number for number, ranks in enumerate(self.ranks_by_class) if rank in ranks)
        for first, last, times, iterations, length in self.pieces():
            for entry in range(first, last):
                if (recorded.rank[entry], recorded.block[entry], recorded.position[entry]) == (
                    own,
                    block,
                    position,
                ):
                    copy, rest = divmod(iteration - recorded.iteration[entry], iterations or 1)
                    if 0 <= copy < times and not rest:
                        return recorded.start[entry] + copy * length
        raise KeyError((block, iteration, position, rank))

    def _operations(self, piece: Piece) -> int:
        """Operations of one copy of a piece, on all ranks."""
        if not self.classes:
            return piece.last - piece.first
        sizes = [len(ranks) for ranks in self.classes]
        return sum(map(sizes.__getitem__, self.recorded.rank[piece.first : piece.last]))

    # -- everything written out -----------------------------------------------------------------

    @property
    def whole(self) -> Columns:
        """All operations as columns, ranks by their own numbers; large where much repeats."""
        if self._whole is None:
            simple = not self.repeats and (not self.classes or all(len(one) == 1 for one in self.classes))
            self._whole = self.recorded if simple else self._written_out()
        return self._whole

    def _written_out(self) -> Columns:
        whole, recorded = Columns.empty(), self.recorded
        members = self.ranks_by_class
        for first, last, times, iterations, length in self.pieces():
            entries = [entry for entry in range(first, last) for _ in members[recorded.rank[entry]]]
            ranks = [rank for entry in range(first, last) for rank in members[recorded.rank[entry]]]
            block = array("I", map(recorded.block.__getitem__, entries))
            position = array("I", map(recorded.position.__getitem__, entries))
            numbers = [recorded.iteration[entry] for entry in entries]
            starts = [recorded.start[entry] for entry in entries]
            ends = [recorded.end[entry] for entry in entries]
            for copy in range(times):
                later, ahead = copy * length, copy * iterations
                whole.rank.extend(ranks)
                whole.block.extend(block)
                whole.position.extend(position)
                whole.iteration.extend([number + ahead for number in numbers])
                whole.start.extend([start + later for start in starts])
                whole.end.extend([end + later for end in ends])
        return whole

    @property
    def rank(self) -> array[int]:
        """Rank of every operation."""
        return self.whole.rank

    @property
    def block(self) -> array[int]:
        """Index into ``Schedule.blocks`` of every operation."""
        return self.whole.block

    @property
    def iteration(self) -> array[int]:
        """Iteration of its block, for every operation."""
        return self.whole.iteration

    @property
    def position(self) -> array[int]:
        """Index into ``Block.ops`` of every operation."""
        return self.whole.position

    @property
    def start(self) -> array[int]:
        """[ps] of every operation."""
        return self.whole.start

    @property
    def end(self) -> array[int]:
        """[ps] of every operation."""
        return self.whole.end
