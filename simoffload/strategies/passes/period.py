"""Layers that a pass leaves out, because they repeat a period of layers before them.

If a layer begins in the state in which an earlier one began, relative to each, and nothing has depended on
what follows the layers, all between the two repeats until something depends on it. A pass through a stack
with fewer layers, shorter by whole periods, then stands for one through all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple


class Period(NamedTuple):
    """A Period states in which layer a recurring state occurs first, and after how many layers it recurs."""

    first: int
    layers: int


def period_of(states: Iterable[Hashable]) -> Period | None:
    """Return the period of the first state that recurs; None if none does before a state is None."""
    met: dict[Hashable, int] = {}
    for layer, state in enumerate(states):
        if state is None:
            return None
        if state in met:
            return Period(met[state], layer - met[state])
        met[state] = layer
    return None


class SkippedLayers(NamedTuple):
    """SkippedLayers are the layers that a pass leaves out: ``times`` periods of ``layers`` layers, each
    identical to a period between the layers ``after`` and ``before``."""

    layers: int
    after: int
    before: int
    times: int


class Recurrence:
    """A Recurrence finds the period that the skipped layers of one pass repeat."""

    def __init__(self, skipped: SkippedLayers | None = None) -> None:
        self._skipped = skipped
        self._met: dict[int, tuple[Hashable, int]] = {}
        self.found = skipped is None
        """Whether all layers are there: a period recurs, as it must, or none is left out."""

    def begins(self, layer: int, state: Callable[[], Hashable], position: int) -> tuple[int, int] | None:
        """Return where the repeated period began and how often it is repeated, once, when ``layer`` begins
        in the state of the layer one period before it.

        ``position`` is the number of what was written so far. A state of None never recurs.
        """
        skipped = self._skipped
        if self.found or skipped is None or not skipped.after <= layer < skipped.before:
            return None
        now = state()
        if now is None:
            return None
        self._met[layer] = now, position
        before = self._met.get(layer - skipped.layers)
        if before is None or before[0] != now:
            return None
        self.found = True
        return before[1], skipped.times
