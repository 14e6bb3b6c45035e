"""A training step: its parts, the optimizer step, and the modes that change it: SuperOffload and ZenFlow.

In the plain step, on which the other modes build, the host does everything in sequence; only a pipelined
swapper reads the next sub-group and writes the previous one at the same time. Sources: ``step`` and its
functions in deepspeed/runtime/zero/stage3.py and stage_1_and_2.py (0.19.6), partitioned_optimizer_swapper.py
and pipelined_optimizer_swapper.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from simoffload.errors import InputError
from simoffload.models import SINGLE
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind
from simoffload.strategies.ds_config import BITSANDBYTES
from simoffload.strategies.passes.pass_writer import COMPUTE, HOST
from simoffload.strategies.passes.timing import picoseconds
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.micro_step import (
    COMM,
    COPY,
    IO,
    PARAMETERS,
    UPDATE,
    WRITE,
    GradientHooks,
    MicroStepWriter,
)
from simoffload.strategies.training.state import (
    DEEPSPEED_ADAM,
    TORCH_ADAM,
    TORCH_ADAM_NEW,
    TorchTraining,
    Update,
    overflow_check_traffic,
    update_traffic,
)
from simoffload.strategies.zero.coordinator import Tensor

if TYPE_CHECKING:
    from simoffload.strategies.programs.zero_training import ZeroTrainingPlan

_SCALE = 8
"""[B] of memory traffic per gradient for scaling: it is read and written."""
_TILE = 128 << 20
"""Most parameters that DeepSpeed's Adam updates in one parallel region (csrc/includes/simd.h)."""
_CHECK_REGIONS = 5
"""Parallel regions of a search for overflow: a magnitude, two comparisons and two reductions."""


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

    def write(self, out: MicroStepWriter, part: StepPart) -> None:
        """Write a part without a forward or backward pass."""
        OptimizerStep(out, self.plan, part).write()

    def hooks(self) -> GradientHooks:
        """Return the additional handling of gradients in one backward pass."""
        return GradientHooks()

    def check(self) -> None:
        """Raise InputError for settings at which DeepSpeed stops."""


def _refused(key: str, message: str) -> InputError:
    """Return the error for a setting that is refused or not modelled; ``key`` is within zero_optimization."""
    return InputError.at(f"strategy.ds_config.zero_optimization.{key}", message)


class _Swapping(NamedTuple):
    """What a sub-group has begun when the next one begins."""

    reads: bool = False
    """Whether states and gradient of the next one are being read."""
    writes: bool = False
    """Whether its own states are being written."""


class OptimizerStep:
    """An OptimizerStep writes the optimizer step onto the streams of a micro-step's writer."""

    def __init__(self, out: MicroStepWriter, plan: ZeroTrainingPlan, part: StepPart) -> None:
        self._out, self._plan, self._part = out, plan, part
        self._settings, self._timing, self._size = plan.settings, plan.timing, plan.model.dtype_bytes
        self._cpu = CpuWork(out, plan)
        self._costs = plan.machine.host.training
        self._hook = out.hooks[0]
        self._hook.carry = _Swapping()

    def write(self) -> None:
        """Write the complete step: norm, sub-groups, and the return of parameters to the GPU."""
        self.begin()
        out, updates = self._out, self._plan.state.updates
        numbers: dict[Update | None, int] = {}
        kinds = [numbers.setdefault(update, len(numbers)) for update in (*updates, None)]
        for index, update in enumerate(updates):
            following = updates[index + 1] if index + 1 < len(updates) else None
            kind = kinds[index], kinds[index + 1]
            out.section("sub-group", kind, partial(self._sub_group, update, following))
        self.gather()
        self.end()

    def begin(self) -> None:
        """Write the search of all gradients for overflow, and write those that are still in swap buffers.

        Writes that backward began go on meanwhile; the first sub-group that is swapped in waits for all
        (``_flush_gradient_swapper``).
        """
        out, costs, updates = self._out, self._costs, self._plan.state.updates
        out.builder.segment("optimizer")
        tensors = sum(len(update.tensors) for update in updates)
        out.spend(costs.step_call.value + costs.updated_parameter.value * tensors)
        swapped = out.swapper is not None and any(update.swapped for update in updates)
        if swapped and self._part.unfinished_s:
            out.writing_still(self._part.unfinished_s, label="gradients")
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
            out.fetches.gather(0, persistent, prefetch=False)
            out.fetches.wait(0)
        elif self._settings.stage in (1, 2):
            self._gather_all()

    def end(self) -> None:
        """Let the host wait for all work of the step."""
        self._out.host_waits(WRITE)
        self._out.host_waits(COMPUTE)
        self._out.host_waits(COPY)

    # -- where the update is done ---------------------------------------------------------------

    def _on_gpu(self, update: Update) -> None:
        """Write an update in HBM: cast and scale gradients, run Adam, cast the parameters back."""
        numel = update.numel
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

    def _sub_group(self, update: Update, following: Update | None) -> None:
        """Write the update of a sub-group."""
        self._out.builder.segment("sub-group")
        self._out.spend(self._costs.sub_group_call.value)
        if update.on_gpu and not update.swapped:
            self._on_gpu(update)
        else:
            self._on_cpu(update, following)

    @property
    def _swapping(self) -> _Swapping:
        """What the sub-group before has begun; the driver sets it where a sub-group is repeated."""
        assert isinstance(self._hook.carry, _Swapping)
        return self._hook.carry

    def _on_cpu(self, update: Update, following: Update | None) -> None:
        numel = update.numel
        if update.swapped:
            self._swap_in(update, following)
        self._cpu.scale(numel)
        if update.on_gpu:  # its states came into host memory: PyTorch's Adam updates them there
            self._cpu.loops(TORCH_ADAM * numel, written=TORCH_ADAM_NEW * SINGLE * numel)
        else:
            self._update(numel)
        self.give_back(update, pinned=self._settings.stage < 3 and self._settings.pin_memory)
        if update.swapped:
            self._swap_out(update, last=following is None)

    def _update(self, numel: int) -> None:
        """Write Adam on the CPU, for which the host thread waits."""
        self._cpu.adam(numel)

    def give_back(self, update: Update, *, pinned: bool) -> None:
        """Write the cast of updated parameters to 16 bit on the CPU and their copy to their tier.

        A copy between devices and types casts at its source, into a new pageable tensor (PyTorch,
        aten/src/ATen/native/cuda/Copy.cu); stages 1 and 2 have a pinned buffer for it.
        """
        numel, out = update.numel, self._out
        self._cpu.loops((SINGLE + self._size) * numel, written=self._size * numel)
        size = self._size * numel
        if update.params == "none":
            if not pinned:
                self._cpu.fresh(size)
            out.to_gpu(size, pinned=pinned)
        elif update.params == "nvme":
            for tensor in update.tensors:
                if tensor.on_nvme:
                    written = self._settings.params.aligned(tensor.slice_numel * self._size)
                    out.write_file(written, label=tensor.name, stream=PARAMETERS)
            out.host_waits(PARAMETERS)

    def _gather_all(self) -> None:
        """Gather the parameters that other ranks have updated, on every rank."""
        out = self._out
        if out.ranks == 1:
            return
        left = sum(update.numel for update in self._plan.state.updates)
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
        """Read states and gradient; with ``pipeline_read`` the read began one sub-group earlier."""
        out = self._out
        if not self._swapping.reads:
            self._read(update)
        out.host_waits(IO)
        ahead = self._settings.pipeline_read and following is not None and following.swapped
        self._hook.carry = self._swapping._replace(reads=ahead)
        if following is not None and ahead:
            self._read(following)

    def _read(self, update: Update) -> None:
        """Begin to read states and gradient."""
        out, size = self._out, self._settings.params.aligned(update.numel * SINGLE)
        out.flush()
        after = out.so_far(HOST)
        for _ in range(3):
            out.read_file(size, label="optimizer states", after=after)
        if not self._settings.pipelined:
            # The gradient is read only after the states.
            out.host_waits(IO)
            out.flush()
            after = out.so_far(HOST)
        swapper, tensors = out.swapper, update.tensors
        held = 0 if swapper is None else sum(map(swapper.size, tensors))
        if held:
            out.read_file(min(size, held), label="gradients", after=after)

    def _swap_out(self, update: Update, *, last: bool) -> None:
        """Write master weights and moments; with ``pipeline_write`` the host waits one sub-group later."""
        out = self._out
        if self._swapping.writes:
            out.wait_writes()
        size = self._settings.params.aligned(update.numel * SINGLE)
        for _ in range(3):
            out.write_file(size, label="optimizer states")
        goes_on = self._settings.pipeline_write and not last
        self._hook.carry = self._swapping._replace(writes=goes_on)
        if not goes_on:
            out.wait_writes()


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
        self._out, self._stream, self._host = out, stream, plan.machine.host
        self._rates = self._host.cpu_optimizer
        self._threads, self._processes = threads or plan.places.threads, plan.processes

    def adam(self, numel: int) -> None:
        """Write DeepSpeed's Adam, a parallel region for each of its tiles."""
        rate = self._rates.rate(self._threads, processes=self._processes)
        self._work("cpu-adam", DEEPSPEED_ADAM * numel, rate, regions=-(-numel // _TILE))

    def scale(self, numel: int) -> None:
        """Write the scaling of gradients in place (``unscale_and_clip_grads``), at the rate of Adam in bytes:
        "scale" and "cpu_adam" of calibrate micro both reach 27 GB/s with one thread."""
        rate = self._rates.rate(self._threads, processes=self._processes)
        self._work("cpu-casts", _SCALE * numel, rate)

    def overflow_check(self, numel: int, element: int) -> None:
        """Write ZeRO-3's search for overflow; the type of gradients does not change its time."""
        rate = self._rates.overflow_check_rate(self._threads, processes=self._processes)
        traffic = overflow_check_traffic(element)
        rate = rate * traffic // overflow_check_traffic()
        self._work("cpu-overflow-check", traffic * numel, rate, regions=_CHECK_REGIONS)

    def fresh(self, size: int) -> None:
        """Write the first use of new memory by all threads, and its release by one: the kernel first maps and
        clears the pages, and later takes them back."""
        pages = self._host.fresh_memory
        threads = self._rates.running(self._threads, self._processes)
        self._out.spend(size / (pages.cast.value * threads) + size / pages.released.value)

    def loops(self, traffic: int, *, written: int = 0) -> None:
        """Write element-by-element work of PyTorch with ``traffic`` [B], of which ``written`` [B] go to
        memory that it has not read: the CPU reads each line of it before it writes it (write-allocate)."""
        rate = self._rates.loops_rate(self._threads, processes=self._processes)
        self._work("cpu-casts", traffic + written, rate)

    def _work(self, kind: CauseKind, traffic: int, rate: int, *, regions: int = 1) -> None:
        out, cause = self._out, Cause(kind)
        out.flush()
        route = out.cpu_work(cause, rate)
        after = out.so_far(HOST) if self._stream != HOST else ()
        fixed = picoseconds(regions * self._rates.turns_s(self._threads, processes=self._processes))
        out.add(
            "cpu", self._stream, fixed=fixed, size=traffic, route=route, label=cause_text(cause), after=after
        )


# --------------------------------------------------------------------------------------------------
# PyTorch alone: autograd's gradients, and AdamW on the GPU (torch/optim/adamw.py, 2.11).


_ADAMW_OPERATIONS = {True: 1.8, False: 3.8}
"""Host time of AdamW for each tensor in operations without DeepSpeed, by whether it is fused: steps of 42 and
56 small adapters on one H200 (docs/measurements/training.md)."""


class TorchStep(StepPlan):
    """A TorchStep updates whole copies with PyTorch's AdamW on the GPU."""

    def __init__(self, plan: ZeroTrainingPlan, torch: TorchTraining) -> None:
        super().__init__(plan)
        self._torch = torch

    def write(self, out: MicroStepWriter, part: StepPart) -> None:  # noqa: ARG002
        """Write the update of all tensors, whose first kernels start at once; the host waits for the last."""
        torch, updates = self._torch, self.plan.state.updates
        out.builder.segment("optimizer")
        tensors = sum(len(update.tensors) for update in updates)
        operation = self.plan.machine.host.eager_costs.operation.value
        size = torch.traffic * sum(update.numel for update in updates)
        out.add("update", COMPUTE, fixed=self.plan.timing.hbm_traffic(size), label="AdamW")
        out.spend(_ADAMW_OPERATIONS[torch.fused] * operation * tensors)
        out.host_waits(COMPUTE)

    def hooks(self) -> GradientHooks:
        """Return what autograd does with gradients on one GPU; several have buckets, as under ZeRO."""
        return GradientHooks() if self.plan.places.ranks > 1 else _OwnGradients(self)

    def gradient_traffic(self, *, adds: bool) -> int:
        """Return the traffic per element [B] of a gradient's cast, and of its sum with earlier ones."""
        torch = self._torch
        cast = self.plan.model.dtype_bytes + torch.element if torch.casts else 0
        return cast + (3 * torch.element if adds else 0)


class _OwnGradients(GradientHooks):
    always = True

    def __init__(self, step: TorchStep) -> None:
        self._step = step

    def in_place(self, *, adds: bool) -> int:
        return self._step.gradient_traffic(adds=adds)


# --------------------------------------------------------------------------------------------------
# SuperOffload: a separate process updates sub-groups while backward continues.
#
# When all gradients of a sub-group have been copied, the host waits for the gradients' stream and queues
# the sub-group; the process copies its gradient into a buffer and runs Adam. ``step`` waits for the last
# sub-group, scales the gradients nevertheless, and casts and copies the parameters back. With gradient
# clipping, which needs the norm of all gradients, sub-groups are updated one by one after backward.
#
# Tensors that another process uses are in shared memory, which is not page-locked, so copies of gradients
# block the host. Not modelled: the queue itself, and polling for results every millisecond. Source:
# deepspeed/runtime/superoffload (0.19.6).


class SuperOffloadStep(StepPlan):
    """A SuperOffloadStep updates sub-groups on the CPU in parallel with backward."""

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """Parts of one step of a long run, in the order in which they run."""
        overlaps = not self.plan.settings.gradient_clipping
        return tuple(
            part._replace(
                leaves_work=overlaps and part.phase == "backward" and part.boundary,
                awaits_work=overlaps and part.phase == "optimizer",
            )
            for part in super().parts
        )

    def write(self, out: MicroStepWriter, part: StepPart) -> None:
        """Write the part of the optimizer step that remains after backward."""
        _UpdatedStep(out, self.plan, part).write()

    def hooks(self) -> GradientHooks:
        """Return the hooks that queue a sub-group when its gradients are complete."""
        return _Arrivals(self.plan)


def update_threads(plan: ZeroTrainingPlan) -> int:
    """Return the threads of the process that updates on the CPU beside training.

    SuperOffload leaves a share of the cores to training, rounded down (``cpuadam_cores_perc``,
    ``_set_cpu_affinity``). ZenFlow's process has all cores except the reserved ones, rounded up
    (``_split_affinity``); all cores if no core or every core would be reserved.
    """
    threads, zenflow = plan.places.threads, plan.settings.zenflow
    if zenflow is None:
        return threads - int((1 - plan.settings.cpuadam_cores) * threads)
    reserved = ceil(zenflow.pt_reserved_cores_perc * threads)
    return threads - reserved if 0 < reserved < threads else threads


def _queue(out: MicroStepWriter, plan: ZeroTrainingPlan, numel: int) -> None:
    """Queue a sub-group: the process copies its gradient into a buffer and updates it."""
    work = CpuWork(out, plan, threads=update_threads(plan), stream=UPDATE)
    work.loops(2 * SINGLE * numel, written=SINGLE * numel)
    work.adam(numel)


class _Arrivals(GradientHooks):
    """_Arrivals counts the complete gradients of each sub-group (``sub_group_grad_partition_counts``)."""

    shared = True

    def __init__(self, plan: ZeroTrainingPlan) -> None:
        self._plan = plan
        # Tensors of equal layers compare equal, so they are distinguished by identity.
        self._group = {
            id(tensor): index for index, update in enumerate(plan.state.updates) for tensor in update.tensors
        }
        updates = plan.state.updates
        self._missing = Counter({index: len(one.tensors) for index, one in enumerate(updates)})

    def stored(self, out: MicroStepWriter, tensors: Sequence[Tensor], *, boundary: bool) -> None:
        """Queue the sub-groups that are complete."""
        came = Counter(self._group[id(tensor)] for tensor in tensors)
        self._missing.subtract(came)
        complete = [index for index in came if not self._missing[index]]
        if not boundary or not complete:
            return
        out.host_waits(out.gradients)
        for index in complete:
            update = self._plan.state.updates[index]
            if not update.on_gpu and not self._plan.settings.gradient_clipping:
                out.flush()
                _queue(out, self._plan, update.numel)


class _UpdatedStep(OptimizerStep):
    """An _UpdatedStep is the part of the optimizer step that remains after backward."""

    def begin(self) -> None:
        """Wait for the last sub-groups."""
        if not self._settings.gradient_clipping:
            self._out.builder.segment("last updates")
            self._out.add("wait", UPDATE, fixed=picoseconds(self._part.unfinished_s), label="CPU update")
            self._out.host_waits(UPDATE)
        super().begin()

    def _update(self, numel: int) -> None:
        """Update nothing, unless the norm of all gradients had to be computed first."""
        if self._settings.gradient_clipping:
            self._out.flush()
            _queue(self._out, self._plan, numel)
            self._out.host_waits(UPDATE)


# --------------------------------------------------------------------------------------------------
# ZenFlow: the most important gradient columns are updated on the GPU in every micro-step, the others every
# few micro-steps on the CPU.
#
# ``update_interval`` replaces ``gradient_accumulation_steps``: gradients are accumulated in host memory, and
# at this interval the CPU updates everything. With ``overlap_step`` a separate process does this, on the
# cores that ``pt_reserved_cores_perc`` leaves. An update then waits for the one that was submitted one
# interval earlier, takes its parameters (which are therefore one interval old), and submits the new
# gradients. Memory shared with that process is not page-locked.
#
# Passes over HBM for the selected columns are counted in zenflow_stage_1_and_2.py
# (``_process_selected_fp32_groups_grad``, ``update_selected_channels``), engine_stage3.py (the same names)
# and zenflow_torch_adam.py (``group_step``, ``temp_copy_param``, ``_multi_tensor_adamw``), in the model's
# data type. ZenFlow keeps matrices transposed, so that a column is contiguous.
#
# Not modelled: competition between the process and the copies of gradients for memory bandwidth; in stage 3,
# the repeated gathering of small ("persistent") parameters in every micro-step; warm-up rounds, which are
# plain steps; and with ``update_interval: auto``, the norms for which the host waits.
#
# Sources: deepspeed/runtime/zenflow (0.19.6): engine.py, zenflow_stage_1_and_2.py, engine_stage3.py,
# zenflow_utils.py; deepspeed/ops/adam/zenflow_torch_adam.py; csrc/adam/cpu_adam_impl.cpp.


_SELECTED = "selected columns"
_SELECTION = "selection of columns"
_NATIVE = (0, 19, 3)
"""Version from which the update is one loop in C++ (commit 1ddbe48); before, it is in Python."""
_PARAMETERS_OFFLOADED = (0, 19, 2)
"""First version that works with offloaded parameters (commit 28a196f)."""

_COPY = 2
"""Number of memory passes of a copy: data is read and written."""
_ADAM_PASSES = 20
"""Number of memory passes of ``_multi_tensor_adamw``, reads + writes: decay 1+1, first moment 2+1, second
moment 1+1 and 2+1, its root 1+1, correction 1+1, epsilon 1+1, parameters 3+1."""
_SUM_PASSES = 3
"""Number of memory passes for the sums of magnitudes of columns: magnitudes are written, and read again."""
_INDEX_BYTES = 4
_SCALAR_READS = 3
"""Values that the host reads from the GPU per selected column in stage 3: two comparisons and an item()."""
_OPERATIONS = 10
"""Number of PyTorch operations for the selected columns of a tensor (an estimate), counted in
zenflow_stage_1_and_2.py: views of gradient and buffer, indexing, copies, concatenation, a transposition."""


def update_s(plan: ZeroTrainingPlan) -> float:
    """Return the time of an update by the separate process [s].

    It is the time of Adam and of a copy of the parameters for the training process (4 B per parameter, read
    and written; before 0.19.3 a copy of a copy). The threads of the process allocate the moments, which are
    therefore in the memory of their NUMA node.
    """
    copies = (2 if plan.settings.params.version >= _NATIVE else 4) * SINGLE
    optimizer = plan.machine.host.cpu_optimizer
    rate = optimizer.rate(update_threads(plan), processes=plan.processes, local=True)
    return (DEEPSPEED_ADAM + copies) * plan.state.cpu_numel / rate


class ZenFlowStep(StepPlan):
    """A ZenFlowStep updates after every ``update_interval`` of its micro-steps."""

    def __init__(self, plan: ZeroTrainingPlan) -> None:
        super().__init__(plan)
        assert plan.settings.zenflow is not None
        self._zenflow = plan.settings.zenflow
        self._columns = SelectedColumns(plan, ratio=self._zenflow.topk_ratio)

    @property
    def cycle(self) -> int:
        """Number of micro-steps between two updates."""
        return self._zenflow.interval

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """Parts of one step of a long run, in the order in which they run."""
        steps = self.plan.workload.gradient_accumulation_steps
        cycles, writes = Fraction(steps, self.cycle), self.writes_gradients
        update = optimizer_part(cycles, awaits_work=writes or self._zenflow.overlap_step)
        parts = [
            *micro_steps(steps, cycle=self.cycle, writes=writes),
            update,
            StepPart("optimizer", _SELECTED, cycles, kind="selected-columns"),
        ]
        if self._zenflow.selects_every:
            often = Fraction(steps, self._zenflow.selects_every)
            parts.insert(-2, StepPart("backward", _SELECTION, often, kind="column-selection"))
        return tuple(parts)

    def write(self, out: MicroStepWriter, part: StepPart) -> None:
        """Write an update by the CPU, one of the selected columns, or a new selection."""
        if part.kind == "selected-columns":
            self._selected(out)
        elif part.kind == "column-selection":
            self._selection(out)
        elif self._zenflow.overlap_step:
            remaining_s = max(0.0, update_s(self.plan) - part.elapsed_s)
            _OverlappedStep(out, self.plan, part).take_over(remaining_s)
        else:
            super().write(out, part)

    def hooks(self) -> GradientHooks:
        """Return the hooks that extract the selected columns and, before the last micro-step, update them."""
        return _SelectedGradients(self._columns, shared=self._zenflow.overlap_step)

    def check(self) -> None:
        """Raise InputError for settings at which DeepSpeed stops."""
        plan, zenflow, params = self.plan, self._zenflow, self.plan.settings.params
        swapped = any(update.swapped for update in plan.state.updates)
        if swapped and zenflow.overlap_step:
            text = "DeepSpeed stops: sub-groups on storage have no overlap_grad; set it to false"
            raise _refused("zenflow.overlap_step", text)
        if swapped and (zenflow.selects_every or zenflow.full_warm_up_rounds):
            text = (
                "DeepSpeed stops at a later selection: weights on storage cannot be set to those of the GPU; "
                "leave out select_interval and full_warm_up_rounds"
            )
            raise _refused("zenflow", text)
        if zenflow.offload and not plan.settings.overlap_comm:
            raise _refused("zenflow.offload", "DeepSpeed stops: it needs overlap_comm: true")
        if any(update.on_gpu for update in plan.state.updates):
            text = "with zenflow DeepSpeed never updates the sub-groups that stay on the GPU; set it to 1.0"
            raise _refused("offload_optimizer.ratio", text)
        if params.device == "nvme":
            raise _refused("zenflow", "not modelled with parameters on storage")
        if params.device == "cpu" and params.version < _PARAMETERS_OFFLOADED:
            text = "DeepSpeed before 0.19.2 stops with parameters in host memory"
            raise _refused("zenflow", text)

    def _selected(self, out: MicroStepWriter) -> None:
        """Restore overwritten columns, then update them (``selective_optimizer_step``)."""
        out.builder.segment(_SELECTED)
        ColumnWork(out, self._columns).update(self.plan.state.trained, snapshot=True)
        out.end_backward()

    def _selection(self, out: MicroStepWriter) -> None:
        """Copy the GPU's weights to the master weights, and select columns by the sums of their gradients."""
        out.builder.segment(_SELECTION)
        plan = self.plan
        numel, size = plan.state.cpu_numel, plan.model.dtype_bytes
        cpu = CpuWork(out, plan)
        if plan.settings.params.device == "cpu":
            cpu.loops((size + SINGLE) * numel, written=SINGLE * numel)
        else:
            out.kernel("reduce", (size + SINGLE) * numel, stream=COMPUTE)
            out.move([SINGLE * numel], to_device=False, pinned=False, stream=COMPUTE)
            if plan.settings.stage < 3:
                cpu.loops(2 * SINGLE * numel, written=SINGLE * numel)
        ColumnWork(out, self._columns).choose()
        out.end_backward()


class _SelectedGradients(GradientHooks):
    always = True

    def __init__(self, columns: SelectedColumns, *, shared: bool) -> None:
        self._columns = columns
        self.shared = shared

    def passes(self, tensor: Tensor) -> int:
        """Number of passes over a matrix to transpose it, so that its columns are contiguous."""
        return 2 if self._columns.of(tensor) else 0

    def reduced(self, out: MicroStepWriter, tensors: Sequence[Tensor], *, boundary: bool) -> None:
        """Extract the selected columns, and keep them for the step or update them immediately."""
        work = ColumnWork(out, self._columns)
        work.take(tensors)
        if boundary:
            work.keep(tensors)
        else:
            work.update(tensors, snapshot=False)


class _OverlappedStep(OptimizerStep):
    """An _OverlappedStep is what the training process does for an update by another process."""

    def take_over(self, remaining_s: float) -> None:
        """Wait for the last update, copy its parameters, scale the new gradients and submit them."""
        out, updates = self._out, self._plan.state.updates
        self.begin()
        out.add("wait", UPDATE, fixed=picoseconds(remaining_s), label="CPU update")
        out.host_waits(UPDATE)
        for update in updates:
            out.builder.segment("sub-group")
            self._stale(update)
        self.gather()
        for update in updates:
            self._cpu.scale(update.numel)
        self.end()

    def _stale(self, update: Update) -> None:
        """Write the copy of the parameters of the last update to the GPU.

        Until DeepSpeed 0.19.3, stages 1 and 2 copied in single precision and cast on the GPU.
        """
        numel = update.numel
        if self._settings.stage < 3 and self._plan.settings.params.version < _NATIVE:
            self._out.to_gpu(SINGLE * numel, pinned=False)
            self._out.kernel("update", (SINGLE + self._size) * numel, stream=COPY)
        else:
            self.give_back(update, pinned=False)


class SelectedColumns:
    """SelectedColumns are a fraction of the columns of every matrix, and all of every other tensor."""

    def __init__(self, plan: ZeroTrainingPlan, *, ratio: float) -> None:
        self.plan, self._ratio = plan, ratio
        self._columns: dict[str, int] = {}
        tensors = plan.parameters.tensors
        for one, indices in plan.parameters.trained.items():
            widest = max(one.module.in_features, one.module.out_features)
            for index in indices:
                if tensors[index].numel > widest:
                    self._columns[tensors[index].name] = one.module.in_features

    @property
    def matrices(self) -> list[Tensor]:
        """All matrices that have gradients."""
        return [tensor for tensor in self.plan.state.trained if self.of(tensor)]

    def of(self, tensor: Tensor) -> int:
        """Return the number of columns of a matrix; 0 for other tensors."""
        return self._columns.get(tensor.name, 0)

    def picked(self, tensor: Tensor) -> int:
        """Return the number of selected columns of a matrix; stage 3 takes at least one."""
        return max(int(self._ratio * self.of(tensor)), 1 if self.plan.settings.stage == 3 else 0)

    def selected(self, tensor: Tensor) -> int:
        """Number of elements that one rank updates: all selected ones, in stage 3 those of the rank."""
        numel = tensor.numel if self.plan.settings.stage < 3 else tensor.slice_numel
        columns = self.of(tensor)
        return numel * self.picked(tensor) // columns if columns else numel


class ColumnWork:
    """ColumnWork writes the operations on selected columns."""

    def __init__(self, out: MicroStepWriter, columns: SelectedColumns) -> None:
        plan = columns.plan
        self._out, self._columns, self._plan = out, columns, plan
        self._in_host_memory = plan.settings.params.device == "cpu"
        self._offloads = plan.settings.zenflow is not None and plan.settings.zenflow.offload
        self._host = CpuWork(out, plan)

    def _sizes(self, tensors: Sequence[Tensor]) -> list[int]:
        return [self._columns.selected(tensor) * self._plan.model.dtype_bytes for tensor in tensors]

    def _spend(self, tensors: Sequence[Tensor]) -> None:
        self._out.spend(_OPERATIONS * self._out.costs.operation.value * len(tensors))

    def take(self, tensors: Sequence[Tensor]) -> None:
        """Extract the gradients of the selected columns.

        In stages 1 and 2 the owner extracts them into a buffer, broadcasts it, and every rank copies them; in
        stage 3 every rank extracts and copies its own.
        """
        self._spend(tensors)
        sizes = self._sizes(tensors)
        if self._plan.settings.stage == 3:
            self._out.kernel("reduce", 2 * _COPY * sum(sizes))
            return
        self._out.kernel("reduce", 2 * _COPY * sum(sizes) / self._plan.places.ranks)
        self._broadcast(sizes)
        self._out.kernel("reduce", _COPY * sum(sizes))

    def keep(self, tensors: Sequence[Tensor]) -> None:
        """Keep the selected columns unchanged, as in the last micro-step."""
        sizes = self._sizes(tensors)
        if self._in_host_memory:
            self._out.host_waits(self._out.gradients)
            self._host.loops(2 * _COPY * sum(sizes), written=2 * sum(sizes))
            return
        self._out.kernel("update", 2 * _COPY * sum(sizes))
        if self._offloads:
            self._out.move(sizes, to_device=False, pinned=False)

    def update(self, tensors: Sequence[Tensor], *, snapshot: bool) -> None:
        """Extract the columns, restore their ``snapshot`` if asked for, update and write them back."""
        self._spend(tensors)
        out, sizes = self._out, self._sizes(tensors)
        pinned = self._plan.settings.pin_memory
        if self._offloads:
            out.move(sizes * 2, to_device=True, pinned=pinned)
        if self._in_host_memory:
            self._by_way_of_the_host(sizes, snapshot=snapshot)
        else:
            if snapshot and self._offloads:
                out.move(sizes, to_device=True, pinned=False)
            copies = 3 if snapshot else 2
            out.kernel("update", (copies * _COPY + _ADAM_PASSES) * sum(sizes))
        if self._offloads:
            out.move(sizes * 2, to_device=False, pinned=pinned)

    def _by_way_of_the_host(self, sizes: list[int], *, snapshot: bool) -> None:
        """Update columns of parameters in host memory, through pageable copies
        (``_selective_step_one_param``).

        For one parameter after the other, the CPU extracts the columns, the GPU updates them, and the CPU
        writes them back.
        """
        out = self._out
        out.host_waits(out.gradients)
        self._host.loops(_COPY * sum(sizes), written=sum(sizes))
        for _ in range(2 if snapshot else 1):
            out.move(sizes, to_device=True, pinned=False)
        out.kernel("update", ((_COPY if snapshot else 0) + _ADAM_PASSES) * sum(sizes))
        out.move(sizes, to_device=False, pinned=False)
        self._host.loops(_COPY * sum(sizes), written=sum(sizes))

    def choose(self) -> None:
        """Sum each column's gradients, select the largest sums, and send their columns to all ranks."""
        matrices, plan, out = self._columns.matrices, self._plan, self._out
        self._spend(matrices)
        own = sum(tensor.slice_numel for tensor in matrices)
        out.kernel("reduce", _SUM_PASSES * plan.model.dtype_bytes * own)
        picked = [self._columns.picked(tensor) for tensor in matrices]
        if plan.settings.stage == 3:
            out.spend(_SCALAR_READS * out.costs.operation.value * sum(picked))
        else:
            self._broadcast([_INDEX_BYTES * columns for columns in picked])

    def _broadcast(self, sizes: list[int]) -> None:
        """Broadcast the part of each parameter separately, from the rank that owns it."""
        out, ranks = self._out, self._plan.places.ranks
        shared = sum(sizes) * (ranks - 1) // ranks
        if not shared:
            return
        out.spend(out.costs.collective_call.value * len(sizes))
        out.collective("update", "column-broadcast", shared, calls=len(sizes))
