"""gpt-fast: PyTorch code that torch.compile compiles and replays from CUDA graphs, with tensor parallelism.

Source: pytorch-labs/gpt-fast. Its fused kernels and its memory are simulated as those of compiled serving,
with a share of each GPU's memory left free. Nothing of gpt-fast itself was measured but its published rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results import Facts
from simoffload.strategies.base import SERVED, Description, Drafting, Placements, Plan, Tunables
from simoffload.strategies.cache.kv_cache import CacheEngine
from simoffload.strategies.programs.tensor_parallel import DividedStrategy, TensorParallelPlan
from simoffload.strategies.programs.vllm_engine import EngineCode, VllmEngine, runs_v1
from simoffload.strategies.programs.zero_strategy import inference_moves
from simoffload.workload import Inference


class GptFast(DividedStrategy):
    """A GptFast strategy runs gpt-fast, whose GPUs share every layer: compiled code that is not vLLM's."""

    traits: ClassVar = DividedStrategy.traits._replace(
        title="gpt-fast",
        evidence=SERVED,  # compiled code as vLLM's is the most like it; none of its own were recorded
        formats=("gpt-fast-int8", "gpt-fast-int4-g32"),
        gpu_keys=("tensor_parallel_size",),
        drafting=Drafting(("draft_model",), one_sequence=True),
    )
    cache_engine: ClassVar = CacheEngine("gpt-fast")

    kind: Literal["gpt_fast"] = "gpt_fast"
    pipeline_parallel_size: Literal[1] = 1
    """Number of pipeline stages: gpt-fast has one."""
    data_parallel_size: Literal[1] = 1
    """Number of replicas of the model: gpt-fast has one."""

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield HBM as the only place of the weights, and DeepSpeed with the weights on each tier."""
        refusal = "its weights stay in the GPUs"
        yield Placements(refusal=refusal, name="gpt-fast", phrase=self.in_gpus)
        if plan is not None:
            before = (Edit(("strategy",), {"kind": "deepspeed", "ranks": self.ranks}),)
            yield from self.cache_tunables(plan)
            yield from inference_moves(plan, ranks=self.ranks, before=before)

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> GptFastPlan:
        """Apply the strategy. Raises InputError for a model that cannot be divided equally."""
        if self.kv_cache.connector is not None:
            raise InputError.at("strategy.kv_cache.connector", "gpt-fast has no connector; remove it")
        model = model.as_served()
        code = EngineCode(alone=self.tensor_parallel_size == 1, v1=runs_v1(model))
        engine = VllmEngine.of(
            model,
            machine,
            workload,
            tokens=None,
            utilization=None,
            blocks=None,
            captured=None,
            code=code,
            connector=None,
        )
        reserve = f"reserve of {1 - engine.utilization:.0%} (assumed)"
        plan = GptFastPlan(
            model=model,
            workload=workload,
            machine=machine,
            degrees=self.degrees,
            compiled=True,
            cache=self.cache_of(model, workload, machine),
            engine=engine._replace(reserve=reserve),
        )
        _ = plan.divided  # raises for degrees that do not divide the model
        return plan

    @property
    def description(self) -> Description:
        """gpt-fast, which reads no file of ours, and the cache."""
        return super().description._replace(program="")


@dataclass(frozen=True)
class GptFastPlan(TensorParallelPlan):
    """A GptFastPlan is a plan of a model that gpt-fast runs."""

    fewer: ClassVar = "raise tensor_parallel_size"

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]  # computed here
        """Warnings about key-value heads that several GPUs keep; none about vLLM's engine."""
        return self.heads_warnings

    def _uncompared(self) -> list[str]:
        """Return what no run of vLLM did either; else that none was of gpt-fast."""
        return super()._uncompared() or ["used gpt-fast"]

    def draft_plan(self, drafter: ModelShape, workload: Inference) -> TensorParallelPlan:
        """Return the plan of a model that proposes tokens, which as many GPUs share."""
        model, degrees = drafter.as_served(), self.degrees
        return TensorParallelPlan(model, workload, self.machine, degrees, compiled=True, cache=self.cache)

    @property
    def facts(self) -> Facts:
        """The same without the blocks of a paged cache, as gpt-fast has one tensor for each layer."""
        return replace(super().facts, cache_blocks=None)

    @property
    def serving_limits(self) -> None:
        """None, because gpt-fast serves no streams of requests."""
