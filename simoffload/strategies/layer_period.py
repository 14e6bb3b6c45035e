"""Replay of a model with identical layers: only as many layers are replayed as the result depends on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import cached_property, partial
from math import lcm
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.models import ModelShape
from simoffload.strategies.coordinator import CoordinatorSink, Layers, Tensor
from simoffload.strategies.ds_config import OffloadSettings
from simoffload.strategies.passes.period import Period, SkippedLayers, period_of
from simoffload.strategies.replay import LayerStack, Parameters, Passes, hook
from simoffload.strategies.trace import Trace

_GUESSES = (12, 48, 192)
"""Numbers of layers of the shorter models in which a period of the coordinator's state is searched."""
_SETTLING = 6
"""Layers of a micro-step until the written operations repeat with the period of the coordinator.

This is our choice and is checked each time. A forward pass of inference gets two periods.
"""
_REMEMBERED = 8
"""Number of cached stacks of different depth."""


_EVERY_LAYER = Period(0, 1)


class _Coordinated(NamedTuple):
    """The coordinator's periods in forward and backward, and the number of layers that it looks ahead."""

    forward: Period
    backward: Period
    ahead: int


class LayeredModel(ABC):
    """A LayeredModel gives the trace and the tensors of a model with all or only some of its identical
    layers."""

    model: ModelShape

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

    @cached_property
    def _known(self) -> dict[int, LayerStack]:
        """Cache of stacks by number of layers, because the search for a period and the writing use the same
        few."""
        return {}

    def stack(self, count: int) -> LayerStack:
        """Return the stack of a model with ``count`` layers."""
        if count not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[count] = self._cut(count)
        return self._known[count]

    def _cut(self, count: int) -> LayerStack:
        trace = self.trace_of(count)
        parameters = Parameters.of(trace, self.of_layers(count))
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
            return None  # the replay of the whole model reports where DeepSpeed would stop
        return _Coordinated(periods[0], periods[-1], ahead)

    # -- what is left out -----------------------------------------------------------------------

    def stacks(self, *, warm: bool = True) -> Iterator[LayerStack]:
        """Yield the shortest stack that can represent the model, if there is one, then the stack of all
        layers."""
        short = self.shortest(warm=warm)
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
        """Number of layers at the end of forward whose parameters backward may find gathered (reuse
        distance)."""
        distance = self.fetching.max_reuse_distance if self.fetching is not None else 0
        each = sum(tensor.numel for tensor in self.layers.tensors)
        return -(-distance // max(1, each)) + 1 if distance else 0
