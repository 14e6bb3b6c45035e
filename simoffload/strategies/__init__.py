"""Strategies of offloading: each turns a model, a workload and a machine into memory needs and schedules.

A strategy's module is imported when a document names its kind (``registry``).
"""

from simoffload.strategies.base import (
    SERVED,
    SERVED_OTHERS,
    Earlier,
    Phase,
    PhaseSeries,
    Placement,
    Placements,
    Plan,
    ServingLimits,
    Strategy,
    Tunable,
)
from simoffload.strategies.registry import AnyStrategy, register, strategies, strategy_for, strategy_of

__all__ = [
    "SERVED",
    "SERVED_OTHERS",
    "AnyStrategy",
    "Earlier",
    "Phase",
    "PhaseSeries",
    "Placement",
    "Placements",
    "Plan",
    "ServingLimits",
    "Strategy",
    "Tunable",
    "register",
    "strategies",
    "strategy_for",
    "strategy_of",
]
