"""Walking through a model of many layers that are alike without walking through all of them.

A coordinator's walk is decided by its state and by what lies ahead in its queue. If, when a layer begins,
the state is the same as when an earlier one began, told relative to each, and nothing behind the layers
has mattered until then, what lies between them comes again and again until a look ahead would reach the
end of the layers. So a model of fewer layers, left out in whole periods, is walked through in their place:
with as many layers as it takes to find the period, to look ahead, and to come to the end.

A micro-step of training passes through the layers twice, the second time in reverse, and its gradients fill
buckets that take several layers to come round (``Passes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from simoffload.errors import InputError
from simoffload.strategies.coordinator import Coordinator, Layers

if TYPE_CHECKING:
    from simoffload.strategies.training.trace import Event, MicroStep

__all__ = ["Passes", "Period", "ShorterModel", "Skip", "State", "find_period", "reused"]

State = tuple[object, ...]

_FIRST_GUESS = 12
"""Layers of the first model that is tried, and"""
_MOST = 200
"""of the last one."""


class ShorterModel(NamedTuple):
    """How many layers to walk through, and which of them stand for the others."""

    walked: int
    """Layers to walk through."""
    layers: int
    """Of one period."""


def find_period(layers: int, coordinator: Callable[[int], Coordinator]) -> ShorterModel | None:
    """The shortest model that stands for one of ``layers`` layers; None if there is none that is shorter.

    ``coordinator`` makes one for a model of as many layers, to be walked through without consequences.
    """
    guess = _FIRST_GUESS
    while guess < min(layers, _MOST):
        try:
            found = _search(coordinator(guess), guess)
        except InputError:
            return None  # where DeepSpeed would stop, the walk through the whole model says so
        if found is not None:
            first, period, reach = found
            # One period more: what is written down may need one to be in its steady state, too.
            walked = max(first + 3 * period, reach + period)
            walked += (layers - walked) % period
            return ShorterModel(walked, period) if walked < layers else None
        guess *= 4
    return None


def _search(walk: Coordinator, layers: int) -> tuple[int, int, int] | None:
    """Layer at which a state is met for the first time that comes again, after how many layers, and how many
    layers have mattered until then."""
    met: dict[tuple[object, ...], int] = {}
    for layer in range(layers):
        walk.go_to_layer(layer)
        if walk.reach > layers:
            return None
        state = walk.state(layer)
        if state in met:
            return met[state], layer - met[state], walk.reach
        met[state] = layer
    return None


class Period(NamedTuple):
    """A state that comes again: at which layer of a pass first, and after how many."""

    first: int
    layers: int


class Skip(NamedTuple):
    """What is left out of a pass: ``times`` periods of ``layers``, as one that lies between layers ``after``
    and ``before``."""

    layers: int
    after: int
    before: int
    times: int


def reused(layers: Layers, distance: int) -> int:
    """Layers at the end of forward that backward may find still gathered, within the reuse ``distance``."""
    return -(-distance // max(1, sum(tensor.numel for tensor in layers.tensors))) + 1 if distance else 0


class Passes:
    """Both passes of a micro-step through layers that are alike."""

    def __init__(self, trace: MicroStep, layers: Layers | None, coordinator: Coordinator | None) -> None:
        self._trace = trace
        self._layers = layers
        self._coordinator = coordinator
        self._ends = tuple(_last_steps(trace))

    def state(self, visit: int, *, backward: bool) -> State | None:
        """The coordinator's, told relative to the ``visit``-th layer of a pass, which is about to begin; None
        once what lies behind the layers has mattered."""
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

    def go(
        self,
        happen: Callable[[Event], None],
        *,
        backward: bool,
        skip: Skip | None = None,
        more: Callable[[], State] = lambda: (),
        position: Callable[[], int] = lambda: 0,
        repeat: Callable[[int, int], None] = lambda _first, _times: None,
    ) -> bool:
        """Go through a pass; whether what ``skip`` leaves out is as what lies before it.

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


def _last_steps(trace: MicroStep) -> Iterator[int]:
    """Hooks before what follows the layers, in forward and in backward."""
    fetches = 0
    for backward in (False, True):
        for visit, events in trace.pieces(backward=backward):
            if visit == trace.layers:
                yield fetches
            fetches += sum(event.kind == "fetch" for event in events)
