"""The tier of the weights in a placement of inference."""

from __future__ import annotations

from simoffload.hardware import Machine, Tier
from simoffload.strategies.base import Placement, refused


def weights_tier(placement: Placement, machine: Machine, kind: str) -> Tier:
    """Return the tier of the weights. Raises PlacementError if the placement names an optimizer, which
    inference under the strategy ``kind`` does not have."""
    if placement.optimizer is not None:
        raise refused(placement, kind, "inference has no optimizer; name the tier of the weights")
    return machine.tiers[placement.weights]
