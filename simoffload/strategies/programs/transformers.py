"""Hugging Face transformers without offloading of weights: a model in each GPU, or shared by several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simoffload.documents import Edit
from simoffload.hardware import Machine, in_hbm
from simoffload.models import QUANTIZATIONS, ModelShape
from simoffload.results import Facts
from simoffload.strategies.base import (
    RESIDENT,
    WHOLE_COPIES,
    Description,
    Drafting,
    Placement,
    Placements,
    Plan,
    ProgramTraits,
    SizeEdits,
    Strategy,
    Tunable,
    Tunables,
    target,
)
from simoffload.strategies.cache.kv_cache import DEFAULT, CacheEngine, CachingStrategy, KvCache
from simoffload.strategies.cache.kv_cache import TRANSFORMERS as TRANSFORMERS_CACHE
from simoffload.strategies.divided import Degrees
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.tensor_parallel import (
    DIVIDED,
    Degree,
    TensorParallelPlan,
    loading_advice,
    without_offloading,
)
from simoffload.strategies.programs.zero_strategy import inference_moves, training_moves
from simoffload.strategies.requirements import TRANSFORMERS, check_capability, lacks_vllm
from simoffload.strategies.training.adapters import PEFT, Lora, lora_moves, quantized_base
from simoffload.workload import Inference, Training

_PARTS = ("tensor_parallel_size", "pipeline_parallel_size")


def _evidence(settings: Mapping[str, Any]) -> str:
    """Return the group of real runs: of eager code with all in HBM, or with the cache in host memory; "" for
    a cache of fewer bits, of which there are none."""
    divided = any(settings.get(key, 1) != 1 for key in _PARTS)
    cache = settings.get("kv_cache") or {}
    if not divided and in_hbm(cache.get("tier", "hbm")):
        return "" if cache.get("format") else "tensor_parallel"
    return "tensor_parallel" if divided else "accelerate"


class Transformers(CachingStrategy):
    """A Transformers strategy runs the model with transformers' eager code: a full copy on every GPU, or on
    several that share it."""

    serves: ClassVar = frozenset({"inference"})
    traits: ClassVar = CachingStrategy.traits._replace(
        title="transformers",
        evidence=_evidence,
        formats=("nf4-dq",),
        gpu_keys=("ranks", *_PARTS),
        drafting=Drafting(("draft_model", "mtp", "ngram"), one_sequence=True),
    )

    elsewhere: ClassVar = {
        "compiled": "compiled code is that of strategy.kind vllm or gpt_fast",
        "lora": "adapters are trained, and inference merges them into the weights; remove the section",
        "mixed_precision": "it is of training; inference has model.dtype; remove the key",
        "optim": "inference has no optimizer; remove the key",
    }

    kind: Literal["transformers"] = "transformers"
    ranks: Annotated[int, Field(strict=True, ge=1, le=65_536)] = 1
    """Number of processes, each with one GPU; by default as many as share the model."""
    tensor_parallel_size: Degree = 1
    """Number of GPUs that share every layer (``tp_plan="auto"``); the others have copies."""
    pipeline_parallel_size: Degree = 1
    """Number of pipeline stages, each with an equal part of the layers; a what-if that transformers does not
    have."""

    @model_validator(mode="before")
    @classmethod
    def _ranks_hold_whole_copies(cls, data: Any) -> Any:
        """Set ``ranks``, which may be left out. Raises ValueError for a number that makes no whole copies."""
        parts: list[Any] = [data.get(key, 1) for key in _PARTS] if isinstance(data, dict) else [None]
        if not all(type(one) is int and one > 0 for one in parts):
            return data
        together = parts[0] * parts[1]
        ranks = data.get("ranks", together)
        if type(ranks) is int and ranks % together:
            raise ValueError(f"{ranks} ranks make no whole copies of {together} GPUs each; leave ranks out")
        return {**data, "ranks": ranks}

    @property
    def degrees(self) -> Degrees:
        """Numbers of parts, stages and replicas."""
        parts = self.tensor_parallel_size * self.pipeline_parallel_size
        return Degrees(self.tensor_parallel_size, self.pipeline_parallel_size, self.ranks // parts)

    @property
    def replicas(self) -> int:
        """Number of replicas of the model."""
        return self.degrees.data

    @property
    def cache_engine(self) -> CacheEngine:  # type: ignore[override]  # it depends on the stages
        """Cache of transformers; of stages, which it does not have, in HBM and in the model's type."""
        return TRANSFORMERS_CACHE if self.pipeline_parallel_size == 1 else _OF_STAGES

    @property
    def _shares(self) -> bool:
        """Whether several GPUs share a copy of the model."""
        return self.ranks != self.replicas

    def sizes(self, batch_size: int = 1) -> SizeEdits:
        """Return the edits to other batches, and to numbers of GPUs, which share each layer if
        ``tensor_parallel_size`` is stated; none if that is not a whole number."""
        plain = super().sizes(batch_size)
        if not self._shares and "tensor_parallel_size" not in self.model_fields_set:
            return plain

        def shared(gpus: int) -> tuple[Edit, ...]:
            each, rest = divmod(gpus, self.pipeline_parallel_size * self.replicas)
            return () if rest else (Edit.at("strategy.tensor_parallel_size", each), *plain.gpus(gpus))

        return plain._replace(gpus=shared)

    @property
    def description(self) -> Description:
        """The program that reads the exported file, and the cache."""
        reads = self.tensor_parallel_size > 1 or self.generation_config()
        return super().description._replace(program="transformers" if reads else "")

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the file with which transformers makes the cache, and a program that divides the model; none
        for a plan that transformers does not have."""
        if not self._shares:
            return self.generation_config()
        if plan.facts.hypothetical:
            return {}
        program = _PROGRAM.format(
            name=plan.model.unquantized_name,
            dtype=plan.model.dtype,
            gpus=self.tensor_parallel_size,
            advice=loading_advice(plan.model.quantization),
        )
        return {"tensor_parallel.py": program, **self.generation_config()}

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield HBM as the place of the weights, the cache in host memory, and DeepSpeed with the weights on
        each tier."""
        refusal = "its weights stay in the GPUs"
        shared = Placements(refusal=refusal, name="tensor parallel", phrase=DIVIDED)
        yield shared if self._shares else _COPIES
        if plan is None:
            return
        before = Edit.at("strategy.kind", "deepspeed")
        if self.model_fields_set.intersection(_PARTS):
            before = Edit(("strategy",), {"kind": "deepspeed", "ranks": self.ranks})
        yield from self.cache_tunables(plan)
        yield from inference_moves(plan, ranks=self.ranks, before=(before,))

    @classmethod
    def instead(
        cls, other: Strategy, model: ModelShape, workload: Any, machine: Machine, _gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield GPUs that hold the weights together, where vLLM does not run."""
        if lacks_vllm(machine):
            yield (Tunable("baseline", without_offloading(cls, other, model, workload, machine)),)

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> InferencePlan:
        """Apply the strategy. Raises InputError for a model that cannot be divided equally."""
        check_capability(TRANSFORMERS, model, machine)
        cache = self.cache_of(model, workload, machine)
        if not self._shares:
            return ResidentPlan(
                model=model, workload=workload, machine=machine, ranks=self.ranks, cache=cache
            )
        plan = SharedPlan(
            model=model,
            workload=workload,
            machine=machine,
            degrees=self.degrees,
            compiled=False,
            cache=cache,
        )
        _ = plan.divided  # raises for degrees that do not divide the model
        return plan


_OFFLOAD = "set strategy.kind: deepspeed, which offloads them"


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
    generates: ClassVar = True

    @property
    def degrees(self) -> Degrees:  # type: ignore[override]  # given by the number of copies
        """Numbers of parts, stages and replicas: every GPU has a replica."""
        return Degrees(1, 1, self.ranks)


@dataclass(frozen=True)
class SharedPlan(TensorParallelPlan):
    """A SharedPlan is a plan of a model whose parts on several GPUs transformers' eager code runs."""

    @property
    def generates(self) -> bool:  # type: ignore[override]  # computed here
        """Also of whole layers; of divided ones the recorded runs have grouped products."""
        return self.degrees.tensor == 1

    @property
    def facts(self) -> Facts:
        """Also what transformers does not have: stages, and models whose layers it does not divide."""
        found, model, stored = super().facts, self.model, QUANTIZATIONS.get(self.model.quantization or "")
        if self.degrees.pipeline > 1:
            found = found.what_if("transformers has no pipeline of several processes")
        if self.degrees.tensor > 1 and not model.traits.tensor_plan:
            found = found.what_if(f"transformers does not divide layers of {model.family} among GPUs")
        if stored is not None and stored.mixture is not None:
            found = found.what_if("transformers writes weights of a GGUF file in full when it loads them")
        return found


class TransformersTraining(Strategy):
    """A TransformersTraining strategy trains with a full copy of all states on every GPU, without offloading
    and without ZeRO."""

    serves: ClassVar = frozenset({"training"})
    traits: ClassVar = ProgramTraits(title="transformers")
    elsewhere: ClassVar = {"kv_cache": "training keeps no cache; remove the section"}

    kind: Literal["transformers"] = "transformers"
    mixed_precision: bool = True
    """Whether trained weights, gradients and moments are in single precision and products have the model's
    type (``torch.autocast``, ``bf16`` of Trainer); if not, all have the model's type, and adapters that
    ``lora.autocast_adapter_dtype`` keeps in single precision compute in it."""
    optim: Literal["adamw_torch_fused", "adamw_torch"] = "adamw_torch_fused"
    """AdamW of PyTorch as one kernel for many tensors, Trainer's default since PyTorch 2.8, or as a sequence
    of kernels, PyTorch's own default."""
    lora: Lora | None = None
    """Adapters that are trained instead of all weights."""

    @property
    def description(self) -> Description:
        """The program that reads the exported files, and what is trained."""
        found = super().description
        return found if self.lora is None else found._replace(program=PEFT, trains="adapters")

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the files with which PEFT makes adapters."""
        return {} if self.lora is None else self.lora.files(plan.model, divided=False)

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield HBM as the place of all states, ZeRO instead of a full copy on each GPU, with the weights on
        each tier, its stages, and adapters."""
        yield _COPIES
        if plan is None:
            return
        from simoffload.strategies.programs.zero_training import stages_of_zero

        above = tuple(stages_of_zero(plan))
        yield from training_moves(plan, above, self.ranks, None, *_ZERO)
        yield Tunable("partition", above)
        if self.lora is not None:
            yield Tunable("precision", quantized_base(plan.model))
            return
        yield Tunable("adapters", lora_moves(plan.model, self.kind, self.ranks))

    def plan(self, model: ModelShape, workload: Training, machine: Machine) -> Plan:
        """Apply the strategy: plain data parallelism (ZeRO stage 0)."""
        check_capability(TRANSFORMERS, model, machine)
        from simoffload.strategies.programs.zero_training import plan_whole_copies

        return plan_whole_copies(
            model,
            workload,
            machine,
            ranks=self.ranks,
            lora=self.lora,
            mixed_precision=self.mixed_precision,
            fused=self.optim == "adamw_torch_fused",
        )


_COPIES = Placements(
    now=lambda: Placement("hbm", "hbm"),
    possible=(Placement("hbm"), Placement("hbm", "hbm")),  # inference has no optimizer
    refusal="every GPU holds a whole copy",
    name=RESIDENT,
    phrase=WHOLE_COPIES,
    copied=True,
)
_OF_STAGES = CacheEngine("a pipeline of transformers, as it is simulated,")
_ZERO = (Edit.at("strategy.kind", "deepspeed"),)


def whole_copies(plan: Plan) -> Plan | None:
    """Return the plan of the same work with a copy of the weights in each GPU; None if this plan has one, or
    divides layers among GPUs, or has kernels of its own."""
    if not isinstance(plan, InferencePlan) or plan.fused or plan.machine.row(target(plan)).is_gpu:
        return None
    if plan.degrees.tensor > 1 or plan.driven > 1:
        return None
    return ResidentPlan(plan.model, plan.workload, plan.machine, plan.degrees.ranks)


_PROGRAM = """\
# torchrun --nproc-per-node {gpus} tensor_parallel.py
import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

{advice}
# Before transformers 5.18 write tp_plan="auto" instead of distributed_config.
model = AutoModelForCausalLM.from_pretrained(
    "{name}", dtype=torch.{dtype}, distributed_config=DistributedConfig(tp_plan="auto")
)
"""
