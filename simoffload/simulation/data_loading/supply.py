"""What storage can deliver to the loaders of all ranks at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from simoffload.hardware import Machine, Path
from simoffload.hardware.sharing import Demand, fair_rates, loads
from simoffload.workload.dataset import Dataset

__all__ = ["StorageRoutes", "Supply", "storage_routes"]

ROUNDING = 1e-6
"""Rates are whole [B/s]: a link that lacks less than this fraction is full, a step longer by less waits for
nothing."""


class Supply(NamedTuple):
    """Rates of the rank that gets least; the others wait for it."""

    rate: float
    """[B/s] of one rank while all ranks read."""
    alone: float
    """[B/s] of one worker that has everything to itself."""
    link: str
    """The resource that is full, "" where the requests of the workers are not enough to fill one."""


@dataclass(frozen=True)
class StorageRoutes:
    """The ways of all ranks from a tier to the memory of their hosts, whatever the number of workers."""

    paths: tuple[Path, ...]
    hops: tuple[tuple[tuple[int, int], ...], ...]
    """Of each rank: pairs (resource, ``scale`` x bytes on it per byte read)."""
    scale: int
    names: tuple[str, ...]
    free: tuple[int, ...]
    """[B/s] of every resource that is left for the data."""

    def supply(self, dataset: Dataset) -> Supply:
        """Share the resources among the ranks, max-min fairly.

        A rank can use no more than its workers have in flight over the time of a request (Little's law, or
        the drive's measured curve), nor more than its workers' transfers reach alone.
        """
        workers = max(1, dataset.workers)
        caps = [_cap(dataset, path, workers) for path in self.paths]
        demands = [Demand(hops, cap) for hops, cap in zip(self.hops, caps, strict=True)]
        rates = fair_rates(demands, [capacity * self.scale for capacity in self.free])
        slowest = min(range(len(rates)), key=rates.__getitem__)
        carried = loads(demands, rates)
        hops = self.hops[slowest]
        fill = {link: carried[link] / (self.free[link] * self.scale) for link, _ in hops}
        fullest = max(fill, key=fill.__getitem__)
        narrow = min(self.free[link] * self.scale // coefficient for link, coefficient in hops)
        return Supply(
            rate=max(1, rates[slowest]),
            alone=max(1, min(_cap(dataset, self.paths[slowest], 1), narrow)),
            link=self.names[fullest] if fill[fullest] > 1 - ROUNDING else "",
        )


def storage_routes(
    dataset: Dataset,
    machine: Machine,
    *,
    ranks: int,
    requests_per_second: int | None = None,
    background: Mapping[str, float] | None = None,
) -> StorageRoutes:
    """The ways of ``ranks`` to the dataset's tier.

    ``requests_per_second`` is what the target, of each host if it is local, serves at most; ``background``
    [B/s] is what else crosses a resource, by its name.
    """
    paths = tuple(machine.storage_read(dataset.tier, gpu) for gpu in range(ranks))
    busy = background or {}
    names = [resource.name for resource in machine.resources]
    free = [max(1, int(one.capacity - busy.get(one.name, 0))) for one in machine.resources]
    hops = [list(path.hops) for path in paths]
    if requests_per_second is not None:
        _limit_requests(dataset, machine, hops, names, free, requests_per_second)
    scale = lcm(*(share.denominator for each in hops for _, share in each))
    scaled = tuple(tuple((link, int(share * scale)) for link, share in each) for each in hops)
    return StorageRoutes(paths, scaled, scale, tuple(names), tuple(free))


def _cap(dataset: Dataset, path: Path, workers: int) -> int:
    """[B/s] that the requests of ``workers`` of one rank reach on an empty machine."""
    waiting = path.outstanding_rate(workers * dataset.in_flight, block=dataset.request)
    return min(waiting, workers * path.curve.rate(dataset.sample_size))


def _limit_requests(
    dataset: Dataset,
    machine: Machine,
    hops: list[list[tuple[int, Fraction]]],
    names: list[str],
    free: list[int],
    requests_per_second: int,
) -> None:
    """Add a resource for what the target serves: one on every host for local drives, else one in all."""
    local = machine.topology.targets[dataset.tier].drives > 0
    first = len(free)
    for node in range(machine.nodes if local else 1):
        prefix = f"node{node} " if local and machine.nodes > 1 else ""
        names.append(f"{prefix}{dataset.tier} requests/s")
        free.append(max(1, requests_per_second * dataset.request))
    for gpu, each in enumerate(hops):
        each.append((first + (gpu // machine.gpus_per_node if local else 0), Fraction(1)))
