"""The key-value cache of strategies that generate text: the section ``kv_cache``.

Reference: transformers 5.23.0, ``cache_utils.py`` (``Cache.update``, ``DynamicLayer``, ``StaticLayer``,
``QuantizedLayer``) and ``generation/utils.py`` (``_prepare_cache_for_generation``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from simoffload.documents import Edit, Frozen, either
from simoffload.errors import InputError
from simoffload.hardware import TIER_KINDS, Machine, in_hbm
from simoffload.models import CacheForm, Layer, ModelShape, Sequences
from simoffload.results import Change, StorageTraffic, peak_uses, quality_of_cache
from simoffload.schedule import Dependency, OpKind, Schedule
from simoffload.strategies.base import (
    Description,
    Held,
    MovablePart,
    Phase,
    Plan,
    ProgramTraits,
    Strategy,
    TierName,
    Tunable,
    memory_stages,
)
from simoffload.strategies.cache.hot_rows import HotBuffer
from simoffload.strategies.divided import Degrees
from simoffload.strategies.passes.pass_writer import HOST, ForwardPass, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.timing import copy_cause, picoseconds
from simoffload.workload import Inference

# -- connectors of a paged key-value cache ---------------------------------------------------------
# Blocks that are stored on another tier, and loaded from it.
#
# Reference: vLLM 0.33, ``v1/kv_offload`` and ``distributed/kv_transfer/kv_connector/v1/offloading``
# (OffloadingConnector); LMCache 0.5.6; Mooncake's transfer engine (``docs/source/performance``).
#
# A block has the keys and values of ``block_tokens`` tokens of a sequence. Before the prefill of the rest
# of a prompt, the blocks of its prefix are read: all of them before the prefill begins, or layer by layer,
# those of the next layer during the computation of the present one. New full blocks are stored in the other
# direction of the link, and no pass waits for that: those of a generation in equal parts during its decode
# steps, or without decode steps (a server that only prefills) during the next prefill, with whose loads
# they share the link. Layer by layer, the blocks of the prompt are stored during its prefill, which ends
# with them (``wait_for_save``), and those of generated tokens are not (``save_decode_cache`` of LMCache).
#
# Copies over the link are submitted in one call (``cuMemcpyBatchAsync``), one for each contiguous part of a
# block: each delays the transfer by the time of its submission (``submission_s``). Both directions at once
# share what the link's profile states for copies of that size (``both_ways_by_size``). Storage is read and
# written by 16 threads, a block as one file, through pinned buffers in host memory or directly (GPUDirect
# Storage).


_KEY = "strategy.kv_cache.connector"
THREADS = 16
"""Threads that read, and that write, files of blocks (vLLM 0.33, file tier of ``v1/kv_offload``)."""
_PORTIONS = 64
"""Parts of at least 16 blocks in which blocks go through pinned buffers, at most: our choice."""

_SUBMITTED = 16_384
"""Copies of one call that are submitted before the first of them moves, at most
(docs/measurements/h200-2026-11-29d/copies.json.gz)."""

Flag = Annotated[bool, Field(strict=True)]


class Connector(Frozen):
    """A Connector moves blocks of a paged cache between the GPUs and another tier."""

    tier: TierName
    """Tier of the blocks: host memory, storage, or the memory of another host."""
    prefix: Annotated[int, Field(strict=True, ge=0, le=10_000_000)] = 0
    """Number of tokens at the beginning of each prompt that the tier has; their full blocks are loaded."""
    block_tokens: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 16
    """Number of tokens of a block: 16 in vLLM, 256 in LMCache (``chunk_size``)."""
    layerwise: Flag = False
    """Whether blocks are moved layer by layer, during the computation of the others; false: the prefill waits
    for the whole prefix."""
    cross_layer_blocks: Flag = False
    """Whether a block is contiguous over all layers (vLLM 0.33 with VLLM_KV_CACHE_LAYOUT=BLHNC); false, as by
    default: each layer is apart, with keys and values together."""
    direct: Flag = False
    """Whether GPUs read and write storage without host memory (GPUDirect Storage), or the memory of another
    host (GPUDirect RDMA)."""
    store: Flag = True
    """Whether new full blocks are stored."""

    @property
    def loaded(self) -> int:
        """Number of tokens of each prompt whose blocks are loaded."""
        return self.prefix // self.block_tokens * self.block_tokens

    def new_blocks(self, workload: Inference) -> int:
        """Return the number of blocks of a sequence that are new and full after a generation, layer by layer
        after the prefill."""
        tokens = workload.prompt_length if self.layerwise else workload.max_context
        return tokens // self.block_tokens - self.loaded // self.block_tokens if self.store else 0

    def staged(self, machine: Machine) -> bool:
        """Return whether blocks go through pinned buffers in host memory."""
        return not machine.tiers[self.tier].row.is_host and not self.direct

    def checked(self, model: ModelShape, workload: Inference, machine: Machine) -> tuple[str, ...]:
        """Return warnings. Raises InputError for what no connector does."""
        if machine.tiers[self.tier].row.is_gpu:
            names = ", ".join(name for name in machine.tiers if name != self.tier)
            raise InputError.at(f"{_KEY}.tier", f"the cache itself is in {self.tier}; use one of {names}")
        if self.prefix >= (length := workload.prompt_length):
            many = "all" if self.prefix == length else "more than all"
            text = f"{self.prefix} tokens are {many} of a prompt of {length}; use at most {length - 1}"
            raise InputError.at(f"{_KEY}.prefix", f"{text}, as the pass needs one to compute")
        if self.cross_layer_blocks and (self.layerwise or model.num_sliding_layers):
            why = "layerwise moves each layer on its own" if self.layerwise else "sliding layers keep fewer"
            raise InputError.at(f"{_KEY}.cross_layer_blocks", f"{why}; set it to false, or leave it out")
        return (*self._without_effect(workload), *(self._check_direct(machine) if self.direct else ()))

    def _without_effect(self, workload: Inference) -> Iterator[str]:
        """Yield warnings about keys with which nothing is loaded or stored."""
        size = self.block_tokens
        if 0 < self.prefix < size:
            text = f"nothing is loaded: {self.prefix} tokens of {_KEY}.prefix do not fill a block of {size}"
            yield f"{text}; lower block_tokens"
        if not self.loaded and not self.new_blocks(workload):
            yield f"{_KEY} has no effect, as it neither loads nor stores a block; remove it"

    def _check_direct(self, machine: Machine) -> tuple[str, ...]:
        target = machine.targets.get(self.tier)
        if target is None:
            text = "host memory is always copied by the GPU itself; leave it out"
            raise InputError.at(f"{_KEY}.direct", text)
        if not target.has_rdma:
            text = f"{self.tier} cannot be read directly into a GPU ({target.id}); set it to false"
            raise InputError.at(f"{_KEY}.direct", text)
        peer = machine.tiers[self.tier].row.access == "peer"
        return () if peer else machine.gpudirect_warnings(f"{_KEY}.direct")


class Blocks(NamedTuple):
    """Blocks are equal blocks of the part of a model on one GPU, or of one layer of it."""

    number: int
    """Number of blocks of all sequences of a replica."""
    size: int
    """Size of a block [B]."""
    parts: int
    """Number of contiguous parts of a block, each a copy of its own."""

    @property
    def total(self) -> int:
        """Size of all blocks [B]."""
        return self.number * self.size

    @property
    def part(self) -> int:
        """Size of a contiguous part [B], with which a copy over the link is issued."""
        return max(1, self.size // self.parts)


def portions(blocks: Blocks) -> Iterator[Blocks]:
    """Yield the parts of blocks that go through a pinned buffer at a time."""
    each, left = portion(blocks), blocks.number
    while left:
        yield blocks._replace(number=min(each, left))
        left -= min(each, left)


def portion(blocks: Blocks) -> int:
    """Return the number of blocks of a pinned buffer; there are two in each direction."""
    return min(blocks.number, max(THREADS, -(-blocks.number // _PORTIONS)))


def submission_s(copies: int, each_s: float, moving_s: float) -> float:
    """Return for how long [s] copies of one call do not move: ``each_s`` [s] to submit one, and ``moving_s``
    [s] to move all.

    Notes
    -----
    The GPU begins when all are submitted, or some 16,384: of 1,024 to 8,192 copies of 64 KiB in one call of
    cuMemcpyBatchAsync on an H200, transfers take as much longer than their bytes as the call takes, 0.85 us
    a copy; of 16,384 to 65,536 they take 6 to 18 ms longer, median 14 (h200-2026-11-29d/copies.json.gz in
    docs/measurements). So do 12,288 copies of 8 KiB on an H100: 6.3 ms to submit them, and 1.9 for the
    copies themselves (vllm-project/vllm pull request 48434). Of more copies the others are submitted while
    bytes move: 65,536 of 16 KiB from an H200 take 61 ms, their submission 56. Until March 2026 vLLM
    submitted each on its own, some 6 us more (pull request 38460).
    """
    first = min(copies, _SUBMITTED)
    return each_s * first + max(0.0, each_s * (copies - first) - moving_s)


# --------------------------------------------------------------------------------------------------
# Transfers of the blocks of a paged cache: their sizes on each GPU, their memory, and their operations.


BLOCK_TERMS = ("blocks of the prefixes", "new blocks")
"""Names of the memory of blocks on their tier."""
_STAGING = "pinned buffers of blocks"


@dataclass(frozen=True)
class BlockMoves:
    """BlockMoves are the blocks that a connector moves in one generation, by pipeline stage."""

    connector: Connector
    stages: Sequence[ModelShape]
    """Part of the model on a GPU of each stage."""
    degrees: Degrees
    workload: Inference
    machine: Machine
    element: int
    """Size of a number in the cache [B]."""

    def loads(self, stage: int) -> tuple[Blocks, ...]:
        """Return what each GPU of a stage reads before a prefill: of a sliding layer the blocks with tokens
        in its window."""
        return self._blocks(stage, self.connector.loaded // self.connector.block_tokens, windows=True)

    def stores(self, stage: int) -> tuple[Blocks, ...]:
        """Return what each GPU of a stage writes in a generation: the new full blocks of its sequences, layer
        by layer only those of the prompt."""
        return self._blocks(stage, self.connector.new_blocks(self.workload))

    def _blocks(self, stage: int, number: int, *, windows: bool = False) -> tuple[Blocks, ...]:
        """Return ``number`` blocks of each sequence: one entry per layer if they are moved layer by layer."""
        if not number:
            return ()
        one, part, sequences = self.connector, self.stages[stage], self.workload.batch_size

        def counted(layer: Layer) -> dict[tuple[int, int], int]:
            """Return the number of pieces of a sequence by their blocks and size: rows of a window and of all
            tokens, and of a recurrent layer the state after the last block."""
            sizes: dict[int, float] = {}
            for kept in part.growing(layer):
                blocks = number
                if windows and kept.window is not None:
                    blocks = min(number, -(-kept.window // one.block_tokens))
                size = one.block_tokens * part.row_bytes(kept, self.element) / kept.every
                sizes[blocks] = sizes.get(blocks, 0) + size
            if state := sum([module.state for module in layer]):
                sizes[1] = sizes.get(1, 0) + state
            return {(blocks, round(size)): 1 for blocks, size in sizes.items()}

        if one.layerwise:
            every = part.by_layer(counted)
            return tuple(Blocks(sequences * blocks, size, 1) for each in every for blocks, size in each)
        layers: dict[int, list[int]] = {}
        for layer, count in part.kinds:
            for blocks, size in counted(layer):
                found = layers.setdefault(blocks, [0, 0])
                found[0] += count
                found[1] += count * size
        return tuple(
            Blocks(sequences * blocks, size, 1 if one.cross_layer_blocks else count)
            for blocks, (count, size) in layers.items()
        )

    @property
    def concurrent(self) -> bool:
        """Whether blocks of a generation are stored while the next prefix is loaded: without decode steps."""
        return not self.connector.layerwise and self.connector.store and not self.workload.decode_steps

    @cached_property
    def parts(self) -> int:
        """Number of decode steps during which the blocks of a generation are stored in equal parts; 0 if they
        are stored during prefills, or not at all."""
        stores = self.traffic.written and not self.connector.layerwise
        return self.workload.decode_steps if stores else 0

    @property
    def traffic(self) -> StorageTraffic:
        """Bytes that all GPUs read and write in one generation."""
        numbers = range(len(self.stages))
        read, written = (self._all(list(map(of, numbers))) for of in (self.loads, self.stores))
        return StorageTraffic(self.connector.tier, read, written)

    def _all(self, stages: Sequence[tuple[Blocks, ...]]) -> int:
        each = self.degrees.tensor * self.degrees.data
        return each * sum(one.total for blocks in stages for one in blocks)

    @property
    def memory(self) -> tuple[Held, ...]:
        """Blocks of the prefixes and of one generation on their tier, and pinned buffers of a host."""
        one, machine = self.connector, self.machine
        tier, numbers = machine.tiers[one.tier], range(len(self.stages))
        prefix = one.loaded // one.block_tokens
        known = self._all([self._blocks(number, prefix) for number in numbers])
        new = self._all(list(map(self.stores, numbers)))
        hosts = machine.nodes_of(self.degrees.ranks) if tier.row.is_dram else 1
        remedy = "lower strategy.kv_cache.connector.prefix or batch_size"
        transfers = self.traffic
        found = [
            Held(one.tier, name, -(-size // hosts), tier.row.is_host, remedy, kind="cache", traffic=both)
            for name, size, both in (
                (BLOCK_TERMS[0], known, lambda: (transfers.read, 0)),
                (BLOCK_TERMS[1], new, lambda: (0, transfers.written)),
            )
        ]
        if one.staged(machine):
            ranks = machine.ranks_per_node(self.degrees.ranks)
            size = ranks * self._staging
            found.append(Held("dram", _STAGING, size, pinned=True, kind="staging"))
        return tuple(found)

    @property
    def _staging(self) -> int:
        """Pinned buffers of a GPU, two in each direction [B]."""
        at_once = self.connector.layerwise
        return sum(
            max(
                (
                    2 * one.size * (one.number if at_once else portion(one))
                    for number in range(len(self.stages))
                    for one in of(number)
                ),
                default=0,
            )
            for of in (self.loads, self.stores)
        )


LOAD, STORE, READ, WRITE = range(4)


def stream_names(connector: Connector | None, machine: Machine) -> tuple[str, ...]:
    """Return the names of the streams that move blocks."""
    if connector is None:
        return ()
    return ("load", "store", "read", "write") if connector.staged(machine) else ("load", "store")


def block_phases(
    moves: BlockMoves, schedule: Callable[[ForwardPass], Schedule]
) -> tuple[ForwardPass, *tuple[Phase, ...]]:
    """Return the prefill with its transfers of blocks, and phases of the loads and of the stores alone, whose
    ``schedule`` is given."""
    work, connector, traffic = moves.workload, moves.connector, moves.traffic

    def forward(name: str, first: int, last: int, *, loads: bool, stores: bool) -> ForwardPass:
        batch = (Sequences(work.batch_size, last - first, last),)
        return ForwardPass(
            name, batch, loads=loads and traffic.read > 0, stores=stores and traffic.written > 0
        )

    def alone(kind: Literal["load", "store"], one: ForwardPass) -> Phase:
        ((_, tokens, context, _),) = one.batch
        return Phase(kind, kind, lambda _: schedule(one), tokens, context)

    begin, during = connector.loaded, moves.concurrent or connector.layerwise
    found = []
    if traffic.read:
        found.append(alone("load", forward("load", 0, begin, loads=True, stores=moves.concurrent)))
    if traffic.written:
        found.append(alone("store", forward("store", begin, work.max_context, loads=False, stores=True)))
    return forward("prefill", begin, work.prompt_length, loads=True, stores=during), *found


# --------------------------------------------------------------------------------------------------
# The hook of a connector, which moves blocks of a paged cache between the GPUs and another tier.


class PagedBlocks(Hook):
    """Blocks of known prefixes are loaded before a prefill, and new ones stored, all at once or by layer.

    Through pinned buffers, of which there are two in each direction, the one half of the way follows the
    other portion by portion.
    """

    def __init__(self, moves: BlockMoves, forward: ForwardPass, *, compiled: bool) -> None:
        self._moves, self._forward, self._compiled = moves, forward, compiled
        self._connector, self._layerwise = moves.connector, moves.connector.layerwise
        self._staged = self._connector.staged(moves.machine)
        self.streams = stream_names(self._connector, moves.machine)
        self._begun: set[tuple[int, int]] = set()
        self._loaded: dict[int, int] = {}
        self._number = 0

    def state(self, part: Part) -> Hashable:
        """Return what no other layer has if blocks are moved layer by layer."""
        return (self._number, part.layer) if self._layerwise else None

    # -- when -----------------------------------------------------------------------------------

    def alone(self, out: PassWriter) -> None:
        """Write all transfers of a pass, which wait for nothing."""
        moves = self._moves
        for number in self._stages(out):
            for blocks in moves.loads(number) if self._forward.loads else ():
                self._move(blocks, (), out, load=True)
            for blocks in moves.stores(number) if self._forward.stores else ():
                self._move(blocks, (), out, load=False)

    def start(self, out: PassWriter) -> None:
        """Write the loads of all blocks, or those of the first layers, and stores: those of the generation
        before, or the part of a decode step."""
        moves, forward = self._moves, self._forward
        for number in self._stages(out):
            loads = moves.loads(number) if forward.loads else ()
            after: tuple[Dependency, ...] = ()
            if loads and self._compiled:
                out.launch("blocks", self._before_s(out))
                after = out.so_far(HOST)
            for blocks in loads[:1] if self._layerwise else loads:
                self._loaded[number] = self._move(blocks, after, out, load=True)
            for blocks in moves.stores(number) if forward.stores and not self._layerwise else ():
                if moves.parts:  # that of the pass before leaves a buffer for the tier at the same time
                    for way in (STORE, WRITE) if self._staged else (STORE,):
                        self._transfer(way, blocks, (), out, parts=moves.parts)
                else:
                    self._move(blocks, (), out, load=False)

    def _before_s(self, out: PassWriter) -> float:
        """Return the time of the host before it loads blocks [s]: the tokens of the prefix are hashed and
        looked up, and all blocks at once take a step of their own, in which the request waits."""
        costs = out.machine.host.compiled_costs
        tokens = self._moves.workload.batch_size * self._connector.loaded
        return costs.prompt_token.value * tokens + (0.0 if self._layerwise else costs.step.value)

    def _stages(self, out: PassWriter) -> Iterator[int]:
        for number in range(len(self._moves.stages)):
            out.go_to(number)
            yield number

    def begin(self, stage: StagePass, out: PassWriter) -> None:
        """Let the host wait for all blocks of a prefix: the request is scheduled when they are there."""
        self._number += 1
        loaded = None if self._layerwise else self._loaded.pop(stage.stage, None)
        if loaded is not None:
            out.host_waits(self.first + LOAD, loaded)
            if stage.stage == 0:  # the scheduler is there
                number = sum(one.number for one in self._moves.loads(0))
                out.spend(out.machine.host.compiled_costs.block.value * number)
            out.label = "blocks"
            out.flush()

    def enter(self, part: Part, out: PassWriter) -> None:
        """Let the GPU wait for the blocks of a layer, and load those of the next one after the computation of
        the one before."""
        loaded = self._loaded.pop(out.stage_number, None) if self._layerwise and part.layer >= 0 else None
        if loaded is not None:
            loads = self._moves.loads(out.stage_number)[part.layer + 1 :]
            out.await_(self.first + LOAD, loaded)
            if loads:
                self._loaded[out.stage_number] = self._move(loads[0], out.on_gpu()[:1], out, load=True)

    def leave(self, part: Part, out: PassWriter) -> None:
        """Store the blocks that the sequences of a micro-batch have filled in a layer; a chunk of a prompt
        fills none."""
        if not (self._forward.stores and self._layerwise) or part.layer < 0:
            return
        work, blocks = self._moves.workload, self._moves.stores(out.stage_number)[part.layer]
        finished = sum(one.number for one in out.now.batch if one.context >= work.prompt_length)
        each = blocks.number // work.batch_size
        self._move(blocks._replace(number=finished * each), out.on_gpu(), out, load=False)

    def finish(self, out: PassWriter) -> bool:
        """End a pass that stores: with its stores if they are by layer; otherwise they may continue, and its
        end is that of the last host."""
        if not self._forward.stores:
            return False
        after: tuple[Dependency, ...] = out.on_gpu()
        if self._layerwise:
            after = (*after, Dependency(out.first + self.first + (WRITE if self._staged else STORE)))
        overhead = 0 if self._compiled else picoseconds(out.eager_pass_s)
        out.flush()
        out.add("hook", HOST, fixed=overhead, label="pass", after=after)
        after = tuple([Dependency(out.first + one) for one in out.joined])
        if out.stage_number:
            after = (*after, Dependency(out.first - out.width + HOST, 0, out.stage_before))
        out.add("hook", HOST, label="pass", after=after)
        return True

    # -- how ------------------------------------------------------------------------------------

    def _move(self, blocks: Blocks, after: tuple[Dependency, ...], out: PassWriter, *, load: bool) -> int:
        """Write loads or stores of ``blocks``; return the number of the last one on its stream."""
        near, far = (LOAD, READ) if load else (STORE, WRITE)
        if not self._staged:
            return self._transfer(near, blocks, after, out)
        first, second = (far, near) if load else (near, far)
        at, number = out.first + self.first, -1
        for part in [blocks] if self._layerwise else portions(blocks):
            out.builder.segment("blocks")
            # A buffer is free again when the transfer before the last one has left it.
            self._transfer(first, part, (*after, Dependency(at + second, 1)), out)
            number = self._transfer(second, part, (Dependency(at + first),), out)
        return number

    def _transfer(
        self, way: int, blocks: Blocks, after: tuple[Dependency, ...], out: PassWriter, *, parts: int = 1
    ) -> int:
        """Write one half of the way: between GPU and host memory, or that of the tier."""
        one, inward = self._connector, way in (LOAD, READ)
        kind: OpKind = "copy"
        if stored := way in (READ, WRITE) or one.direct:
            kind = "read" if inward else "write"
            size, in_flight, written = blocks.size, THREADS * blocks.size, not inward
            route, fixed = out.file(
                one.tier,
                blocks.total,
                block=size,
                in_flight=in_flight,
                written=written,
                gds=one.direct,
                cache=one.tier,
            )
        else:
            reach = out.machine.host_to_device if inward else out.machine.device_to_host
            memory = "dram" if one.staged(out.machine) else one.tier
            cause = copy_cause(to_device=inward, pinned=True, tier=memory).of_cache(one.tier)
            reach = partial(reach, pinned=True, size=blocks.part, tier=memory)
            path, hops = out.way((cause, blocks.part), reach)
            route = out.builder.route(cause=cause, hops=hops, cap=int(path.curve.points[-1][1]))
            fixed = picoseconds(path.latency)
        if (out.stage_number, way) in self._begun:
            fixed = 0
        self._begun.add((out.stage_number, way))
        size = -(-blocks.total // parts)
        if not stored:
            copies = -(-blocks.number * blocks.parts // parts)
            each = out.machine.host.compiled_costs.block_copy
            fixed += picoseconds(submission_s(copies, each.value, size / path.curve.points[-1][1]))
        stream = self.first + way
        return out.add(kind, stream, fixed=fixed, size=size, route=route, label="blocks", after=after)


# -- what is refused ------------------------------------------------------------------------------
# What programs cannot do with the key-value cache, as errors of the section ``strategy.kv_cache``.


_SECTION = "strategy.kv_cache"
NATIVE: dict[str, str] = {"float16": "fp16", "bfloat16": "bf16"}
"""Format that is a model's data type of 16 bit."""


def refused(key: str, value: str, valid: Sequence[str], why: str, *, more: str = "") -> InputError:
    """Return the error for a value of ``kv_cache`` that the program does not have; ``more``: what else is
    possible."""
    choice = f"use {either(valid)}, or leave it out" if valid else "leave it out"
    return InputError.at(f"{_SECTION}.{key}", f'"{value}" is not possible: {why}; {choice}{more}')


def check_native(cache: KvCache, engine: CacheEngine, model: ModelShape) -> None:
    """Raise InputError for a format of 16 bit that is not the data type of the model."""
    own = NATIVE.get(model.dtype)
    if cache.format in NATIVE.values() and cache.format != own:
        why = f"{model.name} is in {model.dtype}, and its cache too, unless it has fewer bits"
        raise refused("format", str(cache.format), [*([own] if own else []), *engine.formats], why)


def check_streamed(cache: KvCache, tiers: Sequence[str]) -> None:
    """Raise InputError for a streamed cache that is not on one of ``tiers``, as of one on the GPU nothing
    would be streamed, and for one with a connector."""
    key = f"{_SECTION}.implementation"
    if cache.tier not in tiers:
        text = f"a streamed cache is not on the GPU, and tier is {cache.tier}"
        raise InputError.at(key, f"{text}; set tier to {either(tiers)}, or remove implementation")
    if cache.connector is not None:
        raise InputError.at(key, "a connector stores blocks of a cache in HBM; remove it, or implementation")


def check_cpu_attention(cache: KvCache, model: ModelShape) -> None:
    """Raise InputError for what DeepSpeed's example with attention on the CPU cannot do."""
    key = f"{_SECTION}.implementation"
    if not cache.attends_on_cpu:
        for option in ("pin_memory", "asynchronous"):
            if getattr(cache, option):
                text = "only a cache with implementation: cpu_attention has this choice; remove it"
                raise InputError.at(f"{_SECTION}.{option}", text)
        return
    if (code := model.traits.cpu_attention) is None:
        text = (
            "DeepSpeed's fork of transformers has attention on the CPU for OPT, BLOOM and Llama only, not "
            f"for {model.family}; remove it"
        )
        raise InputError.at(key, text)
    if code.obstacle:
        why = f"DeepSpeed's fork is of transformers 4.32, which does not load {model.name}: {code.obstacle}"
        valid = "it has linear and dynamic ones, with a factor and nothing else"
        others = "use dynamic or static, or a model such as llama-3-8b, whose positions are not scaled"
        raise InputError.at(key, f'"{cache.implementation}" is not possible: {why} ({valid}); {others}')
    if in_hbm(cache.tier):
        raise refused("tier", cache.tier, ["dram"], "attention on the CPU needs the cache in host memory")
    if cache.format is not None:
        text = "the cache of cpu_attention has no format with fewer bits; remove it"
        raise InputError.at(f"{_SECTION}.format", text)


def check_quantized(cache: KvCache, model: ModelShape, *, more: str) -> None:
    """Raise InputError for what ``QuantizedCache`` refuses or has no option for; ``more`` is possible instead
    of offloading one."""
    text = "a quantized cache of transformers grows, and stays on the GPU"
    if cache.offloaded:
        raise InputError.at(f"{_SECTION}.tier", f"{text}; set it to hbm, or remove format{more}")
    if cache.static:
        raise InputError.at(f"{_SECTION}.implementation", f"{text}; set it to dynamic, or remove format")
    if model.num_sliding_layers or model.state_bytes:
        kind = "sliding" if model.num_sliding_layers else "recurrent"
        text = f"transformers quantizes no cache of a model with {kind} layers such as {model.name}"
        raise InputError.at(f"{_SECTION}.format", f"{text}; remove it")


# -- the section -----------------------------------------------------------------------------------

Implementation = Literal["dynamic", "static", "cpu_attention", "streamed"]

_GROUP, _RESIDUAL = 64, 128
"""Elements that share a scale and a shift in 16 bit, and the number of tokens that are not quantized at which
all are (defaults of ``QuantizedLayer``: ``q_group_size``, ``residual_length``)."""
_SCALES = 4 / _GROUP
_OWN: dict[str, float] = {
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0 + _SCALES,
    "int4": 0.5 + _SCALES,
    "int2": 0.25 + _SCALES,
    "nvfp4": 0.5 + 1 / 16,
}
"""Size [B] of an element by format."""
_ELEMENTS = dict(_OWN)


class _FormatName:
    """Field type for the name of a format; those of other packages are known once they are registered."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._known)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"enum": list(_ELEMENTS), "type": "string"}

    @staticmethod
    def _known(value: Any) -> str:
        if isinstance(value, str) and value in _ELEMENTS:
            return value
        *others, last = map(repr, _ELEMENTS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})


CacheFormat = Annotated[str, _FormatName]
"""Name of a format of keys and values."""


class CacheEngine(NamedTuple):
    """A CacheEngine states what the cache of a strategy's program can do."""

    program: str
    tiers: tuple[str, ...] = ("hbm",)
    """Kinds of tiers on which it keeps keys and values."""
    formats: tuple[CacheFormat, ...] = ()
    """Formats with fewer bits in which it keeps them."""
    implementations: tuple[Implementation, ...] = ()
    """Implementations among which the user chooses; () if there is one."""
    of_checkpoint: bool = False
    """Whether keys and values have the format for which a checkpoint has scales, unless another is stated."""
    hot_rows: bool = False
    """Whether rows of sparse attention may be in host memory, and some of them in HBM."""


TRANSFORMERS = CacheEngine("transformers", ("hbm", "dram"), ("fp8", "int4", "int2"), ("dynamic", "static"))
"""``DynamicCache`` and ``StaticCache``, with ``offloading``, and ``QuantizedCache`` (quanto, fp8)."""
ZERO_INFERENCE = TRANSFORMERS._replace(implementations=("dynamic", "static", "cpu_attention"))
"""Also the buffer of DeepSpeed's example of ZeRO-Inference, with its fork of transformers."""
VLLM = CacheEngine("vLLM", formats=("fp8", "nvfp4"), of_checkpoint=True, hot_rows=True)
"""Paged cache of vLLM, with ``--kv-cache-dtype fp8`` or ``nvfp4``, whose 16 elements share a byte
(``nvfp4_kv_cache_full_dim``); ``auto`` is what the checkpoint says (``resolve_kv_cache_dtype_string``,
vllm/utils/torch_utils.py); and with ``hisparse_config``."""
VLLM_BLOCK = 16
"""Number of tokens of a block in vLLM; LMCache has larger ones."""
STREAMED = CacheEngine("a streamed cache", (), ("fp8", "int8", "int4"), ("streamed",))
"""What no program has: the cache on any tier but the GPU (``cache_updates``)."""
_WHAT_IF = "; or try a what-if, implementation: streamed"


def register_cache_format(name: str, element_bytes: float) -> None:
    """Make a format known whose elements take ``element_bytes`` [B], scales included, in a streamed cache.

    A strategy of your own can list it in its ``cache_engine``, too: the cache then stays on the GPU and is
    decoded as that of ``QuantizedLayer``. Raises ValueError if a format of another size has the name.
    """
    if not 0 < element_bytes < inf:
        raise ValueError(f"the size of an element is a number of bytes above 0, got {element_bytes!r}")
    if _ELEMENTS.setdefault(name, element_bytes) != element_bytes:
        raise ValueError(f"the format {name} is known already, with {_ELEMENTS[name]:g} B for an element")


def formats_from_outside() -> dict[str, float]:
    """Return the formats that were registered, so that worker processes can register them."""
    return {name: size for name, size in _ELEMENTS.items() if name not in _OWN}


def _streamed() -> CacheEngine:
    """Return what a streamed cache can do, on the tiers and in the formats that were registered, too."""
    tiers = tuple(one.name for one in TIER_KINDS.values() if not one.is_gpu)
    return STREAMED._replace(tiers=tiers, formats=(*STREAMED.formats, *formats_from_outside()))


class KvCache(Frozen):
    """Where and how the keys and values of all earlier tokens are kept."""

    written_as: ClassVar[str] = "{{tier: {}}}"
    tier: TierName = "hbm"
    """Tier that holds the cache."""
    format: CacheFormat | None = None
    """Format of keys and values; by default the model's data type, which ``fp16`` or ``bf16`` only states."""
    implementation: Implementation | None = None
    """Implementation in transformers: ``dynamic`` grows with every token, ``static`` has room for the longest
    context from the start; by default dynamic. Under ZeRO-Inference also ``cpu_attention``: the CPU computes
    attention over a cache in host memory, which has room for the longest context (DeepSpeed's example of
    2023, ``--kv-offload``); in transformers' code elsewhere that is a what-if. ``streamed`` is a what-if that
    no program has: the cache is on any tier but the GPU, each layer is read ahead of its use, and only keys
    and values of new tokens are written."""
    pin_memory: bool = False
    """Whether the cache of ``cpu_attention`` is in pinned memory (``--pin_kv_cache``)."""
    asynchronous: bool = False
    """Whether copies to the cache of ``cpu_attention`` do not block (``--async_kv_offload``)."""
    connector: Connector | None = None
    """Connector of a paged cache that stores blocks on another tier, and loads those of known prefixes."""
    hot_buffer: HotBuffer | None = None
    """Rows in HBM of a cache of sparse attention of which all rows are in host memory (HiSparse)."""

    @property
    def static(self) -> bool:
        """Whether the cache has its final size from the start."""
        return self.implementation == "static"

    @property
    def streamed(self) -> bool:
        """Whether layers are read from the tier ahead of their use, and only new tokens are written to it."""
        return self.implementation == "streamed"

    @property
    def offloaded(self) -> bool:
        """Whether transformers moves keys and values between the GPU and host memory in every pass."""
        return not in_hbm(self.tier) and not self.attends_on_cpu and not self.streamed

    @property
    def moves(self) -> bool:
        """Whether each pass moves keys and values between the GPU and another tier."""
        return self.offloaded or self.streamed

    @property
    def attends_on_cpu(self) -> bool:
        """Whether the CPU computes attention over the cache."""
        return self.implementation == "cpu_attention"

    @property
    def operations(self) -> int:
        """Number of PyTorch operations of an update beyond the two of ``torch.cat``.

        Offloaded: two copies each way, and two streams that wait for each other (an event is recorded and
        waited for). Static: the positions of the new tokens (``arange``, ``add``, ``add_``); ``index_copy_``
        replaces ``cat``. Quantized: for keys and for values ``dequantize`` (quanto: unpack, multiply,
        subtract, reshape; fp8: cast, multiply, cast), and a second ``cat`` for the tokens that are not yet
        quantized, or (fp8) the three operations that quantize new ones. Streamed: the copies and streams of
        an offloaded cache; two kernels write new tokens instead of ``cat``, and encode them.
        """
        own = 0 if self.streamed else {None: 0, "fp8": 12}.get(self.format, 10)
        return own + 8 * self.moves + 3 * self.static

    @property
    def plain(self) -> KvCache:
        """The cache without a format that only states the model's data type."""
        return self.model_copy(update={"format": None}) if self.format in NATIVE.values() else self

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers of the cache and of the blocks of its connector."""
        return (self.tier,) if self.connector is None else (self.tier, self.connector.tier)

    @property
    def description(self) -> str:
        """Tier, format and implementation, such as "dram, static"."""
        how = {None: "", "dynamic": "", "cpu_attention": "attention on the CPU"}
        blocks = f"blocks on {self.connector.tier}" if self.connector is not None else ""
        rows = "rows on dram" if self.hot_buffer is not None else ""
        others = (self.format, how.get(self.implementation, self.implementation), blocks, rows)
        return ", ".join((self.tier, *filter(None, others)))

    @property
    def on_cpu(self) -> str:
        """The description of a cache that is beside no GPU: in host memory where it is in HBM otherwise."""
        return self.description.replace("hbm", "dram", 1) if in_hbm(self.tier) else self.description

    @property
    def key(self) -> str:
        """Short name of the placement, unique among those of a program."""
        blocks = None if self.connector is None else self.connector.tier
        rows = "rows" if self.hot_buffer is not None else None
        return "-".join(filter(None, ("cache", self.tier, self.format, self.implementation, blocks, rows)))

    def with_placement(self, tier: str, stored: CacheFormat | None, how: Implementation | None) -> KvCache:
        """Return the cache on a tier, in a format and by an implementation."""
        kept = how == "cpu_attention"
        return self.model_copy(
            update={
                "tier": tier,
                "format": stored,
                "implementation": None if how == "dynamic" and self.implementation is None else how,
                "pin_memory": self.pin_memory and kept,
                "asynchronous": self.asynchronous and kept,
            }
        )

    def with_blocks_on(self, tiers: Iterable[str]) -> Iterator[KvCache]:
        """Yield the cache with the blocks of its connector on each of the ``tiers``, through host memory
        unless the tier is the present one; the cache itself without a connector."""
        if (now := self.connector) is None:
            yield self
            return
        for tier in tiers:
            there = now.model_copy(update={"tier": tier, "direct": now.direct and tier == now.tier})
            yield self.model_copy(update={"connector": there})

    def edits(self, other: KvCache) -> tuple[Edit, ...]:
        """Return the edits that make another cache of this one."""
        mine, theirs = dict(self), dict(other)
        if self.connector is not None and other.connector is not None:
            for keys, connector in ((mine, self.connector), (theirs, other.connector)):
                del keys["connector"]
                keys |= {f"connector.{key}": value for key, value in connector}
        changed = {key: value for key, value in theirs.items() if value != mine[key]}
        return tuple(Edit.at(f"strategy.kv_cache.{key}", value) for key, value in changed.items())

    def element_bytes(self, dtype_bytes: int) -> float:
        """Return the size of an element as it is kept [B], scales included."""
        return dtype_bytes if self.format is None else _ELEMENTS[self.format]

    def form(self, *, dtype_bytes: int, length: int, paged: bool, expanded: bool = False) -> CacheForm:
        """Return what attention pays for the cache, which has up to ``length`` tokens.

        ``expanded``: every pass computes keys and values in the model's type from a latent cache.

        Notes
        -----
        ``QuantizedLayer`` of quanto keeps the last tokens in the model's type, at most 127. Every pass
        decodes all others (read as stored, written in full) and joins both (``torch.cat``); every 128th pass
        all are quantized again, which is spread over these passes. The prompt is copied (``contiguous``) and
        quantized. ``Fp8QuantizedLayer`` appends in 8 bit and decodes all in single precision: cast (1 B read,
        4 B written), multiply (4, 4), cast; for the prompt ``abs``, ``amax``, cast, divide, cast.
        """
        size, stored = dtype_bytes, self.element_bytes(dtype_bytes)
        if self.streamed:
            return CacheForm(paged=size if expanded else stored, operations=self.operations)
        if paged:
            return CacheForm(paged=0.0 if self.format is None else stored)
        if self.format == "fp8":
            return CacheForm(first=4 * size + 17, later=size + 19, operations=self.operations)
        if self.format is not None:
            again = (size + stored) / _RESIDUAL
            later = stored + 3 * size + again
            return CacheForm(first=3 * size + stored, later=later, operations=self.operations)
        return CacheForm(
            room=length if self.static else 0, offloaded=self.offloaded, operations=self.operations
        )

    def checked(self, engine: CacheEngine, model: ModelShape, machine: Machine) -> KvCache:
        """Return the plain section. Raises InputError for what the program does not have."""
        engine = _streamed() if self.streamed else engine
        check_native(self, engine, model)
        if (plain := self.plain) == DEFAULT:
            return plain
        names = [name for name, tier in machine.tiers.items() if tier.kind in engine.tiers]
        if self.streamed:
            check_streamed(self, names)
        elif self.tier not in names:
            why = f"{engine.program} keeps no cache there"
            raise refused("tier", self.tier, names, why, more=_WHAT_IF)
        plain.check(engine, model, more="" if self.streamed else _WHAT_IF)
        return plain

    def check(self, engine: CacheEngine, model: ModelShape, *, more: str = "", what_if: bool = True) -> None:
        """Raise InputError for a format, an implementation or a model that the program does not have; of
        those that only a simulation has, unless ``what_if``.

        ``more``: what else is possible with a format that a streamed cache has.
        """
        more = more if self.format in _streamed().formats else ""
        if self.format is not None and self.format not in engine.formats:
            why = f"{engine.program} has no cache of this format"
            raise refused("format", self.format, engine.formats, why, more=more)
        if self.connector is not None and not what_if:
            text = f"{engine.program} has no connector; remove it"
            raise InputError.at("strategy.kv_cache.connector", text)
        what_if = what_if and self.attends_on_cpu and "dynamic" in engine.implementations
        if self.implementation and not what_if and self.implementation not in engine.implementations:
            which = "no such" if engine.implementations else "one"
            why = f"{engine.program} has {which} implementation"
            other = "; strategy.kind deepspeed has it" if self.attends_on_cpu else ""
            raise refused("implementation", self.implementation, engine.implementations, why, more=other)
        if self.connector is not None and (not in_hbm(self.tier) or self.element_bytes(2) % 1):
            key, now = ("format", str(self.format)) if in_hbm(self.tier) else ("tier", self.tier)
            text = f"a connector stores blocks of a cache in HBM with whole bytes, not {now}"
            raise InputError.at(f"strategy.kv_cache.{key}", f"{text}; remove it, or connector")
        if self.hot_buffer is not None:
            self._check_hot_buffer(self.hot_buffer, engine, model)
        if model.state_bytes and (self.attends_on_cpu or self.streamed):
            text = f"{model.family} has recurrent layers, whose states are simulated on the GPU only"
            raise InputError.at("strategy.kv_cache", f"{text}; remove the section")
        check_cpu_attention(self, model)
        if self.offloaded and self.static and model.num_sliding_layers == model.num_hidden_layers:
            text = f"all layers of {model.name} have a sliding window, and a static cache offloads none"
            raise InputError.at("strategy.kv_cache.implementation", f"{text}; set it to dynamic")
        if self.format is not None and engine.implementations and not self.streamed:
            check_quantized(self, model, more=more)

    def _check_hot_buffer(self, buffer: HotBuffer, engine: CacheEngine, model: ModelShape) -> None:
        key = "strategy.kv_cache.hot_buffer"
        if not engine.hot_rows:
            text = f"{engine.program} keeps all rows of a cache in one place; remove it, or use strategy.kind"
            raise InputError.at(key, f"{text} vllm")
        if self.streamed or self.connector is not None:
            other = "implementation" if self.streamed else "connector"
            raise InputError.at(key, f"the rest of such a cache is in HBM; remove it, or kv_cache.{other}")
        buffer.applied(model)

    @property
    def residual(self) -> int:
        """Number of the last tokens at which those that are in the model's type are quantized; 0 if all are
        at once."""
        return 0 if self.format in (None, "fp8") else _RESIDUAL

    def hypothetical(self, *, paged: bool, attends: bool) -> str:
        """Return what no program does, as a clause; "" for the cache of a program, which is ``paged`` or not,
        and can let the CPU attend or not."""
        if self.attends_on_cpu and not attends:
            return "only DeepSpeed's example of ZeRO-Inference attends on the CPU"
        if self.connector is not None and not paged:
            return "no connector moves a cache that is not in blocks; that of vLLM is"
        return "no program has a cache with implementation: streamed" if self.streamed else ""

    def streams(self, machine: Machine) -> tuple[str, ...]:
        """Return the names of the streams that move the cache."""
        if self.streamed:
            copied = machine.tiers[self.tier].row.is_host
            return ("load", "store") if copied else ("load", "store", "read", "write")
        return ("cache",) if self.offloaded or self.attends_on_cpu else ()


DEFAULT = KvCache()


class CachingStrategy(Strategy):
    """A CachingStrategy generates text with a cache of which the user chooses tier and format."""

    cache_engine: ClassVar[CacheEngine] = TRANSFORMERS
    """What the program's cache can do."""
    traits: ClassVar = ProgramTraits(unseen={"kv_cache.implementation": ("streamed",)})

    kv_cache: KvCache = DEFAULT
    """Where and how keys and values are kept."""

    @property
    def description(self) -> Description:
        """Place and format of the cache that ``kv_cache`` sets."""
        cache = self.kv_cache.plain
        return super().description._replace(cache=cache.description, cache_format=cache.format or "")

    @property
    def parts(self) -> Mapping[str, MovablePart]:
        """The blocks of a connector, if there is one, and the cache, if the program has it on several kinds
        of tiers."""
        now, several = self.kv_cache, len(self.cache_engine.tiers) > 1

        def blocks(tier: str) -> tuple[Edit, ...]:
            return tuple(chain.from_iterable(now.edits(one) for one in now.with_blocks_on([tier])))

        found: dict[str, MovablePart] = {}
        if now.connector is not None:
            found["connector"] = MovablePart(now.connector.tier, blocks)
        if several or not in_hbm(now.tier):
            found["cache"] = MovablePart(now.tier, lambda tier: (Edit.at("strategy.kv_cache.tier", tier),))
        return found

    def cache_for(self, model: ModelShape) -> KvCache:
        """Return the section with the format that the program takes where none is stated."""
        form, now = model.cache_format, self.kv_cache
        if not form or now.format is not None or now.streamed or not self.cache_engine.of_checkpoint:
            return now
        return now.model_copy(update={"format": form})

    def cache_of(self, model: ModelShape, workload: Inference, machine: Machine) -> KvCache:
        """Return the cache of a plan. Raises InputError for what the program or its connector does not do."""
        cache = self.cache_for(model).checked(self.cache_engine, model, machine)
        if cache.connector is not None:
            cache.connector.checked(model, workload, machine)
        return cache

    def _others(self, plan: Plan) -> Iterator[KvCache]:
        """Yield the caches that the program can have, and streamed ones beside one that is streamed; the
        present one is among them."""
        now, tiers = self.kv_cache.plain, plan.machine.tiers
        for engine in (self.cache_engine, _streamed()) if now.streamed else (self.cache_engine,):
            places = [name for name, tier in tiers.items() if tier.kind in engine.tiers]
            for way in product(places, (None, *engine.formats), engine.implementations or (None,)):
                with suppress(InputError):
                    now.with_placement(*way).check(engine, plan.model)
                    others = (tier for tier in tiers if tier not in places)
                    yield from now.with_placement(*way).with_blocks_on(others)

    def cache_tunables(self, plan: Plan) -> Iterator[Tunable]:
        """Yield other tiers for the cache and formats with fewer bits, for plans of which a tier of the cache
        is too small, and all tiers, formats and implementations that the program has."""
        yield Tunable("tier", self._cache_moves(plan, same=True))
        yield Tunable("tier", self._cache_moves(plan, same=False))
        yield Tunable("cache", self._cache_choices(plan))

    def _cache_choices(self, plan: Plan) -> Iterator[Change]:
        now = self.kv_cache.plain
        for other in self._others(plan):
            quality = "" if other.format == now.format else quality_of_cache(other.format)
            text = other.description if self.description.on_gpus else other.on_cpu
            yield Change("placement", text, now.edits(other), key=other.key, quality=quality)

    def _cache_moves(self, plan: Plan, *, same: bool) -> Iterator[Change]:
        """Yield the cache on other tiers in the ``same`` format, or in other formats."""
        now = self.kv_cache.plain
        uses = peak_uses(memory_stages(plan), plan.machine.tiers)
        if all(use.fits for use in uses if use.tier in now.tiers):
            return
        for one in self._others(plan):
            if (one.format == now.format) == same and (one.tiers != now.tiers or not same):
                text, quality = f"key-value cache on {one.description}", quality_of_cache(one.format)
                kind = "setting" if same else "precision"
                yield Change(kind, text, now.edits(one), quality="" if same else quality)

    def generation_config(self) -> dict[str, Any]:
        """Return the file with which transformers' ``generate`` makes the cache: content by name; empty for
        the default cache."""
        cache, content = self.kv_cache.plain, dict[str, Any]()
        plain = cache in (DEFAULT, KvCache(implementation="dynamic"))
        if plain or cache.streamed or self.cache_engine.program != TRANSFORMERS.program:
            return {}
        if cache.format is not None:
            bits = {} if cache.format == "fp8" else {"nbits": int(cache.format.removeprefix("int"))}
            backend = "fp8" if cache.format == "fp8" else "quanto"
            content = {"cache_implementation": "quantized", "cache_config": {"backend": backend, **bits}}
        elif cache.static:
            content = {"cache_implementation": "offloaded_static" if cache.offloaded else "static"}
        elif cache.offloaded:
            content = {"cache_implementation": "offloaded"}
        return {"generation_config.json": content} if content else {}
