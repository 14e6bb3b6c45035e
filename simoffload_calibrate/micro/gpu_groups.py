"""GPUs that slow each other's copies: subsets to measure, and the groups that their times show.

GPUs whose copies pass through the same socket, PCIe switch or cable share its rate. Subsets of the GPUs copy
at once: what all of them share slows every subset of one size alike, so a GPU that is slower in the company
of another one shares something with it alone. In subsets of half of the GPUs the limit of all does not hide
that of a group; subsets of all but one show what only a complete group reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from math import comb
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

_LEAST = 3
"""The least number of GPUs of which some may share what others do not."""
_MOST = 70
"""The number of copies of subsets of half of the GPUs, and the largest number of such subsets of which all
are measured; eight GPUs have as many subsets of four."""
_SAMPLED = 4
"""The number of subsets per GPU where not all are measured, if this is more than 70. A GPU is in half of
them, twice as many as there are other GPUs."""
_ALL_BUT_ONE = 32
"""The number of copies of subsets that lack one GPU: there are few of them, so that each copies several
times."""
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
    size: int
    """Number of GPUs in the subsets that show the group most clearly."""
    inside: float
    """Mean ratio of the rate of one of them with another of them to that without it, in these subsets."""
    outside: float
    """The same with a GPU of no group or another one."""
    subsets: int
    """The number of these subsets."""

    def alone(self) -> str:
        """Return how the rates were measured, for their source."""
        return f"GPUs {', '.join(map(str, self.gpus))} copying at once, and no others"

    def evidence(self) -> str:
        """Return how the group was found, for the source of its numbers."""
        return (
            f"pinned copies to {self.subsets} subsets of {self.size} of the GPUs at once: one of the group "
            f"has {self.inside:.2f} x its rate beside another of them, and {self.outside:.2f} x beside others"
        )


def subsets(gpus: int) -> list[tuple[int, ...]]:
    """Return the subsets of the GPUs that copy at once: those of half of them (of three: pairs), then those
    of all but one. There are none of fewer than three GPUs.

    If there are more than 70 of half of the GPUs, the result has a fixed sample of these in which pairs occur
    about equally often.
    """
    return [*_of_half(gpus), *_of_all_but_one(gpus)]


def copying_subsets(gpus: int) -> list[tuple[int, ...]]:
    """Return the subsets in the order in which they copy; if there are few of a size, each copies several
    times.

    The number of copies depends little on the number of GPUs; eight make 102.
    """
    half, all_but_one = _of_half(gpus), _of_all_but_one(gpus)
    return [*_repeated(half, _MOST), *_repeated(all_but_one, _ALL_BUT_ONE)]


def _repeated(chosen: list[tuple[int, ...]], copies: int) -> list[tuple[int, ...]]:
    return chosen * max(1, copies // max(1, len(chosen)))


def _of_all_but_one(gpus: int) -> list[tuple[int, ...]]:
    return list(combinations(range(gpus), gpus - 1)) if gpus > _LEAST else []


def _of_half(gpus: int) -> list[tuple[int, ...]]:
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

    GPUs belong to one group if a chain of pairs connects them whose ratios are below 0.95 in subsets of any
    size. There are no groups if nothing slows anything, or if all GPUs belong together: their limit is that
    of the host's memory.
    """
    group = {gpu: {gpu} for row in rows for gpu in row["gpus"]}
    for ratios in _ratios_by_size(rows).values():
        for (one, other), ratio in ratios.items():
            if ratio < _SLOWING and group[one] is not group[other]:
                joined = group[one] | group[other]
                group |= dict.fromkeys(joined, joined)
    several = {tuple(sorted(members)) for members in group.values() if 1 < len(members) < len(group)}
    return sorted(several)


def _ratios_by_size(rows: Sequence[Row]) -> dict[int, dict[tuple[int, int], float]]:
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(len(row["gpus"]), []).append(row)
    return {size: pair_ratios(of_size) for size, of_size in sizes.items()}


def measured_groups(sections: Mapping[str, Any]) -> list[GpuGroup]:
    """Return the groups that a record has, with their rates; none if a subset was not measured, because the
    missing ones would mislead."""
    return [
        group
        for gpus, section in sections.get("copies_subsets", {}).items()
        if has_all_subsets(section["subsets"], int(gpus))
        for group in _rated_groups(section)
    ]


def has_all_subsets(rows: Sequence[Row], gpus: int) -> bool:
    """Return whether there is a row of every subset of so many GPUs."""
    return {tuple(row["gpus"]) for row in rows} == set(subsets(gpus))


def _rated_groups(section: Mapping[str, Any]) -> Iterator[GpuGroup]:
    """Yield the groups of a section whose rates were measured in both directions."""
    rows = section["subsets"]
    for gpus in found_groups(rows):
        rates = {
            row["direction"]: sum(row["bytes"] / seconds for seconds in row["seconds"])
            for row in section["groups"]
            if tuple(row["gpus"]) == gpus
        }
        if {"h2d", "d2h"} <= rates.keys():
            inside, outside, size = min(
                (*_mean_ratios(ratios, gpus), size) for size, ratios in _ratios_by_size(rows).items()
            )
            number = sum(len(row["gpus"]) == size for row in rows)
            yield GpuGroup(gpus, rates["h2d"], rates["d2h"], size, inside, outside, number)


def _mean_ratios(ratios: Mapping[tuple[int, int], float], gpus: Sequence[int]) -> tuple[float, float]:
    """Return the mean of the pairs within a group, and of those with one GPU in it."""
    members = [(len(set(pair) & set(gpus)), ratio) for pair, ratio in ratios.items()]
    inside, outside = (fmean(ratio for count, ratio in members if count == number) for number in (2, 1))
    return inside, outside
