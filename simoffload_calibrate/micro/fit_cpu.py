"""Products on the CPU: numbers of ``cpu_products`` of a host from what its CPU reads and computes.

Each is an equation of ``strategies.hooks.on_cpu`` solved for one number, as in
``exchange.llama_bench_profiles``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot
from typing import TYPE_CHECKING, Any

from simoffload.hardware import P90
from simoffload.hardware.quantities import saturating
from simoffload.units import parse_rate, plural
from simoffload_calibrate.micro.fitted import Fitted, central, flops_text, rate_text, seconds_text

if TYPE_CHECKING:
    from simoffload_calibrate.micro.profiles import Measured


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
    Experts give 1 / rate² = 1 / (T · thread)² + 1 / (experts · peak)², beside two meetings of the threads.
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
    return found | _tiles(speeds, noise) | _meetings(measured) | _experts(measured, threads)


def _experts(measured: Measured, threads: Mapping[str, float]) -> dict[str, Fitted]:
    """Return the share of the memory's bandwidth with which chosen experts are read; ``threads`` has the rate
    of a thread by format [B/s]."""
    ggml, meeting = measured.sections.get("ggml", {}), measured.base.host.products.operation.value
    if ggml.get("meetings"):
        meeting = ggml["meetings"][-1]["seconds"]
    shares: dict[str, float] = {}
    for row in ggml.get("experts", []):
        rate = row["bytes"] / max(row["seconds"] - 2 * meeting, row["seconds"] / 2)
        alone = row["threads"] * threads[row["format"]]
        if rate < _IDENTIFIED * alone:
            shares[row["format"]] = min(1.0, (rate**-2 - alone**-2) ** -0.5 / _peak(measured))
    if not shares:
        return {}
    value, residual, count = central(shares.values())
    noise = max((_spread(row) or 0.0 for row in ggml["experts"]), default=0.0)
    what = f"products of ggml with chosen experts, {', '.join(shares)}"
    return {"experts": Fitted(float(f"{value:.4g}"), what, count, residual, hypot(residual, noise))}


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


def fit_page_faults(measured: Measured) -> dict[str, Fitted]:
    """Return ``page_faults`` of a host's ``cpu_products``: the rate of the most threads, as all threads of
    llama.cpp read a mapped file, and of it what is left in memory that is full; empty where it was not
    measured."""
    rows = measured.sections.get("page_faults", {}).get("reads", [])
    if not rows:
        return {}
    rates = [f"{rate_text(row['bytes'] / row['seconds'])} by {row['threads']}" for row in rows]
    what = f"{_FULL:g} of the rate while memory had room, as on two machines: {', '.join(rates)} threads"
    most = rows[-1]
    value = rate_text(_FULL * most["bytes"] / most["seconds"])
    spread = hypot(_FULL_SPREAD, _spread(most) or 0.0)
    return {"page_faults": Fitted(value, what, len(rows), spread=spread, measured=False)}


_FULL, _FULL_SPREAD = 0.6, 0.15
"""Share of the rate of page faults that is left where every page evicts another, and its spread: runs of
llama.cpp in little memory read 1.09 GB/s on a machine with 1.83 GB/s of 16 threads while memory had room, and
1.0 on one with 1.57 (docs/measurements/llama-cpp.md)."""


def _spread(row: Mapping[str, Any]) -> float | None:
    """Return the relative standard deviation of repetitions from their P10 and P90, if these are known."""
    limits = row.get("seconds_spread")
    return (limits[1] - limits[0]) / (2 * P90 * row["seconds"]) if limits else None
