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
from simoffload.engine.lane import NOTHING, Lane, make_lanes
from simoffload.engine.network import Network
from simoffload.engine.outcome import timeline_of
from simoffload.engine.steady import LEAST, SteadyState
from simoffload.errors import DeadlockError, SimulationError
from simoffload.limits import count_operations
from simoffload.results.timeline import How, Timeline
from simoffload.schedule import Schedule
from simoffload.schedule.bounds import find_contention
from simoffload.schedule.checks import check_schedule
from simoffload.schedule.ir import Step

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
        self._network: Network[Lane] = Network(
            schedule, self._clock, self._finish_transfers, flows=[len(ranks) for ranks in self._ranks]
        )
        self._lanes = make_lanes(schedule, self._contention)
        self._tracks = len(self._lanes)
        self._members = [len(program.ranks) for program in schedule.owners]  # by stream
        # Lanes take turns through this queue and not through recursion or the clock.
        self._ready: deque[Lane] = deque(self._lanes)
        # Lanes whose next operation is ready and collective, until those of all ranks of the program are.
        self._gathered: list[list[Lane]] = [[] for _ in schedule.streams]
        self._steady = (
            SteadyState(
                schedule=schedule,
                lanes=self._lanes,
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
            if any(lane.actions for lane in self._lanes):
                raise DeadlockError(self._deadlock())
            skips = steady.skips if steady is not None else []
            timeline = timeline_of(self._schedule, self._contention, self._lanes, self._network, skips)
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
        ready, go_on = self._ready, self._go_on
        while ready:
            lane = ready.popleft()
            go_on(lane)
            waiters = lane.waiters
            if not waiters:
                continue
            done = lane.skipped + len(lane.ends)  # look again at those that waited for it
            if len(waiters) == 1:
                needed, waiter = waiters[0]
                if needed <= done:
                    waiters.clear()
                    ready.append(waiter)
            else:
                lane.waiters = [waiter for waiter in waiters if waiter[0] > done]
                ready.extend([waiter for needed, waiter in waiters if needed <= done])

    def _go_on(self, lane: Lane) -> None:
        """Carry out operations of an iteration as long as it is certain when they begin and end."""
        awaited, starts, ends, afters, did = lane.awaited, lane.starts, lane.ends, lane.afters, lane.did
        free = ends[-1] if ends else 0
        actions, iteration = lane.actions, lane.iteration
        stop = min(len(actions), lane.index + _AT_ONCE)
        for index in range(lane.index, stop):
            fixed, waits, needs, step = actions[index]
            start, after = free, NOTHING
            for place, per_iteration, offset in needs:
                needed = offset + iteration * per_iteration
                other = awaited[place]
                number, known = needed - other.skipped, other.ends
                if number > len(known):
                    lane.index = index
                    other.waiters.append((needed, lane))
                    return
                if number > 0 and known[number - 1] > start:
                    start, after = known[number - 1], (needed - 1) * self._tracks + other.number
            if waits:
                lane.index, lane.start, lane.after = index, start, after
                if step.op.collective and self._members[lane.stream] > 1:
                    self._gather(lane)
                else:
                    self._begin(lane, fixed)
                return
            free = start + fixed
            starts.append(start)
            ends.append(free)
            afters.append(after)
            did.append(step)
        lane.index = stop
        if stop < len(actions):
            self._ready.append(lane)
        elif lane.stretch is not None:
            self._end_iteration(lane, lane.stretch.repeat, free)

    def _end_iteration(self, lane: Lane, repeat: int, end: int) -> None:
        """Let a lane begin the next one when the clock is there, if a steady state may be seen then."""
        if self._steady is not None and end > self._clock.now and repeat >= LEAST:
            self._clock.call_at(end, self._go_on_later, lane)
        else:
            self._turn(lane)
            self._ready.append(lane)

    def _go_on_later(self, lane: Lane) -> None:
        self._turn(lane)
        self._ready.append(lane)
        self._work()

    def _turn(self, lane: Lane) -> None:
        lane.turn()
        if self._steady is not None and lane.watched:
            self._steady.passed(lane)

    def _gather(self, lane: Lane) -> None:
        """A lane is ready for a collective operation; with the last one of the program it begins."""
        gathered = self._gathered[lane.stream]
        gathered.append(lane)
        if len(gathered) < self._members[lane.stream]:
            return
        self._gathered[lane.stream] = []
        start = max([member.start for member in gathered])
        last = next(member for member in gathered if member.start == start)
        after = last.after
        if after == NOTHING and last.done:
            after = (last.done - 1) * self._tracks + last.number
        for member in gathered:
            if member.start < start:
                member.start, member.after = start, after
            self._begin(member, member.actions[member.index][0])

    def _begin(self, lane: Lane, fixed: int) -> None:
        """Begin an operation that shares links or is collective at ``lane.start``."""
        ready = lane.start + fixed
        op = lane.step.op
        if not op.size or self._contention.rates[op.route][lane.rank]:
            self._finish(lane, ready)
        elif ready > self._clock.now:
            self._clock.call_at(ready, self._join, lane)
        else:
            self._join(lane)

    def _join(self, lane: Lane) -> None:
        op = lane.step.op
        self._network.join(op.route * self._number + lane.rank, op.size, lane)

    def _finish_transfers(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self._finish(lane, self._clock.now)
        self._work()

    def _finish(self, lane: Lane, end: int) -> None:
        lane.note(lane.step, lane.start, end, lane.after)
        lane.start, lane.after = -1, NOTHING
        lane.index += 1
        self._ready.append(lane)

    def _running(self) -> str:
        """What goes on now, in words."""
        names = []
        for lane in self._lanes:
            number = bisect_right(lane.ends, self._clock.now)
            if number < len(lane.ends):
                names.append(self._name(lane, lane.did[number], lane.skipped + number))
            elif lane.start >= 0:
                names.append(self._name(lane, lane.step, lane.done))
        return self._list(names) or "nothing"

    def _deadlock(self) -> str:
        waiting = [
            f"{self._name(lane, lane.step, lane.done)} waits for {self._reason(lane)}"
            for lane in self._lanes
            if lane.actions
        ]
        return f"nothing can go on at {self._clock.now + self._clock.skipped} ps: {self._list(waiting)}"

    def _name(self, lane: Lane, step: Step, ordinal: int) -> str:
        rank, stream = self._ranks[lane.rank][0], self._schedule.labels[lane.stream]
        return (
            f"rank {rank}, stream {stream!r}: {step.op.kind} {step.op.label!r} "
            f"(block {self._schedule.blocks[step.block].name!r}, iteration {step.iteration(ordinal)})"
        )

    def _reason(self, lane: Lane) -> str:
        unmet = lane.unmet()
        if unmet is None:
            return f"{self._members[lane.stream] - len(self._gathered[lane.stream])} other ranks"
        other, needed = unmet
        whose = "" if other.rank == lane.rank else f" of rank {self._ranks[other.rank][0]}"
        stream = self._schedule.labels[other.stream]
        return f"operation {needed} of stream {stream!r}{whose}, which has done {other.done}"

    @staticmethod
    def _list(names: list[str]) -> str:
        more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return "; ".join(names[:_NAMED] + more)
