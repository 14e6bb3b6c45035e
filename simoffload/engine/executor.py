"""Runs a schedule: every rank works through its streams in order, as dependencies and links allow.

An operation passes through at most three states: it waits (for its stream, its dependencies and, if it
is collective, for the other ranks), it lasts its fixed time, it moves its bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from simoffload.engine.clock import Clock
from simoffload.engine.folding import fold_ranks
from simoffload.engine.lane import Lane
from simoffload.engine.network import Network
from simoffload.engine.program import Step, compile_streams
from simoffload.engine.recorder import Recorder
from simoffload.engine.steady import SteadyState
from simoffload.errors import DeadlockError, WorkLimitError
from simoffload.results.timeline import How, Timeline
from simoffload.schedule import Schedule
from simoffload.schedule.checks import check_schedule

__all__ = ["Executor", "execute"]

_NAMED = 8
"""Operations that an error message names."""


def execute(
    schedule: Schedule,
    *,
    record: bool = True,
    fold: bool = True,
    jump: bool = True,
    max_events: int | None = None,
    deadline: float | None = None,
) -> Timeline:
    """Replay ``schedule`` and return when everything happened.

    With ``record`` off the timeline has totals but no operations. ``fold`` runs ranks that are alike as one,
    ``jump`` counts what repeats in a steady state instead of running it; neither changes a picosecond.
    Raises SimulationError if the schedule is not sound or its end does not fit into the columns,
    WorkLimitError if the run has more than ``max_events`` operations or takes more than ``max_events`` clock
    events, skipped ones included, or is not done at ``deadline`` (of ``time.monotonic``).
    """
    check_schedule(schedule)
    operations = schedule.ranks * sum(len(block.ops) * block.repeat for block in schedule.blocks)
    if max_events is not None and operations > max_events:
        raise WorkLimitError(f"the schedule has {operations} operations; the limit is {max_events}")
    folding = fold_ranks(schedule) if fold and schedule.ranks > 1 else None
    if folding is None or len(folding.classes) == schedule.ranks:
        timeline = Executor(
            schedule, record=record, jump=jump, max_events=max_events, deadline=deadline
        ).run()
        why = "" if schedule.ranks == 1 else "no two ranks are alike" if fold else "switched off"
    else:
        one = Executor(
            folding.schedule,
            record=record,
            jump=jump,
            max_events=max_events,
            deadline=deadline,
            standing_for=folding.classes,
        )
        timeline = folding.unfold(one.run(), schedule)
        why = ""
    how = timeline.how if jump else How(not_jumped=("switched off",))
    return replace(timeline, how=how._replace(not_folded=why))


class Executor:
    """One run of one schedule, which is taken to be sound."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        record: bool = True,
        jump: bool = False,
        max_events: int | None = None,
        deadline: float | None = None,
        standing_for: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._schedule = schedule
        self._number = schedule.ranks
        self._ranks = standing_for or [(rank,) for rank in range(schedule.ranks)]
        self._clock = Clock(max_events=max_events, deadline=deadline, running=self._running)
        self._network: Network[Lane] = Network(
            schedule, self._clock, self._finish_transfers, flows=[len(ranks) for ranks in self._ranks]
        )
        self._recorder = Recorder(schedule, record=record)
        streams = compile_streams(schedule)
        self._lanes: list[Lane] = []
        for rank in range(schedule.ranks):
            own = tuple(
                Lane(number=len(self._lanes) + stream, rank=rank, stream=stream, segments=segments)
                for stream, segments in enumerate(streams)
            )
            for lane in own:
                lane.siblings = own
            self._lanes.extend(own)
        # Zero-length operations go through this queue and not through recursion or the clock.
        self._ready: deque[Lane] = deque(lane for lane in self._lanes if lane.step is not None)
        # Lanes whose next operation is ready and collective, until those of all ranks are.
        self._gathered: list[list[Lane]] = [[] for _ in streams]
        self._steady = (
            SteadyState(
                schedule=schedule,
                lanes=self._lanes,
                gathered=self._gathered,
                clock=self._clock,
                network=self._network,
                recorder=self._recorder,
            )
            if jump
            else None
        )

    def run(self) -> Timeline:
        """Run to the end.

        Raises DeadlockError if operations remain that nothing will ever start.
        """
        self._start_ready()
        self._clock.run()
        if any(lane.step is not None for lane in self._lanes):
            raise DeadlockError(self._deadlock())
        timeline = self._recorder.finish(self._network.use(), events=self._clock.events)
        timeline.constant_rates = self._network.constant_rates
        if self._steady is not None:
            timeline.how = How(tuple(self._steady.jumps), not_jumped=self._steady.misses())
        return timeline

    def _start_ready(self) -> None:
        """Start what can start, until every lane is under way, waits or is through."""
        ready = self._ready
        while ready:
            lane = ready.popleft()
            step = lane.step
            assert step is not None
            if step.needs and lane.waits(step):
                continue
            if step.collective and self._number > 1:
                gathered = self._gathered[lane.stream]
                gathered.append(lane)
                if len(gathered) == self._number:
                    self._gathered[lane.stream] = []
                    for member in gathered:
                        self._start(member, step)
            else:
                self._start(lane, step)

    def _start(self, lane: Lane, step: Step) -> None:
        lane.start = now = self._clock.now
        if step.fixed:
            self._clock.call_at(now + step.fixed, self._finish_fixed, lane)
        elif step.size:
            self._network.join(step.route * self._number + lane.rank, step.size, lane)
        else:
            self._finish(lane, step)

    def _finish_fixed(self, lane: Lane) -> None:
        step = lane.step
        assert step is not None
        if step.size:
            self._network.join(step.route * self._number + lane.rank, step.size, lane)
        else:
            self._finish(lane, step)
            if self._ready:
                self._start_ready()

    def _finish_transfers(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            assert lane.step is not None
            self._finish(lane, lane.step)
        self._start_ready()

    def _finish(self, lane: Lane, step: Step) -> None:
        self._recorder.add(lane.rank, lane.block, lane.iteration, step.position, lane.start, self._clock.now)
        lane.start = -1
        lane.advance()
        if not lane.index and not lane.rank and self._steady is not None:
            self._steady.passed(lane)
        if lane.waiters:
            self._wake(lane)
        if lane.step is not None:
            self._ready.append(lane)

    def _wake(self, lane: Lane) -> None:
        """Look again at those that waited for what ``lane`` has done now."""
        still_waiting = []
        for waiter in lane.waiters:
            if waiter[0] <= lane.done:
                self._ready.append(waiter[1])
            else:
                still_waiting.append(waiter)
        lane.waiters = still_waiting

    def _running(self) -> str:
        return self._list([self._name(lane) for lane in self._lanes if lane.start >= 0]) or "nothing"

    def _deadlock(self) -> str:
        waiting = [
            f"{self._name(lane)} waits for {self._reason(lane, lane.step)}"
            for lane in self._lanes
            if lane.step is not None
        ]
        return f"nothing can go on at {self._clock.now + self._clock.skipped} ps: {self._list(waiting)}"

    def _name(self, lane: Lane) -> str:
        assert lane.segment is not None
        assert lane.step is not None
        block = self._schedule.blocks[lane.segment.block]
        op = block.ops[lane.step.position]
        rank, stream = self._ranks[lane.rank][0], self._schedule.streams[lane.stream]
        return (
            f"rank {rank}, stream {stream!r}: {op.kind} {op.label!r} "
            f"(block {block.name!r}, iteration {lane.iteration})"
        )

    def _reason(self, lane: Lane, step: Step) -> str:
        unmet = lane.unmet(step)
        if unmet is None:
            return f"{self._schedule.ranks - len(self._gathered[lane.stream])} other ranks"
        other, needed = unmet
        stream = self._schedule.streams[other.stream]
        return f"operation {needed} of stream {stream!r}, which has done {other.done}"

    @staticmethod
    def _list(names: list[str]) -> str:
        more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return "; ".join(names[:_NAMED] + more)
