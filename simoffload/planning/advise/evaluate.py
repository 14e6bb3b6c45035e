"""Every option simulated: what it gains, what it costs, and why others are impossible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simoffload.documents import Edit, Location
from simoffload.errors import InputError, SimulationError
from simoffload.planning.advise import hardware
from simoffload.planning.advise.options import Option, remedies, settings, workloads
from simoffload.planning.costs import CostList, Economics, economics, load_costs
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation import Progress, labelled, simulate

__all__ = ["WORTH", "Advice", "Impossible", "Tried", "advise", "options_of"]

SCHEMA = "simoffload/advice/1"
WORTH = 1.005
"""Gain from which on a change counts as one that helps: the least that three digits show."""


@dataclass(frozen=True)
class Tried:
    """An option, simulated."""

    option: Option
    scenario: LoadedScenario
    result: SimulationResult
    economics: Economics
    gain: float | None
    """Speed over that of the scenario as it is, by time per ``unit``; None if that does not fit."""
    extra: float | None
    """What has to be bought beyond the scenario as it is, in the list's currency; None without prices."""

    @property
    def gain_per_cost(self) -> float | None:
        """(gain - 1) for every 1000 of the currency; None where nothing has to be bought."""
        return (self.gain - 1) / self.extra * 1000 if self.gain is not None and self.extra else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "key": self.option.key,
            "description": self.option.description,
            "kind": self.option.kind,
            "changes": [{"path": list(place), "value": value} for place, value in self.option.edits],
            "gain": self.gain,
            "extra_cost": self.extra,
            "gain_per_1000": self.gain_per_cost,
            "fits": self.result.fits,
            "metrics": self.result.metrics(),
            "bottleneck": self.result.bottleneck,
            "limit": self.result.limit,
            "economics": self.economics.metrics(),
            "exports": self.result.provenance.exports,
        }


@dataclass(frozen=True)
class Impossible:
    """An option that DeepSpeed, the machine or its memory refuses."""

    option: Option
    why: str


@dataclass(frozen=True)
class Advice:
    """A scenario as it is, and what changes to it would bring."""

    scenario: LoadedScenario
    result: SimulationResult
    economics: Economics
    tried: tuple[Tried, ...]
    """The largest gain first."""
    impossible: tuple[Impossible, ...]

    @property
    def helping(self) -> tuple[Tried, ...]:
        """Those that gain."""
        return tuple(one for one in self.tried if one.gain is None or one.gain >= WORTH)

    @property
    def by_cost(self) -> tuple[Tried, ...]:
        """Those that gain and cost something, the most gain for the money first."""
        paid = [one for one in self.helping if one.gain_per_cost is not None]
        return tuple(sorted(paid, key=lambda one: -(one.gain_per_cost or 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "schema": SCHEMA,
            "result": self.result.to_dict(),
            "economics": self.economics.to_dict(),
            "options": [one.to_dict() for one in self.tried],
            "by_cost": [one.option.key for one in self.by_cost],
            "impossible": [
                {"key": one.option.key, "description": one.option.description, "why": one.why}
                for one in self.impossible
            ],
        }


def advise(
    scenario: LoadedScenario, *, costs: CostList | None = None, progress: Progress | None = None
) -> Advice:
    """Simulate a scenario with one change at a time, and rank the changes by what they gain.

    Raises what ``simulate`` raises for the scenario as it is; a change that cannot be made is told.
    """
    known = load_costs() if costs is None else costs
    result = simulate(scenario, progress=progress)
    now = economics(scenario, result, known)
    tried: list[Tried] = []
    impossible: list[Impossible] = []

    def evaluate(option: Option) -> None:
        try:
            changed, answer = _simulated(option, scenario, progress)
        except (InputError, SimulationError) as error:
            impossible.append(Impossible(option, _why(error)))
            return
        cost = economics(changed, answer, known)
        gain = result.unit_s / answer.unit_s if result.unit_s and answer.unit_s else None
        tried.append(Tried(option, changed, answer, cost, gain, _extra(now, cost) if option.priced else None))

    for option in options_of(scenario, result, known):
        evaluate(option)
    together = _together(tried)
    if together is not None:
        evaluate(together)
        single = max(one.gain or 0.0 for one in tried if one.option.kind == "setting")
        # Settings may stand in each other's way: what gains less than one of them is no advice.
        tried = [one for one in tried if one.option is not together or (one.gain or 0.0) >= single]
    tried.sort(key=lambda one: one.result.unit_s or 0.0)
    return Advice(scenario, result, now, tuple(tried), tuple(impossible))


def _together(tried: Sequence[Tried]) -> Option | None:
    """All settings that gain by themselves at once, of each key the best; None where that is one or none."""
    helping = [one for one in tried if one.option.kind == "setting" and (one.gain or 0.0) >= WORTH]
    best: dict[Location, Edit] = {}
    for one in sorted(helping, key=lambda one: one.gain or 0.0):
        best |= {each.path: each for each in one.option.edits}
    if any({each.path: each for each in one.option.edits} == best for one in helping) or not helping:
        return None
    description = f"all settings that gain by themselves at once ({len(best)} keys)"
    return Option("settings", description, "setting", tuple(best.values()))


def _extra(now: Economics, then: Economics) -> float | None:
    """What has to be bought: line by line what one bill has more than the other; nothing is given back.

    What has no price does not matter where both bills have as much of it.
    """
    if _unpriced(now) != _unpriced(then):
        return None
    before, after = (one.bill.by_key for one in (now, then))
    return sum(max(0.0, total - before.get(key, 0.0)) for key, total in after.items())


def _unpriced(one: Economics) -> set[tuple[str, str, int]]:
    return {(item.key, item.description, item.number) for item in one.bill.items if item.total is None}


def _simulated(
    option: Option, base: LoadedScenario, progress: Progress | None
) -> tuple[LoadedScenario, SimulationResult]:
    """Raises InputError where it is known that it cannot be, and where it does not fit."""
    if option.barred:
        raise InputError.at("", option.barred)
    scenario = base.edited(*option.edits)
    result = simulate(scenario, progress=labelled(progress, option.key))
    if not result.fits:
        raise InputError.at("", "; ".join(result.advice))
    return scenario, result


def _why(error: InputError | SimulationError) -> str:
    if isinstance(error, InputError):
        return "; ".join(problem.message for problem in error.problems)
    return str(error)


def options_of(scenario: LoadedScenario, result: SimulationResult, costs: CostList) -> tuple[Option, ...]:
    """Everything that is tried, each key once, without what changes nothing."""
    found: dict[str, Option] = {}
    for option in _options(scenario, result, costs):
        if scenario.changed(*option.edits).data != scenario.document.data:
            found.setdefault(option.key, option)
    if not result.fits:
        found |= {option.key: option for option in remedies(scenario)}
    return tuple(found.values())


def _options(scenario: LoadedScenario, result: SimulationResult, costs: CostList) -> Iterator[Option]:
    platform = scenario.platform()
    tiers = tuple(dict.fromkeys(_used(result)))
    stores = [tier for tier in tiers if tier in platform.targets]
    for tier in stores:
        yield from hardware.drives(platform, tier, costs)
        yield from hardware.systems(platform, tier)
        yield from hardware.ports(platform, tier, nodes=scenario.machine.nodes)
    yield from hardware.places(scenario, tiers)
    yield from hardware.resident(scenario)
    yield from hardware.memory(scenario, tiers)
    yield from hardware.cables(scenario)
    yield from hardware.processors(scenario)
    yield from workloads(scenario)
    yield from settings(scenario, storage=bool(stores), direct=_direct(scenario, tiers[0]))


def _direct(scenario: LoadedScenario, tier: str) -> bool:
    """Whether GPUs and storage of weights are known to have GPUDirect Storage."""
    gpudirect, target = (
        scenario.machine.accelerator.gpudirect_storage,
        scenario.machine.topology.targets.get(tier),
    )
    return gpudirect is not None and gpudirect.value and target is not None and target.has_rdma


def _used(result: SimulationResult) -> Iterable[str]:
    yield result.target
    if isinstance(result, TrainingResult):
        yield result.optimizer_target
