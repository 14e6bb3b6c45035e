"""Hooks of PyTorch's FSDP: its units are gathered, freed and reduced around the parts of a pass.

Units are the decoder layers and the root, which owns all else; each is one flat parameter. The decisions of
FSDP's hooks depend on the order of units and on the settings, not on time (``FsdpRuntime``). Source:
torch/distributed/fsdp/_runtime_utils.py, _flat_param.py and _limiter_utils.py of PyTorch 2.13
(``FullyShardedDataParallel``); the tests compare with real runs.

Streams: ``copy`` (the pre-unshard stream: copies of shards to the GPU, and their cast), ``comm`` (NCCL: the
all-gathers and reduce-scatters of one process group, in the order in which they are issued) and ``reduce``
(the post-backward stream). A single rank is not sharded (``NO_SHARD``): nothing is gathered, and copies of
gradients block. The times of FSDP's Python code are in ``FsdpCosts``; launches of forward have the cost that
they have without ZeRO-3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from simoffload.models import SINGLE
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, OpKind
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Hook, Part, PassWriter, StagePass
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.state import (
    TORCH_ADAM,
    TORCH_ADAM_NEW,
    TORCH_FOREACH,
    TORCH_WEIGHT_DECAY,
    update_traffic,
)

if TYPE_CHECKING:
    from simoffload.strategies.programs.fsdp import Fsdp, FsdpPlan

Prefetch = Literal["pre", "post", "none"]
ROOT = -1
"""Number of the unit that owns all tensors outside the layers; the unit of a layer has the layer's number."""
_IN_FLIGHT = 2  # _max_num_inflight_all_gathers, hard-coded in PyTorch

_ADAM_OPERATIONS = 8
"""PyTorch operations of AdamW on one tensor (torch/optim/adam.py, ``_single_tensor_adam``)."""


class FsdpSink:
    """An FsdpSink receives FSDP's operations in the order of the host thread; this base ignores them."""

    def unshard(self, unit: int, /) -> None:
        """Copy the shard to the GPU and cast it."""

    def limit(self, event: int, /) -> None:
        """Let the host wait for the memory of an earlier :meth:`free`, which returned ``event``."""

    def gather(self, unit: int, /) -> None:
        """All-gather the shards that were copied."""

    def need(self, unit: int, /) -> None:
        """Let the kernels wait for the unit."""

    def free(self, _unit: int, /) -> int:
        """Free memory when all kernels launched so far are done; return an identifier of this point."""
        return -1

    def reduce(self, unit: int, /) -> None:
        """Reduce the unit's gradients, and keep them in the memory of the optimizer."""


class FsdpRuntime:
    """FsdpRuntime is the state of FSDP on one rank; before ``begin`` it makes no calls."""

    def __init__(self, *, layers: int, settings: Fsdp) -> None:
        self.layers = layers
        self.settings = settings
        self._sharded = settings.ranks > 1
        self._unsharded: set[int] = set()
        self._prefetched: set[int] = set()
        self._free_events: deque[int | None] = deque()
        self._sink = FsdpSink()

    def begin(self, sink: FsdpSink) -> None:
        """Begin to send calls to a sink; all earlier calls count as finished."""
        self._sink = sink
        self._free_events = deque([None] * len(self._free_events))

    def micro_step(self, *, boundary: bool) -> None:
        """Run all hooks of forward and backward."""
        self.forward()
        self.pre_backward(ROOT)
        for layer in reversed(range(self.layers)):
            self.pre_backward(layer)
            self.post_backward(layer, boundary=boundary)
        self.post_backward(ROOT, boundary=boundary)

    def forward(self) -> None:
        """Run all hooks of a forward pass."""
        self.pre_forward(ROOT)
        for layer in range(self.layers):
            self.pre_forward(layer)
            self.post_forward(layer)

    # -- hooks ----------------------------------------------------------------------------------

    def pre_forward(self, unit: int) -> None:
        """Run the hook before a unit in forward."""
        self._unshard(unit)
        self._sink.need(unit)

    def post_forward(self, unit: int) -> None:
        """Run the hook after a unit in forward; the root stays gathered for backward."""
        if unit != ROOT and self.settings.reshard_after_forward:
            self._reshard(unit)

    def pre_backward(self, unit: int) -> None:
        """Run the hook before gradients of a unit are computed."""
        if unit in self._prefetched:
            self._prefetched.discard(unit)
        else:
            self._unshard(unit)
        self._sink.need(unit)
        if self.settings.backward_prefetch == "pre":
            self._prefetch(unit)

    def post_backward(self, unit: int, *, boundary: bool) -> None:
        """Handle a unit's complete gradients; within ``no_sync`` (no ``boundary``) they stay unsharded."""
        if boundary or self.settings.reshard_after_forward:
            self._reshard(unit)
        if self.settings.backward_prefetch == "post" and unit != ROOT:
            self._prefetch(unit)
        if boundary:
            self._sink.reduce(unit)

    # -- what they have in common ---------------------------------------------------------------

    def _prefetch(self, unit: int) -> None:
        following = self.layers - 1 if unit == ROOT else unit - 1
        if following >= 0:
            self._unshard(following)
            self._prefetched.add(following)

    def _unshard(self, unit: int) -> None:
        # With offloading a shard is copied again even if the unit is whole (pre_unshard).
        unsharded = self._sharded and unit in self._unsharded
        if self.settings.cpu_offload or not unsharded:
            self._sink.unshard(unit)
        if self.settings.limit_all_gathers and len(self._free_events) >= _IN_FLIGHT:
            event = self._free_events.popleft()
            if event is not None:
                self._sink.limit(event)
        if self._sharded and not unsharded:
            self._sink.gather(unit)
        self._unsharded.add(unit)

    def _reshard(self, unit: int) -> None:
        self._unsharded.discard(unit)
        if self._sharded:
            point = self._sink.free(unit)
            if self.settings.limit_all_gathers:
                self._free_events.append(point)


class Units(NamedTuple):
    """Units are the flat parameters, sharded among the ranks."""

    ranks: int
    numels: Mapping[int, int]
    """Number of elements by layer, and of ``ROOT``."""
    tensors: Mapping[int, int]
    """Number of parameter tensors by layer, and of ``ROOT``."""
    element: int
    """Size of an element in the type in which parameters are gathered and used [B]."""
    shard_element: int
    """Size of an element of a shard and its gradient [B]."""

    def slice(self, unit: int) -> int:
        """[elements] of one rank's shard, padded to a whole number."""
        return -(-self.numels[unit] // self.ranks)

    @property
    def slices(self) -> tuple[int, ...]:
        """Number of elements of one rank's shard of each unit, the layers and the root."""
        return tuple(self.slice(unit) for unit in self.numels)


class FsdpUnits(Hook, FsdpSink):
    """FsdpUnits write what FSDP does before and after each unit of a pass, as its runtime decides."""

    streams = ("copy", "comm", "reduce")
    listed_first = ("copy", "comm")
    carried: ClassVar[bool] = False

    def __init__(self, units: Units, runtime: FsdpRuntime, part: StepPart) -> None:
        """Write a ``part`` of a step; ``runtime`` is in the state before its micro-step."""
        self._units, self._runtime, self._settings, self._part = units, runtime, runtime.settings, part
        self._backward = part.phase == "backward"
        if self._backward:
            runtime.forward()
        self._ready: dict[int, tuple[int, int]] = {}
        """Operation after which a unit can be used, as (stream, number)."""

    def start(self, out: PassWriter) -> None:
        """Begin to send the runtime's calls to the writer."""
        self._out, self._fsdp = out, out.machine.host.fsdp_costs
        self._slower = self._fsdp.operation.value / out.costs.operation.value
        """Ratio of the host time of an operation in forward, which autograd records, to that in inference."""
        self._copies, self._comm, self._reduces = map(self.stream, self.streams)
        self._runtime.begin(self)

    # -- parts and calls ------------------------------------------------------------------------

    def enter(self, part: Part, out: PassWriter) -> None:
        """Run the hook before a layer, and before the first part that of the root."""
        before = self._runtime.pre_backward if self._backward else self._runtime.pre_forward
        if part is out.now.parts[0]:
            out.spend(out.costs.pass_overhead.value)
            before(ROOT)
        if (unit := self._unit(part)) != ROOT:
            if unit == 0 and not self._backward:
                # transformers asks whether sequences are packed or padded (masking_utils.py,
                # find_packed_sequence_indices): the answer comes from the GPU, behind the root.
                out.host_waits(COMPUTE)
            before(unit)

    def before(self, call: Call, out: PassWriter) -> None:
        """Take the host's time for checkpoints, and for calling a module in forward."""
        if call.facts == "checkpoint":
            out.spend((self._fsdp.recompute if self._backward else self._fsdp.checkpoint).value)
        if call.kernels == "forward":
            out.spend(out.now.timing.launch_s(call.module) * self._slower)

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Launch kernels, in backward from autograd's thread."""
        if call.kernels == "backward":
            out.spend(self._fsdp.backward_call.value)
        out.flush()
        return True

    def leave(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Run the hook after a layer."""
        unit = self._unit(part)
        if not self._backward:
            self._runtime.post_forward(unit)
        elif unit != ROOT:
            self._complete(unit)

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Reduce the gradients of the root, and let the host wait for them and for the last kernel."""
        if self._backward:
            out.builder.segment("after backward")
            self._complete(ROOT)
            out.host_waits(self._reduces)
        out.host_waits(COMPUTE)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Nothing else is at the end of a pass."""
        return True

    def _unit(self, part: Part) -> int:
        """Return the unit of a part."""
        if part.layer < 0:
            return ROOT
        return self._runtime.layers - 1 - part.layer if self._backward else part.layer

    def _complete(self, unit: int) -> None:
        """Add up a unit's gradients over micro-steps, and run the hook after its backward pass."""
        out, passes = self._out, 5 if self._part.micro_step else 2
        out.label = _name(unit)
        out.flush()
        traffic = passes * self._units.numels[unit] * self._units.element
        out.add("reduce", COMPUTE, fixed=out.now.timing.hbm_traffic(traffic), after=out.so_far(HOST))
        self._runtime.post_backward(unit, boundary=self._part.boundary)

    # -- what the runtime calls -----------------------------------------------------------------

    def unshard(self, unit: int) -> None:
        """Write a copy from page-locked memory and a cast in HBM, on their own stream."""
        out, units, numel = self._out, self._units, self._units.slice(unit)
        out.label = _name(unit)
        out.spend(self._fsdp.unshard.value)
        if self._settings.cpu_offload:
            out.spend(self._fsdp.copy_call.value)
            size = numel * units.shard_element
            copied = out.copy([size], self._copies, to_device=True, pinned=True)
            self._ready[unit] = self._copies, copied
        if units.shard_element != units.element:
            fixed = out.now.timing.hbm_traffic(numel * (units.shard_element + units.element))
            out.flush()
            cast = out.add("concat", self._copies, fixed=fixed, after=out.so_far(HOST))
            self._ready[unit] = self._copies, cast

    def limit(self, event: int) -> None:
        """Let the host wait for kernels."""
        self._out.host_waits(COMPUTE, event)

    def gather(self, unit: int) -> None:
        """All-gather the unit's shards after all copies and casts written so far."""
        self._out.spend(self._fsdp.gather.value)
        ordinal = self._collective("all-gather", "gather", self._units.slice(unit), behind=self._copies)
        self._ready[unit] = self._comm, ordinal

    def need(self, unit: int) -> None:
        """Run the unit's hooks and make views of its tensors; the next kernel waits."""
        out, costs, units = self._out, self._fsdp, self._units
        if units.ranks == 1:  # what is not sharded is let go as well, unless it was not cast
            out.spend(costs.reshard.value)
        if self._backward:
            out.spend(costs.backward_hook.value)
        else:
            out.spend(costs.forward_hook.value + units.tensors[unit] * costs.view.value)
        if unit in self._ready:
            out.await_(*self._ready.pop(unit))

    def free(self, _unit: int) -> int:
        """Free memory after the last kernel."""
        self._out.spend(self._fsdp.reshard.value)
        return self._out.count(COMPUTE) - 1

    def reduce(self, unit: int) -> None:
        """Write a reduction of gradients: division against overflow, reduce-scatter, second division, cast to
        the type of the shard, and with offloading a copy to page-locked memory."""
        out, units, numel = self._out, self._units, self._units.slice(unit)
        out.spend(self._fsdp.reduce.value)
        if self._settings.cpu_offload:
            out.spend(self._fsdp.copy_call.value)
        out.flush()
        after = out.so_far(HOST, COMPUTE)
        if units.ranks > 1:
            fixed = out.now.timing.hbm_traffic(2 * units.numels[unit] * units.element)
            out.add("reduce", self._reduces, fixed=fixed, after=after)
            self._collective("gradient-reduction", "reduce", numel, behind=self._reduces)
            after = out.so_far(self._comm)
        fixed = out.now.timing.hbm_traffic((3 * units.element + units.shard_element) * numel)
        out.add("reduce", self._reduces, fixed=fixed, after=after)
        if self._settings.cpu_offload:
            out.copy([numel * units.shard_element], self._reduces, to_device=False, pinned=True)
            if units.ranks == 1:
                out.host_waits(self._reduces)

    def _collective(self, cause: CauseKind, kind: OpKind, numel: int, *, behind: int) -> int:
        """Write an all-gather or reduce-scatter of ``numel`` elements; return its number on the stream."""
        size = numel * (self._units.ranks - 1) * self._units.element
        return self._out.exchange(kind, cause, self._comm, size, behind=(behind,))


class FsdpOptimizer(Hook):
    """An FsdpOptimizer is AdamW over all shards on their device."""

    carried: ClassVar[bool] = False

    def __init__(self, plan: FsdpPlan) -> None:
        self._plan, self._units = plan, plan.units

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Write PyTorch's AdamW in a sequence of operations, or one of bitsandbytes."""
        out.spend(out.machine.host.fsdp_costs.step_call.value)
        name = self._plan.strategy.optimizer
        if name != "AdamW":
            self._bitsandbytes(8 if name.endswith("8bit") else 32, out)
        elif self._plan.strategy.cpu_offload:
            self._on_cpu(out)
        else:
            out.flush()
            element = self._units.shard_element
            traffic = (TORCH_FOREACH + TORCH_WEIGHT_DECAY) * element // SINGLE * sum(self._units.slices)
            self._on_gpu(traffic, "AdamW", out)

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Let the host wait for the last kernel."""
        out.host_waits(COMPUTE)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Nothing else is at the end of a step."""
        return True

    def _on_cpu(self, out: PassWriter) -> None:
        """Write the update of one flat parameter after the other."""
        machine, element = out.machine, self._units.shard_element
        traffic = (TORCH_ADAM + TORCH_WEIGHT_DECAY) * element // SINGLE
        cpu = machine.host.cpu_optimizer
        share = cpu.limit.value / max(cpu.numa_nodes.value, machine.ranks_per_node(out.ranks))
        new = TORCH_ADAM_NEW * element
        rate = machine.host.fsdp_costs.adamw_rate(self._plan.threads, traffic=traffic, new=new, share=share)
        cause = Cause("cpu-adamw")
        for unit in self._units.numels:
            out.spend(_ADAM_OPERATIONS * out.costs.operation.value)
            out.flush()
            size, route = traffic * self._units.slice(unit), out.cpu_work(cause, rate)
            out.add("cpu", HOST, size=size, route=route, label=cause_text(cause))

    def _bitsandbytes(self, bits: int, out: PassWriter) -> None:
        """Write one kernel for each flat parameter, for which the host waits."""
        if self._plan.paged_out:  # the driver moved them out for activations and gradients
            for to_device in (False, True):
                out.copy([self._plan.paged_out], COMPUTE, to_device=to_device, pinned=True)
        for unit in self._units.numels:
            out.spend(out.costs.operation.value)
            out.flush()
            self._on_gpu(update_traffic(self._units.slice(unit), bits=bits), "AdamW of bitsandbytes", out)
            out.host_waits(COMPUTE)

    def _on_gpu(self, traffic: int, label: str, out: PassWriter) -> None:
        fixed = out.now.timing.hbm_traffic(traffic)
        out.add("update", COMPUTE, fixed=fixed, label=label, after=out.so_far(HOST))


def _name(unit: int) -> str:
    return "root" if unit == ROOT else "layer"
