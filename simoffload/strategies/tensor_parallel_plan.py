"""The plan of a model that several GPUs hold together, with the limits of vLLM's engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences
from simoffload.results import CacheBlocks, Facts, MemoryStage, MemoryTerm
from simoffload.strategies.degrees import Degrees
from simoffload.strategies.extrapolation import arithmetic_beyond
from simoffload.strategies.kv_cache import DEFAULT, VLLM_BLOCK, KvCache
from simoffload.strategies.memory import CACHE_TERM, cache_term, working_memory
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.staged_plan import StagedPlan
from simoffload.strategies.terms import Tunable
from simoffload.strategies.vllm_engine import VllmEngine, block_bytes, fuller, tight
from simoffload.workload import Inference

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
