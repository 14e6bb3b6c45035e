"""Memory, multiplications and attention of the GPU: numbers of profiles from measured times."""

from __future__ import annotations

from dataclasses import replace
from math import exp, floor, log, log10
from statistics import median
from typing import Any, NamedTuple

from simoffload.hardware import Accelerator, Curve
from simoffload.models import Attention, ModuleCost, Sequences, attention_kernels, load_model
from simoffload_calibrate.micro.fitted import Fitted, central, flops_text, rate_text, seconds_text

_LARGE = 256 << 20
"""[B] Copies from this size on show the rate."""
_COMPUTE_BOUND = 0.6
"""Multiplications whose bytes alone take less than this fraction of their time show the arithmetic."""
_BINS_PER_DECADE = 2
_MANY_TOKENS = 512
"""Multiplications of so many tokens are bound by arithmetic in all shapes that are measured."""
_LEAST_BATCH = 8
"""Attention of smaller batches does not fill the GPU."""
_LEAST_CONTEXT = 1024
"""Attention of a decode step over fewer keys shows the latency of kernels, not their speed."""

Sections = dict[str, Any]
_Shares = list[tuple[float, float]]


class Roofline(NamedTuple):
    """What a multiplication's time is measured against."""

    peak: float
    """[FLOP/s]"""
    hbm_rate: float
    """[B/s] in practice."""
    latency: float
    """[s] of a kernel."""


def fit_products(sections: Sections, base: Accelerator) -> dict[str, Any]:
    """Numbers on matrix products by key; memory and kernels that were not measured are those of ``base``.

    A peak below what was measured, as that of a similar GPU may be, is replaced.
    """
    found: dict[str, Any] = {}
    hbm_rate, latency, bandwidth = base.hbm_rate, base.kernel_latency_s, base.hbm_bandwidth.value
    if hbm := fit_hbm(sections, bandwidth):
        hbm_rate = max(bandwidth, _hbm_rate(sections)[0]) * float(hbm["hbm_efficiency"].value)
    if kernel := fit_kernel_latency(sections):
        latency, _ = kernel
    if peak := base.compute.bfloat16 or base.compute.float16:
        dtype = "bfloat16" if base.compute.bfloat16 else "float16"
        roofline = Roofline(peak=peak.value, hbm_rate=hbm_rate, latency=latency)
        fastest = max(_shares(sections, roofline, dtype), key=_median_share, default=None)
        if fastest and (share := _median_share(fastest)) > 1:
            roofline = roofline._replace(peak=share * peak.value)
            what = f"the fastest products in {dtype}, beyond the peak of {base.id}"
            found[f"compute.{dtype}"] = Fitted(f"{flops_text(roofline.peak)}/s", what, len(fastest))
        if matmul := fit_matmul(sections, roofline, dtype):
            found["matmul_efficiency"] = matmul
    if float16 := fit_float16(sections):
        found["float16_share"] = float16
    return found


def _hbm_rate(sections: Sections) -> tuple[float, float, int]:
    """[B/s] of copies of 256 MiB and more, the largest residual, and their number, which may be zero."""
    rows = [row for row in sections.get("hbm", {}).get("within", []) if row["bytes"] >= _LARGE]
    return central(2 * row["bytes"] / row["copy_seconds"] for row in rows) if rows else (0.0, 0.0, 0)


def fit_hbm(sections: Sections, bandwidth: float) -> dict[str, Fitted]:
    """Fraction of ``bandwidth`` [B/s] that copies reach, and the bandwidth where they exceed it."""
    rate, residual, number = _hbm_rate(sections)
    if not number:
        return {}
    what = "copies of 256 MiB and more within GPU memory, bytes read and written"
    found = {"hbm_efficiency": Fitted(round(min(1.0, rate / bandwidth), 4), what, number, residual)}
    return found | (
        {"hbm_bandwidth": Fitted(rate_text(rate), what, number, residual)} if rate > bandwidth else {}
    )


def fit_kernel_latency(sections: Sections) -> tuple[float, Fitted] | None:
    """[s] per kernel of a chain of additions of 1 KiB in a CUDA graph."""
    seconds = sections.get("kernels", {}).get("kernel_seconds")
    if not seconds:
        return None
    return seconds, Fitted(seconds_text(seconds), "chain of additions of 1 KiB in a CUDA graph", 1)


def fit_matmul(sections: Sections, roofline: Roofline, dtype: str = "bfloat16") -> Fitted | None:
    """The efficiency by FLOP of multiplications that arithmetic bounds, median of each half decade.

    The residual is of whole times, max(FLOP / (peak · efficiency), bytes / rate) + latency, over all
    multiplications of ``dtype``, those bound by memory included.
    """
    rows, bins = _linear(sections, dtype), _shares(sections, roofline, dtype)
    if not bins:
        return None
    points = [_centre(members) for members in bins]
    used = sum(map(len, bins))
    mean, worst = _residuals(rows, Curve(tuple(points)), roofline)
    what = (
        f"x·Wᵀ in {dtype}, shapes of known models, random data, {used} bound by arithmetic in half decades "
        f"of FLOP; mean residual of all {len(rows)} times {mean:.1%}"
    )
    shown = [[flops_text(flops), round(share, 4)] for flops, share in points]
    return Fitted(shown, what, used, worst)


def _linear(sections: Sections, dtype: str) -> list[dict[str, Any]]:
    points = sections.get("matmul", {}).get("points", [])
    return [row for row in points if row["dtype"] == dtype and row["form"] == "linear"]


def _shares(sections: Sections, roofline: Roofline, dtype: str) -> list[_Shares]:
    """Return (FLOP, share of the peak) of multiplications that arithmetic bounds, by half decades."""
    bins: dict[int, _Shares] = {}
    for row in _linear(sections, dtype):
        arithmetic = row["seconds"] - roofline.latency
        if arithmetic <= 0 or row["bytes"] / roofline.hbm_rate > _COMPUTE_BOUND * arithmetic:
            continue
        share = row["flops"] / roofline.peak / arithmetic
        bins.setdefault(floor(_BINS_PER_DECADE * log10(row["flops"])), []).append((row["flops"], share))
    return [members for _, members in sorted(bins.items())]


def _median_share(members: _Shares) -> float:
    return median(share for _, share in members)


def _centre(members: _Shares) -> tuple[float, float]:
    flops = exp(sum(log(flops) for flops, _ in members) / len(members))
    return flops, min(1.0, max(1e-4, _median_share(members)))


def _residuals(rows: list[dict[str, Any]], curve: Curve, roofline: Roofline) -> tuple[float, float]:
    errors = []
    for row in rows:
        arithmetic = row["flops"] / (roofline.peak * curve.at(row["flops"]))
        predicted = max(arithmetic, row["bytes"] / roofline.hbm_rate) + roofline.latency
        errors.append(abs(predicted - row["seconds"]) / row["seconds"])
    return sum(errors) / len(errors), max(errors)


def fit_strided(sections: Sections) -> dict[str, Fitted]:
    """Rates [B/s] of kernels that PyTorch does not vectorize; missing if they were not measured."""
    row = sections.get("kernels", {}).get("strided")
    if not row:
        return {}
    whats = {"strided_rate": "a bias added in place", "join_rate": "torch.cat of a transposed tensor"}
    return {
        key: Fitted(rate_text(row["bytes"] / row[f"{key}_seconds"]), f"{what}, bfloat16", 1)
        for key, what in whats.items()
    }


def fit_float16(sections: Sections) -> Fitted | None:
    """Fraction of the rate in bfloat16 that the same multiplications reach in float16."""
    rows = [row for row in sections.get("matmul", {}).get("points", []) if row["form"] == "linear"]
    large = [row for row in rows if row["tokens"] >= _MANY_TOKENS]
    seconds = {(row["dtype"], row["in"], row["out"], row["tokens"]): row["seconds"] for row in large}
    ratios = [
        seconds[("bfloat16", *shape)] / time
        for (dtype, *shape), time in seconds.items()
        if dtype == "float16" and ("bfloat16", *shape) in seconds
    ]
    if not ratios:
        return None
    share, residual, number = central(ratios)
    what = f"x·Wᵀ in float16 over the same in bfloat16, {_MANY_TOKENS} tokens and more, random data"
    return Fitted(round(min(1.0, share), 4), what, number, residual)


def fit_attention(sections: Sections, gpu: Accelerator) -> dict[str, Fitted]:
    """Fractions of their ideal speed that fused and eager attention reach on ``gpu``, by new tokens.

    Ideal is the time of the arithmetic plus that of the bytes. Used are batches from 8 and, of decode steps,
    contexts from 1,024, and only heads with keys of their own, because the record repeats shared ones.
    """
    found: dict[str, Fitted] = {}
    kinds: dict[str, Attention] = {"fused": "sdpa", "eager": "eager"}
    for key, attention in kinds.items():
        shares: dict[int, list[float]] = {}
        for row in sections.get("attention", {}).get("points", []):
            few = row["batch"] < _LEAST_BATCH or (row["new"] == 1 and row["context"] < _LEAST_CONTEXT)
            if few or row["heads"] != row["kv_heads"]:
                continue
            cost = _attention(row, attention)
            ideal = cost.flops / gpu.matmul_rate(cost.flops, "bfloat16") + cost.bytes / gpu.hbm_rate
            seconds = row[f"{key}_seconds"] - (_merged_s(row, gpu) if key == "fused" else 0.0)
            shares.setdefault(row["new"], []).append(ideal / seconds)
        if not shares:
            continue
        points = [[tokens, round(min(1.0, median(values)), 4)] for tokens, values in sorted(shares.items())]
        residual = max(
            abs(share / min(1.0, median(values)) - 1) for values in shares.values() for share in values
        )
        used = sum(map(len, shares.values()))
        what = f"{key} attention, median over batches from {_LEAST_BATCH}, bfloat16"
        found[f"{key}_attention"] = Fitted(points, what, used, residual)
    return found


def _merged_s(row: dict[str, Any], gpu: Accelerator) -> float:
    """Time [s] in which the record copies the result of fused attention, as its queries, unlike those of
    models, are in the order of heads; with one token both orders are the same."""
    if row["new"] == 1:
        return 0.0
    rate = gpu.strided_rate.value if gpu.strided_rate else gpu.hbm_rate
    return float(4 * row["batch"] * row["heads"] * row["new"] * row["head_dim"] / rate)


def _attention(row: dict[str, Any], attention: Attention) -> ModuleCost:
    shape = replace(load_model({"name": row["model"]}), attention=attention)
    return attention_kernels(shape, Sequences(row["batch"], row["new"], row["context"]))
