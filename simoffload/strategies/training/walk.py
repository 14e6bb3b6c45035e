"""Walking through a micro-step as DeepSpeed's host thread does: fetches, kernels, gradients, buckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from simoffload.limits import count_elements
from simoffload.strategies.coordinator import Actions, Coordinator, Idle, Layers, Tensor
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.training.recurrence import Passes, Skip
from simoffload.strategies.training.trace import Event, Instance, MicroStep
from simoffload.strategies.training.writer import MicroStepWriter

__all__ = ["Parameters", "Walk", "buckets", "gathered_peak"]


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


class _Reducer(Protocol):
    def gradient(self, tensor: Tensor, /, *, contiguous: bool) -> None: ...
    def reduce(self, tensors: Sequence[Tensor], /) -> None: ...


class Bucket:
    """Gradients that wait until there are ``size`` [elements] of them."""

    def __init__(self, reducer: _Reducer, size: int) -> None:
        self._reducer = reducer
        self._size = size
        self._held: list[Tensor] = []
        self._numel = 0

    def add(self, tensor: Tensor) -> None:
        """A gradient is complete (``reduce_independent_p_g_buckets_and_remove_grads``)."""
        if self._held and self._numel + tensor.numel > self._size:
            self.flush()
        self._reducer.gradient(tensor, contiguous=self._numel + tensor.numel <= self._size)
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
            self._reducer.reduce(self._held)
        self._held, self._numel = [], 0


class _Switch:
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


class Walk:
    """One micro-step under the settings, whose trace is known."""

    def __init__(
        self,
        *,
        trace: MicroStep,
        parameters: Parameters,
        settings: TrainingSettings,
        ranks: int,
        out: MicroStepWriter,
        layers: Layers | None = None,
    ) -> None:
        self._parameters = parameters
        self._out = out
        self._backward = False
        self._switch = _Switch(out)
        self._coordinator = (
            coordinator_of(trace, parameters, settings, ranks, self._switch, warm=True, layers=layers)
            if settings.stage == 3
            else None
        )
        self._passes = Passes(trace, layers, self._coordinator)
        self._bucket = Bucket(out, settings.reduce_bucket_size)

    def forward(self, skip: Skip | None = None) -> bool:
        """Write the forward pass; whether what ``skip`` leaves out is as what lies before it."""
        self._switch.on = True
        right = self._write(self._happen, skip)
        self._out.end_forward()
        return right

    def backward(self, skip: Skip | None = None, *, forward: Skip | None = None) -> bool:
        """Write the backward pass; forward is gone through without writing.

        Whether what ``skip`` leaves out, and ``forward`` of that pass, is as what lies before it.
        """
        right = True
        if self._coordinator is not None:
            right = self._passes.go(self._pass, backward=False, skip=forward)
        self._switch.on = self._backward = True
        right &= self._write(self._back, skip)
        self._bucket.flush()
        self._out.end_backward()
        return right

    def _write(self, happen: Callable[[Event], None], skip: Skip | None) -> bool:
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
        written = self._switch.written(handles)
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
    if event.kind == "fetch":
        coordinator.fetch()
    elif event.kind == "release":
        coordinator.release(parameters.owned[event.instance])


def coordinator_of(
    trace: MicroStep,
    parameters: Parameters,
    settings: TrainingSettings,
    ranks: int,
    actions: Actions,
    *,
    warm: bool,
    layers: Layers | None = None,
) -> Coordinator:
    """A coordinator that goes through forward and backward; ``layers`` tells it what is left out."""
    events = (*trace.forward, *trace.backward)
    return Coordinator(
        tensors=parameters.tensors,
        uses=[parameters.owned[event.instance] for event in events if event.kind == "fetch"],
        settings=settings.params,
        ranks=ranks,
        warm=warm,
        actions=actions,
        layers=layers,
    )


class _Reads(Idle):
    """Counts what is read."""

    def __init__(self) -> None:
        self.slices: list[Tensor] = []
        self._repeated: list[tuple[int, int, int]] = []

    def repeat(self, first: int, times: int) -> None:
        """What has been read from number ``first`` on is read so many times more."""
        self._repeated.append((first, len(self.slices), times))

    @property
    def all(self) -> list[Tensor]:
        """What is read, in order."""
        found, done = [], 0
        for first, last, times in self._repeated:
            count_elements((last - first) * times)
            found += self.slices[done:last] + self.slices[first:last] * times
            done = last
        return found + self.slices[done:]

    def read(self, tensors: Sequence[Tensor], /) -> None:
        self.slices.extend(tensors)


class Peak(NamedTuple):
    """What a walk finds out without a clock."""

    gathered: int
    """[elements] most that gathered parameters occupied at once."""
    largest: int
    """[elements] largest batch that was gathered in one call."""
    read: tuple[Tensor, ...]
    """Partitions that were read from storage."""
    while_reducing: int
    """[elements] most that gathered parameters occupied while a bucket was reduced."""


class _Held:
    """Notes what is gathered whenever a bucket is reduced."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.most = 0

    def gradient(self, _tensor: Tensor, /, *, contiguous: bool) -> None: ...

    def reduce(self, _tensors: Sequence[Tensor], /) -> None:
        self.most = max(self.most, self._coordinator.on_gpu)


def gathered_peak(
    trace: MicroStep,
    parameters: Parameters,
    settings: TrainingSettings,
    ranks: int,
    *,
    warm: bool = True,
    layers: Layers | None = None,
    skips: tuple[Skip | None, Skip | None] = (None, None),
) -> Peak | None:
    """Walk a micro-step of stage 3 for its peaks and reads; raises what DeepSpeed stops at.

    None if what ``skips`` leaves out of forward and backward is not as what lies before it.
    """
    reads = _Reads()
    coordinator = coordinator_of(trace, parameters, settings, ranks, reads, warm=warm, layers=layers)
    passes, held = Passes(trace, layers, coordinator), _Held(coordinator)
    bucket = Bucket(held, settings.reduce_bucket_size)

    def happen(event: Event) -> None:
        hook(event, coordinator, parameters)
        bucket.add_all(parameters.completed(event))

    for backward, skip in zip((False, True), skips, strict=True):
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
    return Peak(coordinator.peak_on_gpu, coordinator.largest_gather, tuple(reads.all), held.most)


def buckets(trace: MicroStep, parameters: Parameters, size: int) -> list[list[Tensor]]:
    """The tensors of every bucket that a micro-step reduces, in order."""
    seen: list[list[Tensor]] = []

    class _Seen:
        def gradient(self, tensor: Tensor, /, *, contiguous: bool) -> None: ...

        def reduce(self, tensors: Sequence[Tensor], /) -> None:
            seen.append(list(tensors))

    bucket = Bucket(_Seen(), size)
    for event in trace.backward:
        bucket.add_all(parameters.completed(event))
    bucket.flush()
    return seen
