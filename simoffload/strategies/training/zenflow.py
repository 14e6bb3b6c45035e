"""ZenFlow: the most important columns are updated on the GPU in every micro-step, the rest now and then.

Sources: deepspeed/runtime/zenflow (0.19.6): engine.py, zenflow_stage_1_and_2.py, engine_stage3.py,
zenflow_utils.py; deepspeed/ops/adam/zenflow_torch_adam.py; csrc/adam/cpu_adam_impl.cpp. ZenFlow puts
``update_interval`` in the place of ``gradient_accumulation_steps``: gradients are added up in host memory as
ever, and every so many micro-steps the CPU updates everything. With ``overlap_step`` this is done by a
process of its own on the cores that ``pt_reserved_cores_perc`` leaves: an update waits for the one submitted
an interval earlier, takes over the parameters that it left behind (so they are one interval old), and submits
the new gradients. What it shares with that process is not page-locked.

Left out: that the process and the copies of gradients compete for memory bandwidth; in stage 3, that small
("persistent") parameters are gathered anew in every micro-step; warm-up rounds, which are plain steps; with
``update_interval: auto``, the norms on which the host waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil

from simoffload.models.shape import SINGLE
from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.forward import COMPUTE, COPY
from simoffload.strategies.plan import StepPart
from simoffload.strategies.timing import picoseconds
from simoffload.strategies.training.columns import ColumnWork, SelectedColumns
from simoffload.strategies.training.cpu_adam import DEEPSPEED_ADAM
from simoffload.strategies.training.cpu_work import CpuWork
from simoffload.strategies.training.facts import StepFacts, Update
from simoffload.strategies.training.optimizer import OptimizerStep
from simoffload.strategies.training.step import OPTIMIZER, PartWriter, Step, micro_steps, refused
from simoffload.strategies.training.writer import UPDATE, GradientHooks, MicroStepWriter

__all__ = ["ZenFlowStep", "update_s", "update_threads"]

_SELECTED = "selected columns"
_SELECTION = "selection of columns"
_NATIVE = (0, 19, 3)
"""DeepSpeed's version whose update runs in C++ from one loop (commit 1ddbe48); before, in Python."""
_PARAMETERS_OFFLOADED = (0, 19, 2)
"""The version that first works with offloaded parameters (commit 28a196f)."""


def update_s(facts: StepFacts) -> float:
    """[s] of an update by the process of its own.

    Adam, and a copy of the parameters for the training process to take (4 B read and written; before 0.19.3
    a copy of a copy). Its threads allocate the moments, which so lie close to them.
    """
    copies = (2 if facts.version >= _NATIVE else 4) * SINGLE
    optimizer = facts.timing.machine.host.cpu_optimizer
    rate = optimizer.rate(update_threads(facts), processes=facts.processes, local=True)
    return (DEEPSPEED_ADAM + copies) * facts.cpu_numel / rate


def update_threads(facts: StepFacts) -> int:
    """Threads of the update's process: all but the reserved cores, rounded up (``_split_affinity``).

    Where nothing or everything would be left, it has all of them.
    """
    threads, zenflow = facts.places.threads, facts.settings.zenflow
    reserved = ceil(zenflow.reserved_cores * threads) if zenflow is not None else 0
    return threads - reserved if 0 < reserved < threads else threads


class ZenFlowStep(Step):
    """A step is ``accumulation`` micro-steps; an update comes every ``update_interval`` of them."""

    def __init__(self, facts: StepFacts) -> None:
        super().__init__(facts)
        assert facts.settings.zenflow is not None
        self._zenflow = facts.settings.zenflow
        self._columns = SelectedColumns(facts, ratio=self._zenflow.topk_ratio)

    @property
    def cycle(self) -> int:
        """Micro-steps from update to update."""
        return self._zenflow.update_interval

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """One step of the steady state, in order."""
        steps = self.facts.accumulation
        cycles = Fraction(steps, self.cycle)
        update = StepPart("optimizer", OPTIMIZER, cycles, awaits_update=self._zenflow.overlap_step)
        parts = [*micro_steps(steps, cycle=self.cycle), update, StepPart("optimizer", _SELECTED, cycles)]
        if self._zenflow.select_interval:
            often = Fraction(steps, self._zenflow.select_interval)
            parts.insert(-2, StepPart("backward", _SELECTION, often))
        return tuple(parts)

    @property
    def writers(self) -> Mapping[str, PartWriter]:
        """How the parts that are no walk through the model are written, by their titles."""
        return {OPTIMIZER: self._update, _SELECTED: self._selected, _SELECTION: self._selection}

    def hooks(self) -> GradientHooks:
        """Selected columns of a bucket are taken out and, but for the last micro-step, updated."""
        return _SelectedGradients(self._columns, shared=self._zenflow.overlap_step)

    def check(self) -> None:
        """Raise InputError for what DeepSpeed stops at."""
        facts, zenflow = self.facts, self._zenflow
        swapped = any(update.swapped for update in facts.updates)
        if swapped and zenflow.overlap_step:
            text = "DeepSpeed stops: sub-groups on storage have no overlap_grad; set it to false"
            raise refused("zenflow.overlap_step", text)
        if swapped and (zenflow.select_interval or zenflow.full_warm_up_rounds):
            text = (
                "DeepSpeed stops at a later selection: weights on storage cannot be set to those of the GPU; "
                "leave out select_interval and full_warm_up_rounds"
            )
            raise refused("zenflow", text)
        if zenflow.offload and not facts.settings.overlap_comm:
            raise refused("zenflow.offload", "DeepSpeed stops: it needs overlap_comm: true")
        if any(update.on_gpu for update in facts.updates):
            text = "with zenflow DeepSpeed never updates the sub-groups that stay on the GPU; set it to 1.0"
            raise refused("offload_optimizer.ratio", text)
        if facts.settings.params.device == "nvme":
            raise refused("zenflow", "not modelled with parameters on storage")
        if facts.settings.params.device == "cpu" and facts.version < _PARAMETERS_OFFLOADED:
            text = "DeepSpeed before 0.19.2 stops with parameters in host memory"
            raise refused("zenflow", text)

    def _update(self, out: MicroStepWriter, part: StepPart) -> None:
        if self._zenflow.overlap_step:
            _OverlappedStep(out, self.facts).take_over(max(0.0, update_s(self.facts) - part.elapsed_s))
        else:
            OptimizerStep(out, self.facts).write()

    def _selected(self, out: MicroStepWriter, _part: StepPart) -> None:
        """What the update has overwritten is put back, then updated (``selective_optimizer_step``)."""
        out.part(_SELECTED)
        parameters = self.facts.parameters
        trained = [parameters.tensors[index] for one in parameters.trained.values() for index in one]
        ColumnWork(out, self._columns).update(trained, snapshot=True)
        out.end_backward()

    def _selection(self, out: MicroStepWriter, _part: StepPart) -> None:
        """Master weights are set to those of the GPU; columns are chosen by the sums of their gradients."""
        out.part(_SELECTION)
        facts = self.facts
        numel, size = facts.cpu_numel, facts.dtype_bytes
        cpu = CpuWork(out, facts)
        if facts.settings.params.device == "cpu":
            cpu.loops((size + SINGLE) * numel)
        else:
            out.on_gpu("reduce", (size + SINGLE) * numel, stream=COMPUTE)
            out.move([SINGLE * numel], to_device=False, pinned=False, stream=COMPUTE)
            if facts.settings.stage < 3:
                cpu.loops(2 * SINGLE * numel)
        ColumnWork(out, self._columns).choose()
        out.end_backward()


class _SelectedGradients(GradientHooks):
    always = True

    def __init__(self, columns: SelectedColumns, *, shared: bool) -> None:
        self._columns = columns
        self.shared = shared

    def passes(self, tensor: Tensor) -> int:
        """A matrix is transposed, so that its columns are contiguous."""
        return 2 if self._columns.of(tensor) else 0

    def reduced(self, out: MicroStepWriter, tensors: Sequence[Tensor], *, boundary: bool) -> None:
        """Selected columns are taken out; they are kept for the step, or updated at once."""
        work = ColumnWork(out, self._columns)
        work.take(tensors)
        if boundary:
            work.keep(tensors)
        else:
            work.update(tensors, snapshot=False)


class _OverlappedStep(OptimizerStep):
    """The training process's part of an update that another process carries out."""

    def take_over(self, remaining_s: float) -> None:
        """Wait for the last update, take its parameters over, scale the new gradients and submit them."""
        out, updates = self._out, self._facts.updates
        self.begin()
        out.add("wait", UPDATE, fixed=picoseconds(remaining_s), label="CPU update")
        out.host_waits(UPDATE)
        for update in updates:
            out.part("sub-group")
            self._stale(update)
        self.gather()
        for update in updates:
            self._cpu.scale(update.group.numel)
        self.end()

    def _stale(self, update: Update) -> None:
        """Until 0.19.3, stages 1 and 2 copied in single precision and cast on the GPU."""
        numel = update.group.numel
        if self._settings.stage < 3 and self._facts.version < _NATIVE:
            self._out.to_gpu(SINGLE * numel, pinned=False)
            self._out.on_gpu("update", (SINGLE + self._size) * numel, stream=COPY)
        else:
            self.give_back(update, pinned=False)
