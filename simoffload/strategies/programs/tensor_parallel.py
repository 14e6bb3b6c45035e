"""Weights in the HBM of several GPUs: tensor, pipeline and data parallelism, the baseline without offloading.

Each GPU has a part of every layer (``divided``). The results of the GPUs of a stage are summed twice in each
layer by a ring all-reduce, in which every GPU receives 2 (n - 1) / n of the bytes; the ring takes the path
and the time per call of ZeRO's all-gather (``Machine.gather``). The stages of a pipeline have equal numbers
of layers. A prefill goes through them in as many micro-batches as there are stages (at most one for each
sequence), a decode step with all sequences at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import QUANTIZATIONS, ModelShape, Sequences
from simoffload.results import CacheBlocks, Change, Facts, peak_uses
from simoffload.strategies.base import (
    SERVED,
    SERVED_OTHERS,
    Basis,
    Description,
    Held,
    Placements,
    Plan,
    ServingLimits,
    Sizes,
    Strategy,
    Tunable,
    Tunables,
    memory_stages,
    memory_tunables,
)
from simoffload.strategies.cache.kv_cache import (
    DEFAULT,
    TRANSFORMERS,
    VLLM,
    VLLM_BLOCK,
    CacheEngine,
    CachingStrategy,
    KvCache,
)
from simoffload.strategies.divided import Degrees
from simoffload.strategies.memory import CACHE_TERM, cache_term, working_memory
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.passes.timing import CAPTURED, arithmetic_beyond, experts_kernel
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.vllm_engine import (
    BLOCKS,
    FEW_SEQUENCES,
    LEAST_TOKENS,
    MOST_SEQUENCES,
    UTILIZATION,
    EngineCode,
    Stored,
    VllmEngine,
    block_bytes,
    cache_groups,
    chosen_graph,
    connector_command,
    default_sequences,
    default_tokens,
    fuller,
    graph_sizes,
    most_utilization,
    needed_blocks,
    served_runs,
    stored_weights,
    tight,
    unserved,
)
from simoffload.strategies.programs.zero_strategy import inference_moves
from simoffload.strategies.requirements import NO_VLLM, check_capability, check_dtype, lacks_vllm
from simoffload.workload import Inference

_MORE = "raise tensor_parallel_size or pipeline_parallel_size"
_LEAST_TOKENS = 256
"""Fewest tokens at once that are tried to save memory: fewer than a GPU needs for its full speed; our
choice."""


@dataclass(frozen=True)
class TensorParallelPlan(InferencePlan):
    """A TensorParallelPlan is a plan of a model that several GPUs hold together."""

    model: ModelShape
    workload: Inference
    machine: Machine
    degrees: Degrees
    compiled: bool
    cache: KvCache = DEFAULT
    engine: VllmEngine | None = None
    fewer: ClassVar = _MORE

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]  # computed here
        """Warnings about key-value heads that several GPUs keep, and about the connector."""
        heads, gpus = self.model.num_key_value_heads, self.degrees.tensor
        connector = self.cache.connector
        found = () if connector is None else connector.checked(self.model, self.workload, self.machine)
        if self.engine is not None:
            stage = max(self.divided.stages, key=lambda one: one.num_hidden_layers)
            short = self.engine.short(stage, self.machine)
            found = (*found, *tight(self.engine.utilization, self.machine), *short)
            found = (*found, self.engine.lowered) if self.engine.lowered else found
        if gpus <= heads:
            return found
        return (
            f"each of {heads} key-value heads is kept by {gpus // heads} GPUs, as there are {gpus}",
            *found,
        )

    @property
    def stored_weights(self) -> tuple[Stored, ...]:
        """Forms in which the weights are stored, and the kernels that read them."""
        native = self.machine.accelerator.compute.float8 is not None
        return stored_weights(self.modules, native_float8=native)

    @property
    def basis(self) -> Basis:
        """Also, of compiled code, costs of launching kernels and calling pieces that are not in CUDA graphs,
        of calling experts and of preparing a step, and the rates of kernels for the weights' formats and of
        experts."""
        found = super().basis
        if self.compiled:
            costs = self.machine.host.compiled_costs
            called = costs.mxfp4 if experts_kernel(self.model) == "mxfp4" else costs.experts
            calls = [costs.piece, called] if self.model.num_experts else [costs.piece]
            found = found._replace(host_costs=(costs.kernel, costs.step, *calls))
        if not self.fused:
            return found
        kernels, experts = [one.kernel for one in self.stored_weights], bool(self.model.num_experts)
        rates = self.machine.accelerator.kernels.deciding(kernels, experts=experts)
        others = self.compiled and any(one.form or one.experts for one in self.stored_weights)
        evidence = SERVED_OTHERS if others else ""
        return found._replace(gpu_rates=rates, evidence=evidence, uncompared=tuple(self._uncompared()))

    def _uncompared(self) -> list[str]:
        """Return what no run of vLLM did with which predictions were compared: see ``served_runs``."""
        gpu, batch = self.machine.accelerator.name, self.workload.batch_size
        found = list(unserved(self.stored_weights, gpu))
        if self.model.latent_width is not None:
            found.append("served latent attention")
        if self.degrees.ranks > 1:
            found.append("served from several GPUs")
        known = served_runs(gpu) is not None
        if batch > (MOST_SEQUENCES if known else FEW_SEQUENCES):
            found.append(f"served {batch} sequences at once on {gpu}")
        return found if self.compiled else [*found, "launched fused kernels one by one"]

    def _working_memory(
        self, part: ModelShape, workload: Inference, cache: tuple[Held, ...]
    ) -> tuple[Held, ...]:
        """Return the memory of a workload, with the limits of vLLM's engine."""
        if self.engine is None:
            return super()._working_memory(part, workload, cache)
        program = self.engine.memory(part, self.machine, sequences=workload.batch_size)
        at_once = min(self.engine.tokens, workload.batch_size * workload.prompt_length)
        return working_memory(part, workload, self.machine, cache=cache, program=program, at_once=at_once)

    @property
    def captured(self) -> int:
        """Most tokens of a pass for which the engine captures CUDA graphs."""
        return CAPTURED if self.engine is None else self.engine.captured

    @property
    def _paged(self) -> VllmEngine | None:
        """The engine, if its cache is in blocks in HBM."""
        return self.engine if self.cache.tier == "hbm" and self.fused else None

    def cache_memory(self, part: ModelShape, *, copies: int) -> tuple[Held, ...]:
        """Return the memory of the cache: of vLLM's, the blocks that are stated, or that the sequences need,
        and the states of linear attention."""
        if (engine := self._paged) is None:
            return super().cache_memory(part, copies=copies)
        number, states = engine.blocks or engine.needed, self.workload.batch_size * part.state_bytes
        term = cache_term("hbm", number * self._block_bytes(engine, part) + states)
        return (term if engine.blocks is None else term._replace(remedy="lower kv_blocks"),)

    def _block_bytes(self, engine: VllmEngine, stage: ModelShape) -> int:
        return block_bytes(stage, engine.groups, element=self.cache.element_bytes(self.model.dtype_bytes))

    @cached_property
    def room(self) -> int | None:
        """Number of blocks of the paged cache for which each GPU has memory; None without one in HBM, and of
        layers that cache nothing."""
        engine, tier = self._paged, self.machine.tiers["hbm"]
        each = 0 if engine is None else max(self._block_bytes(engine, one) for one in self.divided.stages)
        if not each:
            return None
        shared = {"hbm", tier.pool}
        used = sum(one.size for one in self.held if one.tier in shared and one.name != CACHE_TERM)
        used += self.workload.batch_size * self.fullest.state_bytes
        return max(0, tier.capacity - used) // each

    @cached_property
    def cache_blocks(self) -> CacheBlocks | None:
        """Blocks of the paged cache, as they are stated, or for which each GPU has memory."""
        engine = self._paged
        number = None if engine is None else engine.blocks or self.room
        if engine is None or number is None:
            return None
        context = -(-self.workload.max_context // VLLM_BLOCK) * VLLM_BLOCK
        return CacheBlocks(
            number,
            VLLM_BLOCK,
            number * context // engine.groups.held(context, VLLM_BLOCK),
            engine.utilization,
            stated=engine.blocks is not None,
            groups=engine.groups.number,
        )

    @property
    def serving_limits(self) -> ServingLimits | None:
        """Limits of vLLM's engine, with as many sequences as it runs by default; None for another program and
        without a paged cache in HBM."""
        engine, blocks = self.engine, self.cache_blocks
        if engine is None or blocks is None:
            return None
        sequences = min(engine.tokens, default_sequences(self.machine))
        most = engine.captured
        if most == CAPTURED:  # the default, of which vLLM takes less with few sequences
            most = chosen_graph(self.model, sequences)
        graphs = graph_sizes(most) if self.compiled else ()
        return ServingLimits(
            engine.tokens, sequences, blocks.number, blocks.size, graphs, engine.groups, self.room
        )

    @property
    def facts(self) -> Facts:
        """Also the number of chunks of a prefill, and the blocks of the cache."""
        return replace(super().facts, cache_blocks=self.cache_blocks, chunks=len(self.chunks))

    @property
    def chunks(self) -> Sequence[tuple[Sequences, ...]]:
        """Parts in which vLLM computes the prefill, one after the other, without those of pipeline stages."""
        work, moves = self.workload, self.block_moves
        loaded = 0 if moves is None else moves.connector.loaded
        batch = (Sequences(work.batch_size, work.prompt_length - loaded, work.prompt_length),)
        return [batch] if self.engine is None else self.engine.chunks(batch)

    def _extrapolations(self) -> Iterable[str]:
        work, engine = self.workload, self.engine
        if engine is not None and engine.tokens < work.batch_size * work.prompt_length:
            work = work.model_copy(update={"batch_size": 1, "prompt_length": engine.tokens})
        return arithmetic_beyond(self.divided.stages[-1], work, self.machine)

    def micro_batches(self, forward: ForwardPass) -> Sequence[tuple[Sequences, ...]]:
        """Return the parts in which a pass goes through the stages, none with more tokens than vLLM computes
        at once."""
        parts = super().micro_batches(forward)
        if self.engine is None:
            return parts
        return [chunk for part in parts for chunk in self.engine.chunks(part)]


Degree = Annotated[int, Field(strict=True, ge=1, le=65_536)]
_DIVIDED, _ALONE = "parts of {} in each GPU", "{} in the GPU"
"""Phrases for weights that are divided among GPUs, and that one GPU has."""
_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_ENGINE_KEYS = (
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_blocks",
    "max_cudagraph_capture_size",
)


class DividedStrategy(CachingStrategy):
    """A DividedStrategy divides the model among GPUs: the common base of strategies with tensor, pipeline and
    data parallelism."""

    serves: ClassVar = frozenset({"inference"})
    traits: ClassVar = CachingStrategy.traits._replace(
        evidence="tensor_parallel", formats=("fp8", "int4-g128"), gpu_keys=_DEGREES
    )

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
    a display or CUDA graphs take more than the rest of a small GPU."""
    kv_blocks: Annotated[int, Field(strict=True, ge=1, le=10**9)] | None = None
    """Number of blocks that vLLM's cache has on each GPU (``--num-gpu-blocks-override``), each of 16 tokens
    in the layers of one group: all layers, or as many as have full attention in models with sliding layers,
    too; None: as many as fit."""
    max_cudagraph_capture_size: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    """Most tokens of a step whose kernels are in CUDA graphs; the host launches those of a step with more.
    None: as vLLM chooses, 512, and 1,024 for gpt-oss."""

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
    def without_vllm(self) -> str:
        """Settings that do without vLLM."""
        return "strategy.kind to zero_inference or accelerate"

    @property
    def _in_gpus(self) -> str:
        """Phrase for weights that GPUs hold."""
        return _ALONE if self.tensor_parallel_size * self.pipeline_parallel_size == 1 else _DIVIDED

    @property
    def _is_compiled(self) -> bool:
        """Whether steps are compiled and captured in CUDA graphs."""
        return True

    def _with_v1_runner(self, model: ModelShape) -> bool:
        """Return whether vLLM runs the model with its model runner V1."""
        return model.traits.v1_runner and bool(model.num_experts)

    @property
    def _has_engine(self) -> bool:
        """Whether what is simulated is vLLM."""
        return True

    def engine(self, model: ModelShape, workload: Inference, machine: Machine) -> VllmEngine | None:
        """Return the limits of vLLM's engine; None for another program. Raises InputError for those that vLLM
        refuses, or that another program does not have."""
        if self.kv_blocks is not None and self.kv_cache.plain.tier != "hbm":
            text = f"are of a cache in HBM, and kv_cache.tier is {self.kv_cache.plain.tier}; remove the key"
            raise InputError.at("strategy.kv_blocks", text)
        if self._has_engine:
            stated = "gpu_memory_utilization" in self.model_fields_set
            alone = self.tensor_parallel_size * self.pipeline_parallel_size == 1
            code = EngineCode(compiled=self._is_compiled, alone=alone, v1=self._with_v1_runner(model))
            return VllmEngine.of(
                model,
                machine,
                workload,
                tokens=self.max_num_batched_tokens,
                utilization=self.gpu_memory_utilization if stated else None,
                blocks=self.kv_blocks,
                captured=self.max_cudagraph_capture_size,
                code=code,
                connector=self.kv_cache.connector,
            )
        for key in _ENGINE_KEYS:
            if getattr(self, key) != type(self).model_fields[key].default:
                text = (
                    "is an option of vLLM, and eager code of transformers is simulated; set compiled to true"
                )
                raise InputError.at(f"strategy.{key}", f"{text}, or remove it")
        return None

    def check_blocks(
        self,
        model: ModelShape,
        *,
        sequences: int,
        length: int,
        size: int = VLLM_BLOCK,
        remedy: str = BLOCKS,
    ) -> None:
        """Raise InputError for fewer blocks of ``size`` tokens than sequences of so many tokens need, on
        whatever machine; ``remedy`` as in ``needed_blocks``."""
        groups = cache_groups(model, step=self.max_num_batched_tokens or max(sequences, LEAST_TOKENS))
        needed_blocks(
            groups, sequences=sequences, length=length, stated=self.kv_blocks, size=size, remedy=remedy
        )

    def served(self, model: ModelShape, machine: Machine) -> ModelShape:
        """Return the model as vLLM runs it. Raises InputError for a model or a GPU that vLLM refuses."""
        check_dtype(model)
        form = self.kv_cache.format
        check_capability(VLLM.program, model, machine, cache_format=form, without=self.without_vllm)
        return model.as_served()

    def engine_options(self, plan: Plan) -> tuple[str, ...]:
        """Return the options of ``vllm serve`` for limits that are not its defaults."""
        assert isinstance(plan, TensorParallelPlan)
        engine = plan.engine
        tokens = None if engine is None else engine.tokens
        usual = not plan.compiled or plan.captured == chosen_graph(plan.model, plan.workload.batch_size)
        named: dict[str, float | None] = {
            "max-num-batched-tokens": None if tokens == default_tokens(plan.machine) else tokens,
            "num-gpu-blocks-override": self.kv_blocks,
            "max-cudagraph-capture-size": None if usual else plan.captured,
        }
        if engine is not None and engine.utilization != UTILIZATION:
            named["gpu-memory-utilization"] = engine.utilization
        return tuple(f"--{name} {value}" for name, value in named.items() if value is not None)

    def engine_tunables(self, plan: TensorParallelPlan) -> Iterator[Tunable]:
        """Yield fewer tokens at once, and more of the GPU's memory."""
        engine, least = plan.engine, max(plan.workload.batch_size, _LEAST_TOKENS)
        if engine is not None:
            halves = [now for part in range(1, 10) if (now := engine.tokens >> part) >= least]
            key = "max_num_batched_tokens"
            yield from memory_tunables(key, ("strategy", key), engine.tokens, halves)
            key, most = "gpu_memory_utilization", engine.most(plan.model, plan.machine)
            larger = [one for one in fuller(plan.machine) if engine.utilization < one <= most]
            yield from memory_tunables(key, ("strategy", key), engine.utilization, larger)

    @property
    def degrees(self) -> Degrees:
        """Numbers of parts, stages and replicas."""
        return Degrees(self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size)

    @property
    def replicas(self) -> int:
        """Number of replicas of the model."""
        return self.data_parallel_size

    def sizes(self, batch_size: int = 1) -> Sizes:
        """Return the edits to other batches, and those that divide each layer among as many GPUs as make a
        number in all; none if that is not a whole number."""

        def divided(gpus: int) -> tuple[Edit, ...]:
            each, rest = divmod(gpus, self.pipeline_parallel_size * self.data_parallel_size)
            return () if rest else (Edit.at("strategy.tensor_parallel_size", each),)

        return super().sizes(batch_size)._replace(gpus=divided)


def _evidence(settings: Mapping[str, Any]) -> str:
    """Return the runs of vLLM for compiled code, else those of transformers."""
    return SERVED if settings.get("compiled", False) else "tensor_parallel"


class TensorParallel(DividedStrategy):
    """A TensorParallel strategy keeps the weights in the HBM of several GPUs, divided among them."""

    traits: ClassVar = DividedStrategy.traits._replace(evidence=_evidence)

    kind: Literal["tensor_parallel"] = "tensor_parallel"
    compiled: Annotated[bool, Field(strict=True)] = False
    """Whether kernels are fused, those of attention whatever ``model.attention`` is, and replayed from CUDA
    graphs, as in vLLM and with torch.compile, so that the host thread does not launch them one by one; false:
    transformers' eager code."""

    def tunables(self, _machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield HBM as the only place of the weights, limits of vLLM's engine, the cache in host memory, and
        ZeRO-Inference with the weights on each tier."""
        yield Placements(refusal="its weights stay in the GPUs", name="tensor parallel", phrase=self._in_gpus)
        if not isinstance(plan, TensorParallelPlan):
            return
        before = (Edit(("strategy",), {"kind": "zero_inference", "ranks": self.ranks}),)
        yield from self.cache_tunables(plan)
        yield from inference_moves(plan, ranks=self.ranks, before=before)
        yield from self.engine_tunables(plan)

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> TensorParallelPlan:
        """Apply the strategy. Raises InputError for a model that cannot be divided equally."""
        if self._types_vllm(model):
            served = self.served(model, machine)
            model = served if self._uses_vllm else model
        else:
            check_capability(TRANSFORMERS.program, model, machine)
        plan = TensorParallelPlan(
            model=model,
            workload=workload,
            machine=machine,
            degrees=self.degrees,
            compiled=self.compiled,
            cache=self.cache_of(model, workload, machine),
            engine=self.engine(model, workload, machine),
        )
        assert plan.divided  # raises for degrees that do not divide the model
        return plan

    @classmethod
    def instead(
        cls, other: Strategy, model: ModelShape, workload: Any, machine: Machine, _gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield GPUs that hold the weights together, if they can with what vLLM fills of their memory: those
        of ``other``, or the smallest larger number of GPUs of a host or of hosts, or fewer hosts.

        All of them work on the sequences of all replicas of ``other``.
        """
        yield (Tunable("baseline", cls._without_offloading(other, model, workload, machine)),)

    @classmethod
    def _without_offloading(
        cls, other: Strategy, model: ModelShape, workload: Inference, machine: Machine
    ) -> Iterator[Change]:
        batch = workload.batch_size * other.replicas
        work = workload.model_copy(update={"batch_size": batch})
        each = machine.gpus_per_node
        larger = (one for one in range(other.gpus + 1, machine.gpus + 1) if one < each or one % each == 0)
        for gpus in (other.gpus, *larger, *range((other.gpus - 1) // each * each, 0, -each)):
            for sizes in arrangements(gpus, machine):
                strategy = {"kind": "tensor_parallel", **sizes, "compiled": not lacks_vllm(machine)}
                with suppress(InputError):
                    plan = cls.model_validate(strategy).plan(model, work, machine)
                    if all(use.fits for use in peak_uses(memory_stages(plan), machine.tiers)):
                        edits = Edit(("strategy",), strategy), Edit.at("workload.batch_size", batch)
                        yield Change("placement", "", edits)

    @property
    def description(self) -> Description:
        """The program that the exported command starts, and the cache."""
        program = "vLLM" if self._uses_vllm else "transformers or vLLM"
        return super().description._replace(program=program)

    @property
    def cache_engine(self) -> CacheEngine:  # type: ignore[override]  # it depends on who runs the plan
        """Cache of vLLM or of transformers; of eager code in vLLM, whose kernels are not simulated, in the
        model's type."""
        if not self._uses_vllm:
            return TRANSFORMERS
        return (
            VLLM
            if self.compiled
            else VLLM._replace(program="eager code in vLLM, as it is simulated,", formats=())
        )

    @property
    def without_vllm(self) -> str:
        """Settings that do without vLLM, which also runs what transformers cannot divide."""
        return f"strategy.compiled to false (transformers), or {NO_VLLM}" if self.compiled else NO_VLLM

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
    return sum(one.size for one in plan.held if one.tier == "hbm") / plan.machine.tiers["hbm"].capacity


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
        command = connector_command(moves, plan.held, compiled=compiled)
        options.append(command.option)
        before = command.before
    stored = plan.model.quantization
    if stored in _AT_LOADING:
        options.append(f"--quantization {_AT_LOADING[stored]}")
        stored = None
    lines = " \\\n  ".join((f"vllm serve {quote(plan.model.unquantized_name)}", *options))
    return f"{_advice(stored)}\n{before}{lines}\n"
