"""Rate at which the loader of a rank makes batches, from the rates of storage and host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from simoffload.hardware import Demand, Machine, Path, fair_rates, loads
from simoffload.results import Limit
from simoffload.workload import Dataset

ROUNDING = 1e-6
"""Relative tolerance of comparisons, because rates are whole numbers [B/s]: a link with less free capacity
than this is full, and a step that is longer by less does not wait."""


class Supply(NamedTuple):
    """A Supply is the storage rate of the rank with the lowest rate."""

    rate: float
    """Rate of one rank while all ranks read [B/s]."""
    alone: float
    """Rate of one worker if no other reads [B/s]."""
    link: str
    """Name of the full resource; "" if the workers' requests do not fill any."""


@dataclass(frozen=True)
class StorageRoutes:
    """StorageRoutes are the routes from a tier to the host memory of all ranks."""

    paths: tuple[Path, ...]
    hops: tuple[tuple[tuple[int, int], ...], ...]
    """Resources on each rank's route: pairs (resource, ``scale`` x bytes on it per byte read)."""
    scale: int
    names: tuple[str, ...]
    free: tuple[int, ...]
    """Rate of every resource that other traffic leaves for the data [B/s]."""

    def supply(self, dataset: Dataset) -> Supply:
        """Return the supply with ``workers`` workers per rank; ranks share resources max-min fairly.

        The rate of a rank is limited by the bytes that its workers have in flight over the time of a request
        (Little's law, or the drive's measured curve), and by the rate that its transfers reach alone.
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
    """Return the routes of ``ranks`` ranks from the dataset's tier.

    ``requests_per_second`` is the largest request rate of the target (of each host, if it is local);
    ``background`` [B/s] is the other traffic on each resource, by name.
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
    """Return the rate [B/s] that the requests of ``workers`` workers of one rank reach on an idle machine."""
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
    """Add a resource for the request rate of the target: one per host for local drives, else one in total."""
    local = machine.targets[dataset.tier].drives > 0
    first = len(free)
    for node in range(machine.nodes if local else 1):
        prefix = f"node{node} " if local and machine.nodes > 1 else ""
        names.append(f"{prefix}{dataset.tier} requests/s")
        free.append(max(1, requests_per_second * dataset.request))
    for gpu, each in enumerate(hops):
        each.append((first + (gpu // machine.gpus_per_node if local else 0), Fraction(1)))


class LoaderHost(NamedTuple):
    """A LoaderHost has the rates of a host that its ranks share."""

    ranks: int
    memcpy_rate: int
    """Rate at which one process copies from the page cache [B/s]."""
    cores: int | None
    """Number of cores; None if there are enough for all workers."""


class Pace(NamedTuple):
    """A Pace is the time that a loader needs for batches."""

    batch_s: float
    """Time between batches with all workers busy [s]."""
    first_batch_s: float
    """Time until the first batch, which one worker makes alone [s]."""
    limit: Limit
    """What limits the rate of the loader."""


class GpuStep(NamedTuple):
    """A GpuStep is the time of the GPUs for batches and steps."""

    time_s: float
    """Time of a step that never waits for a batch [s]."""
    batches: int
    """Number of batches per rank and step (``gradient_accumulation_steps``)."""
    pause_s: float
    """Time at the end of a step during which no batch is taken, for the optimizer [s]."""

    @property
    def batch_s(self) -> float:
        """GPU time per batch [s]."""
        return (self.time_s - self.pause_s) / self.batches

    def waiting(self, batch_s: float, dataset: Dataset) -> float:
        """Return the time [s] of a step if the busy workers finish a batch every ``batch_s`` [s].

        In the pause the queues are filled, but only up to the prefetch limit. A worker begins another batch
        when the GPU takes one of its batches, and the workers take turns.
        """
        needed = self.batches * batch_s
        if dataset.workers == 0:
            return self.time_s + needed
        late = self.batches - dataset.workers * dataset.prefetch_factor
        if late <= 0:
            return max(self.time_s, needed)
        rounds, rest = divmod(late - 1, dataset.workers)
        last = (rounds + 1) * dataset.workers * batch_s + rest * self.batch_s
        return max(self.time_s, needed, self.pause_s + last + self.batch_s)

    def epoch(self, steps: int, pace: Pace, dataset: Dataset) -> float:
        """Return the time [s] of an epoch of ``steps`` steps; its queues are empty at the beginning."""
        waiting = steps * self.waiting(pace.batch_s, dataset)
        if dataset.workers == 0:
            return waiting
        loaded = steps * self.batches * pace.batch_s + self.batch_s + self.pause_s
        return max(pace.first_batch_s + steps * self.time_s, loaded, waiting)


class _Sample(NamedTuple):
    """A _Sample has the times [s] of a worker for a sample, by activity."""

    requests: float
    decode: float
    files: float
    copy: float

    @property
    def longest(self) -> Limit:
        limits: tuple[Limit, ...] = ("requests", "decode", "files", "copy")
        return limits[self.index(max(self))]


def loader_pace(dataset: Dataset, supply: Supply, host: LoaderHost, *, batch: int, hit_ratio: float) -> Pace:
    """Return the pace at which a rank's workers make batches of ``batch`` samples while all ranks do the
    same.

    It is the slowest of three: the workers in parallel, the rank's share of storage, and the host's cores.
    """
    workers = max(1, dataset.workers)
    missed = (1 - hit_ratio) * dataset.bytes_per_read
    sample = _sample(dataset, missed, supply.alone, host)
    worked = sample.copy + sample.decode
    candidates: list[tuple[float, Limit]] = [
        (missed / supply.rate, "link" if supply.link else "requests"),  # first: it wins a tie
        (sum(sample) / workers, sample.longest),
    ]
    crowd = 1.0
    if host.cores is not None:
        candidates.append((host.ranks * worked / host.cores, "cores"))
        crowd = max(1.0, host.ranks * workers / host.cores)
    slowest, limit = max(candidates, key=lambda candidate: candidate[0])
    first = _sample(dataset, missed, min(supply.alone, supply.rate / workers), host)
    return Pace(batch * slowest, batch * (sum(first) + (crowd - 1) * worked), limit)


def _sample(dataset: Dataset, missed: float, rate: float, host: LoaderHost) -> _Sample:
    """Return the times of a sample of which ``missed`` [B] come from storage at ``rate`` [B/s]."""
    return _Sample(
        requests=missed / rate,
        decode=dataset.decode_time,
        files=dataset.open_time / dataset.samples_per_file,
        copy=dataset.sample_size / host.memcpy_rate if dataset.page_cache else 0.0,
    )
