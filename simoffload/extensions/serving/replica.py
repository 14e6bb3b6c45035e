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
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from heapq import heappop, heappush
from math import ceil, inf, nan, sqrt
from struct import Struct
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from simpy import Environment, Event, Interrupt

from simoffload.extensions.serving.scheduler import (
    AFTER_ANY,
    NOTHING,
    Outputs,
    ReplicaState,
    Runs,
    ScheduledWork,
    Scheduler,
)
from simoffload.limits import uncollected

__all__ = [
    "Arrivals",
    "Replica",
    "ReplicaProcess",
    "Served",
    "StepMix",
    "StepTime",
    "StepTimes",
    "Steps",
    "serve",
    "turns",
]

Times = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_TURN = 4096
"""Number of steps and jumps between two looks at the clock, some 0.1 s (our choice)."""


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


class StepMix(NamedTuple):
    """A StepMix is the sum of many steps."""

    time: float = 0.0
    """Time of all of them [s]."""
    steps: int = 0
    tokens: int = 0
    """Number of new tokens of chunks of prompts."""
    attention: float = 0.0
    """Attention of the chunks, as of ``ScheduledWork``."""
    sequences: int = 0
    contexts: int = 0


class Steps(NamedTuple):
    """Steps are a log with a row for each jump, whose steps grow evenly, and one for each gap between two
    tokens in which a request was preempted."""

    begin: Times
    """Begin of the first step, which is the end of the one before unless the replica was idle [s]."""
    time: Times
    """Time of the first step [s]."""
    growth: Times
    """By how much each further step is longer [s]."""
    steps: Counts
    sequences: Counts
    """Sequences that receive a token in each step which follows another token of theirs."""
    tokens: Counts
    """Number of new tokens of chunks of prompts."""
    contexts: Counts
    """Sum of the contexts of these sequences in the first step."""
    attention: Times
    """Attention of the chunks, as of ``ScheduledWork``."""

    def mix(self, begin: float, end: float, *, chunks: bool) -> StepMix:
        """Return the sum of the steps with chunks of prompts, or of those without, from one time to another
        [s]; of jumps over these the time between them, and all steps."""
        lasting = self.steps * (self.time + self.growth * (self.steps - 1) / 2)
        inside = np.minimum(self.begin + lasting, end) - np.maximum(self.begin, begin)
        rows = self.tokens > 0 if chunks else (self.tokens == 0) & (self.contexts > 0)
        rows &= inside > 0
        _, _, _, steps, sequences, tokens, contexts, attention = (one[rows] for one in self)
        half = (steps - 1) / 2
        return StepMix(
            float(inside[rows].sum()),
            int(steps.sum()),
            int(tokens.sum()),
            float(attention.sum()),
            int(sequences @ steps),
            int((contexts + sequences * half) @ steps),
        )


_ROW = Struct("=dddqqqqd")
"""Row of the log in memory."""


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


_Flight = tuple[float, Outputs, list[int]]
"""End of the last step that was scheduled, whose output is not there, what changes with it, and requests
that are preempted after it. Plain tuples, as one is made for each step or jump."""
_Launch = tuple[ScheduledWork, StepTime, float, int, int, float, float, bool]
"""Work that is being scheduled and launched, as a step or as a jump over several: the times of its first
step, its begin [s], the number of steps, how many are scheduled before the one before them is done (1, or 0),
the end of the last one [s], when that is launched [s], and whether an arrival ends the jump early."""


class Replica:
    """A Replica serves requests: whoever has the clock calls ``resume`` at the times that it returns."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        state: ReplicaState,
        times: StepTimes,
        async_scheduling: bool = True,
        jump: bool = True,
    ) -> None:
        self._scheduler, self.state, self._times = scheduler, state, times
        self._ahead, self._jump = async_scheduling, jump
        if async_scheduling:
            state.look_ahead()
        self.first, self.finished, self._last = array("d"), array("d"), array("d")
        self._log = bytearray()
        self.events = self.done = 0
        """Number of jumps and single steps, and of requests that are finished."""
        self.until = self._now = 0.0
        """Time at which it must go on, and time of what it did last [s]."""
        self._launch: _Launch | None = None
        self._flight: _Flight | None = None
        self._expected, self._place = (array("d"), array("q")), 0
        """Arrivals [s] in order, their requests, and how many of them have happened."""
        self._called: list[tuple[float, int]] = []
        """Heap of arrivals after the end of other requests."""
        self._upcoming = inf
        """Next arrival that is known [s]."""
        self._followers: dict[int, tuple[int, float]] = {}
        """Request that arrives after the end of another one, and how long after it [s]."""
        self._queue = deque[tuple[int, float]]()
        """Requests that arrive after the ends of those which no other follows, in order."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what changes as it serves, without texts of prompts, groups, scheduler and step times."""
        state = self.state.__dict__ | {"runs": None, "groups": None, "_uses": {}, "_counted": 0}
        return self.__dict__ | {"state": state, "_scheduler": None, "_times": None}

    def restore(self, other: Replica, runs: Sequence[Runs]) -> None:
        """Go on with what another replica with the same requests did, of which ``__getstate__`` was kept."""
        known = {"runs": list(runs), "groups": self.state.groups}
        state = self.state.__dict__ | vars(other)["state"] | known
        mine = {"state": self.state, "_scheduler": self._scheduler, "_times": self._times}
        self.state.__dict__.update(state)
        self.__dict__.update(vars(other) | mine)

    def submit(self, prompt: int, output: int, runs: Runs = None, *, now: float) -> tuple[int, bool]:
        """Let a request arrive that passes ``ReplicaState.check``; return its number, and whether ``resume``
        must be called for it now."""
        request = self.state.add((prompt,), (output,), (runs,))
        self._unknown(1)
        seen = self._launch[-1] and self._open() if self._launch else self._flight is None
        self.state.arrive(request, now)
        return request, seen

    def expect(self, arrivals: Arrivals, *, after: npt.NDArray[np.int64] | None = None) -> None:
        """Let the requests of a stream arrive, all of which are known: none interrupts a jump.

        ``after`` has, for each request, the row of another one, after whose end it arrives, its arrival being
        the time between [s]; -1: none; ``AFTER_ANY``: the next that ends and has no row which follows it.
        Raises InputError if the replica can never serve one.
        """
        prompt, output = arrivals.prompt, arrivals.output
        for rank in (np.minimum(prompt, output), -prompt - output):
            for row in rank.argsort(kind="stable")[:1]:
                self.state.check(int(prompt[row]), int(output[row]))
        first = self.state.add(prompt.tolist(), output.tolist(), arrivals.runs)
        self._unknown(len(prompt))
        alone = np.arange(len(prompt)) if after is None else np.flatnonzero(after == -1)
        self._expected = array("d", arrivals.arrival[alone]), array("q", first + alone)
        if after is not None:
            rows = np.flatnonzero(after >= 0)
            following = zip((first + rows).tolist(), arrivals.arrival[rows].tolist(), strict=True)
            self._followers = dict(zip((first + after[rows]).tolist(), following, strict=True))
            rows = np.flatnonzero(after == AFTER_ANY)
            self._queue.extend(zip((first + rows).tolist(), arrivals.arrival[rows].tolist(), strict=True))
        self._look_ahead()

    def _unknown(self, count: int) -> None:
        for times in (self.first, self.finished, self._last):
            times.extend([nan] * count)

    @property
    def served(self) -> Served:
        """Times of all requests, NaN for what has not happened."""
        state = self.state
        rows = self._log if self.until == inf else bytes(self._log)  # goes on where it has not ended
        log = np.frombuffer(rows, dtype=[*zip(Steps._fields, _ROW.format[1:], strict=True)])
        return Served(
            queued=np.array(state.queued),
            scheduled=np.array(state.scheduled),
            first=np.array(self.first),
            finished=np.array(self.finished),
            prompt=np.array(state.prompt),
            output=np.array(state.output),
            preemptions=np.array(state.preemptions),
            cached=np.array(state.cached),
            log=Steps(*(log[name] for name in Steps._fields)),
            events=self.events,
        )

    # -- one step after the other -------------------------------------------------------------------

    def resume(self, now: float, turns: int = 1) -> float:
        """Go on at a time, and return the next one at which it must go on [s]; inf if it waits for requests.

        That is the one it returned last, or an earlier one at which a request arrived. Where all requests are
        known, it may take several ``turns``, each at the time that the one before returned.
        """
        admit = self._scheduler.admit
        for _ in range(turns):
            launch, flight = self._launch, self._flight
            self._now = now
            if launch is not None:
                if now < launch[6]:
                    return self._shortened(launch, now)
                self._launched(launch, flight)
            elif flight is not None:
                self._output(flight, now)
                self._flight = None
            while True:
                while self._upcoming <= now:
                    self._arrive()
                work = admit(self.state, now)
                if self.state.interrupted:
                    self._interrupt()
                if work is not None:
                    self._launch = launch = self._scheduled(work, self._flight)
                    now = launch[6]
                    break
                if (flight := self._flight) is None or flight[0] > now:
                    now = self._upcoming if flight is None else flight[0]
                    break
                self._output(flight, now)
                self._flight = None
            if now == inf:
                break
        return now

    def _scheduled(self, work: ScheduledWork, flight: _Flight | None) -> _Launch:
        """Return how some work is launched, in a step or in a jump to where something changes."""
        self.events += 1
        one, ahead, begin = self._times.of(work, self.state), 0, self._now
        time, host, busy, growth, steps = one
        if steps > work.steps:
            steps = work.steps
        end = begin + time
        if flight is not None:
            begin, (_, finished, left), _ = flight
            ahead = 1
            if (later := begin + (busy or time)) > end:
                end = later
            followed = self._followers and any(one in self._followers for one in finished)
            if followed or (finished and self._queue) or (left and not self._open()):
                steps = 1  # what it frees may admit a request, and its end may call one
        if steps == 1 or not self._jump:
            then = max(begin, self._now + host) if self._ahead else end
            return work, one, begin, 1, ahead, end, then, False
        # None of the steps of a jump waits for its launch.
        end = begin + steps * (time + growth * (steps - 1) / 2)
        if self._upcoming < end and self._open():
            steps = min(steps, max(1, ahead + one.reaching(self._upcoming - begin)))
            end = begin + steps * (time + growth * (steps - 1) / 2)
        then = begin + (steps - 1) * (time + growth * (steps - 2) / 2) if ahead else end
        if then < self._now:
            then = self._now
        return work, one, begin, steps, ahead, end, then, True

    def _shortened(self, launch: _Launch, now: float) -> float:
        """End a jump with the step in which a request arrives."""
        work, one, begin, steps, ahead, *_ = launch
        steps = min(steps, max(1, ahead + one.reaching(now - begin)))
        then = max(now, begin + one.total(steps - ahead))
        self._launch = work, one, begin, steps, ahead, begin + one.total(steps), then, True
        return then

    def _launched(self, launch: _Launch, flight: _Flight | None) -> None:
        """Note the output of the step before, and what was launched."""
        work, one, begin, steps, _, end, then, jumps = launch
        self._launch = None
        if flight is not None and (flight[1] is not NOTHING or flight[2]):
            self._output(flight, begin if jumps else then)
        _, tokens, attention, sequences, contexts, _ = work
        first = one.time if steps > 1 else end - begin
        self._log += _ROW.pack(begin, first, one.growth, steps, sequences, tokens, contexts, attention)
        flight = end, self.state.advance(work, steps), []
        if self._ahead:
            self._flight = flight
        else:
            self._output(flight, then)
            self._flight = None

    def _interrupt(self) -> None:
        """Note the last tokens of requests that the scheduler has preempted."""
        interrupted = self.state.interrupted
        if self._flight is not None:
            self._flight[2].extend(interrupted)
        for request in interrupted if self._flight is None else ():
            self._last[request] = self._now
        interrupted.clear()

    def _arrive(self) -> None:
        """Let the next request arrive that is known."""
        times, requests = self._expected
        if self._called and self._called[0][0] == self._upcoming:
            self.state.arrive(heappop(self._called)[1], self._upcoming)
        else:
            self.state.arrive(requests[self._place], times[self._place])
            self._place += 1
        self._look_ahead()

    def _look_ahead(self) -> None:
        times = self._expected[0]
        self._upcoming = times[self._place] if self._place < len(times) else inf
        if self._called:
            self._upcoming = min(self._upcoming, self._called[0][0])

    def _open(self) -> bool:
        """Return whether a request that arrives now may be admitted at once."""
        return not self.state.waiting and self._scheduler.admits(self.state)

    def _output(self, flight: _Flight, now: float) -> None:
        """Note at which time the output of a step was there, and free what its requests held."""
        _, (first, finished, left), interrupted = flight
        for request in first:
            if self.first[request] != self.first[request]:
                self.first[request] = now
            else:  # it was preempted: its token follows one of before
                last = self._last[request]
                self._log += _ROW.pack(last, now - last, 0.0, 1, 1, 0, 0, 0.0)
        for request in finished:
            self.finished[request] = now
            if request in self._followers or self._queue:
                follower, delay = (
                    self._followers.pop(request) if request in self._followers else self._queue.popleft()
                )
                heappush(self._called, (now + delay, follower))
                self._look_ahead()
        self.done += len(finished)
        for request in interrupted:
            self._last[request] = now
        if left:
            self.state.leave(left)


class ReplicaProcess:
    """A ReplicaProcess is a replica in a process of ``env``, to which others submit requests."""

    def __init__(self, env: Environment, replica: Replica) -> None:
        self._env, self.replica = env, replica
        self._process = env.process(self._serve())

    def submit(self, prompt: int, output: int, runs: Runs = None) -> int:
        """Let a request arrive now that passes ``ReplicaState.check``, and return its number."""
        request, seen = self.replica.submit(prompt, output, runs, now=self._env.now)
        if seen and self._process.target is not None:
            self._process.interrupt()
        return request

    def _serve(self) -> Generator[Event, Any, None]:
        env, until = self._env, self.replica.resume(self._env.now)
        while True:
            try:
                yield env.timeout(max(0.0, until - env.now)) if until < inf else env.event()
                until = self.replica.resume(max(until, env.now))
            except Interrupt:
                until = self.replica.resume(env.now)


def serve(replica: Replica, arrivals: Arrivals, *, after: npt.NDArray[np.int64] | None = None) -> Served:
    """Let the requests of a stream arrive at a replica, ``after`` others as in ``expect``, and simulate until
    all are finished.

    Raises InputError if the replica can never serve one.
    """
    replica.expect(arrivals, after=after)
    for _ in turns(replica):
        pass
    return replica.served


def turns(replica: Replica) -> Iterator[None]:
    """Let a replica go on until all that it expects is finished, with a pause after some thousand steps."""
    while replica.until < inf:
        with uncollected():
            replica.until = replica.resume(replica.until, _TURN)
        yield
