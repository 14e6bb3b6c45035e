"""Replay of DeepSpeed's hooks in the order of a trace, for inference and training: to count, or to write
operations.

The calls at a hook depend on the coordinator's state and on the next entries of its queue. If the state when
a layer begins equals the state when an earlier layer began, relative to each layer, and no decision has
depended on what follows the layers, the calls between the two repeat until the coordinator's look-ahead
reaches the last layer. Therefore a stack with fewer layers, shorter by whole periods, is replayed instead of
the model (``LayeredModel.shortest``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import lcm
from operator import methodcaller
from typing import ClassVar, NamedTuple

from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.passes.pass_writer import Period, Recurrence, SkippedLayers, period_of
from simoffload.strategies.zero.coordinator import Coordinator, CoordinatorSink, Layers, State, Tensor
from simoffload.strategies.zero.trace import Event, Instance, Trace

_GUESSES = (12, 48, 192)
"""Numbers of layers of the shorter models in which a period of the coordinator's state is searched."""
_SETTLING = 6
"""Layers of a micro-step until the written operations repeat with the period of the coordinator.

This is our choice and is checked each time. A forward pass of inference gets two periods.
"""
_REMEMBERED = 8
"""Number of cached stacks of different depth."""


class Parameters(NamedTuple):
    """Parameters are the model's tensors and the modules that own them."""

    tensors: tuple[Tensor, ...]
    owned: Mapping[Instance, tuple[int, ...]]
    """Indices of the tensors that a module uses, including tied ones."""
    trained: Mapping[Instance, tuple[int, ...]]
    """Indices of the tensors whose gradients are complete after the module's backward pass."""

    @classmethod
    def of(cls, trace: Trace, tensors: Sequence[Tensor], *, packed: bool = False) -> Parameters:
        """Find who needs and who trains ``tensors``, in the order of first use, a tied one once.

        ``packed``: of a quantized weight the packed values alone are such a tensor.
        """
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
                stored = ((parameter.name, 0),) if packed else parameter.stored_tensors(1)
                names = [name for name, _ in stored]
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

    @property
    def left_out(self) -> int:
        """The number of layers of the model that it does not have."""
        return self.layers.left_out if self.layers is not None else 0

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
    """Passes replays the passes through a stack."""

    def __init__(self, stack: LayerStack, coordinator: Coordinator) -> None:
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


SinkCall = Callable[[CoordinatorSink], object]
"""A call of the coordinator, to be made to any sink."""


class Decided(NamedTuple):
    """A Decided is what the coordinator does in a layer, or before or after all layers."""

    state: State | None
    """State in which the layer begins, relative to it (``Passes.state``)."""
    handles: tuple[int, ...]
    """Gathers of this pass that have not been waited for when it begins."""
    awaited: tuple[int, ...]
    """Numbers of those for which it waits."""
    calls: tuple[tuple[SinkCall, ...], ...]
    """Calls in each hook before or after a module."""
    kind: int
    """Number of what is done in it, which is that of all layers in which the same is done."""


class _Recorder(CoordinatorSink):
    """A _Recorder keeps the calls of the coordinator, to make them to other sinks."""

    def __init__(self) -> None:
        self._calls: list[SinkCall] = []
        self._facts: list[Hashable] = []
        self.awaited: list[int] = []
        """Numbers of the gathers for which the layer waits that were made before it."""
        self._names: dict[int, int] = {}
        self._number = 0

    def begin(self, handles: Sequence[int]) -> None:
        """Begin a layer, with the gathers that have not been waited for."""
        self._names = {handle: number for number, handle in enumerate(handles)}
        self._number, self._facts, self.awaited = len(handles), [len(handles)], list[int]()

    def taken(self) -> tuple[SinkCall, ...]:
        """Return the calls since the last time."""
        calls, self._calls = self._calls, []
        self._facts.append(len(calls))
        return tuple(calls)

    def done(self, handles: Sequence[int]) -> Hashable:
        """Return what was done in a layer after which ``handles`` have not been waited for: equal for layers
        in which the same was done, of which the handles differ."""
        return (*self._facts, tuple(map(self._name, handles)))

    def _name(self, handle: int) -> int:
        """Return the number of a gather among those that were known when its layer began, and its own."""
        return self._names.setdefault(handle, len(self._names))

    def read(self, tensors: Sequence[Tensor], /) -> None:
        self._calls.append(methodcaller("read", tensors))
        self._facts.append(tuple(tensors))

    def wait_reads(self) -> None:
        self._calls.append(_WAIT_READS)
        self._facts.append("wait for reads")

    def gather(self, handle: int, tensors: Sequence[Tensor], /, *, prefetch: bool) -> None:
        self._calls.append(methodcaller("gather", handle, tensors, prefetch=prefetch))
        self._facts.append((self._name(handle), tuple(tensors), prefetch))

    def wait(self, handle: int, /) -> None:
        self._calls.append(methodcaller("wait", handle))
        self._facts.append(("wait", self._name(handle)))
        if self._name(handle) < self._number:
            self.awaited.append(self._name(handle))

    def throttle(self) -> None:
        self._calls.append(_THROTTLE)
        self._facts.append("throttle")

    def fetch_event(self) -> None:
        self._calls.append(_FETCH_EVENT)
        self._facts.append("event")

    def release(self, count: int, /) -> None:
        if count:
            self._calls.append(methodcaller("release", count))
            self._facts.append(("release", count))


_WAIT_READS, _THROTTLE, _FETCH_EVENT = map(methodcaller, ("wait_reads", "throttle", "fetch_event"))


class Decisions:
    """Decisions are all that the coordinator does in the passes through a stack: found once, and written for
    every machine, because no decision depends on time."""

    def __init__(self, stack: LayerStack, settings: OffloadSettings, ranks: int, *, warm: bool) -> None:
        """Replay forward; ``warm``: the trace is recorded."""
        self.stack = stack
        self._recorder, self._kinds = _Recorder(), dict[Hashable, int]()
        self._coordinator = stack.coordinator(settings, ranks, self._recorder, warm=warm)
        self._forward = dict(self._decided(backward=False))
        self.peak = self._coordinator.peak_on_gpu, self._coordinator.largest_gather
        """Largest sizes in forward [elements] of all that is gathered at a time, and in one call."""

    @cached_property
    def _backward(self) -> dict[int, Decided]:
        self._coordinator.restart()
        return dict(self._decided(backward=True))

    def of(self, *, backward: bool) -> Mapping[int, Decided]:
        """Return what is done in each layer of a pass, by its number: -1 before the layers; InputError where
        DeepSpeed would stop."""
        return self._backward if backward else self._forward

    def _decided(self, *, backward: bool) -> Iterator[tuple[int, Decided]]:
        trace, coordinator = self.stack.trace, self._coordinator
        passes = Passes(self.stack, coordinator)
        for visit, events in trace.pieces(backward=backward):
            inside = 0 <= visit < trace.layers
            state = passes.state(visit, backward=backward) if inside else None
            handles, calls = self._handles, []
            self._recorder.begin(handles)
            for event in events:
                if event.kind in _HOOKS:
                    hook(event, coordinator, self.stack.parameters)
                    calls.append(self._recorder.taken())
            done = self._recorder.done(self._handles)
            kind = self._kinds.setdefault(done, len(self._kinds))
            yield visit, Decided(state, handles, tuple(self._recorder.awaited), tuple(calls), kind)

    @property
    def _handles(self) -> tuple[int, ...]:
        return tuple([one for one in self._coordinator.handles() if one >= 0])

    def recur(self, skipped: SkippedLayers | None) -> bool:
        """Return whether the layers that forward leaves out repeat a period before them, as they must."""
        recurrence = Recurrence(skipped)
        for visit, one in self._forward.items():
            recurrence.begins(visit, partial(getattr, one, "state"), 0)
        return recurrence.found


_HOOKS = ("fetch", "release")


class LayerWalk:
    """A LayerWalk leads through more layers than a stack has.

    If a layer begins in the state in which an earlier one began, relative to each, the walk goes back to that
    one, as long as layers are left out.
    """

    def __init__(self, decided: Mapping[int, Decided] | None, skipped: SkippedLayers | None) -> None:
        """Begin before the first layer; ``decided`` is None where no coordinator distinguishes layers."""
        self._decided, self._skipped = decided, skipped
        self.left = skipped.layers * skipped.times if skipped is not None else 0
        """Number of layers that are still to be left out."""
        self.layer = -1
        """Number of the layer in the stack, in the order of the pass."""
        self._kept: dict[State, int] = {}  # the first layer that began in a state

    def go_on(self) -> bool:
        """Note that a layer was done, or what is before all layers; return whether it went back."""
        self.layer += 1
        skipped = self._skipped
        if skipped is None or not self.left or not skipped.after <= self.layer < skipped.before:
            return False
        state = () if self._decided is None else self._decided[self.layer].state
        if state is None:
            return False
        back = self.layer - self._kept.setdefault(state, self.layer)
        if not 0 < back <= self.left:
            return False
        self.left -= back
        self.layer -= back
        return True


def _last_hooks(trace: Trace) -> Iterator[int]:
    """Yield, for forward and backward, the number of fetches before the first event after the layers."""
    fetches = 0
    for backward in (False, True):
        for visit, events in trace.pieces(backward=backward):
            if visit == trace.layers:
                yield fetches
            fetches += [event.kind for event in events].count("fetch")


# -- as few layers as possible ----------------------------------------------------------------------


_EVERY_LAYER = Period(0, 1)


class _Coordinated(NamedTuple):
    """The coordinator's periods in forward and backward, and the number of layers that it looks ahead."""

    forward: Period
    backward: Period
    ahead: int


@dataclass
class Replays:
    """Replays are all that was found by replaying a model. They depend on its trace and the tiers of its
    tensors only, so that layered models that differ in something else may share them."""

    model: ModelShape
    """Model of which some or all layers are replayed."""
    stacks: dict[int, LayerStack] = field(default_factory=dict)
    """Stacks by number of layers: the search for a period and the writing use the same few."""
    periods: dict[bool, _Coordinated | None] = field(default_factory=dict)
    """Periods of the coordinator by ``warm``."""
    decisions: dict[tuple[int, bool], Decisions] = field(default_factory=dict)
    """Decisions by trace and ``warm``; the stack of each keeps its trace."""


class LayeredModel(ABC):
    """A LayeredModel gives the trace and tensors of a model with some or all of its identical layers."""

    model: ModelShape
    packed: ClassVar[bool] = False
    """Whether the packed values of a quantized weight alone are a partitioned tensor."""

    @cached_property
    def replays(self) -> Replays:
        """What was found by replaying it."""
        return Replays(self.model)

    @property
    @abstractmethod
    def fetching(self) -> OffloadSettings | None:
        """Settings with which partitioned parameters are fetched; None if parameters are not partitioned."""

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Number of GPUs among which the parameters are partitioned."""

    @property
    @abstractmethod
    def homogeneous(self) -> bool:
        """Whether the tensors of all layers are on the same tiers, so that the layers are interchangeable."""

    @abstractmethod
    def trace_of(self, count: int) -> Trace:
        """Return the order of hooks in the passes through a model with ``count`` of the layers."""

    @abstractmethod
    def of_layers(self, count: int) -> tuple[Tensor, ...]:
        """Return the partitioned tensors, with their tiers, of a model with ``count`` identical layers."""

    @property
    def count(self) -> int:
        """Number of layers of the complete model."""
        return self.model.num_hidden_layers

    @property
    def full(self) -> LayerStack:
        """Stack of all layers of the model."""
        return self.stack(self.count)

    def stack(self, count: int) -> LayerStack:
        """Return the stack of a model with ``count`` layers."""
        known = self.replays.stacks
        if count not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[count] = self._cut(count)
        return known[count]

    def decisions(self, stack: LayerStack, *, warm: bool = True) -> Decisions:
        """Return what the coordinator does in the passes through a stack of partitioned parameters."""
        assert self.fetching is not None
        key, known = (id(stack.trace), warm), self.replays.decisions
        if key not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = Decisions(stack, self.fetching, self.ranks, warm=warm)
        return known[key]

    def _cut(self, count: int) -> LayerStack:
        trace = self.trace_of(count)
        parameters = Parameters.of(trace, self.of_layers(count), packed=self.packed)
        if not self.homogeneous:
            return LayerStack(trace, parameters)
        pieces = dict(trace.pieces(backward=False))
        first, end = (
            max((1 + i for one in pieces[visit] for i in parameters.owned[one.instance]), default=0)
            for visit in (-1, 0)
        )
        behind = len(trace.forward) - len(pieces[count])
        hooks = sum(event.kind == "fetch" for event in trace.forward[:behind])
        layers = Layers(
            first_tensor=first,
            tensors=parameters.tensors[first:end],
            walked=count,
            left_out=self.count - count,
            last_hook=-1 if trace.backward else hooks - 1,
        )
        return LayerStack(trace, parameters, layers)

    @property
    def layers(self) -> Layers:
        """Positions of the layers' tensors in a stack of one layer."""
        layers = self.stack(1).layers
        assert layers is not None
        return layers

    # -- periods --------------------------------------------------------------------------------

    def _periods(self, *, warm: bool) -> _Coordinated | None:
        if self.fetching is None:
            return _Coordinated(_EVERY_LAYER, _EVERY_LAYER, 0)
        known = self.replays.periods
        if warm not in known:
            searched = (self._search(guess, warm=warm) for guess in _GUESSES if guess < self.count)
            known[warm] = next((found for found in searched if found is not None), None)
        return known[warm]

    def _search(self, guess: int, *, warm: bool) -> _Coordinated | None:
        stack = self.stack(guess)
        assert self.fetching is not None
        coordinator = stack.coordinator(self.fetching, self.ranks, CoordinatorSink(), warm=warm)
        passes = Passes(stack, coordinator)
        periods: list[Period] = []
        ahead = 0
        try:
            for backward in (False, True) if stack.trace.backward else (False,):
                happen = partial(hook, coordinator=coordinator, parameters=stack.parameters)
                states = passes.states(happen, backward=backward)
                period = period_of(states)
                if period is None:
                    return None
                periods.append(period)
                ahead = max(ahead, -(-coordinator.ahead // len(self.layers.tensors)))
                if not backward and stack.trace.backward:
                    deque(states, maxlen=0)  # to the end of forward
        except InputError:
            return None  # the replay of the whole model reports where DeepSpeed would stop
        return _Coordinated(periods[0], periods[-1], ahead)

    # -- what is left out -----------------------------------------------------------------------

    def stacks(self, gradients: Period | None = None, *, warm: bool = True) -> Iterator[LayerStack]:
        """Yield the shortest stack that can represent the model, if any, then that of all layers."""
        short = self.shortest(gradients, warm=warm)
        if short is not None:
            yield short
        yield self.full

    def shortest(self, gradients: Period | None = None, *, warm: bool = True) -> LayerStack | None:
        """Return the shortest stack that can represent the complete model; None if no shorter one can.

        ``gradients`` is the period of gradients in buckets and swap buffers; None if only forward is written.
        """
        found = self._periods(warm=warm) if self.homogeneous else None
        if found is None:
            return None
        forward, backward, ahead = found
        start, kept, period_lcm = forward.first, 0, forward.layers
        needed = start + 2 * period_lcm + max(period_lcm, ahead)
        if self.stack(1).trace.backward:
            start = max(2, start)  # the checkpoints of the first two layers are handled differently
            kept = self._reused
            needed = start + period_lcm + _SETTLING + ahead + kept
        if gradients is not None:
            period = lcm(backward.layers, gradients.layers)
            period_lcm = lcm(period_lcm, period)
            start_back = max(2, kept, backward.first, gradients.first)
            needed = max(needed, start_back + period + _SETTLING + ahead)
        walked = needed + (self.count - needed) % period_lcm
        if walked >= self.count:
            return None
        left = self.count - walked
        short = self.stack(walked)._replace(
            forward=SkippedLayers(forward.layers, start, walked - kept, left // forward.layers)
        )
        if gradients is None:
            return short
        return short._replace(backward=SkippedLayers(period, start_back, walked, left // period))

    @property
    def _reused(self) -> int:
        """Number of forward's last layers that backward may find gathered (reuse distance)."""
        distance = self.fetching.stage3_max_reuse_distance if self.fetching is not None else 0
        each = sum(tensor.numel for tensor in self.layers.tensors)
        return -(-distance // max(1, each)) + 1 if distance else 0
