"""Streams and step times by hand, for tests of the serving package."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from simpy import Environment, Event

from simoffload.extensions.serving.replica import Replica, ReplicaProcess, Served, StepTime, serve
from simoffload.extensions.serving.scheduler import (
    PrefixCache,
    ReplicaState,
    Runs,
    ScheduledWork,
    Scheduler,
    VllmScheduler,
)
from simoffload.strategies import ONE_GROUP, CacheGroups


class Stream(NamedTuple):
    """A Stream is requests in order of arrival."""

    arrival: npt.NDArray[np.float64]
    prompt: npt.NDArray[np.int64]
    output: npt.NDArray[np.int64]
    runs: Sequence[Runs]


def stream(rows: Sequence[tuple[float, int, int]]) -> Stream:
    """Return the stream of rows of arrival [s], prompt and output."""
    table = np.array(rows, dtype=float).reshape(-1, 3)
    lengths = table[:, 1:].astype(np.int64)
    return Stream(table[:, 0], lengths[:, 0], lengths[:, 1], [None] * len(table))


def poisson(
    number: int,
    rate: float,
    *,
    seed: int = 0,
    prompt: tuple[int, int] = (1, 900),
    output: tuple[int, int] = (1, 300),
) -> Stream:
    """Return a Poisson stream of uniform lengths."""
    draw = np.random.default_rng(seed)
    arrival = draw.exponential(1 / rate, number).cumsum()
    lengths = (draw.integers(low, high + 1, number) for low, high in (prompt, output))
    return Stream(arrival, *lengths, [None] * number)


class Linear(NamedTuple):
    """Linear is a time of steps that is linear in tokens, contexts and attention."""

    fixed: float = 0.015
    token: float = 9e-5
    context: float = 1.4e-7
    attention: float = 2.4e-10
    host: float = 0.0
    """Share of the time of a step with chunks in which the host launches it."""
    gpu: float = 1.0
    """Share of that time in which it keeps the GPU from the next step."""

    def of(self, work: ScheduledWork, _: ReplicaState) -> StepTime:
        """Return the time of a step."""
        time = self.fixed + self.token * (work.tokens + work.sequences) + self.context * work.contexts
        time += self.attention * work.attention
        if work.chunks:
            return StepTime(time, self.host * time, self.gpu * time)
        return StepTime(time, growth=self.context * work.sequences, steps=work.steps)


def replay(
    requests: Stream,
    *,
    times: Linear | None = None,
    scheduler: Scheduler | None = None,
    blocks: int = 10**7,
    budget: int = 2048,
    max_seqs: int = 256,
    async_scheduling: bool = False,
    jump: bool = True,
    watch: Callable[[ReplicaState], None] | None = None,
    cache: PrefixCache | None = None,
    groups: CacheGroups = ONE_GROUP,
    known: bool = True,
    after: npt.NDArray[np.int64] | None = None,
) -> Served:
    """Serve a stream; ``watch`` sees the state around each work, and requests are submitted one by one
    unless they are ``known``."""
    chosen = scheduler or VllmScheduler(max_num_batched_tokens=budget, max_num_seqs=max_seqs)
    if watch is not None:
        chosen = _Watched(chosen, watch)
    replica = Replica(
        scheduler=chosen,
        state=ReplicaState(blocks=blocks, groups=groups._replace(step=budget), cache=cache),
        times=times or Linear(),
        async_scheduling=async_scheduling,
        jump=jump,
    )
    if known:
        return serve(replica, requests, after=after)

    env = Environment()
    process = ReplicaProcess(env, replica)

    def source() -> Generator[Event, Any, None]:
        for arrival, prompt, output, runs in zip(*requests, strict=True):
            yield env.timeout(arrival - env.now)
            process.submit(prompt, output, runs)

    env.process(source())
    env.run()
    return replica.served


class _Watched:
    def __init__(self, scheduler: Scheduler, watch: Callable[[ReplicaState], None]) -> None:
        self._scheduler, self._watch = scheduler, watch

    def admits(self, state: ReplicaState) -> bool:
        return self._scheduler.admits(state)

    def admit(self, state: ReplicaState, now: float) -> ScheduledWork | None:
        self._watch(state)
        work = self._scheduler.admit(state, now)
        self._watch(state)
        return work
