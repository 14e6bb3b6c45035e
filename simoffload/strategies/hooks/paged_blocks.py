"""The hook of a connector, which moves blocks of a paged cache between the GPUs and another tier."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial

from simoffload.schedule import Dependency, OpKind
from simoffload.strategies.cache.blocks import LOAD, READ, STORE, WRITE, BlockMoves, stream_names
from simoffload.strategies.cache.connector import THREADS, Blocks, copy_rate, portions
from simoffload.strategies.passes.pass_writer import ForwardPass, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.passes.timing import copy_cause, picoseconds


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
