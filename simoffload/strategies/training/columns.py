"""Columns of matrices that ZenFlow selects: how much they are, and what the GPU does with them.

Passes over HBM are counted in deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py
(``_process_selected_fp32_groups_grad``, ``update_selected_channels``), engine_stage3.py (the same names) and
deepspeed/ops/adam/zenflow_torch_adam.py (``group_step``, ``temp_copy_param``, ``_multi_tensor_adamw``), each
in the model's own data type. ZenFlow keeps matrices transposed, so that a column is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.training.cpu_work import CpuWork
from simoffload.strategies.training.facts import StepFacts
from simoffload.strategies.training.writer import MicroStepWriter

__all__ = ["ADAM_PASSES", "ColumnWork", "SelectedColumns"]

_COPY = 2
"""Passes of a copy: what is read is written."""
ADAM_PASSES = 20
"""Of ``_multi_tensor_adamw``, reads + writes: decay 1+1, first moment 2+1, second moment 1+1 and 2+1, its
root 1+1, correction 1+1, epsilon 1+1, parameters 3+1."""
_SUM_PASSES = 3
"""Of a column's sum of magnitudes: these are written, and read again."""
_INDEX_BYTES = 4
_SCALAR_READS = 3
"""Values that the host asks of the GPU for each selected column in stage 3: two comparisons and an item()."""


class SelectedColumns:
    """``ratio`` of the columns of every matrix, and other tensors whole."""

    def __init__(self, facts: StepFacts, *, ratio: float) -> None:
        self.facts = facts
        self._ratio = ratio
        self._columns: dict[str, int] = {}
        tensors = facts.parameters.tensors
        for one, indices in facts.parameters.trained.items():
            widest = max(one.module.in_features, one.module.out_features)
            for index in indices:
                if tensors[index].numel > widest:
                    self._columns[tensors[index].name] = one.module.in_features

    @property
    def matrices(self) -> list[Tensor]:
        """All trained matrices."""
        parameters = self.facts.parameters
        trained = (parameters.tensors[index] for one in parameters.trained.values() for index in one)
        return [tensor for tensor in trained if self.of(tensor)]

    def of(self, tensor: Tensor) -> int:
        """Columns of a matrix; 0 for another tensor."""
        return self._columns.get(tensor.name, 0)

    def picked(self, tensor: Tensor) -> int:
        """Selected columns of a matrix; stage 3 takes at least one."""
        return max(int(self._ratio * self.of(tensor)), 1 if self.facts.settings.stage == 3 else 0)

    def selected(self, tensor: Tensor) -> int:
        """[elements] that one rank updates: in stages 1 and 2 every rank the same, in stage 3 its own."""
        numel = tensor.numel if self.facts.settings.stage < 3 else tensor.slice_numel
        columns = self.of(tensor)
        return numel * self.picked(tensor) // columns if columns else numel


_OPERATIONS = 10
"""PyTorch operations for a tensor's selected columns, counted in zenflow_stage_1_and_2.py: views of the
gradient and of the buffer, indexing, copies, joining, a transposition (an estimate)."""


class ColumnWork:
    """Writes down what happens to selected columns."""

    def __init__(self, out: MicroStepWriter, columns: SelectedColumns) -> None:
        self._out = out
        self._columns = columns
        self._facts = columns.facts
        self._in_host_memory = columns.facts.settings.params.device == "cpu"
        self._host = CpuWork(out, columns.facts)

    def _sizes(self, tensors: Sequence[Tensor]) -> list[int]:
        return [self._columns.selected(tensor) * self._facts.dtype_bytes for tensor in tensors]

    def _spend(self, tensors: Sequence[Tensor]) -> None:
        operation = self._facts.timing.machine.host.deepspeed.operation.value
        self._out.spend(_OPERATIONS * operation * len(tensors))

    def take(self, tensors: Sequence[Tensor]) -> None:
        """Gradients of selected columns: in stages 1 and 2 taken by the owner, put in a buffer, broadcast and
        copied; in stage 3 taken and copied by every rank for itself."""
        self._spend(tensors)
        sizes = self._sizes(tensors)
        if self._facts.settings.stage == 3:
            self._out.on_gpu("reduce", 2 * _COPY * sum(sizes))
            return
        self._out.on_gpu("reduce", 2 * _COPY * sum(sizes) / self._facts.places.ranks)
        self._broadcast(sizes)
        self._out.on_gpu("reduce", _COPY * sum(sizes))

    def keep(self, tensors: Sequence[Tensor]) -> None:
        """The last micro-step only remembers the selected columns as they are."""
        sizes = self._sizes(tensors)
        if self._in_host_memory:
            self._out.host_waits(self._out.gradients)
            self._host.loops(2 * _COPY * sum(sizes))
            return
        self._out.on_gpu("update", 2 * _COPY * sum(sizes))
        if self._offloads:
            self._out.move(sizes, to_device=False, pinned=False)

    @property
    def _offloads(self) -> bool:
        zenflow = self._facts.settings.zenflow
        return zenflow is not None and zenflow.offload

    def update(self, tensors: Sequence[Tensor], *, snapshot: bool) -> None:
        """Columns are taken out, put back to their ``snapshot`` first, updated, and put back."""
        self._spend(tensors)
        out, sizes = self._out, self._sizes(tensors)
        pinned = self._facts.settings.pin_memory
        if self._offloads:
            out.move(sizes * 2, to_device=True, pinned=pinned)
        if self._in_host_memory:
            self._by_way_of_the_host(sizes, snapshot=snapshot)
        else:
            if snapshot and self._offloads:
                out.move(sizes, to_device=True, pinned=False)
            copies = 3 if snapshot else 2
            out.on_gpu("update", (copies * _COPY + ADAM_PASSES) * sum(sizes))
        if self._offloads:
            out.move(sizes * 2, to_device=False, pinned=pinned)

    def _by_way_of_the_host(self, sizes: list[int], *, snapshot: bool) -> None:
        """Parameters in host memory: the CPU takes the columns out, the GPU updates them, the CPU puts them
        back; every copy is pageable (``_selective_step_one_param``, one parameter after the other)."""
        out = self._out
        out.host_waits(out.gradients)
        self._host.loops(_COPY * sum(sizes))
        for _ in range(2 if snapshot else 1):
            out.move(sizes, to_device=True, pinned=False)
        out.on_gpu("update", ((_COPY if snapshot else 0) + ADAM_PASSES) * sum(sizes))
        out.move(sizes, to_device=False, pinned=False)
        self._host.loops(_COPY * sum(sizes))

    def choose(self) -> None:
        """Sums of every column's gradients, the largest of them, and their numbers for all ranks."""
        matrices, facts, out = self._columns.matrices, self._facts, self._out
        self._spend(matrices)
        own = sum(tensor.slice_numel for tensor in matrices)
        out.on_gpu("reduce", _SUM_PASSES * facts.dtype_bytes * own)
        picked = [self._columns.picked(tensor) for tensor in matrices]
        if facts.settings.stage == 3:
            out.spend(_SCALAR_READS * out.costs.operation.value * sum(picked))
        else:
            self._broadcast([_INDEX_BYTES * columns for columns in picked])

    def _broadcast(self, sizes: list[int]) -> None:
        """Each parameter's part by itself, from the rank that owns it."""
        out, ranks = self._out, self._facts.places.ranks
        shared = sum(sizes) * (ranks - 1) // ranks
        if not shared:
            return
        out.spend(out.costs.collective_call.value * len(sizes))
        out.flush()
        route, latency = out.received("broadcast of selected columns", shared)
        out.collective("update", fixed=latency * len(sizes), size=shared, route=route)
