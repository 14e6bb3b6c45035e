"""Which of several answers costs least for its work, and at which prices that turns round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from simoffload.planning.confidence import margin
from simoffload.planning.costs.economics import Economics
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["FIRST", "SECOND", "BreakEven", "CostVerdict", "Costed", "break_even_points", "verdicts"]

FIRST, SECOND = "all that the first buys", "all that the second buys"


class BreakEven(NamedTuple):
    """A price at which two answers come to the same."""

    what: str
    """The price that is varied, all others fixed: "accelerator/l40s", "memory per GB"."""
    now: float
    at: float
    """Where both cost the same."""
    first_cheaper_above: bool
    """Whether the first answer is the cheaper one above it."""


class _Line(NamedTuple):
    """Cost of a unit of work as a function of one price: at zero, and for each unit of it."""

    fixed: float
    slope: float


def break_even_points(
    first: Economics, second: Economics, *, electricity: bool = True
) -> tuple[BreakEven, ...]:
    """For each price where one of two answers pays it more often per unit of work, where both cost the same.

    The cost of a token (or checkpoint) is (purchase / hours + worn drives + electricity per hour) x its
    time, a line in each price; without ``electricity`` it is hardware alone, as in returns on invested
    hardware. The whole purchase of either counts as a price, too (``FIRST``, ``SECOND``). Prices at which
    the lines do not meet at or above zero are left out. The nearest to today's price comes first.
    """
    found = []
    for what, now in _prices(first, second):
        mine, other = (
            _line(one, what == bought or what, now, electricity=electricity)
            for one, bought in ((first, FIRST), (second, SECOND))
        )
        if mine is None or other is None or mine.slope == other.slope:
            continue
        at = (other.fixed - mine.fixed) / (mine.slope - other.slope)
        if at >= 0:
            found.append(BreakEven(what, now, at, first_cheaper_above=mine.slope < other.slope))
    return tuple(sorted(found, key=lambda flip: abs(flip.at - flip.now) / (flip.now or 1.0)))


def _prices(first: Economics, second: Economics) -> list[tuple[str, float]]:
    """All prices of two answers, and the sums of each, by name."""
    single = {figure.what: figure.value for one in (first, second) for figure in one.bill.prices}
    sums = {FIRST: first.purchase or 0.0, SECOND: second.purchase or 0.0}
    return [*single.items(), *sums.items()]


def _line(one: Economics, what: str | Literal[True], now: float, *, electricity: bool) -> _Line | None:
    """``what`` is a price, or True for the whole purchase; None where nothing is known."""
    if one.energy is None or one.purchase is None:
        return None
    hours = one.energy.time_s / 3600 / one.units
    per_h = (one.metrics()["electricity_per_h"] or 0.0) if electricity else 0.0
    paid = 1.0 if what is True else one.bill.paid(what)
    again = sum(worn.paid_per_h for worn in one.replacements if worn.price == what)
    per_h += sum(worn.per_h for worn in one.replacements if worn.price != what)
    slope = paid / one.costs.hours + again
    return _Line(((one.purchase - paid * now) / one.costs.hours + per_h) * hours, slope * hours)


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
    break_even_points: tuple[BreakEven, ...]
    """Prices at which both cost the same, the nearest to today's first."""

    @property
    def tie(self) -> bool:
        """Whether both are too close to tell."""
        return self.ratio - 1 <= self.margin

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return (
            self._asdict()
            | {"tie": self.tie}
            | {"break_even_points": [flip._asdict() for flip in self.break_even_points]}
        )


def verdicts(found: Iterable[Costed]) -> tuple[CostVerdict, ...]:
    """A verdict for each kind of work of which at least two answers have a cost."""
    by_work: dict[tuple[Any, ...], list[Costed]] = {}
    for one in found:
        if one.per_unit is not None:
            by_work.setdefault(one.work, []).append(one)
    points = []
    for mine in by_work.values():
        if len(mine) < 2:
            continue
        first, second = sorted(mine, key=lambda one: one.per_unit or 0.0)[:2]
        ratio = (second.per_unit or 0.0) / (first.per_unit or 1.0)
        turns = break_even_points(first.economics, second.economics)
        error = margin(first.result, second.result)
        points.append(CostVerdict(first.label, second.label, ratio, error, turns))
    return tuple(points)
