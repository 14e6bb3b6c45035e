"""Walking through a model of many layers that are alike without walking through all of them.

A coordinator's walk is decided by its state and by what lies ahead in its queue. If, when a layer begins,
the state is the same as when an earlier one began, told relative to each, and nothing behind the layers
has mattered until then, what lies between them comes again and again until a look ahead would reach the
end of the layers. So a model of fewer layers, left out in whole periods, is walked through in their place:
with as many layers as it takes to find the period, to look ahead, and to come to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.strategies.coordinator import Coordinator

__all__ = ["Period", "find_period"]

_FIRST_GUESS = 12
"""Layers of the first model that is tried, and"""
_MOST = 200
"""of the last one."""


class Period(NamedTuple):
    """How many layers to walk through, and which of them stand for the others."""

    walked: int
    """Layers to walk through."""
    layers: int
    """Of one period."""


def find_period(layers: int, coordinator: Callable[[int], Coordinator]) -> Period | None:
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
            return Period(walked, period) if walked < layers else None
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
