"""Transfers of the blocks of a paged cache: their sizes on each GPU, their memory, and their operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Sequences
from simoffload.results import StorageTraffic
from simoffload.schedule import Schedule
from simoffload.strategies.base import Phase
from simoffload.strategies.cache.connector import (
    Blocks,
    Connector,
    loaded_blocks,
    portion,
    stored_blocks,
)
from simoffload.strategies.divided import Degrees
from simoffload.strategies.held import Held
from simoffload.strategies.passes.pass_writer import ForwardPass
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
    def memory(self) -> tuple[Held, ...]:
        """Blocks of the prefixes and of one generation on their tier, and pinned buffers of a host."""
        one, machine = self.connector, self.machine
        tier, numbers = machine.tiers[one.tier], range(len(self.stages))
        prefix = one.loaded // one.block_tokens
        known = self._all([self._of(number, prefix) for number in numbers])
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
