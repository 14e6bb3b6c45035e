"""Strategies of offloading: each turns a model, a workload and a machine into memory needs and schedules.

A strategy's module is imported when a document names its kind (``registry``).
"""

from simoffload.strategies.base import (
    BEST,
    ONE_GROUP,
    SERVED,
    SERVED_OTHERS,
    CacheGroups,
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
from simoffload.strategies.registry import (
    AnyStrategy,
    fields_of,
    kinds,
    register,
    strategies,
    strategy_for,
    strategy_of,
    suited_to,
    usual_kind,
)

__all__ = [
    "BEST",
    "ONE_GROUP",
    "SERVED",
    "SERVED_OTHERS",
    "AnyStrategy",
    "CacheGroups",
    "Earlier",
    "Phase",
    "PhaseSeries",
    "Placement",
    "Placements",
    "Plan",
    "ServingLimits",
    "Strategy",
    "Tunable",
    "fields_of",
    "kinds",
    "register",
    "strategies",
    "strategy_for",
    "strategy_of",
    "suited_to",
    "usual_kind",
]
