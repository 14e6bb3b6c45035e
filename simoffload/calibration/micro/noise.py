"""How noisy the machine was: probes of its host thread before and after everything that is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean, median
from typing import Any

__all__ = ["is_noisy", "level", "machine_noise", "quietest"]

DRIFT = 1.15
"""By this factor the speed of the host changed between the probes before and after a section."""
LOUD = 1.25
"""A host slower than this, as a multiple of the quietest probe on this machine, was disturbed.

Both are from 38 probes on the noisy virtual machine of an H100: two, one after the other, differed by 13 % in
the median and by at most 32 %; the median was 1.26 times as slow as the quietest one."""
_QUANTILES = ("p10", "p25", "p50", "p75", "p90")

Probe = Mapping[str, Any]


def level(probe: Probe) -> float:
    """[s] of a call in a probe: the geometric mean over its kinds of calls, for each that of its quantiles.

    A thread that shares its core with another one is twice as slow for some milliseconds and then as fast as
    ever: the median jumps from one to the other, while the mean says how much of the time it was so.
    """
    means = (fmean(float(kind[name]) for name in _QUANTILES) for kind in probe["calls"].values())
    return exp(fmean(map(log, means)))


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
