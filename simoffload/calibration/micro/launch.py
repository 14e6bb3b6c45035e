"""Measuring in processes that are kept for all rounds; PyTorch is not imported here."""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import simoffload
from simoffload.calibration.deepspeed.launch import NEEDED, case_data
from simoffload.calibration.machine_facts import machine_facts
from simoffload.calibration.micro.plan import (
    WORKS,
    Context,
    MeasurementSection,
    SkippedError,
    Work,
    attention_shapes,
    matmul_shapes,
    matmul_variants,
    ranks_of,
)
from simoffload.calibration.micro.record import SCHEMA, Record
from simoffload.calibration.micro.session import Session
from simoffload.calibration.micro.workers import Workers
from simoffload.calibration.processes import missing_packages
from simoffload.calibration.small_models import (
    held_back_cases,
    held_back_training_cases,
    small_cases,
    small_training_cases,
)
from simoffload.documents import exists
from simoffload.errors import InputError, Problem, shortened
from simoffload.units import format_bytes

__all__ = ["Bench", "MeasurementRequest", "describe", "measure", "open_bench"]

_MIB = 1 << 20
_FILE = 128 * _MIB
_MOST_STORAGE = 2 << 30
_MISSING = {"storage": "no folder was named with --storage", "collectives": "needs two GPUs"}
_SPARE = 3.0
"""[s] for what is between sections."""
_COMPILED = {"hooks", "cpu_adam", "storage"}
"""Sections that need what DeepSpeed compiles."""
_COMPILATION = 1800.0
"""[s] that DeepSpeed's compilers may take."""
_MEETING = 60.0
"""[s] that processes may take to say what they see, their imports not counted."""


class MeasurementRequest(NamedTuple):
    """What the user asks for."""

    sections: tuple[str, ...]
    gpus: int | None
    """GPUs to use; None for all."""
    storage: Path | None
    storage_size: int | None
    """[B] of the files that are written; None for 2 GiB or a quarter of the free space."""
    quick: bool
    record: Path | None = None
    """File that has what was measured as soon as it was, so that nothing is lost when the run ends early."""
    seconds: float | None = None
    """[s] that all may take; None for what is usual."""
    resumed: Mapping[str, Any] | None = None
    """The record of a run that ended early and that this one goes on with."""


class Bench(Protocol):
    """A machine that can be measured."""

    facts: Mapping[str, Any]
    """What machine it is."""
    sections: Sequence[MeasurementSection]
    skipped: Mapping[str, str]
    """Sections that were asked for and are not there, and why."""

    def prepare(self) -> None:
        """Compile what has to be before anything is measured."""

    def probe(self) -> Mapping[str, Any]:
        """Measure how fast the host is at this moment."""


def describe(request: MeasurementRequest, folder: Path) -> str:
    """Say what will be done and written, before it is."""
    lines = [f"Measuring {', '.join(request.sections)}; results go to {folder}."]
    if request.storage is not None and "storage" in request.sections:
        size = format_bytes(_storage_size(request), binary=True)
        lines.append(f"{request.storage}: {size} of files are written, read and removed again.")
    return "\n".join(lines)


def _error(option: str, message: str) -> InputError:
    return InputError((Problem(option, None, None, "", message),))


def _storage_size(request: MeasurementRequest) -> int:
    """[B], a multiple of one tensor. Raises InputError where the folder cannot hold it."""
    folder = request.storage
    assert folder is not None
    if not (exists(folder) and folder.is_dir()):
        raise _error("--storage", f"{shortened(str(folder))} is not a folder; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _error("--storage", f"{folder} cannot be written to")
    free = shutil.disk_usage(folder).free
    size = request.storage_size or min(_MOST_STORAGE, free // 4)
    size = size // _FILE * _FILE
    if not size:
        raise _error("--storage-size", f"must be at least {format_bytes(_FILE, binary=True)}")
    if size > free * 0.9:
        raise _error("--storage-size", f"{folder} has {format_bytes(free)} left; ask for less")
    return size


def measure(request: MeasurementRequest, *, progress: Callable[[str], None]) -> dict[str, Any]:
    """Carry out the sections and return everything they found, in the layout of ``micro.json``.

    Raises InputError where PyTorch is missing, or a GPU or a folder that was asked for, and where a record
    cannot be gone on with. On any exception, Ctrl-C included, no process and no storage file is left.
    """
    begin = time.monotonic()
    with open_bench(request, progress) as bench:
        record = Record(_begun(request, bench), request.record)
        bench.prepare()
        if request.seconds is None:
            seconds = _usual_seconds(bench, quick=request.quick)
        else:
            seconds = request.seconds - (time.monotonic() - begin)
        session = Session(
            bench.sections,
            record,
            probe=bench.probe,
            seconds=seconds,
            complete=request.seconds is None,
            progress=progress,
        )
        session.carry_out()
        return record.raw


def _usual_seconds(bench: Bench, *, quick: bool) -> float:
    """[s] of all rounds on a slow host, probes included; on a quiet one time is left for repetitions."""
    rounds = sum(section.seconds * len(section.rounds) + section.building for section in bench.sections)
    probes = sum(len(section.rounds) for section in bench.sections)
    return rounds + probes * (_probe_seconds(quick=quick) + 0.2) + _SPARE


def _probe_seconds(*, quick: bool) -> float:
    """[s] of a probe, of about two seconds with what is around it."""
    return 0.8 if quick else 1.6


def _begun(request: MeasurementRequest, bench: Bench) -> dict[str, Any]:
    """A record without anything measured, or the one to go on with."""
    options = {
        "sections": list(request.sections),
        "gpus": request.gpus,
        "quick": request.quick,
        "storage": request.storage is not None,
        "storage_size": request.storage_size,
    }
    names = [section.name for section in bench.sections]
    if request.resumed is not None:
        _check_resumable(request.resumed, dict(bench.facts), options)
        raw = dict(request.resumed)
        raw["skipped"] = dict(bench.skipped)
        raw["unfinished"] = [name for name in names if name not in {one["section"] for one in raw["rounds"]}]
        return raw
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "simoffload": simoffload.__version__,
        "quick": request.quick,
        "options": options,
        "machine": dict(bench.facts),
        "sections": {},
        "skipped": dict(bench.skipped),
        "seconds": {},
        "unfinished": names,
        "noise": {},
        "probes": [],
        "rounds": [],
    }


def _check_resumable(
    record: Mapping[str, Any], machine: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse to go on with the record of another machine, or of other options."""
    if record["schema"] != SCHEMA:
        raise _error("--resume", "the record is of an older release; measure into a new folder")
    pairs = [("this machine", record["machine"], machine), ("what is asked for", record["options"], options)]
    for what, then, now in pairs:
        differing = [key for key in {**then, **now} if key != "memory" and then.get(key) != now.get(key)]
        if differing:
            errors = "; ".join(
                f"{key} was {shortened(str(then.get(key)))}, is {shortened(str(now.get(key)))}"
                for key in differing[:3]
            )
            raise _error(
                "--resume", f"{what} is not that of the record ({errors}); measure into a new folder"
            )


@contextmanager
def open_bench(request: MeasurementRequest, progress: Callable[[str], None]) -> Iterator[Bench]:
    """This machine, with the processes that measure it; they end with the context."""
    if missing_packages(["torch"]):
        raise _error("torch", "not installed; install it beside simoffload (https://pytorch.org/get-started)")
    with tempfile.TemporaryDirectory(prefix="simoffload-micro-") as name, _scratch(request) as scratch:
        job = {
            "quick": request.quick,
            "parent": os.getpid(),
            "storage": scratch,
            "duration": _probe_seconds(quick=request.quick),
        }
        with Workers(Path(name), job) as workers:
            progress("looking at the machine")
            yield _ThisMachine(request, workers, progress, storage=scratch is not None)


class _ThisMachine:
    """The bench whose sections run in processes of this machine."""

    def __init__(
        self, request: MeasurementRequest, workers: Workers, progress: Callable[[str], None], *, storage: bool
    ) -> None:
        self._request, self._workers, self._progress = request, workers, progress
        self._jiffies = _jiffies()
        if _COMPILED & set(request.sections):
            workers.start("deepspeed", 1)  # its imports take as long as those of the other one
        try:
            facts = workers.ask("plain", 1, {"work": "facts"}, seconds=_MEETING)
        except SkippedError as error:
            raise _error("torch", f"cannot be imported: {error}; repair or reinstall it") from None
        self.facts: Mapping[str, Any] = {**machine_facts(), **facts}
        gpu = self.facts["gpu"]
        available = gpu["count"] if gpu else (os.cpu_count() or 1)
        self._gpus = request.gpus or (available if gpu else 1)
        if self._gpus > available:
            what = "GPU(s)" if gpu else "core(s) and no GPU"
            raise _error("--gpus", f"{self._gpus} asked for; PyTorch sees {available} {what}")
        # Without a GPU kernels run on the host thread, and its costs say nothing about depth.
        self._deep = gpu is not None and not request.quick
        self.skipped: Mapping[str, str] = {
            section: _MISSING[section]
            for section, missing in (("storage", not storage), ("collectives", self._gpus == 1))
            if missing and section in request.sections
        }
        self.sections: Sequence[MeasurementSection] = list(self._sections())

    def _sections(self) -> Iterator[MeasurementSection]:
        request = self._request
        for name, work in WORKS.items():
            if work.section not in request.sections or work.section in self.skipped:
                continue
            if work.process == "apart" and self.facts["gpu"] is None:
                continue
            for ranks in ranks_of(work, self._gpus):
                yield MeasurementSection(
                    name if ranks == 1 else f"{name}/{ranks}",
                    partial(self._run, name, work, ranks),
                    seconds=work.quick if request.quick else work.seconds,
                    building=0.0 if request.quick else work.building,
                    rounds=work.rounds[:1] if request.quick else work.rounds,
                    host=work.host,
                )

    def prepare(self) -> None:
        """Start all processes, and let DeepSpeed compile what the sections need.

        Where that fails, the sections that need it say so.
        """
        several = sorted({int(name) for one in self.sections if (name := one.name.partition("/")[2])})
        for ranks in several:
            self._workers.start("deepspeed", ranks)
        with suppress(SkippedError):
            if _COMPILED & set(self._request.sections):
                self._progress("DeepSpeed's operations: compiling them for the first time takes minutes")
                self._workers.ask("deepspeed", 1, {"work": "compile"}, seconds=_COMPILATION)
        for ranks in several:
            with suppress(SkippedError):
                self._workers.ask("deepspeed", ranks, {"work": "facts"}, seconds=_MEETING)

    def probe(self) -> Mapping[str, Any]:
        """About two seconds of PyTorch's calls, and the share of all CPUs' time since the probe before that
        the hypervisor gave to others (None where Linux does not tell)."""
        try:
            found = self._probed()
        except SkippedError:  # what was measured before may have ended the process
            found = self._probed()
        before, self._jiffies = self._jiffies, _jiffies()
        spent = [late - early for early, late in zip(before, self._jiffies, strict=False)]
        total = sum(spent)
        return {**found, "steal": round(spent[7] / total, 4) if total > 0 and len(spent) > 7 else None}

    def _probed(self) -> dict[str, Any]:
        return self._workers.ask("plain", 1, {"work": "probe"}, seconds=30.0)

    def _run(self, name: str, work: Work, ranks: int, context: Context) -> Mapping[str, Any]:
        asked = {"work": name, "round": context.round, **self._more(name, ranks)}
        process = "deepspeed" if ranks > 1 else work.process
        return self._workers.ask(process, ranks, asked, seconds=context.seconds)

    def _more(self, name: str, ranks: int) -> dict[str, Any]:
        """What a section needs to know beyond its name. Raises SkippedError."""
        if name == "matmul":
            return {"matmul_shapes": matmul_shapes(), "matmul_variants": matmul_variants()}
        if name == "attention":
            return {"attention_shapes": attention_shapes()}
        if not name.startswith("hooks_"):
            return {}
        missing = missing_packages(NEEDED)
        if missing:
            raise SkippedError(f"{', '.join(missing)} not installed")
        if name == "hooks_decode":
            fitted, held_back = small_cases(ranks), held_back_cases(ranks)
        else:
            fitted = small_training_cases(ranks, deep=self._deep)
            held_back = held_back_training_cases(ranks, deep=self._deep)
        held_back = () if self._request.quick else held_back
        data = [case_data(index, case, trace=True) for index, case in enumerate((*fitted, *held_back))]
        return {"cases": [{**one, "held_back": one["index"] >= len(fitted)} for one in data]}


def _jiffies() -> list[int]:
    """Time of all CPUs by use, as Linux counts it: user, nice, system, idle, iowait, irq, softirq, steal."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
        return [int(word) for word in first.split()[1:9]]
    except (OSError, ValueError):
        return []


@contextmanager
def _scratch(request: MeasurementRequest) -> Iterator[dict[str, Any] | None]:
    """A new folder for storage files inside the one that the user named, removed at the end."""
    if request.storage is None or "storage" not in request.sections:
        yield None
        return
    size = _storage_size(request)
    folder = Path(tempfile.mkdtemp(prefix=".simoffload-", dir=request.storage))
    try:
        yield {"scratch": str(folder), "filesystem": _filesystem(folder), "size": size}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _filesystem(folder: Path) -> str:
    """Type of the filesystem of a folder, as the kernel names it; empty where that is not known."""
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    except OSError:
        return ""
    for line in mounts.splitlines():
        _, point, name, *_ = line.split(" ")
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind
