"""DeepSpeed's hooks, replayed over a trace, once for inference and training: walked, counted or written down.

A walk is decided by the coordinator's state and by what lies ahead in its queue. If, when a layer begins, the
state is the same as when an earlier one began, told relative to each, and nothing behind the layers has
mattered until then, what lies between them comes again and again until a look ahead would reach the end of
the layers. So a stack of fewer layers, left out in whole periods, is walked through in place of the model
(``layer_period``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simoffload.strategies.coordinator import Coordinator, CoordinatorSink, Layers, State, Tensor
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.forward import ForwardWriter
from simoffload.strategies.trace import Event, Instance, Trace


class Parameters(NamedTuple):
    """Parameters are the model's tensors and the modules that own them."""

    tensors: tuple[Tensor, ...]
    owned: Mapping[Instance, tuple[int, ...]]
    """Indices of the tensors that a module needs, including a tied one."""
    trained: Mapping[Instance, tuple[int, ...]]
    """Indices of the tensors whose gradients are complete after the module's backward pass."""

    @classmethod
    def of(cls, trace: Trace, tensors: Sequence[Tensor]) -> Parameters:
        """Find who needs and who trains ``tensors``, which come in the order of their first use, a tied one
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
        """Return the tensors whose gradients are complete with ``event``."""
        if event.kind != "gradients":
            return []
        return [self.tensors[index] for index in self.trained[event.instance]]


class SkippedLayers(NamedTuple):
    """Layers left out of a pass: ``times`` periods of ``layers``, each like one between the layers
    ``after`` and ``before``."""

    layers: int
    after: int
    before: int
    times: int


class LayerStack(NamedTuple):
    """A LayerStack is a replayed trace, possibly with layers left out."""

    trace: Trace
    parameters: Parameters
    layers: Layers | None = None
    """Homogeneous layers of the stack; None if none may be left out."""
    forward: SkippedLayers | None = None
    backward: SkippedLayers | None = None

    def coordinator(
        self, settings: OffloadSettings, ranks: int, sink: CoordinatorSink, *, warm: bool
    ) -> Coordinator:
        """Return a coordinator that goes through all hooks of the trace."""
        events = (*self.trace.forward, *self.trace.backward)
        return Coordinator(
            tensors=self.parameters.tensors,
            uses=[self.parameters.owned[event.instance] for event in events if event.kind == "fetch"],
            settings=settings,
            ranks=ranks,
            warm=warm,
            sink=sink,
            layers=self.layers,
        )


def hook(event: Event, coordinator: Coordinator, parameters: Parameters) -> None:
    """Let the coordinator do what it does at an event."""
    if event.kind == "fetch":
        coordinator.fetch()
    elif event.kind == "release":
        coordinator.release(parameters.owned[event.instance])


class Passes:
    """The passes of a stack through homogeneous layers; without a coordinator only the order is known."""

    def __init__(self, stack: LayerStack, coordinator: Coordinator | None) -> None:
        self._trace = stack.trace
        self._layers = stack.layers
        self._coordinator = coordinator
        self._ends = tuple(_last_hooks(stack.trace))

    def state(self, visit: int, *, backward: bool) -> State | None:
        """Return the coordinator's state relative to the ``visit``-th layer of a pass, about to begin.

        None once what lies behind the layers has mattered.
        """
        layers, coordinator = self._layers, self._coordinator
        assert layers is not None
        if coordinator is None:
            return ()
        if coordinator.looked_past(self._ends[backward]):
            return None
        each, first = len(layers.tensors), layers.first_tensor
        begin = first + each * (layers.walked - 1 - visit if backward else visit)
        tail = layers.tail_tensor

        def place(index: int) -> tuple[int, int]:
            if index < first:
                return 0, index
            return (2, index - tail) if index >= tail else (1, index - begin)

        return coordinator.seen(place)

    def states(self, happen: Callable[[Event], None], *, backward: bool) -> Iterator[State | None]:
        """Go through a pass; yield the state each time that a layer is about to begin."""
        for visit, events in self._trace.pieces(backward=backward):
            if 0 <= visit < self._trace.layers:
                yield self.state(visit, backward=backward)
            for event in events:
                happen(event)

    def go(
        self,
        happen: Callable[[Event], None],
        *,
        backward: bool,
        skip: SkippedLayers | None = None,
        more: Callable[[], State] = lambda: (),
        position: Callable[[], int] = lambda: 0,
        repeat: Callable[[int, int], None] = lambda _first, _times: None,
    ) -> bool:
        """Go through a pass; return whether what ``skip`` leaves out is like what lies before it.

        ``more`` is what decides besides the coordinator. ``position`` tells how far things are, and
        ``repeat`` gets the one at which the period began that is to follow itself so many times.
        """
        met: dict[int, tuple[State, int]] = {}
        done = skip is None
        for visit, events in self._trace.pieces(backward=backward):
            if skip is not None and not done and skip.after <= visit < skip.before:
                state = self.state(visit, backward=backward)
                if state is not None:
                    met[visit] = (*state, *more()), position()
                    before = met.get(visit - skip.layers)
                    if before is not None and before[0] == met[visit][0]:
                        repeat(before[1], skip.times)
                        done = True
            for event in events:
                happen(event)
        return done


def _last_hooks(trace: Trace) -> Iterator[int]:
    """Yield the number of fetches before what follows the layers, in forward and in backward."""
    fetches = 0
    for backward in (False, True):
        for visit, events in trace.pieces(backward=backward):
            if visit == trace.layers:
                yield fetches
            fetches += sum(event.kind == "fetch" for event in events)


class _RecordingGate(CoordinatorSink):
    """Passes the coordinator's calls on only while ``on``; what began before then is taken as done."""

    def __init__(self, out: CoordinatorSink) -> None:
        self._out = out
        self.on = False
        self._events_before = 0
        self._handles: dict[int, int] = {}

    def read(self, tensors: Sequence[Tensor], /) -> None:
        if self.on:
            self._out.read(tensors)

    def wait_reads(self) -> None:
        if self.on:
            self._out.wait_reads()

    def written(self, handles: Sequence[int]) -> list[int]:
        """Return those of the gathers ``handles`` that are written down, as the writer calls them."""
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


class Replay:
    """A forward pass, written down by ``out`` as the hooks fire.

    Without ``settings`` parameters are not partitioned, so that nothing is fetched.
    """

    def __init__(
        self, stack: LayerStack, settings: OffloadSettings | None, out: ForwardWriter, *, warm: bool = True
    ) -> None:
        self._stack = stack
        self._out = out
        self._gate = _RecordingGate(out)
        self._coordinator = (
            None if settings is None else stack.coordinator(settings, out.ranks, self._gate, warm=warm)
        )
        self._passes = Passes(stack, self._coordinator)

    def forward(self) -> bool:
        """Write the forward pass; return whether the layers that are left out are like those before them."""
        self._gate.on = True
        right = self._write(self._happen, backward=False)
        self._out.end_forward()
        return right

    def _write(self, happen: Callable[[Event], None], *, backward: bool) -> bool:
        builder = self._out.builder
        return self._passes.go(
            happen,
            backward=backward,
            skip=self._stack.backward if backward else self._stack.forward,
            more=self._state,
            position=lambda: builder.segments,
            repeat=builder.repeat,
        )

    def _state(self) -> State:
        """Return what decides how things are written down."""
        handles = self._coordinator.handles() if self._coordinator is not None else []
        written = self._gate.written(handles)
        return (*self._out.state(written), len(written))

    def _hook(self, event: Event) -> None:
        if self._coordinator is not None:
            hook(event, self._coordinator, self._stack.parameters)

    def _happen(self, event: Event) -> None:
        out, module = self._out, event.instance.module
        if event.kind == "fetch":
            out.begin(module, segment=event.segment, backward=event.backward)
        elif event.segment:
            out.part(event.segment)
        self._hook(event)
        if event.kind == "launch":
            out.launch_forward(module)
