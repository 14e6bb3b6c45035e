"""The hook of a connector, which moves blocks of a paged cache between the GPUs and another tier."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from simoffload.schedule import Dependency
from simoffload.strategies.blocks import LOAD, BlockMoves, BlockWriter, stream_names
from simoffload.strategies.passes.pass_writer import Hook, Part, PassWriter, StagePass
from simoffload.strategies.plan import ForwardPass
from simoffload.strategies.streams import HOST
from simoffload.strategies.timing import picoseconds


class PagedBlocks(Hook):
    """Blocks of known prefixes are loaded before a prefill, and new ones stored, all at once or by layer."""

    def __init__(self, moves: BlockMoves, forward: ForwardPass, *, compiled: bool) -> None:
        self.streams = stream_names(moves.connector, moves.machine)
        self._moves, self._forward, self._compiled = moves, forward, compiled
        self._writers: dict[int, BlockWriter] = {}
        self._loaded: dict[int, int] = {}
        self._layerwise = moves.connector.layerwise
        self._number = 0

    def state(self, part: Part) -> Hashable:
        """Return what no other layer has if blocks are moved layer by layer."""
        return (self._number, part.layer) if self._layerwise else None

    def _writer(self, stage: int, out: PassWriter) -> BlockWriter:
        """Return the writer of the transfers of a stage."""
        if stage not in self._writers:
            out.go_to(stage)
            self._writers[stage] = BlockWriter(
                out.builder,
                out.machine,
                self._moves.connector,
                out.gpus,
                lambda paths: out.of_all([one.hops for one in paths]),
                out.first + self.first,
            )
        return self._writers[stage]

    def alone(self, out: PassWriter) -> None:
        """Write all transfers of a pass, which wait for nothing."""
        moves = self._moves
        for number in self._stages(out):
            for blocks in moves.loads(number) if self._forward.loads else ():
                self._writer(number, out).load(blocks)
            for blocks in moves.stores(number) if self._forward.stores else ():
                self._writer(number, out).store(blocks)

    def start(self, out: PassWriter) -> None:
        """Write the loads of all blocks, or those of the first layers, and stores: those of the generation
        before, or the part of a decode step."""
        moves, forward = self._moves, self._forward
        for number in self._stages(out):
            loads = moves.loads(number) if forward.loads else ()
            for blocks in loads[:1] if self._layerwise else loads:
                self._loaded[number] = self._writer(number, out).load(blocks)
            for blocks in moves.stores(number) if forward.stores and not self._layerwise else ():
                if moves.parts:
                    self._writer(number, out).store_part(blocks, moves.parts)
                else:
                    self._writer(number, out).store(blocks)

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
        if not self._layerwise or part.layer < 0:
            return
        loaded = self._loaded.pop(out.stage_number, None)
        if loaded is not None:
            loads, after = self._moves.loads(out.stage_number), out.on_gpu()[:1]
            out.await_(self.first + LOAD, loaded)
            if part.layer + 1 < len(loads):
                self._loaded[out.stage_number] = self._writer(out.stage_number, out).load(
                    loads[part.layer + 1], after
                )

    def leave(self, part: Part, out: PassWriter) -> None:
        """Store the blocks that the sequences of a micro-batch have filled in a layer; a chunk of a prompt
        fills none."""
        if not (self._forward.stores and self._layerwise) or part.layer < 0:
            return
        work, blocks = self._moves.workload, self._moves.stores(out.stage_number)[part.layer]
        finished = sum(one.number for one in out.now.batch if one.context >= work.prompt_length)
        each = blocks.number // work.batch_size
        self._writer(out.stage_number, out).store(blocks._replace(number=finished * each), out.on_gpu())

    def finish(self, out: PassWriter) -> bool:
        """End a pass that stores: with its stores if they are by layer; otherwise they may continue, and its
        end is that of the last host."""
        if not self._forward.stores:
            return False
        after: tuple[Dependency, ...] = out.on_gpu()
        if self._layerwise:
            after = (*after, Dependency(self._writer(out.stage_number, out).last_of_stores))
        overhead = 0 if self._compiled else picoseconds(out.costs.pass_overhead.value)
        out.flush()
        out.add("hook", HOST, fixed=overhead, label="pass", after=after)
        after = tuple([Dependency(out.first + one) for one in out.joined])
        if out.stage_number:
            after = (*after, Dependency(out.first - out.width + HOST, 0, out.stage_before))
        out.add("hook", HOST, label="pass", after=after)
        return True
