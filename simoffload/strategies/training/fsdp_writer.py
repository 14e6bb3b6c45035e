"""Operations of a micro-step and of the optimizer step under PyTorch's FSDP.

Units are the decoder layers and the root, which owns all else; each is one flat parameter. Streams: ``copy``
(the pre-unshard stream: copies of shards to the GPU, and their cast), ``comm`` (NCCL: the all-gathers and
reduce-scatters of one process group, in the order in which they are issued), ``compute`` and ``reduce`` (the
post-backward stream). Sources: those of ``fsdp_runtime``. A single rank is not sharded (``NO_SHARD``):
nothing is gathered, and copies of gradients block. The times of FSDP's Python code are in ``FsdpCosts``;
launches of forward have the cost that they have without ZeRO-3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simoffload.models import SINGLE, Module
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, OpKind
from simoffload.strategies.optimizer_traffic import (
    TORCH_ADAM,
    TORCH_ADAM_NEW,
    TORCH_FOREACH,
    TORCH_WEIGHT_DECAY,
)
from simoffload.strategies.streams import HOST, StreamWriter
from simoffload.strategies.timing import TrainingTiming
from simoffload.strategies.trace import Event, Trace
from simoffload.strategies.training.bitsandbytes import update_traffic
from simoffload.strategies.training.fsdp_runtime import ROOT, FsdpOptions, FsdpRuntime, FsdpSink

_STREAMS = ("host", "copy", "comm", "compute", "reduce")
_, _COPY, _COMM, _COMPUTE, _REDUCE = range(5)
_ADAM_OPERATIONS = 8
"""PyTorch operations of AdamW on one tensor (torch/optim/adam.py, ``_single_tensor_adam``)."""


class Units(NamedTuple):
    """Units are the flat parameters, sharded among the ranks."""

    ranks: int
    numels: Mapping[int, int]
    """Number of elements by layer, and of ``ROOT``."""
    tensors: Mapping[int, int]
    """Number of parameter tensors by layer, and of ``ROOT``."""

    def numel(self, unit: int) -> int:
        """Return the number of elements of a unit [elements]."""
        return self.numels[unit]

    def slice(self, unit: int) -> int:
        """[elements] of one rank's shard, padded to a whole number."""
        return -(-self.numels[unit] // self.ranks)

    @property
    def slices(self) -> tuple[int, ...]:
        """Number of elements of one rank's shard of each unit, the layers and the root."""
        return tuple(self.slice(unit) for unit in self.numels)


class FsdpWriter(StreamWriter, FsdpSink):
    """An FsdpWriter writes one part of a step, called by the runtime."""

    def __init__(self, *, name: str, units: Units, options: FsdpOptions, timing: TrainingTiming) -> None:
        super().__init__(name=name, gpus=range(units.ranks), streams=_STREAMS, machine=timing.machine)
        self.timing = timing
        self._units = units
        self._options = options
        self._fsdp = timing.machine.host.fsdp_costs
        self._slower = self._fsdp.operation.value / self.costs.operation.value
        """Ratio of the host time of an operation in forward, which autograd records, to that in inference."""
        self._ready: dict[int, tuple[int, int]] = {}
        """Operation after which a unit can be used, as (stream, number)."""
        self._awaited_by_compute: list[tuple[int, int]] = []
        self._element = options.element
        self._forward = True
        """Whether the pass is a forward pass, in which views of the parameters are made."""

    # -- passes ---------------------------------------------------------------------------------

    def forward(self, trace: Trace, runtime: FsdpRuntime) -> None:
        """Write the forward pass of a trace."""
        runtime.begin(self)
        self._begin(trace.forward[0])
        runtime.pre_forward(ROOT)
        unit = ROOT
        for event in trace.forward:
            if (now := event.instance.layer) != unit:
                runtime.post_forward(unit)
                self._segment(event)
                if now != ROOT:
                    if unit == ROOT:
                        # transformers asks whether sequences are packed or padded (masking_utils.py,
                        # find_packed_sequence_indices): the answer comes from the GPU, behind the root.
                        self.host_waits(_COMPUTE)
                    runtime.pre_forward(now)
                unit = now
            self._happen(event)
        self.host_waits(_COMPUTE)

    def backward(self, trace: Trace, runtime: FsdpRuntime, *, accumulates: bool, boundary: bool) -> None:
        """Write the backward pass; ``accumulates``: its gradients are added to those of earlier
        micro-steps."""
        self._forward = False
        runtime.begin(self)
        self._begin(trace.backward[0])
        runtime.pre_backward(ROOT)

        def leave(unit: int) -> None:
            # The gradients of its tensors are concatenated, and added to those of earlier micro-steps.
            passes = 5 if accumulates else 2
            self.label = _name(unit)
            self._kernel("reduce", self.timing.hbm_traffic(passes * self._units.numel(unit) * self._element))
            runtime.post_backward(unit, boundary=boundary)

        unit = ROOT
        for event in trace.backward:
            if (now := event.instance.layer) != unit:
                if unit != ROOT:
                    leave(unit)
                self._segment(event)
                if now != ROOT:
                    runtime.pre_backward(now)
                unit = now
            self._happen(event)
        self.builder.segment("after backward")
        if unit != ROOT:
            leave(unit)
        leave(ROOT)
        self.host_waits(_REDUCE)
        self.host_waits(_COMPUTE)

    def optimizer(self, name: str, *, threads: int, paged_out: int = 0) -> None:
        """Write AdamW over all shards on their device: PyTorch's in a sequence of operations, those of
        bitsandbytes in one kernel for each, for which the host waits, with ``paged_out`` [B] of moments that
        come back before it."""
        if name != "AdamW":
            self._bitsandbytes(8 if name.endswith("8bit") else 32, paged_out)
            return
        units = self._units
        self.builder.segment("optimizer")
        self.spend(self._fsdp.step_call.value)
        element = self._options.shard_element
        per_element = (TORCH_ADAM + TORCH_WEIGHT_DECAY) * element // SINGLE
        machine = self.machine
        cpu = machine.host.cpu_optimizer
        share = cpu.limit.value / max(cpu.numa_nodes.value, machine.ranks_per_node(self.ranks))
        new = TORCH_ADAM_NEW * element
        rate = self._fsdp.adamw_rate(threads, traffic=per_element, new=new, share=share)
        if self._options.cpu_offload:
            cause = Cause("cpu-adamw")
            for unit in units.numels:
                self.spend(_ADAM_OPERATIONS * self.costs.operation.value)
                self.flush()
                traffic = per_element * units.slice(unit)
                route = self.cpu_work(cause, rate)
                self.add("cpu", HOST, size=traffic, route=route, label=cause_text(cause))
        else:
            self.flush()
            traffic = (TORCH_FOREACH + TORCH_WEIGHT_DECAY) * element // SINGLE * sum(units.slices)
            fixed = self.timing.hbm_traffic(traffic)
            self.add("update", _COMPUTE, fixed=fixed, label="AdamW", after=self.so_far(HOST))
        self.host_waits(_COMPUTE)

    def _bitsandbytes(self, bits: int, paged_out: int) -> None:
        units = self._units
        self.builder.segment("optimizer")
        self.spend(self._fsdp.step_call.value)
        if paged_out:  # the driver moved them out for activations and gradients
            for to_device in (False, True):
                self._copy(paged_out, stream=_COMPUTE, to_device=to_device)
        for unit in units.numels:
            self.spend(self.costs.operation.value)
            self.flush()
            fixed = self.timing.hbm_traffic(update_traffic(units.slice(unit), bits=bits))
            self.add("update", _COMPUTE, fixed=fixed, label="AdamW of bitsandbytes", after=self.so_far(HOST))
            self.host_waits(_COMPUTE)

    # -- the runtime's actions --------------------------------------------------------------------

    def unshard(self, unit: int) -> None:
        """Write a copy from page-locked memory and a cast in HBM, on their own stream."""
        options, numel = self._options, self._units.slice(unit)
        self.label = _name(unit)
        self.spend(self._fsdp.unshard.value)
        if options.cpu_offload:
            self.spend(self._fsdp.copy_call.value)
            copied = self._copy(numel * options.shard_element, stream=_COPY, to_device=True)
            self._ready[unit] = _COPY, copied
        if options.shard_element != options.element:
            fixed = self.timing.hbm_traffic(numel * (options.shard_element + options.element))
            self.flush()
            self._ready[unit] = _COPY, self.add("concat", _COPY, fixed=fixed, after=self.so_far(HOST))

    def limit(self, event: int) -> None:
        """Let the host wait for kernels."""
        self.host_waits(_COMPUTE, event)

    def gather(self, unit: int) -> None:
        """All-gather the unit's shards after all copies and casts written so far."""
        self.spend(self._fsdp.gather.value)
        ordinal = self._collective("all-gather", "gather", self._units.slice(unit), behind=_COPY)
        self._ready[unit] = _COMM, ordinal

    def need(self, unit: int) -> None:
        """Run the unit's hooks and make views of its tensors; the next kernel waits."""
        costs, units = self._fsdp, self._units
        if self.ranks == 1:  # what is not sharded is let go as well, unless it was not cast
            self.spend(costs.reshard.value)
        if self._forward:
            self.spend(costs.forward_hook.value + units.tensors[unit] * costs.view.value)
        else:
            self.spend(costs.backward_hook.value)
        if unit in self._ready:
            self._awaited_by_compute.append(self._ready.pop(unit))

    def free(self, _unit: int) -> int:
        """Free memory after the last kernel."""
        self.spend(self._fsdp.reshard.value)
        return self.builder.written[_COMPUTE] - 1

    def reduce(self, unit: int) -> None:
        """Write a reduction of gradients: division against overflow, reduce-scatter, second division, cast to
        the type of the shard, and with offloading a copy to page-locked memory."""
        options, numel = self._options, self._units.slice(unit)
        self.spend(self._fsdp.reduce.value)
        if options.cpu_offload:
            self.spend(self._fsdp.copy_call.value)
        self.flush()
        after = self.so_far(HOST, _COMPUTE)
        if self.ranks > 1:
            fixed = self.timing.hbm_traffic(2 * self._units.numel(unit) * options.element)
            self.add("reduce", _REDUCE, fixed=fixed, after=after)
            self._collective("gradient-reduction", "reduce", numel, behind=_REDUCE)
            after = self.so_far(_COMM)
        fixed = self.timing.hbm_traffic((3 * options.element + options.shard_element) * numel)
        self.add("reduce", _REDUCE, fixed=fixed, after=after)
        if options.cpu_offload:
            self._copy(numel * options.shard_element, stream=_REDUCE, to_device=False)
            if self.ranks == 1:
                self.host_waits(_REDUCE)

    # -- kernels ----------------------------------------------------------------------------------

    def _begin(self, event: Event) -> None:
        self._segment(event)
        self.spend(self.costs.pass_overhead.value)

    def _segment(self, event: Event) -> None:
        if event.segment:
            self.builder.segment(event.segment)

    def _happen(self, event: Event) -> None:
        self.label = event.instance.module.name
        if event.kind == "launch":
            self._launch(event.instance.module)
        elif event.kind == "back":
            self._launch_backward(event.instance.module)
        elif event.kind == "checkpoint":
            costs = self._fsdp
            self.spend((costs.checkpoint if self._forward else costs.recompute).value)

    def _launch(self, module: Module) -> None:
        self.spend(self.timing.launch_s(module) * self._slower)
        self._kernel("compute", self.timing.compute(module))

    def _launch_backward(self, module: Module) -> None:
        duration = self.timing.backward(module)
        if duration:
            self.spend(self._fsdp.backward_call.value)
        self._kernel("compute", duration)

    def _kernel(self, kind: OpKind, duration: int) -> None:
        if not duration:
            return
        self.flush()
        waits = tuple(self.builder.after(stream, ordinal) for stream, ordinal in self._awaited_by_compute)
        self._awaited_by_compute = []
        self.add(kind, _COMPUTE, fixed=duration, after=(*self.so_far(HOST), *waits))

    # -- transfers --------------------------------------------------------------------------------

    def _copy(self, size: int, *, stream: int, to_device: bool) -> int:
        """Write an asynchronous copy between the GPU and page-locked memory; return its number on the
        stream."""
        route, fixed = self.copies([size], to_device=to_device, pinned=True)
        self.flush()
        return self.add("copy", stream, fixed=fixed, size=size, route=route, after=self.so_far(HOST))

    def _collective(self, cause: CauseKind, kind: OpKind, numel: int, *, behind: int) -> int:
        """Write an all-gather or reduce-scatter with a result of ``numel`` elements; return its number on the
        stream."""
        size = numel * (self.ranks - 1) * self._element
        return self.exchange(kind, cause, _COMM, size, behind=(behind,))


def _name(unit: int) -> str:
    return "root" if unit == ROOT else "layer"
