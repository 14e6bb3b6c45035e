"""Looking through a catalogue: which purchase meets a budget and a service level best."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simoffload.documents import Edit
from simoffload.errors import InputError, SimulationError
from simoffload.planning.advise.catalogue import Dimension, dimensions
from simoffload.planning.advise.service import ServiceLevel
from simoffload.planning.costs import CostList, Economics, economics, load_costs
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario, canonical
from simoffload.simulation import Progress, fit, simulate

__all__ = ["Method", "Objective", "Search", "SimulatedPurchase", "search_catalogue"]

Objective = Literal["throughput", "cost"]
"""The most work per time, or the least money per unit of work, within budget and service level."""
Method = Literal["grid", "optuna"]
SCHEMA = "simoffload/search/1"
MOST_ON_A_GRID = 1000
"""Combinations up to which all are tried."""


@dataclass(frozen=True)
class SimulatedPurchase:
    """One purchase that works, simulated."""

    description: tuple[str, ...]
    """What was chosen, one for each dimension."""
    edits: tuple[Edit, ...]
    scenario: LoadedScenario
    result: SimulationResult
    economics: Economics
    meets: bool
    """Whether it keeps the budget and the service level."""

    @property
    def purchase(self) -> float:
        """In the list's currency; endless where prices are missing."""
        return _purchase(self.economics)

    @property
    def rate(self) -> float:
        """[1/s] tokens, or checkpoints."""
        return 1 / self.result.unit_s if self.result.unit_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "description": list(self.description),
            "changes": [{"path": list(place), "value": value} for place, value in self.edits],
            "meets": self.meets,
            "units_per_s": self.rate,
            "purchase": self.economics.purchase,
            "metrics": self.result.metrics(),
            "economics": self.economics.metrics(),
        }


def _purchase(one: Economics) -> float:
    return math.inf if one.purchase is None or one.bill.missing else one.purchase


@dataclass(frozen=True)
class Search:
    """What was found in a catalogue."""

    points: tuple[SimulatedPurchase, ...]
    """Everything that was simulated."""
    best: SimulatedPurchase | None
    """The best by the objective that keeps budget and service level; None if nothing does."""
    nearest: SimulatedPurchase | None
    """Of those within the budget that miss the service level the one that misses it least."""
    objective: Objective
    method: Method
    combinations: int
    """In the catalogue."""
    over_budget: int
    """Combinations beyond the budget, or with a part that has no price; they are not simulated."""
    too_large: int
    """Combinations that do not fit."""
    duplicates: int
    """Combinations that come to the same as others, and count once."""
    refusals: dict[str, int]
    """Why DeepSpeed or the machine refuses combinations, and how many, the commonest first."""
    missing: tuple[str, ...]
    """What has no price: combinations with it are within no budget, and not in ``front``."""
    currency: str

    @property
    def refused(self) -> int:
        """Combinations that DeepSpeed or the machine refuses."""
        return sum(self.refusals.values())

    @property
    def front(self) -> tuple[SimulatedPurchase, ...]:
        """Points that keep the service level and that no other beats in both purchase and rate (Pareto)."""
        found: list[SimulatedPurchase] = []
        priced = (one for one in self.points if one.meets and math.isfinite(one.purchase))
        for point in sorted(priced, key=lambda one: (one.purchase, -one.rate)):
            if not found or point.rate > found[-1].rate:
                found.append(point)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "schema": SCHEMA,
            "objective": self.objective,
            "method": self.method,
            "currency": self.currency,
            "combinations": self.combinations,
            "simulated": len(self.points),
            "too_dear": self.over_budget,
            "too_large": self.too_large,
            "duplicates": self.duplicates,
            "refused": self.refused,
            "refusals": self.refusals,
            "missing_prices": list(self.missing),
            "best": self.best.to_dict() if self.best else None,
            "nearest": self.nearest.to_dict() if self.nearest else None,
            "front": [point.to_dict() for point in self.front],
        }


def search_catalogue(
    scenario: LoadedScenario,
    *,
    budget: float | None = None,
    service: Sequence[ServiceLevel] = (),
    objective: Objective = "throughput",
    platforms: Sequence[str] = (),
    method: Method | None = None,
    trials: int = 200,
    costs: CostList | None = None,
    progress: Progress | None = None,
) -> Search:
    """Simulate purchases from the shipped catalogue for the work of a scenario.

    Storage, number of drives, host memory and batch are combined, on the scenario's platform and on
    ``platforms``. All combinations are tried up to 1000, beyond that ``trials`` that Optuna's NSGA-II
    chooses; ``method`` decides otherwise. What is beyond ``budget`` is not simulated. Raises InputError for
    an unknown platform, or without the package optuna where it is needed.
    """
    known = load_costs() if costs is None else costs
    run = _PurchaseSearch(scenario, known, budget, tuple(service), progress)
    spaces = [dimensions(scenario, platform, known) for platform in dict.fromkeys((None, *platforms))]
    combinations = sum(math.prod(len(one.choices) for one in space) for space in spaces)
    chosen: Method = method or ("grid" if combinations <= MOST_ON_A_GRID else "optuna")
    for space in spaces:
        if chosen == "grid":
            for choice in itertools.product(*(range(len(one.choices)) for one in space)):
                run.point(space, choice)
        else:
            from simoffload.planning.advise.optimizer import explore

            explore(space, run.point, trials=max(1, trials // len(spaces)))
    fitting = [one for one in run.points if one.meets]
    ranks: Mapping[Objective, Callable[[SimulatedPurchase], tuple[float, float]]] = {
        "throughput": lambda one: (-one.rate, one.purchase),
        "cost": lambda one: (_cost_per_unit(one), one.purchase),
    }
    if objective == "cost":
        fitting = [one for one in fitting if math.isfinite(_cost_per_unit(one))]
    best = min(fitting, key=ranks[objective], default=None)
    missed = (one for one in run.points if not one.meets)
    return Search(
        run.points,
        best,
        min(missed, key=lambda one: max(level.missed(one.result) for level in service), default=None),
        objective,
        chosen,
        combinations,
        run.over_budget,
        run.too_large,
        run.combined - run.distinct,
        dict(run.refusals.most_common()),
        tuple(run.missing),
        known.currency,
    )


def _cost_per_unit(point: SimulatedPurchase) -> float:
    """Cost of a unit of work; endless where it is not known."""
    per_h = point.economics.metrics()["cost_per_h"]
    return per_h / point.rate if per_h is not None and not point.economics.missing else math.inf


class _PurchaseSearch:
    """Simulates combinations, each scenario once, and counts what falls through."""

    def __init__(
        self,
        scenario: LoadedScenario,
        costs: CostList,
        budget: float | None,
        service: tuple[ServiceLevel, ...],
        progress: Progress | None,
    ) -> None:
        self._scenario, self._costs = scenario, costs
        self._budget, self._service, self._progress = budget, service, progress
        self._known: dict[str, SimulatedPurchase | None] = {}
        self.missing: dict[str, None] = {}
        self.refusals = Counter[str]()
        """Why combinations are refused, and how many."""
        self.over_budget = self.too_large = self.combined = 0

    def point(self, space: Sequence[Dimension], choice: Sequence[int]) -> SimulatedPurchase | None:
        """The combination of a choice in each dimension; None if it cannot be had."""
        picked = [dimension.choices[index] for dimension, index in zip(space, choice, strict=True)]
        edits = tuple(one for option in picked for one in option.edits)
        self.combined += 1
        key = canonical(self._scenario.changed(*edits).data)
        if key not in self._known:
            description = tuple(option.description for option in picked if option.description)
            self._known[key] = self._simulated(edits, description)
        return self._known[key]

    @property
    def distinct(self) -> int:
        """Combinations of which no two come to the same."""
        return len(self._known)

    @property
    def points(self) -> tuple[SimulatedPurchase, ...]:
        """What was simulated."""
        return tuple(point for point in self._known.values() if point is not None)

    def _simulated(self, edits: tuple[Edit, ...], description: tuple[str, ...]) -> SimulatedPurchase | None:
        try:
            scenario = self._scenario.edited(*edits)
            capacity = fit(scenario)
            if not capacity.fits:
                self.too_large += 1
                return None
            cost = economics(scenario, capacity, self._costs)
            self.missing |= dict.fromkeys(cost.bill.missing)
            if self._budget is not None and _purchase(cost) > self._budget:
                self.over_budget += 1
                return None
            if self._progress is not None:
                self._progress(f"{len(self._known) + 1}: {', '.join(description) or 'as it is'}")
            result = simulate(scenario)
        except InputError as error:
            self.refusals[error.problems[0].message] += 1
            return None
        except SimulationError as error:
            self.refusals[str(error)] += 1
            return None
        meets = all(level.kept(result) for level in self._service)
        return SimulatedPurchase(
            description, edits, scenario, result, economics(scenario, result, self._costs), meets
        )
