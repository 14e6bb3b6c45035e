"""A training step: its parts, and the operations of the optimizer, one sub-group after the other.

This is the plain step, on which the other modes build. The host does everything in sequence; only a pipelined
swapper reads the next sub-group and writes the previous one at the same time. Sources: ``step`` and its
functions in deepspeed/runtime/zero/stage3.py and stage_1_and_2.py (0.19.6), partitioned_optimizer_swapper.py
and pipelined_optimizer_swapper.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from simoffload.errors import InputError
from simoffload.models import SINGLE
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, Dependency
from simoffload.strategies.ds_config.settings import BITSANDBYTES
from simoffload.strategies.optimizers import (
    DEEPSPEED_ADAM,
    TORCH_ADAM,
    overflow_check_traffic,
    update_traffic,
)
from simoffload.strategies.passes.pass_writer import COMPUTE
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.plan import PartKind, StepPart
from simoffload.strategies.training.state import Update
from simoffload.strategies.training.writer import (
    COMM,
    COPY,
    IO,
    PARAMETERS,
    WRITE,
    GradientHooks,
    MicroStepWriter,
)

if TYPE_CHECKING:
    from simoffload.strategies.training.plan import ZeroTrainingPlan

PartWriter = Callable[[MicroStepWriter, StepPart], None]

_SCALE = 8
"""[B] of memory traffic per gradient for scaling: it is read and written."""


def micro_steps(accumulation: int, *, cycle: int, writes: bool = False) -> tuple[StepPart, ...]:
    """Return the forward and backward passes of a step of ``accumulation`` micro-steps, with an update after
    every ``cycle``-th. ``writes``: gradients are still being written to storage when backward ends."""
    cycles = Fraction(accumulation, cycle)
    forward = StepPart("forward", "forward", Fraction(accumulation))
    if cycle == 1:
        return forward, StepPart("backward", "backward", cycles, boundary=True, leaves_work=writes)
    first = StepPart("backward", "backward, first micro-step", cycles)
    middle = StepPart("backward", "backward, middle micro-steps", cycles * (cycle - 2), micro_step=1)
    last = StepPart("backward", "backward, last micro-step", cycles, cycle - 1, True, writes)
    return (forward, first, last) if cycle == 2 else (forward, first, middle, last)


def optimizer_part(times: Fraction = Fraction(1), *, awaits_work: bool = False) -> StepPart:
    """Return the part of a step that updates everything, which may wait for work of others."""
    return StepPart("optimizer", "optimizer", times, awaits_work=awaits_work, kind="optimizer")


class StepPlan:
    """A StepPlan is the plain step: gradients of all micro-steps are added up, then everything is updated."""

    def __init__(self, plan: ZeroTrainingPlan) -> None:
        self.plan = plan

    @property
    def cycle(self) -> int:
        """Number of micro-steps between two updates."""
        return self.plan.workload.gradient_accumulation_steps

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """Parts of one step of a long run, in the order in which they run."""
        accumulation, writes = self.plan.workload.gradient_accumulation_steps, self.writes_gradients
        update = optimizer_part(awaits_work=writes)
        return (*micro_steps(accumulation, cycle=self.cycle, writes=writes), update)

    @property
    def writes_gradients(self) -> bool:
        """Whether gradients go to storage: the step waits for those of which the writes have only begun."""
        return bool(self.plan.state.on_storage)

    @property
    def writers(self) -> Mapping[PartKind, PartWriter]:
        """Functions that write the parts without a forward or backward pass, by the kinds of the parts."""
        return {"optimizer": self._optimizer}

    def hooks(self) -> GradientHooks:
        """Return the additional handling of gradients in one backward pass."""
        return GradientHooks()

    def check(self) -> None:
        """Raise InputError for settings at which DeepSpeed stops."""

    def _optimizer(self, out: MicroStepWriter, part: StepPart) -> None:
        OptimizerStep(out, self.plan, unfinished_s=part.unfinished_s).write()


def refused(key: str, message: str) -> InputError:
    """Return the error for a setting that is refused or not modelled; ``key`` is within zero_optimization."""
    return InputError.at(f"strategy.ds_config.zero_optimization.{key}", message)


class OptimizerStep:
    """An OptimizerStep writes the optimizer step onto the streams of a micro-step's writer."""

    def __init__(self, out: MicroStepWriter, plan: ZeroTrainingPlan, *, unfinished_s: float = 0.0) -> None:
        self._out = out
        self._unfinished_s = unfinished_s
        self._plan = plan
        self._settings = plan.settings
        self._timing = plan.timing
        self._cpu = CpuWork(out, plan)
        self._size = plan.model.dtype_bytes
        self._costs = plan.machine.host.training
        self._ahead: int | None = None
        self._writing = False

    def write(self) -> None:
        """Write the complete step: norm, sub-groups, and the return of parameters to the GPU."""
        self.begin()
        out, updates = self._out, self._plan.state.updates
        for index, update in enumerate(updates):
            out.builder.segment("sub-group")
            out.spend(self._costs.sub_group_call.value)
            following = updates[index + 1] if index + 1 < len(updates) else None
            if update.on_gpu and not update.swapped:
                self._on_gpu(update)
            else:
                self._on_cpu(update, following)
        self.gather()
        self.end()

    def begin(self) -> None:
        """Write the search of all gradients for overflow, and write those that are still in swap buffers.

        Writes that backward began go on meanwhile; the first sub-group that is swapped in waits for all
        (``_flush_gradient_swapper``).
        """
        out, costs, updates = self._out, self._costs, self._plan.state.updates
        out.builder.segment("optimizer")
        tensors = sum(len(update.group.tensors) for update in updates)
        out.spend(costs.step_call.value + costs.updated_parameter.value * tensors)
        swapped = out.swapper is not None and any(update.swapped for update in updates)
        if swapped and self._unfinished_s:
            out.writing_still(self._unfinished_s, tier=self._plan.places.optimizer, label="gradients")
        if self._plan.state.checks_overflow:
            self._check_overflow()
        if swapped and out.swapper is not None:
            out.swapper.flush(out)

    def _check_overflow(self) -> None:
        """Write ``has_overflow``: a search of the accumulated gradients on the device that keeps them."""
        numel, element = self._plan.state.partitions.part, self._settings.gradient_bytes
        if self._plan.state.offloads_optimizer:
            self._cpu.overflow_check(numel, element)
        else:
            self._out.kernel("update", overflow_check_traffic(element) * numel, stream=COMPUTE)

    def gather(self) -> None:
        """Gather the updated parameters that every rank holds completely."""
        out = self._out
        out.builder.segment("after the step")
        persistent = [tensor for tensor in self._plan.state.tensors if tensor.persistent]
        if self._settings.stage == 3 and persistent:
            out.host_waits(COMPUTE)  # parameters that were updated on the GPU
            out.fetches.wait(out.fetches.gather(persistent, prefetch=False))
        elif self._settings.stage in (1, 2):
            self._gather_all()

    def end(self) -> None:
        """Let the host wait for all work of the step."""
        self._out.host_waits(WRITE)
        self._out.host_waits(COMPUTE)
        self._out.host_waits(COPY)

    # -- where the update is done ---------------------------------------------------------------

    def _on_gpu(self, update: Update) -> None:
        """Write an update in HBM: cast gradients to single precision, scale them, run Adam, cast the
        parameters back."""
        numel = update.group.numel
        out = self._out
        casts = self._timing.hbm_traffic((self._settings.gradient_bytes + 4 * SINGLE + self._size) * numel)
        out.flush()
        bits = BITSANDBYTES.get(self._settings.optimizer)
        adam = DEEPSPEED_ADAM * numel if bits is None else update_traffic(numel, bits=bits)
        out_of_gpu = self._plan.paged_out * numel // max(1, self._plan.state.partitions.part)
        if out_of_gpu:  # the driver moved them out for activations and gradients
            for to_device in (False, True):
                out.move([out_of_gpu], to_device=to_device, pinned=True, stream=COMPUTE)
        fixed = casts + self._timing.hbm_traffic(adam)
        out.add("update", COMPUTE, fixed=fixed, label="Adam", after=out.so_far(HOST))

    def _on_cpu(self, update: Update, following: Update | None) -> None:
        numel = update.group.numel
        if update.swapped:
            self._swap_in(update, following)
        self._cpu.scale(numel)
        if update.on_gpu:  # its states came into host memory: PyTorch's Adam updates them there
            self._cpu.loops(TORCH_ADAM * numel)
        else:
            self._update(numel)
        self.give_back(update, pinned=self._settings.stage < 3 and self._settings.pin_memory)
        if update.swapped:
            self._swap_out(update, last=following is None)

    def _update(self, numel: int) -> None:
        """Write Adam on the CPU, for which the host thread waits."""
        self._cpu.adam(DEEPSPEED_ADAM * numel)

    def give_back(self, update: Update, *, pinned: bool) -> None:
        """Write the cast of updated parameters to 16 bit on the CPU and their copy to their tier.

        A copy between devices and types casts at its source, into a new pageable tensor (PyTorch,
        aten/src/ATen/native/cuda/Copy.cu); stages 1 and 2 have a pinned buffer for it.
        """
        numel, out = update.group.numel, self._out
        self._cpu.loops((SINGLE + self._size) * numel)
        size = self._size * numel
        if update.params == "hbm":
            if not pinned:
                self._cpu.fresh(size)
            out.to_gpu(size, pinned=pinned)
        elif update.params == "nvme":
            for tensor in update.group.tensors:
                if tensor.on_nvme:
                    written = self._settings.params.aligned(tensor.slice_numel * self._size)
                    out.write_file(
                        written, tier=self._plan.places.weights, label=tensor.name, stream=PARAMETERS
                    )
            out.host_waits(PARAMETERS)

    def _gather_all(self) -> None:
        """Gather the parameters that other ranks have updated, on every rank."""
        out = self._out
        if out.ranks == 1:
            return
        left = sum(update.group.numel for update in self._plan.state.updates)
        bucket = max(1, self._settings.allgather_bucket_size // out.ranks)
        while left > 0:
            part = min(left, bucket)
            left -= part
            size = part * self._size * (out.ranks - 1)
            out.spend(out.costs.collective_call.value)
            out.exchange("gather", "all-gather", COMM, size, behind=(COMPUTE, COPY))
        out.host_waits(COMM)

    # -- storage --------------------------------------------------------------------------------

    def _swap_in(self, update: Update, following: Update | None) -> None:
        """Read master weights, moments and gradient; with ``pipeline_read`` the read began one sub-group
        earlier."""
        out = self._out
        if self._ahead is None:
            self._ahead = self._read(update)
        out.host_waits(IO, self._ahead)
        self._ahead = None
        if self._settings.pipeline_read and following is not None and following.swapped:
            self._ahead = self._read(following)

    def _read(self, update: Update) -> int:
        out = self._out
        size = self._settings.params.aligned(update.group.numel * SINGLE)
        states = [size] * 3
        out.flush()
        after: tuple[Dependency, ...] = out.so_far(HOST)
        for part in states:
            ordinal = out.read_state(
                part, tier=self._plan.places.optimizer, label="optimizer states", after=after
            )
        if not self._settings.pipelined:
            # The gradient is read only after the states.
            out.host_waits(IO)
            out.flush()
            after = out.so_far(HOST)
        return out.read_state(
            self._gradients(update, size),
            tier=self._plan.places.optimizer,
            label="gradients",
            after=after,
            last=ordinal,
        )

    def _gradients(self, update: Update, size: int) -> int:
        held = out_numel(update, self._out)
        return min(size, held) if held else 0

    def _swap_out(self, update: Update, *, last: bool) -> None:
        """Write master weights and moments; with ``pipeline_write`` the host waits one sub-group later."""
        out = self._out
        if self._writing:
            out.wait_writes()
            self._writing = False
        size = self._settings.params.aligned(update.group.numel * SINGLE)
        for _ in range(3):
            out.write_file(size, tier=self._plan.places.optimizer, label="optimizer states")
        if self._settings.pipeline_write and not last:
            self._writing = True
        else:
            out.wait_writes()


def out_numel(update: Update, out: MicroStepWriter) -> int:
    """Return the number of elements of a sub-group whose gradients are on storage."""
    swapper = out.swapper
    if swapper is None:
        return 0
    return sum(map(swapper.size, update.group.tensors))


class CpuWork:
    """CpuWork writes the work of a rank's threads on host memory: Adam, and PyTorch's loops over elements.

    Work of the training process is on the host's stream, which waits for it. Work of ``threads`` threads of
    another process is on a separate ``stream``. If a mode leaves cores to such a process, only the thread
    that sets this is bound to the other cores (Linux: ``sched_setaffinity`` of one thread; psutil's
    ``cpu_affinity``); the OpenMP threads of the training process, which already exist then, keep all cores.
    """

    def __init__(
        self, out: MicroStepWriter, plan: ZeroTrainingPlan, *, threads: int | None = None, stream: int = HOST
    ) -> None:
        self._out = out
        self._machine = plan.machine
        self._threads = threads or plan.places.threads
        self._processes = plan.processes
        self._stream = stream

    def adam(self, traffic: int) -> None:
        """Write DeepSpeed's Adam with ``traffic`` [B]."""
        rate = self._machine.host.cpu_optimizer.rate(self._threads, processes=self._processes)
        self._work("cpu-adam", traffic, rate)

    def scale(self, numel: int) -> None:
        """Write the scaling of gradients in place (``unscale_and_clip_grads``), at the rate of Adam in bytes:
        "scale" and "cpu_adam" of calibrate micro both reach 27 GB/s with one thread."""
        rate = self._machine.host.cpu_optimizer.rate(self._threads, processes=self._processes)
        self._work("cpu-casts", _SCALE * numel, rate)

    def overflow_check(self, numel: int, element: int) -> None:
        """Write ZeRO-3's search for overflow in gradients of ``element`` [B]; the type does not change its
        time."""
        optimizer = self._machine.host.cpu_optimizer
        rate = optimizer.overflow_check_rate(self._threads, processes=self._processes)
        traffic = overflow_check_traffic(element)
        self._work("cpu-overflow-check", traffic * numel, rate * traffic // overflow_check_traffic())

    def fresh(self, size: int) -> None:
        """Write the first use of new memory by all threads, and its release by one: the kernel first maps and
        clears the pages, and later takes them back."""
        pages = self._machine.host.fresh_memory
        self._out.spend(size / (pages.cast.value * self._threads) + size / pages.released.value)

    def loops(self, traffic: int) -> None:
        """Write element-by-element work of PyTorch with ``traffic`` [B]."""
        rate = self._machine.host.elementwise_rate(self._threads, processes=self._processes)
        self._work("cpu-casts", traffic, rate)

    def _work(self, kind: CauseKind, traffic: int, rate: int) -> None:
        out, cause = self._out, Cause(kind)
        out.flush()
        route = out.cpu_work(cause, rate)
        after = out.so_far(HOST) if self._stream != HOST else ()
        out.add("cpu", self._stream, size=traffic, route=route, label=cause_text(cause), after=after)
