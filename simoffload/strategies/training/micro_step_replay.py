"""Walking through a micro-step as DeepSpeed's host thread does: fetches, kernels, gradients, buckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from simoffload.strategies.coordinator import Coordinator
from simoffload.strategies.coordinator_sink import CoordinatorSink, Layers, Tensor
from simoffload.strategies.forward import COMPUTE
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.training.trace import Event, Instance, MicroStep, Passes, SkippedLayers
from simoffload.strategies.training.writer import ACTIVATIONS, MicroStepWriter

__all__ = ["ActivationOffload", "Bucket", "MicroStepReplay", "Parameters", "ReplayedStep", "hook"]


class Parameters(NamedTuple):
    """The model's tensors and who owns them."""

    tensors: tuple[Tensor, ...]
    owned: Mapping[Instance, tuple[int, ...]]
    """Indices of the tensors that a module needs, a tied one included."""
    trained: Mapping[Instance, tuple[int, ...]]
    """Indices of the tensors whose gradients are complete after the module's backward pass."""

    @classmethod
    def of(cls, trace: MicroStep, tensors: Sequence[Tensor]) -> Parameters:
        """Who needs and who trains ``tensors``, which come in the order of their first use, a tied one
        once."""
        owned: dict[Instance, tuple[int, ...]] = {}
        trained: dict[Instance, tuple[int, ...]] = {}
        known: dict[tuple[int, str], int] = {}
        for event in trace.forward:
            one = event.instance
            if one in owned:
                continue
            mine, own = [], []
            for parameter in one.module.parameters if one.owns else ():
                if parameter.tied:
                    mine.append(known[-1, parameter.name])
                    continue
                index = known[one.layer, parameter.name] = len(known)
                mine.append(index)
                if parameter.trainable:
                    own.append(index)
            owned[one], trained[one] = tuple(mine), tuple(own)
        for event in trace.backward:
            owned.setdefault(event.instance, ())
            trained.setdefault(event.instance, ())
        assert len(known) == len(tensors)
        return cls(tuple(tensors), owned, trained)

    def completed(self, event: Event) -> list[Tensor]:
        """Tensors whose gradients are complete with ``event``."""
        if event.kind != "gradients":
            return []
        return [self.tensors[index] for index in self.trained[event.instance]]


class ReplayedStep(NamedTuple):
    """A micro-step as it is walked through, perhaps with layers left out."""

    trace: MicroStep
    parameters: Parameters
    layers: Layers | None = None
    """What is left out; None for nothing."""
    forward: SkippedLayers | None = None
    backward: SkippedLayers | None = None

    def coordinator(self, state: TrainingState, sink: CoordinatorSink, *, warm: bool) -> Coordinator:
        """A coordinator that goes through forward and backward."""
        events = (*self.trace.forward, *self.trace.backward)
        return Coordinator(
            tensors=self.parameters.tensors,
            uses=[self.parameters.owned[event.instance] for event in events if event.kind == "fetch"],
            settings=state.settings.params,
            ranks=state.places.ranks,
            warm=warm,
            sink=sink,
            layers=self.layers,
        )


class Bucket:
    """Gradients that wait until there are ``size`` [elements] of them, which ``reduce`` then gets."""

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
        """A gradient is complete (``reduce_independent_p_g_buckets_and_remove_grads``)."""
        if self._held and self._numel + tensor.numel > self._size:
            self.flush()
        if self._gradient is not None:
            self._gradient(tensor, contiguous=self._numel + tensor.numel <= self._size)
        self._held.append(tensor)
        self._numel += tensor.numel

    def add_all(self, tensors: Sequence[Tensor]) -> None:
        """Several gradients are complete, one after the other."""
        for tensor in tensors:
            self.add(tensor)

    @property
    def state(self) -> tuple[object, ...]:
        """What is held."""
        return tuple(self._held)

    def flush(self) -> None:
        """Reduce what is held."""
        if self._held:
            self._reduce(self._held)
        self._held, self._numel = [], 0


class _RecordingGate:
    """The coordinator's actions, written down only while ``on``; what began before then is done."""

    def __init__(self, out: MicroStepWriter) -> None:
        self._out = out
        self.on = False
        self._events_before = 0
        self._handles: dict[int, int] = {}

    def enter(self, _step: int, /) -> None: ...

    def compute(self, _step: int, /) -> None: ...

    def read(self, tensors: Sequence[Tensor], /) -> None:
        if self.on:
            self._out.read(tensors)

    def wait_reads(self) -> None:
        if self.on:
            self._out.wait_reads()

    def written(self, handles: Sequence[int]) -> list[int]:
        """Those of the gathers ``handles`` that are written down, as the writer calls them."""
        return [self._handles[handle] for handle in handles if self._handles[handle] >= 0]

    def gather(self, tensors: Sequence[Tensor], /, *, prefetch: bool) -> int:
        number = len(self._handles)
        self._handles[number] = self._out.gather(tensors, prefetch=prefetch) if self.on else -1
        return number

    def wait(self, handle: int, /) -> None:
        if self.on and self._handles[handle] >= 0:
            self._out.wait(self._handles[handle])

    def throttle(self, event: int, /) -> None:
        if self.on and event >= self._events_before:
            self._out.throttle(event - self._events_before)

    def fetch_event(self) -> None:
        if self.on:
            self._out.fetch_event()
        else:
            self._events_before += 1

    def release(self, count: int, /) -> None:
        if self.on:
            self._out.release(count)


class MicroStepReplay:
    """One micro-step under the settings, whose trace is known."""

    def __init__(self, step: ReplayedStep, state: TrainingState, out: MicroStepWriter) -> None:
        self._step = step
        self._parameters = step.parameters
        self._out = out
        self._backward = False
        self._gate = _RecordingGate(out)
        self._coordinator = (
            step.coordinator(state, self._gate, warm=True) if state.settings.stage == 3 else None
        )
        self._passes = Passes(step.trace, step.layers, self._coordinator)
        self._bucket = Bucket(state.settings.reduce_bucket_size, out.reduce, gradient=out.gradient)

    def forward(self) -> bool:
        """Write the forward pass; whether the layers that are left out are as those before them."""
        self._gate.on = True
        right = self._write(self._happen, self._step.forward)
        self._out.end_forward()
        return right

    def backward(self) -> bool:
        """Write the backward pass; forward is gone through without writing.

        Whether the layers that are left out of both are as those before them.
        """
        right = True
        if self._coordinator is not None:
            right = self._passes.go(self._pass, backward=False, skip=self._step.forward)
        self._gate.on = self._backward = True
        right &= self._write(self._back, self._step.backward)
        self._bucket.flush()
        self._out.end_backward()
        return right

    def _write(self, happen: Callable[[Event], None], skip: SkippedLayers | None) -> bool:
        builder = self._out.builder
        return self._passes.go(
            happen,
            backward=self._backward,
            skip=skip,
            more=self._state,
            position=lambda: builder.segments,
            repeat=builder.repeat,
        )

    def _state(self) -> tuple[object, ...]:
        """What decides how things are written down, and which gradients are reduced together."""
        handles = self._coordinator.handles() if self._coordinator is not None else []
        written = self._gate.written(handles)
        return (*self._out.state(written), len(written), self._bucket.state)

    def _pass(self, event: Event) -> None:
        assert self._coordinator is not None
        hook(event, self._coordinator, self._parameters)

    def _back(self, event: Event) -> None:
        self._happen(event)
        if self._out.reduces:
            self._bucket.add_all(self._parameters.completed(event))

    def _happen(self, event: Event) -> None:
        out, module = self._out, event.instance.module
        if event.kind == "fetch":
            out.begin(module, segment=event.segment, backward=event.backward)
        elif event.segment:
            out.part(event.segment)
        if self._coordinator is not None:
            hook(event, self._coordinator, self._parameters)
        if event.kind == "launch":
            out.launch_forward(module)
        elif event.kind == "back":
            out.launch_backward(module)
        elif event.kind == "checkpoint":
            out.checkpoint(event.instance.layer, again=self._backward)


def hook(event: Event, coordinator: Coordinator, parameters: Parameters) -> None:
    """What the coordinator does at an event."""
    if event.kind == "fetch":
        coordinator.fetch()
    elif event.kind == "release":
        coordinator.release(parameters.owned[event.instance])


_SIDE_STREAM = (0, 19, 6)
"""DeepSpeed's version with the side stream (commit 858e91e)."""


class ActivationOffload:
    """Copies of layers' inputs of ``size`` [B] each (``activation_checkpointing.cpu_checkpointing``).

    Sources: deepspeed/runtime/activation_checkpointing/checkpointing.py and, since DeepSpeed 0.19.6,
    offload_activations.py (``_ActivationOffloadEngine``). There, a side stream copies into page-locked
    memory and back: a layer's input leaves the GPU once the next layer's forward pass has been launched, the
    last one not at all, and the one before it is still at hand when backward asks for it. Earlier versions
    copy to pageable memory before a layer begins, and back before it is computed again, and wait each time.
    Left out: mask and position ids, and page-locking anew once more than 64 layers have used up the pool.
    """

    def __init__(self, *, size: int, layers: int, version: tuple[int, ...]) -> None:
        self._size = size
        self._layers = layers
        self._side_stream = version >= _SIDE_STREAM

    def enter(self, out: MicroStepWriter, layer: int) -> None:
        """Forward comes to a layer."""
        if not self._side_stream:
            out.move([self._size], to_device=False, pinned=False, stream=COMPUTE)
        elif layer >= 2:
            self._offload(out)

    def leave(self, out: MicroStepWriter) -> None:
        """Forward has left the last layer."""
        if self._side_stream and self._layers >= 2:
            self._offload(out)

    def restore(self, out: MicroStepWriter, layer: int) -> None:
        """A layer is about to be computed again."""
        if not self._side_stream:
            out.move([self._size], to_device=True, pinned=False, stream=COMPUTE)
        elif layer < self._layers - 2:
            out.spend(out.costs.copy_call.value)
            out.move([self._size], to_device=True, pinned=True, stream=ACTIVATIONS)
            after = (*out.host_so_far(), *out.so_far(ACTIVATIONS))
            out.add("compute", COMPUTE, label="checkpoint", after=after)

    def _offload(self, out: MicroStepWriter) -> None:
        """The copy runs behind all kernels launched so far."""
        out.spend(out.costs.copy_call.value)
        out.move([self._size], to_device=False, pinned=True, stream=ACTIVATIONS, behind=COMPUTE)
