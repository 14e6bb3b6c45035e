"""Hooks of a key-value cache that each layer updates in a pass: offloaded to host memory, or streamed.

*Offloaded*: transformers 5.23.0, ``Cache.update`` of ``cache_utils.py``. When layer l adds keys and values,

1. the compute stream waits for the prefetch stream, so that the cache of layer l is there;
2. the prefetch stream waits for the compute stream, and then copies the cache of the next offloaded layer to
   the GPU; the last layer does so for the first one of the next pass;
3. the compute stream joins the cached and the new tokens (dynamic: ``torch.cat``; static: in place);
4. the compute stream copies the whole result to host memory, before the kernels of attention.

Both copies are of pinned memory, and nothing blocks the host thread.

*Streamed*: what no program has (``cache.cache_updates``). Copies, reads and writes have a stream each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial

from simoffload.models import ModelShape
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, Dependency, OpKind
from simoffload.strategies.cache.cache_updates import (
    CACHE_LABEL,
    CacheUpdate,
    LayerUpdate,
    StreamedUpdate,
    on_tier,
)
from simoffload.strategies.cache.connector import (
    LOAD,
    READ,
    STORE,
    THREADS,
    WRITE,
    BlockMoves,
    Blocks,
    copy_rate,
    portions,
    stream_names,
)
from simoffload.strategies.cache.cpu_attention import MemoryWork, cpu_attention, cpu_rate, new_memory
from simoffload.strategies.cache.kv_cache import KvCache
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    Call,
    ForwardPass,
    Hook,
    Part,
    PassWriter,
    StagePass,
)
from simoffload.strategies.passes.streams import DEPTH, HOST, REQUEST
from simoffload.strategies.passes.timing import copy_cause, picoseconds

Updates = Callable[[StagePass], Sequence[CacheUpdate | None]]
"""Function from what is written of a stage to what each of its layers moves."""


class MovedCache(Hook):
    """Keys and values of a layer move between the GPU and another tier when it computes attention."""

    def __init__(self, cache: KvCache, updates: Updates, *, gpus: Sequence[int] = (), main: int = 0) -> None:
        """``gpus``: the GPU of each layer, of a process that drives several; ``main``: that on which the
        cache's own streams are."""
        self.streams, self._tier = cache.streams, cache.tier
        self._updates_of, self._gpus, self._main = updates, gpus, main

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer moves; if some are left out, the last one is still that of the model."""
        updates, last = self._updates_of(stage), max(part.layer for part in stage.parts)
        self._updates = (*updates[:last], updates[-1]) if last >= 0 else ()

    def state(self, part: Part) -> Hashable:
        """Return what a layer moves, and to which GPU."""
        return (self._updates[part.layer], self._following(part.layer)) if part.layer >= 0 else None

    def _following(self, layer: int) -> int:
        """Return the GPU of the next layer."""
        return self._gpus[(layer + 1) % len(self._gpus)] if self._gpus else self._main

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Note what the layer moves."""
        self._now = self._updates[part.layer] if part.layer >= 0 else None
        self._to = self._following(part.layer)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write attention with the update of the layer's cache."""
        if self._now is None or call.module.kind != "attention":
            return False
        if isinstance(self._now, LayerUpdate):
            self._offloaded(self._now, call, duration, after, out)
        else:
            self._streamed(self._now, call, duration, after, out)
        return True

    # -- offloaded ------------------------------------------------------------------------------

    def _offloaded(
        self, update: LayerUpdate, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter
    ) -> None:
        """Write the copies of the next layer's cache and of this one's, and what joins it with new tokens.

        The prefetch stream is one of the main GPU (``torch.Stream()``), so that copies to another one are on
        its compute stream. ``duration`` includes the time of joining.
        """
        compute, prefetch, to = COMPUTE + call.gpu, self.first, self._to
        host, joining = out.so_far(HOST), out.now.timing.joining(update.joined, duration)
        ahead = bool(update.fetched) and to == self._main
        if update.fetched:
            behind = out.so_far(HOST, compute) if ahead else host
            stream = prefetch if to == self._main else COMPUTE + to
            self._copy(stream, update.fetched, behind, to, out, to_device=True)
        # The copy that the layer before has begun; in the first layer the pass before has.
        own = Dependency(out.first + prefetch, 1 if ahead else 0)
        out.add("compute", compute, fixed=joining, label="torch.cat", after=(*after, own))
        if update.stored:  # a layer with a window of one token keeps none
            self._copy(compute, update.stored, host, call.gpu, out, to_device=False)
        out.add("compute", compute, fixed=duration - joining, after=host)

    # -- streamed -------------------------------------------------------------------------------

    def _streamed(
        self,
        update: StreamedUpdate,
        call: Call,
        duration: int,
        after: tuple[Dependency, ...],
        out: PassWriter,
    ) -> None:
        """Write the loads ahead, attention of ``duration`` [ps], and the stores behind it."""
        load, store = (Dependency(out.first + self.stream(one)) for one in ("load", "store"))
        ahead = update.following is not None
        if update.own is not None:
            self._load(update.own, call.gpu, out, ahead=False)
        if update.following is not None:
            self._load(update.following, self._to, out, ahead=True)
        # The layer is there; and the new tokens of the layer before the last one have left their place.
        waits = (load._replace(back=int(ahead)), store._replace(back=1))
        out.add("compute", COMPUTE + call.gpu, fixed=duration, after=(*after, *waits))
        computed = Dependency(out.first + COMPUTE + call.gpu)
        if "write" not in self.streams:
            self._copy(self.stream("store"), update.stored, (computed,), call.gpu, out, to_device=False)
            return
        write = Dependency(out.first + self.stream("write"), 1)
        self._copy(self.stream("store"), update.stored, (computed, write), call.gpu, out, to_device=False)
        self._file("write", update.stored, store, out, latency=update.first)

    def _load(self, sizes: Sequence[int], gpu: int, out: PassWriter, *, ahead: bool) -> None:
        """Load a layer: the next one, if ``ahead``, into the place of the layer before this one."""
        after = [Dependency(out.first + self.stream("store"))] if ahead else []
        if "read" in self.streams:
            # A buffer is free again when the layer before the last one has left it.
            left = Dependency(out.first + self.stream("load"), 1)
            self._file("read", sizes, left, out, latency=not ahead)
            after.append(Dependency(out.first + self.stream("read")))
        self._copy(self.stream("load"), sizes, tuple(after), gpu, out, to_device=True)

    def _file(
        self, kind: OpKind, sizes: Sequence[int], after: Dependency, out: PassWriter, *, latency: bool
    ) -> None:
        """Read or write files. The latency shows once: requests of two layers are in flight at a time."""
        stored, written = out.machine.tiers[self._tier].is_storage, kind == "write"
        size, fixed, route = on_tier(sizes, paged=stored), 0, -1
        if size:
            block = min(size, REQUEST)
            in_flight = DEPTH * block if written else min(2 * size, DEPTH * block)
            route, fixed = out.file(
                self._tier, size, block=block, in_flight=in_flight, written=written, cache=self._tier
            )
        fixed = fixed if latency else 0
        stream = self.stream("write" if written else "read")
        out.add(kind, stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=(after,))

    # -- both -----------------------------------------------------------------------------------

    def _copy(
        self,
        stream: int,
        sizes: Sequence[int],
        after: tuple[Dependency, ...],
        gpu: int,
        out: PassWriter,
        *,
        to_device: bool,
    ) -> None:
        route, fixed = self._link(sizes, gpu, out, to_device=to_device) if sizes else (-1, 0)
        size = sum(sizes)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=after)

    def _link(self, sizes: Sequence[int], gpu: int, out: PassWriter, *, to_device: bool) -> tuple[int, int]:
        """Return route and latency [ps] of copies between a GPU and host memory; GPUs of one process whose
        links differ have routes of their own."""
        if not self._gpus:
            return out.copies(sizes, to_device=to_device, pinned=True, cache=self._tier)
        reach = out.machine.host_to_device if to_device else out.machine.device_to_host
        path, cause = reach(gpu, pinned=True), copy_cause(to_device=to_device, pinned=True)
        if path.hops != reach(self._main, pinned=True).hops:
            cause = cause._replace(gpus=(gpu,))
        return out.transfers(cause.of_cache(self._tier), lambda _: path, sizes)


# --------------------------------------------------------------------------------------------------
# Attention on the CPU as a hook: the cache stays in host memory, where the host thread attends to it.


class AttentionOnCpu(Hook):
    """Each layer copies keys and values to host memory, and the CPU attends to those of earlier tokens."""

    def __init__(self, cache: KvCache, stages: Sequence[ModelShape]) -> None:
        """``stages``: the part of the model on a GPU of each stage."""
        self.streams, self._cache, self._stages = cache.streams, cache, stages

    state = Hook.of_modules

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Find what each layer does."""
        self._work = cpu_attention(self._cache, self._stages[stage.stage], stage.batch)

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Write the copies, the work of the CPU, and the GPU's kernels of attention.

        Keys and values of a prompt leave before the kernels are launched; for later tokens the kernels are
        those before the CPU's part.
        """
        if call.module.kind != "attention":
            return False
        work, compute = self._work, COMPUTE + call.gpu
        if work.prompt:
            out.flush()
            pages = out.machine.host.fresh_memory.from_gpu.value
            new = picoseconds(new_memory(*work.prompt) / pages)
            behind = out.so_far(HOST, compute)
            self._copy(out, self.first, work.prompt, to_device=False, longer=new, behind=behind)
            self._on_cpu(out, "cache-stores", work.stored)
            out.flush()
            after = (*out.so_far(HOST), *(one for one in after if one.stream != out.first + HOST))
        out.add("compute", compute, fixed=duration, after=after)
        if work.sent:
            self._copy(out, compute, work.sent, to_device=False)
            self._on_cpu(out, "cpu-attention", work.attended)
            out.flush()
            self._copy(out, compute, (work.returned,), to_device=True, behind=out.so_far(HOST))
        return True

    def _copy(
        self,
        out: PassWriter,
        stream: int,
        sizes: Sequence[int],
        *,
        to_device: bool,
        longer: int = 0,
        behind: tuple[Dependency, ...] = (),
    ) -> None:
        """Write copies of pageable memory, for which the host waits."""
        route, latency = out.copies(sizes, to_device=to_device, pinned=False, cache=self._work.tier)
        fixed, size = latency + longer, sum(sizes)
        out.add("copy", stream, fixed=fixed, size=size, route=route, label=CACHE_LABEL, after=behind)
        out.host_waits(stream)
        out.spend(out.costs.copy_call.value * len(sizes))

    def _on_cpu(self, out: PassWriter, kind: CauseKind, work: MemoryWork) -> None:
        out.flush()
        cause = Cause(kind).of_cache(self._work.tier)
        route = out.cpu_work(cause, cpu_rate(out.machine, work, ranks=out.ranks))
        out.add("cpu", HOST, size=work.traffic, route=route, label=cause_text(Cause(kind)))
        out.spend(work.returned_pages / out.machine.host.fresh_memory.released.value)


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
