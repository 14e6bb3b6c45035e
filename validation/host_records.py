"""The hosts of all measured machines, and robust medians over them.

Records of ``calibrate micro`` are no runs, so that those of ``measured/holdout`` count like those of
``measured/fit``, and those in ``docs/measurements``, of machines without recorded runs, like both. A machine
counts once: some have runs in both sets.
"""

from __future__ import annotations

import datetime
import gzip
import json
from collections.abc import Iterable, Mapping
from functools import cache
from math import ceil, exp, log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from simoffload.hardware import P90, Host, load_platform
from simoffload.hardware.profiles import Pcie
from simoffload.hardware.quantities import Provenance, Sourced
from simoffload_calibrate.micro.record import read_record

_ROOT = Path(__file__).parents[1]
_MEASURED = Path(__file__).parent / "measured"
_ALONE = _ROOT / "docs" / "measurements"
GPUS = ("H100", "H200")
"""GPUs of the measured machines."""
_INTERVAL = 0.8
"""Share of machines that the spread contains: that of an 80 % interval, P10 to P90."""


class HostRecord(NamedTuple):
    """The host of a measured machine, as its record of ``calibrate micro`` describes it."""

    name: str
    gpu: str
    """One of ``GPUS``."""
    gpus: int
    date: datetime.date
    host: Host
    pcie: Pcie
    beside_runs: bool = True
    """Whether real runs of the machine are recorded in ``measured``."""

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def host_records() -> tuple[HostRecord, ...]:
    """Return the host of every machine with a record, in the order of their names."""
    found: dict[str, HostRecord] = {}
    for path in [*sorted(_MEASURED.glob("*/*/platform.yaml")), *sorted(_ALONE.rglob("platform.yaml"))]:
        beside_runs = path.is_relative_to(_MEASURED)
        name = path.parent.name if beside_runs else path.parent.relative_to(_ALONE).as_posix()
        records = sorted(path.parent.glob("micro*.json*"))
        if name in found or not records:  # without a record, the profile is another machine's
            continue
        raw = _record(records[-1])
        gpu = next(one for one in GPUS if one in raw["machine"]["gpu"]["name"])
        platform = load_platform(path)
        day = datetime.date.fromisoformat(raw["date"])
        pcie = platform.gpu_pcie_link.pcie
        gpus = int(raw["machine"]["gpu"]["count"])
        found[name] = HostRecord(name, gpu, gpus, day, platform.host, pcie, beside_runs)
    return tuple(found[name] for name in sorted(found))


def _record(path: Path) -> dict[str, Any]:
    """Return a record of ``calibrate micro``, which may be compressed."""
    if path.suffix != ".gz":
        return read_record(path)
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def statement(record: HostRecord, key: str) -> Provenance | None:
    """Return a statement of a host by its key with dots, cpu_optimizer.limit; None if the host lacks it."""
    found: Any = record.host
    for name in key.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, Provenance) else None


def _is_own(number: Provenance | None) -> bool:
    """Return whether a number is from a record: otherwise it is that of a shipped profile."""
    return number is not None and number.origin == "measured" and number.source.startswith("calibrate micro")


def measured(records: Iterable[HostRecord], key: str) -> dict[HostRecord, float]:
    """Return a number of each record that has it.

    A machine whose record lacks a section has the numbers of another one's in its profile; they count once.
    """
    found: dict[Provenance, HostRecord] = {}
    for record in records:
        number = statement(record, key)
        if number is not None and _is_own(number):
            found.setdefault(number, record)
    return {record: float(number.value) for number, record in found.items() if isinstance(number, Sourced)}


def deviations(values: Mapping[HostRecord, float]) -> list[float]:
    """Return by how much the logarithm of each value is away from the median of those of other days.

    Machines of one day resemble one another: how busy a cloud is changes from day to day. Values of a single
    day are compared with each other.
    """
    logs = {record: log(value) for record, value in values.items()}
    days = {record.date for record in logs}
    found = []
    for record, own in logs.items():
        others = [
            one
            for other, one in logs.items()
            if (other.date != record.date if len(days) > 1 else other != record)
        ]
        found.append(abs(own - median(others)) if others else 0.0)
    return found


class Pooled(NamedTuple):
    """The median of a number over machines."""

    value: float
    spread: float
    """Relative standard deviation of the number of one more machine, of another day."""
    numbers: dict[str, float]
    """The number of each machine, by its name."""
    date: datetime.date
    """The day of the newest one."""


def robust(values: Mapping[HostRecord, float]) -> Pooled:
    """Return the median of the logarithms of values, which neither one slow machine nor one day decides.

    The spread is that of a normal distribution of which 80 % is as near to its centre as 80 % of the machines
    are to the median of those of other days. Raises StatisticsError without values.
    """
    middle = exp(median(map(log, values.values())))
    spread = _spread(deviations(values))
    numbers = {record.name: value for record, value in values.items()}
    return Pooled(middle, spread, numbers, max(record.date for record in values))


def _spread(away: Iterable[float]) -> float:
    """Return the standard deviation of a normal distribution of which 80 % is as near to its centre."""
    ordered = sorted(away)
    return ordered[ceil(_INTERVAL * len(ordered)) - 1] / P90


def spread_around(value: float, values: Mapping[HostRecord, float]) -> float:
    """Return the spread of a number that 80 % of the machines are within."""
    return _spread(abs(log(one / value)) for one in values.values())


def pooled(records: Iterable[HostRecord], key: str) -> Pooled:
    """Return the median of a number over the machines on which it was measured.

    Raises StatisticsError if there are none.
    """
    return robust(measured(records, key))


def pooled_pageable(records: Iterable[HostRecord]) -> tuple[list[tuple[int, float]], Pooled]:
    """Return the medians of the rates of copies of pageable memory by size [B], and that of the last size."""
    curves = {one: dict(own.points) for one in records if (own := one.host.pageable) and _is_own(own)}
    sizes = sorted(set.intersection(*(set(points) for points in curves.values())))
    medians = [robust({one: float(points[size]) for one, points in curves.items()}) for size in sizes]
    return [(size, one.value) for size, one in zip(sizes, medians, strict=True)], medians[-1]
