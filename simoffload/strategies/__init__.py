"""Strategies of offloading: each turns a model, a workload and a machine into memory needs and schedules.

A strategy's module is imported when a document names its kind (``registry``).
"""

from simoffload.strategies.base import (
    SERVED,
    Earlier,
    Phase,
    PhaseSeries,
    Plan,
    Strategy,
)
from simoffload.strategies.registry import AnyStrategy, register, strategies, strategy_for, strategy_of
from simoffload.strategies.tunables import (
    RESIDENT,
    WHOLE_COPIES,
    Placement,
    Purpose,
    TierChoice,
    Tunable,
    changes_of,
    memory_tunables,
    moving,
    placements_of,
    tier_paths,
    tunables_of,
)

__all__ = [
    "RESIDENT",
    "SERVED",
    "WHOLE_COPIES",
    "AnyStrategy",
    "Earlier",
    "Phase",
    "PhaseSeries",
    "Placement",
    "Plan",
    "Purpose",
    "Strategy",
    "TierChoice",
    "Tunable",
    "changes_of",
    "memory_tunables",
    "moving",
    "placements_of",
    "register",
    "strategies",
    "strategy_for",
    "strategy_of",
    "tier_paths",
    "tunables_of",
]
