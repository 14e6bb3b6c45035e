"""A replica of a serving engine under a stream of requests: one SimPy process.

The process jumps over steps of the same sequences, to the next at which one finishes, blocks lack or an
arrived request may be admitted; the times of these steps grow evenly, so that their sum is a formula. No step
is split: an arrival is seen when the next step is scheduled.

With asynchronous scheduling (``step_with_batch_queue`` of vLLM 0.33.0, ``v1/engine/core.py``) the host
schedules and launches a step while the GPU computes the one before it, so that a step has the requests that
had arrived when the step two before it was done, and its output is seen when the next one is launched.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from math import ceil, inf, nan, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from simpy import Environment, Event, Interrupt

from simoffload.serving.scheduler import Outputs, ReplicaState, Runs, ScheduledWork, Scheduler

__all__ = ["Arrivals", "Replica", "Served", "StepTime", "StepTimes", "Steps", "serve", "serve_alone"]

Times = npt.NDArray[np.float64]


class StepTime(NamedTuple):
    """A StepTime has the times of a step, and of equal ones that follow it."""

    time: float
    """Time of the step on an idle replica [s]."""
    host: float = 0.0
    """Time until the host has launched the step [s]; 0 where it is hidden."""
    busy: float = 0.0
    """Work of the busiest stream beside the host, which keeps it from the next step [s]; 0: ``time``."""
    growth: float = 0.0
    """By how much each further step is longer [s]."""
    steps: int = 1
    """Number of steps for which this holds."""

    def total(self, steps: int) -> float:
        """Return the time of the first ``steps`` steps, one after the other [s]."""
        return steps * (self.time + self.growth * (steps - 1) / 2)

    def reaching(self, time: float) -> int:
        """Return the number of steps that end at ``time`` [s] or later, counted from the begin of the
        first."""
        if time <= 0:
            return 0
        half = self.growth / 2
        linear = self.time - half
        steps = ceil(2 * time / (linear + sqrt(linear * linear + 4 * half * time)))
        while steps and self.total(steps - 1) >= time:
            steps -= 1
        while self.total(steps) < time:
            steps += 1
        return steps


class StepTimes(Protocol):
    """StepTimes are the durations of steps on one replica."""

    def of(self, work: ScheduledWork, state: ReplicaState) -> StepTime:
        """Return the time of the first step of some work, and how it grows."""


class Arrivals(Protocol):
    """Arrivals are the requests of a stream, by arrival."""

    @property
    def arrival(self) -> Times:
        """Time of each request [s], ascending."""

    @property
    def prompt(self) -> npt.NDArray[np.int64]:
        """Tokens of the prompt of each request."""

    @property
    def output(self) -> npt.NDArray[np.int64]:
        """Tokens that each request generates."""

    @property
    def runs(self) -> Sequence[Runs]:
        """Runs of equal tokens of each prompt."""


class Steps(NamedTuple):
    """Steps are a log with a row for each jump; the steps of a row grow evenly."""

    begin: Times
    """Begin of the first step, which is the end of the one before unless the replica was idle [s]."""
    time: Times
    """Time of the first step [s]."""
    growth: Times
    """By how much each further step is longer [s]."""
    steps: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]
    """Sequences that receive a token in each step which follows another token of theirs."""


class Served(NamedTuple):
    """Served has the times of all requests of a replica, by their number, and the log of its steps."""

    queued: Times
    """Time at which a request arrived [s]."""
    scheduled: Times
    """Time at which it was admitted first [s]."""
    first: Times
    """Time of its first token [s]."""
    finished: Times
    """Time of its last token [s]."""
    prompt: npt.NDArray[np.int64]
    output: npt.NDArray[np.int64]
    preemptions: npt.NDArray[np.int64]
    cached: npt.NDArray[np.int64]
    """Tokens of its prompt that were found in the prefix cache."""
    log: Steps
    events: int
    """Number of jumps and single steps that were simulated."""

    @property
    def ttft(self) -> Times:
        """Time from the arrival of each request to its first token [s]."""
        return self.first - self.queued

    @property
    def tpot(self) -> Times:
        """Time per output token after the first one [s]; NaN for requests with one token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.output > 1, (self.finished - self.first) / (self.output - 1), nan)


class _Flight(NamedTuple):
    """A _Flight is the last step that was scheduled, whose output is not there."""

    end: float
    outputs: Outputs
    interrupted: list[int]
    """Requests that are preempted after this step."""


class Replica:
    """A Replica serves the requests that are submitted to it, in a process of ``env``."""

    def __init__(
        self,
        env: Environment,
        *,
        scheduler: Scheduler,
        state: ReplicaState,
        times: StepTimes,
        async_scheduling: bool = True,
        jump: bool = True,
    ) -> None:
        self._env, self._scheduler, self.state, self._times = env, scheduler, state, times
        self._ahead, self._jump = async_scheduling, jump
        self.first, self.finished, self._last = array("d"), array("d"), array("d")
        self._log = array("d")
        self.events = 0
        self._now = 0.0
        self._jumping = False
        self._idle: Event | None = None
        self._expected: Iterator[tuple[int, float]] = iter(())
        self._next, self._upcoming = 0, inf
        """Next request that is expected, and its arrival [s]."""
        self._followers: dict[int, tuple[int, float]] = {}
        """Request that arrives after the end of another one, and how long after it [s]."""
        self._process = env.process(self._serve())

    def submit(self, prompt: int, output: int, runs: Runs = None) -> int:
        """Let a request arrive now that passes ``ReplicaState.check``, and return its number."""
        number = self.state.add((prompt,), (output,), (runs,))
        self._unknown(1)
        self._arrive(number)
        return number

    def _arrive(self, request: int) -> None:
        seen = self._open()
        self.state.arrive(request, self._env.now)
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None
        elif self._jumping and seen:
            self._process.interrupt()

    def _follow(self, request: int, delay: float) -> Generator[Event, Any, None]:
        yield self._env.timeout(delay)
        self._arrive(request)

    def expect(self, arrivals: Arrivals, *, after: npt.NDArray[np.int64] | None = None) -> None:
        """Let the requests of a stream arrive, all of which are known: none interrupts a jump.

        ``after`` has, for each request, the row of another one, after whose end it arrives, its arrival being
        the time between [s]; -1: none. Raises InputError if the replica can never serve one.
        """
        prompt, output = arrivals.prompt.tolist(), arrivals.output.tolist()
        for row in zip(prompt, output, strict=True):
            self.state.check(*row)
        first = self.state.add(prompt, output, arrivals.runs)
        self._unknown(len(prompt))
        rows = list(enumerate(arrivals.arrival.tolist(), first))
        if after is not None:
            followed = after.tolist()
            self._followers = {
                first + other: row for other, row in zip(followed, rows, strict=True) if other >= 0
            }
            rows = [row for other, row in zip(followed, rows, strict=True) if other < 0]
        self._expected = iter(rows)
        self._next, self._upcoming = next(self._expected, (0, inf))

    def _unknown(self, count: int) -> None:
        for times in (self.first, self.finished, self._last):
            times.extend([nan] * count)

    @property
    def served(self) -> Served:
        """Times of all requests, NaN for what has not happened."""
        state = self.state
        begin, time, growth, steps, sequences = np.array(self._log).reshape(-1, 5).T
        return Served(
            queued=np.array(state.queued),
            scheduled=np.array(state.scheduled),
            first=np.array(self.first),
            finished=np.array(self.finished),
            prompt=np.array(state.prompt),
            output=np.array(state.output),
            preemptions=np.array(state.preemptions),
            cached=np.array(state.cached),
            log=Steps(begin, time, growth, steps.astype(np.int64), sequences.astype(np.int64)),
            events=self.events,
        )

    # -- the process --------------------------------------------------------------------------------

    def _serve(self) -> Generator[Event, Any, None]:
        state, env, flight = self.state, self._env, None
        while True:
            work = self._work(flight)
            if work is None:
                if flight is not None:
                    yield env.timeout(max(0.0, flight.end - env.now))
                    self._now = flight.end
                    self._output(flight, self._now)
                    flight = None
                elif self._upcoming < inf and not self._followers:
                    yield env.timeout(max(0.0, self._upcoming - env.now))
                    self._now = self._upcoming
                else:
                    called = self._idle = env.event()
                    if self._upcoming < inf:
                        yield called | env.timeout(max(0.0, self._upcoming - env.now))
                    else:
                        yield called
                    self._now = env.now if called.triggered else self._upcoming
                    self._idle = None
                continue
            self.events += 1
            one, ahead, begin = self._times.of(work, state), 0, self._now
            steps = min(work.steps, one.steps) if self._jump else 1
            end = begin + one.time
            if flight is not None:
                begin, ahead = flight.end, 1
                end = max(begin + (one.busy or one.time), end)
                followed = any(one in self._followers for one in flight.outputs.finished)
                if followed or (flight.outputs.left and not self._open()):
                    steps = 1  # what it frees may admit a request, and its end may call one
            if steps > 1:  # a jump, of whose steps none waits for its launch
                if self._upcoming < begin + one.total(steps) and self._open():
                    steps = min(steps, max(1, ahead + one.reaching(self._upcoming - begin)))
                end = begin + one.total(steps)
                then = begin + one.total(steps - ahead)
                self._jumping = True
            else:
                then = max(begin, self._now + one.host) if self._ahead else end
            while True:
                try:
                    yield env.timeout(max(0.0, then - env.now))
                    break
                except Interrupt:
                    steps = min(steps, max(1, ahead + one.reaching(env.now - begin)))
                    end = begin + one.total(steps)
                    then = begin + one.total(steps - ahead)
            self._now = then
            if flight is not None:
                self._output(flight, begin if self._jumping else then)
            self._jumping = False
            first = one.time if steps > 1 else end - begin
            self._log.extend((begin, first, one.growth, steps, work.sequences))
            flight = _Flight(end, state.advance(work, steps), [])
            if not self._ahead:
                self._output(flight, then)
                flight = None

    def _work(self, flight: _Flight | None) -> ScheduledWork | None:
        """Let the scheduler choose the next work; note the last tokens of requests that it preempts."""
        while self._upcoming <= self._now:
            self.state.arrive(self._next, self._upcoming)
            self._next, self._upcoming = next(self._expected, (0, inf))
        work = self._scheduler.admit(self.state, self._now)
        if interrupted := self.state.interrupted:
            if flight is not None:
                flight.interrupted.extend(interrupted)
            for request in interrupted if flight is None else ():
                self._last[request] = self._now
            interrupted.clear()
        return work

    def _open(self) -> bool:
        """Return whether a request that arrives now may be admitted at once."""
        return not self.state.waiting and self._scheduler.admits(self.state)

    def _output(self, flight: _Flight, now: float) -> None:
        """Note at which time the output of a step was there, and free what its requests held."""
        first, finished, left = flight.outputs
        for request in first:
            if self.first[request] != self.first[request]:
                self.first[request] = now
            else:  # it was preempted: its token follows one of before
                last = self._last[request]
                self._log.extend((last, now - last, 0.0, 1, 1))
        for request in finished:
            self.finished[request] = now
            if request in self._followers:
                self._env.process(self._follow(*self._followers.pop(request)))
        for request in flight.interrupted:
            self._last[request] = now
        self.state.leave(left)


def serve(
    replica: Replica,
    arrivals: Arrivals,
    env: Environment,
    *,
    after: npt.NDArray[np.int64] | None = None,
) -> Served:
    """Let the requests of a stream arrive at a replica, ``after`` others as in ``expect``, and simulate until
    all are finished.

    Raises InputError if the replica can never serve one.
    """
    replica.expect(arrivals, after=after)
    env.run()
    return replica.served


def serve_alone(
    arrivals: Arrivals,
    *,
    scheduler: Scheduler,
    state: ReplicaState,
    times: StepTimes,
    async_scheduling: bool = True,
    after: npt.NDArray[np.int64] | None = None,
) -> Served:
    """Let one replica serve a stream, as ``serve`` does, with a clock of its own."""
    env = Environment()
    replica = Replica(env, scheduler=scheduler, state=state, times=times, async_scheduling=async_scheduling)
    return serve(replica, arrivals, env, after=after)
