"""Output files of ds_io, elbencho, fio and nvbandwidth, read with bounds, as measurements in SI units."""

from __future__ import annotations

import csv
import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from simoffload.documents import file_errors, read_text
from simoffload.errors import InputError, Problem

_LARGEST = 20_000_000
"""[B] The largest file; fio's json+ with all its bins is smaller."""


class BenchmarkFile(NamedTuple):
    """The text of a file that a benchmark tool wrote."""

    path: str
    """The path as the user gave it."""
    text: str
    date: datetime.date
    """The day of its last modification, in UTC."""

    @classmethod
    def read(cls, path: str | Path) -> BenchmarkFile:
        """Read a file. Raises InputError if it is not readable text, or larger than 20 MB."""
        text = read_text(path, most=_LARGEST, remedy="import the files that the tool wrote, run by run")
        with file_errors(path):
            modified = datetime.datetime.fromtimestamp(Path(path).stat().st_mtime, tz=datetime.UTC)
        return cls(str(path), text, modified.date())

    @property
    def name(self) -> str:
        """The name of the file without its folder."""
        return Path(self.path).name

    def refuse(self, message: str, *, line: int | None = None, key: str = "") -> NoReturn:
        """Raise an InputError about this file."""
        raise InputError((Problem(self.path, line, None, key, message),))

    def json_object(self, tool: str) -> Fields:
        """Return the JSON object whose ``{`` begins a line; other text is ignored.

        Raises InputError if there is none, or if it contains NaN or Infinity.
        """
        start = 0 if self.text.startswith("{") else self.text.find("\n{") + 1
        line = self.text.count("\n", 0, start)
        if not self.text.startswith("{", start):
            self.refuse(
                f'contains no JSON object (no line begins with "{{"); is it the JSON output of {tool}?'
            )
        decoder = json.JSONDecoder(parse_constant=_refuse_constant)
        try:
            data, _ = decoder.raw_decode(self.text[start:])
        except json.JSONDecodeError as error:
            message = f"not valid JSON ({error.msg}); was {tool} interrupted? Run it again"
            raise InputError((Problem(self.path, line + error.lineno, error.colno, "", message),)) from None
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            self.refuse(f"unusable JSON ({reason}); run {tool} again", line=line + 1)
        return Fields(self, "", data)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a finite number")


def finite(text: str) -> float | None:
    """Return a finite, non-negative number; None if the text is not such a number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 and "_" not in text else None


class Fields(NamedTuple):
    """An object within JSON, with its key path."""

    file: BenchmarkFile
    key: str
    data: dict[str, Any]

    def place(self, name: str) -> str:
        """Return the key path of an entry, e.g. ``jobs[0].error``."""
        return f"{self.key}.{name}" if self.key else name

    def refuse(self, name: str, message: str) -> NoReturn:
        """Raise an InputError about an entry."""
        self.file.refuse(message, key=self.place(name))

    def object(self, name: str) -> Fields:
        """Return an entry that is an object; empty if it is missing.

        Raises InputError if it is anything else.
        """
        value = self.data.get(name, {})
        if not isinstance(value, dict):
            self.refuse(name, "must be an object; was the file edited?")
        return Fields(self.file, self.place(name), value)

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Return an entry that is a non-empty list of objects.

        Raises InputError if it is not.
        """
        value = self.data.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
            self.refuse(name, "must be a non-empty list of objects; is this another tool's output?")
        return tuple(Fields(self.file, f"{self.place(name)}[{i}]", one) for i, one in enumerate(value))

    def number(self, name: str) -> float:
        """Return an entry that is a finite, non-negative number; 0 if it is missing.

        Raises InputError if it is not.
        """
        value = self.data.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or finite(str(value)) is None:
            self.refuse(name, f"must be a finite number of at least 0, not {str(value)[:40]!r}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return an entry as text; ``default`` if it is missing."""
        return str(self.data.get(name, default))


class StorageMeasurement(NamedTuple):
    """One measured run of reads or writes on a drive, array or file system."""

    operation: Literal["read", "write"]
    block: int
    """[B] Size of one request."""
    queue_depth: int
    """The number of requests that one job has in flight."""
    jobs: int
    """The number of concurrent threads or processes."""
    rate: int
    """[B/s] Total rate of all jobs."""
    latency: float | None
    """[s] Mean latency of a request under this load."""
    direct: bool | None
    """Whether I/O bypassed the page cache; None if the file does not tell."""
    random: bool | None
    """Whether offsets were random; None if the file does not tell."""
    tool: str
    version: str
    """Empty if the file does not say."""
    file: str
    """Name of the file, without its folder."""
    date: datetime.date
    """The day of the run if the file tells it, else that of the file."""

    @property
    def outstanding(self) -> int:
        """[B] The amount in flight."""
        return self.block * self.queue_depth * self.jobs


class CopyMeasurement(NamedTuple):
    """Measured copies between pinned host memory and one GPU by the copy engine."""

    direction: Literal["host_to_device", "device_to_host"]
    both_ways: bool
    """Whether copies in the other direction ran at the same time; ``rate`` is that of this direction."""
    gpu: int
    size: int
    """[B] Size of one copy."""
    rate: int
    """[B/s] Rate of the copies."""
    tool: str
    version: str
    """Empty if the file does not say."""
    file: str
    """Name of the file, without its folder."""
    date: datetime.date
    """The day of the file, which does not tell that of the measurement."""


# -- output of DeepSpeed's ``ds_io`` and ``ds_nvme_tune`` ------------------------------------------
# Format: deepspeedai/DeepSpeed, deepspeed/nvme: "E2E Read Speed = 12.3 GB/sec" for all threads together,
# with the settings in the name of the log; GB is 1024^3.


_GIB = 1024**3
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
            measurements.append(_of_ds_io(file, operation, match[2], _by_name(file), line=number))
        elif match := _BEST.fullmatch(line):
            best = _tuned(file, number)
            measurements.append(_of_ds_io(file, "read", match[1], best, line=number))
            measurements.append(_of_ds_io(file, "write", match[2], best, line=number))
    if not measurements:
        file.refuse(
            'contains no line "E2E Read Speed = … GB/sec" (or Write) and no "Best performance (GB/sec): …"; '
            "give the log of ds_io or the output of ds_nvme_tune"
        )
    return tuple(measurements)


def _of_ds_io(
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
        rate=round(speed * _GIB),
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


# -- output of ``elbencho --csvfile`` --------------------------------------------------------------
# Format: breuner/elbencho, source/Statistics.cpp: a row per phase; columns "[first]" are the state when the
# fastest thread ended, "[last]" the state when all threads had ended.


_MIB = 1024**2
_NEEDED = ("operation", "MiB/s [last]", "block size", "threads")
_MIXED = "rwmix read MiB/s [last]"


class _Row(NamedTuple):
    """One phase of a benchmark, which is a row of the file."""

    file: BenchmarkFile
    line: int
    cells: dict[str, str]

    def positive_integer(self, name: str, default: int = 1) -> int:
        """Return a number above 0; ``default`` if the cell is empty or missing."""
        text = self.cells.get(name, "").strip()
        if not text:
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 15 or not int(text):
            self.file.refuse(f"must be a whole number above 0, not {text[:40]!r}", line=self.line, key=name)
        return int(text)

    def number(self, name: str) -> float | None:
        """Return a finite number; None if the cell is empty or missing."""
        text = self.cells.get(name, "").strip()
        value = finite(text) if text else None
        if text and value is None:
            self.file.refuse(f"must be a finite number, not {text[:40]!r}", line=self.line, key=name)
        return value

    def flag(self, name: str) -> bool | None:
        """Return whether a cell is 1; None if it is empty or missing."""
        text = self.cells.get(name, "").strip()
        return text != "0" if text else None


def read_elbencho(path: str | Path) -> tuple[StorageMeasurement, ...]:
    """Read the phases READ and WRITE, and ignore the others.

    Raises InputError for a table of live statistics, for mixed reads and writes, and if there is no phase.
    """
    file = BenchmarkFile.read(path)
    rows = csv.reader(file.text.splitlines(), strict=True)
    measurements: list[StorageMeasurement] = []
    header: list[str] = []
    try:
        for row in rows:
            if not row or row == header:
                continue  # a later run may have repeated the header
            if not header:
                header = row
                _check_header(file, header)
            elif len(row) != len(header):
                file.refuse(
                    f"the row has {len(row)} cells for {len(header)} columns; was elbencho interrupted?",
                    line=rows.line_num,
                )
            else:
                measurements += _phase(_Row(file, rows.line_num, dict(zip(header, row, strict=True))))
    except csv.Error as error:
        file.refuse(f"not valid CSV: {error}", line=rows.line_num)
    if not measurements:
        file.refuse("contains no phase READ or WRITE; run elbencho with -r or -w and --csvfile")
    return tuple(measurements)


def _check_header(file: BenchmarkFile, header: list[str]) -> None:
    if {"Phase", "RuntimeMS"} <= set(header):
        file.refuse("this is the CSV of live statistics (--livecsv); give the one of --csvfile", line=1)
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        file.refuse(f"no column {', '.join(missing)}; give the CSV of elbencho --csvfile", line=1)


def _phase(row: _Row) -> list[StorageMeasurement]:
    name = row.cells["operation"]
    if name.startswith("RWMIX") or row.number(_MIXED):
        row.file.refuse(
            "the phase mixed reads and writes, so neither rate is usable; run two phases", line=row.line
        )
    if name not in {"READ", "WRITE"}:
        return []
    operation: Literal["read", "write"] = "read" if name == "READ" else "write"
    rate = row.number("MiB/s [last]")
    if not rate:
        row.file.refuse("must be above 0", line=row.line, key="MiB/s [last]")
    latency = row.number("IO lat us [avg]")
    measured = StorageMeasurement(
        operation=operation,
        block=_block_of(row),
        queue_depth=row.positive_integer("IO depth"),
        jobs=row.positive_integer("threads") * row.positive_integer("hosts"),
        rate=round(rate * _MIB),
        latency=latency * 1e-6 if latency else None,
        direct=row.flag("direct IO"),
        random=row.flag("random"),
        tool="elbencho",
        version=row.cells.get("version", "").strip(),
        file=row.file.name,
        date=_date_of(row),
    )
    return [measured]


def _block_of(row: _Row) -> int:
    block = row.positive_integer("block size", default=0)
    if not block:
        row.file.refuse(
            "missing; only runs with a block size can be imported", line=row.line, key="block size"
        )
    return block


def _date_of(row: _Row) -> datetime.date:
    text = row.cells.get("ISO date", "").strip()
    if not text:
        return row.file.date
    try:
        return datetime.date.fromisoformat(text[:10])
    except ValueError:
        row.file.refuse(f"{text[:40]!r} is not an ISO date", line=row.line, key="ISO date")


# -- output of ``fio --output-format=json`` (or json+) ---------------------------------------------
# Format: fio's HOWTO ("Output"): ``bw_bytes`` is in B/s (``bw`` in KiB/s), times are in ns, options are
# text.


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


# -- output of ``nvbandwidth`` ---------------------------------------------------------------------
# The JSON of ``-j`` or the plain matrices.
#
# Format: NVIDIA/nvbandwidth, json_output.cpp and README.md: GB/s are decimal, cells of the JSON are text, a
# row is a CPU and a column a GPU, "N/A" a pair that was not measured.


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
