"""What a reader of a report wants to know about the data, in sentences."""

from __future__ import annotations

from simoffload.results.reading import Epoch, Reading
from simoffload.units import format_bytes, format_rate, format_seconds
from simoffload.workload.dataset import Dataset

__all__ = ["sentences"]


def sentences(dataset: Dataset, reading: Reading) -> tuple[str, ...]:
    """Whether the GPUs wait, why, what would help, and what the page cache does."""
    cold, warm = reading.cold, reading.warm
    lines = [_verdict(cold)]
    if cold.limit != "gpu":
        lines.append(_cause(dataset, cold))
        lines.append(_remedy(reading))
    if reading.epochs[1:] and dataset.page_cache:
        found = f"from epoch 2 on the page cache ({format_bytes(reading.cache, binary=True)} per host) has "
        lines.append(found + f"{warm.hit_ratio * 100:.0f} % of what is read; {_verdict(warm)}")
    if not reading.fits:
        lines.append(f"{dataset.tier} is too small for {format_bytes(reading.stored)} of data")
    return tuple(lines)


def _verdict(epoch: Epoch) -> str:
    need = f"{format_rate(epoch.needed)} needed, {format_rate(epoch.reachable)} reachable"
    if epoch.limit == "gpu":
        return f"the GPUs do not wait for data: {need}"
    return f"the GPUs wait for data in {epoch.starvation * 100:.1f} % of the time: {need}"


def _cause(dataset: Dataset, epoch: Epoch) -> str:
    flight = format_bytes(dataset.in_flight, binary=True)
    workers = "one worker" if dataset.workers == 1 else f"{dataset.workers} workers"
    causes = {
        "link": f"{epoch.link} is full",
        "requests": f"requests wait for storage: {workers} per rank with {flight} in flight",
        "decode": f"decoding takes {workers} {format_seconds(dataset.decode_time)} a sample",
        "files": f"opening files takes {format_seconds(dataset.open_time)} each",
        "copy": "copying out of the page cache is the longest part of the workers' time",
        "cores": "all cores of the host are busy decoding and copying",
        "look_ahead": f"{dataset.workers * dataset.prefetch_factor} batches made ahead are used up before "
        "the optimizer's pause pays back",
        "no_workers": "without workers the training process reads between its steps",
    }
    return causes[epoch.limit]


def _remedy(reading: Reading) -> str:
    workers, needed = reading.workers_needed, format_rate(reading.cold.needed)
    if workers is not None and reading.cold.limit == "look_ahead":
        return f"a larger prefetch_factor or {workers} workers per rank would do"
    if workers is not None:
        return f"{workers} {'worker' if workers == 1 else 'workers'} per rank would do"
    if reading.remaining == "cores":
        return "no number of workers is enough: decoding needs more cores, or must cost less"
    return f"no number of workers is enough: storage must deliver {needed}"
