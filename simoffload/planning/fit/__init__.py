"""Does it fit, what would make it fit, how many machines, how large: all by trying, nothing is simulated."""

from __future__ import annotations

from simoffload.planning.fit.changes import smallest_changes
from simoffload.planning.fit.largest import Largest, Limit, largest
from simoffload.planning.fit.machines import MachineCount, MachinesNeeded, machines_needed

__all__ = [
    "Largest",
    "Limit",
    "MachineCount",
    "MachinesNeeded",
    "largest",
    "machines_needed",
    "smallest_changes",
]
