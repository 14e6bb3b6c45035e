"""The pace of one rank's loader, and how a step waits for it."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.results.data_loading import Limit
from simoffload.simulation.data_loading.supply import Supply
from simoffload.workload.dataset import Dataset

__all__ = ["GpuStep", "LoaderHost", "Pace", "loader_pace"]


class LoaderHost(NamedTuple):
    """What the ranks of one host share."""

    ranks: int
    memcpy_rate: int
    """[B/s] that one process copies out of the page cache."""
    cores: int | None
    """None: as many as there are workers."""


class Pace(NamedTuple):
    """What a loader reaches."""

    batch_s: float
    """[s] from batch to batch, all workers busy."""
    first_batch_s: float
    """[s] until the first batch, which one worker makes alone, is there."""
    limit: Limit
    """What slows it down most."""


class GpuStep(NamedTuple):
    """What the GPU does while batches are made."""

    time_s: float
    """[s] if no batch is ever late."""
    batches: int
    """Taken by each rank (``gradient_accumulation_steps``)."""
    pause_s: float
    """[s] at its end, in which none is taken (the optimizer)."""

    @property
    def batch_s(self) -> float:
        """[s] that the GPU works on a batch."""
        return (self.time_s - self.pause_s) / self.batches

    def waiting(self, batch_s: float, dataset: Dataset) -> float:
        """[s] of a step whose batches come every ``batch_s`` [s] from busy workers.

        In the pause the queues fill up, but only with the batches that may be made ahead. A worker begins
        with a further one when the GPU takes the first of them, and all workers go on in rounds.
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
        """[s] of an epoch of ``steps``; the queues are empty at first: the loader is iterated over anew."""
        waiting = steps * self.waiting(pace.batch_s, dataset)
        if dataset.workers == 0:
            return waiting
        loaded = steps * self.batches * pace.batch_s + self.batch_s + self.pause_s
        return max(pace.first_batch_s + steps * self.time_s, loaded, waiting)


class _Sample(NamedTuple):
    """[s] that a worker spends on a sample, by what it does."""

    requests: float
    decode: float
    files: float
    copy: float

    @property
    def longest(self) -> Limit:
        limits: tuple[Limit, ...] = ("requests", "decode", "files", "copy")
        return limits[self.index(max(self))]


def loader_pace(dataset: Dataset, supply: Supply, host: LoaderHost, *, batch: int, hit_ratio: float) -> Pace:
    """The pace at which a rank's workers make batches of ``batch`` samples while all ranks do the same.

    The slowest of: the workers one beside the other, the rank's share of storage, the host's cores.
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
    """``missed`` [B] come from storage at ``rate`` [B/s]."""
    return _Sample(
        requests=missed / rate,
        decode=dataset.decode_time,
        files=dataset.open_time / dataset.samples_per_file,
        copy=dataset.sample_size / host.memcpy_rate if dataset.page_cache else 0.0,
    )
