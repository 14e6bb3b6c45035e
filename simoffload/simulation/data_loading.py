"""Data loading in training: whether the GPUs wait for data, and how much of it is in the page cache.

The page cache is assumed to replace the least recently used page (LRU). Linux differs slightly: it keeps
pages that were used twice in a second list, and so finds a part of a dataset that is read in order. The
prediction is therefore a lower bound of the hit ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log

from simoffload.hardware import Machine
from simoffload.results import DataLoading, Epoch, Limit
from simoffload.simulation.loaders import (
    ROUNDING,
    GpuStep,
    LoaderHost,
    StorageRoutes,
    Supply,
    loader_pace,
    storage_routes,
)
from simoffload.workload import Dataset


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


def _workers_needed(run: _LoadingRun) -> tuple[int | None, Limit]:
    """Return the smallest number of workers with which no GPU waits in the first epoch, and the limit with
    them.

    No larger numbers are examined, because the rate of a measured curve may fall with more bytes in flight.
    """

    def limit(workers: int) -> Limit:
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
