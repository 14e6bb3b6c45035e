"""Execution of the schedules of a plan, and recording of their timelines if requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from simoffload.engine import execute
from simoffload.errors import ShortcutError, SimulationError
from simoffload.limits import now_doing, uncollected
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
from simoffload.strategies import Earlier, Phase, PhaseSeries

# -- decoding --------------------------------------------------------------------------------------

MOST = 16
"""Largest number of steps that are simulated before the rest is interpolated."""
STRAIGHT = 1e-9
"""Distance of a simulated step from the line between two others, relative to its time, up to which no more
steps between them are simulated (our choice)."""
REMEMBERED = 4096
"""Number of steps whose durations are cached, as they are used twice."""
_SAFETY = 2
"""Factor between the largest observed distance and the error bound."""

Durations = tuple[int, ...]


class Simulated(NamedTuple):
    """A Simulated is a simulated decode step."""

    step: int
    durations: Durations
    """GPU time of each module [ps]."""
    result: PassResult
    time: int
    """Time of the step [ps]."""
    timeline: Timeline | None
    """Timeline of the step; None if no other step can be derived from it."""


class Decoding(NamedTuple):
    """Decoding has the times of all decode steps."""

    simulated: tuple[Simulated, ...]
    """Simulated decode steps, in order of context."""
    total: int
    """Total time of all steps [ps]."""
    bound: float = 0.0
    """Relative error bound of interpolated decode steps; 0 if all are exact."""
    estimated: int = 0
    """Number of steps whose times were interpolated."""


Later = Callable[[Simulated, int], int | None]
"""Function that derives the time [ps] of a later step from a simulated one; None if it must be simulated."""


def decode(
    steps: int,
    durations: Callable[[int], Durations],
    run: Callable[[int], Simulated],
    later: Later,
    *,
    most: int = MOST,
) -> Decoding:
    """Return the times of the decode steps 1 … ``steps``.

    ``run`` simulates a step; ``durations`` returns its GPU times, in which steps differ.
    """
    if steps == 0:
        return Decoding((), 0)
    durations = lru_cache(maxsize=REMEMBERED)(durations)
    known = {1: run(1)}
    open_ends = [(1, steps)]
    alone = set[int]()  # simulated steps after which not even the next one is certain
    straight = dict[int, bool]()  # first steps of ranges with a line between their ends: whether it is even
    done: list[_DecodeRange] = []
    while open_ends:
        low, high = open_ends.pop(0)
        if low == high:
            continue
        may_run = len(known) + 1 < most  # one more for the end of an interpolated range
        last, time = low, known[low].time
        if low not in alone:
            last, time = _farthest(known[low], high, later, search=may_run and low not in straight)
        if last == low and may_run:
            alone.add(low)
        stretch = _certain(known[low], last, time, durations) if last > low else None
        if stretch is not None:
            done.append(stretch)
            if last < high:
                open_ends.append((last + 1, high))
        elif high - low > 1 and may_run and low not in straight:
            middle = (low + high) // 2
            ends = known[low], known.get(middle) or run(middle), known.get(high) or run(high)
            known[middle], known[high] = ends[1:]
            open_ends += [(low, middle), (middle, high)]
            if _distance(*ends) <= STRAIGHT:
                even = _distance(*ends, even=True) <= STRAIGHT
                straight |= {low: even, middle: even}
        else:
            end = known[high] = known.get(high) or run(high)
            grown, even = None if high - low > 1 else 0, straight.get(low, False)
            done.append(_DecodeRange(known[low], end.durations, end.time, high, grown, even))
        for begin, _ in open_ends:
            known[begin] = known.get(begin) or run(begin)
    simulated = tuple(known[step] for step in sorted(known))
    lasts = {one.last for one in done}
    total = sum(one.inner(durations) + one.time for one in done)
    total += sum(one.time for one in simulated if one.step not in lasts)
    estimated = sum(one.last - one.low.step - 1 for one in done if one.grown is None)
    neighbours = zip(simulated, simulated[1:], simulated[2:], strict=False)
    distance = max([_distance(*three) for three in neighbours], default=0.0)
    bound = _SAFETY * max(distance, STRAIGHT) if estimated else 0.0
    return Decoding(simulated, total, bound, estimated)


def _farthest(low: Simulated, last: int, later: Later, *, search: bool) -> tuple[int, int]:
    """Return the last step up to ``last`` whose time is certain, and this time [ps]; ``low`` if there is
    none.

    Without ``search`` only ``last`` is examined. If a step is certain, so are all steps before it.
    """
    certain, time, doubtful = low.step, low.time, last + 1
    step = last
    while certain < step < doubtful:
        found = later(low, step)
        if found is None:
            doubtful = step
        else:
            certain, time = step, found
        if not search:
            break
        # If the last one is not certain, often not even the next one is.
        step = (certain + doubtful) // 2 if certain > low.step else low.step + 1
    return certain, time


def verify_decoding(found: Decoding, full: Decoding) -> None:
    """Raise ShortcutError unless the total of all steps equals that of ``full``, within the bound."""
    difference = abs(found.total - full.total)
    allowed = found.bound * sum(one.time for one in full.simulated) if found.estimated else 0
    if difference > allowed:
        bound = f"; the bound is {allowed:.0f} ps" if allowed else ""
        raise ShortcutError(
            f"decode steps take {found.total} ps from a few and {full.total} ps simulated one by one{bound}"
        )


class _DecodeRange(NamedTuple):
    """A _DecodeRange is the steps between a simulated one and a later one with a known time."""

    low: Simulated
    durations: Durations
    """GPU time of each module in the last step [ps]."""
    time: int
    """Time of the last step [ps]."""
    last: int
    grown: int | None
    """Total by which attention lasts longer than in the first step, over all steps between [ps]; None if
    their times are not certain."""
    even: bool = False
    """Whether times grow by the same from each step to the next."""

    def inner(self, durations: Callable[[int], Durations]) -> int:
        """Return the total time [ps] of all steps between the two."""
        between = range(self.low.step + 1, self.last)
        if self.even:
            return len(between) * (self.low.time + self.time) // 2
        if self.grown is None:
            return sum([self.at(durations(step)) for step in between])
        rise, growth = self.time - self.low.time, self._growth()
        return len(between) * self.low.time + (self.grown * rise // growth if growth else 0)

    def at(self, between: Durations) -> int:
        """Return the time [ps] of a step between the two: it grows in proportion to the duration of
        attention."""
        rise, growth = self.time - self.low.time, self._growth()
        for mine, low, high in zip(between, self.low.durations, self.durations, strict=True):
            if low != high:
                return self.low.time + (2 * rise * (mine - low) + growth) // (2 * growth)
        return self.low.time

    def _growth(self) -> int:
        """Return by how much [ps] attention lasts longer in the last step than in the first."""
        pairs = zip(self.low.durations, self.durations, strict=True)
        return next((high - low for low, high in pairs if low != high), 0)


def _certain(
    low: Simulated, last: int, time: int, durations: Callable[[int], Durations]
) -> _DecodeRange | None:
    """Return the range of steps up to ``last``, which takes ``time`` [ps]; None if it is not certain.

    It is certain if only one duration changes, and this is never above its value at the last step or below
    that at the first.
    """
    first, final = low.durations, durations(last)
    grow = [i for i, pair in enumerate(zip(first, final, strict=True)) if pair[0] != pair[1]]
    if not grow:
        same = all(durations(step) == first for step in range(low.step + 1, last))
        return _DecodeRange(low, final, low.time, last, 0) if same else None
    if len({first[i] for i in grow}) > 1:
        return None
    least, most, grown = first[grow[0]], final[grow[0]], 0
    for step in range(low.step + 1, last + 1):
        own = durations(step)
        mine = own[grow[0]]
        if not least <= mine <= most:
            return None
        if own != tuple([mine if i in grow else value for i, value in enumerate(first)]):
            return None
        grown += mine - least
    return _DecodeRange(low, final, time, last, grown - (most - least))


def _distance(low: Simulated, middle: Simulated, high: Simulated, *, even: bool = False) -> float:
    """Return the distance of a simulated step from the line between two others, over the duration of
    attention or (``even``) over the number of the step, relative to its time."""
    line = _DecodeRange(low, high.durations, high.time, high.step, None)
    expected: float = line.at(middle.durations)
    if even:
        part = (middle.step - low.step) / (high.step - low.step)
        expected = low.time + part * (high.time - low.time)
    return abs(expected - middle.time) / middle.time


# -- the runner ------------------------------------------------------------------------------------

Scope = Literal["all", "row", "steps", "first", "compared"]
"""What is simulated: all that a report tells; what a ``row`` of a table has, without causes of the time of a
first pass; the ``steps`` alone, with causes and bounds of those that are
named in answers; only the ``first`` of the decode steps, which stands for all and is the shortest, as its
key-value cache is the smallest; or no more than ``compared_s``."""
Execution = Callable[..., Timeline]
"""The function ``execute``, or one that remembers what it executed, for questions about many scenarios."""


def remembering(passes: int) -> Execution:
    """Return the function ``execute`` that remembers so many passes, for scenarios that share some."""
    return lru_cache(passes)(execute)


_SHORT = 1_300
"""Operations up to which a schedule is run as fast as what repeats in it is found: 519 take 0.7 ms instead of
1.7, 1,287 1.2 ms instead of 2.1."""


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
        self.scope, self.complete = scope, scope in ("all", "row")

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
        with uncollected():
            timeline = self.execute(phase.name, phase.schedule(earlier))
            return self._summary(phase, timeline, detailed=detailed)

    def _summary(self, phase: Phase, timeline: Timeline, *, detailed: bool = True) -> PassResult:
        if self.complete:
            detailed = self.scope == "all" or phase.kind != "first pass"
        else:
            detailed = detailed and self.scope == "steps"
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
        """Execute a phase that is not part of the result; a short one is run faster than it is searched for
        what repeats."""
        with uncollected():
            schedule = phase.schedule({})
            return self._executed(schedule, steady=schedule.operations > _SHORT)

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

    def _executed(self, schedule: Schedule, *, steady: bool = True) -> Timeline:
        options = self._options
        rank_symmetry, steady_state = options.rank_symmetry != "off", steady and options.steady_state != "off"
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
