"""The machine under measurement: its sections run in child processes that live for all rounds."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from simoffload.documents import exists
from simoffload.errors import shortened
from simoffload.units import format_bytes, plural
from simoffload_calibrate.json_records import write_json
from simoffload_calibrate.launch import EAGER_NEEDED, NEEDED, case_data
from simoffload_calibrate.machine_facts import machine_facts
from simoffload_calibrate.micro.plan import (
    SECTION_PLANS,
    Context,
    MeasurementRequest,
    MeasurementSection,
    SectionPlan,
    SkippedError,
    attention_shapes,
    counts_of,
    matmul_shapes,
    matmul_variants,
    ranks_of,
    refusal,
)
from simoffload_calibrate.processes import Ranks, missing_packages, thread_environment
from simoffload_calibrate.small_models import (
    eager_cases,
    held_back_cases,
    held_back_training_cases,
    small_cases,
    small_training_cases,
)

__all__ = ["Bench", "open_bench", "probe_seconds", "storage_bytes"]

_FILE = 128 << 20
"""[B] Size of one storage file, which holds one tensor."""
_MOST_STORAGE = 2 << 30
_SKIPPED = {"storage": "no folder was named with --storage", "collectives": "needs two GPUs"}
_COMPILED = {"hooks", "cpu_adam", "storage"}
"""The sections that need operations which DeepSpeed compiles."""
_READY_S = 10.0
"""[s] Expected time until single processes have imported PyTorch and DeepSpeed and know the GPU, in parallel;
estimate."""
_GROUP_READY_S = 25.0
"""[s] The same with a group of one process for each GPU, which starts when the number of GPUs is known, up to
the first contact of its ranks; estimate. The record states the actual time (preparation_seconds)."""
_COMPILATION_S = 1800.0
"""[s] Time limit of DeepSpeed's compilers."""
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
            "parent": os.getpid(),
            "storage": storage,
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
        if _COMPILED & set(request.sections):
            workers.start("deepspeed", 1)  # its imports run while the other process starts
        try:
            facts = workers.call("plain", 1, {"work": "facts"}, seconds=_FACTS_S)
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
        self.skipped: Mapping[str, str] = {
            section: _SKIPPED[section]
            for section, missing in (("storage", not storage), ("collectives", self._gpus == 1))
            if missing and section in request.sections
        }
        self.sections: Sequence[MeasurementSection] = list(self._sections())
        self._several = any("/" in section.name for section in self.sections)
        self.preparation = _GROUP_READY_S if self._several else _READY_S

    def _sections(self) -> Iterator[MeasurementSection]:
        request = self._request
        for name, plan in SECTION_PLANS.items():
            if plan.section not in request.sections or plan.section in self.skipped:
                continue
            if plan.process == "separate" and self.facts["gpu"] is None:
                continue
            seconds = plan.quick if request.quick else plan.seconds
            if seconds is None:
                continue
            for ranks in ranks_of(plan, self._gpus):
                yield MeasurementSection(
                    name if ranks == 1 else f"{name}/{ranks}",
                    partial(self._run, name, plan, ranks),
                    seconds=seconds * len(counts_of(plan, ranks)),
                    building=0.0 if request.quick else plan.building,
                    rounds=plan.rounds[:1] if request.quick else plan.rounds,
                    host=plan.host,
                    once=plan.once,
                )

    def prepare(self) -> None:
        """Start all processes, and let DeepSpeed compile what the sections need.

        If that fails, the sections that need it report the failure.
        """
        if self._several:
            self._workers.start("deepspeed", self._gpus)
        with suppress(SkippedError):
            if _COMPILED & set(self._request.sections):
                self._progress("compiling DeepSpeed's operations: one to five minutes the first time")
                self._workers.call("deepspeed", 1, {"work": "compile"}, seconds=_COMPILATION_S)
        if self._several:
            with suppress(SkippedError):
                self._workers.call("deepspeed", self._gpus, {"work": "facts"}, seconds=_FACTS_S)

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
        return self._workers.call("plain", 1, {"work": "probe"}, seconds=_PROBE_S)

    def _run(self, name: str, plan: SectionPlan, ranks: int, context: Context) -> Mapping[str, Any]:
        task = {"work": name, "round": context.round, **self._inputs(name, ranks)}
        if plan.counts:
            task["counts"] = counts_of(plan, ranks)
        process = "deepspeed" if ranks > 1 else plan.process
        return self._workers.call(process, ranks, task, seconds=context.seconds)

    def _inputs(self, name: str, ranks: int) -> dict[str, Any]:
        """Return the shapes or models that a section measures. Raises SkippedError."""
        if name == "matmul":
            return {"matmul_shapes": matmul_shapes(), "matmul_variants": matmul_variants()}
        if name == "attention":
            return {"attention_shapes": attention_shapes()}
        if name.startswith("eager"):
            missing = missing_packages(EAGER_NEEDED)
            if missing:
                raise SkippedError(f"{', '.join(missing)} not installed")
            cases = [case_data(index, case, trace=False) for index, case in enumerate(eager_cases(ranks))]
            return {"cases": cases}
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
        cases = [case_data(index, case, trace=True) for index, case in enumerate((*fitted, *held_back))]
        return {"cases": [{**case, "held_back": case["index"] >= len(fitted)} for case in cases]}


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
    if request.storage is None or "storage" not in request.sections:
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

WORKER = "simoffload_calibrate.micro.worker"
"""The module that the processes run."""
_START = 180.0
"""[s] Time limit for starting processes: their imports and the first contact of their ranks."""
_SLACK = 60.0
"""[s] Time beyond twice the limit of a section after which its processes are ended.

A section looks at the clock only between two models or sizes."""
_PERIOD = 0.05
"""[s] Time between two looks for an answer."""


class _WorkerGroups:
    """Groups of worker processes, by the kind of process and the number of ranks: one, or one for each
    GPU."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        self._folder, self._job = folder, dict(job)
        self._groups: dict[tuple[str, int], _Group] = {}
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups.values():
            group.end()

    def start(self, process: str, ranks: int) -> None:
        """Start a group without waiting for it, unless it runs."""
        if (process, ranks) not in self._groups:
            folder = self._folder / f"{self._started:03d}-{process}-{ranks}"
            self._started += 1
            self._groups[process, ranks] = _Group(folder, self._job, process, ranks)

    def call(self, process: str, ranks: int, task: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """Let a group carry out a task within a time [s], and return its result.

        Raises SkippedError if the task cannot be carried out or fails. A group that failed is ended, and the
        next task starts a new one.
        """
        self.start(process, ranks)
        answer = self._groups[process, ranks].call({**task, "seconds": seconds})
        if "found" in answer:
            result: dict[str, Any] = answer["found"]
            return result
        if "skipped" not in answer:
            self._groups.pop((process, ranks)).end()
        raise SkippedError(str(answer.get("skipped") or answer["failed"]))


class _Group:
    """Processes that read tasks from a folder and write the results into it."""

    def __init__(self, folder: Path, job: Mapping[str, Any], process: str, ranks: int) -> None:
        folder.mkdir()
        self._folder, self._log, self._tasks = folder, folder / "log.txt", 0
        self._started = time.monotonic()
        path = folder / "job.json"
        path.write_text(json.dumps({**job, "deepspeed": process != "plain", "folder": str(folder)}))
        environment = thread_environment(ranks) if process != "plain" else {}
        self._ranks = Ranks(WORKER, [str(path)], ranks=ranks, log=self._log, environment=environment)

    def call(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer: the result as "found", or a reason as "skipped" or "failed"."""
        ready = self._folder / "ready"
        while not ready.is_file():
            if self._ranks.status is not None or time.monotonic() - self._started > _START:
                return {"failed": f"the processes could not be started: {self._last_line()}"}
            time.sleep(_PERIOD)
        name = f"{self._tasks:04d}"
        self._tasks += 1
        write_json(self._folder / f"{name}.task", task)
        limit = 2 * task["seconds"] + _SLACK
        until = time.monotonic() + limit
        while time.monotonic() < until:
            running = self._ranks.status is None
            # The answer of rank 0, or of another rank that failed.
            if answers := sorted(self._folder.glob(f"{name}.answer-*")):
                answer: dict[str, Any] = json.loads(answers[-1].read_text(encoding="utf-8"))
                return answer
            if not running:
                return {"failed": f"its process ended with status {self._ranks.status}: {self._last_line()}"}
            time.sleep(_PERIOD)
        return {"failed": f"stopped after {limit:.0f} s"}

    def _last_line(self) -> str:
        """Return the last error in the log, else its last line."""
        lines: list[str] = []
        with suppress(OSError):
            log = self._log.read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line and "torch.distributed.elastic" not in line]
        return (errors or lines or ["it wrote no output"])[-1][:300]

    def end(self) -> None:
        """End the processes of the group."""
        self._ranks.end()
