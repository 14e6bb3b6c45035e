"""Which machine: a model on several machines, each with its best program and a format that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simoffload.brief import brief
from simoffload.documents import Edit, split_assignment
from simoffload.errors import InputError, SimulationError, WorkLimitError
from simoffload.hardware import list_profiles
from simoffload.limits import keep, limited, now_doing
from simoffload.models import QUANTIZATIONS, quantized
from simoffload.planning.confidence import tie
from simoffload.planning.costs import CostList, bare, load_costs
from simoffload.planning.economics import Economics, economics
from simoffload.planning.question import asked, chosen, is_choice
from simoffload.progress import Watcher, steps, watched_by
from simoffload.results import SimulationResult, by_name, quality_of_weights
from simoffload.scenario import LoadedScenario, MachineParts, default_scenario
from simoffload.simulation import simulate
from simoffload.strategies import strategy_of, suited_to
from simoffload.workload import Inference

SCHEMA = "simoffload/machines/1"
SPEED, FIRST, PROMPTS = "tokens_per_s", "ttft_s", "prompt_tokens_per_s"
"""Names of the metrics that are compared: the first one decides."""


@dataclass(frozen=True, kw_only=True)
class MachineOffer:
    """A MachineOffer is a machine with the best program for a model, and a format in which it fits."""

    __repr__ = brief

    platform: str
    scenario: LoadedScenario | None = None
    result: SimulationResult | None = None
    economics: Economics | None = None
    price: float | None = None
    """Price of the machine with its own drives; None where a price is missing."""
    format: str = ""
    """Format of the weights that was chosen as GPUs do not hold the named one; "" for the named one."""
    why: str = ""
    """Reason why there is no answer; empty if there is one."""
    stopped: bool = False
    """Whether a limit or Ctrl-C came before an answer."""

    @property
    def program(self) -> str:
        """Name of the program in sentences; "" without an answer."""
        if self.scenario is None:
            return ""
        strategy = self.scenario.scenario.strategy
        return strategy.traits.title or strategy.kind

    @property
    def quality(self) -> str:
        """What is known of answers in another format; "" where they stay the same."""
        return quality_of_weights(self.format) if self.format else ""

    def value(self, metric: str) -> float | None:
        """Return a metric of the result; None without an answer."""
        if self.result is None or not self.result.fits:
            return None
        values = self.result.metrics()
        if metric == PROMPTS and values.get(metric) is None:  # of programs whose first pass is more than it
            first, work = values.get(FIRST), self.result.workload
            return (
                self.result.replicas * work["batch_size"] * work["prompt_length"] / first if first else None
            )
        return values.get(metric)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        result, cost = self.result, self.economics
        return {
            **by_name(self, "platform program format quality price why"),
            "target": None if result is None else result.target,
            "fits": result is not None and result.fits,
            "metrics": {} if result is None else result.metrics(),
            "intervals": {},
            "economics": {} if cost is None else cost.metrics(),
            "missing_prices": [] if cost is None else list(cost.missing),
        }


@dataclass(frozen=True)
class Machines:
    """The Machines are the answer to which machine is best for a model."""

    __repr__ = brief

    model: str
    offers: tuple[MachineOffer, ...]
    """Machines with an answer, the fastest first, then the others."""
    currency: str
    budget: float | None = None
    """What a machine may cost at most; None without a limit."""
    unpriced: tuple[str, ...] = ()
    """Machines without a known price, which no budget allows."""
    dearer: int = 0
    """Number of machines that cost more than the budget."""

    @property
    def answered(self) -> tuple[MachineOffer, ...]:
        """Machines on which the model runs, the fastest first."""
        return tuple(one for one in self.offers if one.value(SPEED))

    @property
    def stopped(self) -> bool:
        """Whether there is no answer because a limit or Ctrl-C came first."""
        return not self.answered and any(one.stopped for one in self.offers)

    @property
    def as_fast(self) -> tuple[MachineOffer, ...]:
        """Machines that are as fast as the fastest within the uncertainty."""
        first, *rest = self.answered or (None,)
        if first is None or first.result is None:
            return ()
        return tuple(one for one in rest if one.result is not None and tie(one.result, first.result))

    @property
    def best_value(self) -> MachineOffer | None:
        """The machine with the most tokens/s for its price; None without prices."""
        priced = [one for one in self.answered if one.price]
        return max(priced, key=lambda one: (one.value(SPEED) or 0.0) / (one.price or 1.0), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "schema": SCHEMA,
            **by_name(self, "model budget currency unpriced dearer"),
            "ranking": [one.platform for one in self.answered],
            "as_fast": [one.platform for one in self.as_fast],
            "best_value": None if self.best_value is None else self.best_value.platform,
            "machines": [one.to_dict() for one in self.offers],
        }


def compare_machines(
    model: str,
    platforms: Sequence[str] = (),
    *,
    budget: float | None = None,
    program: str | None = None,
    overrides: Sequence[str] = (),
    costs: CostList | None = None,
    progress: Watcher | None = None,
) -> Machines:
    """Simulate a model on machines that could be bought, each with its best program.

    The work is the same on each: one sequence, or ``workload.batch_size`` of ``overrides`` in all. Where the
    GPUs of a machine do not hold the weights as they are named, the format with the most bits that they hold
    is used, or the fastest of the three with the fewest bits. Without ``platforms`` all shipped ones are
    compared; with a ``budget`` only those that cost no more, whose price has to be known. Raises InputError
    for an unknown model or platform, and for what all machines refuse alike.
    """
    known = load_costs() if costs is None else costs
    names = tuple(dict.fromkeys(platforms)) or tuple(one.id for one in list_profiles("platform"))
    with watched_by(progress):
        dearer, unpriced = 0, list[str]()
        if budget is not None:
            priced = {name: _price(model, name, overrides, known) for name in steps(names, str)}
            unpriced = [name for name, price in priced.items() if price is None]
            dearer = sum(price is not None and price > budget for price in priced.values())
            names = tuple(name for name, price in priced.items() if price is not None and price <= budget)
        refused = list[InputError]()
        offers = [
            _offer(model, name, overrides, program, known, refused, stated=bool(platforms))
            for name in steps(names, str)
        ]
    if refused and len(refused) == len(offers) and len({one.problems for one in refused}) == 1:
        raise refused[0]  # what is wrong is not the machine
    offers.sort(key=lambda one: -(one.value(SPEED) or 0.0))
    return Machines(model, tuple(offers), known.currency, budget, tuple(unpriced), dearer)


def _price(model: str, platform: str, overrides: Sequence[str], costs: CostList) -> float | None:
    """Return the price of a machine with its own drives; None where it is unknown."""
    of_work = [one for one in overrides if split_assignment(one)[0].partition(".")[0] != "strategy"]
    return bare(default_scenario(model, platform, overrides=of_work), costs).total


def _offer(
    model: str,
    platform: str,
    overrides: Sequence[str],
    program: str | None,
    costs: CostList,
    refused: list[InputError],
    *,
    stated: bool,
) -> MachineOffer:
    """Return a model on a machine; one that refuses it has a reason, which ``refused`` gets, but an unknown
    name is an error."""
    try:
        (scenario, result), name = _best(model, platform, overrides, program)
    except (SimulationError, WorkLimitError) as error:
        return MachineOffer(platform=platform, why=str(error), stopped=isinstance(error, WorkLimitError))
    except InputError as error:
        if stated and any(one.key.startswith(("platform", "model")) for one in error.problems):
            raise
        refused.append(error)
        return MachineOffer(platform=platform, why="; ".join(one.message for one in error.problems))
    return MachineOffer(
        platform=platform,
        scenario=scenario,
        result=result,
        economics=economics(scenario, result, costs),
        price=bare(scenario, costs).total,
        format=name,
        why=result.shortfall,
    )


class _Answer(NamedTuple):
    """A scenario with the one simulation of it that all questions about a machine use."""

    scenario: LoadedScenario
    result: SimulationResult

    @classmethod
    def of(cls, scenario: LoadedScenario) -> _Answer:
        """Return the answer to a scenario that is simulated in full, once."""
        return cls(scenario, simulate(scenario))

    @property
    def in_memory(self) -> bool:
        """Whether it fits, and reads no weights from storage."""
        if not self.result.fits or self.result.step is None:
            return False
        return not any(one.group == "storage" for one in self.result.step.shares)

    @property
    def in_gpus(self) -> bool:
        """Whether GPUs hold all weights, of a scenario whose program was chosen."""
        choice = self.scenario.choice
        elsewhere = choice is None or not choice.programs or bool(choice.programs[0].where)
        return not elsewhere and self.in_memory

    @property
    def speed(self) -> float:
        """Tokens/s; 0 where it does not fit."""
        return self.result.metrics()[SPEED] or 0.0


@limited
def _best(model: str, platform: str, overrides: Sequence[str], program: str | None) -> tuple[_Answer, str]:
    """Return a model under the best program of a machine, and its format: the named one ("") if that is in
    its GPUs, else the one with the most bits that is, or a fast one with few bits; "" where none fits."""
    scenario = asked(model, platform, parts=MachineParts(), program=program, overrides=overrides)
    keep(scenario.scenario.engine.limits)
    now_doing("choosing a program")
    sequences, work = None, scenario.scenario.workload
    if isinstance(work, Inference) and is_choice(scenario):
        sequences = work.batch_size
        scenario = scenario.edited(Edit.at("strategy.sequences", sequences))
    first = _Answer.of(_chosen(scenario, sequences))
    if first.in_gpus:
        return first, ""
    fitting = dict[str, _Answer]()
    for name in _formats(scenario):
        with suppress(InputError, SimulationError):
            other = _chosen(scenario.edited(_quantization(scenario, name)), sequences)
            if not _loads(other, name):
                continue
            answer = _Answer.of(other)
            if answer.in_gpus:
                return answer, name
            if answer.in_memory:
                fitting[name] = answer
    if not fitting:
        return first, ""
    fastest = max(fitting, key=lambda name: fitting[name].speed)
    return fitting[fastest], fastest


def _chosen(scenario: LoadedScenario, sequences: int | None) -> LoadedScenario:
    """Return a scenario under the fastest program that processes a number of sequences in all, not on each
    GPU; under the fastest of all if there is none."""
    best = chosen(scenario)
    choice = best.choice
    for one in choice.programs if choice is not None and sequences is not None else ():
        there = scenario.edited(*one.edits)
        work, replicas = there.scenario.workload, there.scenario.strategy.replicas
        if choice is not None and isinstance(work, Inference) and work.batch_size * replicas == sequences:
            programs = (one, *(other for other in choice.programs if other is not one))
            return replace(there, choice=choice._replace(programs=programs), remarks=best.remarks)
    return best


def _loads(scenario: LoadedScenario, name: str) -> bool:
    """Return whether the program of a scenario loads a format as people use it."""
    return name in scenario.scenario.strategy.traits.formats


def _formats(scenario: LoadedScenario) -> Iterator[str]:
    """Yield the formats to try: those that programs of the machine load and whose weights may be in the GPUs,
    those with the most bits first, then the three with the fewest; none for a model that has a format."""
    if scenario.model.quantization is not None or scenario.scenario.workload.kind != "inference":
        return
    sizes = dict[str, int]()
    for name, quantization in QUANTIZATIONS.items():
        with suppress(InputError):
            model = quantized(scenario.model, quantization)
            kinds = suited_to("inference", model, scenario.machine)
            classes = (strategy_of(kind, "inference") for kind in kinds)
            if any(one is not None and name in one.traits.formats for one in classes):
                sizes[name] = model.weight_bytes
    room = scenario.machine.gpus * scenario.machine.tiers["hbm"].capacity
    ordered = sorted(sizes, key=lambda name: -sizes[name])
    yield from dict.fromkeys([*(name for name in ordered if sizes[name] < room), *ordered[-3:]])


def _quantization(scenario: LoadedScenario, name: str) -> Edit:
    model = scenario.document.data["model"]
    if isinstance(model, str):
        return Edit(("model",), {"name": model, "quantization": name})
    return Edit(("model", "quantization"), name)
