"""Measuring in processes of their own, and putting together what they found; PyTorch is not imported here."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import simoffload
from simoffload.calibration.machine_facts import machine_facts
from simoffload.calibration.micro.hooks import measure_hooks
from simoffload.calibration.micro.plan import (
    RANKS,
    SECTIONS,
    MeasurementStage,
    attention_shapes,
    matmul_shapes,
    matmul_variants,
    stages,
)
from simoffload.calibration.micro.record import SCHEMA, record_text
from simoffload.calibration.processes import missing_packages, run_ranks
from simoffload.documents import exists
from simoffload.errors import InputError, Problem, shortened
from simoffload.exchange.files import replacing
from simoffload.units import format_bytes

__all__ = ["PROBE", "WORKER", "MeasurementRequest", "describe", "measure"]

PROBE = "simoffload.calibration.micro.probe"
WORKER = "simoffload.calibration.micro.worker"
"""Modules that run in processes of their own."""
_MIB = 1 << 20
_FILE = 128 * _MIB
_MOST_STORAGE = 2 << 30
_START = 180.0
"""[s] for the imports of the processes and their first meeting."""
_SLACK = 5
_MISSING = {"storage": "no folder was named with --storage", "collectives": "needs two GPUs"}


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
        raise _error("--storage", f"{shortened(str(folder))} is no folder; make it first")
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

    Raises InputError where PyTorch is missing, or a GPU or a folder that was asked for. On any exception,
    Ctrl-C included, no process and no storage file is left.
    """
    if missing_packages(["torch"]):
        raise _error("torch", "not installed; install it beside simoffload (https://pytorch.org/get-started)")
    with tempfile.TemporaryDirectory(prefix="simoffload-micro-") as name, _scratch(request) as scratch:
        folder = Path(name)
        progress("looking at the machine")
        machine = _probe(folder)
        device = "cuda" if machine["gpu"] else "cpu"
        available = machine["gpu"]["count"] if machine["gpu"] else (os.cpu_count() or 1)
        gpus = request.gpus or (available if device == "cuda" else 1)
        if gpus > available:
            what = "GPU(s)" if device == "cuda" else "core(s) and no GPU"
            raise _error("--gpus", f"{gpus} asked for; PyTorch sees {available} {what}")
        raw: dict[str, Any] = {
            "schema": SCHEMA,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "simoffload": simoffload.__version__,
            "quick": request.quick,
            "machine": machine,
            "sections": {},
            "skipped": {},
            "seconds": {},
            "unfinished": [],
        }
        job = {
            "device": device,
            "quick": request.quick,
            "parent": os.getpid(),
            "matmul_shapes": matmul_shapes(),
            "matmul_variants": matmul_variants(),
            "attention_shapes": attention_shapes(),
            "storage": scratch,
        }
        sections = list(request.sections)
        for section, missing in (("storage", scratch is None), ("collectives", gpus == 1)):
            if missing and section in sections:
                sections.remove(section)
                raw["skipped"][section] = _MISSING[section]
        record = _Record(raw, request.record)
        planned = [
            _Stage(stage, job, folder / f"ranks-{stage.ranks}", progress) for stage in stages(sections, gpus)
        ]
        raw["unfinished"] = [key for stage in planned for key in stage.keys]
        raw["unfinished"] += ["hooks"] * ("hooks" in sections)
        for stage in planned:
            stage.carry_out(record)
        if "hooks" in sections:
            # Without a GPU kernels run on the host thread, and its costs say nothing about depth.
            deep = device == "cuda" and not request.quick
            _hooks(raw, [number for number in RANKS if number <= gpus], progress, deep=deep)
        del raw["unfinished"]
        return raw


class _Record:
    """What is found, and the file that has as much of it as there is."""

    def __init__(self, raw: dict[str, Any], path: Path | None) -> None:
        self.raw, self._path = raw, path

    def finished(self, key: str) -> None:
        """A section was carried out or given up: write the file anew, whole or not at all."""
        if key in self.raw["unfinished"]:
            self.raw["unfinished"].remove(key)
        if self._path is not None and self.raw["sections"]:
            with replacing(self._path) as file:
                file.write(record_text(self.raw))


def _hooks(raw: dict[str, Any], ranks: Sequence[int], progress: Callable[[str], None], *, deep: bool) -> None:
    """The section that runs DeepSpeed itself."""
    begin = time.monotonic()
    try:
        found = measure_hooks(ranks, deep=deep, seconds=SECTIONS["hooks"].limit, progress=progress)
        if any(run["ranks"] == 1 for run in found["runs"]):
            raw["sections"]["hooks"] = found
        else:
            raw["skipped"]["hooks"] = "no small model ran to its end on one rank"
        for failed in found["failed"]:
            raw["skipped"][f"hooks, {failed['name']}"] = failed["error"]
    except LookupError as error:
        raw["skipped"]["hooks"] = str(error)
    raw["seconds"]["hooks"] = round(time.monotonic() - begin, 3)


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


def _probe(folder: Path) -> dict[str, Any]:
    answer, log = folder / "probe.json", folder / "probe.log"
    status = run_ranks(PROBE, [str(answer)], ranks=1, log=log, environment={})
    if status != 0 or not answer.is_file():
        raise _error("torch", f"cannot be imported: {_last_line(log)}; repair or reinstall it")
    return {**machine_facts(), **json.loads(answer.read_text(encoding="utf-8"))}


def _last_line(log: Path) -> str:
    """The last line that a process wrote, for a message."""
    if not log.is_file():
        return "it said nothing"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and "torch.distributed.elastic" not in line]
    return (errors or lines or ["it said nothing"])[-1][:300]


class _Stage:
    """Sections that share processes; when those end early, new ones go on after the section that failed."""

    def __init__(
        self, stage: MeasurementStage, job: dict[str, Any], folder: Path, progress: Callable[[str], None]
    ) -> None:
        self._stage, self._job, self._folder, self._progress = stage, job, folder, progress
        folder.mkdir()
        self._log = folder / "log.txt"
        self._announced: set[str] = set()
        self._last = time.monotonic()
        self._overdue = ""
        self._collected: set[str] = set()

    @property
    def keys(self) -> list[str]:
        """What the sections are called in the record."""
        return [self._key(name) for name in self._stage.sections]

    def carry_out(self, record: _Record) -> None:
        """Add what is found, what was skipped and the seconds to the record, each as soon as it is there."""
        try:
            self._carry_out(record)
        finally:
            self._collect(record)

    def _carry_out(self, record: _Record) -> None:
        left, raw = list(self._stage.sections), record.raw
        while left:
            status = self._run(left, record)
            failed = next((name for name in left if not self._file(name, "json").is_file()), None)
            if failed is None:
                break
            if self._file(failed, "begun").is_file():
                raw["skipped"][self._key(failed)] = self._reason(failed, status)
                record.finished(self._key(failed))
                left = left[left.index(failed) + 1 :]
            else:
                for name in left[left.index(failed) :]:
                    reason = self._overdue or f"the processes could not be started: {_last_line(self._log)}"
                    raw["skipped"][self._key(name)] = reason
                    record.finished(self._key(name))
                break

    def _file(self, section: str, suffix: str) -> Path:
        return self._folder / f"{section}.{suffix}"

    def _key(self, section: str) -> str:
        return section if self._stage.ranks == 1 else f"{section}/{self._stage.ranks}"

    def _run(self, sections: Sequence[str], record: _Record) -> int | None:
        path = self._folder / "job.json"
        path.write_text(json.dumps({**self._job, "sections": sections, "folder": str(self._folder)}))
        environment = {"DS_ACCELERATOR": "cpu"} if self._job["device"] == "cpu" else {}
        self._last, self._overdue = time.monotonic(), ""
        return run_ranks(
            WORKER,
            [str(path)],
            ranks=self._stage.ranks,
            log=self._log,
            environment=environment,
            watch=partial(self._watch, record),
        )

    def _watch(self, record: _Record) -> bool:
        """Tell what begins and keep what ends; False when a section takes longer than it may."""
        self._collect(record)
        begun = [name for name in self._stage.sections if self._file(name, "begun").is_file()]
        for name in begun:
            if name not in self._announced:
                self._announced.add(name)
                self._last = time.monotonic()
                self._progress(f"{self._key(name)} ({len(self._announced)} of {len(self._stage.sections)})")
        limit = _limit(begun[-1]) if begun else _START
        if time.monotonic() - self._last > limit + _SLACK:
            self._overdue = f"stopped after {limit:.0f} s"
            return False
        return True

    def _reason(self, section: str, status: int | None) -> str:
        if self._overdue:
            return self._overdue
        for file in sorted(self._folder.glob(f"{section}.failed-*")):
            return str(json.loads(file.read_text(encoding="utf-8"))["skipped"])
        return f"its process ended with status {status}: {_last_line(self._log)}"

    def _collect(self, record: _Record) -> None:
        several, raw = self._stage.ranks > 1, record.raw
        for name in self._stage.sections:
            file = self._file(name, "json")
            if name in self._collected or not file.is_file():
                continue
            self._collected.add(name)
            result = json.loads(file.read_text(encoding="utf-8"))
            raw["seconds"][self._key(name)] = result["seconds"]
            if "skipped" in result:
                raw["skipped"][self._key(name)] = result["skipped"]
            elif several:
                raw["sections"].setdefault(name, {})[str(self._stage.ranks)] = result["found"]
            else:
                raw["sections"][name] = result["found"]
            record.finished(self._key(name))


def _limit(work: str) -> float:
    return max(section.limit for section in SECTIONS.values() if work in (*section.alone, section.together))
