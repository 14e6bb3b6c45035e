"""Where checkpoints go, as a scenario of checkpoints alone names it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simoffload.documents import Edit
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.strategies.base import Move, Plan, Strategy
from simoffload.strategies.checkpoint.plan import CheckpointPlan, plan_checkpoint
from simoffload.strategies.placement import Placement, refused
from simoffload.workload import Checkpointing

__all__ = ["CheckpointStorage"]


class CheckpointStorage(Strategy):
    """Where checkpoints go that are simulated by themselves."""

    serves: ClassVar = frozenset({"checkpoint"})
    tier_keys: ClassVar = {"tier": "storage", "swap": "storage"}

    kind: Literal["checkpoint"] = "checkpoint"
    tier: Annotated[str, Field(min_length=1)]
    """Storage tier that takes the checkpoints."""
    swap: Annotated[str, Field(min_length=1)] | None = None
    """Tier of the optimizer's swap files with ``offload_optimizer: nvme``; by default the first with local
    drives."""

    def places(self, _machine: Machine) -> Placement:
        """Where the checkpoints go."""
        return Placement(self.tier)

    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """All tiers of storage."""
        storage = (tier for tier in machine.tiers.values() if tier.kind not in {"hbm", "dram"})
        return tuple(Placement(tier.name) for tier in storage)

    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """Checkpoints on another tier of storage. Raises PlacementError for all else."""
        known = self.placements(machine)
        if placement not in known:
            has = ", ".join(map(str, known)) or "none"
            raise refused(placement, self.kind, f"checkpoints go to storage (has: {has})")
        return (Edit.at("strategy.tier", placement.weights),)

    def resident(self) -> tuple[Edit, ...]:
        """None. Raises PlacementError: GPUs lose what a checkpoint is for."""
        raise refused("resident", self.kind, "checkpoints go to storage")

    def moves(self, plan: Plan) -> Iterator[tuple[Move, ...]]:
        """Checkpoints on every tier of storage."""
        machine = plan.machine
        tiers = [one.weights for one in self.placements(machine)]
        for tier in sorted(tiers, key=lambda one: machine.tiers[one].capacity):
            yield (Move("tier", f"checkpoints on {tier}", (Edit.at("strategy.tier", tier),)),)

    def plan(self, model: ModelShape, workload: Checkpointing, machine: Machine) -> CheckpointPlan:
        """Apply the strategy; InputError for what the machine lacks or DeepSpeed cannot do."""
        return plan_checkpoint(model, workload, machine, ranks=self.ranks, tier=self.tier, swap=self.swap)
