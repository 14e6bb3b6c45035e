"""Whether two runs of one program take the same course, so that what lies between them is known."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from simoffload.results.timeline import Piece, Timeline
from simoffload.schedule import Op, Schedule

__all__ = ["same_course"]

_LARGEST = 300_000
"""Operations up to which two runs that do not repeat alike are compared."""

_Key = tuple[int, int, int, int]
"""Class of ranks, block, position, iteration."""


class _Place(NamedTuple):
    """An operation of a block on its stream."""

    op: Op
    first: int
    """Its number on its stream in the block's first iteration."""
    step: int
    """Operations on that stream in each iteration."""
    awaited: tuple[tuple[int, int, int], ...]
    """What it waits for: stream, number in the first iteration, operations there in each iteration."""


_Timed = tuple[_Key, tuple[int, int], tuple[int, int]]
"""An operation, and when it starts and ends, here and there [ps]."""


def same_course(one: Timeline, other: Timeline) -> bool:
    """Whether every run between these two has its times on straight lines between theirs.

    Both are of one program, in which only one fixed duration x differs, wherever it occurs. Three things are
    asked of them. Every transfer takes as long here as there, and either all keep one rate, or those that
    overlap are shifted against there as one. Of transfers that may share a link no two moments (bytes begin
    to move, the last has arrived) are in one order here and in the other there. Every operation begins, here
    and there, at the end of one and the same that it waits for.

    Then put all times on straight lines over x. The third makes each beginning the latest of what it waits
    for, since a line that is above others at both ends is above them everywhere between. The second leaves
    transfers together that were so at one of the ends, so that by the first each has its rates, for as long.
    So these are the times of the run with that x; and as each is a sum of durations, its slope is a whole
    number, and nothing is rounded.
    """
    if one.classes != other.classes:
        return False
    places = _places(one.schedule)
    copies = _copies(one, other, places)
    if copies is None and max(len(one), len(other)) > _LARGEST:
        return False
    times = _times(one, other, copies)
    if times is None:
        return False
    constant = one.constant_rates and other.constant_rates
    return _transfers(one.schedule, times, constant=constant) and _beginnings(
        times, places, _copied(one, copies)
    )


def _times(one: Timeline, other: Timeline, copies: int | None) -> list[_Timed] | None:
    """Operations with their times here and there; None if the two did not do the same."""
    if one.recorded[:4] == other.recorded[:4] and list(map(_extent, one.pieces())) == list(
        map(_extent, other.pieces())
    ):
        return _side_by_side(one, other, copies)
    here, there = _entries(one, copies), _entries(other, copies)
    if [key for key, _, _ in here] != [key for key, _, _ in there]:  # in another order, or others
        if len(here) != len(there):
            return None
        known = {key: (key, start, end) for key, start, end in there}
        if len(known) != len(there) or not all(key in known for key, _, _ in here):
            return None
        there = [known[key] for key, _, _ in here]
    return [
        (key, (start, later), (end, later_end))
        for (key, start, end), (_, later, later_end) in zip(here, there, strict=True)
    ]


def _places(program: Schedule) -> list[list[_Place]]:
    """Every operation of every block."""
    found: list[list[_Place]] = []
    before = [0] * len(program.streams)
    for block in program.blocks:
        steps = [0] * len(before)
        for op in block.ops:
            steps[op.stream] += 1
        written, own = list(before), []
        for op in block.ops:
            after = [(op.stream, written[op.stream] - 1)]
            after += [(stream, written[stream] - 1 - back) for stream, back in op.after]
            awaited = tuple((stream, number, steps[stream]) for stream, number in after)
            own.append(_Place(op, written[op.stream], steps[op.stream], awaited))
            written[op.stream] += 1
        found.append(own)
        before = [count + block.repeat * step for count, step in zip(before, steps, strict=True)]
    return found


# -- what is looked at --------------------------------------------------------------------------


def _copies(one: Timeline, other: Timeline, places: list[list[_Place]]) -> int | None:
    """Copies of each period to look at, at its beginning and at its end: all that overlap or wait for each
    other are then among them. None where the two do not repeat alike."""
    alike = [(repeat.times, repeat.iterations, repeat.last - repeat.first) for repeat in one.repeats]
    if alike != [(repeat.times, repeat.iterations, repeat.last - repeat.first) for repeat in other.repeats]:
        return None
    needed = 1
    for run in (one, other):
        for first, last, _, iterations, length in run.repeats:
            start = min(run.recorded.start[first:last])
            span = max(run.recorded.end[first:last]) - start
            back = max(_reach(places[block]) for block in set(run.recorded.block[first:last]))
            needed = max(needed, 1 - (-span // length), 1 - (-back // iterations))
    return needed


def _reach(places: list[_Place]) -> int:
    """Iterations that an operation's dependencies reach back, at most."""
    firsts: dict[int, int] = {}
    for place in places:
        firsts.setdefault(place.op.stream, place.first)
    return max(
        (
            -((number - firsts[stream]) // step)
            for place in places
            for stream, number, step in place.awaited
            if step
        ),
        default=0,
    )


def _entries(run: Timeline, copies: int | None) -> list[tuple[_Key, int, int]]:
    """Start and end of operations [ps], with what repeats written out so far."""
    found: list[tuple[_Key, int, int]] = []
    for piece in run.pieces():
        columns = [column[piece.first : piece.last] for column in run.recorded]
        for copy in _chosen(piece, copies):
            ahead, later = copy * piece.iterations, copy * piece.length
            found += [
                ((rank, block, position, iteration + ahead), start + later, end + later)
                for rank, block, iteration, position, start, end in zip(*columns, strict=True)
            ]
    return found


def _extent(piece: Piece) -> tuple[int, int, int, int]:
    return piece[:4]


def _side_by_side(one: Timeline, other: Timeline, copies: int | None) -> list[_Timed]:
    """Operations with their times, of two that did the same in the same order."""
    found: list[_Timed] = []
    for piece, second in zip(one.pieces(), other.pieces(), strict=True):
        begin, end = piece.first, piece.last
        columns = [column[begin:end] for column in (*one.recorded, other.recorded.start, other.recorded.end)]
        for copy in _chosen(piece, copies):
            ahead, here, there = copy * piece.iterations, copy * piece.length, copy * second.length
            found += [
                (
                    (rank, block, position, iteration + ahead),
                    (start + here, later + there),
                    (done + here, done_later + there),
                )
                for rank, block, iteration, position, start, done, later, done_later in zip(
                    *columns, strict=True
                )
            ]
    return found


def _copied(run: Timeline, copies: int | None) -> frozenset[_Key]:
    """What is a copy of something else that is looked at, while not all is there that it waits for."""
    return frozenset(
        _key(run, entry, copy * piece.iterations)
        for piece in run.pieces()
        if copies is not None and piece.times > 2 * copies
        for copy in range(piece.times - copies, piece.times)
        for entry in range(piece.first, piece.last)
    )


def _key(run: Timeline, entry: int, ahead: int) -> _Key:
    recorded = run.recorded
    iteration = recorded.iteration[entry] + ahead
    return recorded.rank[entry], recorded.block[entry], recorded.position[entry], iteration


def _chosen(piece: Piece, copies: int | None) -> range | list[int]:
    if copies is None or piece.times <= 2 * copies:
        return range(piece.times)
    return [*range(copies), *range(piece.times - copies, piece.times)]


# -- transfers ----------------------------------------------------------------------------------


def _transfers(program: Schedule, times: list[_Timed], *, constant: bool) -> bool:
    """Whether transfers take as long, at the same rates, and those that may meet are in one order."""
    group = _meeting(program)
    moments: dict[int, list[tuple[int, int, int]]] = {}
    moving = [[(op.route, op.fixed) if op.size else None for op in block.ops] for block in program.blocks]
    for (_, block, position, _), start, end in times:
        move = moving[block][position]
        if move is None:
            continue
        if end[0] - start[0] != end[1] - start[1]:
            return False
        route, fixed = move
        mine = moments.setdefault(group[route], [])
        mine += [(start[0] + fixed, start[1] + fixed, 1), (*end, -1)]
    return all(_ordered(sorted(found), constant=constant) for found in moments.values())


def _ordered(moments: list[tuple[int, int, int]], *, constant: bool) -> bool:
    """Whether moments (here, there, transfers more) are in one order there too, and rates the same."""
    going = 0
    for (first, second, more), (next_first, next_second, _) in pairwise(moments):
        if next_second < second:
            return False
        going += more
        # Transfers that overlap, directly or through others, must be shifted by one and the same time.
        if not constant and going and second - first != next_second - next_first:
            return False
    return True


def _meeting(program: Schedule) -> list[int]:
    """For each route the lowest number of a route that it meets on a link, at one or more removes."""
    group = list(range(len(program.routes)))
    first: dict[int, int] = {}  # route on each link

    def root(route: int) -> int:
        while group[route] != route:
            route = group[route]
        return route

    for number, route in enumerate(program.routes):
        for link in {link for hops in route.hops for link, _ in hops}:
            other, mine = root(first.setdefault(link, number)), root(number)
            group[max(mine, other)] = min(mine, other)
    return [root(number) for number in range(len(group))]


# -- beginnings ---------------------------------------------------------------------------------


def _beginnings(times: list[_Timed], places: list[list[_Place]], copied: frozenset[_Key]) -> bool:
    """Whether each operation has one that it waited for to the last, here and there."""
    ends: dict[tuple[int, int, int], tuple[int, int]] = {}
    for (rank, block, position, iteration), _, end in times:
        op, first, step, _ = places[block][position]
        ends[rank, op.stream, first + iteration * step] = end
    late: dict[tuple[int, int, int], bool] = {}  # collective operations: whether any rank's decides
    for key, start, _ in times:
        if key in copied:
            continue
        rank, block, position, iteration = key
        op, _, _, awaited = places[block][position]
        met = start == (0, 0)
        for stream, number, step in awaited:
            if met or ends.get((rank, stream, number + iteration * step)) == start:
                met = True
                break
        if op.collective:
            one = block, position, iteration
            late[one] = late.get(one, False) or met
        elif not met:
            return False
    return all(late.values())
