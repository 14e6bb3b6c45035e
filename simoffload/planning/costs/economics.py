"""The cost of an answer: what to buy, what it draws, and what a token, a step or a checkpoint comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simoffload.planning.costs.bill import Bill, Replacement, bill, replacements, used_parts
from simoffload.planning.costs.energy import Energy, energy
from simoffload.planning.costs.price_list import CostList, Figure, load_costs
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.scenario import LoadedScenario

__all__ = ["FORMULAS", "Economics", "economics"]

_KWH = 3.6e6
"""[J]"""
_MILLION = 1e6

FORMULAS: Mapping[str, str] = {
    "purchase": "sum of all prices of the machine and of the storage that the scenario uses",
    "power_w": "sum of idle + (active - idle) x busy of all devices",
    "purchase_per_h": "purchase / (lifetime in years x 8766 x utilization)",
    "replacement_per_h": "drives that wear out first: price x (1 / hours they last - 1 / hours written off)",
    "electricity_per_h": "power_w / 1000 x pue x electricity",
    "cost_per_h": "purchase_per_h + replacement_per_h + electricity_per_h",
    "rent_per_h": "rent of the machine, or of all its GPUs, electricity included",
    "energy_per_token_j": "power_w x per_token_s, without what the site adds",
    "kwh_per_million_tokens": "energy_per_token_j x pue x 1e6 / 3.6e6",
    "cost_per_million_tokens": "cost_per_h / 3600 x per_token_s x 1e6",
    "rent_per_million_tokens": "rent_per_h / 3600 x per_token_s x 1e6",
    "cost_per_run": "cost_per_h / 3600 x time of one generation of all sequences, one step or one checkpoint",
    "energy_per_run_j": "power_w x that time",
    "return_per_purchase": "tokens (checkpoints) per hour, over purchase / 1000",
}


@dataclass(frozen=True)
class Economics:
    """Money and energy of one answer; what no list knows is None, and named."""

    bill: Bill
    energy: Energy | None
    costs: CostList
    platform: str
    """Id."""
    profiles: frozenset[str]
    """All of the machine, as kind/id: a list may name those of the user."""
    replacements: tuple[Replacement, ...]
    """Of drives that wear out before they are written off."""
    rent: Figure | None
    """Per hour of one GPU, or of one machine."""
    rented: int
    """How many of them."""
    tokens: int | None
    """Made in the time that ``energy`` is about; None for a checkpoint."""
    idle: str = ""
    """GPUs that are paid for and do nothing, in hosts that do something."""

    @property
    def units(self) -> int:
        """Tokens made, or one checkpoint."""
        return self.tokens or 1

    @property
    def purchase(self) -> float | None:
        """See ``FORMULAS``."""
        return self.bill.total

    @property
    def missing(self) -> tuple[str, ...]:
        """What has no price or no power, so that sums are too small."""
        power = self.energy.missing if self.energy else ()
        return tuple(dict.fromkeys((*self.bill.missing, *(f"{key} (power)" for key in power))))

    def metrics(self) -> dict[str, float | None]:
        """All metrics by name: see ``FORMULAS``."""
        pue, price = self.costs.assumption("pue").value, self.costs.assumption("electricity").value
        watts = self.energy.watts if self.energy else None
        purchase = _product(self.purchase, 1 / self.costs.hours)
        electricity = _product(watts, pue * price / 1000)
        worn = sum(one.per_h for one in self.replacements)
        hourly = None if purchase is None or electricity is None else purchase + worn + electricity
        rent = self.rent.value * self.rented if self.rent else None
        time = self.energy.time_s if self.energy else None
        token = time / self.tokens if time and self.tokens else None
        return {
            "purchase": self.purchase,
            "power_w": watts,
            "purchase_per_h": purchase,
            "replacement_per_h": worn,
            "electricity_per_h": electricity,
            "cost_per_h": hourly,
            "rent_per_h": rent,
            "energy_per_token_j": _product(watts, token),
            "kwh_per_million_tokens": _product(watts, token, pue * _MILLION / _KWH),
            "cost_per_million_tokens": _product(hourly, token, _MILLION / 3600),
            "rent_per_million_tokens": _product(rent, token, _MILLION / 3600),
            "cost_per_run": _product(hourly, time, 1 / 3600),
            "energy_per_run_j": _product(watts, time),
            "return_per_purchase": self.units * 3600 / time / self.purchase * 1000
            if time and self.purchase
            else None,
        }

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Everything that was taken from the lists, powers apart."""
        assumed = (self.costs.assumption(key) for key in ("electricity", "pue", "lifetime", "utilization"))
        return (*self.bill.prices, *([self.rent] if self.rent else []), *assumed)

    @property
    def slips(self) -> tuple[str, ...]:
        """About names in the list that neither a shipped profile has nor one of the machine."""
        return tuple(reason for key, reason in self.costs.unknown.items() if key not in self.profiles)

    @property
    def warnings(self) -> tuple[str, ...]:
        """About GPUs that are idle, what is missing, and prices that are old."""
        prices = (*self.bill.prices, self.costs.assumption("electricity"))
        missing = (f"no price or power is known of {', '.join(self.missing)}: sums are too small",)
        idle = (self.idle,) if self.idle else ()
        unknown = missing if self.missing else ()
        return (*idle, *self.costs.remarks, *self.slips, *unknown, *self.costs.old(prices))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "currency": self.costs.currency,
            "metrics": self.metrics(),
            "formulas": dict(FORMULAS),
            "bill": [
                {
                    "key": item.key,
                    "number": item.number,
                    "units": item.units,
                    "price": item.price.value if item.price else None,
                    "total": item.total,
                    "covered": item.covered,
                }
                for item in self.bill.items
            ],
            "power": [draw._asdict() | {"watts": draw.watts} for draw in self.energy.draws]
            if self.energy
            else [],
            "figures": [figure._asdict() | {"date": str(figure.date)} for figure in self.figures],
            "lists": [{"file": name, "sha256": digest} for name, digest in self.costs.sources],
            "warnings": list(self.warnings),
        }


def _product(*factors: float | None) -> float | None:
    result = 1.0
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def economics(scenario: LoadedScenario, result: SimulationResult, costs: CostList | None = None) -> Economics:
    """What an answer costs by a list of prices and powers, the shipped one by default."""
    known, machine = load_costs() if costs is None else costs, scenario.machine
    rented = known.rent(f"platform/{machine.platform}")
    bought = bill(scenario, result, known)
    return Economics(
        bill=bought,
        replacements=replacements(result, bought, hours=known.hours),
        energy=energy(machine, result, used_parts(scenario, result), known),
        costs=known,
        platform=machine.platform,
        profiles=frozenset(f"{use.kind}/{use.id}" for use in machine.profiles),
        rent=rented or known.rent(f"accelerator/{machine.accelerator.id}"),
        rented=machine.nodes if rented else machine.gpus,
        tokens=_tokens(result),
        idle=_idle_gpus(scenario),
    )


def _idle_gpus(scenario: LoadedScenario) -> str:
    """Machines are bought whole; hosts without any rank are another matter, of which the result warns."""
    machine, strategy = scenario.machine, scenario.scenario.strategy
    gpus = strategy.gpus
    used = machine.nodes_of(gpus)
    here = used * machine.gpus_per_node
    if gpus >= here:
        return ""
    which, all_ = (
        ("", "all") if used == machine.nodes else (f" of the {used} hosts with work", "all of these")
    )
    text = f"{here - gpus} of {here} GPUs{which} are idle, and paid for all the same, as machines are bought"
    more = any(edit.path == ("strategy", "ranks") for edit in strategy.spread(here))
    return f"{text} whole" + (f"; strategy.ranks: {here} would use {all_}" if more else "")


def _tokens(result: SimulationResult) -> int | None:
    """In a generation of all sequences, or a step."""
    match result:
        case InferenceResult():
            return result.batch_size * result.replicas * result.output_length
        case TrainingResult():
            samples = result.batch_size * result.gradient_accumulation_steps * result.replicas
            return samples * result.sequence_length
    return None
