"""Cost of an answer, the cheapest of several answers, and the prices at which their order changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any, Literal, NamedTuple

from simoffload.brief import named_values
from simoffload.hardware import Setting
from simoffload.planning.confidence import margin
from simoffload.planning.costs import (
    Bill,
    CostList,
    Energy,
    Figure,
    Replacement,
    beyond_rent,
    bill,
    dates_of,
    energy,
    load_costs,
    replacements,
    used_parts,
)
from simoffload.planning.question import loaded
from simoffload.results import InferenceResult, Metric, SimulationResult, by_name, declared_in, metric
from simoffload.scenario import LoadedScenario, ScenarioSource
from simoffload.units import format_number

_KWH = 3.6e6
"""Energy of one kilowatt-hour [J]."""
_MILLION = 1e6


@dataclass(frozen=True, kw_only=True)
class CostAmounts:
    """CostAmounts are the metrics of what an answer costs; what depends on a missing price or power is
    None."""

    bought: float | None
    watts: float | None
    worn: float | None
    rent: float | None
    costs: CostList
    pue: float
    """Power usage effectiveness of where the machine stands."""
    time_s: float | None
    """Time [s] of one generation of all sequences, one step or one checkpoint."""
    tokens: int | None
    """Tokens made in that time; None for a checkpoint."""
    prompt_s: float | None = None
    """Time [s] of the prefill of all prompts; None for other work than inference."""
    prompt_tokens: int | None = None
    """Number of tokens of these prompts."""

    @metric(better="lower")
    def purchase(self) -> float | None:
        """Purchase price [currency]: sum of all prices of the machine and of the storage that the scenario
        uses."""
        return self.bought

    @metric()
    def power_w(self) -> float | None:
        """Mean power [W]: sum of idle + (active - idle) x busy of all devices."""
        return self.watts

    @metric()
    def purchase_per_h(self) -> float | None:
        """Purchase per hour [currency]: purchase / (lifetime in years x 8766 x utilization)."""
        return _product(self.purchase, 1 / self.costs.hours)

    @metric()
    def replacement_per_h(self) -> float | None:
        """Replacements per hour [currency]: drives that wear out first: price x (1 / hours they last - 1 /
        hours written off)."""
        return self.worn

    @metric()
    def electricity_per_h(self) -> float | None:
        """Electricity per hour [currency]: power_w / 1000 x pue x electricity."""
        return _product(self.power_w, self.pue * self.costs.assumption("electricity").value / 1000)

    @metric()
    def cost_per_h(self) -> float | None:
        """Cost per hour [currency]: purchase_per_h + replacement_per_h + electricity_per_h."""
        return _sum(self.purchase_per_h, self.replacement_per_h, self.electricity_per_h)

    @metric()
    def rent_per_h(self) -> float | None:
        """Rent per hour [currency]: rent on demand of the machine, or of all its GPUs, electricity
        included."""
        return self.rent

    @property
    def per_token_s(self) -> float | None:
        """Time [s] per token; None for a checkpoint."""
        return self.time_s / self.tokens if self.time_s and self.tokens else None

    @metric()
    def energy_per_token_j(self) -> float | None:
        """Energy per token [J]: power_w x per_token_s, PUE not included."""
        return _product(self.power_w, self.per_token_s)

    @metric()
    def kwh_per_million_tokens(self) -> float | None:
        """Energy per million tokens [kWh]: energy_per_token_j x pue x 1e6 / 3.6e6."""
        return _product(self.power_w, self.per_token_s, self.pue * _MILLION / _KWH)

    @metric()
    def cost_per_million_tokens(self) -> float | None:
        """Cost per million tokens [currency]: cost_per_h / 3600 x per_token_s x 1e6."""
        return _product(self.cost_per_h, self.per_token_s, _MILLION / 3600)

    @metric()
    def cost_per_million_prompt_tokens(self) -> float | None:
        """Cost per million prompt tokens [currency]: cost_per_h / 3600 x ttft_s / (batch_size x replicas x
        prompt_length) x 1e6; only inference has it."""
        each = self.prompt_s / self.prompt_tokens if self.prompt_s and self.prompt_tokens else None
        return _product(self.cost_per_h, each, _MILLION / 3600)

    @metric()
    def rent_per_million_tokens(self) -> float | None:
        """Rent per million tokens [currency]: rent_per_h / 3600 x per_token_s x 1e6."""
        return _product(self.rent_per_h, self.per_token_s, _MILLION / 3600)

    @metric()
    def cost_per_run(self) -> float | None:
        """Cost per run [currency]: cost_per_h / 3600 x time of one generation of all sequences, one step or
        one checkpoint."""
        return _product(self.cost_per_h, self.time_s, 1 / 3600)

    @metric()
    def energy_per_run_j(self) -> float | None:
        """Energy per run [J]: power_w x that time."""
        return _product(self.power_w, self.time_s)

    @metric(better="higher", text=format_number)
    def return_per_purchase(self) -> float | None:
        """Work per price: tokens (checkpoints) per hour, over purchase / 1000."""
        if not self.time_s or not self.purchase:
            return None
        return (self.tokens or 1) * 3600 / self.time_s / self.purchase * 1000

    def values(self) -> dict[str, float | None]:
        """Return all metrics by name."""
        return {name: getattr(self, name) for name in COST_METRICS}


COST_METRICS: Mapping[str, Metric] = declared_in(CostAmounts)
"""The metrics of costs by name, in the order of reading."""


@dataclass(frozen=True)
class Economics:
    """Economics holds money and energy of one answer; what depends on a missing price or power is None."""

    bill: Bill
    energy: Energy | None
    costs: CostList
    platform: str
    """Id of the platform profile."""
    profiles: frozenset[str]
    """Profiles of the machine, as kind/id; a list may price profiles of the user."""
    replacements: tuple[Replacement, ...]
    """Replacements of drives that wear out before they are written off."""
    setting: Setting | None
    """Where the machine stands; None: not stated, so that a rack is assumed."""
    rent: Figure | None
    """Rent of one GPU or of one machine per hour, on demand."""
    rented: int
    """Number of rented GPUs or machines."""
    beyond_rent: tuple[str, ...]
    """Storage tiers and other parts in use that the rent does not include."""
    spot: Figure | None
    """Spot price of the same per hour, which no cost contains."""
    tokens: int | None
    """Tokens made during the time that ``energy`` covers; None for a checkpoint."""
    idle: str = ""
    """Sentence about idle GPUs that are paid for in hosts with work."""
    prompts: tuple[float, int] | None = None
    """Time of the prefill [s] and tokens of its prompts; None for other work than inference."""

    @property
    def declared(self) -> Mapping[str, Metric]:
        """The metrics of costs by name."""
        return COST_METRICS

    @property
    def units(self) -> int:
        """Number of tokens made, or 1 for a checkpoint."""
        return self.tokens or 1

    @property
    def purchase(self) -> float | None:
        """Return the price of the machine and of the storage in use; None if a price is missing."""
        return self.bill.total

    @property
    def pue(self) -> Figure:
        """Return the power usage effectiveness of where the machine stands."""
        return self.costs.pue(self.setting)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the keys of parts without a known price or power."""
        power = self.energy.missing if self.energy else ()
        worn = (one.price for one in self.replacements if one.value is None)
        return tuple(dict.fromkeys((*self.bill.missing, *worn, *(f"{key} (power)" for key in power))))

    @property
    def no_rent(self) -> str:
        """Return why no cost of rented hardware is given; "" where one is."""
        offer = self.rent or self.spot
        if offer is None:
            return "no rent is known"
        hourly = (
            f"{offer.what.partition(',')[0]} ({offer.value:g} {self.costs.currency}".rstrip() + " an hour)"
        )
        if self.rent is None:
            return f"only a spot price of {hourly} is known, and spot machines may be taken away at any time"
        if not self.beyond_rent:
            return ""
        lacks = f"does not include {', '.join(self.beyond_rent)}"
        return (
            f"the rent of {hourly} {lacks if offer.what.startswith('platform/') else 'includes no storage'}"
        )

    def __repr__(self) -> str:
        return named_values(
            self, {"platform": self.platform, "currency": self.costs.currency, **self.metrics()}
        )

    def metrics(self) -> dict[str, float | None]:
        """Return ``COST_METRICS`` by name, None where a price, power or rent is missing."""
        watts = self.energy.watts if self.energy and not self.energy.missing else None
        return self._metrics(self.purchase, watts, None if self.beyond_rent else self.rent, partly=False)

    def at_least(self) -> dict[str, float | None]:
        """Return what the known prices, powers and rents alone add up to, by name of the metric.

        Each is what the metric is at least, but for ``return_per_purchase``, which is None where a price is
        missing.
        """
        watts = self.energy.watts if self.energy else None
        found = self._metrics(self.bill.known, watts, self.rent, partly=True)
        return found if self.purchase is not None else found | {"return_per_purchase": None}

    def _metrics(
        self, bought: float | None, watts: float | None, rented: Figure | None, *, partly: bool
    ) -> dict[str, float | None]:
        known = [one.per_h for one in self.replacements if one.per_h is not None]
        return CostAmounts(
            bought=bought,
            watts=watts,
            worn=sum(known) if partly or len(known) == len(self.replacements) else None,
            rent=rented.value * self.rented if rented else None,
            costs=self.costs,
            pue=self.pue.value,
            time_s=self.energy.time_s if self.energy else None,
            tokens=self.tokens,
            prompt_s=self.prompts[0] if self.prompts else None,
            prompt_tokens=self.prompts[1] if self.prompts else None,
        ).values()

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Prices and assumptions that were taken from the lists, without powers."""
        electricity, *times = map(self.costs.assumption, ("electricity", "lifetime", "utilization"))
        rents = (one for one in (self.rent, self.spot) if one is not None)
        return (*self.bill.prices, *rents, electricity, self.pue, *times)

    @property
    def prices(self) -> tuple[Figure, ...]:
        """All prices that contribute to the cost: those of the bill, and that of electricity."""
        return (*self.bill.prices, self.costs.assumption("electricity"))

    @property
    def slips(self) -> tuple[str, ...]:
        """Sentences about names in the list that match neither a shipped profile nor one of the machine."""
        return tuple(reason for key, reason in self.costs.unknown.items() if key not in self.profiles)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about idle GPUs, missing prices and old prices."""
        left_out = "the totals leave it out and are marked with ≥; data files have no value for them"
        missing = (f"no price or power is known for {', '.join(self.missing)}: {left_out}",)
        idle = (self.idle,) if self.idle else ()
        unknown = missing if self.missing else ()
        return (*idle, *self.costs.remarks, *self.slips, *unknown, *self.old_prices())

    def old_prices(self, others: Iterable[Economics] = ()) -> tuple[str, ...]:
        """Return the sentence about prices older than a year that it or others of the same lists contain."""
        return self.costs.old({price for one in (self, *others) for price in one.prices})

    def price_dates(self, others: Iterable[Economics] = ()) -> str:
        """Return the first and the last date of the prices that it or others of the same lists contain."""
        return dates_of(price for one in (self, *others) for price in one.bill.prices)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "currency": self.costs.currency,
            "metrics": self.metrics(),
            "at_least": self.at_least(),
            **by_name(self, "missing no_rent setting"),
            "formulas": {name: one.formula for name, one in COST_METRICS.items()},
            "bill": [item.to_dict() for item in self.bill.items],
            "power": [draw._asdict() | {"watts": draw.watts} for draw in self.energy.draws]
            if self.energy
            else [],
            "figures": [figure._asdict() | {"date": str(figure.date)} for figure in self.figures],
            "lists": [{"file": name, "sha256": digest} for name, digest in self.costs.sources],
            **by_name(self, "warnings"),
        }


def _product(*factors: float | None) -> float | None:
    result = 1.0
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def _sum(*terms: float | None) -> float | None:
    known = [term for term in terms if term is not None]
    return sum(known) if len(known) == len(terms) else None


def economics(scenario: ScenarioSource, result: SimulationResult, costs: CostList | None = None) -> Economics:
    """Return what an answer costs by a list of prices and powers, by default the shipped one."""
    scenario = loaded(scenario)
    known, machine = load_costs() if costs is None else costs, scenario.machine
    platform, gpu = f"platform/{machine.platform}", f"accelerator/{machine.accelerator.id}"
    rented = known.rent(platform)
    bought = bill(scenario, result, known)
    return Economics(
        bill=bought,
        replacements=replacements(result, bought, hours=known.hours),
        energy=energy(machine, result, used_parts(scenario, result), known),
        costs=known,
        platform=machine.platform,
        profiles=frozenset(f"{use.kind}/{use.id}" for use in machine.profiles),
        setting=machine.setting,
        rent=rented or known.rent(gpu),
        rented=machine.nodes if rented else machine.gpus,
        beyond_rent=beyond_rent(scenario, result, of_machines=rented is not None),
        spot=known.rent(platform, "spot") or known.rent(gpu, "spot"),
        tokens=result.tokens,
        idle=_idle_gpus(scenario),
        prompts=_prompts(result),
    )


def _prompts(result: SimulationResult) -> tuple[float, int] | None:
    """Return the time of the prefill [s] and the tokens of all its prompts; None without one."""
    if not isinstance(result, InferenceResult) or result.ttft_s is None:
        return None
    return result.ttft_s, result.sequences * result.prompt_length


def _idle_gpus(scenario: LoadedScenario) -> str:
    """Return a sentence about idle GPUs of machines with work, which are bought whole; "" without any."""
    machine, strategy = scenario.machine, scenario.scenario.strategy
    gpus = strategy.gpus
    used = machine.nodes_of(gpus)
    here = used * machine.gpus_per_node
    if gpus >= here:
        return ""
    which, all_ = ("", "all") if used == machine.nodes else (f" of the {used} hosts with work", "all of them")
    text = f"{here - gpus} of {here} GPUs{which} are idle but paid for, because whole machines are bought"
    more = any(edit.path == ("strategy", "ranks") for edit in strategy.sizes().gpus(here))
    return text + (f"; strategy.ranks: {here} would use {all_}" if more else "")


FIRST, SECOND = "all that the first answer buys", "all that the second answer buys"


class BreakEven(NamedTuple):
    """A price at which two answers cost the same."""

    what: str
    """Name of the varied price, all others fixed: "accelerator/l40s", "memory per GB"."""
    now: float
    at: float
    """Price at which both answers cost the same."""
    first_cheaper_above: bool
    """Whether the first answer is cheaper above that price."""


class _Line(NamedTuple):
    """The cost of a unit of work as a linear function of one price."""

    fixed: float
    slope: float


def break_even_points(
    first: Economics, second: Economics, *, electricity: bool = True
) -> tuple[BreakEven, ...]:
    """Return the prices at which two answers cost the same, where one of them pays a price more often for a
    unit of work.

    The cost of a token (or checkpoint) is (purchase / hours + worn drives + electricity per hour) x its
    time, a line in each price; without ``electricity`` it is hardware alone, as in returns on invested
    hardware. The whole purchase of either counts as a price, too (``FIRST``, ``SECOND``). Prices at which
    the lines do not meet at or above zero are left out. The nearest to today's price comes first.
    """
    found = []
    for what, now in _prices(first, second):
        mine, other = (
            _line(one, what == rented or what, now, electricity=electricity)
            for one, rented in ((first, FIRST), (second, SECOND))
        )
        if mine is None or other is None or isclose(mine.slope, other.slope):
            continue  # both pay it equally often, but for rounding
        at = (other.fixed - mine.fixed) / (mine.slope - other.slope)
        if at >= 0:
            found.append(BreakEven(what, now, at, first_cheaper_above=mine.slope < other.slope))
    return tuple(sorted(found, key=lambda flip: abs(flip.at - flip.now) / (flip.now or 1.0)))


def _prices(first: Economics, second: Economics) -> list[tuple[str, float]]:
    """Return all prices of two answers, and the sum of each, by name."""
    single = {figure.what: figure.value for one in (first, second) for figure in one.bill.prices}
    sums = {FIRST: first.purchase or 0.0, SECOND: second.purchase or 0.0}
    return [*single.items(), *sums.items()]


def _line(one: Economics, what: str | Literal[True], now: float, *, electricity: bool) -> _Line | None:
    """Return the cost as a function of a price (True: the whole purchase); None where nothing is known."""
    if one.energy is None or one.purchase is None:
        return None
    hours = one.energy.time_s / 3600 / one.units
    per_h = (one.metrics()["electricity_per_h"] or 0.0) if electricity else 0.0
    paid = 1.0 if what is True else one.bill.paid(what)
    again = sum(worn.paid_per_h for worn in one.replacements if worn.price == what)
    per_h += sum(worn.per_h or 0.0 for worn in one.replacements if worn.price != what)
    slope = paid / one.costs.hours + again
    return _Line(((one.purchase - paid * now) / one.costs.hours + per_h) * hours, slope * hours)


class Costed(NamedTuple):
    """A result among others, with what it costs."""

    label: str
    result: SimulationResult
    economics: Economics

    @property
    def work(self) -> tuple[Any, ...]:
        """Properties that results must share to be compared by cost: kind, model, lengths of sequences."""
        return self.result.kind, self.result.model, *self.result.lengths

    @property
    def per_unit(self) -> float | None:
        """Cost of a token or a checkpoint, in the list's currency; None where a price or power is missing."""
        run = self.economics.metrics()["cost_per_run"]
        return None if run is None else run / self.economics.units


class CostVerdict(NamedTuple):
    """A CostVerdict is the cheapest answer for its work, compared with the next."""

    cheapest: str
    next: str
    ratio: float
    """Cost of the next answer divided by that of the cheapest."""
    margin: float
    """Smallest relative difference of costs that is significant: the errors of both times, not of prices."""
    break_even_points: tuple[BreakEven, ...]
    """Prices at which both cost the same, the nearest to today's first."""
    same_bill: bool = False
    """Whether both buy the same, so that no price tells them apart."""

    @property
    def tie(self) -> bool:
        """Whether both costs differ by less than the margin."""
        return self.ratio - 1 <= self.margin

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return by_name(self, "cheapest next ratio margin break_even_points tie")


def verdicts(found: Iterable[Costed]) -> tuple[CostVerdict, ...]:
    """Return a verdict for each kind of work of which at least two answers have a cost."""
    by_work: dict[tuple[Any, ...], list[Costed]] = {}
    for one in found:
        if one.per_unit is not None:
            by_work.setdefault(one.work, []).append(one)
    reason = []
    for mine in by_work.values():
        if len(mine) < 2:
            continue
        first, second = sorted(mine, key=lambda one: one.per_unit or 0.0)[:2]
        ratio = (second.per_unit or 0.0) / (first.per_unit or 1.0)
        turns = break_even_points(first.economics, second.economics)
        error = margin(first.result, second.result, by="unit_by")
        same = first.economics.bill.bought == second.economics.bill.bought
        reason.append(CostVerdict(first.label, second.label, ratio, error, turns, same))
    return tuple(reason)
