"""The points of a sweep: the combinations that count, and which of them are the same scenario."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass

from simoffload.errors import InputError
from simoffload.planning.sweep.definition import Sweep
from simoffload.scenario import canonical

__all__ = ["Points", "find_points"]


@dataclass(frozen=True)
class Points:
    """Points by number, in the order of the grid; numbers count from 0."""

    combination: array[int]
    """Of each point, in the grid."""
    first: array[int]
    """For each point the first one with the same scenario, which is simulated for all of them."""
    sweep_hash: str
    """Of everything that the results depend on."""

    def __len__(self) -> int:
        return len(self.combination)

    @property
    def unique(self) -> list[int]:
        """The points that are simulated."""
        return [point for point, first in enumerate(self.first) if point == first]

    @property
    def duplicates(self) -> int:
        """How many points are the scenario of an earlier one."""
        return sum(point != first for point, first in enumerate(self.first))


def find_points(sweep: Sweep) -> Points:
    """Go through the grid. Raises InputError where the constraints leave nothing, or cannot be decided."""
    combination, first = array("q"), array("q")
    known: dict[bytes, int] = {}
    hashed = hashlib.sha256(canonical(sweep.description()).encode("utf-8", "surrogatepass"))
    for index in sweep.combinations():
        identity = bytes.fromhex(sweep.identity(index))
        point = len(combination)
        combination.append(index)
        first.append(known.setdefault(identity, point))
        hashed.update(identity)
    if not combination:
        text = f"none of {sweep.grid.size:,} combinations meets the constraints"
        raise InputError.at("sweep.constraints", text)
    return Points(combination, first, hashed.hexdigest())
