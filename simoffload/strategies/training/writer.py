"""Operations of forward and backward of a training micro-step.

Streams in addition to those of inference (``hooks.zero``): ``reduce`` (DeepSpeed's reduce-and-partition
stream: gradients are copied into a bucket, reduced, and moved to the memory in which they are accumulated;
without ``overlap_comm`` this is on ``compute``), ``write`` (the aio handle that writes), ``update`` (a
separate process for the optimizer) and ``activations`` (copies of checkpoints to host memory and back).

Sources: deepspeed/runtime/zero/stage3.py (0.19.6): ``__add_grad_to_ipg_bucket``,
``__reduce_and_partition_ipg_grads``, ``partition_grads``, ``_offload_grad_partition_at_boundary``; for stages
0 to 2 stage_1_and_2.py: ``reduce_ipg_grads``, ``average_tensor``, ``copy_grads_in_partition``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from simoffload.models import SINGLE
from simoffload.schedule import CauseKind, Dependency, OpKind
from simoffload.strategies.hooks.zero import Fetches, Partitioning
from simoffload.strategies.passes.pass_writer import COMPUTE, Hook, PassWriter
from simoffload.strategies.passes.streams import HOST, Routes
from simoffload.strategies.passes.timing import TrainingTiming, picoseconds
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.training.storage_io import GradientSink, GradientSwapper
from simoffload.strategies.zero.coordinator import State, Tensor

COPY, COMM, IO, REDUCE, WRITE, UPDATE, ACTIVATIONS, PARAMETERS = range(COMPUTE + 1, COMPUTE + 9)
_MAX_REDUCE_EVENTS = 2  # max_param_reduce_events, hard-coded in DeepSpeed
_NORM_TRAFFIC = 16
"""[B] of traffic per element for the norm of a gradient in addition to reading it: a double-precision copy is
written and read."""
_BOUNDARY_KERNELS = 5
"""Number of kernels per gradient at the boundary: cast to double precision, norm (two), its square, cast to
single precision."""


class TrainingStreams(Hook):
    """TrainingStreams are the streams of a rank in training beside those of the driver."""

    streams = ("copy", "comm", "io", "reduce", "write", "update", "activations", "parameters")
    listed_first = ("copy", "comm")
    carried: ClassVar[bool] = False


WAITS_PER_GRADIENT = 0.88
"""Wait of a gradient's kernels at the boundary in durations of a product, while products run without a pause:
26.7 ms for 49.8 gradients next to products of 0.606 ms on an H100 (docs/measurements/training.md)."""


@dataclass(slots=True)
class KernelWaits:
    """KernelWaits estimate how long the gradients of a bucket wait for kernels of the compute stream.

    A matrix product occupies the registers and shared memory of all SMs, and all its thread blocks start
    before those of a kernel that was launched later on another stream. A kernel of the gradients' stream thus
    starts with the last blocks of the product that is running, and the copies after it wait with it.

    The host launches kernels of the next layers while the gradients' stream moves a bucket, and both begin
    at about the same time: gradients wait in the part of that time in which the compute stream is busy.
    """

    gradients: int = 0
    """Number of gradients of the last bucket."""
    alone: int = 0
    """Time that the last bucket takes on the gradients' stream without waits [ps]."""
    busy: int = 0
    """Time of kernels of the compute stream since the last bucket [ps]."""
    kernels: int = 0
    """Number of kernels of the compute stream since the last bucket."""

    @property
    def state(self) -> tuple[int, ...]:
        """The state that determines all further waits."""
        return (self.gradients, self.alone, self.busy, self.kernels)

    def launched(self, duration: int, *, kernels: int) -> None:
        """Count ``kernels`` of the compute stream that take ``duration`` [ps] in total."""
        if self.gradients and duration:
            self.busy += duration
            self.kernels += kernels

    def bucket(self, gradients: int, alone: int) -> int:
        """Return the wait of the last bucket [ps], and begin a bucket of ``gradients`` that takes ``alone``
        [ps]."""
        wait = 0
        if self.kernels:
            longest = self.gradients * WAITS_PER_GRADIENT * self.busy / self.kernels
            wait = round(longest * min(1.0, self.busy / (self.alone + longest)))
        self.gradients, self.alone, self.busy, self.kernels = gradients, alone, 0, 0
        return wait


class GradientHooks:
    """GradientHooks let a training mode add to the handling of gradients; the base adds nothing."""

    always = False
    """Whether gradients are reduced in every micro-step, as in stages 0 and 1, or only in the last one."""
    shared = False
    """Whether gradients in single precision are in memory shared with another process, which is not
    page-locked."""

    def passes(self, _tensor: Tensor, /) -> int:
        """Return how often the GPU reads or writes a gradient before the bucket, in addition to the copy into
        it."""
        return 0

    def reduced(self, _out: MicroStepWriter, _tensors: Sequence[Tensor], /, *, boundary: bool) -> None:
        """Handle a bucket that has been reduced and not yet stored."""

    def stored(self, _out: MicroStepWriter, _tensors: Sequence[Tensor], /, *, boundary: bool) -> None:
        """Handle a bucket whose partitions are being copied to the memory in which they are accumulated."""


class MicroStepWriter(PassWriter, GradientSink):
    """A MicroStepWriter writes a micro-step: forward, and the kernels, gradients and checkpoints of
    backward."""

    def __init__(
        self,
        *,
        part: StepPart,
        state: TrainingState,
        timing: TrainingTiming,
        swapper: GradientSwapper | None,
        gradients: GradientHooks,
        routes: Routes,
        hook: TrainingStreams,
    ) -> None:
        settings, places = state.settings, state.places
        placement = Partitioning(places.weights, places.ranks, state.model.dtype_bytes, settings.params)
        gpus = (range(places.ranks),)
        super().__init__(name=part.title, gpus=gpus, hooks=(hook,), machine=timing.machine, routes=routes)
        self.fetches = Fetches(self, placement, timing, copy=COPY, comm=COMM, io=IO, compute=COMPUTE)
        self._settings, self._element = settings, placement.dtype_bytes
        self._time = timing
        self._accumulates, self._last = part.micro_step > 0, part.boundary
        self.swapper = swapper
        self._handling = gradients
        twin_flow = state.on_gpu if settings.ratio != 1.0 else ()
        # Tensors of equal layers compare equal, so they are distinguished by identity.
        self._staying = {id(tensor) for group in twin_flow for tensor in group.tensors}
        self.gradients = REDUCE if settings.overlap_comm else COMPUTE
        """Name of the stream that handles gradients."""
        self._more = timing.machine.host.training
        self._reduces: list[int] = []
        self.kernel_waits = KernelWaits()
        self.spend(self.costs.pass_overhead.value)

    def state(self, handles: Sequence[int]) -> State:
        """Return the state that determines further operations, beside that of the streams, relative to those
        already written.

        ``handles`` are the gathers that have not been waited for.
        """
        written = self.count(self.gradients)
        return (
            self.fetches.state(handles),
            tuple(written - ordinal for ordinal in self._reduces[-1 - _MAX_REDUCE_EVENTS :]),
            self.swapper.state if self.swapper is not None else None,
            self.kernel_waits.state,
        )

    # -- gradients ------------------------------------------------------------------------------

    @property
    def reduces(self) -> bool:
        """Whether gradients are reduced in this micro-step, not only added up in HBM by autograd."""
        return self._settings.stage >= 2 or self._last or self._handling.always

    def gradient(self, tensor: Tensor, *, contiguous: bool) -> None:
        """Copy a complete gradient into the bucket, unless it is larger than the bucket."""
        self.spend(self._more.gradient.value)
        self.flush()
        passes = (2 if contiguous else 0) + self._handling.passes(tensor)
        size = passes * tensor.numel * self._element
        after = self.so_far(HOST, COMPUTE)
        self.add("reduce", self.gradients, fixed=self._time.hbm_traffic(size), label=tensor.name, after=after)

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Reduce a bucket, and move its partitions to the memory in which they are accumulated."""
        if self._settings.stage == 3 and len(self._reduces) > _MAX_REDUCE_EVENTS:
            self.host_waits(self.gradients, self._reduces[-1 - _MAX_REDUCE_EVENTS])
        self.spend(self._more.reduce_call.value)
        self.flush()
        self._scatter(tensors)
        self._handling.reduced(self, tensors, boundary=self._last)
        offloaded = self._settings.optimizer_device != "none"
        if offloaded and self._settings.stage == 3:
            self._partition(tensors)
        elif offloaded:
            self._accumulate_on_cpu(tensors)
        else:
            self._accumulate_on_gpu(tensors)
        self._handling.stored(self, tensors, boundary=self._last)
        self._reduces.append(self.builder.written[self.gradients] - 1)

    def end_backward(self) -> None:
        """Let the host wait for all gradients."""
        self.host_waits(self.gradients)
        self.host_waits(COMPUTE)

    def _scatter(self, tensors: Sequence[Tensor]) -> None:
        """Average over the ranks: reorder (2 passes), divide (2 passes), and reduce over the ring."""
        size = sum(tensor.numel for tensor in tensors) * self._element
        self.kernel("reduce", 4 * size)
        if self.ranks == 1:
            self.kernel("reduce", 2 * size)
            return
        shared = size * (self.ranks - 1) // self.ranks
        if self._settings.stage < 3:  # all-reduce (stage 2: use_multi_rank_bucket_allreduce, on by default)
            shared *= 2
        self.collective("reduce", "gradient-reduction", shared)

    def collective(self, kind: OpKind, cause: CauseKind, size: int, *, calls: int = 1) -> None:
        """Let all ranks receive ``size`` [B] in a collective operation of the gradients' stream."""
        self.exchange(kind, cause, COMM, size, behind=(self.gradients,), calls=calls)
        self.add(kind, self.gradients, after=self.so_far(COMM))

    def kernel(self, kind: OpKind, traffic: float, *, stream: int | None = None) -> None:
        """Occupy the GPU for ``traffic`` [B] of HBM, on the gradients' stream unless another one is named."""
        self.flush()
        where = self.gradients if stream is None else stream
        self.add(kind, where, fixed=self._time.hbm_traffic(traffic), after=self.so_far(HOST))

    def _accumulate_on_gpu(self, tensors: Sequence[Tensor]) -> None:
        passes = 3 if self._accumulates else 2
        self.kernel("reduce", passes * self._settings.gradient_bytes * self._owned(tensors))

    def _owned(self, tensors: Sequence[Tensor]) -> int:
        """Return the number of elements of a bucket that this rank keeps [elements]."""
        if self._settings.stage < 2:
            return sum(tensor.numel for tensor in tensors)
        return sum(tensor.slice_numel for tensor in tensors)

    def _partition(self, tensors: Sequence[Tensor]) -> None:
        """Move the gradients of stage 3 to host memory and back to the GPU.

        At the boundary: compute their norm, and move them in single precision to the optimizer or to swap
        buffers.
        """
        element = self._settings.gradient_bytes
        sizes = [tensor.slice_numel * element for tensor in tensors]
        pinned = self._settings.pin_memory
        if self._accumulates:
            self.move(sizes, to_device=True, pinned=pinned)
            self.kernel("reduce", 3 * sum(sizes))
            self.move(sizes, to_device=False, pinned=pinned)
        else:
            self.move(sizes, to_device=False, pinned=pinned)
            self.move(sizes, to_device=True, pinned=pinned)
        self._by_tensor(len(sizes), to_and_fro=True)
        if self._last:
            self._boundary(tensors)

    @cached_property
    def _copy_latency(self) -> float:
        return self.machine.device_to_host(0, pinned=True).latency

    def _by_tensor(self, count: int, *, to_and_fro: bool) -> None:
        """Return the time of gradients in addition to their bytes: small kernels, and changes from copies to
        kernels.

        A change takes about as long as a small copy alone (3.6 to 4.2 us on an H200:
        docs/measurements/training.md). ``to_and_fro``: gradients that are not accumulated are also copied to
        the host and back.
        """
        kernels = self._accumulates + _BOUNDARY_KERNELS * self._last
        changes = (2 if self._accumulates else int(to_and_fro)) + (2 if self._last else 1)
        latency = self.machine.accelerator.kernel_latency_s
        seconds = kernels * latency + changes * self._copy_latency
        self.flush()
        self.add("reduce", self.gradients, fixed=picoseconds(count * seconds), after=self.so_far(HOST))

    def _boundary(self, tensors: Sequence[Tensor]) -> None:
        self._wait_for_kernels(tensors)
        self._single_precision(tensors)
        staying = sum(tensor.slice_numel for tensor in tensors if id(tensor) in self._staying)
        if staying:
            self.kernel("reduce", 2 * SINGLE * staying)
        leaving = [tensor for tensor in tensors if id(tensor) not in self._staying]
        in_memory = [one for one in leaving if self.swapper is None or not self.swapper.size(one)]
        if in_memory:
            sizes = [SINGLE * tensor.slice_numel for tensor in in_memory]
            self.move(sizes, to_device=False, pinned=self._singles_pinned, blocking=self._blocking)
        if self.swapper is not None:
            self.swapper.insert(self, leaving)

    @property
    def _singles_pinned(self) -> bool:
        """Whether the buffers of gradients in single precision are pinned."""
        return self._settings.pin_memory and not self._handling.shared

    @property
    def _blocking(self) -> bool:
        """Whether the host waits for each copy of a gradient in single precision: not since DeepSpeed 0.19.5
        (commit 7dfa67a)."""
        return self._settings.params.version < (0, 19, 5)

    def _wait_for_kernels(self, tensors: Sequence[Tensor]) -> None:
        """Let the gradients' stream wait for kernels that the host launched since the last bucket.

        There are none if the host waits for the gradients of a bucket.
        """
        settings = self._settings
        at_once = self._blocking or not self._singles_pinned
        if self.gradients == COMPUTE or self.swapper is not None or at_once:
            return
        numel = sum(tensor.slice_numel for tensor in tensors)
        mean = max(1, settings.gradient_bytes * numel // len(tensors))
        to_host = self.machine.device_to_host(0, pinned=True).curve.rate(mean)
        to_gpu = self.machine.host_to_device(0, pinned=True).curve.rate(mean)
        copies = (settings.gradient_bytes + SINGLE) / to_host + settings.gradient_bytes / to_gpu
        kernels = (2 * settings.gradient_bytes + _NORM_TRAFFIC + SINGLE) * numel
        alone = picoseconds(numel * copies) + self._time.hbm_traffic(kernels)
        wait = self.kernel_waits.bucket(len(tensors), alone)
        if wait:
            self.add("reduce", self.gradients, fixed=wait, label="wait for kernels of compute")

    def _single_precision(self, tensors: Sequence[Tensor]) -> list[int]:
        """Write the norm of this rank's gradients and their cast; return the sizes [B]."""
        self.spend(self._more.boundary_gradient.value * len(tensors))
        numel = sum(tensor.slice_numel for tensor in tensors)
        self.kernel("reduce", (2 * self._settings.gradient_bytes + _NORM_TRAFFIC + SINGLE) * numel)
        return [SINGLE * tensor.slice_numel for tensor in tensors]

    def to_swap_buffer(self, sizes: Sequence[int]) -> None:
        """Copy gradients into a swap buffer, for which the host waits."""
        pinned = self._settings.params.swap_buffers_pinned
        self.move(list(sizes), to_device=False, pinned=pinned, blocking=True)

    def write_file(self, size: int, *, tier: str, label: str, stream: int = WRITE) -> None:
        """Write a buffer with the aio handle of a ``stream`` while the host continues."""
        self.flush()
        route, latency = self.fetches.storage(tier, size, written=True)
        self.add("write", stream, fixed=latency, size=size, route=route, label=label, after=self.so_far(HOST))

    def writing_still(self, seconds: float, *, tier: str, label: str) -> None:
        """Occupy the aio handle for writes that an earlier part began, whose bytes count there."""
        route, _ = self.fetches.storage(tier, 1, written=True)
        self.add("write", WRITE, fixed=picoseconds(seconds), route=route, label=label)

    def wait_writes(self) -> None:
        """Let the host wait until all writes are complete."""
        self.host_waits(WRITE)

    def _accumulate_on_cpu(self, tensors: Sequence[Tensor]) -> None:
        """Accumulate the gradients of stages 1 and 2 in host memory.

        Between micro-steps they stay there; at the boundary each rank sends its part in single precision to
        the optimizer. A rank keeps the gradients of all parameters that its partition touches
        (``is_param_in_current_partition``), each as a whole; in total a partition is one rank's share of the
        model.
        """
        settings = self._settings
        kept = [tensor.slice_numel * self._element for tensor in tensors]
        if self._accumulates:
            self.move(kept, to_device=True, pinned=settings.pin_memory)
            self.kernel("reduce", 3 * sum(kept))
        if self._accumulates or not self._last:
            self.move(kept, to_device=False, pinned=settings.pin_memory)
        if self._last:
            mine = self._single_precision(tensors)
            self.move(mine, to_device=False, pinned=self._singles_pinned)
        self._by_tensor(len(kept), to_and_fro=False)

    def move(
        self,
        sizes: list[int],
        *,
        to_device: bool,
        pinned: bool,
        blocking: bool = False,
        stream: int | None = None,
        behind: int | None = None,
    ) -> None:
        """Copy between GPU and host memory, in sequence; copies to or from pageable memory block the host.

        They are on the gradients' stream unless another one is named, and start after all work on stream
        ``behind``.
        """
        self.flush()
        where = self.gradients if stream is None else stream
        route, latency = self.copies(sizes, to_device=to_device, pinned=pinned)
        after = (*self.so_far(HOST), *(self.so_far(behind) if behind is not None else ()))
        self.add("copy", where, fixed=latency, size=sum(sizes), route=route, after=after)
        if blocking or not pinned:
            self.host_waits(where)

    def to_gpu(self, size: int, *, pinned: bool) -> None:
        """Copy updated parameters to the GPU; from pageable memory the host waits."""
        self.move([size], to_device=True, pinned=pinned, stream=COPY)

    def read_state(
        self, size: int, *, tier: str, label: str, after: tuple[Dependency, ...], last: int = -1
    ) -> int:
        """Begin a read into a swap buffer; return its number on the stream of reads."""
        if not size:
            return last
        route, latency = self.fetches.storage(tier, size)
        return self.add("read", IO, fixed=latency, size=size, route=route, label=label, after=after)
