"""Output of DeepSpeed's ``ds_io`` and ``ds_nvme_tune``.

Format: deepspeedai/DeepSpeed, deepspeed/nvme: "E2E Read Speed = 12.3 GB/sec" for all threads together, with
the settings in the name of the log; GB is 1024^3.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal, NamedTuple

from simoffload.exchange.benchmark_files import BenchmarkFile, Fields, StorageMeasurement, finite

_GB = 1024**3
_E2E = re.compile(r"E2E (Read|Write) Speed = (\S+) GB/sec\s*")
_BEST = re.compile(r"Best performance \(GB/sec\): read =\s*(\S+), write =\s*(\S+)\s*")
_TAG = re.compile(r"(ftd|t|p|d|bs)([0-9]{1,9})([KM]?)")
_UNITS = {"": 1, "K": 1024, "M": 1024**2}


class _Settings(NamedTuple):
    """Settings of a run; the defaults are those of DeepNVMe's handle."""

    block: int = 1024**2
    queue_depth: int = 128
    jobs: int = 1


def read_ds_io(path: str | Path) -> tuple[StorageMeasurement, ...]:
    """Read the log of one ``ds_io`` run, or the final output of ``ds_nvme_tune``.

    Speeds of single tasks are ignored, because E2E includes all tasks. Raises InputError if there is none.
    """
    file = BenchmarkFile.read(path)
    measurements: list[StorageMeasurement] = []
    for number, line in enumerate(file.text.splitlines(), start=1):
        if match := _E2E.fullmatch(line):
            operation: Literal["read", "write"] = "read" if match[1] == "Read" else "write"
            measurements.append(_measured(file, operation, match[2], _by_name(file), line=number))
        elif match := _BEST.fullmatch(line):
            best = _tuned(file, number)
            measurements.append(_measured(file, "read", match[1], best, line=number))
            measurements.append(_measured(file, "write", match[2], best, line=number))
    if not measurements:
        file.refuse(
            'contains no line "E2E Read Speed = … GB/sec" (or Write) and no "Best performance (GB/sec): …"; '
            "give the log of ds_io or the output of ds_nvme_tune"
        )
    return tuple(measurements)


def _measured(
    file: BenchmarkFile, operation: Literal["read", "write"], text: str, settings: _Settings, *, line: int
) -> StorageMeasurement:
    speed = finite(text)
    if not speed:
        file.refuse(f"{text[:40]!r} is not a speed above 0 in GB/sec; run it again", line=line)
    return StorageMeasurement(
        operation=operation,
        block=settings.block,
        queue_depth=settings.queue_depth,
        jobs=settings.jobs,
        rate=round(speed * _GB),
        latency=None,
        direct=None,
        random=False,
        tool="ds_io",
        version="",
        file=file.name,
        date=file.date,
    )


def _by_name(file: BenchmarkFile) -> _Settings:
    """Return settings from a name such as ``read_single_overlap_ftd1_d32_bs1M_p4.txt``, else defaults."""
    tags: dict[str, int] = {}
    for part in Path(file.name).stem.split("_"):
        match = _TAG.fullmatch(part)
        if match:
            tags[match[1]] = int(match[2]) * _UNITS[match[3]]
    default = _Settings()
    jobs = tags.get("ftd", 1) * tags.get("t", 1) * tags.get("p", 1)
    settings = _Settings(tags.get("bs", default.block), tags.get("d", default.queue_depth), jobs)
    if 0 in settings:
        file.refuse("the name of the log says that block size, queue depth or threads are 0; rename it")
    return settings


def _tuned(file: BenchmarkFile, line: int) -> _Settings:
    """Return the settings of the ``aio`` object after the line with the best performance."""
    rest = "\n".join(file.text.splitlines()[line:])
    start = rest.find("{")
    try:
        data, _ = json.JSONDecoder().raw_decode(rest[max(start, 0) :])
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("aio"), dict):
        file.refuse(
            'the settings {"aio": {…}} must follow "Best performance"; give the complete output', line=line
        )
    aio = Fields(file, "aio", data["aio"])
    threads = "num_threads" if "num_threads" in aio.data else "intra_op_parallelism"
    default = _Settings()
    return _Settings(
        _integer(aio, "block_size", default.block),
        _integer(aio, "queue_depth", default.queue_depth),
        _integer(aio, threads, default.jobs),
    )


def _integer(aio: Fields, name: str, default: int) -> int:
    text = aio.text(name, str(default))
    match = re.fullmatch("([1-9][0-9]{0,11})([KM]?)", text)
    if match is None:
        aio.refuse(name, f"must be a whole number above 0, not {text[:40]!r}")
    return int(match[1]) * _UNITS[match[2]]
