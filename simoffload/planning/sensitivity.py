"""What a result hangs on: each number of the profiles a little lower and a little higher, simulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.errors import InputError, Problem
from simoffload.planning.profile_parameters import (
    ProfileParameter,
    deciding_parameters,
    edit_of,
    profile_parameters,
    scaled,
)
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation import Progress, simulate

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CHANGE", "Sensitivity", "SensitivityRow", "sensitivity", "timed"]

CHANGE = 0.1
"""By which numbers are changed: our choice, small enough to say something of where the machine is, large
enough to be seen behind what only rounds."""
_LITTLE = 1e-3
"""Relative to the time: what changes it less in the worse direction is not tried in the other, our choice."""
_TIME = re.compile(r" (s|ms|us|ns|min|h|d)$")
"""What is worse when it is more."""


class SensitivityRow(NamedTuple):
    """One number and the result without and with more of it."""

    number: ProfileParameter
    low: float | None
    """[s], the result's ``compared_by`` with the number lower; None where it was not tried, or cannot be."""
    high: float | None
    """[s] the same with the number higher."""
    elasticity: float
    """Per cent by which the time changes for each per cent of the number."""
    swing: float
    """Difference between both times, relative to the time as it is."""


@dataclass(frozen=True)
class Sensitivity:
    """The numbers on which a result hangs, the largest first."""

    result: SimulationResult
    """As it is."""
    change: float
    """Relative, down and up."""
    rows: tuple[SensitivityRow, ...]
    """Numbers that change the time at all."""
    without_effect: int
    """Numbers that change nothing, or cannot change."""
    left_out: int
    """Numbers that were not tried: what the work does not use, and what only decides what fits."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, times [s] are those of ``metric``."""
        return {
            "unit": self.result.unit,
            "metric": self.result.compared_by,
            "unit_s": self.result.compared_s,
            "change": self.change,
            "without_effect": self.without_effect,
            "left_out": self.left_out,
            "rows": [_plain(row) for row in self.rows],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per number: profile, key, value, origin, source, low_s, high_s, elasticity, swing."""
        import pandas as pd

        columns = ["profile", "key", "value", "origin", "source", "low_s", "high_s", "elasticity", "swing"]
        return pd.DataFrame([_plain(row) for row in self.rows], columns=columns)


def _plain(row: SensitivityRow) -> dict[str, Any]:
    number = row.number
    return {
        "profile": number.profile,
        "key": number.key,
        "value": number.text,
        "origin": number.origin,
        "source": number.source,
        "low_s": row.low,
        "high_s": row.high,
        "elasticity": row.elasticity,
        "swing": row.swing,
    }


def sensitivity(
    scenario: LoadedScenario, *, change: float = CHANGE, progress: Progress | None = None
) -> Sensitivity:
    """Simulate a scenario with each number of its profiles lower and higher by ``change``.

    Whole numbers change by one, shares go up to 1, of curves all rates change. A rate is lowered first, and
    a time raised: where that changes less than a thousandth, the other direction is not tried. Raises
    InputError where the scenario does not fit, and what ``simulate`` raises.
    """
    result, time = timed(scenario)
    tried = deciding_parameters(scenario.machine, result)
    rows = []
    for count, number in enumerate(tried, 1):
        if progress:
            progress(f"sensitivity, {count} of {len(tried)}: {number.profile} {number.key}")
        row = _row(number, change, time, partial(_end, scenario, number))
        if row.swing:
            rows.append(row)
    rows.sort(key=lambda row: (-row.swing, row.number))
    total = sum(1 for _ in profile_parameters(scenario.machine))
    return Sensitivity(result, change, tuple(rows), len(tried) - len(rows), total - len(tried))


def timed(scenario: LoadedScenario) -> tuple[SimulationResult, float]:
    """The result of a scenario and its ``compared_s`` [s]; InputError if it does not fit."""
    result = simulate(scenario)
    if result.compared_s is None:
        text = f"there is no time to explain, as it does not fit: {'; '.join(result.advice)}"
        raise InputError((Problem(scenario.document.path, None, None, "", text),))
    return result, result.compared_s


class _RangeEnd(NamedTuple):
    """What comes of changing a number in one direction."""

    time: float
    """[s], ``SimulationResult.compared_by``."""
    ratio: float
    """The number over what it was."""


def _end(scenario: LoadedScenario, number: ProfileParameter, factor: float) -> _RangeEnd | None:
    """None where the number cannot be so."""
    found = scaled(number, factor)
    if found is None:
        return None
    value, ratio = found
    try:
        result = simulate(scenario.edited(edit_of(number.profile, number.key, value)))
    except InputError:
        return None
    return _RangeEnd(result.compared_s, ratio) if result.compared_s is not None else None


def _row(
    number: ProfileParameter, change: float, time: float, end: Callable[[float], _RangeEnd | None]
) -> SensitivityRow:
    down, up = 1 - change, 1 + change
    worse, better = (up, down) if _TIME.search(number.text) else (down, up)
    ends = {worse: end(worse)}
    first = ends[worse]
    # Of a share or a count it is not known which direction is the worse one.
    if first is None or abs(first.time / time - 1) > _LITTLE or " " not in number.text:
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
