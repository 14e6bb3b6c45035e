"""Hooks of FlexGen: a block of GPU batches goes through one slot after the other.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/flex_opt.py`` (``generation_loop_normal``,
``generation_loop_overlap_single_batch``, ``generation_loop_overlap_multi_batch``) and ``pytorch_backend.py``
(``general_copy``, ``copy_worker_func``, ``mha_gen``).

A slot is a layer of FlexGen, and a call is a slot of one GPU batch. With overlap the host thread begins the
copy of the next slot's weights (only with the first batch), of the next cache, and of the last and the next
hidden states; it launches the kernels, stores the cache of the batch before, and then waits for the whole GPU
and all copy threads. So a call takes as long as the slowest of them, and weights that take longer than one
GPU batch delay it although the link is free during the others. Hidden states are copied on the stream of the
kernels. Without overlap everything is on that stream, for the call itself, and the host awaits it only where
it reads new tokens.

Memory that is not pinned is copied to a pinned tensor by the host thread itself before its copy to the GPU
begins. What goes from the GPU to such memory in a prefill, and all that is read from or written to disk, is
given to four copy threads, each with a pinned buffer as relay. Pages of the cache are touched for the first
time in the prefill, so that the operating system clears them then. Files are mapped (``np.memmap``); if the
page cache does not hold them, writes are taken to be as fast as the drive. Attention on the CPU runs in the
host thread, and so does the cast of keys and values to single precision before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from simoffload.schedule import Cause, CauseKind, Dependency, OpKind
from simoffload.strategies.cache.cpu_attention import ONE_QUERY
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.streams import HOST, loops_rate, mapped_read
from simoffload.strategies.passes.timing import picoseconds
from simoffload.strategies.programs.flexgen_layout import BlockSlot, BlockSlots, is_prefill

if TYPE_CHECKING:
    from simoffload.strategies.programs.flexgen import FlexGenPlan

_THREADS = 4
_COPY_CALL = 2
"""Number of PyTorch operations of a copy: the new tensor, and the copy itself."""
_SYNC_CALL = 2
"""Number of waits at the end of a call: for the queue of the copy threads, and for the GPU."""
_EXPAND_CALL, _SQUEEZE_CALL, _MASK_CALL = 14, 18, 3
"""Numbers of PyTorch operations that write a tensor in full, that compress one, and that extend a mask."""
_SINGLE = 4
"""[B] of a number in single precision, in which the CPU attends."""
_CPU_EXPANDED = 23
"""[B] moved for each element that ``decompress`` writes in single precision on the CPU: two shifts or masks
of packed bytes (1 each), two copies of the halves into the result (2.5 each), a division and an addition in
place (8 each)."""
_CPU_CUT = 8
"""[B] moved for each element that is copied without the padding of its head (``contiguous``)."""


_OPERATIONS = {
    "input embedding": (10, 10),
    "attention": (36, 35),
    "MLP": (5, 5),
    "layer": (41, 40),
    "output embedding": (5, 5),
}
"""PyTorch operations of a call in a prefill and in a decode step, counted in FlexGen's code."""


class SlotCall(NamedTuple):
    """A SlotCall is a slot of one GPU batch, with the slots of the calls around it."""

    slot: BlockSlot
    before: BlockSlot | None
    following: BlockSlot | None
    weights: BlockSlot | None
    """Slot whose weights come with this call."""
    last: bool
    """Whether it is the last GPU batch of the slot."""


def slot_parts(slots: BlockSlots, *, gpu_batches: int, overlap: bool) -> tuple[Part, ...]:
    """Return the parts of a pass: layers with the same slots around them are the same calls."""
    order = (None, slots.first, *slots.layer * slots.layers, slots.last, None)
    known: dict[tuple[int, ...], tuple[Call, ...]] = {}

    def part(name: str, first: int, width: int = 1, layer: int = -1) -> Part:
        around = order[first - 1 : first + width + 1]
        key = tuple(map(id, around))
        if key not in known:
            known[key] = tuple(calls(around))
        return Part(name, known[key], layer)

    def calls(around: Sequence[BlockSlot | None]) -> Iterator[Call]:
        for before, slot, following in zip(around, around[1:], around[2:], strict=False):
            assert slot is not None
            module = slot.module
            ahead = following or slots.first  # after the last slot come the weights of the first
            for batch in range(gpu_batches):
                first, last = batch == 0, batch == gpu_batches - 1
                neighbours = before if first else slot, following if last else slot
                weights = (ahead if overlap else slot) if first else None
                yield Call(module, facts=SlotCall(slot, *neighbours, weights, last))

    width = len(slots.layer)
    layers = [part("layer", 2 + number * width, width, number) for number in range(slots.layers)]
    return (part(slots.first.name, 1), *layers, part(slots.last.name, len(order) - 2))


def _of(call: Call) -> SlotCall:
    assert isinstance(call.facts, SlotCall)
    return call.facts


# -- work of the host thread, and copies that it begins ---------------------------------------------


def _copy(
    stream: int,
    sizes: Sequence[int],
    out: PassWriter,
    *,
    to_device: bool,
    label: str,
    pinned: bool = True,
    cache: str = "",
) -> None:
    """Begin copies of ``sizes`` [B] between host memory and the GPU, one after the other on a stream;
    ``cache`` as in ``copies``."""
    route, latency = out.copies(sizes, to_device=to_device, pinned=pinned, cache=cache)
    out.flush()
    after = out.so_far(HOST)
    out.add("copy", stream, fixed=latency, size=sum(sizes), route=route, label=label, after=after)


def _copy_within_gpu(stream: int, size: int, out: PassWriter) -> None:
    """Begin to copy ``size`` [B] of the cache within HBM."""
    out.flush()
    fixed = out.now.timing.hbm_copy(size)
    out.add("copy", stream, fixed=fixed, label="cache", after=out.so_far(HOST))


def _on_cpu(label: str, traffic: int, out: PassWriter, *, cache: str = "") -> None:
    """Let the host thread, and the other threads of PyTorch's loops, work on host memory."""
    out.flush()
    out.add("cpu", HOST, size=traffic, route=_loops(traffic, out, cache=cache), label=label)


def _loops(
    traffic: int,
    out: PassWriter,
    *,
    new: int = 0,
    share: float = 1.0,
    kind: CauseKind = "tensor-loops",
    cache: str,
) -> int:
    """Return the route of PyTorch's loops over ``traffic`` [B] on all cores (``loops_rate``)."""
    rate = loops_rate(out.machine.host, traffic=traffic, new=new, share=share)
    return out.cpu_work(Cause(kind).of_cache(cache), rate)


# -- hooks ------------------------------------------------------------------------------------------


class _SlotHook(Hook):
    """A _SlotHook is a hook around the slots of a block."""

    def __init__(self, plan: FlexGenPlan) -> None:
        self._plan, self._options = plan, plan.options
        self._operation = plan.machine.host.eager_costs.operation.value

    state = Hook.of_modules

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Note the GPU batch, which is the same in each call."""
        self._batch, self._prefill = stage.batch, is_prefill(stage.batch)
        self._new = stage.tokens * self._plan.model.hidden_size

    def _calls(self, number: int, out: PassWriter) -> None:
        """Let the host thread call so many PyTorch operations."""
        out.spend(number * self._operation)

    def _to_gpu(self, stream: int, size: int, out: PassWriter, *, label: str, cache: str = "") -> None:
        """Copy pageable memory to a pinned tensor in the host thread, and that to the GPU."""
        self._calls(_COPY_CALL + 1, out)
        _on_cpu(f"pinning {label}", 2 * size, out, cache=cache)
        _copy(stream, [size], out, to_device=True, label=label, cache=cache)


class CopyJob(NamedTuple):
    """A CopyJob is a copy that a copy thread does step by step; 0 stands for a step that it does not have."""

    label: str
    read: int = 0
    """Size [B] that it reads from a file."""
    from_gpu: int = 0
    traffic: int = 0
    """Memory traffic of the CPU [B]."""
    new: int = 0
    """Size of memory that is touched for the first time [B]."""
    to_gpu: int = 0
    written: int = 0
    cache: str = ""
    """Tier of the cache, if it is keys and values that are copied."""


class CopyThreads(_SlotHook):
    """Copy threads take one job after the other; what it carries is the number of the next thread."""

    streams = tuple(f"copy thread {one}" for one in range(_THREADS))
    carry: int = 0

    def submit(self, job: CopyJob, out: PassWriter) -> None:
        """Give a job to the next copy thread."""
        out.flush()
        thread = self.first + self.carry
        self.carry = (self.carry + 1) % _THREADS
        begun = False

        def step(kind: OpKind, size: int, route: int, latency: int = 0) -> None:
            nonlocal begun
            after = () if begun else out.so_far(HOST)
            out.add(kind, thread, fixed=latency, size=size, route=route, label=job.label, after=after)
            begun = True

        tier, stored = self._options.disk, not self._plan.cached
        link = partial(out.copies, pinned=True, cache=job.cache)
        if job.from_gpu:
            step("copy", job.from_gpu, *link([job.from_gpu], to_device=False))
        if job.read and stored:  # which copies to the buffer
            step("read", job.read, *mapped_read(out, tier, job.read, traffic=job.traffic, cache=job.cache))
        else:
            step("cpu", job.traffic, _loops(job.traffic, out, new=job.new, cache=job.cache))
        if job.to_gpu:
            step("copy", job.to_gpu, *link([job.to_gpu], to_device=True))
        if job.written and stored:  # to a mapped file
            path, hops = out.way((tier, True), partial(out.machine.storage_write, tier))
            cause, rate = Cause("write", tier).of_cache(job.cache), path.curve.rate(job.written)
            step(
                "write",
                job.written,
                out.builder.route(cause=cause, hops=hops, cap=rate),
                picoseconds(path.latency),
            )


class SlotEnds(_SlotHook):
    """With overlap a call ends when the host has waited for all streams and copy threads."""

    def __init__(self, plan: FlexGenPlan, threads: CopyThreads) -> None:
        super().__init__(plan)
        self._threads = threads

    def begin(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Extend the mask of each GPU batch."""
        self._calls(self._options.gpu_batches * _MASK_CALL, out)

    def after(self, call: Call, out: PassWriter) -> None:
        """Wait, without overlap only for new tokens."""
        if self._options.overlap:
            self._synchronize(out)
        elif _of(call).slot is self._plan.slots.last:
            out.host_waits(COMPUTE)
        if _of(call).last:
            out.flush()

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Wait for all streams and copy threads."""
        self._synchronize(out)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Add nothing, as the pass has ended."""
        return True

    def _synchronize(self, out: PassWriter) -> None:
        for stream in range(COMPUTE, out.width):
            out.host_waits(stream)
        self._calls(_SYNC_CALL, out)
        self._threads.carry = 0


class _MovedStates(_SlotHook):
    """A _MovedStates hook moves states between the GPU and their home, by copy threads where it has to."""

    def __init__(self, plan: FlexGenPlan, threads: CopyThreads) -> None:
        super().__init__(plan)
        self._submit = threads.submit

    def _on(self, name: str) -> int:
        """Return the number of one of its streams; without overlap that of the kernels."""
        return self.stream(name) if self._options.overlap else COMPUTE


class SlotWeights(_MovedStates):
    """Weights of a slot come to the GPU with the first GPU batch of the slot before, or of its own."""

    streams = ("load weights",)

    def before(self, call: Call, out: PassWriter) -> None:
        """Bring the weights of a slot to the GPU."""
        slot, pinned = _of(call).weights, list[int]()
        stream = self._on("load weights")
        for tensor in slot.loaded if slot is not None else ():
            if tensor.home.pinned:
                pinned += tensor.sizes
            elif not tensor.home.mapped:
                for size in tensor.sizes:
                    self._to_gpu(stream, size, out, label="weights")
            else:
                self._calls(_COPY_CALL * len(tensor.sizes), out)
                for size in tensor.sizes:
                    self._submit(CopyJob("weights", read=size, traffic=2 * size, to_gpu=size), out)
        if pinned:
            self._calls(_COPY_CALL * len(pinned), out)
            _copy(stream, pinned, out, to_device=True, label="weights")


class SlotCache(_MovedStates):
    """Keys and values come before a call that attends to them, and new ones are stored after it: with overlap
    beside the call before and the one after it."""

    streams = ("load cache", "store cache")

    def before(self, call: Call, out: PassWriter) -> None:
        """Bring the cache of a GPU batch to where attention is computed; a prefill has none."""
        loaded = _of(call).following if self._options.overlap else _of(call).slot
        if self._prefill or loaded is None or not loaded.attends:
            return
        self._calls(2 * _COPY_CALL, out)
        if self._options.cpu_attention:
            self._load_for_cpu(out)
            return
        stream, cache, disk = self._on("load cache"), self._plan.block_cache, self._options.disk
        parts = cache.parts(self._batch)
        if parts.gpu and parts.offloaded:
            _copy_within_gpu(stream, sum(cache.sizes(parts.gpu)), out)
        for size in cache.sizes(parts.cpu):
            self._to_gpu(stream, size, out, label="cache", cache="dram")
        for size in cache.sizes(parts.disk):
            self._submit(CopyJob("cache", read=size, traffic=2 * size, to_gpu=size, cache=disk), out)

    def _load_for_cpu(self, out: PassWriter) -> None:
        """Cast keys and values to single precision in host memory, or only bring them there if they are
        compressed; what is on the GPU is attended to there if the cache is divided."""
        packed, cache, disk = self._options.compress_cache, self._plan.block_cache, self._options.disk
        parts = cache.parts(self._batch, less=0 if packed else 1)
        cast = 1 if packed else _SINGLE // self._plan.model.dtype_bytes
        if parts.gpu and not parts.offloaded:
            for size in cache.sizes(parts.gpu):
                self._submit(CopyJob("cache", from_gpu=size, traffic=(1 + cast) * size, cache="hbm"), out)
        if not packed:
            for size in cache.sizes(parts.cpu):
                _on_cpu("casting the cache", (1 + cast) * size, out, cache="dram")
        for size in cache.sizes(parts.disk):
            self._submit(CopyJob("cache", read=size, traffic=(1 + cast) * size, cache=disk), out)

    def after(self, call: Call, out: PassWriter) -> None:
        """Store keys and values of the tokens that a call has processed."""
        stored = _of(call).before if self._options.overlap else _of(call).slot
        if stored is None or not stored.attends:
            return
        self._calls(2 * _COPY_CALL, out)
        stream, cache, tier = self._on("store cache"), self._plan.block_cache, self._options.disk
        parts = cache.parts(self._batch)
        share = self._new / sum(parts)
        gpu, cpu, disk = (round(share * one) for one in parts)
        if gpu and self._prefill:
            _copy_within_gpu(stream, sum(cache.sizes(gpu)), out)
        if cpu and self._prefill:
            for size in cache.sizes(cpu):
                job = CopyJob("cache", from_gpu=size, traffic=2 * size, new=size, cache="dram")
                self._submit(job, out)
        elif cpu:
            sizes = cache.sizes(cpu)
            _copy(stream, sizes, out, to_device=False, label="cache", pinned=False, cache="dram")
            out.host_waits(stream)
        for size in cache.sizes(disk):
            self._submit(CopyJob("cache", from_gpu=size, traffic=2 * size, written=size, cache=tier), out)


class _HiddenStates(_MovedStates):
    """A _HiddenStates hook moves hidden states on the stream of the kernels; in one of several GPU batches
    with overlap, for the call before or the one after it."""

    def __init__(self, plan: FlexGenPlan, threads: CopyThreads) -> None:
        super().__init__(plan, threads)
        self._apart = plan.options.overlap and plan.options.gpu_batches > 1

    def _move(self, out: PassWriter, *, to_device: bool) -> None:
        size = self._new * self._plan.model.dtype_bytes
        if self._options.activations == "gpu":
            return
        self._calls(_COPY_CALL, out)
        if self._options.activations == "cpu":
            _copy(COMPUTE, [size], out, to_device=to_device, label="hidden states")
        elif to_device:
            self._submit(CopyJob("hidden states", read=size, traffic=2 * size, to_gpu=size), out)
        else:
            self._submit(CopyJob("hidden states", from_gpu=size, traffic=2 * size, written=size), out)


class LoadedStates(_HiddenStates):
    """Hidden states come to the GPU for each slot but the first, which gets tokens."""

    def before(self, call: Call, out: PassWriter) -> None:
        """Bring the hidden states of a call to the GPU."""
        loaded = _of(call).following if self._apart else _of(call).slot
        if loaded not in (None, self._plan.slots.first):
            self._move(out, to_device=True)


class StoredStates(_HiddenStates):
    """Hidden states that a slot has computed go to their home; the last slot yields tokens."""

    def before(self, call: Call, out: PassWriter) -> None:
        """Store those of the call before."""
        if self._apart:
            self._store(_of(call).before, out)

    def after(self, call: Call, out: PassWriter) -> None:
        """Store those of this call."""
        if not self._apart:
            self._store(_of(call).slot, out)

    def _store(self, slot: BlockSlot | None, out: PassWriter) -> None:
        if slot not in (None, self._plan.slots.last):
            self._move(out, to_device=False)


class SlotKernels(_SlotHook):
    """Kernels of a slot begin with the first of its PyTorch operations, while the host launches the others;
    the CPU may attend between the projections on the GPU."""

    def launch(self, call: Call, out: PassWriter) -> bool:  # noqa: ARG002
        """Launch the first kernel of a slot."""
        self._calls(1, out)
        out.flush()
        return True

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:
        """Let the GPU work, and launch the rest."""
        slot = _of(call).slot
        calls = _OPERATIONS[slot.name][not self._prefill] + _EXPAND_CALL * len(slot.expanded)
        if slot.attends and self._options.compress_cache:
            calls += 2 * (_SQUEEZE_CALL + (0 if self._prefill else _EXPAND_CALL))
        if slot.attends and self._options.cpu_attention and not self._prefill:
            cut = next(n for n, one in enumerate(slot.modules) if one.name == "self_attn.out_proj")
            last = sum(map(out.now.timing.compute, slot.modules[cut:]))
            out.add("compute", COMPUTE, fixed=duration - last, after=after)
            self._calls(calls // 2 - 1, out)
            self._attend(out)
            self.launch(call, out)
            duration, calls, after = last, calls - calls // 2, out.so_far(HOST)
        out.add("compute", COMPUTE, fixed=duration, after=after)
        self._calls(calls - 1, out)
        return True

    def _attend(self, out: PassWriter) -> None:
        """Compute attention in the host thread."""
        out.host_waits(COMPUTE)
        vector = self._new * _SINGLE  # queries, new keys, new values; and the result
        _copy(COMPUTE, [vector] * 3, out, to_device=False, label="queries", pinned=False)
        out.host_waits(COMPUTE)
        cache = self._plan.block_cache
        parts = cache.parts(self._batch)
        elements = parts.offloaded or parts.gpu
        tier = self._options.disk if parts.disk else "dram" if parts.cpu else "hbm"
        out.flush()
        if self._options.compress_cache:
            padded = cache.padded(elements)
            copied = _CPU_CUT * elements if padded > elements else 0
            _on_cpu("expanding the cache", 2 * (_CPU_EXPANDED * padded + copied), out, cache=tier)
        traffic = 2 * _SINGLE * elements
        route = _loops(traffic, out, share=ONE_QUERY, kind="cpu-attention", cache=tier)
        out.add("cpu", HOST, size=traffic, route=route, label="attention")
        _copy(COMPUTE, [vector], out, to_device=True, label="result of attention", pinned=False)
        out.host_waits(COMPUTE)


def slot_hooks(plan: FlexGenPlan) -> tuple[Hook, ...]:
    """Return the hooks of a pass in the order of FlexGen's loop; the one for a block of one GPU batch stores
    the cache before hidden states."""
    threads = CopyThreads(plan)
    cache, stored = SlotCache(plan, threads), StoredStates(plan, threads)
    undivided = plan.options.overlap and plan.options.gpu_batches == 1
    return (
        SlotEnds(plan, threads),
        SlotWeights(plan, threads),
        *((stored, cache) if undivided else (cache, stored)),
        LoadedStates(plan, threads),
        SlotKernels(plan),
        threads,
    )
