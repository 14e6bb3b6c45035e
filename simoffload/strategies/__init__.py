"""Strategies of offloading: each turns a model, a workload and a machine into memory needs and schedules.

A strategy's module is imported when a document names its kind (``registry``).
"""

from simoffload.strategies.base import Plan, Strategy
from simoffload.strategies.registry import AnyStrategy, register, strategies, strategy_for, strategy_of

__all__ = ["AnyStrategy", "Plan", "Strategy", "register", "strategies", "strategy_for", "strategy_of"]
