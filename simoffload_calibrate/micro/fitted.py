"""A number of a profile that measurements gave, and how it is written down."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_REWEIGHTINGS = 20


class Fitted(NamedTuple):
    """A value as profiles write it, and what it is from."""

    value: Any
    """Text with a unit, a number, or a list of pairs of them (a curve)."""
    what: str
    """What was measured, and the arithmetic."""
    points: int
    residual: float | None = None
    """Largest relative difference between measurements and fit."""
    spread: float | None = None
    """Relative standard deviation of the value, where it was determined."""
    measured: bool = True
    """Whether anything on this machine depends on the value; otherwise it is an estimate."""


def bytes_text(size: int) -> str:
    """A size [B], exactly."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power and size % 1024**power == 0:
            return f"{size // 1024**power} {unit}"
    return f"{size} B"


def rate_text(rate: float) -> str:
    """A rate [B/s] with four digits."""
    return f"{float(f'{rate / 1e9:.4g}'):.12g} GB/s"


def seconds_text(seconds: float) -> str:
    """A time [s] with four digits."""
    return f"{float(f'{seconds * 1e6:.4g}'):.12g} us"


def flops_text(flops: float) -> str:
    """A number of operations [FLOP] with four digits."""
    return f"{float(f'{flops / 1e9:.4g}'):.12g} GFLOP"


def central(values: Iterable[float]) -> tuple[float, float, int]:
    """Median, largest relative distance of a value from it, and how many values there are.

    Raises StatisticsError where there is none.
    """
    known = list(values)
    middle = median(known)
    return middle, max(abs(one - middle) for one in known) / middle if middle else 0.0, len(known)


def non_negative(
    table: NDArray[np.float64], target: NDArray[np.float64], *, negligible: float = 2e-6
) -> NDArray[np.float64]:
    """Minimize absolute residuals by reweighting; a column that would become negative is set to zero.

    The weight of residuals does not grow further below ``negligible``.
    """
    used = list(range(table.shape[1]))
    result = np.zeros(table.shape[1])
    while used:
        weight = np.ones(len(target))
        for _ in range(_REWEIGHTINGS):
            found, *_ = np.linalg.lstsq(table[:, used] * weight[:, None], target * weight, rcond=None)
            residual = np.abs(target - table[:, used] @ found)
            weight = 1 / np.sqrt(np.maximum(residual, negligible))
        if found.min() >= 0:
            result[used] = found
            return result
        del used[int(found.argmin())]
    return result
