"""Replay of a model with homogeneous layers with as few layers as represent all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from math import lcm
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.strategies.coordinator import CoordinatorSink, Layers, State, Tensor
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.replay import LayerStack, Parameters, Passes, SkippedLayers, hook
from simoffload.strategies.trace import Trace

_GUESSES = (12, 48, 192)
"""Numbers of layers of the models in which a period of the coordinator is searched."""
_SETTLING = 6
"""Layers of a micro-step until what is written down repeats as the coordinator does (our choice, checked
each time). A forward pass of inference gets two periods."""
_REMEMBERED = 8
"""Number of cached stacks of different depth."""


class Period(NamedTuple):
    """A Period is a repeated state: the layer of its first occurrence, and the layers until the next."""

    first: int
    layers: int


_EVERY_LAYER = Period(0, 1)


def period_of(states: Iterable[State | None]) -> Period | None:
    """Find the first of ``states`` that was met before; None if none is, or once there is no state."""
    met: dict[State, int] = {}
    for layer, state in enumerate(states):
        if state is None:
            return None
        if state in met:
            return Period(met[state], layer - met[state])
        met[state] = layer
    return None


class _Coordinated(NamedTuple):
    """The coordinator's periods in forward and backward, and how many layers it looks ahead."""

    forward: Period
    backward: Period
    ahead: int


class LayeredModel(ABC):
    """A LayeredModel is a model's trace and tensors, with all its layers or only some."""

    model: ModelShape

    @property
    @abstractmethod
    def fetching(self) -> OffloadSettings | None:
        """How partitioned parameters are fetched; None where parameters are not partitioned."""

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Return the number of GPUs among which the parameters are partitioned."""

    @property
    @abstractmethod
    def homogeneous(self) -> bool:
        """Whether all layers' tensors are in the same places, and equal tensors are not distinguished."""

    @abstractmethod
    def trace_of(self, count: int) -> Trace:
        """Lay out the passes through ``count`` of its layers."""

    @abstractmethod
    def of_layers(self, count: int) -> tuple[Tensor, ...]:
        """Cut and place all tensors of a model of ``count`` homogeneous layers."""

    @property
    def count(self) -> int:
        """Layers of the whole model."""
        return self.model.num_hidden_layers

    @property
    def full(self) -> LayerStack:
        """Stack that contains all layers."""
        return self.stack(self.count)

    @cached_property
    def _known(self) -> dict[int, LayerStack]:
        """Stacks by their number of layers: finding a period and writing ask for the same few."""
        return {}

    def stack(self, count: int) -> LayerStack:
        """Return the stack of ``count`` layers."""
        if count not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[count] = self._cut(count)
        return self._known[count]

    def _cut(self, count: int) -> LayerStack:
        trace = self.trace_of(count)
        parameters = Parameters.of(trace, self.of_layers(count))
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
        """Return the places of the layers' tensors in a stack of one layer."""
        layers = self.stack(1).layers
        assert layers is not None
        return layers

    # -- periods --------------------------------------------------------------------------------

    @cached_property
    def _coordinated(self) -> dict[bool, _Coordinated | None]:
        return {}

    def _periods(self, *, warm: bool) -> _Coordinated | None:
        if self.fetching is None:
            return _Coordinated(_EVERY_LAYER, _EVERY_LAYER, 0)
        if warm not in self._coordinated:
            searched = (self._search(guess, warm=warm) for guess in _GUESSES if guess < self.count)
            self._coordinated[warm] = next((found for found in searched if found is not None), None)
        return self._coordinated[warm]

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
            return None  # where DeepSpeed would stop, the walk through the whole model says so
        return _Coordinated(periods[0], periods[-1], ahead)

    # -- what is left out -----------------------------------------------------------------------

    def stacks(self, *, warm: bool = True) -> Iterator[LayerStack]:
        """Yield the shortest stack that may stand for the model, if one may, then that of all layers."""
        short = self.shortest(warm=warm)
        if short is not None:
            yield short
        yield self.full

    def shortest(self, gradients: Period | None = None, *, warm: bool = True) -> LayerStack | None:
        """Find the shortest stack that may stand for the whole model; None if no shorter one may.

        ``gradients`` is the period of their waiting, None where only forward matters.
        """
        found = self._periods(warm=warm) if self.homogeneous else None
        if found is None:
            return None
        forward, backward, ahead = found
        start, kept, period_lcm = forward.first, 0, forward.layers
        needed = start + 2 * period_lcm + max(period_lcm, ahead)
        if self.stack(1).trace.backward:
            start = max(2, start)  # the first two layers' checkpoints are apart
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
        """Return the number of last layers of forward that backward may find gathered (reuse distance)."""
        distance = self.fetching.max_reuse_distance if self.fetching is not None else 0
        each = sum(tensor.numel for tensor in self.layers.tensors)
        return -(-distance // max(1, each)) + 1 if distance else 0
