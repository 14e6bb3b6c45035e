"""Links, host memory and drives: numbers of profiles from measured times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simoffload.hardware.library import Library
from simoffload.hardware.profiles import Pcie
from simoffload.units import plural
from simoffload_calibrate.micro.fitted import (
    Fitted,
    bytes_text,
    central,
    rate_text,
    seconds_text,
)
from simoffload_calibrate.micro.gpu_groups import GpuGroup, measured_groups

if TYPE_CHECKING:
    from simoffload_calibrate.micro.profiles import Measured

Sections = dict[str, Any]
_LANES = (1, 2, 4, 8, 16)
_GEN5 = "gen5"
_SMALL = 64 << 10
"""[B] Copies up to this size show the cost of calls, not of bytes."""
_LARGE = 256 << 20
"""[B] Copies from this size on show the rate."""
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
        "pageable": (
            _alone(sections, "h2d", pinned=False),
            "pageable memory to the GPU, parts of 1 GiB in turn, so that none is in the CPU's cache",
        ),
    }
    for key, (rows, what) in curves.items():
        if rows:
            points = [[bytes_text(row["bytes"]), rate_text(row["bytes"] / row["seconds"])] for row in rows]
            found[key] = Fitted(points, what, len(points))
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
