"""Search of a catalogue for the purchase that meets a budget and a service level best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any, Literal, NamedTuple, get_args

from simoffload.documents import Edit
from simoffload.errors import InputError, SimulationError, WorkLimitError
from simoffload.limits import keep, limited, sharing, time_left
from simoffload.planning.advise.catalogue import Family, families, families_of, joined_edits, limits_of
from simoffload.planning.advise.evaluate import Advice, Tried
from simoffload.planning.advise.objective import Objective, objective_of, sequences_at_once
from simoffload.planning.costs import Bill, CostList, Economics, economics, load_costs, present
from simoffload.planning.evaluator import Asked, Evaluated, Evaluator, evaluator_of
from simoffload.planning.service_levels import ServiceLevel, most_missed
from simoffload.progress import Watcher, steps, watched_by, working_on
from simoffload.results import Change, SimulationResult, by_name
from simoffload.scenario import LoadedScenario
from simoffload.simulation import fit

SCHEMA = "simoffload/search/2"
Outcome = Literal[
    "simulated",
    "do not fit",
    "exceed the budget",
    "have a part without a price, which no budget allows",
    "are refused by the program or the machine",
    "are equal to others",
    "cannot be among the best",
    "were not looked at",
]
"""What became of a combination. It cannot be among the best if a time that it does not beat shows that one
that was simulated is as cheap and as fast, or that it misses the service level."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
_UNPRICED: Outcome = "have a part without a price, which no budget allows"
_BEATEN: Outcome = "cannot be among the best"


@dataclass(frozen=True, kw_only=True)
class SimulatedPurchase(Evaluated):
    """One purchase that was simulated."""

    changes: tuple[Change, ...]
    """Chosen changes, one for each dimension."""
    meets: bool
    """Whether the purchase keeps the budget and the service level."""
    objective: Objective
    """The objective in whose unit ``speed`` is."""
    bought: float | None = None
    """Price of what is bought beyond the present machine; None where the search is for whole machines."""

    @property
    def description(self) -> tuple[str, ...]:
        """Differences from the unchanged scenario, in words."""
        return tuple(one.description for one in self.changes if one.description)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All edits that lead from the scenario to this purchase."""
        return joined_edits(self.changes)

    @property
    def rank(self) -> int:
        """Place among other purchases: those with the same answers come first."""
        return max(one.rank for one in self.changes)

    @property
    def quality(self) -> str:
        """What is known of answers that the purchase alters; empty if they stay the same."""
        return "; ".join(dict.fromkeys(one.quality for one in self.changes if one.quality))

    @property
    def purchase(self) -> float:
        """Price in the list's currency; infinite where prices are missing."""
        return _purchase(self.economics)

    @property
    def price(self) -> float:
        """Price that the search compares: of what is bought, or of the whole machine."""
        return self.purchase if self.bought is None else self.bought

    @property
    def rate(self) -> float:
        """[1/s] tokens, or checkpoints."""
        return 1 / self.result.unit_s if self.result.unit_s else 0.0

    @property
    def speed(self) -> float:
        """What the front compares: steps [1/s] of one sequence for "latency", ``rate``, or what ranks the
        metric that was named."""
        return self.objective.speed(self.result, self.economics)

    @property
    def cost_per_unit(self) -> float:
        """Cost of a unit of work; infinite if unknown."""
        per_h = self.economics.metrics()["cost_per_h"]
        return per_h / self.rate if per_h is not None and not self.economics.missing else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "description changes=edits meets units_per_s=rate quality bought"),
            **by_name(self.economics, "purchase missing_prices=missing"),
            "metrics": self.result.metrics(),
            "economics": self.economics.metrics(),
        }


def _purchase(one: Economics) -> float:
    return math.inf if one.purchase is None else one.purchase


class _Point(NamedTuple):
    rank: int
    price: float
    speed: float


class Frontier:
    """A Frontier holds what was found so far, and tells what it beats.

    What keeps the answers is beaten by what keeps them only, everything else by both.
    """

    def __init__(self) -> None:
        self._points: list[_Point] = []

    def add(self, rank: int, *, price: float, speed: float) -> bool:
        """Add a point that counts from now on, unless it is beaten; return whether it was added."""
        if self.beats(rank, price=price, speed=speed):
            return False
        self._points.append(_Point(rank, price, speed))
        return True

    def beats(self, rank: int, *, price: float, speed: float) -> bool:
        """Return whether a point is neither cheaper nor faster than one that was added."""
        return any(one.rank <= rank and one.price <= price and one.speed >= speed for one in self._points)


@dataclass(frozen=True)
class Search:
    """The Search holds the purchases that were simulated from a catalogue."""

    points: tuple[SimulatedPurchase, ...]
    """All purchases that were simulated."""
    best: SimulatedPurchase | None
    """Best purchase by the objective that keeps budget and service level, with the same answers if there is
    one; None if there is none."""
    other: SimulatedPurchase | None
    """Best of all, if it has other answers and ``best`` has the same ones."""
    nearest: SimulatedPurchase | None
    """Purchase within the budget that misses the service level by the least."""
    objective: Objective
    combinations: int
    """Number of combinations in the catalogue."""
    outcomes: dict[Outcome, int]
    """Number of combinations by what became of them, which add up to all; without what became of none."""
    refusals: dict[str, int]
    """Number of refused combinations by the reason of the program or the machine, most frequent first."""
    missing: tuple[str, ...]
    """Parts without a price; combinations with them are within no budget, and not in ``front``."""
    limits: tuple[str, ...]
    """Sentences on what the machines cannot take, and on what was assumed about them."""
    currency: str
    extra: float | None = None
    """Most money for what is bought beyond the present machine; None where there is no such limit."""
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
    def front(self) -> tuple[SimulatedPurchase, ...]:
        """Points that keep the service level and that no other beats in both purchase and speed (Pareto).

        Those with the same answers come first, then those that are better with other answers.
        """
        frontier, found = Frontier(), list[SimulatedPurchase]()
        priced = (one for one in self.points if one.meets and math.isfinite(one.price))
        for one in sorted(priced, key=lambda one: (one.rank, one.price, -one.speed)):
            if frontier.add(one.rank, price=one.price, speed=one.speed):
                found.append(one)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        counted = "combinations simulated outcomes refusals missing_prices=missing limits keeps stopped"
        return {"schema": SCHEMA, **by_name(self, f"objective currency {counted} best other nearest front")}


def search_catalogue(
    scenario: Asked,
    *,
    budget: float | None = None,
    extra: float | None = None,
    service: Sequence[ServiceLevel] = (),
    objective: str | None = None,
    platforms: Sequence[str] = (),
    costs: CostList | None = None,
    advice: Advice | None = None,
    progress: Watcher | None = None,
) -> Search:
    """Simulate purchases from the shipped catalogue for the work of a scenario.

    Storage, number of drives, host memory, format of the weights and batch are combined, also under other
    programs, on the scenario's platform and on ``platforms``. A machine that costs more than ``budget`` is
    not simulated, nor one for which more than ``extra`` is spent beyond the present machine, nor what a
    shorter time than its own shows to be beaten by something that is no dearer and keeps the answers as
    well. The changes that ``advice`` on the scenario tried are candidates, too, so that none of them is
    better than the best; those that help are combined with memory and batches. The ``objective`` is by
    default that of ``advise``. The scenario itself is simulated first. Its
    limits hold for the whole search, which then returns what it has; with nothing it raises WorkLimitError.
    Raises what ``simulate`` raises for the scenario, and InputError for an unknown objective or platform.
    """
    known = load_costs() if costs is None else costs
    evaluator = evaluator_of(scenario)
    wanted = objective_of(evaluator.scenario, objective)
    owned = None if extra is None else present(evaluator.scenario, fit(evaluator.scenario), known)
    run = _PurchaseSearch(evaluator, known, _Budget(budget, extra, owned), tuple(service), wanted)
    names = tuple(dict.fromkeys((None, *platforms)))
    found = tuple(chain.from_iterable(families(evaluator, name, known) for name in names))
    with watched_by(progress):
        _, unchanged = evaluator.answer()
    stopped, tried = "", () if advice is None else tuple(one for one in advice.tried if one.change.priced)
    run.add(tried)
    found += tuple(families_of(evaluator, _combined(evaluator.scenario, tried)))
    try:
        with sharing(time_left() / 2), watched_by(progress):  # the other half is for what follows
            run.all_of(found)
    except WorkLimitError as error:
        stopped = str(error)
        if not run.points:
            raise
    fitting = [one for one in run.points if one.meets and _rank(one)[0] < math.inf]
    best = min(fitting, key=lambda one: (one.rank, _rank(one)), default=None)
    other = min(fitting, key=_rank, default=None)
    missed = (one for one in run.points if not one.meets)
    combinations = sum(one.size for one in found) + len(tried)
    return Search(
        run.points,
        best,
        None if best is None or other is None or other.rank == best.rank else other,
        min(missed, key=lambda one: most_missed(run.service, one.result), default=None),
        wanted,
        combinations,
        run.all_outcomes(combinations),
        dict(run.refusals.most_common()),
        tuple(run.missing),
        tuple(dict.fromkeys(text for name in names for text in limits_of(evaluator.scenario, name, known))),
        known.currency,
        extra,
        bool(service) and unchanged.fits and all(level.kept(unchanged) for level in service),
        stopped,
    )


def _combined(scenario: LoadedScenario, tried: Iterable[Tried]) -> Iterator[Change]:
    """Yield the changes that help and are neither bought nor a batch, which are combined anyway."""
    now = sequences_at_once(scenario)
    for one in tried:
        if one.helps and one.change.kind != "hardware" and sequences_at_once(one.scenario) == now:
            yield one.change


def _rank(one: SimulatedPurchase) -> tuple[float, float]:
    """Return the order of purchases by their objective; equal ones by price."""
    return (one.cost_per_unit if one.objective.name == "cost" else -one.speed), one.price


class _Budget(NamedTuple):
    """A _Budget is what may be spent: on a whole machine, or beyond the present one."""

    machine: float | None
    extra: float | None
    owned: Bill | None
    """Present machine, where there is a limit for what is bought beyond it."""

    def bought(self, cost: Economics) -> float | None:
        """Return the price of what is bought beyond the present machine, infinite where it is unknown; None
        where that is not asked for."""
        spent = None if self.owned is None else cost.bill.beyond(self.owned)
        return math.inf if spent is None and self.owned is not None else spent

    def price(self, cost: Economics) -> float:
        """Return the price by which answers are compared."""
        spent = self.bought(cost)
        return _purchase(cost) if spent is None else spent

    def pays(self, cost: Economics) -> bool:
        """Return whether an answer is within the budget."""
        within = self.extra is None or (self.bought(cost) or 0.0) <= self.extra
        return within and (self.machine is None or _purchase(cost) <= self.machine)


class _Candidate(NamedTuple):
    """A _Candidate is one choice of each kind, with all that is changed."""

    changes: tuple[Change, ...]
    edits: tuple[Edit, ...]
    price: float = math.inf
    """Price in the list's currency; infinite while it was not asked for."""

    @property
    def rank(self) -> int:
        return max(one.rank for one in self.changes)


class _Bound(NamedTuple):
    """A _Bound is what the members of a family cannot beat."""

    result: SimulationResult
    """Least result of the member with the most storage and memory, with the batch of the scenario."""
    rank: int

    def missed(self, service: Sequence[ServiceLevel], *, times: int) -> float:
        """Return by how many times members with a larger batch miss the service level at least."""
        found = (one.missed(self.result) / (times if one.metric.larger else 1) for one in service)
        return max(found, default=0.0)


class _LeftOutError(Exception):
    """Raised with the outcome of a combination that is not simulated."""


class _PurchaseSearch:
    """A _PurchaseSearch simulates what may be among the best purchases, and counts all others."""

    def __init__(
        self,
        evaluator: Evaluator,
        costs: CostList,
        budget: _Budget,
        service: tuple[ServiceLevel, ...],
        objective: Objective,
    ) -> None:
        self._evaluator, self._costs, self._objective = evaluator, costs, objective
        self._budget, self.service = budget, service
        self._seen: set[Hashable] = set()
        self._frontier = Frontier()
        self._points: list[SimulatedPurchase] = []
        self._misses: list[tuple[float, Callable[[], _Candidate]]] = []
        self.missing: dict[str, None] = {}
        self.refusals = Counter[str]()
        """Number of refused combinations by reason."""
        self._outcomes = Counter[Outcome]()

    @property
    def points(self) -> tuple[SimulatedPurchase, ...]:
        """Purchases that were simulated so far."""
        return tuple(self._points)

    def all_outcomes(self, combinations: int) -> dict[Outcome, int]:
        """Return the number of combinations by what became of them."""
        self._outcomes["simulated"] = len(self._points)
        self._outcomes["are refused by the program or the machine"] = self.refusals.total()
        self._outcomes["were not looked at"] = 0
        self._outcomes["were not looked at"] = combinations - self._outcomes.total()
        known = {one: self._outcomes[one] for one in OUTCOMES}
        return {one: number for one, number in known.items() if number or one == "simulated"}

    @limited
    def all_of(self, found: Sequence[Family]) -> None:
        """Try all combinations, those of the fastest families first."""
        keep(self._evaluator.scenario.scenario.engine.limits)
        bounds = list[tuple[Family, _Bound]]()
        for family in steps(found):
            with self._counting(family.size):
                bounds.append((family, self._bound(family)))
        bounds.sort(key=lambda one: -self._objective.bound(one[1].result))
        for family, bound in steps(bounds, lambda one: one[0].name):
            self._try(family, bound)
        for missed, choose in sorted(self._misses, key=lambda one: one[0]):
            nearest = min((most_missed(self.service, one.result) for one in self._points), default=math.inf)
            if missed >= nearest or any(one.meets for one in self._points):
                break
            self._outcomes[_BEATEN] -= 1
            with self._counting():
                chosen = choose()
                if most_missed(self.service, self._evaluator.least(*chosen.edits)) >= nearest:
                    raise _LeftOutError(_BEATEN)
                self._simulate(chosen)

    @contextmanager
    def _counting(self, number: int = 1) -> Iterator[None]:
        """Count a number of combinations by what became of them where they are left out inside."""
        try:
            yield
        except _LeftOutError as left:
            self._outcomes[left.args[0]] += number
        except InputError as error:
            self.refusals[error.problems[0].message] += number
        except SimulationError as error:
            self.refusals[str(error)] += number

    def _bound(self, family: Family) -> _Bound:
        """Return what no member of a family beats; raises _LeftOutError if none is possible."""
        candidate = self._candidate(family, family.storage[-1], family.memory[-1], family.batches[0][1])
        least = self._evaluator.least(*candidate.edits)
        if not least.fits:
            raise _LeftOutError("do not fit")
        return _Bound(least, candidate.rank)

    def _try(self, family: Family, bound: _Bound) -> None:
        """Try the members of a family, those first that are likely to be best."""
        prices, grows = dict[Hashable, float](), self._objective.grows_with_batch(bound.result)
        batches = family.batches[::-1] if grows else family.batches
        for (times, batch), stored, memory in product(batches, family.storage, family.memory):
            speed, bought = self._objective.bound(bound.result, times=times), (id(stored), id(memory))
            with self._counting():
                choose = partial(self._chosen, family, stored, memory, batch)
                self._keep_for_later(bound.missed(self.service, times=times), choose)
                self._check(bound.rank, prices.get(bought, 0.0), speed)
                chosen = choose()
                prices[bought] = chosen.price
                self._time(chosen, speed)

    def _time(self, chosen: _Candidate, speed: float) -> None:
        """Simulate a candidate, unless a shorter time than its own shows that it cannot be the best."""
        self._check(chosen.rank, chosen.price, speed)
        least = self._evaluator.least(*chosen.edits)
        self._keep_for_later(most_missed(self.service, least), lambda: chosen)
        self._check(chosen.rank, chosen.price, self._objective.bound(least))
        self._simulate(chosen)

    def _check(self, rank: int, price: float, speed: float) -> None:
        """Raise _LeftOutError for what a purchase beats that was simulated."""
        if self._frontier.beats(rank, price=price, speed=speed):
            raise _LeftOutError(_BEATEN)

    def _keep_for_later(self, missed: float, choose: Callable[[], _Candidate]) -> None:
        """Raise _LeftOutError for what misses the service level; it is tried later if nothing keeps it."""
        if missed > 1:
            self._misses.append((missed, choose))
            raise _LeftOutError(_BEATEN)

    def _chosen(self, family: Family, *choices: Change) -> _Candidate:
        """Return a candidate that fits, is within the budget and is no other one in other words, with its
        price; raises _LeftOutError for others."""
        candidate = self._candidate(family, *choices)
        same = self._evaluator.same(*candidate.edits)
        if same in self._seen:
            raise _LeftOutError("are equal to others")
        self._seen.add(same)
        scenario = self._evaluator.edited(*candidate.edits)
        capacity = fit(scenario)
        if not capacity.fits:
            raise _LeftOutError("do not fit")
        return candidate._replace(price=self._price(economics(scenario, capacity, self._costs)))

    def _price(self, cost: Economics) -> float:
        """Return the price that the search compares; raises _LeftOutError for what exceeds the budget."""
        self.missing |= dict.fromkeys(cost.bill.missing)
        if not self._budget.pays(cost):
            raise _LeftOutError(_UNPRICED if cost.bill.missing else "exceed the budget")
        return self._budget.price(cost)

    def _candidate(self, family: Family, *choices: Change) -> _Candidate:
        """Return the candidate with some choices; raises _LeftOutError if its program cannot do the work."""
        changes = (family.platform, *choices)
        if family.program is not None:
            there = self._evaluator.changed_by(*joined_edits(changes))
            change = family.program.replacing(there)
            if change is None:
                raise _LeftOutError("do not fit")
            changes = (*changes, change)
        return _Candidate(changes, joined_edits(changes))

    def _simulate(self, candidate: _Candidate) -> None:
        working_on(", ".join(one.description for one in candidate.changes if one.description) or "no change")
        scenario, result = self._evaluator.answer(*candidate.edits)
        self._add(candidate.changes, scenario, result, economics(scenario, result, self._costs))

    def add(self, tried: Iterable[Tried]) -> None:
        """Add single changes that were simulated and are within the budget."""
        for one in tried:
            self._seen.add(self._evaluator.same(*one.change.edits))
            with self._counting():
                self._price(one.economics)
                self._add((one.change,), one.scenario, one.result, one.economics)

    def _add(
        self, changes: tuple[Change, ...], scenario: LoadedScenario, result: SimulationResult, cost: Economics
    ) -> None:
        point = SimulatedPurchase(
            changes=changes,
            scenario=scenario,
            result=result,
            economics=cost,
            meets=most_missed(self.service, result) <= 1,
            objective=self._objective,
            bought=self._budget.bought(cost),
        )
        self._points.append(point)
        if point.meets:
            self._frontier.add(point.rank, price=point.price, speed=point.speed)
