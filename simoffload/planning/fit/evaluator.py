"""What edits of a scenario need: the one way in which planning asks what fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware.changes import spelled
from simoffload.planning.fit.search import largest_that_fits, smallest_that_fits
from simoffload.results.capacity import TierUse
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies import Plan, Strategy
from simoffload.workload import Workload

__all__ = ["Evaluator"]

Counted = Callable[[int], tuple[Edit, ...]]
"""Edits that make so many of something."""


@dataclass
class Effort:
    """What was done for a scenario and all that come of it."""

    tried: dict[str, None] = field(default_factory=dict)
    """Changes in words, in the order of the first time."""
    barred: dict[str, None] = field(default_factory=dict)
    """Sentences about what would help and cannot be."""
    planned: int = 0
    """Runs of which the needs were counted."""


class Evaluator:
    """A scenario and itself with edits, of each what it needs, counted once, and the effort that it took."""

    def __init__(self, scenario: LoadedScenario, effort: Effort | None = None) -> None:
        self.scenario = scenario
        self.effort = Effort() if effort is None else effort
        self._known: dict[str, tuple[TierUse, ...] | str] = {}

    @property
    def strategy(self) -> Strategy:
        """That of the scenario as it is."""
        return self.scenario.scenario.strategy

    @property
    def workload(self) -> Workload:
        """The same of its work."""
        return self.scenario.scenario.workload

    @cached_property
    def plan(self) -> Plan:
        """That of the scenario as it is."""
        return self.scenario.plan()

    def changed_by(self, *edits: Edit) -> Evaluator:
        """The scenario so changed, to be changed further. Raises InputError."""
        return Evaluator(self.scenario.edited(*edits), self.effort)

    def needs(self, *edits: Edit) -> tuple[TierUse, ...] | None:
        """What each tier must hold with these changes; None if they are refused."""
        known = self._counted(*edits)
        return None if isinstance(known, str) else known

    def refusal(self, *edits: Edit) -> str:
        """Why these changes are refused; empty if they are not."""
        known = self._counted(*edits)
        return known if isinstance(known, str) else ""

    def _counted(self, *edits: Edit) -> tuple[TierUse, ...] | str:
        key = repr(edits)
        if key not in self._known:
            try:
                self._known[key] = memory_footprint(self.scenario.edited(*edits))
                self.effort.planned += 1
            except InputError as error:
                self._known[key] = error.problems[0].message
        return self._known[key]

    def shortage(self, *edits: Edit) -> float:
        """What the tier lacks that lacks most with these changes, over what it has; infinity if they are
        refused, 0 or less if all fit."""
        uses = self.needs(*edits)
        return math.inf if uses is None else max(-use.headroom / use.capacity for use in uses)

    def largest(self, edits: Counted, *, start: int, most: int) -> int | None:
        """The largest count up to ``most`` that fits; see ``largest_that_fits``."""
        return largest_that_fits(lambda count: self.shortage(*edits(count)), start=start, most=most)

    def smallest(self, edits: Counted, *, start: int, most: int) -> int | None:
        """The smallest count from ``start`` on that fits; see ``smallest_that_fits``."""
        return smallest_that_fits(lambda count: self.shortage(*edits(count)), start=start, most=most)

    def trying(self, *description: str) -> None:
        """Note what is tried."""
        self.effort.tried |= dict.fromkeys(description)

    def bar(self, sentence: str) -> None:
        """Note what would help, and why it cannot be."""
        self.effort.barred |= {sentence: None}

    # -- edits ----------------------------------------------------------------------------------

    def named(self, profile: str) -> str:
        """A profile ``kind/id`` as the scenario names it in its section ``profiles``."""
        return spelled(self.scenario.document.data.get("profiles") or {}, profile)

    def model(self, key: str, value: Any) -> Edit:
        """The model with another value of one of its keys."""
        model = self.scenario.document.data["model"]
        if isinstance(model, str):  # a name alone has no keys
            return Edit(("model",), {"name": model, key: value})
        return Edit(("model", key), value)

    def batch(self, count: int) -> tuple[Edit, ...]:
        """So many sequences at a time."""
        return (Edit.at("workload.batch_size", count), *self.strategy.release_fixed_batch("batch_size"))

    def spread(self, nodes: int, *, per_node: int) -> tuple[Edit, ...]:
        """Over so many hosts, with so many GPUs used on each."""
        return (Edit(("nodes",), nodes), *self.strategy.spread(nodes * per_node))
