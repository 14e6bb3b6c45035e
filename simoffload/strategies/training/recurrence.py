"""Where the states of a micro-step come again from layer to layer, so that layers can be left out.

As in inference (``strategies/short_walk``), but for two passes through the layers, the second in reverse, and
for gradients, which fill buckets that take several layers to come round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from simoffload.strategies.coordinator import Coordinator, Layers
from simoffload.strategies.training.trace import Event, MicroStep

__all__ = ["Passes", "Period", "Skip", "reused"]

State = tuple[object, ...]


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
