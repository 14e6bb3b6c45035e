"""Search of a catalogue for the purchase that meets a budget and a service level best."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simoffload.documents import Edit, quoted, suggest
from simoffload.errors import InputError, SimulationError, WorkLimitError, shortened
from simoffload.limits import keep, limited
from simoffload.planning.advise.catalogue import Dimension, dimensions, joined_edits
from simoffload.planning.costs import CostList, Economics, economics, load_costs
from simoffload.planning.evaluator import Evaluated, Evaluator
from simoffload.results import Change, SimulationResult, by_name
from simoffload.scenario import ScenarioSource, loaded
from simoffload.simulation import Progress, fit
from simoffload.units import format_number, format_seconds, parse_seconds

if TYPE_CHECKING:
    import optuna

_TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "step": "step_s", "save": "save_s"}
"""Short names of metrics with an upper limit [s]."""
_RATES = ("tokens_per_s", "decode_tokens_per_s", "samples_per_s")
"""Names of metrics with a lower limit [1/s]."""
_EXAMPLE = "write e.g. tpot=200ms, ttft=2s, step=10s or tokens_per_s=50"


class ServiceLevel(NamedTuple):
    """A ServiceLevel is a metric and its limit."""

    metric: str
    limit: float
    """Limit of the metric: [s], or [1/s] for rates."""

    @property
    def text(self) -> str:
        """Return the limit as text, such as "tpot ≤ 200 ms"."""
        if self.metric in _RATES:
            return f"{self.metric} ≥ {format_number(self.limit)}"
        return f"{self.metric.removesuffix('_s')} ≤ {format_seconds(self.limit)}"

    def kept(self, result: SimulationResult) -> bool:
        """Return whether a result keeps the limit; a result without this metric does not."""
        return self.missed(result) <= 1

    def missed(self, result: SimulationResult) -> float:
        """Return how many times too long a time is, or too small a rate; at most 1 if the limit is kept."""
        value = result.metrics().get(self.metric)
        if not value:
            return math.inf
        return self.limit / value if self.metric in _RATES else value / self.limit


def parse_service(text: str, result: type[SimulationResult]) -> ServiceLevel:
    """Read ``tpot=200ms`` for a kind of result. Raises InputError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    metric = _TIMES.get(name, name)
    known = [*(short for short, full in _TIMES.items() if full in result.formulas), *_RATES]
    mine = [one for one in known if _TIMES.get(one, one) in result.formulas]
    if not equals or not value:
        raise _refusal(text, f"has no limit; {_EXAMPLE}")
    if metric not in (*_TIMES.values(), *_RATES):
        raise _refusal(text, f"unknown metric {quoted(name)}{suggest(name, mine)}; {_EXAMPLE}")
    if metric not in result.formulas:
        raise _refusal(text, f"{name} is not a metric of this kind of work; it has {', '.join(mine)}")
    try:
        limit = float(value) if metric in _RATES else parse_seconds(value)
    except ValueError as error:
        no_number = f"{quoted(value)} is not a number"
        reason = no_number if metric in _RATES else str(error).partition("; write e.g.")[0]
        raise _refusal(text, f"{reason}; {_EXAMPLE}") from None
    if not 0 < limit < math.inf:
        raise _refusal(text, f"must be above zero and finite; {_EXAMPLE}")
    return ServiceLevel(metric, limit)


def _refusal(text: str, message: str) -> InputError:
    return InputError.at(shortened(text), message, path="--slo")


Objective = Literal["throughput", "cost"]
"""The most work per time, or the least money per unit of work, within budget and service level."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "description changes=edits meets units_per_s=rate"),
            **by_name(self.economics, "purchase"),
            "metrics": self.result.metrics(),
            "economics": self.economics.metrics(),
        }


def _purchase(one: Economics) -> float:
    return math.inf if one.purchase is None or one.bill.missing else one.purchase


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
    """Number of combinations in the catalogue."""
    over_budget: int
    """Number of combinations over the budget or with an unpriced part; they are not simulated."""
    too_large: int
    """Number of combinations that do not fit."""
    duplicates: int
    """Number of combinations that lead to the same scenario as another one."""
    refusals: dict[str, int]
    """Number of refused combinations by the reason of DeepSpeed or the machine, most frequent first."""
    missing: tuple[str, ...]
    """Parts without a price; combinations with them are within no budget, and not in ``front``."""
    currency: str
    stopped: str = ""
    """Why not all combinations were tried; empty if nothing stopped the search."""

    @property
    def simulated(self) -> int:
        """Number of combinations that were simulated."""
        return len(self.points)

    @property
    def refused(self) -> int:
        """Number of combinations that DeepSpeed or the machine refuses."""
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
        """Return everything as plain values."""
        counted = "combinations simulated stopped over_budget too_large duplicates refused refusals"
        return {
            "schema": SCHEMA,
            **by_name(self, f"objective method currency {counted} missing_prices=missing best nearest front"),
        }


def search_catalogue(
    scenario: ScenarioSource,
    *,
    budget: float | None = None,
    service: Sequence[ServiceLevel] = (),
    objective: Objective = "throughput",
    platforms: Sequence[str] = (),
    method: Method | None = None,
    trials: int = 200,
    costs: CostList | None = None,
    progress: Progress | None = None,
    evaluator: Evaluator | None = None,
) -> Search:
    """Simulate purchases from the shipped catalogue for the work of a scenario.

    Storage, number of drives, host memory and batch are combined, on the scenario's platform and on
    ``platforms``. All combinations are tried up to 1000, beyond that ``trials`` that Optuna's NSGA-II
    chooses; ``method`` decides otherwise. What is beyond ``budget`` is not simulated. The scenario's limits
    hold for the whole search, which then returns what it has; with nothing it raises WorkLimitError. Raises
    InputError for an unknown platform, or without the package optuna where it is needed.
    """
    known = load_costs() if costs is None else costs
    evaluator = evaluator or Evaluator(loaded(scenario))
    run = _PurchaseSearch(evaluator, known, budget, tuple(service), progress)
    spaces = [
        dimensions(evaluator.scenario, platform, known) for platform in dict.fromkeys((None, *platforms))
    ]
    combinations = sum(math.prod(len(one.choices) for one in space) for space in spaces)
    chosen: Method = method or ("grid" if combinations <= MOST_ON_A_GRID else "optuna")
    try:
        stopped = _try_all(run, spaces, trials=None if chosen == "grid" else max(1, trials // len(spaces)))
    except WorkLimitError as error:
        stopped = str(error)
        if not run.points:
            raise
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
        stopped,
    )


@limited
def _try_all(run: _PurchaseSearch, spaces: Sequence[Sequence[Dimension]], *, trials: int | None) -> str:
    """Try all combinations, or so many ``trials`` of each space; nothing stops it then, so return ""."""
    keep(run.limits)
    for space in spaces:
        if trials is not None:
            explore(space, run.point, trials=trials)
            continue
        for choice in itertools.product(*(range(len(one.choices)) for one in space)):
            run.point(space, choice)
    return ""


def _cost_per_unit(point: SimulatedPurchase) -> float:
    """Return the cost of a unit of work; infinite where it is not known."""
    per_h = point.economics.metrics()["cost_per_h"]
    return per_h / point.rate if per_h is not None and not point.economics.missing else math.inf


class _PurchaseSearch:
    """A _PurchaseSearch simulates combinations, each scenario once, and counts those without a result."""

    def __init__(
        self,
        evaluator: Evaluator,
        costs: CostList,
        budget: float | None,
        service: tuple[ServiceLevel, ...],
        progress: Progress | None,
    ) -> None:
        self._evaluator, self._costs = evaluator, costs
        self._budget, self._service, self._progress = budget, service, progress
        self._known: dict[str, SimulatedPurchase | None] = {}
        self.missing: dict[str, None] = {}
        self.refusals = Counter[str]()
        """Number of refused combinations by reason."""
        self.over_budget = self.too_large = self.combined = 0
        self.limits = evaluator.scenario.scenario.engine.limits

    def point(self, space: Sequence[Dimension], choice: Sequence[int]) -> SimulatedPurchase | None:
        """Return the purchase for one choice in each dimension; None if it has no answer."""
        picked = tuple(one.choices[index] for one, index in zip(space, choice, strict=True))
        edits = joined_edits(picked)
        key = self._evaluator.identity(*edits)
        if key not in self._known:
            self._known[key] = self._simulated(picked, edits)
        self.combined += 1
        return self._known[key]

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
                self.over_budget += 1
                return None
            if self._progress is not None:
                description = ", ".join(one.description for one in changes if one.description)
                self._progress(f"{len(self._known) + 1}: {description or 'no change'}")
            scenario, result = self._evaluator.answer(*edits)
        except (InputError, SimulationError) as error:
            self.refusals[error.problems[0].message if isinstance(error, InputError) else str(error)] += 1
            return None
        cost = economics(scenario, result, self._costs)
        meets = all(level.kept(result) for level in self._service)
        return SimulatedPurchase(
            changes=changes, scenario=scenario, result=result, economics=cost, meets=meets
        )


_SEED = 20261121
_WORST = (0.0, 1e18)


def explore(
    space: Sequence[Dimension],
    evaluate: Callable[[Sequence[Dimension], Sequence[int]], SimulatedPurchase | None],
    *,
    trials: int,
) -> None:
    """Try ``trials`` combinations that look promising for a high rate and a low purchase.

    The first ones go through one dimension after the other and keep the fastest choice of each: NSGA-II by
    itself needs long where few choices work, or one dimension outweighs the others. The same catalogue gives
    the same trials. Raises InputError without the package optuna.

    NSGA-II: Deb et al., "A fast and elitist multiobjective genetic algorithm" (2002).
    """
    try:
        import optuna
    except ImportError:
        text = "needs the package optuna: pip install 'simoffload[search]', or narrow the search"
        raise InputError.at("optuna", text, path="--method") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        choice = [trial.suggest_int(one.name, 0, len(one.choices) - 1) for one in space]
        point = evaluate(space, choice)
        if point is None or not point.meets:
            return _WORST
        return point.rate, min(point.purchase, _WORST[1])

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
