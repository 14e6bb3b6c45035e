"""Steady state: where the state of a repeating block recurs, periods are counted instead of run.

The engine's state consists of the next operation of every stream, the streams that wait for it, pending
calls, what remains of every flow, and times already known of operations that end later. A run has a cycle if,
at the end of some iteration of a block, that state equals the state after an earlier iteration, except for
the time and the number of the iteration. As everything is an integer, the comparison is exact, and all that
happens until a stream approaches the end of the block is a copy of what happened in between.

States are comparable because streams inside the block are described by how many iterations they are ahead.
Streams elsewhere must be idle, and may neither be awaited by the block (a stream before the block that has
work in it) nor be reached by it (a stream behind the block that waits for a count).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simoffload.engine.clock import Clock
from simoffload.engine.network import AllocationMark, Network
from simoffload.engine.outcome import SkippedInterval
from simoffload.engine.stream_state import NOTHING, StreamState
from simoffload.results import SkippedPeriods
from simoffload.schedule import Schedule

LEAST = 3
"""Iterations of a block below which there is nothing to skip."""
_PATIENCE = 256
"""Number of first iterations that are all searched for a cycle; later ones are searched in windows of
``_WINDOW``."""
_WINDOW = 64
"""Iterations of each search at 256, 512, 1024, …: the search hardly lengthens a run without a cycle."""

_State = tuple[object, ...]


class _Snapshot(NamedTuple):
    """The progress of a run at the time of a state."""

    iteration: int
    time: int
    ended: tuple[int, ...]
    """For every stream, operations (of those that were run) that had ended."""
    allocation_mark: AllocationMark


class SteadyState:
    """Watches the streams of the first rank of each program and jumps when a state recurs."""

    def __init__(
        self,
        *,
        schedule: Schedule,
        stream_states: Sequence[StreamState],
        gathered: Sequence[Sequence[StreamState]],
        clock: Clock,
        network: Network[StreamState],
    ) -> None:
        self._blocks = schedule.blocks
        self._stream_states = stream_states
        self._watched = [stream_state for stream_state in stream_states if stream_state.watched]
        self._gathered = gathered
        self._clock = clock
        self._network = network
        self._streams = [{op.stream for op in block.ops} for block in schedule.blocks]
        self._snapshots: dict[_State, _Snapshot] = {}
        self._block = -1
        self._iterations_seen = 0
        self._comparison_pending = False
        self.skipped: list[SkippedPeriods] = []
        self.skips: list[SkippedInterval] = []
        self._compared: dict[int, int] = {}  # states, by block

    def passed(self, stream_state: StreamState) -> None:
        """Note that a watched stream has begun another iteration or another block."""
        segment = stream_state.segment
        if segment is None or segment.repeat < LEAST or self._comparison_pending:
            return
        for other in self._watched:
            if (
                other.segment is not None
                and other.segment.block == segment.block
                and other.iteration < stream_state.iteration
            ):
                return  # an iteration ends when its last stream has completed it
        if segment.block != self._block:
            self._block, self._iterations_seen = segment.block, 0
            self._snapshots.clear()
        self._iterations_seen += 1
        if (
            self._iterations_seen < _PATIENCE
            or self._iterations_seen - (1 << self._iterations_seen.bit_length() - 1) < _WINDOW
        ):
            self._comparison_pending = True
            self._clock.call_when_over(self._compare_states)

    def misses(self) -> tuple[str, ...]:
        """Return, for blocks that repeat, the reasons why no periods were skipped."""
        jumped = {jump.block for jump in self.skipped}
        return tuple(
            f"block {block.name!r}: {self._why(index)}"
            for index, block in enumerate(self._blocks)
            if block.repeat >= LEAST and index not in jumped
        )

    def _why(self, block: int) -> str:
        repeat, compared = self._blocks[block].repeat, self._compared.get(block, 0)
        if not compared:
            return f"other blocks were active whenever one of its {repeat} iterations ended"
        return f"no cycle in {repeat} iterations ({compared} states compared)"

    def _compare_states(self) -> None:
        self._comparison_pending = False
        block, now = self._block, self._clock.now
        inside = [
            stream_state
            for stream_state in self._stream_states
            if stream_state.segment is not None and stream_state.segment.block == block
        ]
        iteration = min(
            (stream_state.iteration for stream_state in inside if stream_state.rank == inside[0].rank),
            default=0,
        )
        ended = tuple([bisect_right(stream_state.ends, now) for stream_state in self._stream_states])
        state = self._state(block, iteration, ended) if inside else None
        if state is None:
            return
        self._compared[block] = self._compared.get(block, 0) + 1
        before = self._snapshots.get(state)
        if before is not None and self._network.counts_since(before.allocation_mark):
            self._jump(inside, before, iteration, ended)
            return
        self._snapshots[state] = _Snapshot(iteration, now, ended, self._network.mark())

    def _state(self, block: int, iteration: int, ended: Sequence[int]) -> _State | None:
        """Return everything that decides what happens next, relative to now; None if it cannot recur."""
        now, streams = self._clock.now, self._streams[block]
        # How long a stream has been ready does not matter, because others become ready later.
        waiting = {
            stream_state.number
            for stream_states in self._gathered
            for stream_state in stream_states
            if stream_state.start < now
        }
        state: list[object] = []
        for stream_state, known in zip(self._stream_states, ended, strict=True):
            segment = stream_state.segment
            ahead = len(stream_state.ends) > known
            begun = stream_state.start >= 0 and stream_state.number not in waiting
            if segment is not None and segment.block == block:
                state += (stream_state.iteration - iteration, stream_state.index)
            elif ahead or begun or (segment and segment.block < block and stream_state.stream in streams):
                return None
            else:
                state.append((segment.block, stream_state.iteration, stream_state.index) if segment else None)
            if (
                known and stream_state.ends[known - 1] == now
            ):  # an operation that begins now may have it as predecessor
                state.append(known - bisect_left(stream_state.ends, now))
            if ahead:
                state.append(
                    tuple(
                        [
                            (
                                stream_state.starts[i] - now,
                                stream_state.ends[i] - now,
                                self._relative(stream_state.predecessors[i]),
                            )
                            for i in range(known, len(stream_state.ends))
                        ]
                    )
                )
            if begun:
                state += (stream_state.start - now, self._relative(stream_state.after))
            if stream_state.waiters:
                state.append(tuple([waiter.number for _, waiter in stream_state.waiters]))
        state += [
            tuple([stream_state.number for stream_state in stream_states])
            for stream_states in self._gathered
            if stream_states
        ]
        for time, calls in self._clock.pending():
            state.append(time - now)
            state += [one.number if isinstance(one, StreamState) else -1 for _, one in calls]
            state.append(None)
        state += [(stream_state.number, left) for stream_state, left in self._network.in_flight()]
        return tuple(state)

    def _relative(self, after: int) -> tuple[int, int] | None:
        """Return a stream, and how many operations it has completed since the one meant."""
        if after == NOTHING:
            return None
        ordinal, number = divmod(after, len(self._stream_states))
        return number, self._stream_states[number].done - ordinal

    def _later(self, after: int, ahead: Mapping[int, int]) -> int:
        stream_states = len(self._stream_states)
        return after if after == NOTHING else after + ahead.get(after % stream_states, 0) * stream_states

    def _jump(
        self, inside: Sequence[StreamState], before: _Snapshot, iteration: int, ended: tuple[int, ...]
    ) -> None:
        clock, period = self._clock, iteration - before.iteration
        times = min(_periods(stream_state, period, self._block) for stream_state in inside)
        if times < 1:
            return
        iterations = times * period
        ahead = {stream_state.number: iterations * len(stream_state.actions) for stream_state in inside}
        for stream_state in inside:
            stream_state.skip(iterations)
            stream_state.waiters = [
                (needed + ahead[stream_state.number] if _is_in(waiter, self._block) else needed, waiter)
                for needed, waiter in stream_state.waiters
            ]
            # Operations with known times, and running ones, now represent their last copies.
            stream_state.after = self._later(stream_state.after, ahead)
            for i in range(ended[stream_state.number], len(stream_state.predecessors)):
                stream_state.predecessors[i] = self._later(stream_state.predecessors[i], ahead)
        length = clock.now - before.time
        self._network.repeat(before.allocation_mark, times)
        clock.skip(times * length)
        self.skips.append(SkippedInterval(before.ended, ended, before.time, clock.now, times))
        self.skipped.append(
            SkippedPeriods(
                block=self._block,
                name=self._blocks[self._block].name,
                iteration=iteration,
                period=period,
                length=length,
                times=times,
            )
        )
        self._snapshots.clear()


def _is_in(stream_state: StreamState, block: int) -> bool:
    return stream_state.segment is not None and stream_state.segment.block == block


def _periods(stream_state: StreamState, period: int, block: int) -> int:
    """Return for how many periods a stream can continue before it leaves the block or reaches a waiter behind
    it."""
    assert stream_state.segment is not None
    times = (stream_state.segment.repeat - 1 - stream_state.iteration) // period
    for needed, waiter in stream_state.waiters:
        if not _is_in(waiter, block):
            times = min(times, (needed - 1 - stream_state.done) // (period * len(stream_state.actions)))
    return times
