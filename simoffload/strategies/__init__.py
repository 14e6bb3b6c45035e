"""Strategies of offloading: each turns a model, a workload and a machine into memory needs and schedules.

A strategy's module is imported when a document names its kind (``registry``).
"""

from simoffload.strategies.base import (
    Earlier,
    Phase,
    PhaseSeries,
    Placement,
    Plan,
    Strategy,
    TierChoice,
)
from simoffload.strategies.registry import AnyStrategy, register, strategies, strategy_for, strategy_of
from simoffload.strategies.terms import SERVED, Split, Tunable

__all__ = [
    "SERVED",
    "AnyStrategy",
    "Earlier",
    "Phase",
    "PhaseSeries",
    "Placement",
    "Plan",
    "Split",
    "Strategy",
    "TierChoice",
    "Tunable",
    "register",
    "strategies",
    "strategy_for",
    "strategy_of",
]
