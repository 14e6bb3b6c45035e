"""Runs of cases in child processes, which alone import PyTorch, DeepSpeed, Accelerate and vLLM."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.documents import exists, file_errors, quoted
from simoffload.errors import InputError, Problem
from simoffload.exchange.files import replacing
from simoffload.shipped import __version__
from simoffload.strategies.cache.kv_cache import DEFAULT
from simoffload.units import format_bytes, plural
from simoffload_calibrate.jobs import JobProcesses, json_line, missing_packages, thread_environment
from simoffload_calibrate.records import read_json, read_records
from simoffload_calibrate.runs import (
    CalibrationRun,
    RunRequest,
    engine_of,
    environment,
    machine_facts,
    offload_words,
)

_NEEDED = ("torch", "transformers", "deepspeed")
_EAGER_NEEDED = ("torch", "transformers", "accelerate")
_EXTRA = "simoffload[calibrate]"


class _Worker(NamedTuple):
    """The function that runs cases of a strategy, as ``module:function``, and the packages that it needs."""

    runs: str
    needed: tuple[str, ...]
    imports: tuple[str, ...] = ()
    """The packages that are imported before the first task."""
    starts: str = ""
    """The function that starts the engine that all cases of a set of processes share; empty for none."""
    install: str = _EXTRA
    """What pip installs to have the packages."""
    schema: str = "simoffload/deepspeed-runs/1"
    """The layout of the file of runs."""


_DEEPSPEED = _Worker("simoffload_calibrate.deepspeed.worker:carry_out", _NEEDED, ("deepspeed",))
_HUGGING_FACE = _Worker("simoffload_calibrate.hugging_face:carry_out", _EAGER_NEEDED)
_FSDP = _Worker("simoffload_calibrate.fsdp:carry_out", ("torch", "transformers"))
_VLLM = _Worker(
    "simoffload_calibrate.vllm.worker:carry_out",
    ("torch", "vllm"),
    starts="simoffload_calibrate.vllm.worker:start",
    install="vllm",
    schema="simoffload/vllm-runs/1",
)
_WORKERS = {
    "deepspeed": _DEEPSPEED,
    "fsdp": _FSDP,
    "accelerate": _HUGGING_FACE,
    "transformers": _HUGGING_FACE,
}
"""The worker of each kind of strategy that has no engine."""
_PROBE, _PROBE_TASK = "simoffload_calibrate.micro.host:probe_host", {"duration": 1.6}
"""The function that times calls of the host thread, and for how long [s]."""
_SETTINGS = ("model", "workload", "stream", "strategy", "ds_config", "kv_cache", "ranks")
"""The keys of a record that are settings of its run."""
RUNS, LOG = "runs.json", "log.txt"
_PART_OF_MEMORY = 0.3
"""The share of host memory that the runs of one set of processes may pin before new processes start."""
_NOT_STARTED = "was not started: no time left, or the program was stopped"
_SPARE = 1.2
"""The required free space as a multiple of the bytes written."""


class LaunchSettings(NamedTuple):
    """Folders and limits of the runs."""

    folder: Path
    """An empty or absent folder for ``runs.json`` and ``log.txt``."""
    swap_folder: Path
    """The folder of swap files, or of weights on disk, during a run."""
    largest: int
    """[B] The most swap files that a run may write."""
    seconds_per_case: float
    seconds: float
    """[s] for all cases together; cases without time left are skipped."""
    trace: bool
    quick: bool = False
    """Whether engines start with fewer CUDA graphs and each batch is timed once."""
    resume: bool = False
    """Whether the runs that ``runs.json`` of the folder has are kept, and the others made."""


class Outcome(NamedTuple):
    """The result of a set of runs."""

    file: Path
    done: int
    failed: tuple[tuple[str, str], ...]
    """The failed runs as pairs (name, reason)."""


def describe(cases: Sequence[CalibrationRun], settings: LaunchSettings) -> str:
    """Return a text for the user about what will run and what it will write."""
    lines = [f"{plural(len(cases), 'run')}; results go to {settings.folder / RUNS}"]
    for indices in _groups(cases, range(len(cases))).values():
        sharing = [cases[index] for index in indices]
        if (engine := engine_of(sharing, quick=settings.quick)) is not None:
            lines.append(f"  {_engine(sharing[0], engine['options'])}")
        within = "    " if engine is not None else "  "
        lines += [f"{within}{case.request.name}: {_work(case)}" for case in sharing]
    if any(case.swap_bytes for case in cases):
        lines.append(f"files go to {settings.swap_folder} and are removed afterwards")
    return "\n".join(lines)


def _engine(case: CalibrationRun, options: Mapping[str, Any]) -> str:
    """Return the model, the GPUs and what is stated of the engine of a case."""
    model, blocks = case.request.model, options.get("num_gpu_blocks_override")
    graphs = options.get("max_cudagraph_capture_size") or max(options.get("cudagraph_capture_sizes", [0]))
    parts = (
        f"engine of {model.name or model.config or case.hf_config['model_type']}",
        model.quantization,
        case.kind,
        _processes(case),
        blocks and f"{blocks:,} KV blocks",
        graphs and f"CUDA graphs up to {graphs:,} tokens",
    )
    return ", ".join(filter(None, parts))


def _processes(case: CalibrationRun) -> str:
    """Return the number of processes in words, or that of the GPUs of an engine."""
    return plural(case.request.strategy.ranks, "rank" if case.engine is None else "GPU")


def _work(case: CalibrationRun) -> str:
    """Return what a case computes, and where without an engine."""
    if case.requests is not None:
        return plural(len(case.requests["prompt"]), "request")
    if (work := case.batch) is not None:
        tokens = f"{work.prompt_length:,} tokens in, {work.output_length:,} out"
        return f"{plural(work.batch_size, 'sequence')}, {tokens}"
    writes = f", writes up to {format_bytes(case.swap_bytes)} of files" if case.swap_bytes else ""
    offload = offload_words(case.device, case.optimizer, training=case.is_training)
    parameters = f"{case.num_parameters / 1e9:.2f}e9 parameters"
    return f"{case.kind}, {parameters}, {_processes(case)}, offload {offload}{writes}"


def run_cases(
    cases: Sequence[CalibrationRun],
    settings: LaunchSettings,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run every case and write ``runs.json``.

    Cases with equal numbers of ranks share processes. A case that fails or takes too long is recorded, and
    the next one starts in new processes. Swap files are always removed; on Ctrl-C the finished runs are kept
    in ``runs.json``. Raises InputError, before anything is written, for wrong folders and missing packages.
    """
    existed, work_folder = settings.folder.exists(), settings.folder / ".work"

    def clean() -> None:
        shutil.rmtree(work_folder, ignore_errors=True)
        for name in ("zero_stage_3", *(f"{index:03d}" for index in range(len(cases)))):
            shutil.rmtree(settings.swap_folder / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            settings.swap_folder.rmdir()

    recording = _Recording(cases, settings)
    if recording.continues:
        clean()  # what is left of runs that were killed
    missing = check(cases, settings)
    if missing:
        raise _refusal("", missing)
    try:
        work_folder.mkdir(parents=True)
        settings.swap_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(error.filename, f"cannot be created: {error.strerror}; name another folder") from None
    try:
        deadline = time.monotonic() + settings.seconds
        session = _Session(cases, settings, work_folder, recording, progress, deadline)
        for _ in session.run_all():
            recording.write()
    finally:
        if recording.results:
            recording.write()
        clean()
        if not existed and not (settings.folder / LOG).exists():
            with contextlib.suppress(OSError):
                settings.folder.rmdir()
    failed = recording.failed
    return Outcome(settings.folder / RUNS, len(cases) - len(failed), failed)


class _Recording:
    """The results of cases by their number, in a file that is written after each of them."""

    def __init__(self, cases: Sequence[CalibrationRun], settings: LaunchSettings) -> None:
        self._cases, self._path, self._facts = cases, settings.folder / RUNS, machine_facts()
        self.results: dict[int, dict[str, Any]] = {}
        self.probes: list[dict[str, Any]] = []
        """The speeds of the host thread, before and after the runs of an engine."""
        self.continues = settings.resume and self._path.is_file()
        """Whether the file has runs already."""
        if self.continues:
            self._resume(settings)

    def _resume(self, settings: LaunchSettings) -> None:
        """Keep the runs of the file, which must be of the same settings. Raises InputError."""
        read_records(self._path)  # raises for another file
        data = read_json(self._path, remedy="start without --resume")
        known = {one["name"]: one for one in data["runs"]}
        for index, case in enumerate(self._cases):
            if (one := known.get(case.request.name)) is None:
                continue
            wanted = json.loads(json_line(case_data(index, case, trace=settings.trace)))  # lists, not tuples
            others = [key for key in _SETTINGS if one.get(key) != wanted[key]]
            if others:
                text = f"{case.request.name} was recorded with another {others[0]}; record into a new folder"
                raise _refusal("--resume", text)
            self.results[index] = one
        if lost := known.keys() - {case.request.name for case in self._cases}:
            text = f"{self._path} has {quoted(min(lost))}, which RUNS has not; name the same files"
            raise _refusal("--resume", text)
        self.probes = data.get("probes", [])

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """The failed runs as pairs (name, reason)."""
        pairs = ((case, self.results.get(index)) for index, case in enumerate(self._cases))
        return tuple(
            (case.request.name, _NOT_STARTED if found is None else found["error"])
            for case, found in pairs
            if found is None or "error" in found
        )

    def write(self) -> None:
        """Write the file of runs as far as it is known."""
        data: dict[str, Any] = {
            "schema": _worker(self._cases[0]).schema,
            "simoffload": __version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": self._facts,
            **({"probes": self.probes} if self.probes else {}),
            "runs": [self.results[one] for one in sorted(self.results) if "error" not in self.results[one]],
            "failed": [{"name": name, "error": why} for name, why in self.failed],
        }
        with replacing(self._path) as file:
            json.dump(data, file, separators=(",", ":"), allow_nan=False)
            file.write("\n")


def check(cases: Sequence[CalibrationRun], settings: LaunchSettings) -> str:
    """Check folders and sizes, and return a message about missing packages, or "". Raises InputError."""
    if not settings.resume:
        _check_folder(settings.folder, "is not an empty folder; name another")
    elif not (settings.folder / RUNS).is_file():
        raise _refusal("--resume", f"{settings.folder} has no {RUNS} to continue; start without --resume")
    writes = max((case.swap_bytes for case in cases), default=0)
    if writes:
        above = _check_folder(settings.swap_folder, "is not an empty folder, and runs empty it; name another")
        for case in cases:
            if case.swap_bytes > settings.largest:
                size, limit = format_bytes(case.swap_bytes), format_bytes(settings.largest)
                remedy = "raise it or reduce the layers"
                text = f"would write {size} of files, above --max-size {limit}; {remedy}"
                raise _refusal(case.request.name, text)
        free = shutil.disk_usage(above).free
        if free < writes * _SPARE:
            text = (
                f"has {format_bytes(free)} free, and a run writes {format_bytes(writes)}; name another folder"
            )
            raise _refusal(str(settings.swap_folder), text)
    workers = dict.fromkeys(map(_worker, cases))
    needed = dict.fromkeys(name for worker in workers for name in worker.needed)
    missing = ", ".join(missing_packages(tuple(needed)))
    install = " ".join(dict.fromkeys(worker.install for worker in workers))
    return f"{missing}: not installed; pip install {install} (docs/CALIBRATION.md)" if missing else ""


def _check_folder(folder: Path, taken: str) -> Path:
    """Return the folder or the nearest one above that exists; InputError unless empty and writable."""
    with file_errors(folder, what="cannot be used"):
        if exists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            raise _refusal(str(folder), taken)
        above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not above.is_dir():
        raise _refusal(str(folder), f'is below "{above.name}", which is not a folder')
    if not os.access(above, os.W_OK | os.X_OK):
        raise _refusal(str(folder), f"{above} cannot be written to; name another")
    return above


def _refusal(place: str, message: str) -> InputError:
    return InputError((Problem(place, None, None, "", message),))


def _worker(case: CalibrationRun) -> _Worker:
    return _WORKERS[case.kind] if case.engine is None else _VLLM


def _group(case: CalibrationRun) -> tuple[_Worker, int, str]:
    """Return what cases have in common that share processes."""
    return _worker(case), case.ranks, json.dumps(case.engine, sort_keys=True)


def _groups(
    cases: Sequence[CalibrationRun], indices: Iterable[int]
) -> dict[tuple[_Worker, int, str], list[int]]:
    """Return the numbers of cases by what those have in common that share processes."""
    groups: dict[tuple[_Worker, int, str], list[int]] = {}
    for index in indices:
        groups.setdefault(_group(cases[index]), []).append(index)
    return groups


class _Session(NamedTuple):
    """The processes of all cases, one set after the other, and what they record."""

    cases: Sequence[CalibrationRun]
    settings: LaunchSettings
    work_folder: Path
    recording: _Recording
    progress: Callable[[str], None]
    deadline: float
    """The value of ``time.monotonic`` after which nothing starts."""

    def run_all(self) -> Iterator[int]:
        """Run the cases; yield the index of each when its record, or why it has none, is in ``recording``."""
        left = [index for index in range(len(self.cases)) if index not in self.recording.results]
        for (worker, ranks, _), remaining in _groups(self.cases, left).items():
            engine = engine_of([self.cases[index] for index in remaining], quick=self.settings.quick)
            while remaining and self._in_time:
                yield from self._run_batch(worker, ranks, engine, remaining)

    @property
    def _in_time(self) -> bool:
        return time.monotonic() < self.deadline

    def _run_batch(
        self, worker: _Worker, ranks: int, engine: Mapping[str, Any] | None, remaining: list[int]
    ) -> Iterator[int]:
        """Run the next cases in one set of processes, until one fails."""
        batch, swap_folder = _batch(self.cases, remaining), self.settings.swap_folder
        names = ", ".join(self.cases[index].request.name for index in batch)
        self.progress(f"{_processes(self.cases[batch[0]])}: {names}")
        shutil.rmtree(swap_folder / "zero_stage_3", ignore_errors=True)  # of a case that failed
        swap_folder.mkdir(parents=True, exist_ok=True)
        with JobProcesses(
            self.work_folder / f"{batch[0]:03d}",
            {"swap_folder": str(swap_folder), "imports": worker.imports, "engine": engine},
            ranks=ranks,
            log=self.settings.folder / LOG,
            environment=thread_environment(ranks) | (environment(engine["options"]) if engine else {}),
        ) as job:
            started = self._started(job, worker)
            if "failed" in started:  # the next start would fail for the same reason
                for index in tuple(remaining):
                    self._keep(index, started, {})
                    remaining.remove(index)
                    yield index
                return
            for index in batch:
                self.recording.results[index] = {"error": "was interrupted"}
                settings = self.settings
                case = case_data(index, self.cases[index], trace=settings.trace, quick=settings.quick)
                case["seconds"] = self._limit
                answer = self._call(job, worker.runs, {"case": case})
                self._keep(index, answer, started)
                remaining.remove(index)
                yield index
                if "failed" in answer or not self._in_time:
                    return
            if worker.starts:
                self._probe(job)

    def _call(self, job: JobProcesses, runs: str, task: Mapping[str, Any]) -> dict[str, Any]:
        return job.call(runs, task, limit=self._limit)

    @property
    def _limit(self) -> float:
        """The time [s] that a task may take now."""
        return min(self.settings.seconds_per_case, self.deadline - time.monotonic())

    def _keep(self, index: int, answer: Mapping[str, Any], started: Mapping[str, Any]) -> None:
        reason = answer.get("skipped") or answer.get("failed")
        self.recording.results[index] = {"error": reason} if reason else {**answer["found"], **started}

    def _started(self, job: JobProcesses, worker: _Worker) -> dict[str, Any]:
        """Start the engine that the cases share; return its facts under "engine", or why it "failed"."""
        if not worker.starts:
            return {}
        self._probe(job)
        answer = self._call(job, worker.starts, {})
        return answer if "failed" in answer else {"engine": answer["found"]}

    def _probe(self, job: JobProcesses) -> None:
        """Time calls of the host thread."""
        at, answer = round(time.time(), 1), self._call(job, _PROBE, _PROBE_TASK)
        if "found" in answer:
            self.recording.probes.append({"at": at, **answer["found"]})


def _batch(cases: Sequence[CalibrationRun], remaining: Sequence[int]) -> list[int]:
    """Return the next cases for one set of processes; PyTorch keeps pinned memory until a process ends."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    batch: list[int] = []
    total = 0
    for index in remaining:
        total += cases[index].host_bytes
        if batch and total > _PART_OF_MEMORY * memory:
            break
        batch.append(index)
    return batch


def case_data(index: int, case: CalibrationRun, *, trace: bool, quick: bool = False) -> dict[str, Any]:
    """Return a case in the form that the process with PyTorch reads."""
    request = case.request
    cache = request.kv_cache.plain
    return {
        "index": index,
        "name": request.name,
        "model": request.model.model_dump(exclude_none=True),
        "workload": request.workload.model_dump(),
        "stream": None if request.stream is None else request.stream.model_dump(mode="json"),
        "hf_config": dict(case.hf_config),
        "attention": request.model.attention,
        "dtype": case.dtype,
        "ranks": request.strategy.ranks,
        "ds_config": None if case.ds_config is None else dict(case.ds_config),
        "strategy": None if case.ds_config is not None else _section(request),
        "kv_cache": None if cache == DEFAULT else cache.model_dump(),
        "homes": None if case.homes is None else dict(case.homes),
        "requests": None if case.requests is None else dict(case.requests),
        "trace": trace,
        "quick": quick,
    }


def _section(request: RunRequest) -> dict[str, Any]:
    """Return the strategy of a run without that of its cache, which runs under DeepSpeed have, too."""
    return request.strategy.model_dump(mode="json", exclude={"kv_cache"})
