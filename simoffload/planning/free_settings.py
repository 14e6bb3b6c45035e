"""Search for the settings of a program with which the same work on the same machine is fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError, SimulationError, WorkLimitError
from simoffload.limits import keep, limited
from simoffload.planning.evaluator import Evaluator
from simoffload.progress import working_on
from simoffload.results import Change, SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation import simulate

Judge = Callable[[LoadedScenario, SimulationResult], SimulationResult]
"""Returns the result of a scenario with the metric by which it is compared."""
WORTH = 1.005
"""Smallest gain for which a setting is changed: the least that three digits show, as in advice."""
CLEAR = 1.02
"""Smallest gain of all settings together for which they are returned: our choice, as for what a verdict
names."""
_STEPS = 2
"""How often a key is changed at most, each time from the value before: our choice, as no real run is near
what lies beyond."""
_MOST = 40
"""Largest number of simulations for one scenario: our choice."""


def unjudged(_: LoadedScenario, result: SimulationResult) -> SimulationResult:
    """Return a result as it is, to be compared by the usual metric."""
    return result


class FreeSettings(NamedTuple):
    """FreeSettings are the settings that cost nothing, keep the answers and make a scenario fastest."""

    scenario: LoadedScenario
    result: SimulationResult
    changes: tuple[Change, ...]
    """Settings that differ from those of the unchanged scenario; none if they gain less than ``CLEAR``."""
    gain: float
    """Time of the unchanged scenario over the time with these settings (``SimulationResult.compared_by``)."""
    simulations: int
    stopped: str = ""
    """The limit that kept the search from its end; empty if it ended."""

    @property
    def text(self) -> str:
        """The settings as text, such as "use_gds and queue_depth 32"."""
        *first, last = dict.fromkeys(_named(edit) for one in self.changes for edit in one.edits) or ("",)
        return f"{', '.join(first)} and {last}" if first else last

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes."""
        assignments = [text for one in self.changes for text in one.assignments]
        return {
            "settings": [one.description for one in self.changes],
            "text": self.text,
            "set": assignments,
            "gain": self.gain,
            "simulations": self.simulations,
            "stopped": self.stopped,
        }


def best_settings(
    scenario: LoadedScenario,
    result: SimulationResult,
    *,
    judged: Judge = unjudged,
    most: int = _MOST,
    keep_timelines: bool = False,
) -> FreeSettings:
    """Return the settings of a scenario's program with which it is fastest, by a coordinate ascent.

    Tried are the changes of the strategy's tunables of purpose "setting" that keep the answers: in each round
    every change alone, then those that gain together, the best first; the next round starts from there. A
    setting without which the result is as fast is dropped at the end. At most ``most`` scenarios are
    simulated before that. ``result`` is that of the unchanged scenario; one without times is returned as it
    is. ``judged`` gives every other result the metric by which ``result`` is compared.
    """
    search = _Ascent(scenario, result, judged, most)
    if result.compared_s:
        try:
            search.run()
        except WorkLimitError as error:
            search.stopped = str(error)
    return search.found(keep_timelines=keep_timelines)


class _Ascent:
    """An _Ascent goes from a scenario to faster ones, one setting after the other."""

    def __init__(self, scenario: LoadedScenario, result: SimulationResult, judged: Judge, most: int) -> None:
        self._start = Evaluator(scenario, result=result)
        self._unchanged, self._judged, self._most = result, judged, most
        self._edits: tuple[Edit, ...] = ()
        self._changes: dict[tuple[Any, ...], Change] = {}
        """Changes so far, by the keys that they set."""
        self._steps = Counter[tuple[Any, ...]]()
        self._time = result.compared_s or 0.0
        self._simulations = 0
        self.stopped = ""

    @limited
    def run(self) -> None:
        """Search until nothing gains, within the limits of the scenario."""
        keep(self._start.scenario.scenario.engine.limits)
        while self._round():
            pass
        self._drop_useless()

    def _round(self) -> bool:
        """Make the changes that gain, the best first; return whether there was one."""
        here = self._start.changed_by(*self._edits)
        found = [one for one in _settings(here) if self._steps[_paths(one)] < _STEPS]
        alone = [(time, one) for one in found if (time := self._tried(one)) is not None]
        gaining = [pair for pair in sorted(alone, key=lambda pair: pair[0]) if self._gains(pair[0])]
        together = set[tuple[Any, ...]]()
        for time, change in gaining:
            paths = _paths(change)
            if together.intersection(paths):
                continue  # another value of a key that was set in this round
            now = self._tried(change) if together else time
            if now is not None and self._gains(now):
                self._make(change, now)
                together.update(paths)
        return bool(together)

    def _gains(self, time: float) -> bool:
        return time * WORTH <= self._time

    def _tried(self, change: Change) -> float | None:
        """Return the time [s] with a change, too; None if it is refused, does not fit, or is one too many."""
        if self._simulations >= self._most:
            self.stopped = f"{self._most} simulations are the most that are made"
            return None
        working_on(f"settings: {change.description}")
        return self._timed((*self._edits, *change.edits))

    def _timed(self, edits: tuple[Edit, ...]) -> float | None:
        self._simulations += 1
        try:
            return self._judged(*self._start.answer(*edits)).compared_s
        except (InputError, SimulationError):
            return None

    def _make(self, change: Change, time: float) -> None:
        self._steps[_paths(change)] += 1
        self._changes.pop(_paths(change), None)
        self._changes[_paths(change)] = change
        self._edits, self._time = self._joined(), time

    def _joined(self, *, without: tuple[Any, ...] | None = None) -> tuple[Edit, ...]:
        return tuple(edit for paths, one in self._changes.items() if paths != without for edit in one.edits)

    def _drop_useless(self) -> None:
        """Drop the settings without which the time is the same, those that were found first at first."""
        for paths in tuple(self._changes):
            edits = self._joined(without=paths)
            time = self._timed(edits) if edits else None
            if time is not None and time <= self._time:
                del self._changes[paths]
                self._edits, self._time = edits, time

    def found(self, *, keep_timelines: bool) -> FreeSettings:
        """Return the settings that were found so far."""
        gain = (self._unchanged.compared_s or 0.0) / self._time if self._time else 1.0
        if gain < CLEAR:
            start = self._start.scenario
            return FreeSettings(start, self._unchanged, (), 1.0, self._simulations, self.stopped)
        scenario, result = self._start.answer(*self._edits)
        if keep_timelines:
            result = simulate(scenario, keep_timelines=True)
        changes = tuple(
            one._replace(description=one.description.partition(" instead of ")[0])
            for one in self._changes.values()
        )
        result = self._judged(scenario, result)
        return FreeSettings(scenario, result, changes, gain, self._simulations, self.stopped)


def _settings(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the settings to try that keep the answers and are not known to be impossible."""
    for one in evaluator.changes("setting"):
        if one.same_work and not one.barred:
            yield one


def _named(edit: Edit) -> str:
    """Return a setting as its key, with its value unless that is true."""
    key = str(edit.path[-1])
    return key if edit.value is True else f"{key} {edit.value}"


def _paths(change: Change) -> tuple[Any, ...]:
    return tuple(edit.path for edit in change.edits)
