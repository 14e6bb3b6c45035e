"""Runs a schedule: every rank works through its streams in order, as dependencies and links allow.

An operation begins when its stream is free, its dependencies are done and, if it is collective, all ranks of
its program are ready; it lasts its fixed time and then moves its bytes. Only bytes whose rate depends on
other transfers need the clock: the end of everything else is certain as soon as its beginning is, and a lane
goes on through such operations, ahead of the clock, until it meets one whose beginning is not certain yet.
In a block that repeats it stops at the end of every iteration until the clock is there, where a steady state
can be looked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from simoffload.engine.clock import Clock
from simoffload.engine.folding import fold_ranks
from simoffload.engine.network import Network
from simoffload.engine.outcome import timeline_of
from simoffload.engine.steady import LEAST, SteadyState
from simoffload.engine.stream_state import NOTHING, StreamState, make_stream_states
from simoffload.errors import DeadlockError, SimulationError
from simoffload.limits import count_operations
from simoffload.results.timeline import How, Timeline
from simoffload.schedule import Schedule
from simoffload.schedule.bounds import find_contention
from simoffload.schedule.checks import check_schedule
from simoffload.schedule.ir import CompiledOp

__all__ = ["Executor", "execute"]

_AT_ONCE = 1000
"""Operations after which a lane lets others go on."""

_NAMED = 8
"""Operations that an error message names."""


def execute(
    schedule: Schedule,
    *,
    fold: bool = True,
    jump: bool = True,
) -> Timeline:
    """Replay ``schedule`` and return when everything happened.

    ``fold`` runs ranks that are alike as one, ``jump`` counts what repeats in a steady state instead of
    running it; neither changes a picosecond. Raises SimulationError if the schedule is not sound or takes
    longer than the columns of a timeline hold, WorkLimitError if it has more operations, counted ones
    included, than the limits of the question allow.
    """
    check_schedule(schedule)
    count_operations(schedule.name, schedule.operations)
    folding = fold_ranks(schedule) if fold and schedule.ranks > 1 else None
    if folding is None or len(folding.classes) == schedule.ranks:
        timeline = Executor(schedule, jump=jump).run()
        why = "" if schedule.ranks == 1 else "no two ranks are alike" if fold else "switched off"
    else:
        one = Executor(folding.schedule, jump=jump, standing_for=folding.classes)
        timeline = folding.unfold(one.run(), schedule)
        why = ""
    how = timeline.how if jump else How(not_jumped=("jump is switched off",))
    return replace(timeline, how=how._replace(not_folded=why))


class Executor:
    """One run of one schedule, which is taken to be sound."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        jump: bool = False,
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
        self._stream_states = make_stream_states(schedule, self._contention)
        self._tracks = len(self._stream_states)
        self._members = [len(program.ranks) for program in schedule.owners]  # by stream
        # Lanes take turns through this queue and not through recursion or the clock.
        self._ready: deque[StreamState] = deque(self._stream_states)
        # Lanes whose next operation is ready and collective, until those of all ranks of the program are.
        self._gathered: list[list[StreamState]] = [[] for _ in schedule.streams]
        self._steady = (
            SteadyState(
                schedule=schedule,
                stream_states=self._stream_states,
                gathered=self._gathered,
                clock=self._clock,
                network=self._network,
            )
            if jump
            else None
        )

    def run(self) -> Timeline:
        """Run to the end.

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
            timeline.how = How(tuple(steady.jumps), not_jumped=steady.misses())
        return timeline

    def _work(self) -> None:
        """Let lanes go on until each is through or waits for the clock, for bytes or for another lane."""
        ready, go_on = self._ready, self._advance
        while ready:
            stream_state = ready.popleft()
            go_on(stream_state)
            waiters = stream_state.waiters
            if not waiters:
                continue
            done = stream_state.skipped + len(stream_state.ends)  # look again at those that waited for it
            if len(waiters) == 1:
                needed, waiter = waiters[0]
                if needed <= done:
                    waiters.clear()
                    ready.append(waiter)
            else:
                stream_state.waiters = [waiter for waiter in waiters if waiter[0] > done]
                ready.extend([waiter for needed, waiter in waiters if needed <= done])

    def _advance(self, stream_state: StreamState) -> None:
        """Carry out operations of an iteration as long as it is certain when they begin and end."""
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
            self._end_iteration(stream_state, stream_state.segment.repeat, free)

    def _end_iteration(self, stream_state: StreamState, repeat: int, end: int) -> None:
        """Let a lane begin the next one when the clock is there, if a steady state may be seen then."""
        if self._steady is not None and end > self._clock.now and repeat >= LEAST:
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
        """A lane is ready for a collective operation; with the last one of the program it begins."""
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
        """What goes on now, in words."""
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
        return f"nothing can go on at {self._clock.now + self._clock.skipped} ps: {self._list(waiting)}"

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
        return f"operation {needed} of stream {stream!r}{whose}, which has done {other.done}"

    @staticmethod
    def _list(names: list[str]) -> str:
        more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return "; ".join(names[:_NAMED] + more)
