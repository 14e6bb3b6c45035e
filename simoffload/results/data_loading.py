"""Data loading of a training run: whether reading the dataset delays it, and why."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from simoffload.units import format_bytes, format_rate, format_seconds
from simoffload.workload import Dataset

Limit = Literal["gpu", "link", "requests", "decode", "files", "copy", "cores", "look_ahead", "no_workers"]
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
    limit: Limit
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
    remaining: Limit
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
