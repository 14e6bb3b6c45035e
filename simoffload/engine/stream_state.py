"""The state of one stream of one rank: its operations, its progress, and the times of completed
operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from simoffload.schedule import CompiledOp, Contention, Need, Schedule, compile_streams, transfer_time

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
        "number",
        "predecessors",
        "rank",
        "segment",
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
        segments: tuple[StreamSegment, ...] = (),
        watched: bool = False,
    ) -> None:
        self.number = number  # among the streams of all ranks
        self.rank = rank
        self.stream = stream
        self.segments = iter(segments)
        self.segment = next(self.segments, None)
        self.actions: tuple[Action, ...] = self.segment.actions if self.segment else ()  # () = finished
        self.iteration = 0
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

    def next_iteration(self) -> None:
        """Proceed to the next iteration, or to the segment after the last one."""
        segment = self.segment
        assert segment is not None
        self.index = 0
        self.iteration += 1
        if self.iteration == segment.repeat:
            self.iteration = 0
            self.segment = segment = next(self.segments, None)
            self.actions = segment.actions if segment else ()

    def skip(self, iterations: int) -> None:
        """Advance by ``iterations`` iterations of the current segment."""
        self.iteration += iterations
        self.skipped += iterations * len(self.actions)

    def unmet(self) -> tuple[StreamState, int] | None:
        """Return a stream that is not far enough for the next operation, and the operations that it must have
        completed."""
        for place, per_iteration, offset in self.actions[self.index][2]:
            needed = offset + self.iteration * per_iteration
            other = self.awaited[place]
            if other.done < needed:
                return other, needed
        return None


def make_stream_states(schedule: Schedule, contention: Contention) -> list[StreamState]:
    """Return the states of all streams of all ranks, rank by rank."""
    streams = compile_streams(schedule)
    crossed = [sorted({s.op.route for one in own for s in one.steps if s.op.size}) for own in streams]
    places = _places(schedule)
    made: dict[tuple[int, ...], tuple[StreamSegment, ...]] = {}  # ranks with equal rates share them
    stream_states: list[StreamState] = []
    for program in schedule.parts:
        several = len(program.ranks) > 1
        for rank in program.ranks:
            rates = [by_rank[rank] for by_rank in contention.rates]
            for stream in program.streams:
                key = (stream, *[rates[route] for route in crossed[stream]])
                segments = made.get(key)
                if segments is None:
                    segments = made[key] = tuple(
                        [
                            StreamSegment(
                                part.block, part.repeat, _actions(part.steps, rates, several, places)
                            )
                            for part in streams[stream]
                        ]
                    )
                watched = rank == program.ranks.start
                stream_states.append(
                    StreamState(
                        number=len(stream_states),
                        rank=rank,
                        stream=stream,
                        segments=segments,
                        watched=watched,
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
