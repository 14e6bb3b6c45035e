"""The loop: every rank works through its streams in order, as dependencies and links allow.

An operation begins when its stream is free, its dependencies are done and, if it is collective, all ranks of
its program are ready; it lasts its fixed time and then moves its bytes. Only bytes whose rate depends on
other transfers need the clock: the end of everything else is known as soon as its start is, so that a stream
proceeds through such operations, ahead of the clock, until it reaches one whose start is not known yet. In a
block that repeats it stops at the end of every iteration until the clock has reached that time, where a
steady state can be detected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from simoffload.engine.clock import Clock
from simoffload.engine.fold import fold_ranks
from simoffload.engine.network import Network
from simoffload.engine.outcome import timeline_of
from simoffload.engine.steady import LEAST, SteadyState
from simoffload.engine.stream_state import NOTHING, StreamState, make_stream_states
from simoffload.errors import DeadlockError, SimulationError
from simoffload.limits import count_operations
from simoffload.results import How, Timeline
from simoffload.schedule import (
    CompiledOp,
    CompiledSchedule,
    Schedule,
    check_schedule,
    find_contention,
)

_AT_ONCE = 1000
"""Operations after which a stream lets other streams proceed."""

_NAMED = 8
"""Number of operations that an error message lists."""


def execute(
    schedule: Schedule,
    *,
    rank_symmetry: bool = True,
    steady_state: bool = True,
) -> Timeline:
    """Replay ``schedule`` and return its timeline.

    ``rank_symmetry`` runs identical ranks as one; ``steady_state`` counts the periods of a steady state
    instead of running them. Neither changes a picosecond. Raises SimulationError if the schedule is not valid
    or takes longer than the columns of a timeline can hold, WorkLimitError if it has more operations, counted
    ones included, than the limits of the question allow.
    """
    check_schedule(schedule)
    count_operations(schedule.name, schedule.operations)
    folding = fold_ranks(schedule) if rank_symmetry and schedule.ranks > 1 else None
    if folding is None or len(folding.classes) == schedule.ranks:
        timeline = Loop(schedule, steady_state=steady_state).run()
        why = "" if schedule.ranks == 1 else "no two ranks are identical" if rank_symmetry else "switched off"
    else:
        folded = Loop(folding.schedule, steady_state=steady_state, standing_for=folding.classes)
        timeline = folding.unfold(folded.run(), schedule)
        why = ""
    how = timeline.how if steady_state else How(not_steady=("steady_state is switched off",))
    return replace(timeline, how=how._replace(separate_ranks=why))


class Loop:
    """One run of one schedule, which must be valid."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        steady_state: bool = False,
        standing_for: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._schedule = schedule
        self._number = schedule.ranks
        self._ranks = standing_for or [(rank,) for rank in range(schedule.ranks)]
        self._clock = Clock(running=self._running)
        self._contention = find_contention(schedule)
        self._network: Network[StreamState] = Network(
            schedule, self._clock, self._finish_transfers, flows=[len(ranks) for ranks in self._ranks]
        )
        compiled = CompiledSchedule(schedule)
        self._stream_states = make_stream_states(schedule, self._contention, compiled)
        self._tracks = len(self._stream_states)
        self._members = [len(program.ranks) for program in schedule.owners]  # by stream
        # Streams take turns through this queue and not through recursion or the clock.
        self._ready: deque[StreamState] = deque(self._stream_states)
        # Streams whose next operation is collective and ready, until it is ready on all ranks of the program.
        self._gathered: list[list[StreamState]] = [[] for _ in schedule.streams]
        self._steady = (
            SteadyState(
                schedule=schedule,
                compiled=compiled,
                stream_states=self._stream_states,
                gathered=self._gathered,
                clock=self._clock,
                network=self._network,
            )
            if steady_state
            else None
        )

    def run(self) -> Timeline:
        """Run to the end and return the timeline.

        Raises DeadlockError if operations remain that nothing will ever start, SimulationError if times do
        not fit into the columns.
        """
        steady = self._steady
        try:
            self._work()
            self._clock.run()
            if any(stream_state.actions for stream_state in self._stream_states):
                raise DeadlockError(self._deadlock())
            skips = steady.skips if steady is not None else []
            timeline = timeline_of(
                self._schedule, self._contention, self._stream_states, self._network, skips
            )
        except OverflowError:
            raise SimulationError(
                "the run takes longer than 2^63 ps (106 simulated days), which is what a timeline holds; "
                "simulate less of it"
            ) from None
        if steady is not None:
            timeline.how = How(tuple(steady.skipped), not_steady=steady.misses())
        self._part()
        return timeline

    def _part(self) -> None:
        """Let all parts go, which know each other: the interpreter need not search for them as garbage."""
        for stream_state in self._stream_states:
            stream_state.awaited = ()
        vars(self).clear()

    def _work(self) -> None:
        """Let streams proceed until each is finished or waits for the clock, for bytes or for another
        stream."""
        ready, go_on = self._ready, self._advance
        while ready:
            stream_state = ready.popleft()
            go_on(stream_state)
            waiters = stream_state.waiters
            if not waiters:
                continue
            done = stream_state.skipped + len(stream_state.ends)  # check again those that waited for it
            if len(waiters) == 1:
                needed, waiter = waiters[0]
                if needed <= done:
                    waiters.clear()
                    ready.append(waiter)
            else:
                stream_state.waiters = [waiter for waiter in waiters if waiter[0] > done]
                ready.extend([waiter for needed, waiter in waiters if needed <= done])

    def _advance(self, stream_state: StreamState) -> None:
        """Run operations of an iteration as long as their start and end are known."""
        awaited, starts, ends, predecessors, completed = (
            stream_state.awaited,
            stream_state.starts,
            stream_state.ends,
            stream_state.predecessors,
            stream_state.completed,
        )
        free = ends[-1] if ends else 0
        actions, iteration = stream_state.actions, stream_state.iteration
        stop = min(len(actions), stream_state.index + _AT_ONCE)
        for index in range(stream_state.index, stop):
            fixed, waits, needs, step = actions[index]
            start, after = free, NOTHING
            for place, per_iteration, offset in needs:
                needed = offset + iteration * per_iteration
                other = awaited[place]
                number, known = needed - other.skipped, other.ends
                if number > len(known):
                    stream_state.index = index
                    other.waiters.append((needed, stream_state))
                    return
                if number > 0 and known[number - 1] > start:
                    start, after = known[number - 1], (needed - 1) * self._tracks + other.number
            if waits:
                stream_state.index, stream_state.start, stream_state.after = index, start, after
                if step.op.collective and self._members[stream_state.stream] > 1:
                    self._gather(stream_state)
                else:
                    self._begin(stream_state, fixed)
                return
            free = start + fixed
            starts.append(start)
            ends.append(free)
            predecessors.append(after)
            completed.append(step)
        stream_state.index = stop
        if stop < len(actions):
            self._ready.append(stream_state)
        elif stream_state.segment is not None:
            self._end_iteration(stream_state, stream_state.segment.total, free)

    def _end_iteration(self, stream_state: StreamState, total: int, end: int) -> None:
        """Begin the next iteration; where a steady state may be detected, when the clock has reached the end
        of this one."""
        if self._steady is not None and end > self._clock.now and total >= LEAST:
            self._clock.call_at(end, self._advance_later, stream_state)
        else:
            self._next_iteration(stream_state)
            self._ready.append(stream_state)

    def _advance_later(self, stream_state: StreamState) -> None:
        self._next_iteration(stream_state)
        self._ready.append(stream_state)
        self._work()

    def _next_iteration(self, stream_state: StreamState) -> None:
        stream_state.next_iteration()
        if self._steady is not None and stream_state.watched:
            self._steady.passed(stream_state)

    def _gather(self, stream_state: StreamState) -> None:
        """Note that a stream is ready for a collective operation; begin it with the last rank of the
        program."""
        gathered = self._gathered[stream_state.stream]
        gathered.append(stream_state)
        if len(gathered) < self._members[stream_state.stream]:
            return
        self._gathered[stream_state.stream] = []
        start = max([member.start for member in gathered])
        last = next(member for member in gathered if member.start == start)
        after = last.after
        if after == NOTHING and last.done:
            after = (last.done - 1) * self._tracks + last.number
        for member in gathered:
            if member.start < start:
                member.start, member.after = start, after
            self._begin(member, member.actions[member.index][0])

    def _begin(self, stream_state: StreamState, fixed: int) -> None:
        """Begin an operation that shares links or is collective at ``stream_state.start``."""
        ready = stream_state.start + fixed
        op = stream_state.step.op
        if not op.size or self._contention.rates[op.route][stream_state.rank]:
            self._finish(stream_state, ready)
        elif ready > self._clock.now:
            self._clock.call_at(ready, self._join, stream_state)
        else:
            self._join(stream_state)

    def _join(self, stream_state: StreamState) -> None:
        op = stream_state.step.op
        self._network.join(op.route * self._number + stream_state.rank, op.size, stream_state)

    def _finish_transfers(self, stream_states: Iterable[StreamState]) -> None:
        for stream_state in stream_states:
            self._finish(stream_state, self._clock.now)
        self._work()

    def _finish(self, stream_state: StreamState, end: int) -> None:
        stream_state.note(stream_state.step, stream_state.start, end, stream_state.after)
        stream_state.start, stream_state.after = -1, NOTHING
        stream_state.index += 1
        self._ready.append(stream_state)

    def _running(self) -> str:
        """Return the names of the operations that run at the current time."""
        names = []
        for stream_state in self._stream_states:
            number = bisect_right(stream_state.ends, self._clock.now)
            if number < len(stream_state.ends):
                names.append(
                    self._name(stream_state, stream_state.completed[number], stream_state.skipped + number)
                )
            elif stream_state.start >= 0:
                names.append(self._name(stream_state, stream_state.step, stream_state.done))
        return self._list(names) or "nothing"

    def _deadlock(self) -> str:
        waiting = [
            f"{self._name(one, one.step, one.done)} waits for {self._reason(one)}"
            for one in self._stream_states
            if one.actions
        ]
        return f"deadlock at {self._clock.now + self._clock.skipped} ps: {self._list(waiting)}"

    def _name(self, stream_state: StreamState, step: CompiledOp, ordinal: int) -> str:
        rank, stream = self._ranks[stream_state.rank][0], self._schedule.labels[stream_state.stream]
        return (
            f"rank {rank}, stream {stream!r}: {step.op.kind} {step.op.label!r} "
            f"(block {self._schedule.blocks[step.block].name!r}, iteration {step.iteration(ordinal)})"
        )

    def _reason(self, stream_state: StreamState) -> str:
        unmet = stream_state.unmet()
        if unmet is None:
            return (
                f"{self._members[stream_state.stream] - len(self._gathered[stream_state.stream])} other ranks"
            )
        other, needed = unmet
        whose = "" if other.rank == stream_state.rank else f" of rank {self._ranks[other.rank][0]}"
        stream = self._schedule.labels[other.stream]
        return f"operation {needed} of stream {stream!r}{whose}, which has completed {other.done}"

    @staticmethod
    def _list(names: list[str]) -> str:
        more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return "; ".join(names[:_NAMED] + more)
