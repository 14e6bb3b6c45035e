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
    TierChoice,
)
from simoffload.strategies.knobs import (
    RESIDENT,
    WHOLE_COPIES,
    Knob,
    Placement,
    Purpose,
    changes_of,
    knobs_of,
    memory_knobs,
    moving,
    placement_knob,
)
from simoffload.strategies.registry import AnyStrategy, register, strategies, strategy_for, strategy_of

__all__ = [
    "RESIDENT",
    "SERVED",
    "WHOLE_COPIES",
    "AnyStrategy",
    "Earlier",
    "Knob",
    "Phase",
    "PhaseSeries",
    "Placement",
    "Plan",
    "Purpose",
    "Strategy",
    "TierChoice",
    "changes_of",
    "knobs_of",
    "memory_knobs",
    "moving",
    "placement_knob",
    "register",
    "strategies",
    "strategy_for",
    "strategy_of",
]
