"""GPUs that slow each other's copies: subsets to measure, and the groups that their times show.

GPUs whose copies pass through the same socket, PCIe switch or cable share its rate. Subsets of half of the
GPUs copy at once: what all of them share slows every subset alike, so a GPU that is slower in the company of
another one shares something with it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from math import comb
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

__all__ = ["GpuGroup", "found_groups", "measured_groups", "pair_ratios", "subsets"]

_LEAST = 3
"""The least number of GPUs of which some may share what others do not."""
_MOST = 70
"""The largest number of subsets of which all are measured; eight GPUs have as many subsets of four."""
_SAMPLED = 4
"""The number of subsets per GPU where not all are measured, if this is more than 70. A GPU is in half of
them, twice as many as there are other GPUs."""
_SLOWING = 0.95
"""Ratio of the rates with and without another GPU below which both belong to one group; our choice. With an
error of 3 % in every time the ratios of eight GPUs have an error of 0.7 %."""

Row = Mapping[str, Any]


class GpuGroup(NamedTuple):
    """GPUs that share a rate."""

    gpus: tuple[int, ...]
    to_gpus: float
    """Rate [B/s] of pinned copies to all of them at once."""
    from_gpus: float
    """Rate [B/s] of pinned copies from all of them at once."""
    inside: float
    """Mean ratio of the rate of one of them with another of them to that without it."""
    outside: float
    """The same with a GPU of no group or another one."""
    subsets: int
    """The number of subsets that were measured."""

    def alone(self) -> str:
        """Return how the rates were measured, for their source."""
        return f"GPUs {', '.join(map(str, self.gpus))} copying at once, and no others"

    def evidence(self) -> str:
        """Return how the group was found, for the source of its numbers."""
        return (
            f"pinned copies to {self.subsets} subsets of the GPUs at once: one of the group has "
            f"{self.inside:.2f} x its rate beside another of them, and {self.outside:.2f} x beside others"
        )


def subsets(gpus: int) -> list[tuple[int, ...]]:
    """Return the subsets of half of the GPUs that copy at once, or pairs of three; none of fewer GPUs.

    If there are more than 70, the result is a fixed sample in which pairs occur about equally often.
    """
    if gpus < _LEAST:
        return []
    size = max(2, gpus // 2)
    if comb(gpus, size) <= _MOST:
        return list(combinations(range(gpus), size))
    together = [[0] * gpus for _ in range(gpus)]
    order, sample = Random(0), set[tuple[int, ...]]()
    while len(sample) < max(_MOST, _SAMPLED * gpus):
        rest = order.sample(range(gpus), gpus)
        chosen = [rest.pop()]
        while len(chosen) < size:
            chosen.append(min(rest, key=lambda gpu: sum(together[gpu][other] for other in chosen)))
            rest.remove(chosen[-1])
        for one, other in permutations(chosen, 2):
            together[one][other] += 1
        sample.add(tuple(sorted(chosen)))
    return sorted(sample)


def pair_ratios(rows: Sequence[Row]) -> dict[tuple[int, int], float]:
    """Return, for each pair of GPUs, the rate of one with the other over its rate without it.

    ``rows`` are pooled times of subsets of one size. The rates are means over all subsets, and the result is
    the mean of both directions of the pair. In a sample of the subsets, a third GPU may be there more often
    with the other than without it. So the means are those of a linear model of who is there, as if every
    third GPU were there equally often; with all subsets they are the plain means.
    """
    gpus = sorted({gpu for row in rows for gpu in row["gpus"]})
    slowed = {gpu: _ratios([row for row in rows if gpu in row["gpus"]], gpu, gpus) for gpu in gpus}
    return {
        (one, other): fmean((slowed[one][other], slowed[other][one])) for one, other in combinations(gpus, 2)
    }


def _ratios(rows: Sequence[Row], gpu: int, gpus: Sequence[int]) -> dict[int, float]:
    """Return the mean rate of a GPU with each other one over that without it."""
    others = [other for other in gpus if other != gpu]
    present = np.array([[other in row["gpus"] for other in others] for row in rows], dtype=float)
    rates = np.array([row["bytes"] / row["seconds"][list(row["gpus"]).index(gpu)] for row in rows])
    table = np.column_stack([np.ones(len(rows)), present])
    (constant, *effects), *_ = np.linalg.lstsq(table, rates, rcond=None)
    beside = present.sum(axis=1).mean()
    found = {}
    for other, effect in zip(others, effects, strict=True):
        third = (sum(effects) - effect) / max(1, len(others) - 1)
        found[other] = float((constant + effect + (beside - 1) * third) / (constant + beside * third))
    return found


def found_groups(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """Return the groups of GPUs that slow each other clearly, each of them and the groups in rising order.

    GPUs belong to one group if a chain of pairs with ratios below 0.95 connects them. There are no groups if
    nothing slows anything, or if all GPUs belong together: their limit is that of the host's memory.
    """
    ratios = pair_ratios(rows)
    group = {gpu: {gpu} for row in rows for gpu in row["gpus"]}
    for (one, other), ratio in ratios.items():
        if ratio < _SLOWING and group[one] is not group[other]:
            joined = group[one] | group[other]
            group |= dict.fromkeys(joined, joined)
    several = {tuple(sorted(members)) for members in group.values() if 1 < len(members) < len(group)}
    return sorted(several)


def measured_groups(sections: Mapping[str, Any]) -> list[GpuGroup]:
    """Return the groups of the most GPUs that a record has, with their rates; none where none were found."""
    measured = sections.get("copies_together", {})
    section = measured[max(measured, key=int)] if measured else {}
    rows, rated = section.get("subsets", []), section.get("groups", [])
    ratios = pair_ratios(rows)
    groups = []
    for gpus in found_groups(rows):
        rates = {
            row["direction"]: sum(row["bytes"] / seconds for seconds in row["seconds"])
            for row in rated
            if tuple(row["gpus"]) == gpus
        }
        if {"h2d", "d2h"} <= rates.keys():
            touching = {pair: ratio for pair, ratio in ratios.items() if set(pair) & set(gpus)}
            inside = fmean(ratio for pair, ratio in touching.items() if set(pair) <= set(gpus))
            outside = fmean(ratio for pair, ratio in touching.items() if not set(pair) <= set(gpus))
            groups.append(GpuGroup(gpus, rates["h2d"], rates["d2h"], inside, outside, len(rows)))
    return groups
