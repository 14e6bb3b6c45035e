"""Which of several answers costs least for its work, and what would turn that round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from simoffload.planning.confidence import margin
from simoffload.planning.costs.economics import Economics
from simoffload.planning.costs.flips import Flip, flips
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["CostVerdict", "Costed", "verdicts"]


class Costed(NamedTuple):
    """A result among others, with what it costs."""

    label: str
    result: SimulationResult
    economics: Economics

    @property
    def work(self) -> tuple[Any, ...]:
        """What results must have in common to be compared by cost: kind, model, lengths of sequences."""
        result = self.result
        lengths: tuple[int, ...] = ()
        if isinstance(result, InferenceResult):
            lengths = result.prompt_length, result.output_length
        if isinstance(result, TrainingResult):
            lengths = (result.sequence_length,)
        return type(result), result.model, *lengths

    @property
    def per_unit(self) -> float | None:
        """Cost of a token or a checkpoint, in the list's currency; None where anything has no price."""
        run = self.economics.metrics()["cost_per_run"]
        return None if run is None or self.economics.bill.missing else run / self.economics.units


class CostVerdict(NamedTuple):
    """The answer that costs least for its work, beside the next."""

    cheapest: str
    next: str
    ratio: float
    """Cost of the next over that of the cheapest."""
    margin: float
    """By how much costs must differ to tell which is lower: the errors of both times, not of prices."""
    flips: tuple[Flip, ...]
    """Prices at which both cost the same, the nearest to today's first."""

    @property
    def tie(self) -> bool:
        """Whether both are too close to tell."""
        return self.ratio - 1 <= self.margin

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return self._asdict() | {"tie": self.tie} | {"flips": [flip._asdict() for flip in self.flips]}


def _alike(found: Iterable[Costed]) -> list[list[Costed]]:
    """Results of the same work together: others cost what cannot be compared."""
    by_work: dict[tuple[Any, ...], list[Costed]] = {}
    for one in found:
        by_work.setdefault(one.work, []).append(one)
    return list(by_work.values())


def verdicts(found: Iterable[Costed]) -> tuple[CostVerdict, ...]:
    """A verdict for each kind of work of which at least two answers have a cost."""
    told = []
    for mine in _alike(found):
        priced = sorted(
            (one for one in mine if one.per_unit is not None), key=lambda one: one.per_unit or 0.0
        )
        if len(priced) < 2:
            continue
        first, second = priced[:2]
        ratio = (second.per_unit or 0.0) / (first.per_unit or 1.0)
        turns = flips(first.economics, second.economics)
        error = margin(first.result, second.result)
        told.append(CostVerdict(first.label, second.label, ratio, error, turns))
    return tuple(told)
