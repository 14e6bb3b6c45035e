"""Questions that take more than one simulation."""

from __future__ import annotations

from simoffload.planning.compare import Comparison, compare, compare_fit, compare_scenarios, on_targets
from simoffload.planning.fit import largest, machines_needed, smallest_changes

__all__ = [
    "Comparison",
    "compare",
    "compare_fit",
    "compare_scenarios",
    "largest",
    "machines_needed",
    "on_targets",
    "smallest_changes",
]
