"""In which range a result lies: the error of the model and the doubt about its inputs, carried to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot
from typing import Any, NamedTuple

from simoffload.planning.confidence import Confidence, confidence
from simoffload.planning.profile_parameters import ProfileParameter
from simoffload.planning.sensitivity import Sensitivity, SensitivityRow

__all__ = ["ASSUMED", "Uncertainty", "UncertaintyTerm", "uncertainty"]

ASSUMED = {"estimate": 0.30, "spec": 0.05, "measured": 0.03}
"""Relative uncertainty of a number by its origin, our choice; of a fit its residual, where that is larger."""


class UncertaintyTerm(NamedTuple):
    """What is not known for sure, and what that means for the result."""

    profile: str
    keys: tuple[str, ...]
    """Several where one estimate stands behind all of them."""
    origin: str
    contribution: float
    """Relative to the time: its elasticity times how uncertain it is."""


@dataclass(frozen=True)
class Uncertainty:
    """The range of a result, in the time by which results are compared."""

    unit: str
    metric: str
    """Name of that time: ``SimulationResult.compared_by``."""
    time: float
    """[s]"""
    confidence: Confidence
    """Error of the model, as real runs showed it."""
    doubts: tuple[UncertaintyTerm, ...]
    """Of the inputs, the largest first."""

    @property
    def of_inputs(self) -> float:
        """All doubts about inputs together, relative to the time."""
        return hypot(*(uncertainty_term.contribution for uncertainty_term in self.doubts))

    @property
    def relative(self) -> float:
        """Error of the model and doubts about inputs together, relative to the time."""
        return hypot(self.confidence.relative_error, self.of_inputs)

    @property
    def low(self) -> float:
        """[s]"""
        return self.time / (1 + self.relative)

    @property
    def high(self) -> float:
        """[s]"""
        return self.time * (1 + self.relative)

    @property
    def largest(self) -> tuple[UncertaintyTerm, ...]:
        """The three inputs that make most of it."""
        return self.doubts[:3]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "unit": self.unit,
            "metric": self.metric,
            "unit_s": self.time,
            "low_s": self.low,
            "high_s": self.high,
            "relative": self.relative,
            "of_model": self.confidence.relative_error,
            "of_inputs": self.of_inputs,
            "assumed": ASSUMED,
            "doubts": [uncertainty_term._asdict() for uncertainty_term in self.doubts],
        }


def uncertainty(found: Sensitivity) -> Uncertainty:
    """Carry the error of the model and the uncertainty of every input to the answer.

    Each input moves the time by its elasticity times its own uncertainty. All of them, and the error of the
    model, are taken to know nothing of each other, so that their squares add up; but what one profile has
    from one estimate is wrong together, and adds up as it is.

    Notes
    -----
    An elasticity is that of small changes: where an estimate is so wrong that something else comes to
    decide, the range is too wide on one side and too narrow on the other.
    """
    result = found.result
    assert result.compared_s is not None
    together: dict[tuple[str, str], list[SensitivityRow]] = {}
    alone = []
    for row in found.rows:
        if row.number.origin == "estimate":
            together.setdefault((row.number.profile, row.number.source), []).append(row)
        else:
            alone.append([row])
    doubts = sorted(
        map(_uncertainty_term, (*together.values(), *alone)),
        key=lambda uncertainty_term: -uncertainty_term.contribution,
    )
    return Uncertainty(result.unit, result.compared_by, result.compared_s, confidence(result), tuple(doubts))


def _uncertainty_term(rows: Iterable[SensitivityRow]) -> UncertaintyTerm:
    """One of several rows of one estimate, the largest first."""
    rows = sorted(rows, key=lambda row: -abs(row.elasticity))
    shift = sum(row.elasticity * _uncertain(row.number) for row in rows)
    first = rows[0].number
    return UncertaintyTerm(first.profile, tuple(row.number.key for row in rows), first.origin, abs(shift))


def _uncertain(number: ProfileParameter) -> float:
    """Relative uncertainty of a number; none of counts (lanes, NUMA nodes), which are right or wrong."""
    if number.text.isdecimal():
        return 0.0
    return max(ASSUMED[number.origin], number.residual or 0.0)
