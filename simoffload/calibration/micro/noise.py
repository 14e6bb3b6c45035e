"""How noisy the machine was: probes of its host thread before and after everything that is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean, median
from typing import Any

__all__ = ["is_noisy", "level", "machine_noise", "quietest"]

DRIFT = 1.10
"""By this factor the speed of the host changed between the probes before and after a section."""
LOUD = 1.20
"""A host slower than this, as a multiple of the quietest probe on this machine, was disturbed."""

Probe = Mapping[str, Any]


def level(probe: Probe) -> float:
    """[s] of a call in a probe: the geometric mean of the medians of its kinds of calls."""
    return exp(fmean(log(float(kind["p50"])) for kind in probe["calls"].values()))


def quietest(probes: Sequence[Probe]) -> float:
    """[s] the shortest level of all probes."""
    return min(map(level, probes))


def is_noisy(measured: Mapping[str, Any], probes: Sequence[Probe]) -> bool:
    """Whether the probes before and after something measured differ, or both tell of a disturbed host."""
    before, after = sorted(level(probes[index]) for index in measured["probes"])
    return after > DRIFT * before or before > LOUD * quietest(probes)


def machine_noise(rounds: Sequence[Mapping[str, Any]], probes: Sequence[Probe]) -> dict[str, Any]:
    """The summary in the record; levels as multiples of the quietest probe. Empty without a probe.

    "sections" says how often each was measured, and how often of that the host was quiet.
    """
    if not probes:
        return {}
    best = quietest(probes)
    levels = [level(probe) / best for probe in probes]
    sections: dict[str, dict[str, int]] = {}
    for one in rounds:
        row = sections.setdefault(one["section"], {"measured": 0, "quiet": 0})
        row["measured"] += 1
        row["quiet"] += not is_noisy(one, probes)
    steal = [float(probe["steal"]) for probe in probes if probe.get("steal") is not None]
    return {
        "probes": len(probes),
        "quietest_seconds": best,
        "median": round(median(levels), 3),
        "worst": round(max(levels), 3),
        "largest_steal": round(max(steal), 4) if steal else None,
        "repeated": len({(one["section"], one["round"]) for one in rounds if one["again"]}),
        "sections": sections,
    }
