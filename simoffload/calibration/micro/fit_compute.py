"""GPU memory, matrix multiplications and kernel latency."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, floor, log, log10
from statistics import median
from typing import Any, NamedTuple

from simoffload.calibration.micro.fitted import Fitted, central, flops_text, seconds_text
from simoffload.hardware.quantities import Curve

__all__ = ["Roofline", "fit_hbm", "fit_kernel_latency", "fit_matmul"]

_LARGE = 256 << 20
_COMPUTE_BOUND = 0.6
"""Multiplications whose bytes alone take less than this fraction of their time show the arithmetic."""
_BINS_PER_DECADE = 2


class Roofline(NamedTuple):
    """What a multiplication's time is measured against."""

    peak: float
    """[FLOP/s]"""
    hbm_rate: float
    """[B/s] in practice."""
    latency: float
    """[s] of a kernel."""


def fit_hbm(sections: dict[str, Any], bandwidth: float) -> Fitted | None:
    """Fraction of ``bandwidth`` [B/s] that copies of 256 MiB and more reach, each byte read and written."""
    rows = [row for row in sections.get("hbm", {}).get("within", []) if row["bytes"] >= _LARGE]
    if not rows:
        return None
    share, residual, number = central(2 * row["bytes"] / row["copy_seconds"] / bandwidth for row in rows)
    what = "copies of 256 MiB and more within GPU memory, bytes read and written"
    return Fitted(round(min(1.0, share), 4), what, number, residual)


def fit_kernel_latency(sections: dict[str, Any]) -> tuple[float, Fitted] | None:
    """[s] per kernel of a chain of additions of 1 KiB in a CUDA graph."""
    seconds = sections.get("kernels", {}).get("kernel_seconds")
    if not seconds:
        return None
    return seconds, Fitted(seconds_text(seconds), "chain of additions of 1 KiB in a CUDA graph", 1)


def fit_matmul(sections: dict[str, Any], roofline: Roofline, dtype: str = "bfloat16") -> Fitted | None:
    """The efficiency by FLOP of multiplications that arithmetic bounds, median of each half decade.

    The residual is of whole times, max(FLOP / (peak · efficiency), bytes / rate) + latency, over all
    multiplications of ``dtype``, those bound by memory included.
    """
    rows = [
        row
        for row in sections.get("matmul", {}).get("points", [])
        if row["dtype"] == dtype and row["form"] == "linear"
    ]
    bins: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        arithmetic = row["seconds"] - roofline.latency
        if arithmetic <= 0 or row["bytes"] / roofline.hbm_rate > _COMPUTE_BOUND * arithmetic:
            continue
        share = row["flops"] / roofline.peak / arithmetic
        bins.setdefault(floor(_BINS_PER_DECADE * log10(row["flops"])), []).append((row["flops"], share))
    if not bins:
        return None
    points = [_centre(members) for _, members in sorted(bins.items())]
    used = sum(map(len, bins.values()))
    mean, worst = _residuals(rows, Curve(tuple(points)), roofline)
    what = (
        f"x·Wᵀ in {dtype}, shapes of known models, random data, {used} bound by arithmetic in half decades "
        f"of FLOP; mean residual of all {len(rows)} times {mean:.1%}"
    )
    shown = [[flops_text(flops), round(share, 4)] for flops, share in points]
    return Fitted(shown, what, used, worst)


def _centre(members: Iterable[tuple[float, float]]) -> tuple[float, float]:
    known = list(members)
    flops = exp(sum(log(flops) for flops, _ in known) / len(known))
    return flops, min(1.0, max(1e-4, median(share for _, share in known)))


def _residuals(rows: list[dict[str, Any]], curve: Curve, roofline: Roofline) -> tuple[float, float]:
    errors = []
    for row in rows:
        arithmetic = row["flops"] / (roofline.peak * curve.at(row["flops"]))
        predicted = max(arithmetic, row["bytes"] / roofline.hbm_rate) + roofline.latency
        errors.append(abs(predicted - row["seconds"]) / row["seconds"])
    return sum(errors) / len(errors), max(errors)
