"""Search of a catalogue for the purchase that meets a budget and a service level best."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from simoffload.documents import Edit
from simoffload.errors import InputError, SimulationError, WorkLimitError
from simoffload.limits import keep, limited, sharing, time_left
from simoffload.planning.advise.catalogue import Dimension, dimensions, joined_edits, limits_of
from simoffload.planning.advise.objective import Objective, objective_of, ranking_time
from simoffload.planning.costs import CostList, Economics, economics, load_costs
from simoffload.planning.evaluator import Evaluated, Evaluator
from simoffload.planning.service_levels import ServiceLevel
from simoffload.progress import Watcher, steps, watched_by, working_on
from simoffload.results import Change, by_name
from simoffload.scenario import ScenarioSource, loaded
from simoffload.simulation import fit

if TYPE_CHECKING:
    import optuna

Method = Literal["grid", "optuna"]
SCHEMA = "simoffload/search/1"
MOST_ON_A_GRID = 1000
"""Number of combinations up to which all are simulated."""


@dataclass(frozen=True, kw_only=True)
class SimulatedPurchase(Evaluated):
    """One purchase that was simulated."""

    changes: tuple[Change, ...]
    """Chosen changes, one for each dimension."""
    meets: bool
    """Whether the purchase keeps the budget and the service level."""
    objective: Objective = "throughput"
    """The objective in whose unit ``speed`` is."""

    @property
    def description(self) -> tuple[str, ...]:
        """Differences from the unchanged scenario, in words."""
        return tuple(one.description for one in self.changes if one.description)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All edits that lead from the scenario to this purchase."""
        return joined_edits(self.changes)

    @property
    def purchase(self) -> float:
        """Price in the list's currency; infinite where prices are missing."""
        return _purchase(self.economics)

    @property
    def rate(self) -> float:
        """[1/s] tokens, or checkpoints."""
        return 1 / self.result.unit_s if self.result.unit_s else 0.0

    @property
    def speed(self) -> float:
        """[1/s] What the front compares: steps of one sequence for the objective "latency", else ``rate``."""
        time = ranking_time(self.result, self.objective)
        return 1 / time if time else 0.0

    @property
    def cost_per_unit(self) -> float:
        """Cost of a unit of work; infinite if unknown."""
        per_h = self.economics.metrics()["cost_per_h"]
        return per_h / self.rate if per_h is not None and not self.economics.missing else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "description changes=edits meets units_per_s=rate"),
            **by_name(self.economics, "purchase missing_prices=missing"),
            "metrics": self.result.metrics(),
            "economics": self.economics.metrics(),
        }


def _purchase(one: Economics) -> float:
    return math.inf if one.purchase is None else one.purchase


@dataclass(frozen=True)
class Search:
    """The Search holds the purchases that were simulated from a catalogue."""

    points: tuple[SimulatedPurchase, ...]
    """All purchases that were simulated."""
    best: SimulatedPurchase | None
    """Best purchase by the objective that keeps budget and service level; None if there is none."""
    nearest: SimulatedPurchase | None
    """Purchase within the budget that misses the service level by the least."""
    objective: Objective
    method: Method
    combinations: int
    """Number of combinations in the catalogue: those that were simulated, and those counted below."""
    over_budget: int
    """Number of combinations over the budget; they are not simulated."""
    unpriced: int
    """Number of combinations with a part without a price, which no budget allows; they are not simulated."""
    too_large: int
    """Number of combinations that do not fit."""
    duplicates: int
    """Number of combinations that lead to the same scenario as another one."""
    not_tried: int
    """Number of combinations that the method did not look at."""
    refusals: dict[str, int]
    """Number of refused combinations by the reason of the program or the machine, most frequent first."""
    missing: tuple[str, ...]
    """Parts without a price; combinations with them are within no budget, and not in ``front``."""
    limits: tuple[str, ...]
    """Sentences on what the machines cannot take, and on what was assumed about them."""
    currency: str
    keeps: bool = False
    """Whether there is a service level that the scenario as it is keeps, with nothing to buy."""
    stopped: str = ""
    """Why not all combinations were tried; empty if nothing stopped the search."""

    @property
    def already(self) -> str:
        """Return that nothing has to be bought, as the beginning of a sentence; empty if that is not so."""
        return "the scenario keeps the service level without a purchase; " if self.keeps else ""

    @property
    def simulated(self) -> int:
        """Number of combinations that were simulated."""
        return len(self.points)

    @property
    def refused(self) -> int:
        """Number of combinations that the program or the machine refuses."""
        return sum(self.refusals.values())

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of combinations by what became of them, which add up to all; without what became of none."""
        counted = {
            "simulated": self.simulated,
            "do not fit": self.too_large,
            "exceed the budget": self.over_budget,
            "have a part without a price, which no budget allows": self.unpriced,
            "are refused by the program or the machine": self.refused,
            "are equal to others": self.duplicates,
            "were not looked at": self.not_tried,
        }
        return {text: number for text, number in counted.items() if number or text == "simulated"}

    @property
    def front(self) -> tuple[SimulatedPurchase, ...]:
        """Points that keep the service level and that no other beats in both purchase and speed (Pareto)."""
        found: list[SimulatedPurchase] = []
        priced = (one for one in self.points if one.meets and math.isfinite(one.purchase))
        for point in sorted(priced, key=lambda one: (one.purchase, -one.speed)):
            if not found or point.speed > found[-1].speed:
                found.append(point)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        counted = "combinations simulated over_budget unpriced too_large refused duplicates not_tried"
        rest = "stopped outcomes refusals missing_prices=missing limits keeps best nearest front"
        return {"schema": SCHEMA, **by_name(self, f"objective method currency {counted} {rest}")}


def search_catalogue(
    scenario: ScenarioSource,
    *,
    budget: float | None = None,
    service: Sequence[ServiceLevel] = (),
    objective: Objective | None = None,
    platforms: Sequence[str] = (),
    method: Method | None = None,
    trials: int = 200,
    costs: CostList | None = None,
    progress: Watcher | None = None,
    evaluator: Evaluator | None = None,
) -> Search:
    """Simulate purchases from the shipped catalogue for the work of a scenario.

    Storage, number of drives, host memory and batch are combined, on the scenario's platform and on
    ``platforms``. All combinations are tried up to 1000, beyond that ``trials`` that Optuna's NSGA-II
    chooses; ``method`` decides otherwise. What is beyond ``budget`` is not simulated. The ``objective`` is by
    default that of ``advise``. The scenario itself is simulated first. Its limits hold for the whole search,
    which then returns what it has; with nothing it raises WorkLimitError. Raises what ``simulate`` raises for
    the scenario, and InputError for an unknown objective or platform, or where optuna is needed and missing.
    """
    known = load_costs() if costs is None else costs
    evaluator = evaluator or Evaluator(loaded(scenario))
    objective = objective_of(evaluator.scenario, objective)
    run = _PurchaseSearch(evaluator, known, budget, tuple(service), objective)
    names = tuple(dict.fromkeys((None, *platforms)))
    spaces = [dimensions(evaluator.scenario, name, known) for name in names]
    combinations = sum(math.prod(len(one.choices) for one in space) for space in spaces)
    chosen: Method = method or ("grid" if combinations <= MOST_ON_A_GRID else "optuna")
    if chosen == "optuna":
        _check_optuna()  # before anything is simulated
    with watched_by(progress):
        _, unchanged = evaluator.answer()
    stopped = ""
    try:
        with sharing(time_left() / 2), watched_by(progress):  # the other half is for what follows
            _try_all(run, spaces, trials=None if chosen == "grid" else max(1, trials // len(spaces)))
    except WorkLimitError as error:
        stopped = str(error)
        if not run.points:
            raise
    fitting = [one for one in run.points if one.meets and math.isfinite(_rank(one)[0])]
    best = min(fitting, key=_rank, default=None)
    missed = (one for one in run.points if not one.meets)
    return Search(
        run.points,
        best,
        min(missed, key=lambda one: max(level.missed(one.result) for level in service), default=None),
        objective,
        chosen,
        combinations,
        run.over_budget,
        run.unpriced,
        run.too_large,
        run.looked_at - run.distinct,
        combinations - run.looked_at,
        dict(run.refusals.most_common()),
        tuple(run.missing),
        tuple(dict.fromkeys(text for name in names for text in limits_of(evaluator.scenario, name, known))),
        known.currency,
        bool(service) and unchanged.fits and all(level.kept(unchanged) for level in service),
        stopped,
    )


@limited
def _try_all(run: _PurchaseSearch, spaces: Sequence[Sequence[Dimension]], *, trials: int | None) -> None:
    """Try all combinations, or so many ``trials`` of each space."""
    keep(run.limits)
    for space in spaces:
        if trials is not None:
            explore(space, run.point, trials=trials)
            continue
        choices = itertools.product(*(range(len(one.choices)) for one in space))
        for choice in steps(choices, total=math.prod(len(one.choices) for one in space)):
            run.point(space, choice)


def _rank(one: SimulatedPurchase) -> tuple[float, float]:
    """Return the order of purchases by their objective; equal ones by price."""
    return (one.cost_per_unit if one.objective == "cost" else -one.speed), one.purchase


class _PurchaseSearch:
    """A _PurchaseSearch simulates combinations, each scenario once, and counts those without a result."""

    def __init__(
        self,
        evaluator: Evaluator,
        costs: CostList,
        budget: float | None,
        service: tuple[ServiceLevel, ...],
        objective: Objective,
    ) -> None:
        self._evaluator, self._costs, self._objective = evaluator, costs, objective
        self._budget, self._service = budget, service
        self._known: dict[str, SimulatedPurchase | None] = {}
        self.missing: dict[str, None] = {}
        self.refusals = Counter[str]()
        """Number of refused combinations by reason."""
        self.over_budget = self.unpriced = self.too_large = 0
        self._chosen: set[tuple[int, tuple[int, ...]]] = set()
        self.limits = evaluator.scenario.scenario.engine.limits

    def point(self, space: Sequence[Dimension], choice: Sequence[int]) -> SimulatedPurchase | None:
        """Return the purchase for one choice in each dimension; None if it has no answer."""
        picked = tuple(one.choices[index] for one, index in zip(space, choice, strict=True))
        edits = joined_edits(picked)
        key = self._evaluator.identity(*edits)
        if key not in self._known:
            self._known[key] = self._simulated(picked, edits)
        self._chosen.add((id(space), tuple(choice)))
        return self._known[key]

    @property
    def looked_at(self) -> int:
        """Number of combinations that were looked at, each once."""
        return len(self._chosen)

    @property
    def distinct(self) -> int:
        """Number of distinct scenarios among the combinations."""
        return len(self._known)

    @property
    def points(self) -> tuple[SimulatedPurchase, ...]:
        """Purchases that were simulated so far."""
        return tuple(point for point in self._known.values() if point is not None)

    def _simulated(self, changes: tuple[Change, ...], edits: tuple[Edit, ...]) -> SimulatedPurchase | None:
        try:
            scenario = self._evaluator.edited(*edits)
            capacity = fit(scenario)
            if not capacity.fits:
                self.too_large += 1
                return None
            cost = economics(scenario, capacity, self._costs)
            self.missing |= dict.fromkeys(cost.bill.missing)
            if self._budget is not None and _purchase(cost) > self._budget:
                self.unpriced += bool(cost.bill.missing)
                self.over_budget += not cost.bill.missing
                return None
            working_on(", ".join(one.description for one in changes if one.description) or "no change")
            scenario, result = self._evaluator.answer(*edits)
        except InputError as error:
            self.refusals[error.problems[0].message] += 1
            return None
        except SimulationError as error:
            self.refusals[str(error)] += 1
            return None
        return SimulatedPurchase(
            changes=changes,
            scenario=scenario,
            result=result,
            economics=economics(scenario, result, self._costs),
            meets=all(level.kept(result) for level in self._service),
            objective=self._objective,
        )


_SEED = 20261121
_WORST = (0.0, 1e18)


def _check_optuna() -> None:
    """Raise InputError without the package optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        text = "needs the package optuna: pip install 'simoffload[search]', or narrow the search"
        raise InputError.at("optuna", text, path="--method") from None


def explore(
    space: Sequence[Dimension],
    evaluate: Callable[[Sequence[Dimension], Sequence[int]], SimulatedPurchase | None],
    *,
    trials: int,
) -> None:
    """Try ``trials`` combinations that look promising for a high speed and a low purchase.

    The first ones go through one dimension after the other and keep the fastest choice of each: NSGA-II by
    itself needs long where few choices work, or one dimension outweighs the others. The same catalogue gives
    the same trials. Raises InputError without the package optuna.

    NSGA-II: Deb et al., "A fast and elitist multiobjective genetic algorithm" (2002).
    """
    _check_optuna()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        choice = [trial.suggest_int(one.name, 0, len(one.choices) - 1) for one in space]
        point = evaluate(space, choice)
        if point is None or not point.meets:
            return _WORST
        return point.speed, min(point.purchase, _WORST[1])

    study = optuna.create_study(
        directions=["maximize", "minimize"],
        sampler=optuna.samplers.NSGAIISampler(population_size=max(2, min(24, trials)), seed=_SEED),
    )
    _climb(study, objective, space, trials=trials)
    study.optimize(objective, n_trials=trials - len(study.trials))


def _climb(
    study: optuna.Study,
    objective: Callable[[optuna.Trial], tuple[float, float]],
    space: Sequence[Dimension],
    *,
    trials: int,
) -> None:
    """Go through the dimensions until no other choice in any of them is faster."""
    before: dict[str, int] = {}
    fastest = {one.name: 0 for one in space}
    while fastest != before:
        before = fastest
        for dimension in sorted(space, key=lambda one: len(one.choices)):
            line = (fastest | {dimension.name: index} for index in range(len(dimension.choices)))
            done = [trial.params for trial in study.trials]
            new = [choice for choice in line if choice not in done][: trials - len(done)]
            for choice in new:
                study.enqueue_trial(choice)
            study.optimize(objective, n_trials=len(new))
            fastest = max(study.trials, key=lambda trial: trial.values[0]).params
