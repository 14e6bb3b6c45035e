"""Runs a schedule: every rank works through its streams in order, as dependencies and links allow.

An operation passes through at most three states: it waits (for its stream, its dependencies and, if it
is collective, for the other ranks), it lasts its fixed time, it moves its bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from simoffload.engine.clock import Clock
from simoffload.engine.network import Network
from simoffload.engine.program import Segment, Step, compile_streams
from simoffload.engine.recorder import Recorder
from simoffload.errors import DeadlockError, WorkLimitError
from simoffload.results.timeline import Timeline
from simoffload.schedule import Schedule
from simoffload.schedule.checks import check_schedule

__all__ = ["Executor", "execute"]

_NAMED = 8
"""Operations that an error message names."""


def execute(schedule: Schedule, *, record: bool = True, max_events: int | None = None) -> Timeline:
    """Replay ``schedule`` and return when everything happened.

    With ``record`` off the timeline has totals but no operations. Raises SimulationError if the
    schedule is not sound or its end does not fit into the columns, WorkLimitError if the run has more
    than ``max_events`` operations or takes more than ``max_events`` clock events.
    """
    check_schedule(schedule)
    operations = schedule.ranks * sum(len(block.ops) * block.repeat for block in schedule.blocks)
    if max_events is not None and operations > max_events:
        raise WorkLimitError(f"the schedule has {operations} operations; the limit is {max_events}")
    return Executor(schedule, record=record, max_events=max_events).run()


class _Lane:
    """One stream of one rank and how far it has got."""

    __slots__ = (
        "done",
        "index",
        "iteration",
        "rank",
        "segment",
        "segments",
        "siblings",
        "start",
        "step",
        "stream",
        "waiters",
    )

    def __init__(self, rank: int, stream: int, segments: tuple[Segment, ...]) -> None:
        self.rank = rank
        self.stream = stream
        self.segments = iter(segments)
        self.segment = next(self.segments, None)
        self.iteration = 0
        self.index = 0
        self.step = None if self.segment is None else self.segment.steps[0]
        self.start = -1  # [ps] of the operation under way; -1 = it waits
        self.done = 0
        self.siblings: tuple[_Lane, ...] = ()  # the lanes of this rank, by stream
        self.waiters: list[tuple[int, _Lane]] = []  # (value of `done` that is awaited, by whom)

    def advance(self) -> None:
        """Go on to the next operation; ``step`` is None after the last."""
        segment = self.segment
        assert segment is not None
        self.index += 1
        if self.index == len(segment.steps):
            self.index = 0
            self.iteration += 1
            if self.iteration == segment.repeat:
                self.iteration = 0
                self.segment = segment = next(self.segments, None)
                if segment is None:
                    self.step = None
                    return
        self.step = segment.steps[self.index]

    def unmet(self, step: Step) -> tuple[_Lane, int] | None:
        """Return a lane that has not got far enough for ``step``, and how far it has to get."""
        for stream, per_iteration, offset in step.needs:
            needed = offset + self.iteration * per_iteration
            other = self.siblings[stream]
            if other.done < needed:
                return other, needed
        return None


class Executor:
    """One run of one schedule, which is taken to be sound."""

    def __init__(self, schedule: Schedule, *, record: bool = True, max_events: int | None = None) -> None:
        self._schedule = schedule
        self._clock = Clock(max_events=max_events, running=self._running)
        self._network: Network[_Lane] = Network(schedule, self._clock, self._finish_transfers)
        self._recorder = Recorder(schedule, record=record)
        streams = compile_streams(schedule)
        self._lanes: list[_Lane] = []
        for rank in range(schedule.ranks):
            own = tuple(_Lane(rank, stream, segments) for stream, segments in enumerate(streams))
            for lane in own:
                lane.siblings = own
            self._lanes.extend(own)
        # Zero-length operations go through this queue and not through recursion or the clock.
        self._ready: deque[_Lane] = deque(lane for lane in self._lanes if lane.step is not None)
        # Lanes whose next operation is ready and collective, until those of all ranks are.
        self._gathered: list[list[_Lane]] = [[] for _ in streams]

    def run(self) -> Timeline:
        """Run to the end.

        Raises DeadlockError if operations remain that nothing will ever start.
        """
        self._start_ready()
        self._clock.run()
        if any(lane.step is not None for lane in self._lanes):
            raise DeadlockError(self._deadlock())
        return self._recorder.finish(self._network.use(), events=self._clock.events)

    def _start_ready(self) -> None:
        """Start what can start, until every lane is under way, waits or is through."""
        ready = self._ready
        while ready:
            lane = ready.popleft()
            step = lane.step
            assert step is not None
            unmet = lane.unmet(step)
            if unmet is not None:
                other, needed = unmet
                other.waiters.append((needed, lane))
            elif step.collective:
                gathered = self._gathered[lane.stream]
                gathered.append(lane)
                if len(gathered) == self._schedule.ranks:
                    self._gathered[lane.stream] = []
                    for member in gathered:
                        self._start(member, step)
            else:
                self._start(lane, step)

    def _start(self, lane: _Lane, step: Step) -> None:
        now = self._clock.now
        lane.start = now
        if step.fixed:
            self._clock.call_at(now + step.fixed, self._finish_fixed, lane)
        elif step.size:
            self._network.join(step.route * self._schedule.ranks + lane.rank, step.size, lane)
        else:
            self._finish(lane, step)

    def _finish_fixed(self, lane: _Lane) -> None:
        step = lane.step
        assert step is not None
        if step.size:
            self._network.join(step.route * self._schedule.ranks + lane.rank, step.size, lane)
        else:
            self._finish(lane, step)
            self._start_ready()

    def _finish_transfers(self, lanes: Iterable[_Lane]) -> None:
        for lane in lanes:
            assert lane.step is not None
            self._finish(lane, lane.step)
        self._start_ready()

    def _finish(self, lane: _Lane, step: Step) -> None:
        assert lane.segment is not None
        self._recorder.add(
            lane.rank, lane.segment.block, lane.iteration, step.position, lane.start, self._clock.now
        )
        lane.start = -1
        lane.done += 1
        lane.advance()
        ready = self._ready
        if lane.waiters:
            still_waiting = []
            for waiter in lane.waiters:
                if waiter[0] <= lane.done:
                    ready.append(waiter[1])
                else:
                    still_waiting.append(waiter)
            lane.waiters = still_waiting
        if lane.step is not None:
            ready.append(lane)

    def _running(self) -> str:
        return self._list([self._name(lane) for lane in self._lanes if lane.start >= 0]) or "nothing"

    def _deadlock(self) -> str:
        waiting = [
            f"{self._name(lane)} waits for {self._reason(lane, lane.step)}"
            for lane in self._lanes
            if lane.step is not None
        ]
        return f"nothing can go on at {self._clock.now} ps: {self._list(waiting)}"

    def _name(self, lane: _Lane) -> str:
        assert lane.segment is not None
        assert lane.step is not None
        block = self._schedule.blocks[lane.segment.block]
        op = block.ops[lane.step.position]
        return (
            f"rank {lane.rank}, stream {self._schedule.streams[lane.stream]!r}: {op.kind} {op.label!r} "
            f"(block {block.name!r}, iteration {lane.iteration})"
        )

    def _reason(self, lane: _Lane, step: Step) -> str:
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
