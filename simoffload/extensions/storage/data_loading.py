"""Data loading in training: whether the GPUs wait for data, and how much of it is in the page cache.

The page cache is assumed to replace the least recently used page (LRU). Linux differs slightly: it keeps
pages that were used twice in a second list, and so finds a part of a dataset that is read in order. The
prediction is therefore a lower bound of the hit ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm, log
from typing import Any, Literal, NamedTuple

from simoffload.hardware import Demand, Machine, Path, fair_rates, loads
from simoffload.units import format_bytes, format_rate, format_seconds
from simoffload.workload import Dataset

# -- the result ------------------------------------------------------------------------------------
# Whether reading the dataset delays a training run, and why.

ReadingLimit = Literal[
    "gpu", "link", "requests", "decode", "files", "copy", "cores", "look_ahead", "no_workers"
]
"""Limit of the rate of loading: the GPU (it never waits), a full link or target, the time of a request
(latency and requests in flight), decoding in the workers, opening files, copies from the page cache, all
cores of the host, too few prefetched batches for the time of the optimizer, or reading between the steps
without workers."""


class Epoch(NamedTuple):
    """An Epoch has the times of one epoch, or of several equal ones in sequence."""

    first: int
    """Number of the first such epoch, counted from 1."""
    repeats: int
    hit_ratio: float
    """Fraction of the samples found in the hosts' page caches."""
    needed: float
    """[B/s] that storage must deliver to all ranks so that no GPU waits (mean over a step)."""
    reachable: float
    """[B/s] that storage delivers to the workers of all ranks, if all are as slow as the slowest rank."""
    first_batch_s: float
    """[s] until the first batch is ready, for which the GPU always waits."""
    batch_s: float
    """[s] that a rank's loader needs for each batch."""
    step_s: float
    """[s] of a step, including waiting for its batches."""
    starvation: float
    """Fraction of the step in which the GPU waits for data."""
    limit: ReadingLimit
    link: str
    """Name of the full resource, if ``limit`` is "link"."""
    duration_s: float
    """[s] of one such epoch."""


class DataLoading(NamedTuple):
    """DataLoading has the times of reading the dataset in a training run."""

    size: int
    """[B] of the dataset."""
    stored: int
    """[B] that the tier must hold; if its drives are local and the order of samples changes, each host has a
    copy."""
    fits: bool
    steps_per_epoch: int
    cache: int
    """[B] of each host's memory that are free for its page cache."""
    look_ahead: int
    """[B] of each host's memory for prefetched batches."""
    bridged_s: float
    """[s] without a new batch that the prefetched batches cover."""
    epochs: tuple[Epoch, ...]
    workers_needed: int | None
    """Smallest number of workers per rank with which no GPU waits in the first epoch; None if no number
    suffices."""
    remaining: ReadingLimit
    """Limit of the first epoch with that number of workers, or with the largest number that is tried."""

    @property
    def cold(self) -> Epoch:
        """First epoch, with cold page caches."""
        return self.epochs[0]

    @property
    def warm(self) -> Epoch:
        """Last epoch, with warm page caches."""
        return self.epochs[-1]

    @property
    def duration_s(self) -> float:
        """[s] of all epochs."""
        return sum(epoch.repeats * epoch.duration_s for epoch in self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return self._asdict() | {
            "epochs": [epoch._asdict() for epoch in self.epochs],
            "duration_s": self.duration_s,
        }


def data_loading_sentences(dataset: Dataset, data_loading: DataLoading) -> tuple[str, ...]:
    """Return sentences: whether the GPUs wait for data, why, what would help, and the effect of the page
    cache."""
    cold, warm = data_loading.cold, data_loading.warm
    lines = [_verdict(cold)]
    if cold.limit != "gpu":
        lines.append(_cause(dataset, cold))
        lines.append(_remedy(data_loading))
    if data_loading.epochs[1:] and dataset.page_cache:
        found = (
            f"from epoch 2 on the page cache ({format_bytes(data_loading.cache, binary=True)} per host) has "
        )
        lines.append(found + f"{warm.hit_ratio * 100:.0f} % of what is read; {_verdict(warm)}")
    if not data_loading.fits:
        lines.append(f"{dataset.tier} is too small for {format_bytes(data_loading.stored)} of data")
    return tuple(lines)


def _verdict(epoch: Epoch) -> str:
    need = f"{format_rate(epoch.needed)} needed, {format_rate(epoch.reachable)} reachable"
    if epoch.limit == "gpu":
        return f"the GPUs do not wait for data: {need}"
    return f"the GPUs wait for data in {epoch.starvation * 100:.1f} % of the time: {need}"


def _cause(dataset: Dataset, epoch: Epoch) -> str:
    flight = format_bytes(dataset.in_flight, binary=True)
    workers = "one worker" if dataset.workers == 1 else f"{dataset.workers} workers"
    ahead = dataset.workers * dataset.prefetch_factor
    causes = {
        "link": f"{epoch.link} is saturated",
        "requests": f"requests wait for storage: {workers} per rank with {flight} in flight",
        "decode": f"decoding takes {workers} {format_seconds(dataset.decode_time)} a sample",
        "files": f"opening files takes {format_seconds(dataset.open_time)} each",
        "copy": "copying out of the page cache is the longest part of the workers' time",
        "cores": "all cores of the host are busy decoding and copying",
        "look_ahead": f"{ahead} batches, all that are prefetched, do not last from one optimizer step to the "
        "next",
        "no_workers": "without workers the training process reads between its steps",
    }
    return causes[epoch.limit]


def _remedy(data_loading: DataLoading) -> str:
    workers, needed = data_loading.workers_needed, format_rate(data_loading.cold.needed)
    if workers is not None and data_loading.cold.limit == "look_ahead":
        return f"a larger prefetch_factor or {workers} workers per rank would be enough"
    if workers is not None:
        return f"{workers} {'worker' if workers == 1 else 'workers'} per rank would be enough"
    if data_loading.remaining == "cores":
        return "no number of workers is enough: decoding needs more cores, or must cost less"
    return f"no number of workers is enough: storage must deliver {needed}"


# -- loaders ---------------------------------------------------------------------------------------

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
    limit: ReadingLimit
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
    def longest(self) -> ReadingLimit:
        limits: tuple[ReadingLimit, ...] = ("requests", "decode", "files", "copy")
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
    candidates: list[tuple[float, ReadingLimit]] = [
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


# -- data loading ----------------------------------------------------------------------------------


def sequential_hit_ratio(cache: float, part: float) -> float:
    """Return the fraction of a later epoch found in ``cache`` [B] if ``part`` [B] are always read in the same
    order.

    It is 1 if the part fits, and otherwise 0, because each page is dropped before it is read again.
    """
    return 1.0 if part <= cache else 0.0


def random_hit_ratio(cached: float, *, share: float = 1.0, epoch: int = 2) -> float:
    """Return the fraction of an epoch that is found in the cache of a host with a new random part per epoch.

    ``cached`` is the size of the cache over that of the dataset, ``share`` (w) is the part of the dataset
    that the host reads in an epoch (its ranks over all ranks), and ``epoch`` counts from 1, with an empty
    cache.

    Suppose that the host now reads an item, after the fraction y of the present epoch. It last read the item
    k epochs ago, after the fraction x of that epoch, with probability w (1 - w)^(k-1). The fraction of a
    large dataset that the host has not read since then is

        (1 - w (1 - x)) (1 - w)^(k-1) (1 - w y)

    and an LRU cache still has the item if this is at least 1 - cached. With uniform x and y, a single host
    (w = 1) finds

        cached + (1 - cached) ln(1 - cached),

    which is less than ``cached``, the fraction for independent random reads (w -> 0, many epochs). Our own
    derivation. Raises ValueError for an epoch below 1 or a share outside (0, 1].
    """
    if epoch < 1 or not 0 < share <= 1:
        raise ValueError(f"no epoch {epoch} of a host that reads {share} of the dataset")
    if cached >= 1:
        return 1 - (1 - share) ** (epoch - 1)
    hits, untouched, probability = 0.0, 1.0, share
    for _ in range(epoch - 1):
        level = (1 - max(0.0, cached)) / untouched
        if level >= 1:
            break
        hits += probability * _product_above(level, 1 - share)
        untouched *= 1 - share
        probability *= 1 - share
        if untouched <= 0 or probability < 1e-12:
            break
    return hits


def _product_above(level: float, low: float) -> float:
    """Return the probability that the product of two numbers, each uniform in [low, 1], is at least
    ``level``."""
    if level <= low * low:
        return 1.0
    if level >= 1:
        return 0.0
    if level >= low:
        area = 1 - level + (level * log(level) if level > 0 else 0.0)
    else:
        knee = level / low  # below it the second factor is bounded by the level, above it by `low`
        area = knee - low - level * log(knee / low) + (1 - low) * (1 - knee)
    return area / (1 - low) ** 2


MOST_WORKERS = 1024
"""Largest number of workers per rank that is tried."""


def _ceil_divide(number: int, by: int) -> int:
    return -(-number // by)


@dataclass(frozen=True)
class _LoadingRun:
    """A _LoadingRun combines the step that needs the data with the machine that reads it."""

    dataset: Dataset
    machine: Machine
    ranks: int
    batch: int
    step: GpuStep
    cores: int | None
    routes: StorageRoutes

    @property
    def host(self) -> LoaderHost:
        ranks = self.machine.ranks_per_node(self.ranks)
        return LoaderHost(ranks, self.machine.host.memcpy_rate.value, self.cores)

    @property
    def steps(self) -> int:
        """Number of steps per epoch; ranks and batches are padded, as DistributedSampler and DataLoader
        do."""
        samples = _ceil_divide(self.dataset.samples, self.ranks)
        return _ceil_divide(_ceil_divide(samples, self.batch), self.step.batches)


def predict_data_loading(
    dataset: Dataset,
    machine: Machine,
    *,
    ranks: int,
    batch_size: int,
    step_time: float,
    gradient_accumulation_steps: int = 1,
    pause_time: float = 0.0,
    free_host_memory: int | None = None,
    cores: int | None = None,
    requests_per_second: int | None = None,
    background: Mapping[str, float] | None = None,
) -> DataLoading:
    """Predict for every epoch whether the loaders of ``ranks`` keep up with steps of ``step_time`` [s].

    A step uses ``gradient_accumulation_steps`` batches of ``batch_size`` samples per rank; in its last
    ``pause_time`` [s] (the optimizer) it uses none. ``free_host_memory`` [B] is the memory of each host that
    training leaves for prefetched batches and the page cache (by default all except that of the operating
    system). ``cores`` are the cores of each host that decode samples (by default unlimited);
    ``requests_per_second`` and ``background`` [B/s] are those of ``storage_routes``.

    Not modelled: copies of batches to the GPUs, the start of workers (20 ms in PyTorch), and the time of
    Linux to fill the page cache. On a virtual machine with 16 cores, PyTorch 2.11 reached 45 to 105 % of the
    rate that is predicted here from direct and cached reads of its drive, the least with several workers on
    one file (tests/simulation/data_loading/test_reading.py).

    With the fraction h of the samples in the page cache, b = batch_size, W workers, R [B/s] the rank's share
    of storage, s [B] read per sample, and t [s] of a worker per sample (opening, waiting for requests of
    (1 - h) s bytes, copying, decoding), a loader makes a batch in

        T = max(b t / W, (1 - h) b s / R, ranks per host x b x CPU time / cores),

    and with g = gradient_accumulation_steps and L = W x prefetch_factor prefetched batches a step takes

        max(step_time, g T, pause_time + about (g - L) T)        (step_time + g T without workers).
    """
    step = GpuStep(step_time, gradient_accumulation_steps, pause_time)
    routes = storage_routes(
        dataset, machine, ranks=ranks, requests_per_second=requests_per_second, background=background
    )
    run = _LoadingRun(dataset, machine, ranks, batch_size, step, cores, routes)
    dram = machine.tiers["dram"]
    free = free_host_memory if free_host_memory is not None else dram.capacity - dram.reserved
    ahead = dataset.workers * dataset.prefetch_factor
    look_ahead = look_ahead_bytes(dataset, machine, ranks=ranks, batch_size=batch_size)
    cache = max(0, free - look_ahead) if dataset.page_cache else 0
    stored = stored_bytes(dataset, machine, ranks=ranks)
    workers_needed, remaining = _workers_needed(run)
    return DataLoading(
        size=dataset.size,
        stored=stored,
        fits=stored <= machine.tiers[dataset.tier].capacity,
        steps_per_epoch=run.steps,
        cache=cache,
        look_ahead=look_ahead,
        bridged_s=ahead * step.batch_s,
        epochs=_epochs(run, cache),
        workers_needed=workers_needed,
        remaining=remaining,
    )


def look_ahead_bytes(dataset: Dataset, machine: Machine, *, ranks: int, batch_size: int) -> int:
    """Return the memory of each host [B] for prefetched batches."""
    here = machine.ranks_per_node(ranks)
    ahead = max(1, dataset.workers * dataset.prefetch_factor)
    return here * ahead * batch_size * (dataset.decoded_size or dataset.sample_size)


def stored_bytes(dataset: Dataset, machine: Machine, *, ranks: int) -> int:
    """Return the bytes [B] that the tier must hold: if its drives are local and the order of samples changes,
    each host has a copy of the dataset."""
    hosts = machine.nodes_of(ranks)
    local = machine.targets[dataset.tier].drives > 0
    return dataset.size * (hosts if local and dataset.shuffle != "none" else 1)


def _epochs(run: _LoadingRun, cache: int) -> tuple[Epoch, ...]:
    """Return the first epoch, then the later ones; consecutive epochs with (nearly) equal hit ratios are
    combined."""
    supply = run.routes.supply(run.dataset)
    epochs = [_epoch(run, supply, 0.0, 1)]
    first = 2
    while first <= run.dataset.epochs:
        repeats = min(max(1, first // 4), run.dataset.epochs - first + 1)
        hit_ratio = _hit_ratio(run, cache, first + repeats // 2)
        if first > 2 and epochs[-1].hit_ratio == hit_ratio:
            epochs[-1] = epochs[-1]._replace(repeats=epochs[-1].repeats + repeats)
        else:
            epochs.append(_epoch(run, supply, hit_ratio, first)._replace(repeats=repeats))
        first += repeats
    return tuple(epochs)


def _hit_ratio(run: _LoadingRun, cache: int, epoch: int) -> float:
    dataset, share = run.dataset, run.host.ranks / run.ranks
    if not dataset.page_cache:
        return 0.0
    if dataset.shuffle == "none" or (dataset.shuffle == "shard" and dataset.files == 1):
        return sequential_hit_ratio(cache, share * dataset.size)
    return random_hit_ratio(cache / dataset.size, share=share, epoch=epoch)


def _epoch(run: _LoadingRun, supply: Supply, hit_ratio: float, number: int) -> Epoch:
    dataset, step = run.dataset, run.step
    pace = loader_pace(dataset, supply, run.host, batch=run.batch, hit_ratio=hit_ratio)
    step_s = step.waiting(pace.batch_s, dataset)
    limit = pace.limit
    if dataset.workers == 0:
        limit = "no_workers"
    elif step_s <= step.time_s * (1 + ROUNDING):
        limit, step_s = "gpu", step.time_s
    elif step.batches * pace.batch_s <= step.time_s:
        limit = "look_ahead"
    missed = (1 - hit_ratio) * dataset.bytes_per_read
    return Epoch(
        first=number,
        repeats=1,
        hit_ratio=hit_ratio,
        needed=run.ranks * step.batches * run.batch * missed / step.time_s,
        reachable=run.ranks * supply.rate,
        first_batch_s=pace.first_batch_s,
        batch_s=pace.batch_s,
        step_s=step_s,
        starvation=1 - step.time_s / step_s,
        limit=limit,
        link=supply.link if limit == "link" else "",
        duration_s=step.epoch(run.steps, pace, dataset),
    )


def _workers_needed(run: _LoadingRun) -> tuple[int | None, ReadingLimit]:
    """Return the smallest number of workers with which no GPU waits in the first epoch, and the limit with
    them.

    No larger numbers are examined, because the rate of a measured curve may fall with more bytes in flight.
    """

    def limit(workers: int) -> ReadingLimit:
        dataset = run.dataset.model_copy(update={"workers": workers})
        return _epoch(replace(run, dataset=dataset), run.routes.supply(dataset), 0.0, 1).limit

    low, high = 0, 1
    while (remaining := limit(high)) != "gpu":
        if high >= MOST_WORKERS:
            return None, remaining
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if limit(middle) == "gpu" else (middle, high)
    return high, "gpu"
