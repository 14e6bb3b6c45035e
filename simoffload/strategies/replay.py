"""Replay of DeepSpeed's hooks in the order of a trace, for inference and training: to count, or to write
operations.

The calls at a hook depend on the coordinator's state and on the next entries of its queue. If the state when
a layer begins equals the state when an earlier layer began, relative to each layer, and no decision has
depended on what follows the layers, the calls between the two repeat until the coordinator's look-ahead
reaches the last layer. Therefore a stack with fewer layers, shorter by whole periods, is replayed instead of
the model (``layer_period``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simoffload.strategies.coordinator import Coordinator, CoordinatorSink, Layers, State, Tensor
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.passes.period import Recurrence, SkippedLayers
from simoffload.strategies.trace import Event, Instance, Trace


class Parameters(NamedTuple):
    """Parameters are the model's tensors and the modules that own them."""

    tensors: tuple[Tensor, ...]
    owned: Mapping[Instance, tuple[int, ...]]
    """Indices of the tensors that a module uses, including tied ones."""
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
            mine: list[int] = []
            own: list[int] = []
            for parameter in one.module.parameters if one.owns else ():
                names = [name for name, _ in parameter.stored_tensors(1)]
                if parameter.tied:
                    mine += [known[-1, name] for name in names]
                    continue
                new = range(len(known), len(known) + len(names))
                known.update(zip(((one.layer, name) for name in names), new, strict=True))
                mine += new
                if parameter.trainable:
                    own += new
            owned[one], trained[one] = tuple(mine), tuple(own)
        for event in trace.backward:
            owned.setdefault(event.instance, ())
            trained.setdefault(event.instance, ())
        assert len(known) == len(tensors)
        return cls(tuple(tensors), owned, trained)

    def completed(self, event: Event) -> list[Tensor]:
        """Return the tensors whose gradients are complete after ``event``."""
        if event.kind != "gradients":
            return []
        return [self.tensors[index] for index in self.trained[event.instance]]


class LayerStack(NamedTuple):
    """A LayerStack is a trace to be replayed, with all or only some of the model's layers."""

    trace: Trace
    parameters: Parameters
    layers: Layers | None = None
    """Identical layers of the stack; None if all layers must be replayed."""
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
    """Call the coordinator for an event, if the event is a hook before or after a module."""
    if event.kind == "fetch":
        coordinator.fetch()
    elif event.kind == "release":
        coordinator.release(parameters.owned[event.instance])


class Passes:
    """Passes replays the passes through a stack; without a coordinator it only gives the order of events."""

    def __init__(self, stack: LayerStack, coordinator: Coordinator | None) -> None:
        self._trace = stack.trace
        self._layers = stack.layers
        self._coordinator = coordinator
        self._ends = tuple(_last_hooks(stack.trace))

    def state(self, visit: int, *, backward: bool) -> State | None:
        """Return the coordinator's state at the beginning of layer number ``visit`` of a pass, relative to
        the layer.

        None if a decision has already depended on what follows the layers, or if these differ.
        """
        layers, coordinator = self._layers, self._coordinator
        if coordinator is None:
            return ()
        if layers is None or coordinator.looked_past(self._ends[backward]):
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
        """Replay a pass, and yield the coordinator's state at the beginning of each layer."""
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
        """Replay a pass; return whether the layers in ``skip`` repeat a period before them, as they must.

        ``more`` returns the state outside the coordinator on which operations depend. ``position`` returns
        the number of segments written so far; ``repeat`` gets the position at which the repeated period
        began, and how often it is repeated.
        """
        recurrence = Recurrence(skip)
        for visit, events in self._trace.pieces(backward=backward):

            def state(visit: int = visit) -> State | None:
                relative = self.state(visit, backward=backward)
                return None if relative is None else (*relative, *more())

            period = recurrence.begins(visit, state, position())
            if period is not None:
                repeat(*period)
            for event in events:
                happen(event)
        return recurrence.found


def _last_hooks(trace: Trace) -> Iterator[int]:
    """Yield, for forward and backward, the number of fetches before the first event after the layers."""
    fetches = 0
    for backward in (False, True):
        for visit, events in trace.pieces(backward=backward):
            if visit == trace.layers:
                yield fetches
            fetches += sum(event.kind == "fetch" for event in events)
