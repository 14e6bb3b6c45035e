"""Explanation of a result: what it depends on, and the storage that it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.brief import brief
from simoffload.errors import InputError, WorkLimitError
from simoffload.planning.bandwidth import StorageCurve, storage_curve
from simoffload.planning.caches import CacheSpeed, PrefixLoading, cache_speed, prefix_loading
from simoffload.planning.evaluator import Evaluator, EvaluatorSource, evaluator_of
from simoffload.planning.profile_parameters import (
    ProfileParameter,
    deciding_parameters,
    edit_of,
    profile_parameters,
    scaled,
)
from simoffload.progress import Watcher, stage, watched_by
from simoffload.results import SimulationResult, by_name

if TYPE_CHECKING:
    import pandas as pd

CHANGE = 0.1
"""Relative change of each number: our choice, small enough to be about this machine, large enough to exceed
what rounding does."""
_LITTLE = 1e-3
"""Relative change of the time: a number that changes it less in the worse direction is not tried in the
other; our choice."""
_PARTS: tuple[Callable[[ProfileParameter], str], ...] = (
    lambda number: number.profile,
    lambda number: number.key.rpartition(".")[0],
)
"""Functions that name the profile of a number, and its part of the profile."""
_FEW = 2
"""Count of numbers up to which each is tried alone: our choice."""
_TIME = re.compile(r" (s|ms|us|ns|min|h|d)$")
"""Units of numbers that are worse when they are larger."""


class SensitivityRow(NamedTuple):
    """A SensitivityRow holds one number of a profile, and the time with lower and higher values of it."""

    number: ProfileParameter
    low: float | None
    """[s], the result's ``compared_by`` with the number lower; None where it was not tried, or cannot be."""
    high: float | None
    """Time with the higher number [s], like ``low``."""
    elasticity: float
    """Relative change of the time per relative change of the number."""
    swing: float
    """Difference between both times relative to the unchanged time."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        number = by_name(self.number, "profile key value=text origin source")
        return number | by_name(self, "low_s=low high_s=high elasticity swing")


@dataclass(frozen=True)
class Sensitivity:
    """A Sensitivity lists the numbers that determine a result, the most important first."""

    __repr__ = brief

    result: SimulationResult
    """Result of the unchanged scenario."""
    change: float
    """Relative change of each number, in both directions."""
    rows: tuple[SensitivityRow, ...]
    """Numbers that change the time."""
    without_effect: int
    """Count of numbers that have no effect or cannot be changed."""
    left_out: int
    """Count of numbers not tried: unused ones, and those that only determine what fits."""
    untried: int = 0
    """Count of numbers that were not reached before a limit of the scenario."""
    stopped: str = ""
    """The limit that was reached; empty if all numbers were tried."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; times [s] are those of ``metric``."""
        return {
            **by_name(self.result, "unit metric=compared_by unit_s=compared_s"),
            **by_name(self, "change without_effect left_out rows"),
            **(by_name(self, "untried stopped") if self.stopped else {}),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a row per number: profile, key, value, origin, source, low_s, high_s, elasticity, swing."""
        import pandas as pd

        columns = ["profile", "key", "value", "origin", "source", "low_s", "high_s", "elasticity", "swing"]
        return pd.DataFrame([row.to_dict() for row in self.rows], columns=columns)


def sensitivity(
    scenario: EvaluatorSource,
    *,
    change: float = CHANGE,
    progress: Watcher | None = None,
) -> Sensitivity:
    """Simulate a scenario with each number of its profiles lower and higher by ``change``.

    Whole numbers change by one, shares go up to 1, of curves all rates change. A rate is lowered first, and
    a time raised: where that changes less than a thousandth, the other direction is not tried. Raises
    InputError where the scenario does not fit, and what ``simulate`` raises for it as it is; a limit that a
    changed one reaches ends the search.
    """
    evaluator = evaluator_of(scenario)
    machine = evaluator.scenario.machine
    result, time = evaluator.timed()
    numbers = deciding_parameters(machine, result)
    rows, reached, stopped = list[SensitivityRow](), 0, ""
    try:
        with watched_by(progress), stage(len(numbers)) as trials:
            for number in _with_effect(evaluator, numbers, change, time):
                trials.begun = reached = numbers.index(number)  # those left out before it have no effect
                trials.step(f"{number.profile} {number.key}")
                row = _row(number, change, time, evaluator)
                if row.swing:
                    rows.append(row)
        reached = len(numbers)
    except WorkLimitError as error:
        stopped = str(error)
    rows.sort(key=lambda row: (-row.swing, row.number))
    return Sensitivity(
        result,
        change,
        tuple(rows),
        without_effect=reached - len(rows),
        left_out=sum(1 for _ in profile_parameters(machine)) - len(numbers),
        untried=len(numbers) - reached,
        stopped=stopped,
    )


def _with_effect(
    evaluator: Evaluator,
    numbers: Iterable[ProfileParameter],
    change: float,
    time: float,
    parts: Sequence[Callable[[ProfileParameter], str]] = _PARTS,
) -> Iterator[ProfileParameter]:
    """Yield the numbers of a result that takes ``time`` [s], without those profiles, and parts of profiles,
    that change nothing when all their numbers change at once, each for the worse, or, where this is not
    known, in both directions.

    Each changes by a ratio of its own, because costs of other machines are multiplied by the ratio of two
    numbers, which is unchanged if both grow alike.
    """
    for _, part in groupby(numbers, parts[0]):
        group = tuple(part)
        if len(group) <= _FEW:
            yield from group
            continue
        undirected = any(_worse(one) is None for one in group)
        ends = (_together(evaluator, group, change, way) for way in ((-1, 1) if undirected else (-1,)))
        if any(end is None or end.time != time for end in ends):
            yield from group if len(parts) == 1 else _with_effect(evaluator, group, change, time, parts[1:])


def _together(
    evaluator: Evaluator, group: Sequence[ProfileParameter], change: float, way: int
) -> _RangeEnd | None:
    """Simulate with all numbers of a group changed, those without a worse direction in a given one."""
    amounts = (change * (1 + place / len(group)) for place in range(len(group)))
    pairs = zip(group, amounts, strict=True)
    return _end(evaluator, [(one, 1 + amount * (_worse(one) or way)) for one, amount in pairs])


def _worse(number: ProfileParameter) -> int | None:
    """Return the direction in which a number makes work slower: -1 for rates, 1 for times; None for shares
    and counts, of which it is not known."""
    if " " not in number.text:
        return None
    return 1 if _TIME.search(number.text) else -1


class _RangeEnd(NamedTuple):
    """The result of changing numbers in one direction."""

    time: float
    """Time with the changed numbers [s], ``SimulationResult.compared_by``."""
    ratio: float
    """Changed number divided by the original one, of the last number."""


def _end(evaluator: Evaluator, factors: Iterable[tuple[ProfileParameter, float]]) -> _RangeEnd | None:
    """Simulate with each number times its factor; None where they cannot be so."""
    edits, ratio = [], 1.0
    for number, factor in factors:
        found = scaled(number, factor)
        if found is not None:
            value, ratio = found
            edits.append(edit_of(number.profile, number.key, value))
    if not edits:
        return None
    try:
        _, result = evaluator.answer(*edits, scope="compared")
    except InputError:
        return None
    return _RangeEnd(result.compared_s, ratio) if result.compared_s is not None else None


def _row(number: ProfileParameter, change: float, time: float, evaluator: Evaluator) -> SensitivityRow:
    def end(factor: float) -> _RangeEnd | None:
        return _end(evaluator, [(number, factor)])

    down, up = 1 - change, 1 + change
    worse, better = (up, down) if _worse(number) == 1 else (down, up)
    ends = {worse: end(worse)}
    first = ends[worse]
    # Of a share or a count it is not known which direction is the worse one.
    if first is None or abs(first.time / time - 1) > _LITTLE or _worse(number) is None:
        ends[better] = end(better)
    low, high = ends.get(down), ends.get(up)
    below, above = low or _RangeEnd(time, 1.0), high or _RangeEnd(time, 1.0)
    times = (time, below.time, above.time)
    return SensitivityRow(
        number,
        low.time if low else None,
        high.time if high else None,
        log(above.time / below.time) / log(above.ratio / below.ratio) if above.ratio != below.ratio else 0.0,
        (max(times) - min(times)) / time,
    )


@dataclass(frozen=True)
class Explanation:
    """An Explanation holds all of a result's explanations that require further simulations."""

    __repr__ = brief

    sensitivity: Sensitivity
    storage: StorageCurve | None
    """Throughput by storage bandwidth; None if no storage is used."""
    prefix: PrefixLoading | None = None
    """Loading of prefixes into the key-value cache; None if none is loaded."""
    cache: CacheSpeed | None = None
    """How fast the tier of the key-value cache is; None in HBM, and where ``prefix`` says it."""
    stopped: str = ""
    """The limit for which all but the sensitivity is left out; empty if none was reached."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        more = [name for name in ("prefix", "cache", "stopped") if getattr(self, name)]
        return by_name(self, " ".join(("sensitivity storage", *more)))


def explain(scenario: EvaluatorSource) -> Explanation:
    """Explain the result of a scenario. Raises InputError where it does not fit."""
    evaluator = evaluator_of(scenario)
    found = sensitivity(evaluator)
    try:
        storage = storage_curve(evaluator)
        prefix = prefix_loading(evaluator)
        cache = None if prefix else cache_speed(evaluator)
    except WorkLimitError as error:
        return Explanation(found, None, stopped=str(error))
    return Explanation(found, storage, prefix, cache)
