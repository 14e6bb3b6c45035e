"""ZenFlow: the most important gradient columns are updated on the GPU in every micro-step, the others every
few micro-steps on the CPU.

``update_interval`` replaces ``gradient_accumulation_steps``: gradients are accumulated in host memory, and at
this interval the CPU updates everything. With ``overlap_step`` a separate process does this, on the cores
that ``pt_reserved_cores_perc`` leaves. An update then waits for the one that was submitted one interval
earlier, takes its parameters (which are therefore one interval old), and submits the new gradients. Memory
shared with that process is not page-locked.

Passes over HBM for the selected columns are counted in zenflow_stage_1_and_2.py
(``_process_selected_fp32_groups_grad``, ``update_selected_channels``), engine_stage3.py (the same names) and
zenflow_torch_adam.py (``group_step``, ``temp_copy_param``, ``_multi_tensor_adamw``), in the model's data
type. ZenFlow keeps matrices transposed, so that a column is contiguous.

Not modelled: competition between the process and the copies of gradients for memory bandwidth; in stage 3,
the repeated gathering of small ("persistent") parameters in every micro-step; warm-up rounds, which are plain
steps; and with ``update_interval: auto``, the norms for which the host waits.

Sources: deepspeed/runtime/zenflow (0.19.6): engine.py, zenflow_stage_1_and_2.py, engine_stage3.py,
zenflow_utils.py; deepspeed/ops/adam/zenflow_torch_adam.py; csrc/adam/cpu_adam_impl.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

from simoffload.models import SINGLE
from simoffload.strategies.optimizers import DEEPSPEED_ADAM
from simoffload.strategies.passes.pass_writer import COMPUTE
from simoffload.strategies.passes.timing import picoseconds
from simoffload.strategies.plan import PartKind, StepPart
from simoffload.strategies.training.state import Update
from simoffload.strategies.training.step import (
    CpuWork,
    OptimizerStep,
    PartWriter,
    StepPlan,
    micro_steps,
    optimizer_part,
    refused,
)
from simoffload.strategies.training.writer import COPY, UPDATE, GradientHooks, MicroStepWriter
from simoffload.strategies.zero.coordinator import Tensor

if TYPE_CHECKING:
    from simoffload.strategies.training.plan import ZeroTrainingPlan

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
"""Number of values that the host reads from the GPU for each selected column in stage 3: two comparisons and
an item()."""
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


def update_threads(plan: ZeroTrainingPlan) -> int:
    """Return the threads of the update process: all cores except the reserved ones, rounded up
    (``_split_affinity``); all cores if no core or every core would be reserved."""
    threads, zenflow = plan.places.threads, plan.settings.zenflow
    reserved = ceil(zenflow.reserved_cores * threads) if zenflow is not None else 0
    return threads - reserved if 0 < reserved < threads else threads


class ZenFlowStep(StepPlan):
    """A ZenFlowStep has ``accumulation`` micro-steps, with an update after every ``update_interval`` of
    them."""

    def __init__(self, plan: ZeroTrainingPlan) -> None:
        super().__init__(plan)
        assert plan.settings.zenflow is not None
        self._zenflow = plan.settings.zenflow
        self._columns = SelectedColumns(plan, ratio=self._zenflow.topk_ratio)

    @property
    def cycle(self) -> int:
        """Number of micro-steps between two updates."""
        return self._zenflow.update_interval

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
        if self._zenflow.select_interval:
            often = Fraction(steps, self._zenflow.select_interval)
            parts.insert(-2, StepPart("backward", _SELECTION, often, kind="column-selection"))
        return tuple(parts)

    @property
    def writers(self) -> Mapping[PartKind, PartWriter]:
        """Functions that write the parts without a forward or backward pass, by the kinds of the parts."""
        return {
            "optimizer": self._update,
            "selected-columns": self._selected,
            "column-selection": self._selection,
        }

    def hooks(self) -> GradientHooks:
        """Return the hooks that extract the selected columns and, before the last micro-step, update them."""
        return _SelectedGradients(self._columns, shared=self._zenflow.overlap_step)

    def check(self) -> None:
        """Raise InputError for settings at which DeepSpeed stops."""
        plan, zenflow = self.plan, self._zenflow
        swapped = any(update.swapped for update in plan.state.updates)
        if swapped and zenflow.overlap_step:
            text = "DeepSpeed stops: sub-groups on storage have no overlap_grad; set it to false"
            raise refused("zenflow.overlap_step", text)
        if swapped and (zenflow.select_interval or zenflow.full_warm_up_rounds):
            text = (
                "DeepSpeed stops at a later selection: weights on storage cannot be set to those of the GPU; "
                "leave out select_interval and full_warm_up_rounds"
            )
            raise refused("zenflow", text)
        if zenflow.offload and not plan.settings.overlap_comm:
            raise refused("zenflow.offload", "DeepSpeed stops: it needs overlap_comm: true")
        if any(update.on_gpu for update in plan.state.updates):
            text = "with zenflow DeepSpeed never updates the sub-groups that stay on the GPU; set it to 1.0"
            raise refused("offload_optimizer.ratio", text)
        if plan.settings.params.device == "nvme":
            raise refused("zenflow", "not modelled with parameters on storage")
        if plan.settings.params.device == "cpu" and plan.settings.params.version < _PARAMETERS_OFFLOADED:
            text = "DeepSpeed before 0.19.2 stops with parameters in host memory"
            raise refused("zenflow", text)

    def _update(self, out: MicroStepWriter, part: StepPart) -> None:
        if self._zenflow.overlap_step:
            _OverlappedStep(out, self.plan).take_over(max(0.0, update_s(self.plan) - part.elapsed_s))
        else:
            OptimizerStep(out, self.plan, unfinished_s=part.unfinished_s).write()

    def _selected(self, out: MicroStepWriter, _part: StepPart) -> None:
        """Restore the columns that the update has overwritten, then update them
        (``selective_optimizer_step``)."""
        out.builder.segment(_SELECTED)
        ColumnWork(out, self._columns).update(self.plan.state.trained, snapshot=True)
        out.end_backward()

    def _selection(self, out: MicroStepWriter, _part: StepPart) -> None:
        """Copy the GPU's weights to the master weights, and select columns by the sums of their gradients."""
        out.builder.segment(_SELECTION)
        plan = self.plan
        numel, size = plan.state.cpu_numel, plan.model.dtype_bytes
        cpu = CpuWork(out, plan)
        if plan.settings.params.device == "cpu":
            cpu.loops((size + SINGLE) * numel)
        else:
            out.kernel("reduce", (size + SINGLE) * numel, stream=COMPUTE)
            out.move([SINGLE * numel], to_device=False, pinned=False, stream=COMPUTE)
            if plan.settings.stage < 3:
                cpu.loops(2 * SINGLE * numel)
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
    """An _OverlappedStep is the work of the training process for an update that another process carries
    out."""

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
            self._cpu.scale(update.group.numel)
        self.end()

    def _stale(self, update: Update) -> None:
        """Write the copy of the parameters of the last update to the GPU.

        Until DeepSpeed 0.19.3, stages 1 and 2 copied in single precision and cast on the GPU.
        """
        numel = update.group.numel
        if self._settings.stage < 3 and self._plan.settings.params.version < _NATIVE:
            self._out.to_gpu(SINGLE * numel, pinned=False)
            self._out.kernel("update", (SINGLE + self._size) * numel, stream=COPY)
        else:
            self.give_back(update, pinned=False)


class SelectedColumns:
    """SelectedColumns are the fraction ``ratio`` of the columns of every matrix, and all of every other
    tensor."""

    def __init__(self, plan: ZeroTrainingPlan, *, ratio: float) -> None:
        self.plan = plan
        self._ratio = ratio
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
        """Number of elements that one rank updates: in stages 1 and 2 all selected ones, in stage 3 those of
        the rank."""
        numel = tensor.numel if self.plan.settings.stage < 3 else tensor.slice_numel
        columns = self.of(tensor)
        return numel * self.picked(tensor) // columns if columns else numel


class ColumnWork:
    """ColumnWork writes the operations on selected columns."""

    def __init__(self, out: MicroStepWriter, columns: SelectedColumns) -> None:
        self._out = out
        self._columns = columns
        self._plan = columns.plan
        self._in_host_memory = columns.plan.settings.params.device == "cpu"
        self._host = CpuWork(out, columns.plan)

    def _sizes(self, tensors: Sequence[Tensor]) -> list[int]:
        return [self._columns.selected(tensor) * self._plan.model.dtype_bytes for tensor in tensors]

    def _spend(self, tensors: Sequence[Tensor]) -> None:
        operation = self._plan.machine.host.deepspeed.operation.value
        self._out.spend(_OPERATIONS * operation * len(tensors))

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
            self._host.loops(2 * _COPY * sum(sizes))
            return
        self._out.kernel("update", 2 * _COPY * sum(sizes))
        if self._offloads:
            self._out.move(sizes, to_device=False, pinned=False)

    @property
    def _offloads(self) -> bool:
        zenflow = self._plan.settings.zenflow
        return zenflow is not None and zenflow.offload

    def update(self, tensors: Sequence[Tensor], *, snapshot: bool) -> None:
        """Extract the columns, restore them to their ``snapshot`` if asked for, update them and write them
        back."""
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
        self._host.loops(_COPY * sum(sizes))
        for _ in range(2 if snapshot else 1):
            out.move(sizes, to_device=True, pinned=False)
        out.kernel("update", ((_COPY if snapshot else 0) + _ADAM_PASSES) * sum(sizes))
        out.move(sizes, to_device=False, pinned=False)
        self._host.loops(_COPY * sum(sizes))

    def choose(self) -> None:
        """Sum the gradients of every column, select the largest sums, and send their column numbers to all
        ranks."""
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
