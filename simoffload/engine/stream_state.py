"""The state of one stream of one rank: its operations, its progress, and the times of completed
operations."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from simoffload.schedule import CompiledOp, CompiledSchedule, Contention, Need, Schedule, transfer_time

NOTHING = -1
"""Marks an operation whose predecessor is the operation before it on its stream."""


Action = tuple[int, bool, tuple[Need, ...], CompiledOp]
"""An operation prepared for one rank: the time [ps] that it lasts before a transfer with a variable rate, or
in total; whether such a transfer or a wait for other ranks follows; its needs, by position in
``StreamState.awaited``; the compiled operation."""


class StreamSegment(NamedTuple):
    """The operations of one block on one stream, prepared for one rank."""

    block: int
    repeat: int
    actions: tuple[Action, ...]
    start: int
    """Number of its first iteration among those of all blocks."""
    total: int
    """Number of iterations of all blocks with the same operations."""


class StreamSegments:
    """The segments of one stream for ranks with equal rates; each is prepared when it is first reached."""

    def __init__(
        self,
        compiled: CompiledSchedule,
        stream: int,
        rates: Sequence[int],
        *,
        several: bool,
        places: Sequence[range],
    ) -> None:
        self._compiled, self._stream, self._rates = compiled, stream, rates
        self._several, self._places = several, places
        on_stream = [counts[stream] > 0 for counts in compiled.counts]
        self._own = [block for block, part in enumerate(compiled.parts) if on_stream[part]]
        self._firsts = [compiled.written[block][stream] for block in self._own]
        self._prepared: dict[int, StreamSegment] = {}

    def get(self, number: int) -> StreamSegment | None:
        """Return a segment by its number; None after the last one."""
        if number >= len(self._own):
            return None
        if number not in self._prepared:
            block, compiled = self._own[number], self._compiled
            steps = compiled.on_stream(block, self._stream)
            self._prepared[number] = StreamSegment(
                block,
                compiled.blocks[block].repeat,
                _actions(steps, self._rates, self._several, self._places),
                compiled.starts[block],
                compiled.totals[compiled.parts[block]],
            )
        return self._prepared[number]

    def find(self, ordinal: int) -> tuple[int, int]:
        """Return segment and iteration of the operation with a number; the number of segments if there is
        none."""
        number = bisect_right(self._firsts, ordinal) - 1
        if number < 0:
            return 0, 0
        block, compiled = self._own[number], self._compiled
        each = compiled.counts[compiled.parts[block]][self._stream]
        iteration = (ordinal - self._firsts[number]) // each
        return (number, iteration) if iteration < compiled.blocks[block].repeat else (number + 1, 0)


class StreamState:
    """Works through the segments of a stream, one operation after the other.

    Times are [ps] without skipped time. Times are recorded as soon as they are known, so that ends may be
    ahead of the clock.
    """

    __slots__ = (
        "actions",
        "after",
        "awaited",
        "completed",
        "ends",
        "index",
        "iteration",
        "latest",
        "number",
        "predecessors",
        "rank",
        "segment",
        "segment_number",
        "segments",
        "skipped",
        "start",
        "starts",
        "stream",
        "waiters",
        "watched",
    )

    def __init__(
        self,
        *,
        number: int,
        rank: int,
        stream: int,
        segments: StreamSegments | None = None,
        watched: bool = False,
    ) -> None:
        self.number = number  # among the streams of all ranks
        self.rank = rank
        self.stream = stream
        self.segments = segments
        self.segment: StreamSegment | None
        self.actions: tuple[Action, ...]  # () = finished
        self.go_to(0, 0)
        self.latest = -1  # number of the last iteration that is complete
        self.index = 0  # of the next action; beyond the last until the next iteration begins
        self.start = -1  # [ps] of an operation that moves bytes or waits for other ranks; -1 = neither
        self.after = NOTHING  # predecessor of that operation
        self.skipped = 0  # operations
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.predecessors: list[int] = []  # see Track.after
        self.completed: list[CompiledOp] = []
        self.awaited: tuple[StreamState, ...] = ()  # by stream those of this rank, then of its peers
        self.waiters: list[tuple[int, StreamState]] = []  # (operations to be completed, who waits)
        self.watched = watched  # whether it belongs to the first rank of a program

    @property
    def done(self) -> int:
        """The number of operations whose end is known, skipped ones included."""
        return self.skipped + len(self.ends)

    @property
    def step(self) -> CompiledOp:
        """The next operation of a stream that is neither finished nor between two iterations."""
        return self.actions[self.index][-1]

    def note(self, step: CompiledOp, start: int, end: int, after: int) -> None:
        """Record the times of an operation and its predecessor ``after``."""
        self.starts.append(start)
        self.ends.append(end)
        self.predecessors.append(after)
        self.completed.append(step)

    @property
    def position(self) -> int:
        """The number of the present iteration among those of all blocks."""
        assert self.segment is not None
        return self.segment.start + self.iteration

    def next_iteration(self) -> None:
        """Proceed to the next iteration, or to the segment after the last one."""
        segment = self.segment
        assert segment is not None
        self.latest = segment.start + self.iteration
        self.index = 0
        self.iteration += 1
        if self.iteration == segment.repeat:
            self.go_to(self.segment_number + 1, 0)

    def go_to(self, number: int, iteration: int) -> None:
        """Proceed to an iteration of a segment."""
        self.segment_number, self.iteration = number, iteration
        self.segment = self.segments.get(number) if self.segments is not None else None
        self.actions = self.segment.actions if self.segment else ()

    def skip(self, operations: int) -> None:
        """Count operations as completed, and go to the iteration that follows."""
        self.skipped += operations
        if self.segments is not None:
            begun = self.index if self.segment is not None else 0
            self.go_to(*self.segments.find(self.done - begun))

    def unmet(self) -> tuple[StreamState, int] | None:
        """Return a stream that is not far enough for the next operation, and the operations that it must have
        completed."""
        for place, per_iteration, offset in self.actions[self.index][2]:
            needed = offset + self.iteration * per_iteration
            other = self.awaited[place]
            if other.done < needed:
                return other, needed
        return None


def make_stream_states(
    schedule: Schedule, contention: Contention, compiled: CompiledSchedule
) -> list[StreamState]:
    """Return the states of all streams of all ranks, rank by rank."""
    crossed: list[set[int]] = [set() for _ in schedule.streams]
    for ops, _ in schedule.contents:
        for op in ops:
            if op.size:
                crossed[op.stream].add(op.route)
    places = _places(schedule)
    made: dict[tuple[int, ...], StreamSegments] = {}  # ranks with equal rates share them
    stream_states: list[StreamState] = []
    for part in schedule.parts:
        several = len(part.ranks) > 1
        for rank in part.ranks:
            rates = [by_rank[rank] for by_rank in contention.rates]
            for stream in part.streams:
                key = (stream, *[rates[route] for route in sorted(crossed[stream])])
                if key not in made:
                    made[key] = StreamSegments(compiled, stream, rates, several=several, places=places)
                stream_states.append(
                    StreamState(
                        number=len(stream_states),
                        rank=rank,
                        stream=stream,
                        segments=made[key],
                        watched=rank == part.ranks.start,
                    )
                )
    _connect(schedule, stream_states, places)
    return stream_states


def _places(schedule: Schedule) -> list[range]:
    """Return for each of the peers the indices of their stream 0 in ``StreamState.awaited``.

    There are as many as any rank has peers. Other streams follow each of them, and the streams of the same
    rank come before all.
    """
    streams = len(schedule.streams)
    places: list[range] = []
    begin = streams
    for peers in schedule.peers:
        end = begin + streams * max(map(len, peers), default=0)
        places.append(range(begin, end, streams))
        begin = end
    return places


def _connect(schedule: Schedule, stream_states: Sequence[StreamState], places: Sequence[range]) -> None:
    """Set for all streams the streams for which they may wait. Where a rank has fewer peers than others, or
    has no such stream, a placeholder stands that has completed everything."""
    placeholder = StreamState(number=-1, rank=-1, stream=-1)
    placeholder.skipped = sys.maxsize
    none = [placeholder] * len(schedule.streams)
    by_rank = [list(none) for _ in range(schedule.ranks)]
    for stream_state in stream_states:
        by_rank[stream_state.rank][stream_state.stream] = stream_state
    for rank, own in enumerate(by_rank):
        awaited = list(own)
        for peers, place in zip(schedule.peers, places, strict=True):
            for other in peers[rank]:
                awaited += by_rank[other]
            awaited += none * (len(place) - len(peers[rank]))
        shared = tuple(awaited)
        for stream_state in own:
            stream_state.awaited = shared


def _actions(
    steps: Sequence[CompiledOp], rates: Sequence[int], several: bool, places: Sequence[range]
) -> tuple[Action, ...]:
    actions: list[Action] = []
    for step in steps:
        (_, _, _, fixed, size, route, _, collective), _, _, _, _, needs, peer_needs = step
        if size and (rate := rates[route]):
            fixed, size = fixed + transfer_time(size, rate), 0
        if peer_needs:
            needs += tuple(
                [
                    (first + stream, per_iteration, offset)
                    for peers, (stream, per_iteration, offset) in peer_needs
                    for first in places[peers]
                ]
            )
        actions.append((fixed, size > 0 or (collective and several), needs, step))
    return tuple(actions)
