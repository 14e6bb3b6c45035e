"""A micro-step of training: buckets of gradients, the replay of its hooks, and its peaks and reads.

Forward and backward of identical layers are replayed with as few layers as possible (``replay``). The
gradients in a bucket and in swap buffers have a period of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simoffload.limits import count_elements
from simoffload.models import ModelShape
from simoffload.schedule import Dependency
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.passes.pass_writer import COMPUTE, Call, Part, PassWriter, StagePass
from simoffload.strategies.passes.period import Period, period_of
from simoffload.strategies.passes.streams import HOST
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.training.storage_io import GradientSink, GradientSwapper
from simoffload.strategies.training.writer import ACTIVATIONS, MicroStepWriter, TrainingStreams
from simoffload.strategies.zero.coordinator import CoordinatorSink, State, Tensor
from simoffload.strategies.zero.replay import LayeredModel, LayerStack, Parameters, Passes, hook
from simoffload.strategies.zero.trace import Event, Trace, micro_step
from simoffload.workload import Training

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
        self._size = size
        self._reduce = reduce
        self._gradient = gradient
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
    def state(self) -> tuple[object, ...]:
        """Gradients that the bucket holds now."""
        return tuple(self._held)

    def flush(self) -> None:
        """Reduce the gradients that are held."""
        if self._held:
            self._reduce(self._held)
        self._held, self._numel = [], 0


class MicroStep(TrainingStreams):
    """A MicroStep does what DeepSpeed's hooks do at the events of a pass, after it has recorded its trace.

    Below stage 3 parameters are not partitioned, and nothing is fetched.
    """

    _out: MicroStepWriter

    def __init__(
        self, stack: LayerStack, state: TrainingState, activations: ActivationOffload | None, part: StepPart
    ) -> None:
        """Write a ``part`` of a step, forward or backward."""
        self._stack, self._state, self._activations = stack, state, activations
        self._backward = part.phase == "backward"
        self._coordinator = None
        if state.fetching is not None:
            ranks = state.places.ranks
            self._coordinator = stack.coordinator(state.fetching, ranks, CoordinatorSink(), warm=True)
        self._passes = Passes(stack, self._coordinator)
        self._pieces = (events for _, events in stack.trace.pieces(backward=self._backward) if events)
        self.recurs = True
        """Whether the layers that are left out before the pass, in forward, repeat those before them."""

    def start(self, out: PassWriter) -> None:
        """Replay forward without writing it, if backward is written."""
        assert isinstance(out, MicroStepWriter)
        self._out, self._label = out, out.label
        self._bucket = Bucket(self._state.settings.reduce_bucket_size, out.reduce, gradient=out.gradient)
        if self._coordinator is not None:
            if self._backward:
                self.recurs = self._passes.go(self._hook, backward=False, skip=self._stack.forward)
            self._coordinator.restart(out.fetches)

    def state(self, part: Part) -> Hashable:
        """Return the state of coordinator and gradients relative to the layer; the number of the layer if a
        decision has depended on what follows the layers."""
        relative = self._passes.state(part.layer, backward=self._backward) if part.layer >= 0 else None
        if relative is None:
            return part.layer
        handles = self._coordinator.handles() if self._coordinator is not None else []
        return relative, self._out.state(handles), self._bucket.state

    def enter(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """Take the events of a part, which are those of its calls; the first after the layers ends the
        last."""
        self._events = iter(next(self._pieces))
        if part.name == "tail" and self._activations is not None:
            self._activations.leave(self._out)

    def before(self, call: Call, out: PassWriter) -> None:
        """Do what DeepSpeed does at the event of a call."""
        event, costs = next(self._events), out.costs
        if event.kind == "fetch":
            self._label = call.module.name
            self._out.fetches.begin()
            if not event.backward and self._state.settings.stage == 3:
                out.spend(costs.hook.value + costs.hook_input.value * call.module.touched)
        out.label = self._label
        self._hook(event)
        if event.kind == "launch":  # autograd records it
            out.spend(out.now.timing.launch_s(call.module) * (1 + out.machine.host.training.graph.value))
        elif event.kind == "checkpoint":
            self._checkpoint(event.instance.layer)
        elif event.kind == "gradients" and self._backward and self._out.reduces:
            self._bucket.add_all(self._stack.parameters.completed(event))

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Launch kernels, which wait for the module's parameters."""
        if call.kernels == "backward" and self._state.settings.stage == 3:
            out.spend(out.machine.host.training.backward_call.value)
        elif call.kernels == "backward":  # a node of autograd for each operation (an estimate)
            out.spend(out.costs.operation.value * max(1, out.now.timing.operations(call.module)))
        out.flush()
        for stream, ordinal in self._out.fetches.awaited():
            out.await_(stream, ordinal)
        out.label = call.module.name
        return True

    def kernels(self, call: Call, duration: int, after: tuple[Dependency, ...], out: PassWriter) -> bool:  # noqa: ARG002
        """Count kernels for which gradients wait; in backward for those of the input and of the weights."""
        self._out.kernel_waits.launched(duration, kernels=2 if call.kernels == "backward" else 1)
        return False

    def end(self, stage: StagePass, out: PassWriter) -> None:  # noqa: ARG002
        """Reduce the last gradients, and let the host wait for the loss or the gradients."""
        out.label = self._label
        if self._backward:
            self._bucket.flush()
            self._out.end_backward()
        else:
            out.host_waits(COMPUTE)

    def finish(self, out: PassWriter) -> bool:  # noqa: ARG002
        """Nothing else is at the end of a pass."""
        return True

    def _hook(self, event: Event) -> None:
        if self._coordinator is not None:
            hook(event, self._coordinator, self._stack.parameters)

    def _checkpoint(self, layer: int) -> None:
        """Save the input of a layer in forward, or restore it in backward."""
        out = self._out
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
        self._size = size
        self._layers = layers
        self._side_stream = version >= _SIDE_STREAM

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
        out.move([self._size], to_device=False, pinned=True, stream=ACTIVATIONS, behind=COMPUTE)


@dataclass(frozen=True)
class TrainedLayers(LayeredModel):
    """TrainedLayers give the hooks and tensors of a micro-step, for all or only some of the identical
    layers."""

    state: TrainingState
    workload: Training

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
        return self.state.of_layers(count)

    @cached_property
    def full(self) -> LayerStack:
        """Stack of all layers, with which nothing is left out of the replay."""
        trace = self.trace_of(self.count)
        return LayerStack(trace, Parameters.of(trace, self.state.tensors))

    # -- gradients ------------------------------------------------------------------------------

    def stacks_back(self, swapper: GradientSwapper | None, *, warm: bool = True) -> Iterator[LayerStack]:
        """Yield the stacks that can represent the model in forward and backward, the shortest first.

        With a ``swapper``, gradients go to storage.
        """
        gradients = self._gradients(swapper) if self.homogeneous else None
        short = None if gradients is None else self.shortest(gradients, warm=warm)
        if short is not None:
            yield short
        yield self.full

    def _gradients(self, swapper: GradientSwapper | None) -> Period | None:
        """Return the period of the gradients in the bucket and, if they go to storage, in swap buffers."""

        def reduce(tensors: Sequence[Tensor]) -> None:
            if swapper is not None:
                swapper.insert(GradientSink(), tensors)

        bucket = Bucket(self.state.settings.reduce_bucket_size, reduce)
        before, layer, _ = self._completed
        bucket.add_all(before)

        def states() -> Iterator[State]:
            for _ in range(min(self.count, _LONGEST)):
                yield bucket.state, swapper.state if swapper is not None else None
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


class _Reads(CoordinatorSink):
    """A _Reads collects the partitions that are read from storage."""

    def __init__(self) -> None:
        self.slices: list[Tensor] = []
        self._repeated: list[tuple[int, int, int]] = []

    def repeat(self, first: int, times: int) -> None:
        """Repeat the reads from number ``first`` on."""
        self._repeated.append((first, len(self.slices), times))

    @property
    def all(self) -> list[Tensor]:
        """Return all partitions that are read, in order."""
        found, done = [], 0
        for first, last, times in self._repeated:
            count_elements((last - first) * times)
            found += self.slices[done:last] + self.slices[first:last] * times
            done = last
        return found + self.slices[done:]

    def read(self, tensors: Sequence[Tensor], /) -> None:
        self.slices.extend(tensors)


class ReplayPeaks(NamedTuple):
    """ReplayPeaks are the largest sizes of gathered parameters in a micro-step, and its reads."""

    gathered: int
    """Largest size of all parameters that are gathered at the same time [elements]."""
    largest: int
    """Largest size of parameters that are gathered in one call [elements]."""
    read: tuple[Tensor, ...]
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
    return ReplayPeaks(
        coordinator.peak_on_gpu, coordinator.largest_gather, tuple(reads.all), max(while_reducing)
    )


def buckets(step: LayerStack, size: int) -> list[Sequence[Tensor]]:
    """Return the tensors of every bucket that a micro-step reduces, in order."""
    seen: list[Sequence[Tensor]] = []
    bucket = Bucket(size, seen.append)
    for event in step.trace.backward:
        bucket.add_all(step.parameters.completed(event))
    bucket.flush()
    return seen
