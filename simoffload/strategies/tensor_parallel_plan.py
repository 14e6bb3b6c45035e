"""The plan of a model that several GPUs hold together, with the limits of vLLM's engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simoffload.hardware import Machine, Provenance
from simoffload.models import ModelShape, Module, Sequences
from simoffload.results import CacheBlocks, Facts, MemoryStage, MemoryTerm
from simoffload.strategies.divided import Degrees, DividedModel, divide
from simoffload.strategies.extrapolation import arithmetic_beyond
from simoffload.strategies.fused_timing import FusedPassTimings, LaunchedPassTimings, experts_kernel
from simoffload.strategies.hooks.parallel import Collectives, CompiledCode, Pipeline
from simoffload.strategies.kv_cache import DEFAULT, VLLM_BLOCK, KvCache
from simoffload.strategies.memory import CACHE_TERM, cache_term, working_memory
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.terms import Tunable
from simoffload.strategies.timing import PassTimings
from simoffload.strategies.vllm_engine import (
    FEW_SEQUENCES,
    MOST_SEQUENCES,
    Stored,
    VllmEngine,
    block_bytes,
    fuller,
    served_runs,
    stored_weights,
    tight,
    unserved,
)
from simoffload.workload import Inference

# --------------------------------------------------------------------------------------------------
# The plan of a model that goes through the stages of a pipeline.


class StagedPlan(InferencePlan):
    """A StagedPlan is a plan in which the model goes through the stages of a pipeline, one or several, each
    with a part of all its layers on every GPU."""

    degrees: Degrees
    compiled: bool
    """Whether kernels are launched as CUDA graphs."""

    @property
    def fused(self) -> bool:
        """Whether kernels are fused: in compiled code, if nothing else fuses them."""
        return self.compiled

    @cached_property
    def divided(self) -> DividedModel:
        """Part of the model on one GPU of each stage. Raises InputError if there are no equal parts."""
        tensor, pipeline, _ = self.degrees
        return divide(self.model, tensor=tensor, pipeline=pipeline, fused=self.fused)

    @property
    def stages(self) -> tuple[ModelShape, ...]:
        """Part of the model on a GPU of each stage."""
        return self.divided.stages

    @cached_property
    def stage_timings(self) -> tuple[PassTimings, ...]:
        """GPU times of the modules of each stage."""
        fused = FusedPassTimings if self.compiled else LaunchedPassTimings
        kind = fused if self.fused else PassTimings
        return tuple(
            kind(
                machine=self.machine,
                model=stage,
                modules=stage.distinct_modules,
                zero3=False,
                cache=self.cache_form,
            )
            for stage in self.divided.stages
        )

    @property
    def paged_cache(self) -> bool:
        """Whether the cache is in pages, as in vLLM."""
        return self.fused

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all stages; those of a layer are listed once in each stage."""
        return tuple(module for stage in self.divided.stages for module in stage.distinct_modules)

    @property
    def stored_weights(self) -> tuple[Stored, ...]:
        """Forms in which the weights are stored, and the kernels that read them."""
        native = self.machine.accelerator.compute.float8 is not None
        return stored_weights(self.modules, native_float8=native)

    @property
    def host_costs(self) -> tuple[Provenance, ...]:
        """Costs of launching kernels that are not in CUDA graphs, of calling experts, and of preparing a
        step."""
        if not self.compiled:
            return super().host_costs
        costs = self.machine.host.compiled_costs
        called = costs.mxfp4 if experts_kernel(self.model) == "mxfp4" else costs.experts
        return (costs.kernel, costs.step, *([called] if self.model.num_experts else []))

    @property
    def gpu_rates(self) -> tuple[Provenance, ...]:
        """Rates of the kernels of compiled code, with those of the weights' formats and of experts."""
        if not self.fused:
            return ()
        experts, kernels = bool(self.model.num_experts), [one.kernel for one in self.stored_weights]
        return self.machine.accelerator.kernels.deciding(kernels, experts=experts)

    @property
    def uncompared(self) -> tuple[str, ...]:
        """What no run of vLLM did with which predictions were compared: see ``served_runs``."""
        if not self.fused:
            return ()
        gpu, batch = self.machine.accelerator.name, self.workload.batch_size
        found = list(unserved(self.stored_weights, gpu))
        if self.model.latent_width is not None:
            found.append("served latent attention")
        if self.degrees.ranks > 1:
            found.append("served from several GPUs")
        known = served_runs(gpu) is not None
        if batch > (MOST_SEQUENCES if known else FEW_SEQUENCES):
            found.append(f"served {batch} sequences at once on {gpu}")
        return tuple(found if self.compiled else [*found, "launched fused kernels one by one"])

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        return tuple(arithmetic_beyond(self.divided.stages[-1], self.workload, self.machine))

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """Return the GPU time of each module of each stage for each micro-batch of a pass [ps]."""
        batches = self.micro_batches(forward)
        return tuple(time for batch in batches for one in self.stage_timings for time in one.durations(batch))

    def micro_batches(self, forward: ForwardPass) -> list[tuple[Sequences, ...]]:
        """Return the parts in which a pass goes through the stages: several only in a prefill."""
        count = min(self.degrees.pipeline, (first := forward.batch[0]).number)
        if len(forward.batch) > 1 or (first.new_tokens < first.context and not forward.loads):
            return [forward.batch]
        each, more = divmod(first.number, count)
        return [(first._replace(number=each + (part < more)),) for part in range(count)]

    def hooks(self, forward: ForwardPass) -> tuple[Hook, ...]:
        """Return all hooks of a pass: also those of exchanges among GPUs, and of compiled code."""
        code = CompiledCode(self) if self.compiled else None
        return (
            *([Collectives(self, code)] if self.degrees.tensor > 1 else ()),
            *([Pipeline(self, code)] if self.degrees.pipeline > 1 else ()),
            *super().hooks(forward),
            *([code] if code is not None else ()),
        )


_MORE = "raise tensor_parallel_size or pipeline_parallel_size"
_LEAST_TOKENS = 256
"""Fewest tokens at once that are tried to save memory: fewer than a GPU needs for its full speed; our
choice."""


@dataclass(frozen=True)
class TensorParallelPlan(StagedPlan):
    """A TensorParallelPlan is a plan of a model that several GPUs hold together."""

    model: ModelShape
    workload: Inference
    machine: Machine
    degrees: Degrees
    compiled: bool
    target: str = "hbm"
    cache: KvCache = DEFAULT
    engine: VllmEngine | None = None

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]  # computed here
        """Warnings about key-value heads that several GPUs keep, and about the connector."""
        heads, gpus = self.model.num_key_value_heads, self.degrees.tensor
        connector = self.cache.connector
        found = () if connector is None else connector.checked(self.model, self.workload, self.machine)
        if self.engine is not None:
            found = (*found, *tight(self.engine.utilization, self.machine))
        if gpus <= heads:
            return found
        return (
            f"each of {heads} key-value heads is kept by {gpus // heads} GPUs, as there are {gpus}",
            *found,
        )

    @property
    def memory_stages(self) -> tuple[MemoryStage, ...]:
        """Weights and working memory of the GPUs that need most: those of the stage with most weights."""
        stage = max(self.divided.stages, key=lambda one: one.weight_bytes)
        weights = MemoryTerm("hbm", "weights", stage.weight_bytes, remedy=_MORE)
        return (MemoryStage("", (weights, *self.working_memory(stage))),)

    def _working_memory(
        self, part: ModelShape, workload: Inference, cache: tuple[MemoryTerm, ...]
    ) -> tuple[MemoryTerm, ...]:
        """Return the memory of a workload, with the limits of vLLM's engine."""
        if self.engine is None:
            return super()._working_memory(part, workload, cache)
        libraries = self.engine.memory(
            part,
            self.machine,
            sequences=workload.batch_size,
            compiled=self.compiled,
            alone=self.degrees.tensor * self.degrees.pipeline == 1,
        )
        if self.engine.blocks is not None:
            size = self.engine.blocks * self._block_bytes(part)
            others = (one for one in cache if one.tier != "hbm")
            cache = (cache_term("hbm", size)._replace(remedy="lower kv_blocks"), *others)
        at_once = self.engine.at_once(workload.batch_size * workload.prompt_length)
        return working_memory(
            part, workload, self.machine, cache=cache, fused=self.fused, at_once=at_once, libraries=libraries
        )

    def _block_bytes(self, stage: ModelShape) -> int:
        return block_bytes(stage, element=self.cache.element_bytes(self.model.dtype_bytes))

    @property
    def cache_blocks(self) -> CacheBlocks | None:
        """Blocks of the paged cache for which each GPU has memory; None without one in HBM, and of
        layers that cache nothing."""
        engine, tier = self.engine, self.machine.tiers["hbm"]
        if engine is None or self.cache.tier != "hbm" or not self.paged_cache:
            return None
        if engine.blocks is not None:
            return CacheBlocks(engine.blocks, VLLM_BLOCK, engine.utilization, stated=True)
        (stage,) = self.memory_stages
        shared = {"hbm", tier.pool}
        used = sum(one.size for one in stage.terms if one.tier in shared and one.name != CACHE_TERM)
        each = max(map(self._block_bytes, self.divided.stages))
        if not each:  # no layer has attention over earlier tokens
            return None
        return CacheBlocks(max(0, tier.capacity - used) // each, VLLM_BLOCK, engine.utilization, stated=False)

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

    def tunables(self) -> Iterator[Tunable]:
        """Yield fewer tokens at once, and more of the GPU's memory."""
        engine, least = self.engine, max(self.workload.batch_size, _LEAST_TOKENS)
        if engine is not None:
            halves = [now for part in range(1, 10) if (now := engine.tokens >> part) >= least]
            key = "max_num_batched_tokens"
            yield Tunable(key, ("strategy", key), engine.tokens, (halves,))
            key, more = (
                "gpu_memory_utilization",
                [one for one in fuller(self.machine) if one > engine.utilization],
            )
            yield Tunable(key, ("strategy", key), engine.utilization, (more,))

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """Warnings about numbers used outside the range in which they were measured."""
        work, engine = self.workload, self.engine
        if engine is not None and engine.tokens < work.batch_size * work.prompt_length:
            work = work.model_copy(update={"batch_size": 1, "prompt_length": engine.tokens})
        return tuple(arithmetic_beyond(self.divided.stages[-1], work, self.machine))

    def micro_batches(self, forward: ForwardPass) -> list[tuple[Sequences, ...]]:
        """Return the parts in which a pass goes through the stages, none with more tokens than vLLM computes
        at once."""
        parts = super().micro_batches(forward)
        if self.engine is None:
            return parts
        return [chunk for part in parts for chunk in self.engine.chunks(part)]
