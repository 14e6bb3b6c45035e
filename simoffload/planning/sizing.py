"""How large a platform lets the work be, and how many machines the work needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError, PlacementError
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.remedies import MOST_NODES, MOST_RANKS
from simoffload.results.values import by_name
from simoffload.scenario import LoadedScenario, tier_name
from simoffload.strategies.placement import Placement
from simoffload.strategies.training.memory.states import white_paper_rule
from simoffload.workload import Checkpointing, Inference, Training

__all__ = ["Largest", "Limit", "MachineCount", "MachinesNeeded", "largest", "machines_needed"]

_MOST_SEQUENCES, _MOST_TOKENS, _MOST_LAYERS = 1_000_000, 10_000_000, 100_000
"""As many as a scenario may have."""


class Limit(NamedTuple):
    """How large one quantity of a scenario can be, with all others as they are."""

    now: int
    most: int | None
    """None: not even 1 fits."""
    reaches: int
    """As much as a scenario may have: a ``most`` of that much is not the memory's."""
    edits: tuple[Edit, ...]
    """What makes it so large."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes."""
        return by_name(self, "now most") | {"set": [one.assignment for one in self.edits]}


class Largest(NamedTuple):
    """What a platform holds, with the weights where the scenario has them."""

    name: str
    model: str
    platform: str
    target: str
    ranks: int
    batch: Limit
    """Sequences on each GPU."""
    context: Limit
    """[tokens] of each sequence: prompt and output, or the sequence that is trained on."""
    made_for: int | None
    """[tokens] for which the model was made; None where it has no such limit."""
    layers: Limit
    """Of the model's width."""
    parameters: int | None
    """[elements] of the model of so many layers."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes."""
        return {
            **by_name(self, "name model platform target ranks"),
            **by_name(self, "batch_size=batch context num_hidden_layers=layers made_for parameters"),
        }


def largest(scenario: LoadedScenario) -> Largest:
    """Find the largest batch, the longest context and the deepest model that fit.

    Each with the rest as it is; the context grows with the prompt, the model with ``num_hidden_layers``.
    Raises InputError for a scenario of checkpoints and for what DeepSpeed would refuse.
    """
    workload = scenario.scenario.workload
    if isinstance(workload, Checkpointing):
        text = "checkpoints have neither batch nor context"
        raise InputError([scenario.document.problem(("workload", "kind"), text)])
    plan = scenario.plan()
    target = f"{plan.target}+{plan.optimizer_target}" if plan.optimizer_target else plan.target
    evaluator = Evaluator(scenario)
    batch = _limit(evaluator, evaluator.batch, now=workload.batch_size, most=_MOST_SEQUENCES)
    key = "prompt_length" if isinstance(workload, Inference) else "sequence_length"
    length: int = getattr(workload, key)
    tokens = _limit(evaluator, lambda count: (Edit(("workload", key), count),), now=length, most=_MOST_TOKENS)
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
        target=target,
        ranks=scenario.scenario.strategy.ranks,
        batch=batch,
        context=_split_tokens(tokens, workload.output_length if isinstance(workload, Inference) else 0),
        made_for=scenario.model.max_position_embeddings,
        layers=layers,
        parameters=None if deepest is None else deepest.num_parameters,
    )


def _limit(evaluator: Evaluator, change: Callable[[int], tuple[Edit, ...]], *, now: int, most: int) -> Limit:
    found = evaluator.largest(change, start=now, most=most)
    return Limit(now, found, most, () if found is None else change(found))


def _split_tokens(tokens: Limit, output: int) -> Limit:
    """Return the limit of prompt and output together, from the limit of the prompt."""
    most = None if tokens.most is None else tokens.most + output
    return Limit(tokens.now + output, most, tokens.reaches + output, tokens.edits)


class MachineCount(NamedTuple):
    """The number of machines for a model whose states are on one tier."""

    tier: str
    """"hbm" without offload."""
    machines: int | None
    """None: however many there are, it does not fit."""
    why: str
    """What is too small however many there are."""


class MachinesNeeded(NamedTuple):
    """The number of machines of one platform that a scenario's work needs, with all of their GPUs at work."""

    name: str
    model: str
    work: str
    """"inference" or "training"."""
    platform: str
    gpus: int
    """Of one machine."""
    hbm: int
    """[B] of all of them."""
    states: int
    """[B] of the model by the rule of thumb of the work."""
    counts: tuple[MachineCount, ...]
    """Without offload, then for each tier."""
    gathers: str = ""
    """What has every GPU gather each layer where there is no offload: "ZeRO-3"; "" where nothing does."""

    @property
    def by_rule(self) -> int:
        """Number of machines whose GPUs hold ``states`` and nothing else."""
        return -(-self.states // self.hbm)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return by_name(self, "name model work platform gpus hbm_bytes=hbm states_bytes=states by_rule counts")


def machines_needed(scenario: LoadedScenario, *, tiers: Sequence[str] | None = None) -> MachinesNeeded:
    """Count the machines of a scenario's platform that its model needs, without offload and with it.

    Weights, and in training gradients and optimizer states, are divided among all GPUs of the machines (ZeRO
    stage 3) and lie in HBM or on the tier; everything else is counted as ``fit`` does, with the batch, the
    context and the settings of the scenario.

    Parameters
    ----------
    tiers
        Tiers to offload to, by default all of the platform.

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
    workload, machine = scenario.scenario.workload, scenario.machine
    if isinstance(workload, Checkpointing):
        text = "machines are counted for inference and training, not for checkpoints"
        raise InputError([scenario.document.problem(("workload", "kind"), text)])
    names = tuple(machine.tiers) if tiers is None else ("hbm", *tiers)
    named = dict.fromkeys(tier_name(name, machine, "tiers") for name in names)
    return MachinesNeeded(
        name=scenario.name,
        model=scenario.model.name,
        work=workload.kind,
        platform=machine.platform,
        gpus=machine.gpus_per_node,
        hbm=machine.gpus_per_node * machine.tiers["hbm"].capacity,
        states=_states(scenario),
        counts=tuple(_count(scenario, tier) for tier in named),
        gathers=scenario.scenario.strategy.gathers,
    )


def _states(scenario: LoadedScenario) -> int:
    if isinstance(scenario.scenario.workload, Training):
        placement = white_paper_rule(scenario.model).total
        assert placement is not None
        return placement
    return scenario.model.weight_bytes


def _count(scenario: LoadedScenario, tier: str) -> MachineCount:
    """Count machines by trying: a need that is divided falls with the number of machines."""
    try:
        retargeted = scenario.edited(
            *scenario.scenario.strategy.retarget(_wholly(scenario, tier), scenario.machine)
        )
    except PlacementError as error:
        return MachineCount(tier, None, "; ".join(one.message for one in error.problems))
    each = scenario.machine.gpus_per_node
    most = min(MOST_NODES, MOST_RANKS // each)
    evaluator, strategy = Evaluator(retargeted), retargeted.scenario.strategy

    def with_nodes(nodes: int) -> tuple[Edit, ...]:
        over = evaluator.spread(nodes, per_node=each)
        edit_sets = [(*over, *one) for one in strategy.allowing(retargeted.model, tier, ranks=nodes * each)]
        return next((one for one in edit_sets if evaluator.needs(*one) is not None), edit_sets[0])

    found = evaluator.smallest(with_nodes, start=1, most=most)
    if found is not None:
        return MachineCount(tier, found, "")
    return MachineCount(tier, None, _why(evaluator, {nodes: with_nodes(nodes) for nodes in (1, most)}))


def _wholly(scenario: LoadedScenario, tier: str) -> Placement:
    """Return the placement with as much on a tier as the strategy can have there."""
    placement = Placement(tier, tier if isinstance(scenario.scenario.workload, Training) else None)
    listed = scenario.scenario.strategy.placements(scenario.machine)
    if placement.optimizer is None or placement in listed:
        return placement
    partly = (one for one in listed if tier in one and set(one) <= {tier, "hbm", "dram"})
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
