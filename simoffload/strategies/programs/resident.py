"""The strategy without offloading and without ZeRO: a full copy of the weights in the HBM of every GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.strategies.base import (
    RESIDENT,
    WHOLE_COPIES,
    Description,
    Placement,
    Placements,
    Plan,
    ProgramTraits,
    Tunable,
    Tunables,
    optimizer_target,
    target,
)
from simoffload.strategies.cache.kv_cache import DEFAULT, CachingStrategy, KvCache
from simoffload.strategies.divided import Degrees
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.zero_strategy import inference_moves, training_moves
from simoffload.strategies.requirements import TRANSFORMERS, check_capability
from simoffload.strategies.training.adapters import (
    PEFT,
    Lora,
    lora_moves,
    quantized_base,
    refuse_adapters,
)
from simoffload.workload import Inference, Training

_ZERO_TRAINING = (Edit.at("strategy.kind", "zero_training"),)
_OFFLOAD = "set strategy.kind: zero_inference, which offloads them"


class Resident(CachingStrategy):
    """A Resident strategy keeps a full copy of all states on every GPU, without offloading and without
    ZeRO."""

    serves: ClassVar = frozenset({"inference", "training"})
    traits: ClassVar = ProgramTraits(
        evidence="accelerate",  # runs with all weights on the GPU, and the cache in host memory
        unseen={**CachingStrategy.traits.unseen, "kv_cache.tier": (None, "hbm")},
        formats=("nf4-dq",),
    )

    kind: Literal["resident"] = "resident"
    lora: Lora | None = None
    """Adapters that are trained instead of all weights."""

    @property
    def description(self) -> Description:
        """The program that reads the exported files, the cache, and what is trained."""
        if self.lora is not None:
            return super().description._replace(program=PEFT, trains="adapters")
        return super().description._replace(program="transformers" if self.generation_config() else "")

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the file with which transformers makes the cache, or those with which PEFT makes
        adapters."""
        if self.lora is not None:
            return self.lora.files(plan.model, divided=False)
        return self.generation_config()

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield HBM as the place of all states, the cache in host memory, and ZeRO instead of a full copy on
        each GPU, with the weights on each tier; in training its stages, and adapters under it."""
        why = "every GPU holds a whole copy; offload with strategy.kind zero_inference or zero_training"
        yield Placements(
            now=lambda: Placement("hbm", "hbm"),
            possible=(Placement("hbm"), Placement("hbm", "hbm")),  # inference has no optimizer
            refusal=why,
            name=RESIDENT,
            phrase=WHOLE_COPIES,
            copied=True,
        )
        if plan is None:
            return
        if not optimizer_target(plan):
            before = (Edit.at("strategy.kind", "zero_inference"),)
            yield from self.cache_tunables(plan)
            yield from inference_moves(plan, ranks=self.ranks, before=before)
            return
        from simoffload.strategies.programs.zero_training import stages_of_zero

        above = tuple(stages_of_zero(plan))
        yield from training_moves(plan, above, self.ranks, None, *_ZERO_TRAINING)
        yield Tunable("partition", above)
        if self.lora is not None:
            yield Tunable("precision", quantized_base(plan.model))
            return
        yield Tunable("adapters", lora_moves(plan.model, self.kind, self.ranks))

    def plan(self, model: ModelShape, workload: Inference | Training, machine: Machine) -> Plan:
        """Apply the strategy; training is plain data parallelism (ZeRO stage 0)."""
        check_capability(TRANSFORMERS, model, machine)
        if workload.kind == "inference":
            refuse_adapters(self.lora)
            cache = self.cache_of(model, workload, machine)
            return ResidentPlan(
                model=model, workload=workload, machine=machine, ranks=self.ranks, cache=cache
            )
        if self.kv_cache != DEFAULT:
            raise InputError.at("strategy.kv_cache", "training keeps no cache; remove the section")
        from simoffload.strategies.programs.zero_training import plan_whole_copies

        return plan_whole_copies(model, workload, machine, ranks=self.ranks, lora=self.lora)


@dataclass(frozen=True)
class ResidentPlan(InferencePlan):
    """A ResidentPlan is a plan of a model that stays in HBM."""

    model: ModelShape
    workload: Inference
    machine: Machine
    ranks: int
    warnings: tuple[str, ...] = ()
    cache: KvCache = DEFAULT
    fewer: ClassVar = _OFFLOAD

    @property
    def degrees(self) -> Degrees:  # type: ignore[override]  # given by the number of copies
        """Numbers of parts, stages and replicas: every GPU has a replica."""
        return Degrees(1, 1, self.ranks)


def whole_copies(plan: Plan) -> Plan | None:
    """Return the plan of the same work with a copy of the weights in each GPU; None if this plan has one, or
    divides layers among GPUs, or has kernels of its own."""
    if not isinstance(plan, InferencePlan) or plan.fused or target(plan) == "hbm":
        return None
    if plan.degrees.tensor > 1 or plan.driven > 1:
        return None
    return ResidentPlan(plan.model, plan.workload, plan.machine, plan.degrees.ranks)
