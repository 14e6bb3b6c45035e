"""Largest work that a platform can hold, and the number of machines that the work needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Unpack

from simoffload.brief import brief
from simoffload.documents import Edit
from simoffload.errors import InputError, PlacementError, SimulationError, WorkLimitError
from simoffload.planning.alternatives import in_gpus
from simoffload.planning.costs import CostList, load_costs
from simoffload.planning.economics import Economics, economics
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.question import QuestionOptions, loaded
from simoffload.planning.remedies import MOST_NODES, MOST_RANKS
from simoffload.progress import steps
from simoffload.results import SimulationResult, by_name
from simoffload.scenario import LoadedScenario, ScenarioSource, tier_name
from simoffload.simulation import simulate
from simoffload.simulation.capacity import not_simulated
from simoffload.strategies.base import Placement, moving
from simoffload.strategies.training.memory import white_paper_rule
from simoffload.workload import Checkpointing, Inference, Training

_BILLION = 10**9
_MOST_IN_FORMAT = 8
"""Largest number of machines that are tried in other formats: our choice."""
_MOST_TIMED = 1000
"""Largest number of layers of a model that is simulated on the machines: our choice, some seconds."""
_MOST_SEQUENCES, _MOST_TOKENS, _MOST_LAYERS = 1_000_000, 10_000_000, 100_000
"""Largest number of sequences, tokens and layers that a scenario accepts."""


class LargestValue(NamedTuple):
    """A LargestValue is the largest value of one quantity of a scenario, all others unchanged."""

    now: int
    most: int | None
    """Largest value that fits; None if not even 1 fits."""
    reaches: int
    """Largest value that a scenario accepts; a ``most`` of that size is not limited by memory."""
    edits: tuple[Edit, ...]
    """Edits that set the quantity to its largest value."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes."""
        return by_name(self, "now most") | {"set": [one.assignment for one in self.edits]}


class Largest(NamedTuple):
    """The largest batch, context and model that a platform can hold, each with the others unchanged."""

    name: str
    model: str
    platform: str
    target: str
    ranks: int
    batch: LargestValue
    """Largest number of sequences on each GPU."""
    context: LargestValue
    """[tokens] of each sequence: prompt and output, or the sequence that is trained on."""
    made_for: int | None
    """[tokens] for which the model was made; None where it has no such limit."""
    layers: LargestValue
    """Largest number of layers of the model's width."""
    parameters: int | None
    """Number of parameters of the deepest model [elements]."""
    warnings: tuple[str, ...] = ()
    """Sentences about what is not simulated and would hold more."""
    dtype: str = ""
    """Format in which the weights are stored."""

    def __repr__(self) -> str:
        return brief(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes."""
        return {
            **by_name(self, "name model platform target ranks warnings"),
            **by_name(self, "batch_size=batch context num_hidden_layers=layers made_for parameters"),
        }


def largest(scenario: ScenarioSource, **machine: Unpack[QuestionOptions]) -> Largest:
    """Find the largest batch, the longest context and the deepest model that fit.

    Each is found with the rest unchanged; the context grows with the prompt, the model with
    ``num_hidden_layers``. ``machine`` as in ``simulate``.
    Raises InputError for a scenario of checkpoints and for what DeepSpeed would refuse.
    """
    scenario = loaded(scenario, **machine)
    workload = scenario.scenario.workload
    if isinstance(workload, Checkpointing):
        text = "checkpoints have neither batch nor context"
        raise InputError([scenario.document.problem(("workload", "kind"), text)])
    evaluator = Evaluator(scenario)
    layers = _limit(
        evaluator,
        lambda count: (evaluator.model("num_hidden_layers", count),),
        now=scenario.model.num_hidden_layers,
        most=_MOST_LAYERS,
    )
    deepest = None if layers.most is None else evaluator.changed_by(*layers.edits).scenario.model
    return Largest(
        name=scenario.name,
        model=scenario.model.name,
        platform=scenario.machine.platform,
        target=evaluator.target,
        ranks=scenario.scenario.strategy.ranks,
        batch=batch_limit(evaluator, workload),
        context=context_limit(evaluator, workload),
        made_for=scenario.model.max_position_embeddings,
        layers=layers,
        parameters=None if deepest is None else deepest.num_parameters,
        warnings=not_simulated(scenario),
        dtype=scenario.model.dtype,
    )


def batch_limit(evaluator: Evaluator, workload: Inference | Training) -> LargestValue:
    """Return the largest number of sequences of a batch that fits."""
    found = evaluator.largest_batch(most=_MOST_SEQUENCES)
    edits = () if found is None else evaluator.batch(found)
    return LargestValue(workload.batch_size, found, _MOST_SEQUENCES, edits)


def context_limit(
    evaluator: Evaluator, workload: Inference | Training, *, positions: int | None = None
) -> LargestValue:
    """Return the longest context that fits, as the prompt grows, up to ``positions`` [tokens]."""
    key = "prompt_length" if isinstance(workload, Inference) else "sequence_length"
    output = workload.output_length if isinstance(workload, Inference) else 0
    now: int = getattr(workload, key)
    most = _MOST_TOKENS if positions is None else max(1, positions - output)
    tokens = _limit(evaluator, lambda count: (Edit(("workload", key), count),), now=now, most=most)
    longest = None if tokens.most is None else tokens.most + output
    return LargestValue(now + output, longest, most + output, tokens.edits)


def _limit(
    evaluator: Evaluator, change: Callable[[int], tuple[Edit, ...]], *, now: int, most: int
) -> LargestValue:
    found = evaluator.largest(change, start=now, most=most)
    return LargestValue(now, found, most, () if found is None else change(found))


class MachineCount(NamedTuple):
    """The number of machines for a model whose states are on one tier."""

    tier: str
    """Tier of the states; "hbm" without offload."""
    machines: int | None
    """Number of machines; None if no number suffices."""
    why: str
    """Reason why no number of machines suffices."""
    run: MachinesRun | None = None
    """The work on these machines; None where it was not simulated."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return by_name(self, "tier machines why") | {"run": None if self.run is None else self.run.to_dict()}


class MachinesRun(NamedTuple):
    """A MachinesRun is the work on a number of machines, simulated, with what these cost."""

    result: SimulationResult | None
    """The result; None if there is none, which ``why`` explains."""
    economics: Economics | None
    why: str = ""

    @property
    def days(self) -> float | None:
        """Time [d] for a billion tokens of all sequences; None without times."""
        per_token = None if self.result is None else self.result.unit_s
        return None if per_token is None else per_token * _BILLION / 86_400

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        cost = {} if self.economics is None else by_name(self.economics, "missing_prices=missing")
        costs = {} if self.economics is None else self.economics.metrics()
        return {
            "metrics": {} if self.result is None else self.result.metrics(),
            "economics": costs,
            **cost,
            "days_per_billion_tokens": self.days,
            "why": self.why,
        }


class FewerMachines(NamedTuple):
    """A FewerMachines is a format of the weights with which fewer machines hold them in their GPUs."""

    format: str
    program: str
    """Kind of the strategy that loads it."""
    machines: int


class MachinesNeeded(NamedTuple):
    """The number of machines of one platform that a scenario's work needs, with all of their GPUs at work."""

    name: str
    model: str
    work: str
    """Kind of work: "inference" or "training"."""
    platform: str
    gpus: int
    """Number of GPUs of one machine."""
    hbm: int
    """HBM of all GPUs of one machine [B]."""
    states: int
    """Size of the states by the rule of thumb for the kind of work [B]."""
    counts: tuple[MachineCount, ...]
    """Number of machines without offload, then for each tier."""
    gathers: str = ""
    """Partitioning that makes every GPU gather each layer without offload: "ZeRO-3"; "" for none."""
    warnings: tuple[str, ...] = ()
    """Sentences about what is not simulated and would need fewer machines."""
    formats: tuple[FewerMachines, ...] = ()
    """Formats of the weights that need fewer machines than the present one without offload, the fewest first;
    only with ``timed``."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def by_rule(self) -> int:
        """Number of machines whose GPUs hold ``states`` and nothing else."""
        return -(-self.states // self.hbm)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        names = "name model work platform gpus hbm_bytes=hbm states_bytes=states by_rule counts warnings"
        formats = [one._asdict() for one in self.formats]
        return {**by_name(self, names), "formats": formats}


def machines_needed(
    scenario: ScenarioSource,
    *,
    tiers: Sequence[str] | None = None,
    timed: bool = False,
    costs: CostList | None = None,
    **machine: Unpack[QuestionOptions],
) -> MachinesNeeded:
    """Count the machines of a scenario's platform that its model needs, without offload and with it.

    Weights, and in training gradients and optimizer states, are divided among all GPUs of the machines (ZeRO
    stage 3) and lie in HBM or on the tier; everything else is counted as ``fit`` does, with the batch, the
    context and the settings of the scenario.

    Parameters
    ----------
    tiers
        Tiers to offload to, by default all of the platform.
    timed
        Whether the work on each number of machines is simulated, with what these cost (``costs``, by default
        the shipped list), and formats of the weights are tried with which fewer machines would do.
    machine
        As in ``simulate``.

    Raises
    ------
    InputError
        For a scenario of checkpoints and an unknown tier.

    Notes
    -----
    ``by_rule`` is ``states`` / HBM of a machine: for inference the weights alone, 2 bytes a parameter in 16
    bit; for training 240 x layers x hidden^2 bytes, 20 a parameter (Rajbhandari et al., ZeRO-Infinity, arXiv
    2104.07857, equations 1 and 2), as DDN's white paper "Large Language Models" counts both.
    """
    scenario = loaded(scenario, **machine)
    workload, here = scenario.scenario.workload, scenario.machine
    if isinstance(workload, Checkpointing):
        text = "machines are counted for inference and training, not for checkpoints"
        raise InputError([scenario.document.problem(("workload", "kind"), text)])
    names = tuple(here.tiers) if tiers is None else ("hbm", *tiers)
    named = dict.fromkeys(tier_name(name, here, "tiers") for name in names)
    counts = [_count(scenario, tier) for tier in steps(named, str)]
    prices = load_costs() if timed and costs is None else costs
    formats: tuple[FewerMachines, ...] = ()
    if timed:
        assert prices is not None
        counts = [(one._replace(run=_run(there, prices)), there) for one, there in counts]
        formats = tuple(_formats(scenario, counts[0][0].machines))
    return MachinesNeeded(
        name=scenario.name,
        model=scenario.model.name,
        work=workload.kind,
        platform=here.platform,
        gpus=here.gpus_per_node,
        hbm=here.gpus_per_node * here.tiers["hbm"].capacity,
        states=_states(scenario),
        counts=tuple(one for one, _ in counts),
        gathers=scenario.scenario.strategy.traits.gathers,
        warnings=not_simulated(scenario),
        formats=formats,
    )


def _run(scenario: LoadedScenario | None, costs: CostList) -> MachinesRun | None:
    """Simulate the work on a number of machines; None where there is no such number."""
    if scenario is None:
        return None
    if scenario.model.num_hidden_layers > _MOST_TIMED:
        return MachinesRun(None, None, f"not simulated, as it has more than {_MOST_TIMED:,} layers")
    try:
        result = simulate(scenario)
    except (InputError, SimulationError, WorkLimitError) as error:
        return MachinesRun(None, None, str(error))
    return MachinesRun(result, economics(scenario, result, costs))


def _formats(scenario: LoadedScenario, now: int | None) -> Iterator[FewerMachines]:
    """Yield the formats with which fewer machines than ``now`` hold the weights in their GPUs, the fewest
    first; of each format the program that needs the fewest."""
    each = scenario.machine.gpus_per_node
    most = min(now - 1 if now is not None else _MOST_IN_FORMAT, _MOST_IN_FORMAT)
    evaluator, found = Evaluator(scenario), dict[str, FewerMachines]()
    for machines in range(1, most + 1):
        with suppress(InputError):
            there = evaluator.changed_by(*evaluator.spread(machines, per_node=each))
            for one in in_gpus(there):
                change = one.on(there) if one.format and one.format not in found else None
                if change is not None and there.fits(*change.edits):
                    found[one.format] = FewerMachines(one.format, one.kind, machines)
    yield from found.values()


def _states(scenario: LoadedScenario) -> int:
    if isinstance(scenario.scenario.workload, Training):
        placement = white_paper_rule(scenario.model).total
        assert placement is not None
        return placement
    return scenario.model.weight_bytes


def _count(scenario: LoadedScenario, tier: str) -> tuple[MachineCount, LoadedScenario | None]:
    """Count machines by trying: a need that is divided falls with the number of machines. Return also the
    scenario on them."""
    try:
        edits = moving(scenario.scenario.strategy, _wholly(scenario, tier), scenario.machine)
        retargeted = scenario.edited(*edits)
    except PlacementError as error:
        return MachineCount(tier, None, "; ".join(one.message for one in error.problems)), None
    each = scenario.machine.gpus_per_node
    most = min(MOST_NODES, MOST_RANKS // each)
    evaluator, allowing = Evaluator(retargeted), retargeted.placements.allowing

    def with_nodes(nodes: int) -> tuple[Edit, ...]:
        over = evaluator.spread(nodes, per_node=each)
        edit_sets = [(*over, *one) for one in allowing(retargeted.model, tier, nodes * each)]
        return next((one for one in edit_sets if evaluator.needs(*one) is not None), edit_sets[0])

    found = evaluator.smallest(with_nodes, start=1, most=most)
    if found is not None:
        return MachineCount(tier, found, ""), evaluator.edited(*with_nodes(found))
    why = _why(evaluator, {nodes: with_nodes(nodes) for nodes in (1, most)})
    return MachineCount(tier, None, why), None


def _wholly(scenario: LoadedScenario, tier: str) -> Placement:
    """Return the placement with the most states on a tier that the strategy supports."""
    placement = Placement(tier, tier if isinstance(scenario.scenario.workload, Training) else None)
    listed = scenario.placements.possible
    if placement.optimizer is None or placement in listed:
        return placement
    memory = [name for name, one in scenario.machine.tiers.items() if one.row.is_memory]
    partly = (one for one in listed if tier in one and set(one) <= {tier, *memory})
    return next(partly, placement)


def _why(evaluator: Evaluator, tried: Mapping[int, tuple[Edit, ...]]) -> str:
    """Return what is too small with the most machines, or with one where more are refused, and why they are
    refused."""
    reasons = []
    for nodes, edits in sorted(tried.items(), key=lambda one: -one[0]):
        uses = evaluator.needs(*edits)
        if uses is not None:
            lacking = "; ".join(use.sentence() for use in uses if not use.fits)
            reasons.append(f"with {nodes:,} machine{'' if nodes == 1 else 's'} {lacking}")
            break
        reasons.append(evaluator.refusal(*edits))
    return "; ".join(dict.fromkeys(reasons))
