"""What benchmark tools measured, in SI units, whatever file it came from."""

from __future__ import annotations

import datetime
from typing import Literal, NamedTuple

__all__ = ["CopyMeasurement", "StorageMeasurement"]


class StorageMeasurement(NamedTuple):
    """One run of reads or of writes against a drive, array or file system."""

    operation: Literal["read", "write"]
    block: int
    """[B] of one request."""
    queue_depth: int
    """Requests that one job has in flight."""
    jobs: int
    """Threads or processes at once."""
    rate: int
    """[B/s] of all jobs together."""
    latency: float | None
    """[s] of one request on average, under this load."""
    direct: bool | None
    """Past the page cache; None if the file does not say."""
    random: bool | None
    """At random offsets; None if the file does not say."""
    tool: str
    version: str
    """Empty if the file does not say."""
    file: str
    """Name of the file, without its folder."""
    date: datetime.date
    """Of the run if the file tells it, else of the file."""

    @property
    def outstanding(self) -> int:
        """[B] in flight."""
        return self.block * self.queue_depth * self.jobs


class CopyMeasurement(NamedTuple):
    """Copies between pinned host memory and one GPU, by the copy engine."""

    direction: Literal["host_to_device", "device_to_host"]
    both_ways: bool
    """Copies in the other direction ran at the same time; ``rate`` is that of this direction."""
    gpu: int
    size: int
    """[B] of one copy."""
    rate: int
    """[B/s]"""
    tool: str
    version: str
    """Empty if the file does not say."""
    file: str
    """Name of the file, without its folder."""
    date: datetime.date
    """Of the file: it does not tell when it was measured."""
