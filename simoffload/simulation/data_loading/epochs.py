"""Whether the GPUs wait for their data: what they need against what loaders and storage deliver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simoffload.hardware import Machine
from simoffload.results.data_loading import DataLoading, Epoch, Limit
from simoffload.simulation.data_loading.loader import GpuStep, LoaderHost, loader_pace
from simoffload.simulation.data_loading.page_cache import random_hit_ratio, sequential_hit_ratio
from simoffload.simulation.data_loading.supply import ROUNDING, StorageRoutes, Supply, storage_routes
from simoffload.workload.dataset import Dataset

__all__ = ["look_ahead_bytes", "predict_data_loading", "stored_bytes"]

MOST_WORKERS = 1024
"""Per rank: no more are proposed."""


def _ceil_divide(number: int, by: int) -> int:
    return -(-number // by)


@dataclass(frozen=True)
class _LoadingRun:
    """The step that the data is for, and the machine that reads it."""

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
        """Of an epoch; ranks and batches are filled up, as DistributedSampler and DataLoader do."""
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
    """Say for every epoch whether the loaders of ``ranks`` keep up with steps of ``step_time`` [s].

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
    """[B] of each host's memory in batches made ahead."""
    here = machine.ranks_per_node(ranks)
    ahead = max(1, dataset.workers * dataset.prefetch_factor)
    return here * ahead * batch_size * (dataset.decoded_size or dataset.sample_size)


def stored_bytes(dataset: Dataset, machine: Machine, *, ranks: int) -> int:
    """[B] that the tier must hold: a copy in every host where drives are local and the order changes."""
    hosts = machine.nodes_of(ranks)
    local = machine.topology.targets[dataset.tier].drives > 0
    return dataset.size * (hosts if local and dataset.shuffle != "none" else 1)


def _epochs(run: _LoadingRun, cache: int) -> tuple[Epoch, ...]:
    """The first epoch, then the others; those with the same hits, and late ones much alike, as one."""
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
    """Double the workers until no GPU waits in a cold epoch, then halve the last interval.

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
