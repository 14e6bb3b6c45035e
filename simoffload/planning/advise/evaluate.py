"""Every option simulated: its gain, its cost, why others are impossible; and what is recommended as files."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simoffload.documents import Edit, Location, ds_config_text, edited, yaml_text
from simoffload.errors import InputError, SimulationError, WorkLimitError
from simoffload.hardware import is_path
from simoffload.limits import limited
from simoffload.planning.advise.options import options_of
from simoffload.planning.advise.purchases import Search
from simoffload.planning.confidence import confidence, margin
from simoffload.planning.costs import CostList, Economics, economics, load_costs
from simoffload.planning.evaluator import Evaluated, Evaluator
from simoffload.results import Change, SimulationResult, by_name
from simoffload.scenario import LoadedScenario, ScenarioSource, loaded
from simoffload.simulation import Progress, labelled
from simoffload.strategies.ds_config.export import BATCH, FILE

SCHEMA = "simoffload/advice/1"
TOGETHER = "settings"
"""Key of the change that combines all settings that gain."""
WORTH = 1.005
"""Smallest relative speed that counts as an improvement: the least that three digits show."""


@dataclass(frozen=True, kw_only=True)
class Tried(Evaluated):
    """A change that was simulated, with what it gains and what it costs."""

    change: Change
    gain: float | None
    """Speed relative to the unchanged scenario, by time per ``unit``; None if that does not fit."""
    extra: float | None
    """Purchase price beyond the unchanged scenario, in the list's currency; None without prices."""
    margin: float = 0.0
    """Gain beyond 1 from which the 80 % interval of the gain does not contain 1."""

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """80 % interval of the gain; None where there is none."""
        return None if self.gain is None else (self.gain / (1 + self.margin), self.gain * (1 + self.margin))

    @property
    def helps(self) -> bool:
        """Whether the change makes the scenario fit, or gains more than the predictions may be wrong."""
        return self.gain is None or self.gain >= max(WORTH, 1 + self.margin)

    @property
    def gain_per_cost(self) -> float | None:
        """(gain - 1) for every 1000 of the currency; None where nothing has to be bought."""
        return (self.gain - 1) / self.extra * 1000 if self.gain is not None and self.extra else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self.change, "key description kind changes=edits"),
            **by_name(self, "gain gain_interval margin extra_cost=extra gain_per_1000=gain_per_cost"),
            **by_name(self.result, "fits"),
            "metrics": self.result.metrics(),
            "intervals": {name: list(ends) for name, ends in confidence(self.result).intervals().items()},
            **by_name(self.result, "bottleneck limit"),
            "economics": self.economics.metrics(),
            **by_name(self.result.provenance, "exports"),
        }


@dataclass(frozen=True)
class Advice:
    """The Advice lists what single changes to a scenario gain."""

    scenario: LoadedScenario
    result: SimulationResult
    economics: Economics
    tried: tuple[Tried, ...]
    """Simulated changes, the largest gain first."""
    impossible: tuple[Change, ...]
    """Changes that DeepSpeed, the machine or its memory refuses, each with its reason (``barred``)."""

    @property
    def helping(self) -> tuple[Tried, ...]:
        """Changes that gain more than the predictions may be wrong, the largest gain first."""
        return tuple(one for one in self.tried if one.helps)

    @property
    def uncertain(self) -> tuple[Tried, ...]:
        """Changes whose gain is within its 80 % interval, the largest first: no recommendations."""
        return tuple(one for one in self.tried if not one.helps and (one.gain or 0.0) >= WORTH)

    def decisions(self, ranked: Iterable[Tried]) -> tuple[Tried, ...]:
        """Return the first of all changes that set the same keys to other numbers, such as batch sizes."""
        first: dict[Hashable, Tried] = {}
        for one in ranked:
            first.setdefault(_setting(one.change), one)
        return tuple(first.values())

    def range_tried(self, change: Change) -> tuple[float, float] | None:
        """Return the smallest and the largest number tried for the key that a change sets; None for one."""
        all_changes = (*(one.change for one in self.tried), *self.impossible)
        values: dict[Location, set[float]] = {}
        for other in all_changes:
            for edit in other.edits if _setting(other) == _setting(change) else ():
                if _is_number(edit.value):
                    values.setdefault(edit.path, set()).add(edit.value)
        varied = next((one for one in values.values() if len(one) > 1), None)
        return (min(varied), max(varied)) if varied and change.key != TOGETHER else None

    @property
    def by_cost(self) -> tuple[Tried, ...]:
        """Changes that increase the speed and cost money, the largest gain per cost first."""
        paid = [one for one in self.helping if one.gain_per_cost is not None]
        return tuple(sorted(paid, key=lambda one: -(one.gain_per_cost or 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "schema": SCHEMA,
            **by_name(self, "result economics options=tried"),
            "by_cost": [one.change.key for one in self.by_cost],
            "uncertain": [one.change.key for one in self.uncertain],
            "impossible": [by_name(one, "key description why=barred") for one in self.impossible],
        }


def _setting(change: Change) -> Hashable:
    """Return what a change sets: equal for changes that differ only in a number."""
    values = ((edit.path, "" if _is_number(edit.value) else repr(edit.value)) for edit in change.edits)
    return change.kind, tuple(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def advise(
    scenario: ScenarioSource,
    *,
    costs: CostList | None = None,
    progress: Progress | None = None,
    evaluator: Evaluator | None = None,
) -> Advice:
    """Simulate a scenario with one change at a time, and rank the changes by what they gain.

    ``evaluator`` is one of the scenario that may have simulated some of it already. Raises what ``simulate``
    raises for the unchanged scenario; a change that cannot be made is listed as impossible.
    """
    known = load_costs() if costs is None else costs
    evaluator = evaluator or Evaluator(loaded(scenario))
    scenario = evaluator.scenario
    _, result = evaluator.answer(progress=progress)
    now = economics(scenario, result, known)
    tried: list[Tried] = []
    impossible: list[Change] = []

    def evaluate(change: Change) -> None:
        why = change.barred
        if not why:
            try:
                found, answer = evaluator.answer(*change.edits, progress=labelled(progress, change.key))
                why = "; ".join(answer.advice)
            except (InputError, SimulationError) as error:
                why = _why(error)
        if why:
            impossible.append(change._replace(barred=why))
            return
        cost = economics(found, answer, known)
        gain = result.unit_s / answer.unit_s if result.unit_s and answer.unit_s else None
        tried.append(
            Tried(
                change=change,
                scenario=found,
                result=answer,
                economics=cost,
                gain=gain,
                extra=_extra(now, cost) if change.priced else None,
                margin=margin(result, answer, unit=True) if gain else 0.0,
            )
        )

    try:
        options = limited(options_of)(evaluator, result, known)
    except WorkLimitError as error:
        options = (Change("setting", "all changes", barred=str(error)),)
    for option in options:
        evaluate(option)
    together = _together(tried)
    if together is not None:
        evaluate(together)
        single = max(one.gain or 0.0 for one in tried if one.change.kind == "setting")
        # Settings may stand in each other's way: what gains less than one of them is no advice.
        tried = [one for one in tried if one.change is not together or (one.gain or 0.0) >= single]
    tried.sort(key=lambda one: one.result.unit_s or 0.0)
    return Advice(scenario, result, now, tuple(_different(tried)), tuple(impossible))


def _different(tried: Iterable[Tried]) -> Iterator[Tried]:
    """Yield the changes without those that help exactly as an earlier one does: they are the same change in
    other words, such as a strategy that divides nothing and one that offloads nothing."""
    answers: list[tuple[Any, ...]] = []
    for one in tried:
        needs = [(use.tier, use.needed, use.capacity) for use in one.result.capacity]
        answer = one.result.metrics(), needs, one.extra, one.change.priced
        if not one.helps or answer not in answers:
            answers.append(answer)
            yield one


def _together(tried: Sequence[Tried]) -> Change | None:
    """Return all settings that gain alone as one change, the best of each key; None if that is one setting or
    none."""
    helping = [one for one in tried if one.change.kind == "setting" and (one.gain or 0.0) >= WORTH]
    best: dict[Location, Edit] = {}
    for one in sorted(helping, key=lambda one: one.gain or 0.0):
        best |= {each.path: each for each in one.change.edits}
    if any({each.path: each for each in one.change.edits} == best for one in helping) or not helping:
        return None
    names = ", ".join(str(path[-1]) for path in best)
    description = f"all settings that gain alone, combined ({names})"
    return Change("setting", description, tuple(best.values()), key=TOGETHER)


def _extra(now: Economics, then: Economics) -> float | None:
    """Return the price of what has to be bought: the sum of what each line of one bill exceeds the other by.

    What has no price does not matter where both bills have as much of it.
    """
    if _unpriced(now) != _unpriced(then):
        return None
    before, after = (one.bill.by_key for one in (now, then))
    return sum(max(0.0, total - before.get(key, 0.0)) for key, total in after.items())


def _unpriced(one: Economics) -> set[tuple[str, str, int]]:
    return {(item.key, item.description, item.number) for item in one.bill.items if item.total is None}


def _why(error: InputError | SimulationError) -> str:
    if isinstance(error, InputError):
        return "; ".join(problem.message for problem in error.problems)
    return str(error)


SIGNATURE = "# Written by simoffload advise."
"""First line of every scenario that is written."""
_SHIPPED = "hardware_profiles/"
_LONGEST_NAME = 200


def recommended(advice: Advice, search: Search | None = None) -> dict[str, str]:
    """Return the files to write, by name: every change that helps, the best purchase, and the front of a
    search.

    A scenario that refers to files of its own needs ``user_files`` next to it.
    """
    found: dict[str, str] = {}
    for rank, one in enumerate(advice.helping, start=1):
        name = f"{rank:02d}-{one.change.key}".replace("+", "-and-")
        found[f"{name}.yaml"] = _scenario(advice.scenario, one, one.change.description)
        if one.change.sets_program:
            exports = one.result.provenance.exports
            found |= {f"{name}.{file}": ds_config_text(content) for file, content in exports.items()}
    if search is not None and search.best is not None:
        description = f"best by {search.objective}: {', '.join(search.best.description)}"
        found["best.yaml"] = _scenario(advice.scenario, search.best, description)
    for rank, point in enumerate(search.front if search else (), start=1):
        found[f"front-{rank:02d}.yaml"] = _scenario(advice.scenario, point, ", ".join(point.description))
    return found


def _scenario(base: LoadedScenario, found: Evaluated, description: str) -> str:
    """Return a scenario file of what was simulated, with all settings of DeepSpeed but the batch, which the
    workload sets."""
    name = f"{base.name}: {description}"[:_LONGEST_NAME]
    edits = [Edit.at("name", name), Edit.at("description", f"{base.name} with {description}.")]
    exported = found.result.provenance.exports.get(FILE)
    if exported is not None:
        config = {key: value for key, value in exported.items() if key not in BATCH}
        edits.append(Edit.at("strategy.ds_config", config))
    return f"{SIGNATURE}\n{yaml_text(edited(found.scenario.document, edits).data)}"


def user_files(scenarios: Iterable[LoadedScenario]) -> dict[str, Path]:
    """Return the user's own files that scenarios of one folder need, by their path in it."""
    found: dict[str, Path] = {}
    for scenario in scenarios:
        root = scenario.document.root
        if root is not None:
            own = (path for path in _own(scenario, root) if path.is_relative_to(root))
            found |= {path.relative_to(root).as_posix(): path for path in own}
    return found


def _own(scenario: LoadedScenario, root: Path) -> Iterator[Path]:
    for use in scenario.machine.profiles:
        if not use.path.startswith(_SHIPPED):
            yield Path(use.path)
    model = scenario.document.data.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("config"), str):
        config = root / model["config"]
        yield config / "config.json" if config.is_dir() else config
    if is_path(scenario.scenario.platform):
        yield root / scenario.scenario.platform
