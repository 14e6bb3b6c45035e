"""Numbers with their origin, from which every profile is built, and curves through them."""

from __future__ import annotations

import datetime
import re
from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import exp, log
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from simoffload.documents import Frozen, quoted
from simoffload.units import BytesPerSecond, Flops, PositiveBytes, Seconds, Watts


class Curve(NamedTuple):
    """A curve through points (x, y) with x rising; y is linear in log x between them and constant beyond both
    ends."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def flat(cls, rate: int) -> Curve:
        """Return the curve that has the same ``rate`` [B/s] at every size."""
        return cls(((1, rate),))

    def at(self, x: float) -> float:
        """Return the value of the curve at ``x``."""
        index = bisect_left(self.points, x, key=itemgetter(0))
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (left, low), (right, high) = self.points[index - 1], self.points[index]
        return low + (high - low) * log(x / left) / log(right / left)

    def covers(self, x: float) -> bool:
        """Return whether ``x`` is within the points; a curve of one point covers everything."""
        return len(self.points) == 1 or self.points[0][0] <= x <= self.points[-1][0]

    def lower(self, other: Curve) -> Curve:
        """Return the lower of two curves, at the points of both."""
        sizes = sorted({x for x, _ in (*self.points, *other.points)})
        return Curve(tuple((x, min(self.at(x), other.at(x))) for x in sizes))

    def rate(self, size: int) -> int:
        """Return the rate [B/s] at ``size`` [B], as an integer of at least 1."""
        return whole_rate(self.at(size))


def whole_rate(rate: float | Fraction) -> int:
    """Return a rate [B/s] that follows from others as an integer of at least 1, by which times can be
    divided."""
    return max(1, int(rate))


def saturating(rate: float, limit: float) -> float:
    """Return the rate [B/s] of threads that alone could reach ``rate`` beneath a ``limit``, with a smooth
    transition: 1 / sqrt(1 / rate^2 + 1 / limit^2)."""
    return float((rate**-2 + limit**-2) ** -0.5)


Origin = Literal["spec", "measured", "estimate"]
"""``spec``: published by the manufacturer, or derived by arithmetic; ``measured``: measured on real hardware;
``estimate``: everything else."""

Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
"""A fraction above 0, at most 1."""
Multiple = Annotated[float, Field(strict=True, ge=1, le=100, allow_inf_nan=False)]
"""A factor of at least 1."""
PositiveMultiple = Annotated[float, Field(strict=True, gt=0, le=1000, allow_inf_nan=False)]
"""A factor above 0, which may be smaller or larger than 1."""
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]
PositiveSeconds = Annotated[Seconds, Field(gt=0)]
"""A time [s] above zero."""
Thousandths = Annotated[str, Field(pattern=r"^[1-9]\d{0,3}( [1-9]\d{0,3})*$", max_length=8000)]
"""Fractions of a row of a table, in thousandths: "845 812 790"."""
Text = Annotated[str, Field(min_length=1, max_length=2000)]
ID_PATTERN = r"^[a-z0-9][a-z0-9.+-]{0,79}$"
Identifier = Annotated[str, Field(pattern=ID_PATTERN)]
"""Id of a profile: its file is ``<kind>/<id>.yaml``."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=40)]
"""Name of a vertex or a tier within a platform."""
Reference = Annotated[str, Field(min_length=1, max_length=400)]
"""Reference to another profile: its id, or the path of its file relative to the file that refers to it."""

T = TypeVar("T")


def id_fault(text: str) -> str | None:
    """Return why a text cannot be the id of a profile, or None if it can."""
    if re.fullmatch(ID_PATTERN, text):
        return None
    if len(text) > 80:
        return f"{quoted(text)} has {len(text)} characters; an id has at most 80"
    return f"{quoted(text)} is not an id; use lower-case letters, digits and . + -, a letter or digit first"


class Provenance(Frozen):
    """The source of a statement, and the date on which it was looked up."""

    model_config = ConfigDict(defer_build=False)  # each is part of many sections, which share its validator

    origin: Origin
    source: Text
    """Document, page or command from which the number comes."""
    date: datetime.date
    """Date on which it was looked up or measured."""
    residual: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = None
    """Largest relative difference between the measurements and the fit that gave the number."""
    spread: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = None
    """Relative standard deviation of the number, where it is known. That of a cost of the host thread
    contains the spread of ``host_factor``."""
    measured_on: Text | None = None
    """The machines on which an estimate was measured, if they are of another kind: "virtual machines with
    H200"."""


class Sourced(Provenance, Generic[T]):
    """A number with its origin."""

    written_as: ClassVar[str] = "{{value: {}, origin: …, source: …, date: …}}"
    value: T
    """The number, with its unit."""


def _number(written: T | Sourced[T]) -> T:
    return written.value if isinstance(written, Sourced) else written


if TYPE_CHECKING:
    NumberOfParts = int
    PowerLimit = float
    RaidLevel = Literal[0, 5, 6, 10]
else:
    NumberOfParts = Annotated[Count | Sourced[Count], AfterValidator(_number)]
    PowerLimit = Annotated[Sourced[Watts] | Watts, AfterValidator(_number)]
    _Level = Literal[0, 5, 6, 10]
    RaidLevel = Annotated[_Level | Sourced[_Level], AfterValidator(_number)]
"""Number of equal parts (drives, ports, lanes), and a RAID level: facts of the construction, which are
written plainly or, as all other numbers, with their origin; a power limit, which is set and not measured, as
well."""


def _must_increase(sizes: list[float]) -> None:
    for smaller, larger in pairwise(sizes):
        if larger <= smaller:
            raise ValueError("the first numbers of the points must increase")


class RateCurve(Provenance):
    """A rate by a size: of the transfer, or of the bytes in flight."""

    written_as: ClassVar[str] = "{{points: [[1 MiB, 3 GB/s], …], origin: …, source: …, date: …}}"
    points: Annotated[tuple[tuple[PositiveBytes, BytesPerSecond], ...], Field(min_length=1, max_length=200)]
    """Pairs (size [B], rate [B/s])."""

    @model_validator(mode="after")
    def _ordered(self) -> RateCurve:
        _must_increase([size for size, _ in self.points])
        return self

    @property
    def top(self) -> int:
        """The highest rate [B/s] of the curve."""
        return max(rate for _, rate in self.points)

    def scaled(self, numerator: int, denominator: int) -> Curve:
        """Return the curve with every rate multiplied by a ratio (of PCIe lanes)."""
        return Curve(tuple((size, rate * numerator / denominator) for size, rate in self.points))


class EfficiencyCurve(Provenance):
    """The fraction of the peak that a matrix multiplication reaches, by its number of operations."""

    points: Annotated[tuple[tuple[Flops, Share], ...], Field(min_length=1, max_length=200)]
    """Pairs (work [FLOP], fraction)."""

    @model_validator(mode="after")
    def _ordered(self) -> EfficiencyCurve:
        _must_increase([work for work, _ in self.points])
        if self.points[0][0] <= 0:
            raise ValueError("the first point must be above 0 FLOP")
        return self

    def at(self, work: float) -> float:
        """Return the fraction at ``work`` [FLOP]."""
        return Curve(self.points).at(work)


class PowerCurve(Provenance):
    """The fraction of a rate that a GPU keeps at a lower power limit, by the limit's share of its power."""

    points: Annotated[tuple[tuple[Share, Share], ...], Field(min_length=2, max_length=200)]
    """Pairs (power limit / power of the data sheet, fraction of the rate)."""

    @model_validator(mode="after")
    def _ordered(self) -> PowerCurve:
        _must_increase([limit for limit, _ in self.points])
        return self

    def at(self, limit: float) -> float:
        """Return the fraction of the rate at a ``limit``, a share of the data sheet's power."""
        return Curve(self.points).at(limit)


class RowsCurve(Provenance):
    """The fraction of the peak that grouped products of experts reach, by the rows of each group."""

    points: Annotated[tuple[tuple[Count, Share], ...], Field(min_length=1, max_length=200)]
    """Pairs (rows of each group, fraction of the peak)."""

    @model_validator(mode="after")
    def _ordered(self) -> RowsCurve:
        _must_increase([float(rows) for rows, _ in self.points])
        return self

    def at(self, rows: float) -> float:
        """Return the fraction of products with ``rows`` in each group."""
        return Curve(self.points).at(rows)


class KernelTable(Sourced[Share]):
    """The speed of products by their rows, outputs and inputs, or of other kernels by three sizes.

    Ideal is the time of bytes and arithmetic at the peak rates, and the latency of kernels
    (``Accelerator.ideal_s``). The value is the share of the peak that arithmetic keeps under lasting load,
    when the power limit lowers the clock; the shares are those of short bursts.
    """

    outputs: Annotated[tuple[Count, ...], Field(min_length=2, max_length=40)]
    """Widths of the results, rising; of experts the width of each; of attention blocks of queries, or
    sequences x key-value heads."""
    inputs: Annotated[tuple[Count, ...], Field(min_length=2, max_length=40)]
    """Widths of the inputs, rising; of experts how many are chosen; of attention the width of a head."""
    shares: Annotated[tuple[tuple[Count, Thousandths], ...], Field(min_length=1, max_length=100)]
    """Pairs (rows, thousandths of the ideal speed): for each output in turn those of all inputs. Rows are the
    tokens of each expert, and of attention the keys of each token."""

    @model_validator(mode="after")
    def _complete(self) -> KernelTable:
        for widths in (self.outputs, self.inputs, [rows for rows, _ in self.shares]):
            _must_increase([float(one) for one in widths])
        if not any(rows < _TILE_ROWS or rows % _TILE_ROWS == 0 for rows, _ in self.shares):
            raise ValueError(f"give shares of fewer than {_TILE_ROWS} rows, or of a multiple of {_TILE_ROWS}")
        wanted = len(self.outputs) * len(self.inputs)
        for rows, text in self.shares:
            if (given := text.count(" ") + 1) != wanted:
                sizes = f"{len(self.outputs)} outputs x {len(self.inputs)} inputs"
                raise ValueError(f"{rows} rows have {given} shares; {sizes} need {wanted}")
        return self

    @cached_property
    def _logarithms(self) -> dict[int, tuple[float, ...]]:
        return {rows: tuple(log(int(one) / 1000) for one in text.split()) for rows, text in self.shares}

    def share(self, *, rows: float, outputs: float, inputs: float, padded: bool = False) -> float:
        """Return the share of the ideal speed, whose logarithm is linear in the logarithms of all sizes.

        Of more than 512 rows, multiples of 16 are between such multiples and others between others, as
        CUTLASS has other kernels for them in FP8: products of 513 rows took a third longer than between those
        of 512 and 768. Beyond the table the shares of its edge apply.
        ``padded`` rows are as fast as multiples of 16, so that steps of a few tokens more take hardly longer.
        """
        known = list(self._logarithms)
        same = [one for one in known if (one % _TILE_ROWS == 0) == (rows % _TILE_ROWS == 0)]
        if padded:
            known = [one for one in known if one < _TILE_ROWS or one % _TILE_ROWS == 0]
        elif rows > _ALIGNED and same and rows <= same[-1]:
            known = same
        width, corners = len(self.inputs), _between(self.inputs, inputs)

        def at(logarithms: tuple[float, ...]) -> float:
            ends = ((row * width, part) for row, part in _between(self.outputs, outputs))
            return sum(part * each * logarithms[row + one] for row, part in ends for one, each in corners)

        return exp(sum(part * at(self._logarithms[known[one]]) for one, part in _between(known, rows)))


_ALIGNED = 512
"""Rows up to which it hardly matters whether they are a multiple of 16 (H100 and H200, FP8)."""
_TILE_ROWS = 16
"""Rows of the tiles of tensor cores (mma.m16n8k16, PTX ISA)."""


def _between(points: Sequence[int], x: float) -> tuple[tuple[int, float], ...]:
    """Return the points on both sides of ``x`` by number, with their weights in its logarithm."""
    index = bisect_left(points, x)
    if index in (0, len(points)):
        return ((min(index, len(points) - 1), 1.0),)
    share = log(x / points[index - 1]) / log(points[index] / points[index - 1])
    return ((index - 1, 1.0 - share), (index, share))


class AttentionCurve(Provenance):
    """The fraction of their ideal speed that attention kernels reach, by the new tokens of each sequence.

    Ideal is the time of their bytes plus that of their arithmetic, at the rates of ``hbm_efficiency`` and
    ``matmul_efficiency``.
    """

    points: Annotated[tuple[tuple[Count, Share], ...], Field(min_length=1, max_length=200)]
    """Pairs (new tokens of each sequence, fraction); one new token is a decode step."""

    @model_validator(mode="after")
    def _ordered(self) -> AttentionCurve:
        _must_increase([tokens for tokens, _ in self.points])
        return self

    def at(self, new_tokens: int) -> float:
        """Return the fraction for sequences with ``new_tokens`` each."""
        return Curve(self.points).at(new_tokens)
