"""A micro-step of training: the replay of DeepSpeed's hooks, and the operations of forward and backward.

Forward and backward of identical layers are replayed with as few layers as possible (``zero.replay``). The
gradients in a bucket and in swap buffers have a period of their own.

Streams in addition to those of inference (``hooks.zero``): ``reduce`` (DeepSpeed's reduce-and-partition
stream: gradients are copied into a bucket, reduced, and moved to the memory in which they are accumulated;
without ``overlap_comm`` this is on ``compute``), ``write`` (the aio handle that writes), ``update`` (a
separate process for the optimizer) and ``activations`` (copies of checkpoints to host memory and back).

Sources: deepspeed/runtime/zero/stage3.py (0.19.6): ``__add_grad_to_ipg_bucket``,
``__reduce_and_partition_ipg_grads``, ``partition_grads``, ``_offload_grad_partition_at_boundary``; for stages
0 to 2 stage_1_and_2.py: ``reduce_ipg_grads``, ``average_tensor``, ``copy_grads_in_partition``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from simoffload.models import SINGLE, ModelShape, Repeated
from simoffload.recent import Recent
from simoffload.schedule import CauseKind, Dependency, OpKind
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.hooks.zero import Fetches, Gather, Partitioning
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    HOST,
    Call,
    Hook,
    Part,
    PassWriter,
    Period,
    StagePass,
    period_of,
)
from simoffload.strategies.passes.timing import picoseconds
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.state import GradientSink, GradientSwapper, TrainingState
from simoffload.strategies.zero.coordinator import CoordinatorSink, State, Tensor
from simoffload.strategies.zero.replay import (
    Decisions,
    LayeredModel,
    LayerStack,
    LayerWalk,
    Parameters,
    Passes,
    Replays,
    SinkCall,
    hook,
)
from simoffload.strategies.zero.trace import Event, Trace, micro_step
from simoffload.workload import Training

if TYPE_CHECKING:
    from simoffload.strategies.programs.zero_training import ZeroTrainingPlan

COPY, COMM, IO, REDUCE, WRITE, UPDATE, ACTIVATIONS, PARAMETERS = range(COMPUTE + 1, COMPUTE + 9)
_MAX_REDUCE_EVENTS = 2  # max_param_reduce_events, hard-coded in DeepSpeed
_NORM_TRAFFIC = 16
"""[B] of traffic per element for the norm of a gradient in addition to reading it: a double-precision copy is
written and read."""
_BOUNDARY_KERNELS = 5
"""Number of kernels per gradient at the boundary: cast to double, norm (two), its square, cast to single."""


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
        """Return the wait of the last bucket, and begin one of ``gradients`` that takes ``alone`` [ps]."""
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
    """Whether gradients in single precision are in memory shared with another process, never page-locked."""

    def in_place(self, *, adds: bool) -> int | None:  # noqa: ARG002 - a method to override
        """Return the traffic per element [B] with which autograd leaves a gradient where the optimizer reads
        it, and ``adds`` it to that of earlier micro-steps; None if it goes through a bucket."""
        return None

    def passes(self, _tensor: Tensor, /) -> int:
        """Return how often the GPU reads or writes a gradient before its copy into the bucket."""
        return 0

    def reduced(self, _out: MicroStepWriter, _tensors: Sequence[Tensor], /, *, boundary: bool) -> None:
        """Handle a bucket that has been reduced and not yet stored."""

    def stored(self, _out: MicroStepWriter, _tensors: Sequence[Tensor], /, *, boundary: bool) -> None:
        """Handle a bucket whose partitions are being copied to the memory in which they are accumulated."""


@dataclass(frozen=True)
class Memory:
    """A Memory is what a micro-step's writer remembers from layer to layer, relative to what is written."""

    fetches: State
    kernel_waits: tuple[int, ...]
    kept: tuple[int, ...] = field(compare=False)
    """Numbers of the gathers that have still not been waited for, among those of which this was so when the
    last part began. A part depends on those for which it waits (``MicroStepWriter.awaited_gathers``)."""
    gathered: tuple[Gather, ...] = field(compare=False)
    """Gathers of the last part that have not been waited for."""
    reduced: tuple[int, ...] = field(compare=False)
    """Distances to the buckets on the gradients' stream that were reduced in the last part. A part depends on
    those for which its own buckets wait (``MicroStepWriter.awaited_buckets``)."""


class MicroStepWriter(PassWriter, GradientSink):
    """A MicroStepWriter writes forward, or the kernels, gradients and checkpoints of backward."""

    def __init__(self, plan: ZeroTrainingPlan, part: StepPart, hook: TrainingStreams) -> None:
        state, timing, settings, places = plan.state, plan.timing, plan.settings, plan.places
        placement = Partitioning(places.weights, places.ranks, state.model.dtype_bytes, settings.params)
        gpus, routes = (range(places.ranks),), plan.routes
        super().__init__(name=part.title, gpus=gpus, hooks=(hook,), machine=timing.machine, routes=routes)
        self.fetches = Fetches(self, placement, timing, copy=COPY, comm=COMM, io=IO)
        self._settings, self._places, self._element = settings, places, placement.dtype_bytes
        self._time = timing
        self._accumulates, self._last = part.micro_step > 0, part.boundary
        self.swapper = GradientSwapper.of(state)
        self._handling = plan.step.hooks()
        twin_flow = state.on_gpu if settings.ratio != 1.0 else ()
        # Tensors of equal layers compare equal, so they are distinguished by identity.
        self._staying = {id(tensor) for group in twin_flow for tensor in group.tensors}
        self.gradients = REDUCE if settings.overlap_comm else COMPUTE
        """Name of the stream that handles gradients."""
        self._more = timing.machine.host.training
        self._reduces: list[int] = []
        self._reduced_before = 0  # number of buckets that were reduced before the present part
        self._gathers: list[Gather] = []  # those that had not been waited for when it began
        self.kernel_waits = KernelWaits()
        self.spend(plan.overhead_s(part))

    def memory(self, before: Sequence[int] = (), handles: Sequence[int] = ()) -> Memory:
        """Return what determines further operations, beside the state of the streams and the gradients that
        are held, relative to those already written, and begin another part.

        ``handles`` are the gathers that have not been waited for; ``before`` those of which this was so when
        the present part began.
        """
        written, fetches = self.count(self.gradients), self.fetches
        known = {handle: number for number, handle in enumerate(before)}
        kept = tuple([known[one] for one in handles if one in known])  # the first of them
        self._gathers = [fetches.gathers[one] for one in handles]
        reduced = tuple([written - ordinal for ordinal in self._reduces[self._reduced_before :]])
        self._reduced_before = len(self._reduces)
        gathered = fetches.relative(self._gathers[len(kept) :])
        return Memory(fetches.state, self.kernel_waits.state, kept, gathered, reduced)

    def repeated(self, memory: Memory) -> None:
        """Note what was gathered and reduced in a part that was repeated."""
        before = self._gathers
        self._gathers = [before[one] for one in memory.kept]
        if memory.gathered:
            self._gathers += self.fetches.relative(memory.gathered)
        if memory.reduced:
            written = self.count(self.gradients)
            self._reduces += [written - back for back in memory.reduced]
            self._reduced_before = len(self._reduces)

    def remember(self, memory: Memory) -> None:
        """Set what determines further operations after a part that was repeated."""
        self.fetches.restore(memory.fetches)
        self.kernel_waits = KernelWaits(*memory.kernel_waits)

    def name_gathers(self, handles: Sequence[int]) -> None:
        """Give the gathers that have not been waited for the ``handles`` of the part that begins."""
        self.fetches.gathers.update(zip(handles, self._gathers, strict=True))

    def awaited_gathers(self, numbers: Sequence[int]) -> tuple[Gather, ...]:
        """Return those for which a part waits, of the gathers that have not been waited for."""
        return self.fetches.relative([self._gathers[one] for one in numbers])

    def awaited_buckets(self, number: int) -> tuple[int, ...]:
        """Return the distances to earlier buckets for which the next ``number`` of buckets may wait."""
        if not number or self._settings.stage < 3:
            return ()
        written, last = self.count(self.gradients), self._reduces[-1 - _MAX_REDUCE_EVENTS :]
        return tuple([written - one for one in (last if len(last) <= _MAX_REDUCE_EVENTS else last[:number])])

    # -- gradients ------------------------------------------------------------------------------

    @property
    def reduces(self) -> bool:
        """Whether gradients are reduced in this micro-step, not only added up in HBM by autograd."""
        return self._settings.stage >= 2 or self._last or self._handling.always

    def gradient(self, tensor: Tensor, *, contiguous: bool) -> None:
        """Copy a complete gradient into the bucket, unless it is larger than the bucket."""
        in_place = self._handling.in_place(adds=self._accumulates)
        if in_place is not None:
            self.kernel("reduce", in_place * tensor.numel, stream=COMPUTE)
            return
        self.spend(self._more.gradient.value)
        self.flush()
        passes = (2 if contiguous else 0) + self._handling.passes(tensor)
        size = passes * tensor.numel * self._element
        after = self.so_far(HOST, COMPUTE)
        self.add("reduce", self.gradients, fixed=self._time.hbm_traffic(size), label=tensor.name, after=after)

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Reduce a bucket, and move its partitions to the memory in which they are accumulated."""
        if self._handling.in_place(adds=self._accumulates) is not None:
            return
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
            # Stages 0 and 1 keep whole gradients.
            kept = [one.numel if self._settings.stage < 2 else one.slice_numel for one in tensors]
            self.kernel("reduce", (3 if self._accumulates else 2) * self._settings.gradient_bytes * sum(kept))
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
        """Occupy the gradients' stream for what gradients take beyond their bytes: small kernels, and changes
        from copies to kernels.

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
        """Whether the host waits for each single-precision copy: until DeepSpeed 0.19.5 (commit 7dfa67a)."""
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

    def write_file(self, size: int, *, label: str, stream: int = WRITE) -> None:
        """Write a buffer with the aio handle of a ``stream`` while the host continues."""
        self.flush()
        tier = self._places.weights if stream == PARAMETERS else self._places.optimizer
        route, latency = self.fetches.storage(tier, size, written=True)
        self.add("write", stream, fixed=latency, size=size, route=route, label=label, after=self.so_far(HOST))

    def writing_still(self, seconds: float, *, label: str) -> None:
        """Occupy the aio handle for writes that an earlier part began, whose bytes count there."""
        route, _ = self.fetches.storage(self._places.optimizer, 1, written=True)
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
        behind: tuple[int, ...] = (),
    ) -> None:
        """Copy between GPU and host memory, in sequence; copies to or from pageable memory block the host.

        They are on the gradients' stream unless another one is named, and start after all work on the streams
        ``behind``.
        """
        where = self.gradients if stream is None else stream
        self.copy(sizes, where, to_device=to_device, pinned=pinned, behind=behind)
        if blocking or not pinned:
            self.host_waits(where)

    def to_gpu(self, size: int, *, pinned: bool) -> None:
        """Copy updated parameters to the GPU; from pageable memory the host waits."""
        self.move([size], to_device=True, pinned=pinned, stream=COPY)

    def read_file(self, size: int, *, label: str, after: tuple[Dependency, ...]) -> int:
        """Begin a read into a swap buffer of the optimizer; return its number on the stream of reads."""
        route, latency = self.fetches.storage(self._places.optimizer, size)
        return self.add("read", IO, fixed=latency, size=size, route=route, label=label, after=after)


_LONGEST = 1000
"""Number of layers of the longest period of gradients that is searched."""


class Bucket:
    """A Bucket collects gradients up to ``size`` [elements] and then passes them to ``reduce``."""

    def __init__(
        self,
        size: int,
        reduce: Callable[[Sequence[Tensor]], None],
        *,
        gradient: Callable[..., None] | None = None,
    ) -> None:
        self._size, self._reduce, self._gradient = size, reduce, gradient
        self._held: list[Tensor] = []
        self._numel = 0

    def add(self, tensor: Tensor) -> None:
        """Add a complete gradient (``reduce_independent_p_g_buckets_and_remove_grads``)."""
        if self._held and self._numel + tensor.numel > self._size:
            self.flush()
        if self._gradient is not None:
            self._gradient(tensor, contiguous=self._numel + tensor.numel <= self._size)
        self._held.append(tensor)
        self._numel += tensor.numel

    def add_all(self, tensors: Sequence[Tensor]) -> None:
        """Add several complete gradients, one after the other."""
        for tensor in tensors:
            self.add(tensor)

    @property
    def state(self) -> tuple[Tensor, ...]:
        """Gradients that the bucket holds now."""
        return tuple(self._held)

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Hold these gradients and no others."""
        self._held, self._numel = list(tensors), sum([tensor.numel for tensor in tensors])

    def flush(self) -> None:
        """Reduce the gradients that are held."""
        if self._held:
            self._reduce(self._held)
        self._held, self._numel = [], 0


GradientState = tuple[tuple[Tensor, ...], tuple[int | None, int] | None]
"""Gradients that a bucket holds, and the state of the swap buffers; None without these."""


class GradientForecast:
    """A GradientForecast foresees what happens to the gradients of layers, which decides what is written.

    The gradients in a bucket and in swap buffers have a period of their own, which is much longer than what
    happens to them in a single layer: most layers are alike.
    """

    def __init__(self, size: int, swapper: GradientSwapper | None, layer: Sequence[Tensor]) -> None:
        """Foresee the course of the gradients of equal layers in a bucket of ``size`` [elements]."""
        self._steps: list[Hashable] = []
        self._reduced = 0
        self._bucket = Bucket(size, self._reduce, gradient=self._gradient)
        self._swapper = swapper.twin() if swapper is not None else None
        self._layer = layer
        self._numbers: dict[GradientState, int] = {}
        self._states: list[GradientState] = []
        self._outcomes: dict[int, tuple[int, int]] = {}
        self._kinds: dict[tuple[Hashable, ...], int] = {}
        self.buckets: list[int] = []
        """Number of buckets that are reduced in a layer, by the kind of what happens in it."""

    def number(self, state: GradientState) -> int:
        """Return the number of a state."""
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def state(self, number: int) -> GradientState:
        """Return the state with a number."""
        return self._states[number]

    def after(self, number: int) -> tuple[int, int]:
        """Return the kind of what happens in a layer that begins in a state, and the state after it."""
        if number not in self._outcomes:
            held, swapped = self._states[number]
            self._bucket.hold(held)
            if self._swapper is not None and swapped is not None:
                self._swapper.go_to(swapped)
            self._steps, self._reduced = [], 0
            self._bucket.add_all(self._layer)
            kind = self._kinds.setdefault(tuple(self._steps), len(self._kinds))
            if kind == len(self.buckets):
                self.buckets.append(self._reduced)
            left = self._swapper.state if self._swapper is not None else None
            self._outcomes[number] = kind, self.number((self._bucket.state, left))
        return self._outcomes[number]

    def _gradient(self, tensor: Tensor, *, contiguous: bool) -> None:
        self._steps.append((tensor, contiguous))

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        self._steps.append(tuple(tensors))
        self._reduced += 1
        if self._swapper is not None:
            sink = _Steps()
            self._swapper.insert(sink, tensors)
            self._steps.append(tuple(sink.steps))


class _Steps(GradientSink):
    """_Steps are what the gradient swapper does."""

    def __init__(self) -> None:
        self.steps: list[Hashable] = []

    def to_swap_buffer(self, sizes: Sequence[int]) -> None:
        self.steps.append(tuple(sizes))

    def write_file(self, size: int, *, label: str) -> None:  # noqa: ARG002
        self.steps.append(size)

    def wait_writes(self) -> None:
        self.steps.append("wait")


class MicroStep(TrainingStreams):
    """A MicroStep does what DeepSpeed's hooks do at the events of a pass, after it has recorded its trace.

    Below stage 3 parameters are not partitioned, and nothing is fetched.
    """

    carried: ClassVar[bool] = True

    def __init__(
        self,
        stack: LayerStack,
        decisions: Decisions | None,
        state: TrainingState,
        activations: ActivationOffload | None,
        part: StepPart,
    ) -> None:
        """Write a ``part`` of a step, forward or backward, with the coordinator's ``decisions``, if any."""
        self._stack, self._state, self._activations = stack, state, activations
        self._backward = part.phase == "backward"
        self._decided = decisions.of(backward=self._backward) if decisions is not None else None
        self._layers = LayerWalk(self._decided, stack.backward if self._backward else stack.forward)
        self._pieces = dict(stack.trace.pieces(backward=self._backward))
        self._recurs = not self._backward or decisions is None or decisions.recur(stack.forward)
        self._calls = iter(tuple[tuple[SinkCall, ...], ...]())
        self._held = self._next_held = -1  # states of the gradients before and after a part
        self._writer: MicroStepWriter
        self._memory: Memory | None = None  # that of the last layer, until another part is written
        self._repeated = False

    @property
    def complete(self) -> bool:
        """Whether all layers that the stack leaves out were repeated, also in forward before backward."""
        return self._recurs and self._layers.layer == self._stack.trace.layers

    def start(self, out: PassWriter) -> None:
        """Begin with no gradients held."""
        assert isinstance(out, MicroStepWriter)
        self._writer, self._label = out, out.label
        self._bucket = Bucket(self._state.settings.reduce_bucket_size, out.reduce, gradient=out.gradient)
        completed = self._stack.parameters.completed
        layer = [tensor for event in self._pieces.get(0, ()) for tensor in completed(event)]
        self._foreseen = GradientForecast(
            self._state.settings.reduce_bucket_size,
            out.swapper,
            layer if self._backward and out.reduces else (),
        )

    @property
    def carry(self) -> Hashable:
        """All that is remembered from part to part, relative to what is written."""
        return self._memory or self._writer.memory()

    @carry.setter
    def carry(self, memory: Hashable) -> None:
        assert isinstance(memory, Memory)
        self._layers.go_on()
        self._memory, self._repeated = memory, True
        self._writer.repeated(memory)

    def state(self, part: Part) -> Hashable:
        """Return what the coordinator does, and what happens to the gradients; the number of the layer if
        layers differ."""
        if part.layer < 0 or not self._state.homogeneous:
            return part.layer
        if not part.layer:
            self._next_held = self._foreseen.number(self._gradients)
        self._held = self._next_held
        kind, self._next_held = self._foreseen.after(self._held)
        layer = self._layers.layer
        # Checkpoints of the first two layers of a pass are handled differently.
        first = min(layer, 2) if self._activations is not None else 0
        state = kind, first, self._writer.awaited_buckets(self._foreseen.buckets[kind])
        if self._decided is None:
            return state
        done = self._decided[layer]
        return *state, done.kind, self._writer.awaited_gathers(done.awaited)

    @property
    def _gradients(self) -> GradientState:
        swapper = self._writer.swapper
        return self._bucket.state, swapper.state if swapper is not None else None

    def _hold(self, number: int) -> None:
        """Set the state of the gradients."""
        held, swapped = self._foreseen.state(number)
        self._bucket.hold(held)
        if self._writer.swapper is not None and swapped is not None:
            self._writer.swapper.go_to(swapped)

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Take the events of a part's calls; the first after the layers ends the last."""
        if self._memory is not None and self._repeated:
            self._writer.remember(self._memory)
        self._memory, self._repeated = None, False
        self._events = iter(self._pieces[self._layers.layer])
        if self._decided is not None:
            done = self._decided[self._layers.layer]
            self._calls = iter(done.calls)
            self._writer.name_gathers(done.handles)
        if self._layers.layer >= 0 and self._state.homogeneous:
            self._hold(self._held if part.layer >= 0 else self._next_held)
        if part.name == "tail" and self._activations is not None:
            self._activations.leave(self._writer)

    def leave(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Go on to the next layer."""
        if self._layers.layer < self._stack.trace.layers:
            layer, decided = self._layers.layer, self._decided
            handles = [decided[one].handles for one in (layer, layer + 1)] if decided is not None else ()
            self._memory = self._writer.memory(*handles)
            self._layers.go_on()

    def before(self, call: Call, out: PassWriter) -> None:
        """Do what DeepSpeed does at the event of a call."""
        event = next(self._events)
        kind = event.kind
        if kind == "fetch":
            self._label = out.label = call.module.name
            self._writer.fetches.begin()
            if not event.backward and self._decided is not None:
                costs = out.costs
                out.spend(costs.hook.value + costs.hook_input.value * call.module.touched)
            self._writer.fetches.make(next(self._calls, ()))
            return
        out.label = self._label
        if kind == "release":
            self._writer.fetches.make(next(self._calls, ()))
        elif kind == "launch":  # autograd records it
            out.spend(out.now.timing.launch_s(call.module) * (1 + out.machine.host.training.graph.value))
        elif kind == "checkpoint":
            self._checkpoint(event.instance.layer)
        elif kind == "gradients" and self._backward and self._writer.reduces:
            self._bucket.add_all(self._stack.parameters.completed(event))

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Launch kernels, which wait for the module's parameters."""
        if call.kernels == "backward":
            out.spend(out.now.timing.dequantizing_s(call.module))
        if call.kernels == "backward" and self._decided is not None:
            out.spend(out.machine.host.training.backward_call.value)
        elif call.kernels == "backward":  # a node of autograd for each operation (an estimate)
            out.spend(out.now.timing.operation_s * max(1, out.now.timing.operations(call.module)))
        out.flush()
        for stream, ordinal in self._writer.fetches.awaited():
            out.await_(stream, ordinal)
        out.label = call.module.name
        return True

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:  # noqa: ARG002
        """Count kernels for which gradients wait; in backward for those of the input and of the weights."""
        self._writer.kernel_waits.launched(duration, kernels=2 if call.kernels == "backward" else 1)
        return False

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Reduce the last gradients, and let the host wait for the loss or the gradients."""
        out.label = self._label
        if self._backward:
            self._bucket.flush()
            self._writer.end_backward()
        else:
            out.host_waits(COMPUTE)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Nothing else is at the end of a pass."""
        return True

    def _checkpoint(self, layer: int) -> None:
        """Save the input of a layer in forward, or restore it in backward."""
        out = self._writer
        out.spend(out.machine.host.training.checkpoint.value)
        if self._activations is not None:
            act = self._activations.restore if self._backward else self._activations.enter
            act(out, layer)


_SIDE_STREAM = (0, 19, 6)
"""Version of DeepSpeed that introduced the side stream (commit 858e91e)."""


class ActivationOffload:
    """ActivationOffload copies the inputs of layers, ``size`` [B] each, to host memory and back
    (``activation_checkpointing.cpu_checkpointing``).

    Sources: deepspeed/runtime/activation_checkpointing/checkpointing.py and, since DeepSpeed 0.19.6,
    offload_activations.py (``_ActivationOffloadEngine``). Since 0.19.6 a side stream copies to page-locked
    memory and back. The input of a layer is copied once the next layer's forward pass has been launched; that
    of the last layer is never copied, and that of the one before it is still on the GPU when backward needs
    it. Earlier versions copy to pageable memory before a layer begins, and back before it is recomputed, and
    wait each time. Not modelled: mask and position ids, and new page-locked memory if there are more than 64
    layers.
    """

    def __init__(self, *, size: int, layers: int, version: tuple[int, ...]) -> None:
        self._size, self._layers, self._side_stream = size, layers, version >= _SIDE_STREAM

    def enter(self, out: MicroStepWriter, layer: int) -> None:
        """Handle the beginning of a layer in forward."""
        if not self._side_stream:
            out.move([self._size], to_device=False, pinned=False, stream=COMPUTE)
        elif layer >= 2:
            self._offload(out)

    def leave(self, out: MicroStepWriter) -> None:
        """Handle the end of the last layer in forward."""
        if self._side_stream and self._layers >= 2:
            self._offload(out)

    def restore(self, out: MicroStepWriter, layer: int) -> None:
        """Restore the input of a layer before it is recomputed."""
        if not self._side_stream:
            out.move([self._size], to_device=True, pinned=False, stream=COMPUTE)
        elif layer < self._layers - 2:
            out.spend(out.costs.copy_call.value)
            out.move([self._size], to_device=True, pinned=True, stream=ACTIVATIONS)
            after = out.so_far(HOST, ACTIVATIONS)
            out.add("compute", COMPUTE, label="checkpoint", after=after)

    def _offload(self, out: MicroStepWriter) -> None:
        """Write a copy that starts after all kernels launched so far."""
        out.spend(out.costs.copy_call.value)
        out.move([self._size], to_device=False, pinned=True, stream=ACTIVATIONS, behind=(COMPUTE,))


@dataclass
class TrainedReplays(Replays):
    """TrainedReplays are also the peaks of a micro-step."""

    peaks: dict[tuple[int, bool], ReplayPeaks] = field(default_factory=dict)
    """Peaks and reads by the size of a bucket of gradients, and ``warm``."""


@dataclass(frozen=True)
class TrainedLayers(LayeredModel):
    """TrainedLayers give the hooks and tensors of a micro-step for some or all of the identical layers."""

    state: TrainingState
    workload: Training
    packed: ClassVar[bool] = True

    @property
    def model(self) -> ModelShape:  # type: ignore[override]  # of inference it is a field
        """Model with all its layers."""
        return self.state.model

    @property
    def fetching(self) -> OffloadSettings | None:
        """Settings with which stage 3 fetches parameters; None below stage 3."""
        return self.state.fetching

    @property
    def ranks(self) -> int:
        """Number of GPUs among which the states are divided."""
        return self.state.places.ranks

    @property
    def homogeneous(self) -> bool:
        """Whether the tensors of all layers are on the same tiers, so that the layers are interchangeable."""
        return self.state.homogeneous

    def trace_of(self, count: int) -> Trace:
        """Return the order of hooks in forward and backward of a model with ``count`` layers."""
        work, model = self.workload, self.model.of_layers(count)
        return micro_step(model, checkpointing=work.gradient_checkpointing, reentrant=work.use_reentrant)

    def of_layers(self, count: int) -> tuple[Tensor, ...]:
        """Return the partitioned tensors, with their tiers, of a model with ``count`` layers."""
        return tuple(self.state.of_layers(count))

    def peak(self, *, warm: bool) -> ReplayPeaks:
        """Return peaks and reads of a replayed micro-step of stage 3; raises InputError where DeepSpeed
        stops."""
        key, known = (self.state.settings.reduce_bucket_size, warm), self.replays.peaks
        if key not in known:
            stacks = self.stacks_back(reduces=True, warm=warm)
            peaks = (gathered_peak(stack, self.state, warm=warm) for stack in stacks)
            # That of the whole, at the latest.
            known[key] = next(found for found in peaks if found is not None)
        return known[key]

    @cached_property
    def replays(self) -> TrainedReplays:
        """What was found by replaying it; batch and optimizer change none of it if all layers are alike."""
        state, work = self.state, self.workload
        if not self.homogeneous:
            return TrainedReplays(self.model)
        settings = state.settings.stage, state.settings.params, state.places.ranks
        key = id(state.model), *settings, work.gradient_checkpointing, work.use_reentrant
        return _REPLAYS.get(key, lambda: TrainedReplays(self.model))

    @cached_property
    def full(self) -> LayerStack:
        """Stack of all layers, with which nothing is left out of the replay."""
        if self.homogeneous:
            return self.stack(self.count)
        trace = self.trace_of(self.count)
        return LayerStack(trace, Parameters.of(trace, self.state.tensors, packed=self.packed))

    # -- gradients ------------------------------------------------------------------------------

    def stacks_back(self, *, reduces: bool, warm: bool = True) -> Iterator[LayerStack]:
        """Return the stacks that can represent the model in forward and backward, the shortest first; whole
        periods of the gradients in the bucket are left out where the replay ``reduces`` them."""
        gradients = Period(0, 1)
        if self.homogeneous and reduces:
            found = self._gradients
            if found is None:
                return iter([self.full])
            gradients = found
        return self.stacks(gradients, warm=warm)

    @property
    def _gradients(self) -> Period | None:
        """The period of the gradients in the bucket."""
        bucket = Bucket(self.state.settings.reduce_bucket_size, lambda _: None)
        before, layer, _ = self._completed
        bucket.add_all(before)

        def states() -> Iterator[State]:
            for _ in range(min(self.count, _LONGEST)):
                yield bucket.state
                bucket.add_all(layer)

        return period_of(states())

    @cached_property
    def _completed(self) -> list[list[Tensor]]:
        """Return the gradients that backward completes before the layers, in each layer, and after them."""
        trace, parameters, *_ = self.stack(1)
        return [
            [tensor for event in events for tensor in parameters.completed(event)]
            for _, events in trace.pieces(backward=True)
        ]

    def fill(self, swapper: GradientSwapper) -> None:
        """Bring the swapper to the state that it has at the end of backward."""
        if not self.homogeneous:
            for tensors in buckets(self.full, self.state.settings.reduce_bucket_size):
                swapper.insert(GradientSink(), tensors)
            return
        before, layer, after = self._completed
        swapper.insert(GradientSink(), before)
        met: dict[State, int] = {}
        left = self.count
        while left:
            if swapper.state in met:
                left %= met[swapper.state] - left
                met = {}
                if not left:
                    break
            met[swapper.state] = left
            swapper.insert(GradientSink(), layer)
            left -= 1
        swapper.insert(GradientSink(), after)


_LAYERED = Recent[tuple[Hashable, ...], TrainedLayers]()
_REPLAYS = Recent[tuple[Hashable, ...], TrainedReplays]()


def trained_layers(state: TrainingState, workload: Training) -> TrainedLayers:
    """Return the layers of a state and a workload: for the same model and workload (the same objects, not
    equal ones) those that other machines have asked for."""
    model, settings, places = state.model, state.settings, state.places
    key = id(model), settings, places, id(workload)
    return _LAYERED.get(key, lambda: TrainedLayers(state, workload))


class _Reads(CoordinatorSink):
    """A _Reads collects the partitions that are read from storage."""

    def __init__(self) -> None:
        self.slices: list[Tensor] = []
        self._repeated: list[tuple[int, int, int]] = []

    def repeat(self, first: int, times: int) -> None:
        """Repeat the reads from number ``first`` on."""
        self._repeated.append((first, len(self.slices), times))

    @property
    def all(self) -> Repeated[Tensor]:
        """Return all partitions that are read, in order."""
        found: list[tuple[Sequence[Tensor], int]] = []
        done = 0
        for first, last, times in self._repeated:
            found += (self.slices[done:last], 1), (self.slices[first:last], times)
            done = last
        return Repeated(*found, (self.slices[done:], 1))

    def read(self, tensors: Sequence[Tensor], /) -> None:
        self.slices.extend(tensors)


class ReplayPeaks(NamedTuple):
    """ReplayPeaks are the largest sizes of gathered parameters in a micro-step, and its reads."""

    gathered: int
    """Largest size of all parameters that are gathered at the same time [elements]."""
    largest: int
    """Largest size of parameters that are gathered in one call [elements]."""
    read: Repeated[Tensor]
    """Partitions that were read from storage."""
    while_reducing: int
    """Largest size of gathered parameters while a bucket is reduced [elements]."""


def gathered_peak(step: LayerStack, state: TrainingState, *, warm: bool = True) -> ReplayPeaks | None:
    """Replay a micro-step of stage 3 for its peaks and reads; raises InputError where DeepSpeed stops.

    None if the layers that are not replayed do not repeat those before them.
    """
    reads, parameters = _Reads(), step.parameters
    coordinator = step.coordinator(state.settings.params, state.places.ranks, reads, warm=warm)
    passes, while_reducing = Passes(step, coordinator), [0]
    bucket = Bucket(state.settings.reduce_bucket_size, lambda _: while_reducing.append(coordinator.on_gpu))

    def happen(event: Event) -> None:
        hook(event, coordinator, parameters)
        if event.kind == "gradients":
            bucket.add_all(parameters.completed(event))

    for backward, skip in ((False, step.forward), (True, step.backward)):
        right = passes.go(
            happen,
            backward=backward,
            skip=skip,
            more=lambda: bucket.state,
            position=lambda: len(reads.slices),
            repeat=reads.repeat,
        )
        if not right:
            return None
    bucket.flush()
    return ReplayPeaks(coordinator.peak_on_gpu, coordinator.largest_gather, reads.all, max(while_reducing))


def buckets(step: LayerStack, size: int) -> list[Sequence[Tensor]]:
    """Return the tensors of every bucket that a micro-step reduces, in order."""
    seen: list[Sequence[Tensor]] = []
    bucket = Bucket(size, seen.append)
    for event in step.trace.backward:
        bucket.add_all(step.parameters.completed(event))
    bucket.flush()
    return seen
