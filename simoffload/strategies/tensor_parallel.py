"""Weights in the HBM of several GPUs: tensor, pipeline and data parallelism, the baseline without offloading.

Each GPU has a part of every layer (``divided``). The results of the GPUs of a stage are summed twice in each
layer by a ring all-reduce, in which every GPU receives 2 (n - 1) / n of the bytes; the ring takes the path
and the time per call of ZeRO's all-gather (``Machine.gather``). The stages of a pipeline have equal numbers
of layers. A prefill goes through them in as many micro-batches as there are stages (at most one for each
sequence), a decode step with all sequences at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from math import ceil, prod
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.models.quantization import QUANTIZATIONS
from simoffload.results import Change, peak_uses
from simoffload.strategies.base import Placement, Plan, Strategy, refused
from simoffload.strategies.divided import Degrees
from simoffload.strategies.ds_config.sections import OffloadParamSection
from simoffload.strategies.kv_cache import TRANSFORMERS, VLLM, CacheEngine, CachingStrategy
from simoffload.strategies.requirements import (
    TRANSFORMERS as TRANSFORMERS_PROGRAM,
)
from simoffload.strategies.requirements import (
    VLLM as VLLM_PROGRAM,
)
from simoffload.strategies.requirements import check_capability, check_dtype, lacks
from simoffload.strategies.tensor_parallel_plan import TensorParallelPlan
from simoffload.strategies.terms import SERVED
from simoffload.strategies.vllm_connector import connector_command
from simoffload.strategies.vllm_engine import (
    UTILIZATION,
    VllmEngine,
    check_blocks,
    checked_utilization,
    default_tokens,
    most_utilization,
)
from simoffload.strategies.zero import inference_moves
from simoffload.workload import Inference

Degree = Annotated[int, Field(strict=True, ge=1, le=65_536)]
_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class DividedStrategy(CachingStrategy):
    """A DividedStrategy divides the model among GPUs: the common base of strategies with tensor, pipeline and
    data parallelism."""

    serves: ClassVar = frozenset({"inference"})
    uses_storage: ClassVar = False
    evidence: ClassVar = "tensor_parallel"
    gpu_keys: ClassVar = _DEGREES
    formats: ClassVar = ("fp8", "int4-g128")
    without_vllm: ClassVar[str] = "strategy.kind to zero_inference or accelerate"
    """Settings that do without vLLM."""

    tensor_parallel_size: Degree = 1
    """Number of GPUs that share every layer."""
    pipeline_parallel_size: Degree = 1
    """Number of pipeline stages, each with an equal part of the layers."""
    data_parallel_size: Degree = 1
    """Number of replicas of the model, each of which processes ``batch_size`` sequences."""
    max_num_batched_tokens: Annotated[int, Field(strict=True, ge=1, le=10**8)] | None = None
    """Number of tokens that vLLM computes at once at most: a prefill of more is computed in chunks; None: as
    ``vllm serve`` chooses, 16,384 with 160 GiB of GPU memory and more, 8,192 with 70 GiB and more except on
    an A100, else 2,048."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = UTILIZATION
    """Fraction of the GPU's memory that vLLM fills, which must be free when it starts; less by default where
    a display takes some of a small GPU."""
    kv_blocks: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    """Number of blocks of 16 tokens that vLLM's cache has on each GPU (``--num-gpu-blocks-override``); None:
    as many as fit."""

    @classmethod
    def evidence_of(cls, settings: Mapping[str, Any]) -> str:
        """Return the runs of vLLM for compiled code, else those of the strategy."""
        compiled = settings.get("compiled", cls.model_fields["compiled"].default)
        return SERVED if compiled else cls.evidence

    @model_validator(mode="before")
    @classmethod
    def _ranks_are_the_product(cls, data: Any) -> Any:
        """Set ``ranks``, which may be left out."""
        degrees: list[Any] = [data.get(key, 1) for key in _DEGREES] if isinstance(data, dict) else [None]
        if not all(type(one) is int for one in degrees):
            return data
        ranks = prod(degrees)
        if data.get("ranks", ranks) != ranks:
            product = " x ".join(_DEGREES)
            raise ValueError(f"ranks is {product}, which is {ranks}, not {data['ranks']}; leave ranks out")
        return {**data, "ranks": ranks}

    @property
    def _has_engine(self) -> bool:
        """Whether what is simulated is vLLM."""
        return True

    def engine(self, workload: Inference, machine: Machine) -> VllmEngine | None:
        """Return the limits of vLLM's engine; None for another program. Raises InputError for those that vLLM
        refuses, or that another program does not have."""
        if self._has_engine:
            if self.kv_blocks is not None:
                check_blocks(self.kv_blocks, sequences=workload.batch_size, tokens=workload.max_context)
            return VllmEngine.of(
                machine,
                sequences=workload.batch_size,
                tokens=self.max_num_batched_tokens,
                utilization=self._utilization(machine),
                blocks=self.kv_blocks,
            )
        for key in ("max_num_batched_tokens", "gpu_memory_utilization", "kv_blocks"):
            if getattr(self, key) != type(self).model_fields[key].default:
                text = (
                    "is an option of vLLM, and eager code of transformers is simulated; set compiled to true"
                )
                raise InputError.at(f"strategy.{key}", f"{text}, or remove it")
        return None

    def _utilization(self, machine: Machine) -> float:
        """Return the fraction of memory to fill. Raises InputError for one with which vLLM does not start."""
        stated = "gpu_memory_utilization" in self.model_fields_set
        return checked_utilization(self.gpu_memory_utilization if stated else None, machine)

    def served(self, model: ModelShape, machine: Machine) -> ModelShape:
        """Return the model as vLLM runs it. Raises InputError for a model or a GPU that vLLM refuses."""
        check_dtype(model)
        form = self.kv_cache.format
        check_capability(VLLM_PROGRAM, model, machine, cache_format=form, without=self.without_vllm)
        return model.as_served()

    def engine_options(self, plan: Plan) -> tuple[str, ...]:
        """Return the options of ``vllm serve`` for limits that are not its defaults."""
        assert isinstance(plan, TensorParallelPlan)
        engine = plan.engine
        tokens = None if engine is None else engine.tokens
        named: dict[str, float | None] = {
            "max-num-batched-tokens": None if tokens == default_tokens(plan.machine) else tokens,
            "num-gpu-blocks-override": self.kv_blocks,
        }
        if engine is not None and engine.utilization != UTILIZATION:
            named["gpu-memory-utilization"] = engine.utilization
        return tuple(f"--{name} {value}" for name, value in named.items() if value is not None)

    def moves(self, plan: Plan) -> Iterator[tuple[Change, ...]]:
        """Yield other placements of the cache."""
        return self.cache_moves(plan)

    @property
    def degrees(self) -> Degrees:
        """Numbers of parts, stages and replicas."""
        return Degrees(self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size)

    @property
    def replicas(self) -> int:
        """Number of replicas of the model."""
        return self.data_parallel_size

    def spread(self, gpus: int) -> tuple[Edit, ...]:
        """Return the edit that divides each layer among as many GPUs as make ``gpus`` in all; none if that
        is not a whole number."""
        each, rest = divmod(gpus, self.pipeline_parallel_size * self.data_parallel_size)
        return () if rest else (Edit.at("strategy.tensor_parallel_size", each),)


class TensorParallel(DividedStrategy):
    """A TensorParallel strategy keeps the weights in the HBM of several GPUs, divided among them."""

    placement_name: ClassVar = "tensor parallel"
    without_vllm: ClassVar = "strategy.compiled to false (transformers), or strategy.kind to zero_inference"
    placement_words: ClassVar = "parts of {} in each GPU"

    kind: Literal["tensor_parallel"] = "tensor_parallel"
    compiled: Annotated[bool, Field(strict=True)] = False
    """Whether kernels are fused, those of attention whatever ``model.attention`` is, and replayed from CUDA
    graphs, as in vLLM and with torch.compile, so that the host thread does not launch them one by one; false:
    transformers' eager code."""

    def places(self, _machine: Machine) -> Placement:
        """Return HBM as the place of the weights."""
        return Placement("hbm")

    def placements(self, machine: Machine) -> tuple[Placement, ...]:
        """Return HBM, the only placement."""
        return (self.places(machine),)

    def retarget(self, placement: Placement, machine: Machine) -> tuple[Edit, ...]:
        """Return no edits if the placement is HBM. Raises PlacementError for all other placements."""
        if placement not in self.placements(machine):
            raise refused(placement, self.kind, "offload with strategy.kind zero_inference")
        return ()

    def moves(self, plan: Plan) -> Iterator[tuple[Change, ...]]:
        """Yield the cache in host memory, and ZeRO-Inference with the weights on each tier."""
        before = (Edit(("strategy",), {"kind": "zero_inference", "ranks": self.ranks}),)
        size = int(OffloadParamSection().buffer_size)
        elsewhere = inference_moves(plan, ranks=self.ranks, buffer_size=size, before=before)
        return chain(self.cache_moves(plan), elsewhere)

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> TensorParallelPlan:
        """Apply the strategy. Raises InputError for a model that cannot be divided equally."""
        if self._types_vllm(model):
            served = self.served(model, machine)
            model = served if self._uses_vllm else model
        else:
            check_capability(TRANSFORMERS_PROGRAM, model, machine)
        plan = TensorParallelPlan(
            model=model,
            workload=workload,
            machine=machine,
            degrees=self.degrees,
            compiled=self.compiled,
            cache=self.cache_of(model, workload, machine),
            engine=self.engine(workload, machine),
        )
        assert plan.divided  # raises for degrees that do not divide the model
        return plan

    @classmethod
    def baseline(
        cls, other: Strategy, model: ModelShape, workload: Any, machine: Machine
    ) -> tuple[Edit, ...]:
        """Return edits with which GPUs hold the weights together, if they can with what vLLM fills of their
        memory: those of ``other``, or the smallest larger number of GPUs of a host or of hosts, or fewer
        hosts.

        All of them work on the sequences of all replicas of ``other``.
        """
        batch = workload.batch_size * other.replicas
        work = workload.model_copy(update={"batch_size": batch})
        each = machine.gpus_per_node
        larger = (one for one in range(other.gpus + 1, machine.gpus + 1) if one < each or one % each == 0)
        for gpus in (other.gpus, *larger, *range((other.gpus - 1) // each * each, 0, -each)):
            for sizes in arrangements(gpus, machine):
                strategy = {"kind": "tensor_parallel", **sizes, "compiled": not lacks(VLLM_PROGRAM, machine)}
                with suppress(InputError):
                    plan = cls.model_validate(strategy).plan(model, work, machine)
                    if all(use.fits for use in peak_uses(plan.memory_stages, machine.tiers)):
                        return Edit(("strategy",), strategy), Edit.at("workload.batch_size", batch)
        return ()

    @property
    def program(self) -> str:
        """The program that the exported command starts."""
        return "vLLM" if self._uses_vllm else "transformers or vLLM"

    @property
    def cache_engine(self) -> CacheEngine:  # type: ignore[override]  # it depends on who runs the plan
        """Cache of vLLM or of transformers; of eager code in vLLM, whose kernels are not simulated, in the
        model's type."""
        if not self._uses_vllm:
            return TRANSFORMERS
        return VLLM if self.compiled else VLLM._replace(formats=())

    @property
    def _has_engine(self) -> bool:
        """Whether what is simulated is vLLM: compiled code, which vLLM has, too."""
        return self.compiled

    @property
    def _uses_vllm(self) -> bool:
        return self.compiled or self.ranks > self.tensor_parallel_size

    def _types_vllm(self, model: ModelShape) -> bool:
        """Whether the command to type is vLLM's: also of eager code, unless transformers can divide the model
        and keeps its weights as they are stored."""
        stored = QUANTIZATIONS.get(model.quantization or "")
        in_full = stored is not None and stored.mixture is not None  # so transformers loads GGUF files
        return self._uses_vllm or in_full or not (self.ranks == 1 or model.traits.tensor_plan)

    def exports(self, plan: Plan) -> dict[str, Any]:
        """Return the command that serves the model, or, for transformers' eager code, a program."""
        model = plan.model
        if not self._types_vllm(model):
            name, dtype, advice = model.unquantized_name, model.dtype, _advice(model.quantization)
            program = _PROGRAM.format(name=name, dtype=dtype, gpus=self.ranks, advice=advice)
            return {"tensor_parallel.py": program, **self.generation_config()}
        assert isinstance(plan, TensorParallelPlan)
        command = vllm_command(plan, self.degrees, *self.engine_options(plan), compiled=self.compiled)
        return {"vllm-serve.sh": command}


def arrangements(gpus: int, machine: Machine) -> Iterator[dict[str, int]]:
    """Yield degrees of parallelism for a number of GPUs: a pipeline stage for each host, then more stages,
    then layers that are divided among GPUs of several hosts."""
    hosts = machine.nodes_of(gpus)
    possible = [one for one in range(1, gpus + 1) if gpus % one == 0]
    more, fewer = (one for one in possible if one >= hosts), (one for one in possible[::-1] if one < hosts)
    for stages in (*more, *fewer):
        yield {"tensor_parallel_size": gpus // stages, "pipeline_parallel_size": stages}


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


def _advice(quantization: str | None) -> str:
    """Return the comment on the name of the model in an exported command."""
    if quantization is None:
        return "# Replace the name by your files or one on the Hub."
    return f"# Replace the name by your files or one on the Hub,\n# with weights stored as {quantization}."


_AT_LOADING = {"fp8": "fp8"}
"""Options of vLLM that quantize 16-bit weights at loading, by format (``Fp8OnlineLinearMethod``)."""


def _filled(plan: Plan) -> float:
    """Return which fraction of their memory the GPUs need; above 1 if they are too small."""
    (stage,) = plan.memory_stages
    return sum(one.size for one in stage.terms if one.tier == "hbm") / plan.machine.tiers["hbm"].capacity


def vllm_command(plan: TensorParallelPlan, degrees: Degrees, *more: str, compiled: bool) -> str:
    """Return the command that serves the model of a plan with vLLM, with ``more`` options."""
    work = plan.workload
    sizes = zip(("tensor", "pipeline", "data"), degrees, strict=True)
    options = [f"--{name}-parallel-size {size}" for name, size in sizes if size > 1]
    options += [f"--dtype {plan.model.dtype}", f"--max-model-len {work.prompt_length + work.output_length}"]
    options += [f"--max-num-seqs {work.batch_size}", *more, *([] if compiled else ["--enforce-eager"])]
    if plan.engine is None:
        filled = ceil(100 * _filled(plan)) / 100
        fills = min(most_utilization(plan.machine), filled if UTILIZATION < filled <= 1 else UTILIZATION)
        options += [f"--gpu-memory-utilization {fills:g}"] if fills != UTILIZATION else []
    if plan.cache.format is not None:
        options.append(f"--kv-cache-dtype {plan.cache.format}")
    before = ""
    if (moves := plan.block_moves) is not None:
        (stage,) = plan.memory_stages
        command = connector_command(moves, stage.terms, compiled=compiled)
        options.append(command.option)
        before = command.before
    stored = plan.model.quantization
    if stored in _AT_LOADING:
        options.append(f"--quantization {_AT_LOADING[stored]}")
        stored = None
    lines = " \\\n  ".join((f"vllm serve {quote(plan.model.unquantized_name)}", *options))
    return f"{_advice(stored)}\n{before}{lines}\n"
