"""Output of ``fio --output-format=json`` (or json+).

Format: fio's HOWTO ("Output"): ``bw_bytes`` is in B/s (``bw`` in KiB/s), times are in ns, options are text.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

from simoffload.exchange.benchmark_files import BenchmarkFile, Fields, StorageMeasurement

_SYNCHRONOUS = {"sync", "psync", "vsync", "pvsync", "pvsync2", "mmap"}
"""The engines with one request in flight whatever iodepth is; psync is the default."""
_SIZE = re.compile(r"([0-9]{1,15})([kmgt]?)(i?b)?")

Operation = Literal["read", "write"]


class _Job(NamedTuple):
    """One entry of the list ``jobs``."""

    fields: Fields
    operation: Operation
    group: int
    pattern: str
    """The value of the option rw."""
    settings: tuple[int, int, bool]
    """The block size [B], queue depth, and whether I/O is direct."""
    numjobs: int


def read_fio_json(path: str | Path) -> tuple[StorageMeasurement, ...]:
    """Read the runs of a file; equal jobs of one group are one run with their total rate.

    Text before the JSON is ignored. Raises InputError for a job that failed or mixed reads and writes, and
    for concurrent jobs with different settings.
    """
    file = BenchmarkFile.read(path)
    top = file.json_object("fio")
    if "fio version" not in top.data:
        top.refuse("fio version", "missing; only output of fio --output-format=json can be read")
    common = top.object("global options")
    groups: dict[tuple[int, str], list[_Job]] = {}
    for fields in top.objects("jobs"):
        job = _job(fields, common)
        if job is not None:
            groups.setdefault((job.group, job.pattern), []).append(job)
    date = _date(top) or file.date
    return tuple(_run(jobs, top.text("fio version"), date) for jobs in groups.values())


def _date(top: Fields) -> datetime.date | None:
    """Return the day of the run in UTC; None if the file does not tell."""
    timestamp = top.number("timestamp")
    try:
        return datetime.datetime.fromtimestamp(timestamp, tz=datetime.UTC).date() if timestamp else None
    except (OverflowError, OSError, ValueError):
        top.refuse("timestamp", f"{timestamp} is not a time in seconds since 1970")


def _job(fields: Fields, common: Fields) -> _Job | None:
    """Return one job; None if it moved no data (a trim, for example)."""
    error = fields.number("error")
    if error:
        fields.refuse(
            "error", f"the job ended with error {error:.0f}, so its rates are not valid; run it again"
        )
    directions = [one for one in ("read", "write") if fields.object(one).number("io_bytes")]
    if len(directions) > 1:
        fields.refuse("read", "the job mixed reads and writes, so neither rate is usable; run two jobs")
    if not directions:
        return None
    operation: Operation = "read" if directions[0] == "read" else "write"
    own = fields.object("job options")
    options = Fields(own.file, own.key, common.data | own.data)
    engine = options.text("ioengine", "psync")
    depth = 1 if engine in _SYNCHRONOUS else _count(options, "iodepth")
    if "direct" in options.data:
        direct = options.text("direct") not in {"0", ""}
    else:
        direct = options.text("buffered", "1") == "0"
    return _Job(
        fields,
        operation,
        int(fields.number("groupid")),
        options.text("rw", options.text("readwrite", "read")).partition(":")[0],
        (_block(options, operation), depth, direct),
        _count(options, "numjobs"),
    )


def _count(options: Fields, name: str) -> int:
    text = options.text(name, "1")
    if not re.fullmatch("[1-9][0-9]{0,6}", text):
        options.refuse(name, f"must be a whole number above 0, not {text[:40]!r}")
    return int(text)


def _block(options: Fields, operation: Operation) -> int:
    """Return the size of a request [B]: ``bs`` is one size, or "read,write,trim" (empty ones repeat the
    first)."""
    name = "blocksize" if "blocksize" in options.data else "bs"
    if {"bsrange", "blocksize_range", "bssplit"} & options.data.keys():
        options.refuse(name, "requests of several sizes (bsrange, bssplit) cannot be imported; give one bs")
    sizes = options.text(name, "4k").split(",")
    text = (sizes[1] if operation == "write" and len(sizes) > 1 and sizes[1] else sizes[0]).lower()
    match = _SIZE.fullmatch(text)
    size = int(match[1]) if match else 0
    if match is None or not size:
        options.refuse(name, f"{text[:40]!r} is not a size; fio writes e.g. 1M or 128k")
    if not match[2]:
        return size
    # HOWTO, kb_base: 1024 (the default) means k = 1024 and Ki = 1000; 1000 means the reverse.
    swapped = (match[3] == "ib") != (options.text("kb_base", "1024") == "1000")
    return size * int((1000 if swapped else 1024) ** ("kmgt".index(match[2]) + 1))


def _run(jobs: list[_Job], version: str, date: datetime.date) -> StorageMeasurement:
    """Return the combined measurement of jobs that ran at once."""
    first = jobs[0]
    different = next((job for job in jobs if (job.settings, job.operation) != _kind(first)), None)
    if different is not None:
        message = (
            f"ran concurrently with {first.fields.key} with another bs, iodepth or direct; use stonewall"
        )
        different.fields.refuse("job options", message)
    names = Counter(job.fields.text("jobname") for job in jobs)
    # With group_reporting one entry is for all clones of a job, else each clone has its own.
    clones = sum(job.numjobs if names[job.fields.text("jobname")] == 1 else 1 for job in jobs)
    rates = [job.fields.object(job.operation).number("bw_bytes") for job in jobs]
    if not all(rates):
        place = jobs[rates.index(0)].fields.object(first.operation)
        place.refuse("bw_bytes", "missing or 0 although bytes were moved; fio before 3.0 cannot be read")
    block, depth, direct = first.settings
    return StorageMeasurement(
        operation=first.operation,
        block=block,
        queue_depth=depth,
        jobs=clones,
        rate=round(sum(rates)),
        latency=_latency(jobs),
        direct=direct,
        random=first.pattern.startswith("rand"),
        tool="fio",
        version=version.removeprefix("fio-"),
        file=first.fields.file.name,
        date=date,
    )


def _kind(job: _Job) -> tuple[tuple[int, int, bool], Operation]:
    return job.settings, job.operation


def _latency(jobs: list[_Job]) -> float | None:
    """Return the mean latency of all requests [s], from submission or else from acceptance; None if
    absent."""
    for name in ("lat_ns", "clat_ns"):
        latencies = [job.fields.object(job.operation).object(name) for job in jobs]
        counts = [one.number("N") for one in latencies]
        means = [one.number("mean") for one in latencies]
        if all(counts) and all(means):
            return sum(n * mean for n, mean in zip(counts, means, strict=True)) / sum(counts) * 1e-9
    return None
