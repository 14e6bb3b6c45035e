"""Duration of a run in which one operation takes longer, derived from the timeline of a shorter run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from simoffload.results.timeline import Piece, Repeat, Timeline, Track
from simoffload.schedule import CompiledOp, Need, Schedule

_LARGEST = 300_000
"""Maximum number of operations that are examined."""


def makespan_for_longer_context(
    timeline: Timeline, schedule: Schedule, *, ends_with: str | None = None
) -> int | None:
    """Return the end [ps] of a run in which an operation takes longer, or that of its stream ``ends_with``;
    None if another simulation is needed.

    ``schedule`` is the schedule of ``timeline``, except that one fixed duration x is longer wherever it
    occurs. The times of the longer run are those of the shorter run plus k times the growth of x, where k is
    the number of occurrences of x on the chain of predecessors. This holds under three conditions. First, no
    operation would begin before the operations for which it waits have ended: its last predecessor is still
    the last. Second, transfers that overlap and may slow each other down have the same k, so that their rates
    change at the same events; or no such transfer ever changes its rate. Third, the beginnings and ends of
    such transfers keep their order. As all times are linear in the growth of x, conditions that hold without
    growth and with all of it also hold for any growth in between, and so do the times. In a part that
    repeats, k grows from each period to the next by the same number for all operations.
    """
    growth = _growth(timeline.schedule, schedule)
    if growth is None or timeline.entries > _LARGEST:
        return None
    timeline = timeline.written_out()
    if timeline.entries > _LARGEST or not timeline.repeats_in_blocks:
        return None
    labels = timeline.schedule.labels
    lasts = [
        (number, len(track) - 1)
        for number, track in enumerate(timeline.tracks)
        if track.end and ends_with in (None, labels[track.stream])
    ]
    if not growth.by:
        return max([timeline.tracks[number].end_of(ordinal) for number, ordinal in lasts], default=0)
    slopes = _Slopes(timeline, growth)
    if not slopes.found() or not _transfers(timeline, slopes, growth.by):
        return None
    return max([end + k * growth.by for end, k in (slopes.at(*last) for last in lasts)], default=0)


def differ_beyond_kernels(one: Schedule, other: Schedule) -> bool:
    """Return whether two schedules with blocks of the same lengths differ in more than durations of
    kernels."""
    if _lengths(one) != _lengths(other):
        return False
    pairs = chain.from_iterable(
        zip(block.ops, twin.ops, strict=True) for block, twin in zip(one.blocks, other.blocks, strict=True)
    )
    return any(
        op is not grown and op != grown and (op.kind != "compute" or op._replace(fixed=grown.fixed) != grown)
        for op, grown in pairs
    )


def _lengths(schedule: Schedule) -> list[tuple[int, int]]:
    return [(len(block.ops), block.repeat) for block in schedule.blocks]


class _Growth(NamedTuple):
    places: frozenset[tuple[int, int]]
    """Places (block, position) of the operation that takes longer."""
    by: int
    """Increase of the duration [ps]."""


def _growth(one: Schedule, other: Schedule) -> _Growth | None:
    """Return the duration that is longer in the other schedule; None if anything else differs."""
    places: dict[tuple[int, int], int] = {}
    if _lengths(one) != _lengths(other):  # layers that were equal no longer are, or the reverse
        return None
    for index, (block, twin) in enumerate(zip(one.blocks, other.blocks, strict=True)):
        for position, (op, grown) in enumerate(zip(block.ops, twin.ops, strict=True)):
            if op is not grown and op != grown:
                if op._replace(fixed=grown.fixed) != grown:
                    return None
                places[index, position] = grown.fixed - op.fixed
    by = set(places.values()) or {0}
    return _Growth(frozenset(places), min(by)) if len(by) == 1 and min(by) >= 0 else None


class _Slopes:
    """_Slopes compute for each operation the number k of occurrences of x on the chain of predecessors to its
    end."""

    def __init__(self, timeline: Timeline, growth: _Growth) -> None:
        self._tracks = timeline.tracks
        self._peers = timeline.schedule.peers
        self._ranks_by_class = timeline.ranks_by_class
        pairs = enumerate(self._ranks_by_class)
        self._classes = {rank: number for number, ranks in pairs for rank in ranks}
        # For each class, the index that the track of stream 0 would have; other streams follow.
        self._offsets = {track.rank: number - track.stream for number, track in enumerate(self._tracks)}
        self._offsets_by_stream: list[list[int]] = [[] for _ in timeline.schedule.streams]
        for track in self._tracks:
            self._offsets_by_stream[track.stream].append(self._offsets[track.rank])
        self._ends = [track.end for track in timeline.tracks]
        self._places, self._by = growth
        self._known = [[0] * len(track.end) for track in timeline.tracks]  # by entry
        self._simple = [  # ordinals below are entries
            track.repeats[0].ordinal + track.repeats[0].size if track.repeats else len(track.end)
            for track in timeline.tracks
        ]
        self._windows: list[dict[int, Repeat]] = [{} for _ in timeline.tracks]
        self._firsts: dict[int, tuple[int, int]] = {}  # when and on which track a steady state begins
        self._each: dict[int, int] = {}  # by how much k grows from period to period, by steady state

    def found(self) -> bool:
        """Compute k for all operations; return whether all of them have one."""
        rows: list[_Row] = []
        for number, track in enumerate(self._tracks):
            self._windows[number] = {repeat.window: repeat for repeat in track.repeats}
            for piece in track.pieces():
                rows += _rows(number, track, piece)
            for repeat in track.repeats:
                self._note_first(number, track, repeat)
        rows.sort()  # in program order each operation comes after those for which it waits
        begins, places = self._begins, self._places
        starts, known = [track.start for track in self._tracks], self._known
        for block, iteration, position, number, entry, ordinal, step in rows:
            k = begins(number, step, ordinal, iteration, starts[number][entry])
            if k is None:
                return False
            known[number][entry] = k + ((block, position) in places)
        return all(
            self._repeats(number, repeat)
            for number, track in enumerate(self._tracks)
            for repeat in track.repeats
        )

    def at(self, number: int, ordinal: int) -> tuple[int, int]:
        """Return an operation's end [ps] and its k."""
        if ordinal < self._simple[number]:
            return self._ends[number][ordinal], self._known[number][ordinal]
        track = self._tracks[number]
        item = bisect_right(track.firsts, ordinal) - 1  # of one window, as copies only follow what they copy
        begin, after = track.ordinals[item]
        copy, rest = divmod(ordinal - begin, after - begin)
        entry = track.spans[track.items[item].windows[0]][0] + rest
        end, k = track.end[entry], self._known[number][entry]
        return (end + copy * track.items[item].length, k + copy * self._growing(item)) if copy else (end, k)

    def _begins(self, number: int, step: CompiledOp, ordinal: int, iteration: int, start: int) -> int | None:
        """Return k at the beginning of an operation; None if another predecessor would end last in the longer
        run."""
        op, simple, by = step.op, self._simple, self._by
        slope = latest = 0
        # For a collective, on every rank of the program.
        firsts = self._offsets_by_stream[op.stream] if op.collective else (number - op.stream,)
        for first in firsts:
            needs: Sequence[Need] = step.needs
            if step.peer_needs:
                needs = [*needs, *self._of_peers(first, step)]
            for stream, per_iteration, offset in ((op.stream, 0, ordinal), *needs):
                awaited, track = offset + iteration * per_iteration - 1, first + stream
                if awaited < 0:
                    continue
                if awaited < simple[track]:
                    end, k = self._ends[track][awaited], self._known[track][awaited]
                else:
                    end, k = self.at(track, awaited)
                if end == start and k > slope:
                    slope = k
                if end + k * by > latest:
                    latest = end + k * by
        return slope if latest <= start + slope * by else None

    def _of_peers(self, first: int, step: CompiledOp) -> Iterator[Need]:
        """Yield the operations of other ranks for which an operation waits, with streams relative to track
        ``first``."""
        own = self._ranks_by_class[self._tracks[first + step.op.stream].rank][0]
        for peers, (stream, per_iteration, offset) in step.peer_needs:
            for other in {self._classes[rank] for rank in self._peers[peers][own]}:
                yield self._offsets[other] + stream - first, per_iteration, offset

    # -- what repeats ---------------------------------------------------------------------------

    def _note_first(self, number: int, track: Track, repeat: Repeat) -> None:
        first = self._firsts.get(repeat.window)
        if first is None or track.start[repeat.first] < first[0]:
            self._firsts[repeat.window] = track.start[repeat.first], number

    def _growing(self, window: int) -> int:
        """Return the growth of k from one period to the next, if all predecessors are at most one period
        earlier.

        It is that of the operation that begins first in the period.
        """
        if window not in self._each:
            self._each[window] = 0
            start, number = self._firsts[window]
            repeat, known = self._windows[number][window], self._known[number]
            step = self._tracks[number].steps[repeat.first]
            ordinal = repeat.ordinal + repeat.size
            k = self._begins(number, step, ordinal, step.iteration(ordinal), start + repeat.length)
            own = (step.block, step.position) in self._places
            self._each[window] = 0 if k is None else k + own - known[repeat.first]
        return self._each[window]

    def _repeats(self, number: int, repeat: Repeat) -> bool:
        """Return whether k grows by the same number from each period to the next, for all operations of a
        track.

        This must be checked for operations that wait for something before the first period, and for as many
        periods as such waits extend.
        """
        track, each = self._tracks[number], self._growing(repeat.window)
        for entry in range(repeat.first, repeat.last):
            ordinal, step = repeat.ordinal + entry - repeat.first, track.steps[entry]
            reach = self._reach(number, step, ordinal, repeat.window)
            if not reach:
                continue
            k = self._known[number][entry] - ((step.block, step.position) in self._places)
            for copy in range(1, 1 + min(repeat.times, reach)):
                own, start = ordinal + copy * repeat.size, track.start[entry] + copy * repeat.length
                if self._begins(number, step, own, step.iteration(own), start) != k + copy * each:
                    return False
        return True

    def _reach(self, number: int, step: CompiledOp, ordinal: int, window: int) -> int:
        """Return the number of periods, from the first one, in which an operation waits for something before
        the first."""
        op, most = step.op, 0
        iteration = step.iteration(ordinal)
        for first in self._offsets_by_stream[op.stream] if op.collective else (number - op.stream,):
            for stream, per_iteration, offset in (
                (op.stream, 0, ordinal),
                *step.needs,
                *self._of_peers(first, step),
            ):
                repeat = self._windows[first + stream].get(window)
                awaited = offset + iteration * per_iteration - 1
                if repeat is not None and awaited < repeat.ordinal:
                    most = max(most, -((awaited - repeat.ordinal) // repeat.size))
        return most


_Row = tuple[int, int, int, int, int, int, CompiledOp]
"""An operation as (block, iteration, position, track, entry, number on its stream, compiled operation)."""


def _rows(number: int, track: Track, piece: Piece) -> Iterator[_Row]:
    later = piece.first - piece.ordinal
    for ordinal, step in enumerate(track.steps[piece.first : piece.last], piece.ordinal):
        _, block, position, first, per_iteration, _, _ = step
        iteration = (ordinal - first) // per_iteration
        yield block, iteration, position, number, ordinal + later, ordinal, step


# -- transfers ----------------------------------------------------------------------------------

_Instant = tuple[int, int, int]
"""An instant as (time [ps], k, change of the number of transfers)."""


def _transfers(timeline: Timeline, slopes: _Slopes, by: int) -> bool:
    """Return whether transfers that may share a link meet the second and third conditions."""
    if not timeline.shared:
        return True
    group, copies = _meeting(timeline.schedule), _copies(timeline)
    instants: dict[int, list[_Instant]] = {}
    for number, track in enumerate(timeline.tracks):
        for piece in track.pieces():
            for entry in range(piece.first, piece.last):
                op = track.steps[entry].op
                if not op.size or op.route not in timeline.shared:
                    continue
                begin = track.start[entry] - track.end[entry] + op.fixed
                for copy in _chosen(piece.times, copies):
                    end, k = slopes.at(number, track.ordinal(entry, copy))
                    instants.setdefault(group[op.route], []).extend([(end + begin, k, 1), (end, k, -1)])
    return all(_ordered(sorted(found), by, timeline.constant_rates) for found in instants.values())


def _copies(timeline: Timeline) -> int:
    """Return the copies of each period that must be examined, at its beginning and its end: they include all
    that overlap."""
    spans: dict[int, tuple[int, int, int]] = {}  # by steady state: begin, end, length
    for track in timeline.tracks:
        for repeat in track.repeats:
            begin, end = track.start[repeat.first], track.end[repeat.last - 1]
            earliest, latest, _ = spans.get(repeat.window, (begin, end, 0))
            spans[repeat.window] = min(begin, earliest), max(end, latest), repeat.length
    return max([1 - (-(end - begin) // length) for begin, end, length in spans.values()], default=1)


def _chosen(times: int, copies: int) -> range | list[int]:
    if times <= 2 * copies:
        return range(times)
    return [*range(copies), *range(times - copies, times)]


def _ordered(instants: list[_Instant], by: int, constant: bool) -> bool:
    """Return whether events keep their order, and rates change at the same events."""
    going = 0
    for (time, k, more), (next_time, next_k, _) in pairwise(instants):
        if next_time + next_k * by < time + k * by or (next_time == time and next_k != k):
            return False
        going += more
        # Transfers that overlap, directly or through others, must be shifted by the same time.
        if not constant and going and k != next_k:
            return False
    return True


def _meeting(program: Schedule) -> list[int]:
    """Return for each route the lowest number of a route with which it shares a link, directly or through
    others."""
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
