"""Errors of predictions on real runs, by what comparable runs have in common."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from math import exp, hypot, log, sqrt
from statistics import NormalDist, mean, median, stdev
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from simoffload.hardware import Evidence

_FILE = "calibration_errors.csv"
"""File of errors on real runs. ``python -m validation`` writes it."""
LimitedBy = Literal["GPU", "host", "link", "CPU", "storage"]
"""What takes most of a time: kernels, the host thread, copies and collectives, work of the CPU, or drives."""
_FEWEST = 5
"""Fewest times of a class that count."""
_SEVERAL = 4
"""Fewest machines of a class that say how much machines differ."""
_FEW, _UNLIKE = 1.2, 1.4
"""Factors either way within which 80 % of times are expected for one reason alone: another machine, where no
class has several, and each thing that no comparable run did. Our choice; with two such things, half of all
times are within a factor of 1.28 and nine of ten within 1.84, where half of 100 published figures of other
machines were within 1.25 of predictions and nine of ten within 2."""


class RealTimes(NamedTuple):
    """RealTimes are times of real runs of one class on one machine."""

    program: str
    """Group of real runs, as a strategy names it under ``evidence``: zero."""
    limit: LimitedBy
    evidence: Evidence
    """What the numbers of ``limit`` rest on."""
    machine: str
    """The machine, or the publication, with which the errors of other machines are predicted."""
    held_out: bool
    """Whether the runs were not in view while mechanisms were worked out."""
    ratios: tuple[float, ...]
    """Times over those that were predicted."""


class CalibrationError(NamedTuple):
    """A CalibrationError holds the errors of a class of real runs."""

    program: str
    """Group of real runs; "" for all of them."""
    limit: LimitedBy
    evidence: str
    """What the numbers of ``limit`` rest on; "" for anything."""
    held_out: bool
    runs: int
    machines: int
    mean: float
    """Mean of the absolute relative errors."""
    worst: float
    """Relative error of the largest magnitude, with its sign: positive means predicted too slow."""
    low: float
    """P10 of real times over predicted ones, at most 1."""
    high: float
    """P90 of the same, at least 1."""


class Comparable(NamedTuple):
    """A Comparable says which real runs a time is compared with."""

    program: str
    limit: LimitedBy
    evidence: Evidence
    unlike: int = 0
    """Number of things that none of them did."""


@dataclass(frozen=True)
class ErrorTable:
    """An ErrorTable has all times of real runs."""

    rows: tuple[RealTimes, ...]
    _known: dict[tuple[str, ...], CalibrationError | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    def of(self, time: Comparable, *, without: str = "") -> CalibrationError:
        """Return the errors of runs that are comparable with a time; where there are too few, of those of the
        program with anything as evidence, or else of all programs; ``without`` a machine."""
        found = (
            self._class(program, time.limit, evidence, without)
            for program in (time.program, "")
            for evidence in (time.evidence, "")
        )
        return next(one for one in found if one is not None)

    def factors(self, time: Comparable, *, without: str = "") -> tuple[float, float]:
        """Return P10 and P90 of a real time over the predicted one; ``without`` the errors of a machine."""
        row = self.of(time, without=without)
        wider = sqrt(time.unlike) * log(_UNLIKE)
        if not time.unlike and (row[:3] != time[:3] or row.machines == 1):
            wider = self.between
        return exp(-hypot(log(row.low), wider)), exp(hypot(log(row.high), wider))

    @cached_property
    def between(self) -> float:
        """The logarithm of the factor either way within which the middle runs of 80 % of machines are, in the
        mean of the classes with several: what one machine, or other runs, do not say."""
        classes: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(dict)
        for row in self.rows:
            classes[row[:3]].setdefault(row.machine, []).extend(map(log, row.ratios))
        several = [machines.values() for machines in classes.values() if len(machines) >= _SEVERAL]
        spreads = [stdev(map(median, machines)) for machines in several]
        return NormalDist().inv_cdf(0.9) * mean(spreads) if spreads else log(_FEW)

    def _class(self, program: str, limit: LimitedBy, evidence: str, without: str) -> CalibrationError | None:
        key = program, limit, evidence, without
        if key not in self._known:
            self._known[key] = self._found(program, limit, evidence, without)
        return self._known[key]

    def _found(self, program: str, limit: LimitedBy, evidence: str, without: str) -> CalibrationError | None:
        """Return the errors of a class, of held-out runs if there are enough; None if there are too few."""
        mine = [
            row
            for row in self.rows
            if row.machine != without
            and row.limit == limit
            and program in ("", row.program)
            and evidence in ("", row.evidence)
        ]
        for rows in ([row for row in mine if row.held_out], mine):
            ratios = [ratio for row in rows for ratio in row.ratios]
            machines = len({row.machine for row in rows})
            if len(ratios) >= _FEWEST:
                errors = [1 / ratio - 1 for ratio in ratios]
                low, high = _ends(ratios, machines)
                mean, worst = sum(map(abs, errors)) / len(errors), max(errors, key=abs)
                about = all(row.held_out for row in rows), len(ratios), machines, mean, worst
                return CalibrationError(program, limit, evidence, *about, low, high)
        return None


def _ends(ratios: Sequence[float], machines: int) -> tuple[float, float]:
    """Return P10 and P90 of the ratio of another machine; the prediction is always between them.

    Quantiles are those that are about median-unbiased for any distribution (Hyndman and Fan, 1996, type 8).
    Runs of one machine resemble one another, so that their logarithms count 1 + 1 / (machines + 1) times,
    which is about Student's t of so many machines over the normal quantile (1.20 instead of 1.28 for four,
    1.09 instead of 1.08 for ten; less for two, our choice). One machine says nothing of others
    (``ErrorTable.between``).
    """
    ordered, wider = sorted(ratios), 1 + (machines > 1) / (machines + 1)

    def quantile(part: float) -> float:
        place = min(max(part * (len(ordered) + 1 / 3) - 2 / 3, 0.0), len(ordered) - 1.0)
        before = min(int(place), len(ordered) - 2)
        return ordered[before] + (place - before) * (ordered[before + 1] - ordered[before])

    return min(1.0, quantile(0.1)) ** wider, max(1.0, quantile(0.9)) ** wider


@cache
def calibration_errors() -> ErrorTable:
    """Return the shipped table of errors."""
    return parsed((files("simoffload.planning") / _FILE).read_text("utf-8"))


def parsed(text: str) -> ErrorTable:
    """Return the table that a file has."""
    rows = [{**row, "ratios": row["ratios"].split()} for row in csv.DictReader(io.StringIO(text))]
    return ErrorTable(TypeAdapter(tuple[RealTimes, ...]).validate_python(rows))


def written(rows: Iterable[RealTimes]) -> str:
    """Return the file of a table."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(RealTimes._fields)
    table.writerows((*row[:-1], " ".join(map(str, row.ratios))) for row in rows)
    return text.getvalue()
