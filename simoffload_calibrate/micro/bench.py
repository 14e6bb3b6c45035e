"""The machine under measurement: its sections run in child processes that live for all rounds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from simoffload.documents import exists
from simoffload.errors import InputError, shortened
from simoffload.units import format_bytes, plural
from simoffload_calibrate.detect import SeenGpu, detect_machine
from simoffload_calibrate.jobs import JobProcesses, missing_packages, thread_environment
from simoffload_calibrate.micro.benchmarks import (
    BenchmarkSetting,
    Context,
    MeasurementRequest,
    MeasurementSection,
    Microbenchmark,
    SkippedError,
    microbenchmarks,
    need_storage,
    refusal,
)
from simoffload_calibrate.runs import machine_facts

_FILE = 128 << 20
"""[B] Size of one storage file, which holds one tensor."""
_MOST_STORAGE = 2 << 30
_READY_S = 10.0
"""[s] Expected time until single processes have imported PyTorch and DeepSpeed and know the GPU, in parallel;
estimate."""
_GROUP_READY_S = 25.0
"""[s] The same with a group of one process for each GPU, which starts when the number of GPUs is known, up to
the first contact of its ranks; estimate. The record states the actual time (preparation_seconds)."""
_FACTS, _PROBE = f"{__package__}.gpu:gpu_facts", f"{__package__}.host:probe_host"
_COMPILE = f"{__package__}.host:compile_operations"
"""The functions of tasks that are no microbenchmarks."""
_COMPILATION_S = 1800.0
"""[s] Time limit of DeepSpeed's compilers."""
_USUAL_COMPILATION_S = 80.0
"""[s] Their usual time with 16 cores: 78 s on one of the machines of 28 November 2026, 27 s on another."""
_FACTS_S = 60.0
"""[s] Time limit for reporting versions and GPUs, without the imports of the process."""
_PROBE_S = 30.0
"""[s] Time limit of a probe."""


class Bench(Protocol):
    """A machine that can be measured."""

    facts: Mapping[str, Any]
    """The facts that identify the machine: GPU, CPU, memory and versions."""
    sections: Sequence[MeasurementSection]
    """The sections to measure, in the order of a round."""
    skipped: Mapping[str, str]
    """The requested sections that cannot be measured, with the reasons."""
    preparation: float
    """[s] Expected time until the processes are ready, without compilers."""
    compilation: float
    """[s] Expected time of DeepSpeed's compilers; 0 if what they make is there already."""

    def detect(self) -> str:
        """Return the platform file of the machine that ``simoffload detect`` writes; "" if that fails."""

    def prepare(self) -> None:
        """Start the processes and compile what the sections need."""

    def probe(self) -> Mapping[str, Any]:
        """Measure the current speed of the host thread."""


@contextmanager
def open_bench(request: MeasurementRequest, progress: Callable[[str], None]) -> Iterator[Bench]:
    """Open this machine for a measurement; its processes and storage files are removed with the context.

    Raises InputError if PyTorch is missing, or a GPU or folder of the request.
    """
    if missing_packages(["torch"]):
        raise refusal(
            "torch", "not installed; install it next to simoffload (https://pytorch.org/get-started)"
        )
    with tempfile.TemporaryDirectory(prefix="simoffload-micro-") as name, _storage_folder(request) as storage:
        job = {
            "quick": request.quick,
            "storage": storage,
            "scratch": storage and storage["scratch"],
            "duration": probe_seconds(quick=request.quick),
        }
        with _WorkerGroups(Path(name), job) as workers:
            progress("reading the facts of the machine")
            yield _ThisMachine(request, workers, progress, storage=storage is not None)


def probe_seconds(*, quick: bool) -> float:
    """Return the time of a probe [s]."""
    return 0.8 if quick else 1.6


class _ThisMachine:
    """The bench whose sections run in processes of this machine."""

    def __init__(
        self,
        request: MeasurementRequest,
        workers: _WorkerGroups,
        progress: Callable[[str], None],
        *,
        storage: bool,
    ) -> None:
        self._request, self._workers, self._progress = request, workers, progress
        self._cpu_times = _cpu_times()
        asked = [one for one in microbenchmarks() if one.runs and one.section in request.sections]
        self._benchmarks = [one for one in asked if storage or not one.storage]
        self._compiles = any(one.compiled for one in asked)
        if self._compiles:
            workers.start("deepspeed", 1)  # its imports run while the other process starts
        try:
            facts = workers.call("plain", 1, _FACTS, {}, seconds=_FACTS_S)
        except SkippedError as error:
            raise refusal("torch", f"cannot be imported: {error}; repair or reinstall it") from None
        self.facts: Mapping[str, Any] = {**machine_facts(), **facts}
        gpu = self.facts["gpu"]
        available = gpu["count"] if gpu else (os.cpu_count() or 1)
        self._gpus = request.gpus or (available if gpu else 1)
        if self._gpus > available:
            limit = plural(available, "GPU") if gpu else f"{plural(available, 'core')} and no GPU"
            raise refusal("--gpus", f"must be at most {available}, not {self._gpus}: PyTorch sees {limit}")
        # Without a GPU, kernels run on the host thread, and its costs say nothing about depth.
        self._deep = gpu is not None and not request.quick
        possible = {one.section for one in asked if one.processes(self._gpus)}
        self.skipped: Mapping[str, str] = {
            one.section: "no folder was named with --storage" if one.storage else f"needs {one.fewest} GPUs"
            for one in asked
            if one not in self._benchmarks or one.section not in possible
        }
        self.sections: Sequence[MeasurementSection] = list(self._sections())
        self._several = any("/" in section.name for section in self.sections)
        self.preparation = _GROUP_READY_S if self._several else _READY_S
        self._compiles = self._compiles and not missing_packages(["deepspeed"])
        self.compilation = _USUAL_COMPILATION_S if self._compiles and not _is_compiled() else 0.0

    def _sections(self) -> Iterator[MeasurementSection]:
        request = self._request
        for one in self._benchmarks:
            if (seconds := one.quick if request.quick else one.seconds) is None:
                continue
            for ranks in one.processes(self._gpus):
                name = one.name if ranks == 1 else f"{one.name}/{ranks}"
                why = "there is no GPU" if one.needs_gpu and self.facts["gpu"] is None else ""
                if missing := missing_packages(one.packages):
                    why = f"{', '.join(missing)} not installed"
                if why:
                    self.skipped = {**self.skipped, name: why}
                    continue
                yield MeasurementSection(
                    name,
                    partial(self._run, one, ranks),
                    seconds=seconds * len(one.numbers(ranks)),
                    building=0.0 if request.quick else one.building,
                    rounds=one.rounds[:1] if request.quick else one.rounds,
                    host=one.host,
                    once=one.once,
                )

    def detect(self) -> str:
        """Return what this machine says of itself, with the GPUs that PyTorch sees."""
        gpu = self.facts["gpu"]
        seen = SeenGpu(gpu["name"], gpu.get("memory", 0) / 2**20 or None, (), None) if gpu else None
        try:
            detected = detect_machine(gpus=[seen] * gpu["count"] if seen else ())
        except InputError as error:
            self._progress(f"simoffload detect cannot describe this machine: {error}")
            return ""
        for remark in detected.assumed:
            self._progress(f"assumed where nothing is measured: {remark}")
        return detected.text

    def prepare(self) -> None:
        """Start all processes, and let DeepSpeed compile what the sections need.

        If that fails, the sections that need it report the failure.
        """
        if self._several:
            self._workers.start("deepspeed", self._gpus)
        with suppress(SkippedError):
            if self._compiles:
                if self.compilation:
                    self._progress("compiling DeepSpeed's operations: one to five minutes, once")
                self._workers.call("deepspeed", 1, _COMPILE, {}, seconds=_COMPILATION_S)
        if self._several:
            with suppress(SkippedError):
                self._workers.call("deepspeed", self._gpus, _FACTS, {}, seconds=_FACTS_S)

    def probe(self) -> Mapping[str, Any]:
        """Time PyTorch's calls for about two seconds.

        "steal" is the share of all CPUs' time since the previous probe that the hypervisor gave to other
        machines; None if Linux does not report it.
        """
        try:
            result = self._probe()
        except SkippedError:  # the section before may have ended the process
            result = self._probe()
        before, self._cpu_times = self._cpu_times, _cpu_times()
        spent = [late - early for early, late in zip(before, self._cpu_times, strict=False)]
        total = sum(spent)
        return {**result, "steal": round(spent[7] / total, 4) if total > 0 and len(spent) > 7 else None}

    def _probe(self) -> dict[str, Any]:
        return self._workers.call("plain", 1, _PROBE, {"light": True}, seconds=_PROBE_S)

    def _run(self, one: Microbenchmark, ranks: int, context: Context) -> Mapping[str, Any]:
        inputs = one.inputs(BenchmarkSetting(ranks, self._request.quick, self._deep))
        task = {"round": context.round, **inputs, **({"counts": one.numbers(ranks)} if one.counts else {})}
        process = "deepspeed" if ranks > 1 else one.process
        return self._workers.call(process, ranks, one.runs, task, seconds=context.seconds)


def _is_compiled() -> bool:
    """Return whether PyTorch keeps DeepSpeed's Adam for CPUs, which it compiles at the first use."""
    kept = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    return any(kept.glob("**/cpu_adam.so"))


def _cpu_times() -> list[int]:
    """Return the time of all CPUs by use: user, nice, system, idle, iowait, irq, softirq and steal."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
        return [int(number) for number in first.split()[1:9]]
    except (OSError, ValueError):
        return []


# -- storage --------------------------------------------------------------------------------------


def storage_bytes(request: MeasurementRequest) -> int:
    """Return the size of the files to write [B], a multiple of one tensor.

    Raises InputError if the folder cannot hold them.
    """
    folder = request.storage
    assert folder is not None
    if not (exists(folder) and folder.is_dir()):
        raise refusal("--storage", f"{shortened(str(folder))} is not a folder; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise refusal("--storage", f"{folder} cannot be written to; name another folder")
    free = shutil.disk_usage(folder).free
    size = request.storage_size or min(_MOST_STORAGE, free // 4)
    size = size // _FILE * _FILE
    if not size:
        raise refusal("--storage-size", f"must be at least {format_bytes(_FILE, binary=True)}")
    if size > free * 0.9:
        wanted = format_bytes(size)
        raise refusal("--storage-size", f"{wanted} do not fit: {folder} has {format_bytes(free)} free")
    return size


@contextmanager
def _storage_folder(request: MeasurementRequest) -> Iterator[dict[str, Any] | None]:
    """Create a folder for storage files in the one that the user named, and remove it at the end."""
    if request.storage is None or not need_storage(request.sections):
        yield None
        return
    size = storage_bytes(request)
    folder = Path(tempfile.mkdtemp(prefix=".simoffload-", dir=request.storage))
    try:
        yield {"scratch": str(folder), "filesystem": _filesystem(folder), "size": size}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _filesystem(folder: Path) -> str:
    """Return the type of the folder's filesystem as the kernel names it; empty if it is unknown."""
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


# -- processes ------------------------------------------------------------------------------------

_SLACK = 60.0
"""[s] Time beyond twice the limit of a section after which its processes are ended.

A section looks at the clock only between two models or sizes."""


class _WorkerGroups:
    """Groups of worker processes, by the kind of process and the number of ranks: one, or one for each
    GPU."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        self._folder, self._job = folder, dict(job)
        self._groups: dict[tuple[str, int], JobProcesses] = {}
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups.values():
            group.end()

    def start(self, process: str, ranks: int) -> None:
        """Start a group without waiting for it, unless it runs."""
        if (process, ranks) in self._groups:
            return
        plain = process == "plain"
        self._groups[process, ranks] = JobProcesses(
            self._folder / f"{self._started:03d}-{process}-{ranks}",
            self._job | {"imports": [] if plain else ["deepspeed"]},
            ranks=ranks,
            environment={} if plain else thread_environment(ranks),
        )
        self._started += 1

    def call(
        self, process: str, ranks: int, runs: str, task: Mapping[str, Any], *, seconds: float
    ) -> dict[str, Any]:
        """Let a group carry out a task within a time [s], and return its result.

        Raises SkippedError if the task cannot be carried out or fails. A group that failed is ended, and the
        next task starts a new one.
        """
        self.start(process, ranks)
        group = self._groups[process, ranks]
        answer = group.call(runs, {**task, "seconds": seconds}, limit=2 * seconds + _SLACK)
        if "found" in answer:
            result: dict[str, Any] = answer["found"]
            return result
        if "skipped" not in answer:
            self._groups.pop((process, ranks)).end()
        raise SkippedError(str(answer.get("skipped") or answer["failed"]))
