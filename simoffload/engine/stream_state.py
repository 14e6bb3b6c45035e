"""One stream of one rank: what it has to do, how far it has got, and what it has done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from simoffload.schedule import Schedule
from simoffload.schedule.bounds import Contention, transfer_time
from simoffload.schedule.ir import CompiledOp, Need, compile_streams

__all__ = ["NOTHING", "Action", "StreamSegment", "StreamState", "make_stream_states"]

NOTHING = -1
"""In place of what an operation began after, where that is the one before it on its stream."""


Action = tuple[int, bool, tuple[Need, ...], CompiledOp]
"""A step as a lane carries it out: the time [ps] that it lasts before bytes move whose rate depends on
others, or altogether; whether such bytes follow or other ranks are waited for; what it needs, by place in
``StreamState.awaited``; the step."""


class StreamSegment(NamedTuple):
    """A segment as a lane carries it out."""

    block: int
    repeat: int
    actions: tuple[Action, ...]


class StreamState:
    """Works through the stretches of its stream, one operation after the other.

    Times are [ps] without what was skipped. What has been done is known as soon as it is certain, so ends may
    lie ahead of the clock.
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
        self.number = number  # among the lanes of all ranks
        self.rank = rank
        self.stream = stream
        self.segments = iter(segments)
        self.segment = next(self.segments, None)
        self.actions: tuple[Action, ...] = self.segment.actions if self.segment else ()  # () = through
        self.iteration = 0
        self.index = 0  # of the action that is next; beyond the last until the next iteration begins
        self.start = -1  # [ps] of an operation that moves bytes or is ready for other ranks; -1 = neither
        self.after = NOTHING  # what that one began after
        self.skipped = 0  # operations
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.predecessors: list[int] = []  # see Track.after
        self.completed: list[CompiledOp] = []
        self.awaited: tuple[
            StreamState, ...
        ] = ()  # by stream the lanes of this rank, then those of its peers
        self.waiters: list[
            tuple[int, StreamState]
        ] = []  # (operations that have to be done, who waits for it)
        self.watched = watched  # of the first rank of a program

    @property
    def done(self) -> int:
        """Operations whose end is known, skipped ones included."""
        return self.skipped + len(self.ends)

    @property
    def step(self) -> CompiledOp:
        """The operation that is next; of a lane that is not through and not between two iterations."""
        return self.actions[self.index][-1]

    def note(self, step: CompiledOp, start: int, end: int, after: int) -> None:
        """An operation has its times; ``after`` is what it began after."""
        self.starts.append(start)
        self.ends.append(end)
        self.predecessors.append(after)
        self.completed.append(step)

    def next_iteration(self) -> None:
        """Go on to the next iteration, or to what follows the last one."""
        segment = self.segment
        assert segment is not None
        self.index = 0
        self.iteration += 1
        if self.iteration == segment.repeat:
            self.iteration = 0
            self.segment = segment = next(self.segments, None)
            self.actions = segment.actions if segment else ()

    def skip(self, iterations: int) -> None:
        """Be as far as after so many more iterations of the current stretch."""
        self.iteration += iterations
        self.skipped += iterations * len(self.actions)

    def unmet(self) -> tuple[StreamState, int] | None:
        """A lane that has not got far enough for the next operation, and how far it has to get."""
        for place, per_iteration, offset in self.actions[self.index][2]:
            needed = offset + self.iteration * per_iteration
            other = self.awaited[place]
            if other.done < needed:
                return other, needed
        return None


def make_stream_states(schedule: Schedule, contention: Contention) -> list[StreamState]:
    """The lanes of all ranks, rank by rank."""
    streams = compile_streams(schedule)
    crossed = [sorted({s.op.route for one in own for s in one.steps if s.op.size}) for own in streams]
    places = _places(schedule)
    made: dict[tuple[int, ...], tuple[StreamSegment, ...]] = {}  # ranks with like rates share them
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
    """For each of the peers the indices of their stream 0 in ``StreamState.awaited``.

    There are as many as any rank has peers.

    Other streams follow each of them, and the own rank's streams come before all.
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
    """Tell all lanes whom they may wait for. Where a rank has fewer peers than others, or has no such stream,
    there is a lane that has always done enough."""
    nobody = StreamState(number=-1, rank=-1, stream=-1)
    nobody.skipped = sys.maxsize
    none = [nobody] * len(schedule.streams)
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
