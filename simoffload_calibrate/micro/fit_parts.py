"""Numbers of profiles from measured times: GPU, CPU, links, host memory and drives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, floor, hypot, log, log10
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simoffload.hardware import P90, Accelerator, Curve
from simoffload.hardware.library import Library
from simoffload.hardware.profiles import Pcie
from simoffload.hardware.quantities import saturating
from simoffload.models import Attention, ModuleCost, Sequences, attention_kernels, load_model
from simoffload.units import parse_rate, plural
from simoffload_calibrate.micro.gpu_groups import GpuGroup, measured_groups

if TYPE_CHECKING:
    from simoffload_calibrate.micro.profiles import Measured

# -- A number of a profile that measurements gave, and how it is written down ----------------------


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


# -- memory, multiplications and attention of the GPU ----------------------------------------------


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


def fit_gpu_products(sections: Sections, base: Accelerator) -> dict[str, Any]:
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
    """[B/s] of the fastest copies of 256 MiB and more, the largest residual, and their number, which may be
    zero. Copies between buffers 1 GiB apart reach 2.8 of 4.3 TB/s on an H200 (``calibrate micro`` on 14 of
    them), where kernels read and write faster: that is not the memory's rate.
    """
    rows = [row for row in sections.get("hbm", {}).get("within", []) if row["bytes"] >= _LARGE]
    rates = [2 * row["bytes"] / row["copy_seconds"] for row in rows]
    return (max(rates), 1 - min(rates) / max(rates), len(rates)) if rates else (0.0, 0.0, 0)


def fit_hbm(sections: Sections, bandwidth: float) -> dict[str, Fitted]:
    """Fraction of ``bandwidth`` [B/s] that copies reach, and the bandwidth where they exceed it."""
    rate, residual, number = _hbm_rate(sections)
    if not number:
        return {}
    what = "the fastest copies of 256 MiB and more within GPU memory, bytes read and written"
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
    return attention_kernels(shape, shape.attends, Sequences(row["batch"], row["new"], row["context"]))


# -- the CPU ---------------------------------------------------------------------------------------
# Numbers of ``cpu_products`` of a host from what its CPU reads and computes.
#
# Each is an equation of ``strategies.hooks.on_cpu`` solved for one number, as in
# ``importers.llama_bench``.


def fit_reads(measured: Measured) -> dict[str, Fitted]:
    """Return ``weights`` and ``experts`` of a host's ``cpu_products``; empty where reads were not measured.

    ``weights`` is what threads read at most, over the bandwidth of the profile, which ``Dram`` may have
    replaced. ``experts`` is as much lower as on the base's host, which is an estimate.
    """
    rows = measured.sections.get("memory_reads", {}).get("reads", [])
    if not rows:
        return {}
    fastest, base = min(rows, key=lambda row: row["seconds"] / row["bytes"]), measured.base.host
    rate = fastest["bytes"] / fastest["seconds"]
    share = min(1.0, rate / _peak(measured))
    what = f"{rate_text(rate)} of the peak read by {plural(fastest['threads'], 'thread')}"
    spread = _spread(fastest)
    ratio = base.products.experts.value / base.products.weights.value
    other = f"{ratio:.4g} of weights, as on {base.id}"
    return {
        "weights": Fitted(float(f"{share:.4g}"), what, len(rows), spread=spread),
        "experts": Fitted(min(1.0, float(f"{share * ratio:.4g}")), other, 1, measured=False),
    }


def _peak(measured: Measured) -> float:
    known = measured.fitted.get("host.memory_bandwidth")
    return parse_rate(known.value) if known else measured.base.host.memory_bandwidth.value


def fit_products(measured: Measured) -> dict[str, Fitted]:
    """Return rates of threads and kernels and the time of a meeting, of a host's ``cpu_products``; empty
    where ggml was not measured.

    One token on one thread gives 1 / rate² = 1 / thread² + 1 / (weights · peak)²; more tokens on T threads
    t² = (bytes / rate)² + (FLOP / (T · speed))², and tiles speed = tiled · tokens / (tokens + tiled_rows).
    One token on all T threads gives 1 / rate² = 1 / (T · thread)² + 1 / (share · peak)², beside two meetings
    of the threads, for one matrix (``weights``) and for chosen experts.
    A chain of operations that change the device is longer by its changes than one on either device.
    Spreads are those among formats and of repetitions.
    """
    rows, base = measured.sections.get("ggml", {}).get("products", []), measured.base.host.products
    known = measured.fitted.get("host.cpu_products.weights")
    limit = _peak(measured) * (known.value if known else base.weights.value)
    found: dict[str, Fitted] = {}
    threads: dict[str, float] = {}
    for key, formats in (("thread", _COMMON), ("dot_thread", _DOT)):
        of_it = [row for row in rows if row["format"] in formats and row["tokens"] == row["threads"] == 1]
        rates = [row["bytes"] / row["seconds"] for row in of_it]
        alone = [(rate**-2 - limit**-2) ** -0.5 for rate in rates if rate < _IDENTIFIED * limit]
        noise = max((_spread(row) or 0.0 for row in of_it), default=0.0)
        threads |= dict.fromkeys(formats, float(getattr(base, key).value))
        if alone:
            value, residual, count = central(alone)
            what = f"products of ggml with one token on one thread, {', '.join(formats)}"
            found[key] = Fitted(rate_text(value), what, count, residual, hypot(residual, noise))
            threads |= dict.fromkeys(formats, value)
    speeds: dict[tuple[str, int], float] = {}
    noise = max((_spread(row) or 0.0 for row in rows if row["tokens"] > 1), default=0.0)
    for row in rows:
        read_s = row["bytes"] / saturating(row["threads"] * threads[row["format"]], limit)
        if row["tokens"] > 1 and row["seconds"] > read_s:
            arithmetic = (row["seconds"] ** 2 - read_s**2) ** 0.5
            speeds[row["format"], row["tokens"]] = row["flops"] / (row["threads"] * arithmetic)
    for key, points in _KERNELS.items():
        if values := [speeds[one] for one in points if one in speeds]:
            value, residual, count = central(values)
            what = f"products of ggml, {', '.join(f'{name} with {tokens} tokens' for name, tokens in points)}"
            found[key] = Fitted(f"{flops_text(value)}/s", what, count, residual, hypot(residual, noise))
    found |= _tiles(speeds, noise) | _meetings(measured) | _changes(measured)
    together = max((row["threads"] for row in rows), default=0)
    one_token = [row for row in rows if row["tokens"] == 1 and row["threads"] == together > 1]
    chosen = measured.sections.get("ggml", {}).get("experts", [])
    found |= _shares_read(measured, "weights", one_token, threads, "of one token by all threads")
    return found | _shares_read(measured, "experts", chosen, threads, "with chosen experts")


def _shares_read(
    measured: Measured,
    key: str,
    rows: Sequence[Mapping[str, Any]],
    threads: Mapping[str, float],
    about: str,
) -> dict[str, Fitted]:
    """Return the share of the memory's bandwidth with which all threads read the weights of products;
    ``threads`` has the rate of a thread by format [B/s]."""
    meetings = measured.sections.get("ggml", {}).get("meetings")
    meeting = meetings[-1]["seconds"] if meetings else measured.base.host.products.operation.value
    shares: dict[str, float] = {}
    for row in rows:
        rate = row["bytes"] / max(row["seconds"] - 2 * meeting, row["seconds"] / 2)
        alone = row["threads"] * threads[row["format"]]
        if rate < _IDENTIFIED * alone:
            shares[row["format"]] = min(1.0, (rate**-2 - alone**-2) ** -0.5 / _peak(measured))
    if not shares:
        return {}
    value, residual, count = central(shares.values())
    noise = max((_spread(row) or 0.0 for row in rows), default=0.0)
    what = f"products of ggml {about}, {', '.join(shares)}"
    return {key: Fitted(float(f"{value:.4g}"), what, count, residual, hypot(residual, noise))}


_COMMON, _DOT = ("q4_k", "q6_k", "q8_0"), ("mxfp4",)
"""Formats with kernels for several tokens, and with kernels of dot products alone (``on_cpu.kernel_of``)."""
_KERNELS = {
    "dot": (("q4_k", 8), ("q6_k", 8), ("mxfp4", 8), ("mxfp4", 512)),
    "blocked": (("q8_0", 32), ("q8_0", 512)),
}
_TILED, _FEW, _MANY = ("q4_k", "q6_k"), 32, 512
_IDENTIFIED = 0.9
"""Share of the memory's rate from which on it hides how fast a thread is; our choice."""


def _tiles(speeds: Mapping[tuple[str, int], float], noise: float) -> dict[str, Fitted]:
    """Return the rate of tiles for very many tokens, and the tokens with which they are half as fast."""
    lines: dict[str, tuple[float, float]] = {}
    for name in _TILED:  # 1 / speed = 1 / tiled + (tiled_rows / tiled) / tokens
        if (name, _FEW) in speeds and (name, _MANY) in speeds:
            few, many = 1 / speeds[name, _FEW], 1 / speeds[name, _MANY]
            slope = max(0.0, (few - many) / (1 / _FEW - 1 / _MANY))
            if many > slope / _MANY:
                lines[name] = many - slope / _MANY, slope
    if not lines:
        return {}
    what = f"products of ggml with {_FEW} and {_MANY} tokens, {', '.join(lines)}"
    rate, residual, count = central(1 / each for each, _ in lines.values())
    half, scatter, _ = central(max(1.0, slope / each) for each, slope in lines.values())
    return {
        "tiled": Fitted(f"{flops_text(rate)}/s", what, 2 * count, residual, hypot(residual, noise)),
        "tiled_rows": Fitted(round(half), what, 2 * count, scatter, hypot(scatter, noise)),
    }


def _meetings(measured: Measured) -> dict[str, Fitted]:
    rows = measured.sections.get("ggml", {}).get("meetings", [])
    if not rows:
        return {}
    most = rows[-1]
    what = f"half of a product of 32 x 32 weights by {plural(most['threads'], 'thread')} of ggml"
    return {"operation": Fitted(seconds_text(most["seconds"]), what, 1, spread=_spread(most))}


def _changes(measured: Measured) -> dict[str, Fitted]:
    rows = {row["where"]: row for row in measured.sections.get("ggml", {}).get("changes", [])}
    if not rows:
        return {}
    both = rows["both"]
    alone = (rows["gpu"]["seconds"] + rows["cpu"]["seconds"]) / 2
    value = max(both["seconds"] - alone, both["seconds"] / 2) / both["operations"]
    what = f"chain of {both['operations']} small operations of ggml on the GPU and the CPU in turn"
    return {"switch": Fitted(seconds_text(value), what, 1, spread=_spread(both))}


def fit_page_faults(measured: Measured) -> dict[str, Fitted]:
    """Return ``page_faults`` of a host's ``cpu_products``: the rate of the most threads, as all threads of
    llama.cpp read a mapped file, and of it what is left in memory that is full; and the host's
    ``read_ahead``. Empty where it was not measured."""
    section = measured.sections.get("page_faults", {})
    rows, ahead = section.get("reads", []), section.get("read_ahead")
    if not rows:
        return {}
    rates = [f"{rate_text(row['bytes'] / row['seconds'])} by {row['threads']}" for row in rows]
    what = f"{_FULL:g} of the rate while memory had room, as on two machines: {', '.join(rates)} threads"
    most = rows[-1]
    value = rate_text(_FULL * most["bytes"] / most["seconds"])
    spread = hypot(_FULL_SPREAD, _spread(most) or 0.0)
    found = {"cpu_products.page_faults": Fitted(value, what, len(rows), spread=spread, measured=False)}
    stated = "read_ahead_kb of the drive of the file"
    return found | ({"read_ahead": Fitted(f"{ahead >> 10} KiB", stated, 1)} if ahead else {})


_FULL, _FULL_SPREAD = 0.6, 0.15
"""Share of the rate of page faults that is left where every page evicts another, and its spread: runs of
llama.cpp in little memory read 1.09 GB/s on a machine with 1.83 GB/s of 16 threads while memory had room, and
1.0 on one with 1.57 (docs/measurements/llama-cpp.md)."""


def _spread(row: Mapping[str, Any]) -> float | None:
    """Return the relative standard deviation of repetitions from their P10 and P90, if these are known."""
    limits = row.get("seconds_spread")
    return min(_WIDEST, (limits[1] - limits[0]) / (2 * P90 * row["seconds"])) if limits else None


_WIDEST = 1.0
"""Largest spread that is stated: beyond it, other work on the host interrupted single repetitions, which says
nothing of their median; our choice."""


# -- links, host memory and drives -----------------------------------------------------------------
# Numbers of profiles from measured times.


_LANES = (1, 2, 4, 8, 16)
_GEN5 = "gen5"
_SMALL = 64 << 10
"""[B] Copies up to this size show the cost of calls, not of bytes."""
_SLOWED = 0.97
"""GPUs that copy at once at less than this fraction of the rate that they have alone, and that groups of them
have, share a limit."""
_DEFAULT_IN_FLIGHT = 8 << 20
"""[B] DeepSpeed's default: 8 requests of 1 MiB."""
_TENSOR = 128 << 20
"""[B] No more than one tensor is in flight: a thread of aio finishes one before it begins the next."""


# -- PCIe -----------------------------------------------------------------------------------------


def _alone(sections: Sections, direction: str, *, pinned: bool = True) -> list[dict[str, Any]]:
    rows = sections.get("copies", {}).get("alone", [])
    return [row for row in rows if row["direction"] == direction and row["pinned"] == pinned]


def wait_s(sections: Sections) -> tuple[float, float, int] | None:
    """[s] that a small copy takes beyond its call and its share of a queue of such copies.

    A copy that the host waits for takes call + wait + bytes over the rate of its size.
    """
    rows = [row for row in _alone(sections, "h2d") if row["bytes"] <= _SMALL]
    if not rows:
        return None
    return central(max(1e-7, row["blocking_seconds"] - row["call_seconds"] - row["seconds"]) for row in rows)


def copy_seconds(sections: Sections, size: int) -> float | None:
    """[s] of one copy of pinned memory in a queue of such copies, of the measured size next to ``size``."""
    rows = _alone(sections, "h2d")
    if not rows:
        return None
    return float(min(rows, key=lambda row: abs(row["bytes"] - size))["seconds"])


def fit_pcie(sections: Sections) -> dict[str, Fitted]:
    """Numbers of a ``pcie`` profile by key; those that were not measured are missing."""
    found: dict[str, Fitted] = {}
    queued = "asynchronous copies queued one behind the other"
    curves = {
        "host_to_device": (_alone(sections, "h2d"), f"pinned memory, {queued}"),
        "device_to_host": (_alone(sections, "d2h"), f"pinned memory, {queued}"),
    }
    found |= {key: _curve(rows, what) for key, (rows, what) in curves.items() if rows}
    both = sections.get("copies", {}).get("both_ways", [])
    if both:
        share, residual, number = central(map(_both_share, both))
        what = "both directions at once over the sum of each alone"
        found["both_ways"] = Fitted(round(min(1.0, share), 4), what, number, residual)
    latency = wait_s(sections)
    if latency:
        value, residual, number = latency
        what = "blocking copies up to 64 KiB less the call and less the time in a queue"
        found["latency"] = Fitted(seconds_text(value), what, number, residual)
    return found


def fit_pageable(sections: Sections) -> dict[str, Fitted]:
    """``pageable`` of a host's profile: one thread of its CPU copies, whatever the link is."""
    rows = _alone(sections, "h2d", pinned=False)
    what = "pageable memory to the GPU, parts of 1 GiB in turn, so that none is in the CPU's cache"
    return {"pageable": _curve(rows, what)} if rows else {}


def _curve(rows: Sequence[Mapping[str, Any]], what: str) -> Fitted:
    points = [[bytes_text(row["bytes"]), rate_text(row["bytes"] / row["seconds"])] for row in rows]
    return Fitted(points, what, len(points))


def _both_share(row: dict[str, Any]) -> float:
    together = 1 / row["h2d_seconds"] + 1 / row["d2h_seconds"]
    return float(together / (1 / row["h2d_alone_seconds"] + 1 / row["d2h_alone_seconds"]))


# -- host memory --------------------------------------------------------------------------------


def fit_memory(sections: Sections) -> dict[str, Fitted]:
    """``memcpy_rate``, and ``memory_rate`` [B/s]: traffic that the host's memory was seen to carry.

    A CPU copy reads and writes each byte; a sum and a copy to a GPU read it. Where all GPUs that copy at once
    are slower than one alone, and than groups of them that share a limit of their own, what they draw
    together is taken as the limit of host memory, whatever the CPU's own copies reach: it is the limit that
    offloading meets, be it memory, its controllers or a shared cable. It is never below what a group draws.
    """
    found: dict[str, Fitted] = {}
    copies = sections.get("dram", {}).get("copies", [])
    single = [row for row in copies if row["threads"] == 1]
    if single:
        rate = single[0]["bytes"] / single[0]["seconds"]
        found["memcpy_rate"] = Fitted(rate_text(rate), "one thread, 1 GiB copied to another buffer", 1)
    pinned = [row["bytes"] * 2 / row["seconds"] for row in sections.get("dram", {}).get("pinning", [])]
    if pinned:  # a block is a power of two, and the tensor a page larger than ``bytes``
        middle, residual, count = central(pinned)
        what = "allocations of pinned memory that PyTorch did not have yet"
        found["pinned_allocation"] = Fitted(rate_text(middle), what, count, residual)
    traffic = [
        (2 * row["bytes"] / row["seconds"], f"CPU copies by {row['threads']} threads, read and written")
        for row in copies
    ]
    traffic += [
        (row["bytes"] / row["seconds"], f"reads by {plural(row['threads'], 'thread')}")
        for row in sections.get("memory_reads", {}).get("reads", [])
    ]
    to_gpus = list(_together(sections))
    groups = [(group.to_gpus, group.alone()) for group in measured_groups(sections)]
    traffic += [(one.rate, one.what) for one in to_gpus]
    traffic += [
        (row["bytes"] * (1 / row["h2d_seconds"] + 1 / row["d2h_seconds"]), "copies to and from one GPU")
        for row in sections.get("copies", {}).get("both_ways", [])
    ]
    slowed = to_gpus[-1] if to_gpus and to_gpus[-1].share < _SLOWED else None
    if traffic:
        seen = [*groups, (slowed.rate, slowed.what)] if slowed else traffic + groups
        rate, what = max(seen, key=lambda one: one[0])
        found["memory_rate"] = Fitted(rate, what, len(traffic))
        if slowed:
            found |= dict(_costlier(sections, rate, slowed.gpus))
    return found


def _costlier(sections: Sections, rate: float, gpus: int) -> Iterator[tuple[str, Fitted]]:
    """Copies of which so many GPUs make less than ``rate`` [B/s] together, that of pinned ones to GPUs."""
    for key, direction, pinned in (("from_gpu_traffic", "d2h", True), ("pageable_traffic", "h2d", False)):
        for one in _together(sections, direction, pinned=pinned):
            if one.gpus == gpus and one.share < _SLOWED and one.rate < rate:
                source = f"{rate_text(rate)} of pinned copies to GPUs over {rate_text(one.rate)}: {one.what}"
                yield key, Fitted(round(rate / one.rate, 3), source, 1)


def fit_bandwidth(sections: Sections, peak: float) -> dict[str, Fitted]:
    """Return the numbers of ``fit_memory`` by their keys in a host's profile.

    The rate is a fraction of ``peak`` [B/s], the bandwidth of the profile, which it replaces if it is higher.
    """
    found = fit_memory(sections)
    rate = found.pop("memory_rate", None)
    if rate is not None:
        if rate.value > peak:
            found["memory_bandwidth"] = rate._replace(value=rate_text(rate.value))
        share = min(1.0, float(f"{rate.value / peak:.4g}"))
        what = f"{rate.what}: {rate_text(rate.value)} of the peak"
        found["stream_fraction"] = rate._replace(value=share, what=what)
    return found


class _Together(NamedTuple):
    """Large copies of several GPUs at once."""

    gpus: int
    """The number of GPUs that copy at once: those with the lowest numbers."""
    rate: float
    """Their traffic [B/s]."""
    share: float
    """Fraction of what they have without the others: each alone, and the groups to which they belong."""
    what: str
    """What was measured and how much slower it is, for the source of a number."""


def _together(sections: Sections, direction: str = "h2d", *, pinned: bool = True) -> Iterator[_Together]:
    """Yield the largest copies of each number of GPUs at once, the most GPUs last."""
    alone = [
        row["bytes"] / row["seconds"]
        for row in _alone(sections, direction, pinned=pinned)
        if row["bytes"] >= _LARGE
    ]
    groups = measured_groups(sections) if pinned else []
    largest: dict[int, dict[str, Any]] = {}
    for section in sections.get("copies_together", {}).values():
        for row in section["together"]:
            count = len(row["seconds"])
            if (row["pinned"], row["direction"]) == (pinned, direction) and count > 1:
                largest[count] = max(row, largest.get(count, row), key=lambda row: row["bytes"])
    for count, row in sorted(largest.items() if alone else ()):
        rate = sum(row["bytes"] / seconds for seconds in row["seconds"])
        expected = _expected(groups, row.get("gpus", range(count)), max(alone), direction)
        share = rate / expected
        beside = "the rate of one alone" if expected == count * max(alone) else "what their groups reach"
        yield _Together(count, rate, share, f"{count} GPUs copying at once, {share:.0%} of {beside}")


def _expected(groups: Sequence[GpuGroup], gpus: Sequence[int], alone: float, direction: str) -> float:
    """[B/s] of copies of GPUs at once that only the limits of each and of groups slow down."""
    rates = []
    for group in groups:
        limit = group.to_gpus if direction == "h2d" else group.from_gpus
        rates.append(min(limit, alone * len(set(group.gpus) & set(gpus))))
    others = set(gpus) - {gpu for group in groups for gpu in group.gpus}
    return sum(rates) + alone * len(others)


# -- links among GPUs ---------------------------------------------------------------------------


def fit_interconnect(sections: Sections) -> tuple[float, float, Fitted] | None:
    """Rate [B/s] and latency [s] of all-gathers, and how well they fit; None where none was measured.

    seconds = latency + received / rate, with received = size · (ranks - 1) / ranks, over all sizes and
    numbers of ranks; each point counts by its relative error.
    """
    received: list[float] = []
    seconds: list[float] = []
    groups: set[int] = set()
    for group, section in sections.get("collectives", {}).items():
        for row in section["calls"]:
            if row["operation"] == "all_gather":
                ranks = row.get("ranks", int(group))
                groups.add(ranks)
                received.append(row["bytes"] * (ranks - 1) / ranks)
                seconds.append(row["seconds"])
    if len(seconds) < 2:
        return None
    times = np.array(seconds)
    matrix = np.stack([np.ones_like(times), np.array(received)], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(matrix / times[:, None], np.ones_like(times), rcond=None)
    if latency <= 0 or per_byte <= 0:
        return None
    residual = np.abs(matrix @ np.array([latency, per_byte]) - times) / times
    numbers = ", ".join(map(str, sorted(groups)))
    what = (
        f"all-gathers of 32 KiB to 1 GiB among {numbers} GPUs: latency + received bytes over rate, "
        f"mean residual {residual.mean():.1%}"
    )
    return float(1 / per_byte), float(latency), Fitted(None, what, len(seconds), float(residual.max()))


def is_switched(measured: Measured) -> bool:
    """Return whether GPUs have links of their own: all-gathers are faster than copies over PCIe."""
    found = fit_interconnect(measured.sections)
    if found is None:
        return measured.gpus > 1 and measured.base.profile.gpu_links == "switched"
    slot = measured.base.gpu_pcie_link
    copies = "pcie.host_to_device" in measured.fitted
    pcie = Pcie.model_validate(measured.profile("pcie")) if copies else slot.pcie
    return found[0] > pcie.down_rate(slot.lanes)


def fit_links(measured: Measured) -> dict[str, Any]:
    """Return what changes in the interconnect of an accelerator; nothing if GPUs have no links of their own.

    Its efficiency is a fraction of the rate in the profile, which the measured one replaces if it is higher.
    """
    found = fit_interconnect(measured.sections)
    if found is None or not is_switched(measured):
        return {}
    rate, latency, fitted = found
    base = measured.base.accelerator.interconnect
    links: dict[str, Any] = {} if base else {"name": "links among GPUs, measured"}
    per_direction = base.per_direction.value if base else rate
    if base is None or rate > per_direction:
        links["per_direction"] = fitted._replace(value=rate_text(rate))
    links["efficiency"] = fitted._replace(value=min(1.0, float(f"{rate / per_direction:.4g}")))
    links["latency"] = fitted._replace(value=seconds_text(latency))
    return links


# -- drives ---------------------------------------------------------------------------------------


def _rates(section: dict[str, Any], operation: str) -> list[tuple[int, float]]:
    """Pairs (bytes in flight at most, rate [B/s])."""
    rates = [
        (
            min(row["block"] * row["queue_depth"] * row["threads"], _TENSOR),
            row["bytes"] / row["seconds"],
        )
        for row in section["sweep"]
        if row["operation"] == operation
    ]
    if operation == "read":
        rates += [
            (_DEFAULT_IN_FLIGHT, row["bytes"] / (row["submit_seconds"] + row["wait_seconds"]))
            for row in section.get("tensors", [])
            if row["bytes"] > _DEFAULT_IN_FLIGHT
        ]
    return rates


def read_rate(section: dict[str, Any]) -> float:
    """[B/s] of the fastest setting."""
    return max(rate for _, rate in _rates(section, "read"))


def fit_drive(section: dict[str, Any]) -> dict[str, Fitted]:
    """Best rates, latencies of single 4 KiB requests, and the read rate by bytes in flight."""
    found = {"capacity": Fitted(bytes_text(section["filesystem_bytes"]), "size of the filesystem", 1)}
    requests = section["requests"]
    for operation in ("read", "write"):
        rates = _rates(section, operation)
        if not rates:
            continue
        best = max(rate for _, rate in rates)
        what = f"DeepSpeed aio {operation}s of 128 MiB tensors, the best of the settings"
        found[operation] = Fitted(rate_text(best), what, len(rates))
        seconds = max(1e-7, requests[f"{operation}_seconds"] - requests["bytes"] / best)
        what = f"single {operation}s of 4 KiB at random places, direct I/O, less the time of the bytes"
        found[f"{operation}_latency"] = Fitted(seconds_text(seconds), what, requests["count"])
    reads: dict[int, float] = {}
    fastest = 0.0
    for outstanding, rate in sorted(_rates(section, "read")):
        fastest = max(fastest, rate)  # more in flight is never slower: dips are other work on the machine
        reads[outstanding] = fastest
    if len(reads) > 1:
        points = [[bytes_text(outstanding), rate_text(rate)] for outstanding, rate in sorted(reads.items())]
        what = "DeepSpeed aio reads by block x queue depth x threads, the best with no more in flight"
        found["read_by_outstanding"] = Fitted(points, what, len(_rates(section, "read")))
    return found


def fit_storage(section: dict[str, Any], date: str) -> dict[str, Any]:
    """Return a drive's profile: what was measured, and the lanes that carry it."""
    rate = read_rate(section)
    pcie = Library().find(_GEN5, ("pcie",)).profile
    assert isinstance(pcie, Pcie)
    lanes = next((lanes for lanes in _LANES if pcie.payload_rate(lanes) >= rate), _LANES[-1])
    about = "arithmetic: the fewest lanes that carry the measured rate; what is attached is not visible"
    notes = (
        f"The storage of a folder, whose filesystem is {section.get('filesystem') or 'unknown'}: one "
        "drive, several drives, or a server."
    )
    slot = {"value": lanes, "origin": "estimate", "source": about, "date": date}
    return {
        "name": "Storage of the measured machine",
        "notes": notes,
        **fit_drive(section),
        "pcie": {"profile": _GEN5, "lanes": slot},
    }
