"""How many machines a model needs, with and without offload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError, PlacementError
from simoffload.planning.fit.evaluator import Evaluator
from simoffload.planning.fit.remedies import MOST_NODES, MOST_RANKS
from simoffload.scenario import LoadedScenario, tier_name
from simoffload.strategies.placement import Placement
from simoffload.strategies.training.memory.states import white_paper_rule
from simoffload.workload import Checkpointing, Training

__all__ = ["MachineCount", "MachinesNeeded", "machines_needed"]


class MachineCount(NamedTuple):
    """Machines for a model whose states are on one tier."""

    tier: str
    """"hbm" without offload."""
    machines: int | None
    """None: however many there are, it does not fit."""
    why: str
    """What is too small however many there are."""


class MachinesNeeded(NamedTuple):
    """How many machines of one platform a scenario's work needs, all of their GPUs at work."""

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

    @property
    def by_rule(self) -> int:
        """Machines whose GPUs hold ``states`` and nothing else."""
        return -(-self.states // self.hbm)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "name": self.name,
            "model": self.model,
            "work": self.work,
            "platform": self.platform,
            "gpus": self.gpus,
            "hbm_bytes": self.hbm,
            "states_bytes": self.states,
            "by_rule": self.by_rule,
            "counts": [count._asdict() for count in self.counts],
        }


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
    )


def _states(scenario: LoadedScenario) -> int:
    if isinstance(scenario.scenario.workload, Training):
        placement = white_paper_rule(scenario.model).total
        assert placement is not None
        return placement
    return scenario.model.weight_bytes


def _count(scenario: LoadedScenario, tier: str) -> MachineCount:
    """By trying: a need that is divided falls with the number of machines."""
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
    """As much as the strategy can have on a tier: weights and optimizer, or the one that may be there."""
    placement = Placement(tier, tier if isinstance(scenario.scenario.workload, Training) else None)
    listed = scenario.scenario.strategy.placements(scenario.machine)
    if placement.optimizer is None or placement in listed:
        return placement
    partly = (one for one in listed if tier in one and set(one) <= {tier, "hbm", "dram"})
    return next(partly, placement)


def _why(evaluator: Evaluator, tried: Mapping[int, tuple[Edit, ...]]) -> str:
    """What is too small with most machines, or with one where more are refused; why more are refused."""
    reasons = []
    for nodes, edits in sorted(tried.items(), key=lambda one: -one[0]):
        uses = evaluator.needs(*edits)
        if uses is not None:
            lacking = "; ".join(use.sentence() for use in uses if not use.fits)
            reasons.append(f"with {nodes:,} machine{'' if nodes == 1 else 's'} {lacking}")
            break
        reasons.append(evaluator.refusal(*edits))
    return "; ".join(dict.fromkeys(reasons))
