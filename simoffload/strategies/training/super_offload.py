"""SuperOffload: a separate process updates sub-groups while backward continues.

When all gradients of a sub-group have been copied, the host waits for the gradients' stream and queues the
sub-group; the process copies its gradient into a buffer and runs Adam. ``step`` waits for the last sub-group,
scales the gradients nevertheless, and casts and copies the parameters back. With gradient clipping, which
needs the norm of all gradients, sub-groups are updated one by one after backward.

Tensors that another process uses are in shared memory, which is not page-locked, so copies of gradients block
the host. Not modelled: the queue itself, and polling for results every millisecond. Source:
deepspeed/runtime/superoffload (0.19.6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simoffload.models import SINGLE
from simoffload.strategies.optimizers import DEEPSPEED_ADAM
from simoffload.strategies.passes.timing import picoseconds
from simoffload.strategies.plan import PartKind, StepPart
from simoffload.strategies.training.step import (
    CpuWork,
    OptimizerStep,
    PartWriter,
    StepPlan,
)
from simoffload.strategies.training.writer import UPDATE, GradientHooks, MicroStepWriter
from simoffload.strategies.zero.coordinator import Tensor

if TYPE_CHECKING:
    from simoffload.strategies.training.plan import ZeroTrainingPlan


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

    @property
    def writers(self) -> Mapping[PartKind, PartWriter]:
        """Functions that write the parts without a forward or backward pass, by the kinds of the parts."""
        return {"optimizer": self._write}

    def hooks(self) -> GradientHooks:
        """Return the hooks that queue a sub-group when its gradients are complete."""
        return _Arrivals(self.plan)

    def _write(self, out: MicroStepWriter, part: StepPart) -> None:
        _UpdatedStep(out, self.plan, unfinished_s=part.unfinished_s).write()


def update_threads(plan: ZeroTrainingPlan) -> int:
    """Return the threads of the update process: the cores minus the share that ``cpuadam_cores_perc`` leaves
    to training, rounded down (``_set_cpu_affinity``)."""
    threads = plan.places.threads
    return threads - int((1 - plan.settings.cpuadam_cores) * threads)


def _queue(out: MicroStepWriter, plan: ZeroTrainingPlan, numel: int) -> None:
    """Queue a sub-group: the process copies its gradient into a buffer and updates it."""
    work = CpuWork(out, plan, threads=update_threads(plan), stream=UPDATE)
    work.loops(2 * SINGLE * numel)
    work.adam(DEEPSPEED_ADAM * numel)


class _Arrivals(GradientHooks):
    """_Arrivals counts the complete gradients of each sub-group (``sub_group_grad_partition_counts``)."""

    shared = True

    def __init__(self, plan: ZeroTrainingPlan) -> None:
        self._plan = plan
        # Tensors of equal layers compare equal, so they are distinguished by identity.
        self._group = {
            id(tensor): index
            for index, update in enumerate(plan.state.updates)
            for tensor in update.group.tensors
        }
        updates = plan.state.updates
        self._missing = Counter({index: len(one.group.tensors) for index, one in enumerate(updates)})

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
                _queue(out, self._plan, update.group.numel)


class _UpdatedStep(OptimizerStep):
    """An _UpdatedStep is the part of the optimizer step that remains after backward."""

    def begin(self) -> None:
        """Wait for the last sub-groups."""
        if not self._settings.gradient_clipping:
            self._out.builder.segment("last updates")
            self._out.add("wait", UPDATE, fixed=picoseconds(self._unfinished_s), label="CPU update")
            self._out.host_waits(UPDATE)
        super().begin()

    def _update(self, numel: int) -> None:
        """Update nothing, unless the norm of all gradients had to be computed first."""
        if self._settings.gradient_clipping:
            self._out.flush()
            _queue(self._out, self._plan, numel)
            self._out.host_waits(UPDATE)
