"""Who answers what takes more than a simulation: a result is handed one, and asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from simoffload.results.capacity import Remedies

if TYPE_CHECKING:
    # Named for type checkers alone: these are above this layer, which imports none of them.
    from simoffload.planning.advise.evaluate import Advice
    from simoffload.planning.confidence import Confidence
    from simoffload.planning.costs.economics import Economics
    from simoffload.planning.explanation import Explanation
    from simoffload.results.result import SimulationResult

__all__ = ["Planner"]


class Planner(Protocol):
    """Who works out what takes more than the simulation, once the result is asked for it."""

    def remedies(self, result: SimulationResult) -> Remedies:
        """The smallest changes that make it fit."""
        ...

    def costs(self, result: SimulationResult) -> Economics | None:
        """What it costs; None where only its memory was asked for."""
        ...

    def confidence(self, result: SimulationResult) -> Confidence:
        """How sure its times are."""
        ...

    def explanation(self, result: SimulationResult) -> Explanation | None:
        """What its time hangs on; None where that was not asked for."""
        ...

    def next_changes(self, result: SimulationResult) -> Advice | None:
        """What to change next; None where that was not asked for."""
        ...
