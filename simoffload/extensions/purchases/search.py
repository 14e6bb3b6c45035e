"""Search of a catalogue for the purchase that meets a budget and a service level best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any, Literal, NamedTuple, Unpack, get_args

from simoffload.brief import brief
from simoffload.documents import Edit
from simoffload.errors import InputError, PlacementError, SimulationError, WorkLimitError
from simoffload.hardware import (
    LEAST_DRIVES,
    STORAGE_KINDS,
    Drive,
    Machine,
    Nic,
    Platform,
    Raid,
    Tier,
    list_profiles,
    load_profile,
)
from simoffload.limits import keep, limited, sharing, time_left
from simoffload.planning.advise.evaluate import (
    EQUAL,
    Advice,
    EvaluatedChange,
    Objective,
    objective_of,
    sequences_at_once,
)
from simoffload.planning.advise.options import (
    DriveSlots,
    array_edits,
    batches_of,
    more_memory,
    profile_of,
    shipped,
    takes_drives,
)
from simoffload.planning.alternatives import (
    OtherProgram,
    other_programs,
    placement_words,
    resident,
    with_formats,
)
from simoffload.planning.confidence import margin
from simoffload.planning.costs import Bill, CostList, load_costs, present
from simoffload.planning.economics import Economics, economics
from simoffload.planning.evaluator import Evaluation, Evaluator, EvaluatorSource, evaluator_of
from simoffload.planning.question import QuestionOptions
from simoffload.planning.reported import ReportedAnswer
from simoffload.planning.service_levels import ServiceLevel, most_missed
from simoffload.progress import Watcher, steps, watched_by, working_on
from simoffload.results import Change, SimulationResult, by_name
from simoffload.scenario import LoadedScenario
from simoffload.simulation import fit
from simoffload.strategies.base import Placement, moving

# -- the catalogue ---------------------------------------------------------------------------------

_DRIVES = (2, 4, 8, 16)
_MEMORY = (2, 4)
_BATCH = (1, 2, 4, 8, 16)
_SYSTEMS = (1, 2)
_KIND = "hardware"
_TIER = "bought"
"""Name of the tier that a choice adds to the platform."""


_UNCHANGED = Change(_KIND, "")


class Family(NamedTuple):
    """A Family holds the purchases with which the work is done in one way on one platform.

    Of each sequence of choices one is made. More storage and memory take no more time, and a larger batch
    takes no less.
    """

    platform: Change
    """Change to the platform; without edits for the scenario's own."""
    storage: tuple[Change, ...]
    """Storage of one kind with its placement, the least first; an empty description keeps what is there."""
    memory: tuple[Change, ...]
    """Sizes of host memory, the least first."""
    batches: tuple[tuple[int, Change], ...]
    """Sizes of the batch as multiples of the scenario's, which is the first."""
    program: OtherProgram | None = None
    """Another program that does the work on the machine that is bought; None keeps the program."""

    @property
    def name(self) -> str:
        """Name for who waits: that of its largest storage."""
        return self.storage[-1].description or "storage unchanged"

    @property
    def size(self) -> int:
        """Number of combinations of one choice of each kind."""
        return len(self.storage) * len(self.memory) * len(self.batches)


def families(evaluator: Evaluator, name: str | None, costs: CostList) -> Iterator[Family]:
    """Yield what can be chosen for the work of a scenario on a platform; None means its own platform.

    Raises InputError for an unknown platform.
    """
    scenario = evaluator.scenario
    there = () if name is None else (Edit.at("platform", name),)
    platform = scenario.platform(*there)
    gpus = () if name is None else _all_gpus(scenario, len(platform.profile.gpus))
    placed = Change(_KIND, platform.profile.name if name else "", (*there, *gpus))
    memory, batches = _sizes(evaluator, platform)
    offers = tuple(_storage(scenario, platform, costs, own=name is None))
    for series in offers:
        of_formats = zip(*(with_formats(evaluator, one) for one in series), strict=True)
        yield from (Family(placed, stored, memory, batches) for stored in of_formats)
    # The scenario's own program, which others replace, may be on a tier that another platform lacks.
    for one in (_UNCHANGED, *(series[0] for series in offers)):
        with suppress(InputError):
            found = tuple(other_programs(evaluator.changed_by(*joined_edits((placed, one)))))
            kept = (one._replace(description=""),)
            yield from (Family(placed, kept, memory, batches, other) for other in found)
            return


def families_of(evaluator: Evaluator, changes: Iterable[Change]) -> Iterator[Family]:
    """Yield what can be chosen together with each of some changes, on the scenario's own platform."""
    memory, batches = _sizes(evaluator, evaluator.scenario.platform())
    yield from (Family(_UNCHANGED, (change,), memory, batches) for change in changes)


def _sizes(
    evaluator: Evaluator, platform: Platform
) -> tuple[tuple[Change, ...], tuple[tuple[int, Change], ...]]:
    """Return the sizes of host memory and of the batch that are combined with all else."""
    batches = tuple(batches_of(evaluator, *_BATCH)) or ((1, _UNCHANGED),)
    return (_UNCHANGED, *more_memory(platform.host, *_MEMORY)), batches


def limits_of(scenario: LoadedScenario, name: str | None, costs: CostList) -> tuple[str, ...]:
    """Return sentences on what a platform cannot take, and on what is assumed of it."""
    if not scenario.placements.storage:
        return ()
    platform = scenario.platform(*(() if name is None else (Edit.at("platform", name),)))
    here, setting, slots = platform.profile.id, platform.profile.setting, DriveSlots.of(platform)
    found = []
    if setting is None:
        found.append(f"{here} does not state its setting (desk or rack): a rack is assumed")
    if takes_drives(platform, costs):
        if slots.assumed:
            found.append(f"{slots.owner} does not state its drive_slots: assumed that it {slots.text}")
        sold = (profile_of("drive", one.drive, Drive) for one in _arrays(costs))
        if not all(slots.take(drive, number) for drive in sold for number in _DRIVES):
            found.append(f"arrays that cannot be attached are left out: {here} {slots.text}")
    if setting == "desk":
        found.append(f"servers and filesystems are left out: {here} stands on a desk, without a rack")
    return tuple(found)


def joined_edits(changes: Iterable[Change]) -> tuple[Edit, ...]:
    """Return the edits of one choice in each dimension.

    Those of a choice that replaces a whole section come last: what the others set in it belongs to the
    section that is replaced.
    """

    def replaces(change: Change) -> bool:
        return any(len(edit.path) == 1 and isinstance(edit.value, dict) for edit in change.edits)

    return tuple(edit for change in sorted(changes, key=replaces) for edit in change.edits)


def _all_gpus(scenario: LoadedScenario, gpus: int) -> tuple[Edit, ...]:
    """Return the edits that use all GPUs of one machine of another platform."""
    nodes = (Edit.at("nodes", 1),) if scenario.scenario.nodes > 1 else ()
    return *scenario.scenario.strategy.sizes().gpus(gpus), *nodes


Series = tuple[Change, ...]
"""Choices of one kind, the least first."""


def _storage(scenario: LoadedScenario, platform: Platform, costs: CostList, *, own: bool) -> Iterator[Series]:
    """Yield the present storage, every tier of the platform, arrays of any number of drives, and shared
    storage."""
    if not scenario.placements.storage:
        yield (_UNCHANGED,)
        return
    if own:
        yield (Change(_KIND, "storage unchanged"),)
    ranks = scenario.scenario.strategy.ranks if own else len(platform.profile.gpus)
    machine = platform.machine()
    for tier in ("hbm", "dram", *platform.targets):
        description = placement_words(scenario, Placement(tier), ranks=ranks)
        with suppress(PlacementError):  # not a place of the strategy's
            yield (Change(_KIND, description, _placement_edits(scenario, tier, machine)),)
    for copies in resident(scenario):
        gpus = () if own else (Edit.at("strategy.ranks", ranks),)
        yield (Change(_KIND, copies.description, (*copies.edits, *gpus)),)
    yield from filter(None, (*_own_arrays(scenario, platform, costs), *_shared(scenario, platform)))


def _own_arrays(scenario: LoadedScenario, platform: Platform, costs: CostList) -> Iterator[Series]:
    """Yield for each array that is sold its numbers of drives."""
    machine, where, slots = platform.machine(), _places_of_drives(platform), DriveSlots.of(platform)
    for array in _arrays(costs) if takes_drives(platform, costs) else ():
        placed_edits = _placement_edits(scenario, _TIER, _with_tier(machine, "nvme"))
        kind = array.name.partition("(")[2].removesuffix(")")  # the software, where the name says it
        least, drive = LEAST_DRIVES[array.level], profile_of("drive", array.drive, Drive)
        numbers = [one for one in _DRIVES if one >= least and slots.take(drive, one)]
        software = f", {kind}" if kind else ""
        yield tuple(
            Change(
                _KIND,
                f"RAID{array.level} of {number} x {array.drive}{software}",
                (*array_edits(_TIER, array, where, number), *placed_edits),
            )
            for number in numbers
        )


def _shared(scenario: LoadedScenario, platform: Platform) -> Iterator[Series]:
    """Yield servers and appliances, where there is a rack for them."""
    machine = platform.machine()
    if platform.profile.setting == "desk":
        return
    for kind in [kind for kind, tier in STORAGE_KINDS.items() if tier.is_storage and not tier.local]:
        for one in list_profiles(kind):
            through = _adapters(platform, getattr(load_profile(kind, one.id), "link", None))
            if not through:
                continue
            remote = Edit(("equipment", "tiers", _TIER), {"profile": one.id, "through": list(through)})
            placed_edits = _placement_edits(scenario, _TIER, _with_tier(machine, kind))
            count = ("profiles", f"{kind}/{one.id}", "count")
            yield tuple(
                Change(
                    _KIND,
                    f"{number} x {one.id}",
                    (remote, *([Edit(count, number)] if number > 1 else []), *placed_edits),
                )
                for number in (_SYSTEMS if kind == "pfs" else (1,))
            )


def _arrays(costs: CostList) -> Iterator[Raid]:
    """Yield the arrays whose drives are sold, one of those that differ only in the number of drives."""
    seen = set()
    for array in shipped("raid", Raid):
        key = (array.level, array.drive, array.name.partition("(")[2])
        if costs.sold(f"drive/{array.drive}") and key not in seen:
            seen.add(key)
            yield array


def _places_of_drives(platform: Platform) -> tuple[str, ...]:
    """Return where local drives are attached, by default at the CPU."""
    return max((tier.at for tier in platform.profile.tiers.values() if tier.at), key=len, default=("cpu",))


def _adapters(platform: Platform, server: str | None) -> tuple[str, ...]:
    """Return the largest set of adapters over which storage is used and that have the network of a server's
    adapter (None: of any); empty if there is none."""
    fabric = None if server is None else profile_of("nic", server, Nic).fabric
    used = (tier.through for tier in platform.profile.tiers.values() if tier.through)
    same = (names for names in used if {platform.nics[name][0].fabric for name in names} & {fabric, None})
    return max(used if fabric is None else same, key=len, default=())


def _with_tier(machine: Machine, kind: str) -> Machine:
    """Return the machine with the tier that a choice adds; only its kind matters."""
    return replace(machine, tiers={**machine.tiers, _TIER: Tier(_TIER, kind, 0, _TIER)})


def _placement_edits(scenario: LoadedScenario, tier: str, machine: Machine) -> tuple[Edit, ...]:
    """Return the edits that put the weights into a tier, and in training the optimizer, too, if it is on
    storage now."""
    stored = scenario.places[1] in scenario.machine.targets
    return moving(scenario.scenario.strategy, Placement(tier, tier if stored else None), machine)


# -- the search ------------------------------------------------------------------------------------

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
class SimulatedPurchase(Evaluation):
    """One purchase that was simulated."""

    __repr__ = brief

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


@dataclass(frozen=True, repr=False)
class Search(ReportedAnswer):
    """The Search holds the purchases that were simulated from a catalogue."""

    report = "simoffload.extensions.purchases.search_report:search_document"

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
    scenario: EvaluatorSource,
    *,
    budget: float | None = None,
    extra: float | None = None,
    service: Sequence[ServiceLevel] = (),
    objective: str | None = None,
    platforms: Sequence[str] = (),
    costs: CostList | None = None,
    advice: Advice | None = None,
    progress: Watcher | None = None,
    **machine: Unpack[QuestionOptions],
) -> Search:
    """Simulate purchases from the shipped catalogue for the work of a scenario.

    Storage, number of drives, host memory, format of the weights and batch are combined, also under other
    programs, on the scenario's platform and on ``platforms``. A machine that costs more than ``budget`` is
    not simulated, nor one for which more than ``extra`` is spent beyond the present machine, nor what a
    shorter time than its own shows to be beaten by something that is no dearer and keeps the answers as
    well. The changes that ``advice`` on the scenario tried are candidates, too, so that none of them is
    better than the best; those that help are combined with memory and batches. The ``objective`` is by
    default that of ``advise``. The scenario itself is simulated first; ``machine`` as in ``simulate``. Its
    limits hold for the whole search, which then returns what it has; with nothing it raises WorkLimitError.
    Raises what ``simulate`` raises for the scenario, and InputError for an unknown objective or platform.
    """
    known = load_costs() if costs is None else costs
    evaluator = evaluator_of(scenario, **machine)
    wanted = objective_of(evaluator.scenario, objective)
    names = tuple(dict.fromkeys((None, *platforms)))
    found = tuple(chain.from_iterable(families(evaluator, name, known) for name in names))
    with watched_by(progress):
        _, unchanged = evaluator.answer()
    now = present(evaluator.scenario, unchanged, known)
    owned = None if extra is None else now
    run = _PurchaseSearch(evaluator, known, _Budget(budget, extra, owned), tuple(service), wanted)
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
    best = _no_dearer(min(fitting, key=lambda one: (one.rank, _rank(one)), default=None), fitting, now)
    other = min(fitting, key=_rank, default=None)
    missed = (one for one in run.points if not one.meets)
    combinations = sum(one.size for one in found) + len(tried)
    return Search(
        run.points,
        best,
        None if best is None or other is None or other.rank == best.rank else other,
        min(missed, key=lambda one: (most_missed(run.service, one.result), -one.speed), default=None),
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


def _combined(scenario: LoadedScenario, tried: Iterable[EvaluatedChange]) -> Iterator[Change]:
    """Yield the changes that help and are neither bought nor a batch, which are combined anyway."""
    now = sequences_at_once(scenario)
    for one in tried:
        if one.helps and one.change.kind != "hardware" and sequences_at_once(one.scenario) == now:
            yield one.change


def _no_dearer(
    best: SimulatedPurchase | None, fitting: Sequence[SimulatedPurchase], now: Bill
) -> SimulatedPurchase | None:
    """Return the best purchase, or the best of what costs nothing where the machine is there (``now``) and is
    as good: within the uncertainty, or within ``EQUAL``."""
    if best is None or best.objective.is_of_costs or best.objective.name == "cost":
        return best
    free = [one for one in fitting if one.rank <= best.rank and one.economics.bill.beyond(now) == 0]
    if best in free:
        return best
    by = best.objective.by(best.result)
    sure = by if by in best.result.composed else "unit_by"
    equal = (
        one
        for one in sorted(free, key=_rank)
        if best.speed <= one.speed * max(EQUAL, 1 + margin(best.result, one.result, by=sure))
    )
    return next(equal, best)


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

    def add(self, tried: Iterable[EvaluatedChange]) -> None:
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
