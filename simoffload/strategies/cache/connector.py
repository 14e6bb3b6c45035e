"""Connectors of a paged key-value cache: blocks that are stored on another tier, and loaded from it.

Reference: vLLM 0.33, ``v1/kv_offload`` and ``distributed/kv_transfer/kv_connector/v1/offloading``
(OffloadingConnector); LMCache 0.5.6; Mooncake's transfer engine (``docs/source/performance``).

A block has the keys and values of ``block_tokens`` tokens of a sequence. Before the prefill of the rest of a
prompt, the blocks of its prefix are read: all of them before the prefill begins, or layer by layer, those of
the next layer during the computation of the present one. New full blocks are stored in the other direction of
the link, and no pass waits for that: those of a generation in equal parts during its decode steps, or without
decode steps (a server that only prefills) during the next prefill, with whose loads they share the link.
Layer by layer, the blocks of the prompt are stored during its prefill, which ends with them
(``wait_for_save``), and those of generated tokens are not (``save_decode_cache`` of LMCache).

Copies over the link are issued block by block, so that their rate is that of copies of the size of one
contiguous part of a block (``copy_rate``), alone and in both directions at once
(``both_ways_by_size`` of the link's profile). Storage is read and written by 16 threads, a block as one file,
through pinned buffers in host memory or directly (GPUDirect Storage).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from simoffload.documents import Frozen
from simoffload.errors import InputError
from simoffload.hardware import Machine, Path
from simoffload.models import Layer, ModelShape, Sequences, window_of
from simoffload.results import StorageTraffic
from simoffload.schedule import Dependency, OpKind, Schedule
from simoffload.strategies.base import Phase
from simoffload.strategies.divided import Degrees
from simoffload.strategies.held import Held
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.passes.timing import copy_cause, picoseconds
from simoffload.strategies.tunables import TierName
from simoffload.workload import Inference

_KEY = "strategy.kv_cache.connector"
THREADS = 16
"""Threads that read, and that write, files of blocks (vLLM 0.33, file tier of ``v1/kv_offload``)."""
_PORTIONS = 64
"""Parts of at least 16 blocks in which blocks go through pinned buffers, at most: our choice."""

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
    cross_layer_blocks: Flag | None = None
    """Whether a block is contiguous over all layers; false: keys and values of each layer are apart. By
    default true (vLLM from 0.12 on, 0.33 with VLLM_KV_CACHE_LAYOUT=BLHNC), except layer by layer and for
    models with sliding layers."""
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

    def across_layers(self, model: ModelShape) -> bool:
        """Return whether a block is contiguous over all layers."""
        if self.cross_layer_blocks is not None:
            return self.cross_layer_blocks
        return not (self.layerwise or model.num_sliding_layers)

    def staged(self, machine: Machine) -> bool:
        """Return whether blocks go through pinned buffers in host memory."""
        return machine.tiers[self.tier].kind != "dram" and not self.direct

    def checked(self, model: ModelShape, workload: Inference, machine: Machine) -> tuple[str, ...]:
        """Return warnings. Raises InputError for what no connector does."""
        kind = machine.tiers[self.tier].kind
        if kind == "hbm":
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
        return () if target.kind == "remote" else machine.gpudirect_warnings(f"{_KEY}.direct")


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


def copy_rate(path: Path, blocks: Blocks) -> int:
    """Return the rate [B/s] of copies of contiguous parts of blocks, one after the other.

    Notes
    -----
    A copy of b bytes takes t0 + b / rate: between two sizes that the profile has, the time is linear in the
    size; below the smallest one, t0 is the latency of a copy. vLLM's own figures on an H100 (5 GB/s with
    parts of 32 KB, 50 GB/s with 2 MB: vllm-project/vllm issue 33398 and blog of 2026-01-08) are t0 = 6 us.
    """
    size, points = blocks.part, path.curve.points
    if size < points[0][0]:
        seconds = path.latency + size / points[-1][1]
    elif size >= points[-1][0]:
        seconds = size / points[-1][1]
    else:
        at = next(number for number, (x, _) in enumerate(points) if x > size)
        (left, low), (right, high) = points[at - 1 : at + 1]
        before, behind = left / low, right / high
        seconds = before + (behind - before) * (size - left) / (right - left)
    return max(1, int(size / seconds))


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
        width = one.block_tokens * part.cache_width * self.element
        tensors = 1 if part.latent_width is not None else 2

        def counted(layer: Layer) -> int:
            window = window_of(layer)
            return min(number, -(-window // one.block_tokens)) if windows and window is not None else number

        if one.layerwise:
            return tuple(Blocks(sequences * counted(layer), width, tensors) for layer in part.layers)
        together = one.across_layers(part)
        layers: dict[int, int] = {}
        for layer, count in part.kinds:
            layers[counted(layer)] = layers.get(counted(layer), 0) + count
        return tuple(
            Blocks(sequences * each, count * width, 1 if together else count * tensors)
            for each, count in layers.items()
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
        nodes, in_memory = machine.nodes_of(self.degrees.ranks), tier.kind == "dram"
        hosts = nodes if in_memory else 1
        remedy = "lower strategy.kv_cache.connector.prefix or batch_size"
        transfers = self.traffic
        found = [
            Held(one.tier, name, -(-size // hosts), in_memory, remedy, kind="cache", traffic=both)
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
        ((_, tokens, context),) = one.batch
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
            for blocks in loads[:1] if self._layerwise else loads:
                self._loaded[number] = self._move(blocks, (), out, load=True)
            for blocks in moves.stores(number) if forward.stores and not self._layerwise else ():
                if moves.parts:  # that of the pass before leaves a buffer for the tier at the same time
                    for way in (STORE, WRITE) if self._staged else (STORE,):
                        self._transfer(way, blocks, (), out, parts=moves.parts)
                else:
                    self._move(blocks, (), out, load=False)

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
        overhead = 0 if self._compiled else picoseconds(out.costs.pass_overhead.value)
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
        if way in (READ, WRITE) or one.direct:
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
            cause = copy_cause(to_device=inward, pinned=True).of_cache(one.tier)
            path, hops = out.way((cause, blocks.part), partial(reach, pinned=True, size=blocks.part))
            route = out.builder.route(cause=cause, hops=hops, cap=copy_rate(path, blocks))
            fixed = picoseconds(path.latency)
        if (out.stage_number, way) in self._begun:
            fixed = 0
        self._begun.add((out.stage_number, way))
        size = -(-blocks.total // parts)
        stream = self.first + way
        return out.add(kind, stream, fixed=fixed, size=size, route=route, label="blocks", after=after)
