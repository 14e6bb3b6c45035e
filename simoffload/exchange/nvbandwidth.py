"""Output of ``nvbandwidth``: the JSON of ``-j`` or the plain matrices.

Format: NVIDIA/nvbandwidth, json_output.cpp and README.md: GB/s are decimal, cells of the JSON are text, a row
is a CPU and a column a GPU, "N/A" a pair that was not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from simoffload.exchange.benchmark_files import BenchmarkFile, CopyMeasurement, Fields, finite

BUFFER = 64 * 1024**2
"""[B] Default size of one copy; the output does not contain ``--bufferSize`` (README.md)."""
_GB = 10**9
_TEST = re.compile(r"(host_to_device|device_to_host)_(bidirectional_)?memcpy_ce")
_RUNNING = re.compile(r"Running (?:benchmark )?(\w+)\.?")
_VERSION = re.compile(r"nvbandwidth Version: v?(\S+)")


class _GpuRate(NamedTuple):
    """One number of a bandwidth matrix."""

    test: str
    gpu: int
    text: str
    line: int | None
    key: str


def read_nvbandwidth(path: str | Path, *, size: int = BUFFER) -> tuple[CopyMeasurement, ...]:
    """Read the copies of ``size`` [B] between host and single GPUs by the copy engine; ignore the others.

    Raises InputError for a test that failed, and if no such copies were measured.
    """
    file = BenchmarkFile.read(path)
    if file.text.startswith("{") or "\n{" in file.text:
        top = file.json_object("nvbandwidth")
        if "nvbandwidth" not in top.data:
            top.refuse("nvbandwidth", "missing; is this the output of nvbandwidth -j?")
        report = top.object("nvbandwidth")
        version, cells = report.text("version"), _json_cells(report)
    else:
        found_version = _VERSION.search(file.text)
        version, cells = found_version[1] if found_version else "", _text_cells(file)
    measurements = tuple(
        _measured(file, cell, size, version.removeprefix("v")) for cell in cells if cell.text != "N/A"
    )
    if not measurements:
        file.refuse(
            "contains no copies between host and GPU; run nvbandwidth -t host_to_device_memcpy_ce "
            "device_to_host_memcpy_ce (and the bidirectional ones)"
        )
    return measurements


def _measured(file: BenchmarkFile, cell: _GpuRate, size: int, version: str) -> CopyMeasurement:
    match = _TEST.fullmatch(cell.test)
    assert match is not None
    rate = finite(cell.text)
    if not rate:
        file.refuse(f"{cell.text[:40]!r} is not a rate above 0 GB/s", line=cell.line, key=cell.key)
    direction: Literal["host_to_device", "device_to_host"] = (
        "host_to_device" if match[1] == "host_to_device" else "device_to_host"
    )
    return CopyMeasurement(
        direction=direction,
        both_ways=match[2] is not None,
        gpu=cell.gpu,
        size=size,
        rate=round(rate * _GB),
        tool="nvbandwidth",
        version=version,
        file=file.name,
        date=file.date,
    )


def _json_cells(report: Fields) -> Iterator[_GpuRate]:
    if report.text("error"):
        report.refuse("error", f"nvbandwidth failed: {report.text('error')[:200]}; run it again")
    for case in report.objects("testcases"):
        name, status = case.text("name"), case.text("status", "Passed")
        if not _TEST.fullmatch(name) or status == "Waived":
            continue
        if status != "Passed":
            reason = case.text("error") or "no reason given"
            case.refuse("status", f"{name} ended with {status[:40]} ({reason[:200]}); run it again")
        if "GB/s" not in case.text("bandwidth_description", "GB/s"):
            case.refuse("bandwidth_description", "must be in GB/s")
        matrix = case.data.get("bandwidth_matrix")
        if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
            case.refuse("bandwidth_matrix", "must be a list of rows; was the file edited?")
        for i, row in enumerate(matrix):
            for gpu, cell in enumerate(row):
                key = case.place(f"bandwidth_matrix[{i}][{gpu}]")
                yield _GpuRate(name, gpu, str(cell), None, key)


def _text_cells(file: BenchmarkFile) -> Iterator[_GpuRate]:
    """Return the cells of the matrices: a line of GPU numbers, then a line per CPU that begins with its
    number."""
    test, gpus = "", list[int]()
    for number, line in enumerate(file.text.splitlines(), start=1):
        cells = line.split()
        if match := _RUNNING.fullmatch(line.strip()):
            test, gpus = match[1], []
        elif not _TEST.fullmatch(test) or not cells:
            continue
        elif line.lstrip().startswith("memcpy") and "GB/s" not in line:
            file.refuse("the matrix must be in GB/s", line=number)
        elif not gpus and all(word.isdecimal() for word in cells):
            gpus = [int(word) for word in cells]
        elif gpus and cells[0].isdecimal():
            if len(cells) != len(gpus) + 1:
                file.refuse(
                    f"the row has {len(cells) - 1} cells for {len(gpus)} GPUs; unwrap it", line=number
                )
            yield from (
                _GpuRate(test, gpu, word, number, "") for gpu, word in zip(gpus, cells[1:], strict=True)
            )
        elif cells[0].startswith(("ERROR", "[ERROR")) or "CUDA_ERROR" in line:
            file.refuse(f"{test} failed; run it again", line=number)
        else:
            # Titles come before the matrix; any other line after it ends it.
            test = "" if gpus else test
