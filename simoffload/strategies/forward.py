"""Operations of a forward pass of inference under ZeRO-3, in the order in which DeepSpeed's host thread
issues them.

The coordinator's calls become operations on the streams of a rank: ``host`` (DeepSpeed's Python thread),
``copy`` (the all-gather stream: copies of partitions to the GPU, and concatenation of full tensors), ``comm``
(NCCL), ``compute`` and ``io`` (the aio read handle). Without ``overlap_comm`` the copies are on ``compute``.
The docstring of each method states what waits for what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from simoffload.hardware import Path
from simoffload.models import Module
from simoffload.schedule import Cause
from simoffload.strategies.cache_routes import CacheRoutes, TransferRoute
from simoffload.strategies.cache_updates import CacheStreams
from simoffload.strategies.coordinator import RECENT_EVENTS, CoordinatorSink, Tensor
from simoffload.strategies.cpu_attention import CpuAttention, CpuAttentionWriter
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.ds_config.quantization import quantized_gather
from simoffload.strategies.streamed_cache import CacheUpdate
from simoffload.strategies.streams import HOST, Routes, StreamWriter
from simoffload.strategies.timing import Timing, picoseconds

STREAMS = ("host", "copy", "comm", "compute", "io")
CACHE = len(STREAMS)
"""Number of the first stream that moves an offloaded cache; there are such only with one."""
_, COPY, COMM, COMPUTE, IO = range(5)


class Partitioning(NamedTuple):
    """Partitioning states where the partitions of parameters are and how they are transferred, for every
    rank."""

    tier: str
    """Tier of the weights: "hbm", "dram" or a storage tier of the machine."""
    ranks: int
    dtype_bytes: int
    settings: OffloadSettings


class _Gather(NamedTuple):
    ordinal: int
    """Number of the all-gather on ``comm``, from 0; -1 if nothing is gathered."""
    size: int
    """Size of the full tensors [B]."""
    tensors: int


class ForwardWriter(StreamWriter, CoordinatorSink):
    """A ForwardWriter writes a forward pass of inference: the coordinator's calls and the kernels of the
    modules."""

    def __init__(
        self,
        *,
        name: str,
        placement: Partitioning,
        timing: Timing,
        streams: Sequence[str] = STREAMS,
        routes: Routes | None = None,
        updates: Sequence[CacheUpdate | None] = (),
        attention: CpuAttention | None = None,
    ) -> None:
        super().__init__(
            name=name, gpus=range(placement.ranks), streams=streams, machine=timing.machine, routes=routes
        )
        self.timing = timing
        self._place = placement
        self._copies = COPY if placement.settings.overlap_comm else COMPUTE
        self._direct = placement.settings.copies_directly(placement.ranks)
        self._gathers: list[_Gather] = []
        self._fetch_events: list[int] = []
        self._fetched_until: int | None = None
        self._waited = False
        self._pending_reads = 0.0
        self._began = False
        self._updates = updates
        self._on_cpu = attention and CpuAttentionWriter(attention, self, compute=COMPUTE, store=CACHE)
        self._layer = -1

    def state(self, handles: Sequence[int]) -> tuple[object, ...]:
        """Return the state that determines all further operations, relative to those already written.

        ``handles`` are the gathers that have not been waited for.
        """
        written = self.builder.written
        return (
            self._pending,
            self._pending_reads,
            tuple(map(bool, written)),
            tuple((stream, written[stream] - ordinal) for stream, ordinal in self._awaited),
            tuple(written[self._copies] - ordinal for ordinal in self._fetch_events[-RECENT_EVENTS:]),
            tuple(
                gather._replace(ordinal=written[COMM] - gather.ordinal if gather.ordinal >= 0 else -1)
                for gather in map(self._gathers.__getitem__, handles)
            ),
        )

    # -- modules --------------------------------------------------------------------------------

    def part(self, segment: str) -> None:
        """Begin a new segment if ``segment`` names one; the first segment begins with the overhead of the
        pass."""
        if segment:
            self.builder.segment(segment)
            self._layer += segment == "layer"
        if not self._began:
            self._began = True
            self.spend(self.costs.pass_overhead.value)

    def begin(self, module: Module, *, segment: str, backward: bool) -> None:
        """Begin the hook before a module; the first module of a layer also begins a new segment."""
        self.part(segment)
        self.label = module.name
        self._fetched_until = None
        self._waited = False
        if not backward:
            self._spend_on_hook(module)

    def _spend_on_hook(self, module: Module) -> None:
        """Add host time for the hook before a forward pass; the hook after it takes the other half of the
        cost."""
        self.spend(self.costs.hook.value / 2 + self.costs.hook_input.value * module.touched)

    def launch_forward(self, module: Module) -> None:
        """Launch the kernels of a module and, if it has hooks, begin the hook after it."""
        self.spend(self.timing.launch_s(module))
        self._kernels(module, self.timing.compute(module))
        if module.hooked:
            self.spend(self.costs.hook.value / 2)

    def _kernels(self, module: Module, duration: int) -> None:
        """Launch kernels that start after the work that was on the copy stream when the module had been
        fetched.

        They do not wait for later prefetches (``current_stream().wait_stream(allgather_stream)``).
        """
        if not duration:
            return
        self.flush()
        after = list(self.so_far(HOST))
        fetched = self.builder.written[self._copies] if self._fetched_until is None else self._fetched_until
        if fetched and self._copies != COMPUTE:
            after.append(self.builder.after(self._copies, fetched - 1))
        if self._on_cpu is not None and module.kind == "attention":
            self._on_cpu.write(module.name, duration, after)
            return
        cached = self._updates and module.kind == "attention"
        update = self._updates[self._layer] if cached else None
        if update is None:
            self.add("compute", COMPUTE, fixed=duration, label=module.name, after=tuple(after))
            return
        update.write(
            self.builder,
            CacheStreams(HOST, COMPUTE, CACHE, CACHE),
            CacheRoutes(self.builder, self.machine, update.tier, self._cache_route),
            label=module.name,
            joining=self.timing.joining(update.joined, duration),
            duration=duration,
            after=after,
        )

    def _cache_route(self, cause: Cause, path: Callable[[int], Path], _following: bool) -> TransferRoute:
        """Return the route of the cache of every rank."""
        return TransferRoute(cause, *self.way((cause,), path))

    def end_forward(self) -> None:
        """Let the host wait for the last kernel, because it needs the next token or the loss."""
        self.host_waits(COMPUTE)

    # -- what the coordinator calls -------------------------------------------------------------

    def read(self, tensors: Sequence[Tensor]) -> None:
        """Submit reads, which are served one tensor after the other: an aio thread finishes a tensor before
        it begins the next (csrc/aio/py_lib/deepspeed_aio_thread.cpp)."""
        self.flush()
        for tensor in tensors:
            size = self.aligned(tensor.slice_numel * self._place.dtype_bytes)
            route, fixed = self.storage(self._place.tier, size, gds=self._place.settings.use_gds)
            self._pending_reads += self.transfer_s(route, fixed, size)
            self.add(
                "read", IO, fixed=fixed, size=size, route=route, label=tensor.name, after=self.so_far(HOST)
            )

    def wait_reads(self) -> None:
        """Let the host wait for all reads of the aio handle, including those for other modules."""
        self.host_waits(IO)
        self.cool(self._pending_reads)
        self._pending_reads = 0.0

    def gather(self, tensors: Sequence[Tensor], *, prefetch: bool) -> int:
        """Copy partitions to the GPU and all-gather them; return a handle.

        On one rank since DeepSpeed 0.9.0, copies are asynchronous (those from pageable memory still block the
        host) and nothing is gathered. Otherwise the copies follow each other and each blocks the host; then
        comes an asynchronous all-gather, which on one rank is a copy within HBM.
        """
        if prefetch and self._fetched_until is None:
            self._fetched_until = self.builder.written[self._copies]
        costs = self.costs
        call = costs.prefetch_call if prefetch else costs.fetch_call
        self.spend(call.value + costs.gathered_parameter.value * len(tensors))
        if not self._direct:
            several = costs.coalesced_call.value if len(tensors) > 1 else 0.0
            each = costs.collective_parameter.value * len(tensors)
            self.spend(costs.collective_call.value + several + each)
        slices = [tensor.slice_numel * self._place.dtype_bytes for tensor in tensors]
        for pinned, sizes in self._by_memory(tensors, slices):
            self._copy(sizes, pinned=pinned, blocking=not (self._direct and pinned))
        if self._direct:
            self._gathers.append(_Gather(-1, sum(slices), len(tensors)))
            return len(self._gathers) - 1
        self.flush()
        if len(tensors) > 1:
            self.add("concat", self._copies, fixed=self.timing.hbm_copy(sum(slices)), after=self.so_far(HOST))
        if self._place.ranks == 1:
            after = self.so_far(HOST, self._copies)
            ordinal = self.add("concat", COMM, fixed=self.timing.hbm_copy(sum(slices)), after=after)
        else:
            ordinal = self._all_gather(slices)
        self._gathers.append(_Gather(ordinal, sum(slices) * self._place.ranks, len(tensors)))
        return len(self._gathers) - 1

    def _all_gather(self, slices: Sequence[int]) -> int:
        """Write the all-gather of partitions, which may be packed in 8 bits before (ZeRO++); return its
        number.

        Packed, they are gathered in one call and their scales in another (``all_gather_coalesced``).
        """
        others, size = self._place.ranks - 1, sum(slices)
        if not self._place.settings.quantized_gather:
            return self.exchange("gather", "all-gather", COMM, size * others, behind=(self._copies,))
        sent, packed = quantized_gather(size // self._place.dtype_bytes, self._place.dtype_bytes)
        self.spend(self.costs.operation.value + self.costs.collective_call.value)
        self.flush()
        fixed = self.timing.hbm_traffic(packed)
        self.add("concat", self._copies, fixed=fixed, after=self.so_far(HOST))
        return self.exchange("gather", "all-gather", COMM, sent * others, behind=(self._copies,), calls=2)

    def wait(self, handle: int) -> None:
        """Wait for a gather.

        If nothing is gathered, the host waits until the copy stream is empty. Otherwise the copy stream waits
        for the all-gather, unpacks it if it was quantized and, if several tensors were gathered together,
        splits them (AllGatherCoalescedHandle).
        """
        if self._direct:
            self.host_waits(self._copies)
            return
        gather = self._gathers[handle]
        self.flush()
        apart = self.timing.hbm_copy(gather.size) if gather.tensors > 1 else 0
        if self._place.settings.quantized_gather and self._place.ranks > 1:
            apart += self.timing.hbm_traffic(
                quantized_gather(gather.size // self._place.dtype_bytes, self._place.dtype_bytes).quantized
            )
        after = (*self.so_far(HOST), self.builder.after(COMM, gather.ordinal))
        self.add("concat", self._copies, fixed=apart, after=after)

    def fetch_event(self) -> None:
        """Record a fetch event behind the work on the copy stream; the first event of a module takes host
        time."""
        if not self._waited:
            self._waited = True
            self.spend(self.costs.fetch_wait.value)
        self._fetch_events.append(self.builder.written[self._copies] - 1)

    def throttle(self, event: int) -> None:
        """Let the host wait until the copy stream has reached an earlier event."""
        self.host_waits(self._copies, self._fetch_events[event])

    def release(self, count: int) -> None:
        """Release gathered parameters, which only takes host time."""
        self.spend(self.costs.released_parameter.value * count)

    def _by_memory(self, tensors: Sequence[Tensor], slices: Sequence[int]) -> list[tuple[bool, list[int]]]:
        """Split the partitions of a batch into those in pinned and those in pageable memory.

        Partitions that are in HBM, or that GPUDirect Storage has read into it, are not copied: ``Tensor.to``
        with the same device returns the tensor unchanged.
        """
        if self._place.tier == "hbm":
            return []
        split: dict[bool, list[int]] = {True: [], False: []}
        for tensor, size in zip(tensors, slices, strict=True):
            pinned = self._place.settings.source(tensor.on_nvme)
            if pinned is not None:
                split[pinned].append(size)
        return [(pinned, sizes) for pinned, sizes in split.items() if sizes]

    def _copy(self, sizes: list[int], *, pinned: bool, blocking: bool) -> None:
        self.flush()
        route, latency = self.copies(sizes, to_device=True, pinned=pinned)
        self.add("copy", self._copies, fixed=latency, size=sum(sizes), route=route, after=self.so_far(HOST))
        if blocking:
            self.host_waits(self._copies)
            if not self._direct:
                self.cool(self.transfer_s(route, latency, sum(sizes)))
        call = self.costs.blocking_copy_call if blocking and pinned else self.costs.copy_call
        self.spend(call.value * len(sizes))

    # -- storage --------------------------------------------------------------------------------

    def aligned(self, size: int) -> int:
        """Return the size of a file with ``size`` [B], padded to a whole unit for every aio thread [B]."""
        return self._place.settings.aligned(size)

    def storage(self, tier: str, size: int, *, written: bool = False, gds: bool = False) -> tuple[int, int]:
        """Return route and latency [ps] of a transfer of ``size`` [B] from a storage tier, or to it if
        ``written``.

        The bytes in flight limit the rate: block x queue depth x threads, at most the tensor, over the
        latency of one request (Little's law).
        """
        key = (tier, size, written, gds)
        if key not in self.known:
            machine, settings = self.machine, self._place.settings
            way = machine.storage_write if written else machine.storage_read
            path, hops = self.way((tier, written, gds), lambda rank: way(tier, rank, gds=gds))
            block = min(settings.block_size, size)
            outstanding = min(settings.outstanding_bytes, size)
            cause = Cause("write" if written else "read", tier)
            rate = path.file_rate(size, outstanding=outstanding, block=block)
            route = self.builder.route(cause=cause, hops=hops, cap=rate)
            self.known[key] = route, picoseconds(path.latency)
        return self.known[key]
