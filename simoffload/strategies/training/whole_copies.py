"""Training with a full copy of all states on every GPU, and the ZeRO stages that would divide them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

from simoffload.documents import Edit
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results.capacity import Change, MemoryStage, MemoryTerm
from simoffload.strategies.base import Plan, Tunable
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.ds_config.export import stages
from simoffload.strategies.training.plan import ZeroTrainingPlan
from simoffload.strategies.training.zero_training import ZeroTraining
from simoffload.workload import Training

__all__ = ["plan_whole_copies", "stages_of_zero"]

_ZERO_TRAINING = Edit.at("strategy.kind", "zero_training")
_DIVIDE = "set strategy.kind: zero_training, which divides and offloads them"


def plan_whole_copies(model: ModelShape, workload: Training, machine: Machine, *, ranks: int) -> Plan:
    """Return the plan of plain data parallelism, with a full copy on every GPU (ZeRO stage 0)."""
    config = DeepSpeedConfig.model_validate({"zero_optimization": {"stage": 0}})
    plan = ZeroTraining(ranks=ranks, ds_config=config).plan(model, workload, machine)
    return _WholeCopiesTrained(**{one.name: getattr(plan, one.name) for one in fields(plan)})


def stages_of_zero(plan: Plan) -> Iterator[Change]:
    """Yield the stages of ZeRO for training."""
    if isinstance(plan, ZeroTrainingPlan):
        for stage in stages(plan.settings):
            yield stage._replace(edits=(_ZERO_TRAINING, *stage.edits))


@dataclass(frozen=True)
class _WholeCopiesTrained(ZeroTrainingPlan):
    """Plan of plain data parallelism: ZeRO stage 0, with no settings that reduce memory."""

    def tunables(self) -> Iterator[Tunable]:
        """Yield no settings, as none reduces the memory."""
        return iter(())

    @cached_property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Memory stages, with another strategy as the remedy."""
        return tuple(
            stage._replace(terms=tuple(map(_without_settings, stage.terms)))
            for stage in super().memory_stages
        )


def _without_settings(term: MemoryTerm) -> MemoryTerm:
    if not term.remedy or term.remedy.startswith("lower batch_size"):
        return term
    return term._replace(remedy=_DIVIDE)
