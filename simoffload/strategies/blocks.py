"""Transfers of the blocks of a paged cache: their sizes on each GPU, their memory, and their operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from simoffload.hardware import Machine, Path
from simoffload.models import ModelShape, Sequences
from simoffload.results import MemoryTerm, StorageTraffic
from simoffload.schedule import Cause, Dependency, Hops, Op, OpKind, Schedule, ScheduleBuilder
from simoffload.strategies.base import Phase
from simoffload.strategies.cache_routes import TransferRoute
from simoffload.strategies.connector import (
    Blocks,
    Connector,
    copy_rate,
    file_rate,
    loaded_blocks,
    portion,
    portions,
    stored_blocks,
)
from simoffload.strategies.degrees import Degrees
from simoffload.strategies.plan import ForwardPass
from simoffload.strategies.timing import copy_cause, picoseconds
from simoffload.workload import Inference

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
        """Return what each GPU of a stage reads before a prefill."""
        return loaded_blocks(
            self.connector, self.stages[stage], self.workload.batch_size, element=self.element
        )

    def stores(self, stage: int) -> tuple[Blocks, ...]:
        """Return what each GPU of a stage writes in a generation: the new full blocks of its sequences, layer
        by layer only those of the prompt."""
        return self._of(stage, self.connector.new_blocks(self.workload))

    def _of(self, stage: int, number: int) -> tuple[Blocks, ...]:
        part, sequences = self.stages[stage], self.workload.batch_size
        return stored_blocks(self.connector, part, sequences, number, element=self.element)

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
    def memory(self) -> tuple[MemoryTerm, ...]:
        """Blocks of the prefixes and of one generation on their tier, and pinned buffers of a host."""
        one, machine = self.connector, self.machine
        tier, numbers = machine.tiers[one.tier], range(len(self.stages))
        prefix = one.loaded // one.block_tokens
        known = self._all([self._of(number, prefix) for number in numbers])
        new = self._all(list(map(self.stores, numbers)))
        nodes, in_memory = machine.nodes_of(self.degrees.ranks), tier.kind == "dram"
        hosts = nodes if in_memory else 1
        remedy = "lower strategy.kv_cache.connector.prefix or batch_size"
        found = [
            MemoryTerm(one.tier, name, -(-size // hosts), pinned=in_memory, remedy=remedy)
            for name, size in zip(BLOCK_TERMS, (known, new), strict=True)
            if size
        ]
        if one.staged(machine):
            ranks = machine.ranks_per_node(self.degrees.ranks)
            found.append(MemoryTerm("dram", _STAGING, ranks * self._staging, pinned=True))
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


@dataclass
class BlockWriter:
    """A BlockWriter writes the operations of the GPUs of one stage that move blocks.

    Through pinned buffers, of which there are two in each direction, the one half of the way follows the
    other portion by portion.
    """

    builder: ScheduleBuilder
    machine: Machine
    connector: Connector
    gpus: Sequence[int]
    """GPUs whose operations are written: those of the stage."""
    hops: Callable[[list[Path]], tuple[Hops, ...]]
    """Function from the paths of these GPUs to the hops of all ranks."""
    stream: int
    """Index of the stream of loads; the others follow it."""

    def __post_init__(self) -> None:
        self._started: set[int] = set()
        self._known: dict[tuple[int, int], TransferRoute] = {}

    def load(self, blocks: Blocks, after: tuple[Dependency, ...] = ()) -> int:
        """Write loads of ``blocks``; return the number of the last one on the stream of loads."""
        return self._move(blocks, after, near=LOAD, far=READ)

    def store(self, blocks: Blocks, after: tuple[Dependency, ...] = ()) -> int:
        """Write stores of ``blocks``; return the number of the last one on its stream."""
        return self._move(blocks, after, near=STORE, far=WRITE)

    def store_part(self, blocks: Blocks, parts: int) -> None:
        """Write one of equal ``parts`` of the stores of ``blocks``, while a pass runs: through pinned buffers
        that of the pass before leaves for the tier at the same time."""
        for way in (STORE, WRITE) if self.connector.staged(self.machine) else (STORE,):
            self._transfer(way, blocks, parts=parts)

    @property
    def last_of_stores(self) -> int:
        """Stream on which a store ends."""
        return self.stream + (WRITE if self.connector.staged(self.machine) else STORE)

    def _move(self, blocks: Blocks, after: tuple[Dependency, ...], *, near: int, far: int) -> int:
        if not self.connector.staged(self.machine):
            return self._transfer(near, blocks, after)
        halves = (far, near) if near == LOAD else (near, far)
        number = -1
        for part in [blocks] if self.connector.layerwise else portions(blocks):
            self.builder.segment("blocks")
            # A buffer is free again when the transfer before the last one has left it.
            self._transfer(halves[0], part, (*after, Dependency(self.stream + halves[1], 1)))
            number = self._transfer(halves[1], part, (Dependency(self.stream + halves[0]),))
        return number

    def _transfer(
        self, way: int, blocks: Blocks, after: tuple[Dependency, ...] = (), *, parts: int = 1
    ) -> int:
        cause, first, hops = self._way(way, blocks.part)
        kind: OpKind = "copy"
        if self._on_tier(way):
            kind = "read" if way in (LOAD, READ) else "write"
            stored = self.machine.tiers[self.connector.tier].is_storage
            rate = file_rate(first, blocks) if stored else first.curve.rate(blocks.total)
        else:
            rate = copy_rate(first, blocks)
        route = self.builder.route(cause=cause, hops=hops, cap=rate)
        fixed = 0 if way in self._started else picoseconds(first.latency)
        self._started.add(way)
        size = -(-blocks.total // parts)
        return self.builder.add(Op(kind, "blocks", self.stream + way, fixed, size, route, after))

    def _on_tier(self, way: int) -> bool:
        """Return whether a half of the way is that of the tier."""
        return way in (READ, WRITE) or self.connector.direct

    def _way(self, way: int, size: int) -> TransferRoute:
        """Return one half of the way: between GPU and host memory in copies of ``size`` [B], or that of the
        tier."""
        if (way, size) not in self._known:
            machine, one, inward = self.machine, self.connector, way in (LOAD, READ)
            if self._on_tier(way):
                reach = machine.storage_read if inward else machine.storage_write
                paths = [reach(one.tier, gpu, gds=one.direct) for gpu in self.gpus]
                cause = Cause("read" if inward else "write")
            else:
                reach_host = machine.host_to_device if inward else machine.device_to_host
                paths = [reach_host(gpu, pinned=True, size=size) for gpu in self.gpus]
                cause = copy_cause(to_device=inward, pinned=True)
            self._known[way, size] = TransferRoute(cause.of_cache(one.tier), paths[0], self.hops(paths))
        return self._known[way, size]


class PassBlocks:
    """PassBlocks are the transfers of blocks of all stages in one pass."""

    def __init__(self, moves: BlockMoves | None, writer: Callable[[int], BlockWriter]) -> None:
        self._moves, self._writer = moves, cache(writer)
        self._loaded: dict[int, int] = {}
        self.layerwise = moves is not None and moves.connector.layerwise
        """Whether blocks are moved layer by layer."""
        self.stores = False
        """Whether the pass stores blocks."""

    def alone(self, forward: ForwardPass) -> None:
        """Write all transfers of a pass, which wait for nothing."""
        for number, moves in self._each():
            for blocks in moves.loads(number) if forward.loads else ():
                self._writer(number).load(blocks)
            for blocks in moves.stores(number) if forward.stores else ():
                self._writer(number).store(blocks)

    def begin(self, forward: ForwardPass) -> None:
        """Write the loads of all blocks, or those of the first layers, and stores: those of the generation
        before, or the part of a decode step."""
        self.stores = forward.stores
        for number, moves in self._each():
            loads = moves.loads(number) if forward.loads else ()
            for blocks in loads[:1] if self.layerwise else loads:
                self._loaded[number] = self._writer(number).load(blocks)
            for blocks in moves.stores(number) if forward.stores and not self.layerwise else ():
                if moves.parts:
                    self._writer(number).store_part(blocks, moves.parts)
                else:
                    self._writer(number).store(blocks)

    def awaited(self, stage: int, layer: int, after: tuple[Dependency, ...]) -> int | None:
        """Return the number of the load for which a layer waits, None if there is none; layer by layer, begin
        the load of the next one ``after`` the computation of the one before."""
        loaded = self._loaded.pop(stage, None)
        if loaded is not None and self.layerwise and self._moves is not None:
            loads = self._moves.loads(stage)
            if layer + 1 < len(loads):
                self._loaded[stage] = self._writer(stage).load(loads[layer + 1], after)
        return loaded

    def leave(self, stage: int, layer: int, sequences: int, after: tuple[Dependency, ...]) -> None:
        """Store the blocks of a layer that ``sequences`` of a micro-batch have filled ``after`` its
        computation, if that is done layer by layer."""
        if self.stores and self.layerwise and self._moves is not None:
            blocks = self._moves.stores(stage)[layer]
            each = blocks.number // self._moves.workload.batch_size
            self._writer(stage).store(blocks._replace(number=sequences * each), after)

    def end(self, stage: int) -> tuple[Dependency, ...]:
        """Return what the end of the pass waits for: layer by layer, the stores."""
        if not (self.stores and self.layerwise):
            return ()
        return (Dependency(self._writer(stage).last_of_stores),)

    def _each(self) -> Iterator[tuple[int, BlockMoves]]:
        if self._moves is not None:
            for number in range(len(self._moves.stages)):
                yield number, self._moves


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
