"""Execution of the schedules of a plan, and recording of their timelines if requested."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal

from simoffload.engine import execute
from simoffload.errors import ShortcutError, SimulationError
from simoffload.limits import now_doing
from simoffload.results import (
    PassResult,
    PassWork,
    Timeline,
    differ_beyond_kernels,
    makespan_for_longer_context,
    summarize_pass,
)
from simoffload.scenario import LoadedScenario
from simoffload.schedule import Schedule
from simoffload.simulation.decoding import (
    MOST,
    REMEMBERED,
    Decoding,
    Durations,
    Simulated,
    decode,
    verify_decoding,
)
from simoffload.strategies import Earlier, Phase, PhaseSeries

Scope = Literal["all", "steps", "first", "compared"]
"""What is simulated: all that a report tells; the ``steps`` alone, with causes and bounds of the step that is
named in answers; only the ``first`` of the decode steps, which stands for all and is the shortest, as its
key-value cache is the smallest; or no more than ``compared_s``."""
Execution = Callable[..., Timeline]
"""The function ``execute``, or one that remembers what it executed, for questions about many scenarios."""


def remembering(passes: int) -> Execution:
    """Return the function ``execute`` that remembers so many passes, for scenarios that share some."""
    return lru_cache(passes)(execute)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the interpreter from searching for garbage in cycles: a phase makes little of it, and many objects
    that live until its end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Runner:
    """A Runner executes the passes of one scenario."""

    def __init__(
        self,
        scenario: LoadedScenario,
        *,
        keep: bool,
        scope: Scope = "all",
        execution: Execution | None = None,
    ) -> None:
        self._scenario, self._keep, self._execute = scenario, keep, execution or execute
        self.timelines: dict[str, Timeline] = {}
        self.work: list[PassWork] = []
        self._options = scenario.scenario.engine
        self.scope = scope

    def restart(self) -> None:
        """Discard all executed phases, so that they can be executed again with other rates."""
        self.timelines.clear()
        self.work.clear()

    def phases(self, phases: Sequence[Phase], *, detailed: bool = True) -> tuple[PassResult, ...]:
        """Execute phases in the order of their dependencies; return their results in the order given.

        With the scope ``steps``, ``detailed`` tells whether answers name one of them. Raises SimulationError
        if the engine cannot finish one.
        """
        done: dict[str, Earlier] = {}
        results: dict[str, PassResult] = {}
        open_ = list(phases)
        if len({one.name for one in phases}) < len(phases):
            raise SimulationError(f"phases of one name: {', '.join(one.name for one in phases)}")
        while open_:
            phase = next((one for one in open_ if done.keys() >= set(one.depends_on)), None)
            if phase is None:
                names = ", ".join(one.name for one in open_)
                raise SimulationError(
                    f"phases wait for others that are not there, or for each other: {names}"
                )
            open_.remove(phase)
            earlier = {name: one for name, one in done.items() if name in phase.depends_on}
            result = results[phase.name] = self.phase(phase, earlier, detailed=detailed)
            left = result.unfinished_s if phase.ends_with else 0.0
            done[phase.name] = Earlier(result.time_s, phase.repeat, left)
        return tuple(results[phase.name] for phase in phases)

    def phase(self, phase: Phase, earlier: Mapping[str, Earlier], *, detailed: bool = True) -> PassResult:
        """Execute one phase and summarize it."""
        with _uncollected():
            timeline = self.execute(phase.name, phase.schedule(earlier))
            return self._summary(phase, timeline, detailed=detailed)

    def _summary(self, phase: Phase, timeline: Timeline, *, detailed: bool = True) -> PassResult:
        detailed = self.scope == "all" or (detailed and self.scope == "steps")
        return summarize_pass(
            timeline,
            new_tokens=phase.new_tokens,
            context=phase.context,
            ends_with=phase.ends_with,
            detailed=detailed,
            bounded=self.scope == "steps",
        )

    def series(self, series: PhaseSeries) -> Decoding:
        """Execute the phases of a series, extrapolated as ``engine.decode_extrapolation`` specifies."""
        how = self._options.decode_extrapolation

        transfers = lru_cache(maxsize=REMEMBERED)(series.cache_transfers)

        def durations(step: int) -> Durations:
            return (*series.durations(step), *transfers(step))

        @lru_cache(maxsize=MOST)
        def schedule(step: int) -> Schedule:
            return series.step(step).schedule({})

        def run(step: int) -> Simulated:
            phase = series.step(step)
            timeline = self.execute(phase.name, schedule(step))
            result = self._summary(phase, timeline, detailed=step == 1)
            kept = None if how == "off" else timeline
            return Simulated(step, durations(step), result, round(result.time_ps), kept)

        unlike = set[int]()  # steps from which no later one is derived: more than kernels differs

        def later(low: Simulated, step: int) -> int | None:
            # Transfers of other sizes meet differently: such steps are not derived from each other.
            if low.timeline is None or low.step in unlike or transfers(low.step) != transfers(step):
                return None
            other, ends_with = schedule(step), series.step(step).ends_with
            if differ_beyond_kernels(low.timeline.schedule, other):
                unlike.add(low.step)
                return None
            return makespan_for_longer_context(low.timeline, other, ends_with=ends_with)

        if self.scope == "first" and series.steps:
            first = run(1)
            return Decoding((first,), first.time * series.steps)
        if how == "on":
            return decode(series.steps, durations, run, later)
        every = tuple(run(step) for step in range(1, series.steps + 1))
        full = Decoding(every, sum(one.time for one in every))
        if how == "verify":
            by_step = {one.step: one for one in every}
            verify_decoding(decode(series.steps, durations, by_step.__getitem__, later), full)
        return full

    def timeline(self, phase: Phase) -> Timeline:
        """Execute a phase that is not part of the result."""
        with _uncollected():
            return self._executed(phase.schedule({}))

    def execute(self, name: str, schedule: Schedule) -> Timeline:
        """Execute a schedule with the shortcuts that the scenario allows.

        Raises SimulationError if the engine cannot finish it, and ShortcutError if a shortcut with ``verify``
        changes the timeline.
        """
        now_doing(f"simulating {name}")
        timeline = self._executed(schedule)
        self.work.append(PassWork(name, len(timeline), timeline.entries, timeline.how))
        if self._keep:
            self.timelines[name] = timeline
        now_doing("planning")
        return timeline

    def _executed(self, schedule: Schedule) -> Timeline:
        options = self._options
        rank_symmetry, steady_state = options.rank_symmetry != "off", options.steady_state != "off"
        timeline = self._execute(schedule, rank_symmetry=rank_symmetry, steady_state=steady_state)
        if "verify" in (options.rank_symmetry, options.steady_state):
            verify(timeline, execute(schedule, rank_symmetry=False, steady_state=False))
        return timeline


def verify(timeline: Timeline, full: Timeline) -> None:
    """Raise ShortcutError unless two timelines are equal in all operations and link loads."""
    for what in ("makespan", "link_bytes", "link_busy", "link_saturated"):
        mine, other = getattr(timeline, what), getattr(full, what)
        if mine != other:
            raise ShortcutError(f"{full.schedule.name}: {what} is {mine} with shortcuts and {other} without")
    if timeline.all_operations == full.all_operations:
        return
    for mine, other in zip(_operations(timeline), _operations(full), strict=True):
        if mine != other:
            raise ShortcutError(f"{full.schedule.name}: {mine} with shortcuts and {other} without")


def _operations(timeline: Timeline) -> list[tuple[int, ...]]:
    """Return (rank, block, iteration, position, start, end) of all operations."""
    return sorted(zip(*timeline.all_operations, strict=True))
