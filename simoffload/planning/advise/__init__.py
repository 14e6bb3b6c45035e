"""Advice: single changes ranked by their gain."""

from __future__ import annotations

from simoffload.planning.advise.evaluate import (
    WORTH,
    Advice,
    EvaluatedChange,
    Objective,
    advise,
    objective_of,
)

__all__ = ["WORTH", "Advice", "EvaluatedChange", "Objective", "advise", "objective_of"]
