"""One scenario with changes to it, and what each of them needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware.changes import spelled
from simoffload.planning.evaluator import Evaluator
from simoffload.results.capacity import TierUse
from simoffload.scenario import LoadedScenario, Shelf
from simoffload.strategies import Plan

__all__ = ["Variants", "shortage_of"]


def shortage_of(uses: Iterable[TierUse]) -> float:
    """What the tier lacks that lacks most, over what it has; 0 or less if all fit."""
    return max(-use.headroom / use.capacity for use in uses)


@dataclass
class Effort:
    """What was done for a scenario and all that come of it."""

    tried: dict[str, None] = field(default_factory=dict)
    """Changes in words, in the order of the first time."""
    barred: dict[str, None] = field(default_factory=dict)
    """Sentences about what would help and cannot be."""
    planned: int = 0
    """Runs of which the needs were counted."""


class Variants(Evaluator):
    """A scenario and itself with edits, with the effort that it took so far."""

    def __init__(self, scenario: LoadedScenario, *, shelf: Shelf | None = None) -> None:
        super().__init__(scenario, shelf=shelf)
        self.effort = Effort()

    def named(self, profile: str) -> str:
        """A profile ``kind/id`` as the scenario names it in its section ``profiles``."""
        return spelled(self.scenario.document.data.get("profiles") or {}, profile)

    @cached_property
    def plan(self) -> Plan:
        """That of the scenario as it is."""
        return self.scenario.plan()

    def changed_by(self, *edits: Edit) -> Variants:
        """The scenario so changed, to be changed further. Raises InputError."""
        further = Variants(self.edited(*edits), shelf=self.shelf)
        further.effort = self.effort
        return further

    def needs(self, *edits: Edit) -> tuple[TierUse, ...] | None:
        """What each tier must hold with these changes; None if they are refused."""
        known, uses = self.knows(*edits), self.footprint(*edits)
        self.effort.planned += uses is not None and not known
        return uses

    def shortage(self, *edits: Edit) -> float:
        """What the worst tier lacks with these changes, over what it has; infinity if they are refused."""
        uses = self.needs(*edits)
        return math.inf if uses is None else shortage_of(uses)

    def refusal(self, *edits: Edit) -> str:
        """Why these changes are refused; empty if they are not."""
        try:
            self.capacity(*edits)
        except InputError as error:
            return error.problems[0].message
        return ""

    def trying(self, *words: str) -> None:
        """Note what is tried."""
        self.effort.tried |= dict.fromkeys(words)

    def bar(self, sentence: str) -> None:
        """Note what would help, and why it cannot be."""
        self.effort.barred |= {sentence: None}

    # -- edits ----------------------------------------------------------------------------------

    def model(self, key: str, value: Any) -> Edit:
        """The model with another value of one of its keys."""
        said = self.scenario.document.data["model"]
        if isinstance(said, str):  # a name alone has no keys
            return Edit(("model",), {"name": said, key: value})
        return Edit(("model", key), value)

    def spread(self, nodes: int, *, per_node: int) -> tuple[Edit, ...]:
        """Over so many hosts, with so many GPUs used on each."""
        return (Edit(("nodes",), nodes), *self.scenario.scenario.strategy.spread(nodes * per_node))
