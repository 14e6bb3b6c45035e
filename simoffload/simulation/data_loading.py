"""Reading the training data: whether the GPUs wait for it, and how much of it a page cache holds.

The page cache is taken to drop what was not used for the longest time (LRU). Linux's is near to that, not the
same: it keeps pages that it met twice in a second list, and so saves a part of a dataset that is read in
order. What is predicted here is the lower side.
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
    """Return the fraction of a later epoch found in ``cache`` [B] if ``part`` [B] are always read in the
    same order.

    All if they fit; else none: each page is dropped just before it is asked for again.
    """
    return 1.0 if part <= cache else 0.0


def random_hit_ratio(cached: float, *, share: float = 1.0, epoch: int = 2) -> float:
    """Return the fraction of an epoch found in the cache of a host that reads a new random part in every
    epoch.

    ``cached`` is the cache's size over the dataset's, ``share`` w the part of the dataset that the host
    reads in an epoch (its ranks over all ranks), ``epoch`` counts from 1, the cold one.

    An item that the host reads now, at the fraction y of its epoch, it last read k epochs ago, at x, with
    probability w (1 - w)^(k-1). Of the dataset the host has meanwhile not touched, large datasets assumed,

        (1 - w (1 - x)) (1 - w)^(k-1) (1 - w y)

    and LRU still has the item if that is at least 1 - cached. With x and y uniform, one host (w = 1) finds

        cached + (1 - cached) ln(1 - cached),

    less than ``cached``, which independent random reads (w -> 0, many epochs) find. Derived here.
    Raises ValueError for an epoch below 1 or a share outside of (0, 1].
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
    """Return the probability that the product of two numbers, uniform in [low, 1], is at least ``level``."""
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
"""Maximum number of workers per rank that is proposed."""


def _ceil_divide(number: int, by: int) -> int:
    return -(-number // by)


@dataclass(frozen=True)
class _LoadingRun:
    """A _LoadingRun is the step that needs the data, and the machine that reads it."""

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

    A step takes ``gradient_accumulation_steps`` batches of ``batch_size`` samples per rank; in its last
    ``pause_time`` [s] (the optimizer) no batch is taken. ``free_host_memory`` [B] of each host is what
    training leaves (default: all but the system's); batches made ahead and the page cache share it.
    ``cores`` of each host decode, without bound by default; ``requests_per_second`` and ``background``
    [B/s] are those of ``storage_routes``. Copies of batches to the GPUs and the start of workers (20 ms of
    PyTorch's) are left out, and so is what Linux spends to fill the page cache: on a virtual machine with
    16 cores, PyTorch 2.11 reached 45 to 105 % of what is predicted here from direct reads of its drive and
    from cached reads, the least with several workers on one file (test_reading.py of the tests).

    With h of the samples in the page cache, b batch_size, W workers, R [B/s] the rank's share of storage,
    s [B] read per sample, and t [s] of a worker per sample (opening, waiting for the (1 - h) s bytes of its
    requests, copying, decoding), a loader makes a batch in

        T = max(b t / W, (1 - h) b s / R, ranks per host x b x CPU time / cores),

    and with g gradient_accumulation_steps and L = W x prefetch_factor batches made ahead a step takes

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
    """Return how much of each host's memory [B] holds batches made ahead."""
    here = machine.ranks_per_node(ranks)
    ahead = max(1, dataset.workers * dataset.prefetch_factor)
    return here * ahead * batch_size * (dataset.decoded_size or dataset.sample_size)


def stored_bytes(dataset: Dataset, machine: Machine, *, ranks: int) -> int:
    """Return the bytes [B] that the tier must hold: a copy in every host where drives are local and the
    order changes."""
    hosts = machine.nodes_of(ranks)
    local = machine.topology.targets[dataset.tier].drives > 0
    return dataset.size * (hosts if local and dataset.shuffle != "none" else 1)


def _epochs(run: _LoadingRun, cache: int) -> tuple[Epoch, ...]:
    """Return the first epoch, then the others; those with the same hits, and similar late ones, as one."""
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
    """Find the fewest workers with which no GPU waits in a cold epoch, and the limit with so many.

    Only that far: a measured curve may fall again with more in flight.
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
