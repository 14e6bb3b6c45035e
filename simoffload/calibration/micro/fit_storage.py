"""Numbers of a drive from DeepSpeed's own reads and writes."""

from __future__ import annotations

from typing import Any

from simoffload.calibration.micro.fitted import Fitted, bytes_text, rate_text, seconds_text

__all__ = ["fit_drive", "read_rate"]

_DEFAULT_IN_FLIGHT = 8 << 20
"""[B] DeepSpeed's default: 8 requests of 1 MiB."""
_TENSOR = 128 << 20
"""[B] No more than one tensor is in flight: a thread of aio finishes one before it begins the next."""


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
