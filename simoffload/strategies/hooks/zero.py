"""ZeRO-3 as a hook: DeepSpeed's parameter coordinator before and after each module that has hooks.

The coordinator's calls become operations on streams of a rank: ``copy`` (the all-gather stream: copies of
partitions to the GPU, and concatenation of full tensors), ``comm`` (NCCL) and ``io`` (the aio read handle).
Without ``overlap_comm`` the copies are on the compute stream. The docstring of each method states what waits
for what.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    HOST,
    Call,
    Hook,
    Part,
    PassWriter,
    StagePass,
    StreamWriter,
)
from simoffload.strategies.passes.timing import Timing
from simoffload.strategies.zero.coordinator import RECENT_EVENTS, CoordinatorSink, State, Tensor
from simoffload.strategies.zero.replay import Decided, SinkCall

_GATHERED_GROUP = 8000
"""About that many weights share a scale in a quantized all-gather (``target_group_size``)."""
_SCALE = 4
"""Size [B] of a scale in a quantized all-gather."""


class GatheredSizes(NamedTuple):
    """GatheredSizes are what a quantized all-gather of some elements moves.

    Read in ``CUDAQuantizer`` of deepspeed/runtime/zero/partition_parameters.py at 0.19.6.
    """

    sent: int
    """Size [B] of packed weights and scales."""
    quantized: int
    """Bytes [B] read and written in HBM by the kernel that packs them."""


def quantized_gather(numel: int, dtype_bytes: int) -> GatheredSizes:
    """Return the sizes of ``numel`` elements in a quantized all-gather: a byte each, and scales."""
    scales = -(-numel // _GATHERED_GROUP) * _SCALE
    return GatheredSizes(numel + scales, (dtype_bytes + 1) * numel + scales)


class Partitioning(NamedTuple):
    """Partitioning states where every rank's partitions are, and how they are transferred."""

    tier: str
    """Tier of the weights: "hbm", "dram" or a storage tier of the machine."""
    ranks: int
    dtype_bytes: int
    settings: OffloadSettings


class Gather(NamedTuple):
    """A Gather is one call that gathers the partitions of tensors."""

    ordinal: int
    """Number of the all-gather on ``comm``, from 0; -1 if nothing is gathered."""
    size: int
    """Size of the full tensors [B]."""
    tensors: int


class Fetches(CoordinatorSink):
    """Fetches write what DeepSpeed does to fetch and release the parameters of modules."""

    def __init__(
        self, out: StreamWriter, place: Partitioning, timing: Timing, *, copy: int, comm: int, io: int
    ) -> None:
        """Write to the streams of ``out`` with the given numbers."""
        self._out, self._place, self._timing = out, place, timing
        self._overlaps = place.settings.overlap_comm
        self._copies, self._comm, self._io = copy if self._overlaps else COMPUTE, comm, io
        self._direct = place.settings.copies_directly(place.ranks)
        self.gathers: dict[int, Gather] = {}
        """Gathers by the handle that the coordinator gave each."""
        self._fetch_events: list[int] = []
        self._fetched_until: int | None = None
        self._waited = False
        self._pending_reads: float = 0

    @property
    def state(self) -> tuple[float, tuple[int, ...]]:
        """The state that determines further operations, beside that of the streams and the gathers that have
        not been waited for, relative to those already written."""
        copied = self._out.count(self._copies)
        return self._pending_reads, tuple([copied - one for one in self._fetch_events[-RECENT_EVENTS:]])

    def restore(self, state: State) -> None:
        """Set a state, relative to what is written now."""
        reads, events = state
        assert isinstance(reads, float | int)
        assert isinstance(events, tuple)
        copied = self._out.count(self._copies)
        self._pending_reads = reads
        self._fetch_events[len(self._fetch_events) - len(events) :] = [copied - back for back in events]

    def relative(self, gathers: Iterable[Gather]) -> tuple[Gather, ...]:
        """Return gathers with the distances to what is written now as their numbers, or the other way
        around."""
        written = self._out.count(self._comm)
        return tuple([one if one[0] < 0 else Gather(written - one[0], one[1], one[2]) for one in gathers])

    def make(self, calls: Iterable[SinkCall]) -> None:
        """Do what the coordinator does in one hook."""
        for call in calls:
            call(self)

    def begin(self) -> None:
        """Begin the hook before a module."""
        self._fetched_until = None
        self._waited = False

    def awaited(self) -> tuple[tuple[int, int], ...]:
        """Return stream and number of the operation for which the kernels of a module wait: the last one on
        the copy stream when the module had been fetched.

        They do not wait for later prefetches (``current_stream().wait_stream(allgather_stream)``).
        """
        until = self._out.count(self._copies) if self._fetched_until is None else self._fetched_until
        return ((self._copies, until - 1),) if until and self._overlaps else ()

    # -- what the coordinator calls -------------------------------------------------------------

    def read(self, tensors: Sequence[Tensor]) -> None:
        """Submit reads, which are served one tensor after the other: an aio thread finishes a tensor before
        it begins the next (csrc/aio/py_lib/deepspeed_aio_thread.cpp)."""
        self._out.flush()
        for tensor in tensors:
            size = self._place.settings.aligned(tensor.slice_numel * self._place.dtype_bytes)
            route, fixed = self.storage(self._place.tier, size, gds=self._place.settings.use_gds)
            self._pending_reads += self._out.transfer_s(route, fixed, size)
            self._out.add(
                "read",
                self._io,
                fixed=fixed,
                size=size,
                route=route,
                label=tensor.name,
                after=self._out.so_far(HOST),
            )

    def wait_reads(self) -> None:
        """Let the host wait for all reads of the aio handle, including those for other modules."""
        self._out.host_waits(self._io)
        self._out.cool(self._pending_reads)
        self._pending_reads = 0

    def gather(self, handle: int, tensors: Sequence[Tensor], *, prefetch: bool) -> None:
        """Copy partitions to the GPU and all-gather them.

        On one rank since DeepSpeed 0.9.0, copies are asynchronous (those from pageable memory still block the
        host) and nothing is gathered. Otherwise the copies follow each other and each blocks the host; then
        comes an asynchronous all-gather, which on one rank is a copy within HBM.
        """
        if prefetch and self._fetched_until is None:
            self._fetched_until = self._out.count(self._copies)
        costs = self._out.costs
        call = costs.prefetch_call if prefetch else costs.fetch_call
        self._out.spend(call.value + costs.gathered_parameter.value * len(tensors))
        if not self._direct:
            several = costs.coalesced_call.value if len(tensors) > 1 else 0.0
            each = costs.collective_parameter.value * len(tensors)
            self._out.spend(costs.collective_call.value + several + each)
        slices = [tensor.slice_numel * self._place.dtype_bytes for tensor in tensors]
        for pinned, sizes in self._by_memory(tensors, slices):
            self._copy(sizes, pinned=pinned, blocking=not (self._direct and pinned))
        if self._direct:
            self.gathers[handle] = Gather(-1, sum(slices), len(tensors))
            return
        self._out.flush()
        if len(tensors) > 1:
            self._out.add(
                "concat", self._copies, fixed=self._timing.hbm_copy(sum(slices)), after=self._out.so_far(HOST)
            )
        if self._place.ranks == 1:
            after = self._out.so_far(HOST, self._copies)
            ordinal = self._out.add(
                "concat", self._comm, fixed=self._timing.hbm_copy(sum(slices)), after=after
            )
        else:
            ordinal = self._all_gather(slices)
        self.gathers[handle] = Gather(ordinal, sum(slices) * self._place.ranks, len(tensors))

    def _all_gather(self, slices: Sequence[int]) -> int:
        """Write the all-gather of partitions, which may be packed in 8 bits before (ZeRO++); return its
        number.

        Packed, they are gathered in one call and their scales in another (``all_gather_coalesced``).
        """
        others, size = self._place.ranks - 1, sum(slices)
        if not self._place.settings.quantized_gather:
            return self._out.exchange(
                "gather", "all-gather", self._comm, size * others, behind=(self._copies,)
            )
        sent, packed = quantized_gather(size // self._place.dtype_bytes, self._place.dtype_bytes)
        self._out.spend(self._out.costs.operation.value + self._out.costs.collective_call.value)
        self._out.flush()
        fixed = self._timing.hbm_traffic(packed)
        self._out.add("concat", self._copies, fixed=fixed, after=self._out.so_far(HOST))
        return self._out.exchange(
            "gather", "all-gather", self._comm, sent * others, behind=(self._copies,), calls=2
        )

    def wait(self, handle: int) -> None:
        """Wait for a gather.

        If nothing is gathered, the host waits until the copy stream is empty. Otherwise the copy stream waits
        for the all-gather, unpacks it if it was quantized and, if several tensors were gathered together,
        splits them (AllGatherCoalescedHandle).
        """
        if self._direct:
            self._out.host_waits(self._copies)
            return
        gather = self.gathers[handle]
        self._out.flush()
        apart = self._timing.hbm_copy(gather.size) if gather.tensors > 1 else 0
        if self._place.settings.quantized_gather and self._place.ranks > 1:
            apart += self._timing.hbm_traffic(
                quantized_gather(gather.size // self._place.dtype_bytes, self._place.dtype_bytes).quantized
            )
        after = (*self._out.so_far(HOST), self._out.after(self._comm, gather.ordinal))
        self._out.add("concat", self._copies, fixed=apart, after=after)

    def fetch_event(self) -> None:
        """Record a fetch event on the copy stream; the first one of a module takes host time."""
        if not self._waited:
            self._waited = True
            self._out.spend(self._out.costs.fetch_wait.value)
        self._fetch_events.append(self._out.count(self._copies) - 1)

    def throttle(self) -> None:
        """Let the host wait until the copy stream has reached an earlier event."""
        self._out.host_waits(self._copies, self._fetch_events[-RECENT_EVENTS])

    def release(self, count: int) -> None:
        """Release gathered parameters, which only takes host time."""
        self._out.spend(self._out.costs.released_parameter.value * count)

    def _by_memory(self, tensors: Sequence[Tensor], slices: Sequence[int]) -> list[tuple[bool, list[int]]]:
        """Split the partitions of a batch into those in pinned and those in pageable memory.

        Partitions that are in HBM, or that GPUDirect Storage has read into it, are not copied: ``Tensor.to``
        with the same device returns the tensor unchanged.
        """
        if self._place.settings.device == "none":
            return []
        split: dict[bool, list[int]] = {True: [], False: []}
        for tensor, size in zip(tensors, slices, strict=True):
            pinned = self._place.settings.source(tensor.on_nvme)
            if pinned is not None:
                split[pinned].append(size)
        return [(pinned, sizes) for pinned, sizes in split.items() if sizes]

    def _copy(self, sizes: list[int], *, pinned: bool, blocking: bool) -> None:
        self._out.copy(sizes, self._copies, to_device=True, pinned=pinned)
        if blocking:
            self._out.host_waits(self._copies)
            if not self._direct:
                route, latency = self._out.copies(sizes, to_device=True, pinned=pinned)
                self._out.cool(self._out.transfer_s(route, latency, sum(sizes)))
        call = self._out.costs.blocking_copy_call if blocking and pinned else self._out.costs.copy_call
        self._out.spend(call.value * len(sizes))

    def storage(self, tier: str, size: int, *, written: bool = False, gds: bool = False) -> tuple[int, int]:
        """Return route and latency [ps] of a transfer of ``size`` [B] from a storage tier, or to it if
        ``written``; in flight are block x queue depth x threads, at most the tensor."""
        settings = self._place.settings
        block, in_flight = min(settings.block_size, size), min(settings.outstanding_bytes, size)
        return self._out.file(tier, size, block=block, in_flight=in_flight, written=written, gds=gds)


class Zero(Hook):
    """Zero lets DeepSpeed's coordinator fetch parameters before a module's hook and release them after."""

    streams = ("copy", "comm", "io")
    listed_first = ("copy", "comm")
    carried: ClassVar[bool] = False

    def __init__(self, decided: Mapping[int, Decided], place: Partitioning) -> None:
        """``decided``: what the coordinator does before, in and after the layers that are called."""
        self._decided, self._place = decided, place
        self._entered = False

    def begin(self, stage: StagePass, out: PassWriter) -> None:
        """Begin the pass, which takes host time."""
        copy, comm, io = map(self.stream, self.streams)
        self._fetches = Fetches(out, self._place, stage.timing, copy=copy, comm=comm, io=io)
        out.spend(out.costs.pass_overhead.value)

    def state(self, part: Part) -> Hashable:
        """Return the state relative to the layer; its number once a decision depended on what follows."""
        relative, handles, *_ = self._decided[part.layer]
        if relative is None:
            return part.layer
        fetches = self._fetches
        return relative, fetches.state, fetches.relative([fetches.gathers[one] for one in handles])

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Take the calls of the part's hooks."""
        number = max(self._decided) if part.name == "tail" else part.layer
        self._calls = iter(self._decided[number].calls)

    def before(self, call: Call, out: PassWriter) -> None:
        """Fetch a module's parameters in the hook before it, which takes half of the hooks' cost."""
        if call.module.hooked:
            self._release()
            costs = out.costs
            out.spend(costs.hook.value / 2 + costs.hook_input.value * call.module.touched)
            self._fetches.begin()
            self._fetches.make(next(self._calls))
            self._entered = True
        out.spend(out.now.timing.launch_s(call.module))

    def launch(self, call: Call, out: PassWriter) -> bool:  # noqa: ARG002
        """Let the kernels, which the host thread has launched, wait for the module's parameters."""
        out.flush()
        for stream, ordinal in self._fetches.awaited():
            out.await_(stream, ordinal)
        return True

    def after(self, call: Call, out: PassWriter) -> None:
        """Begin the hook after a module."""
        if call.module.hooked:
            out.spend(out.costs.hook.value / 2)

    def leave(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """End the hook after the last module of a part."""
        self._release()

    def _release(self) -> None:
        """Release the parameters of the last module with hooks, after the work that follows it."""
        if self._entered:
            self._fetches.make(next(self._calls))
        self._entered = False

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Let the host wait for the last kernel, because it needs the next token."""
        out.host_waits(COMPUTE)
        del self._fetches  # which knows the driver, which knows this hook

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Nothing else is at the end of a pass."""
        return True
