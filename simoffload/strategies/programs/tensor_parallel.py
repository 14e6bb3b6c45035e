"""Weights in the HBM of several GPUs: tensor, pipeline and data parallelism, the baseline without offloading.

Each GPU has a part of every layer (``divided``). The results of the GPUs of a stage are summed twice in each
layer by a ring all-reduce, in which every GPU receives 2 (n - 1) / n of the bytes; the ring takes the path
and the time per call of ZeRO's all-gather (``Machine.gather``). The stages of a pipeline have equal numbers
of layers. A prefill goes through them in as many micro-batches as there are stages (at most one for each
sequence), a decode step with all sequences at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences
from simoffload.results import CacheBlocks, Change, Facts, peak_uses
from simoffload.strategies.base import (
    ONE_GROUP,
    SERVED_OTHERS,
    EvidenceBasis,
    Held,
    ServingLimits,
    SizeEdits,
    Strategy,
    memory_stages,
)
from simoffload.strategies.cache.hot_rows import hot_bytes, rows_memory
from simoffload.strategies.cache.kv_cache import (
    DEFAULT,
    CachingStrategy,
    KvCache,
)
from simoffload.strategies.divided import Degrees
from simoffload.strategies.memory import CACHE_TERM, cache_term, working_memory
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.passes.timing import CAPTURED, arithmetic_beyond, experts_kernel
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.vllm_engine import (
    FEW_SEQUENCES,
    MOST_SEQUENCES,
    Stored,
    VllmEngine,
    block_bytes,
    chosen_graph,
    default_sequences,
    graph_sizes,
    served_runs,
    stored_weights,
    tight,
    unpaged_bytes,
    unserved,
)
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
        connector = self.cache.connector
        found = () if connector is None else connector.checked(self.model, self.workload, self.machine)
        if self.engine is not None:
            stage = max(self.divided.stages, key=lambda one: one.num_hidden_layers)
            short = self.engine.short(stage, self.machine)
            found = (*found, *tight(self.engine.utilization, self.machine), *short)
            found = (*found, self.engine.lowered) if self.engine.lowered else found
        return (*self.heads_warnings, *found)

    @property
    def heads_warnings(self) -> tuple[str, ...]:
        """Warnings about key-value heads that several GPUs keep."""
        heads, gpus = self.model.num_key_value_heads, self.degrees.tensor
        if gpus <= heads:
            return ()
        which = f"each of {heads} key-value heads" if heads > 1 else "the only key-value head"
        return (f"{which} is kept by {gpus // heads} GPUs, as there are {gpus}",)

    @property
    def stored_weights(self) -> tuple[Stored, ...]:
        """Forms in which the weights are stored, and the kernels that read them."""
        return stored_weights(self.modules, self.machine.accelerator)

    @property
    def basis(self) -> EvidenceBasis:
        """Also, of compiled code, costs of launching kernels and calling pieces that are not in CUDA graphs,
        of calling experts and of preparing a step, and the rates of kernels for the weights' formats and of
        experts."""
        found = super().basis
        if self.compiled:
            costs = self.machine.host.compiled_costs
            called = costs.mxfp4 if experts_kernel(self.model) == "mxfp4" else costs.experts
            calls = [costs.piece, called] if self.model.num_experts else [costs.piece]
            found = found._replace(host_costs=(costs.kernel, costs.step, costs.sequence, *calls))
        if not self.fused:
            return found
        kernels, experts = [one.kernel for one in self.stored_weights], bool(self.model.num_experts)
        rates = self.machine.accelerator.kernels.deciding(kernels, experts=experts)
        others = self.compiled and any(one.form or one.experts for one in self.stored_weights)
        evidence = SERVED_OTHERS if others else ""
        return found._replace(
            gpu_rates=rates, evidence=evidence, uncompared=(*self._uncompared(), *self.speculates)
        )

    def _uncompared(self) -> list[str]:
        """Return what no run of vLLM did with which predictions were compared: see ``served_runs``."""
        gpu, batch = self.machine.accelerator.name, self.workload.batch_size
        found = list(unserved(self.stored_weights, gpu))
        if self.model.latent_width is not None:
            found.append("served latent attention")
        if self.degrees.ranks > 1:
            found.append("served from several GPUs")
        if self.cache.connector is not None:
            found.append("loaded a prefix")
        if self.cache.hot_buffer is not None:
            found.append("gathered rows of a cache in host memory")
        known = served_runs(gpu) is not None
        if batch > (MOST_SEQUENCES if known else FEW_SEQUENCES):
            found.append(f"served {batch} sequences at once on {gpu}")
        return found if self.compiled else [*found, "launched fused kernels one by one"]

    def _working_memory(
        self, shard: ModelShape, workload: Inference, cache: tuple[Held, ...]
    ) -> tuple[Held, ...]:
        """Return the memory of a workload, with the limits of vLLM's engine."""
        if self.engine is None:
            return super()._working_memory(shard, workload, cache)
        program = self.engine.memory(shard, self.machine, sequences=workload.batch_size)
        at_once = min(self.engine.tokens, workload.batch_size * workload.prompt_length)
        return working_memory(shard, workload, self.machine, cache=cache, program=program, at_once=at_once)

    @property
    def asynchronous(self) -> bool:
        """vLLM's engine does so by default (``async_scheduling``)."""
        return self.engine is not None

    @property
    def captured(self) -> int:
        """Most tokens of a pass for which the engine captures CUDA graphs."""
        return CAPTURED if self.engine is None else self.engine.captured

    @property
    def shares_blocks(self) -> bool:
        """Whether the cache of a draft is in blocks of the model's own: in a paged cache."""
        return self._paged is not None

    @property
    def _paged(self) -> VllmEngine | None:
        """The engine, if its cache is in blocks in HBM."""
        return self.engine if self.machine.row(self.cache.tier).is_gpu and self.fused else None

    def cache_memory(self, shard: ModelShape, *, copies: int) -> tuple[Held, ...]:
        """Return the memory of the cache: of vLLM's, the blocks that are stated, or that the sequences need,
        and the states of linear attention."""
        if (engine := self._paged) is None:
            return super().cache_memory(shard, copies=copies)
        number = engine.blocks or engine.needed
        states = self.workload.batch_size * self._unpaged(engine, shard)
        term = cache_term("hbm", number * self._block_bytes(engine, shard) + states)
        term = term if engine.blocks is None else term._replace(remedy="lower kv_blocks")
        return (term, *self._rows(engine, shard))

    def _unpaged(self, engine: VllmEngine, stage: ModelShape) -> int:
        """Return what a sequence has in no block [B]."""
        element = self.element_bytes
        return unpaged_bytes(stage, engine.groups) + hot_bytes(stage, element)

    def _rows(self, engine: VllmEngine, shard: ModelShape) -> tuple[Held, ...]:
        """Return the rows that are in host memory, and those of the prompts that are being computed."""
        if self.cache.hot_buffer is None:
            return ()
        work, hosts = self.workload, self.machine.nodes_of(self.degrees.ranks)
        tokens = -(-work.batch_size * work.max_context * self.degrees.data // hosts)
        prompts = min(work.batch_size, -(-engine.tokens // work.prompt_length))
        sizes = {"prompts": prompts, "prompt": work.prompt_length, "tokens": tokens}
        return tuple(rows_memory(self.model, shard, **sizes, element=self.element_bytes))

    def _block_bytes(self, engine: VllmEngine, stage: ModelShape) -> int:
        element = self.element_bytes
        found = block_bytes(stage, engine.groups, element=element)
        if (draft := self.drafting) is not None:
            found += block_bytes(draft.fullest, ONE_GROUP, element=element) // engine.groups.number
        return found

    @cached_property
    def room(self) -> int | None:
        """Number of blocks of the paged cache for which each GPU has memory; None without one in HBM, and of
        layers that cache nothing."""
        engine, tier = self._paged, self.machine.tiers["hbm"]
        each = 0 if engine is None else max(self._block_bytes(engine, one) for one in self.divided.stages)
        if not each:
            return None
        shared = {tier.name, tier.pool}
        used = sum(one.size for one in self.held if one.tier in shared and one.name != CACHE_TERM)
        used += self.workload.batch_size * self._unpaged(engine, self.fullest) if engine else 0
        return max(0, tier.capacity - used) // each

    @cached_property
    def cache_blocks(self) -> CacheBlocks | None:
        """Blocks of the paged cache, as they are stated, or for which each GPU has memory."""
        engine = self._paged
        number = None if engine is None else engine.blocks or self.room
        if engine is None or number is None:
            return None
        size = engine.groups.size
        context = -(-self.workload.max_context // size) * size
        return CacheBlocks(
            number,
            size,
            number * context // engine.groups.held(context, size),
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
DIVIDED, _ALONE = "parts of {} in each GPU", "{} in the GPU"
"""Phrases for weights that are divided among GPUs, and that one GPU has."""
_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


class DividedStrategy(CachingStrategy):
    """A DividedStrategy divides the model among GPUs: the common base of strategies with tensor, pipeline and
    data parallelism."""

    serves: ClassVar = frozenset({"inference"})
    traits: ClassVar = CachingStrategy.traits._replace(gpu_keys=_DEGREES)

    tensor_parallel_size: Degree = 1
    """Number of GPUs that share every layer."""
    pipeline_parallel_size: Degree = 1
    """Number of pipeline stages, each with an equal part of the layers."""
    data_parallel_size: Degree = 1
    """Number of replicas of the model, each of which processes ``batch_size`` sequences."""

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
    def in_gpus(self) -> str:
        """Phrase for weights that GPUs hold."""
        return _ALONE if self.tensor_parallel_size * self.pipeline_parallel_size == 1 else DIVIDED

    @property
    def degrees(self) -> Degrees:
        """Numbers of parts, stages and replicas."""
        return Degrees(self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size)

    @property
    def replicas(self) -> int:
        """Number of replicas of the model."""
        return self.data_parallel_size

    def sizes(self, batch_size: int = 1) -> SizeEdits:
        """Return the edits to other batches, and those that divide each layer among as many GPUs as make a
        number in all; none if that is not a whole number."""

        def divided(gpus: int) -> tuple[Edit, ...]:
            each, rest = divmod(gpus, self.pipeline_parallel_size * self.data_parallel_size)
            return () if rest else (Edit.at("strategy.tensor_parallel_size", each),)

        return super().sizes(batch_size)._replace(gpus=divided)


def arrangements(gpus: int, machine: Machine) -> Iterator[dict[str, int]]:
    """Yield degrees of parallelism for a number of GPUs: a pipeline stage for each host, then more stages,
    then layers that are divided among GPUs of several hosts."""
    hosts = machine.nodes_of(gpus)
    possible = [one for one in range(1, gpus + 1) if gpus % one == 0]
    more, fewer = (one for one in possible if one >= hosts), (one for one in possible[::-1] if one < hosts)
    for stages in (*more, *fewer):
        yield {"tensor_parallel_size": gpus // stages, "pipeline_parallel_size": stages}


def without_offloading(
    kind: type[Strategy], other: Strategy, model: ModelShape, workload: Inference, machine: Machine
) -> Iterator[Change]:
    """Yield GPUs that hold the weights together under a kind of strategy, if they can: those of ``other``, or
    the smallest larger number of GPUs of a host or of hosts, or fewer hosts.

    All of them work on the sequences of all replicas of ``other``.
    """
    batch = workload.batch_size * other.replicas
    work = workload.model_copy(update={"batch_size": batch})
    each = machine.gpus_per_node
    larger = (one for one in range(other.gpus + 1, machine.gpus + 1) if one < each or one % each == 0)
    for gpus in (other.gpus, *larger, *range((other.gpus - 1) // each * each, 0, -each)):
        for sizes in arrangements(gpus, machine):
            strategy = {"kind": kind.model_fields["kind"].default, **sizes}
            with suppress(InputError):
                plan = kind.model_validate(strategy).plan(model, work, machine)
                if plan.facts.hypothetical:
                    continue
                if all(use.fits for use in peak_uses(memory_stages(plan), machine.tiers)):
                    edits = Edit(("strategy",), strategy), Edit.at("workload.batch_size", batch)
                    yield Change("placement", "", edits)


def loading_advice(quantization: str | None) -> str:
    """Return the comment on the name of the model in an exported command."""
    if quantization is None:
        return "# Replace the name by your files or one on the Hub."
    return f"# Replace the name by your files or one on the Hub,\n# with weights stored as {quantization}."
