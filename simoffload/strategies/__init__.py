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
    canonical_kind,
    fields_of,
    in_new_form,
    kinds,
    register,
    strategies,
    strategy_for,
    strategy_in,
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
    "canonical_kind",
    "fields_of",
    "in_new_form",
    "kinds",
    "register",
    "strategies",
    "strategy_for",
    "strategy_in",
    "strategy_of",
    "suited_to",
    "usual_kind",
]
