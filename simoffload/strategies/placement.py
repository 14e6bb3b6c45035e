"""Where a strategy keeps what it offloads, and how it says that it cannot be elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.errors import PlacementError

__all__ = ["Placement", "refused"]


class Placement(NamedTuple):
    """Tiers of a machine."""

    weights: str
    """Of the weights, or of a scenario of checkpoints alone what takes them."""
    optimizer: str | None = None
    """Of the optimizer; None = nothing was said of it."""

    def __str__(self) -> str:
        return self.weights if self.optimizer is None else f"{self.weights}+{self.optimizer}"


def refused(placement: Placement | str, kind: str, why: str) -> PlacementError:
    """The error of a strategy that has no meaning there."""
    return PlacementError.at("strategy.kind", f'{kind} cannot be on "{placement}": {why}')
