"""Runs of cases in child processes, which alone import PyTorch, DeepSpeed and Accelerate."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simoffload import __version__
from simoffload.documents import exists, file_errors
from simoffload.errors import InputError, Problem
from simoffload.exchange.files import replacing
from simoffload.strategies.cache.kv_cache import DEFAULT
from simoffload.units import format_bytes, plural
from simoffload_calibrate.jobs import JobProcesses, missing_packages, thread_environment
from simoffload_calibrate.runs import CalibrationRun, RunRequest, machine_facts, offload_words

SCHEMA = "simoffload/deepspeed-runs/1"
_NEEDED = ("torch", "transformers", "deepspeed")
_EAGER_NEEDED = ("torch", "transformers", "accelerate")


class _Worker(NamedTuple):
    """The function that runs cases of a strategy, as ``module:function``, and the packages that it needs."""

    runs: str
    needed: tuple[str, ...]
    imports: tuple[str, ...] = ()
    """The packages that are imported before the first task."""


_DEEPSPEED = _Worker("simoffload_calibrate.deepspeed.worker:carry_out", _NEEDED, ("deepspeed",))
_HUGGING_FACE = _Worker("simoffload_calibrate.hugging_face:carry_out", _EAGER_NEEDED)
_WORKERS = {"zero_inference": _DEEPSPEED, "accelerate": _HUGGING_FACE, "tensor_parallel": _HUGGING_FACE}
"""The worker of each kind of strategy."""
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


class Outcome(NamedTuple):
    """The result of a set of runs."""

    file: Path
    done: int
    failed: tuple[tuple[str, str], ...]
    """The failed runs as pairs (name, reason)."""


def describe(cases: Sequence[CalibrationRun], settings: LaunchSettings) -> str:
    """Return a text for the user about what will run and what it will write."""
    lines = [f"{plural(len(cases), 'run')}; results go to {settings.folder / RUNS}"]
    for case in cases:
        writes = f", writes up to {format_bytes(case.swap_bytes)} of files" if case.swap_bytes else ""
        parameters = f"{case.num_parameters / 1e9:.2f}e9 parameters"
        ranks = plural(case.ranks, "rank")
        offload = offload_words(case.device, case.optimizer, training=case.is_training)
        lines.append(f"  {case.request.name}: {case.kind}, {parameters}, {ranks}, offload {offload}{writes}")
    if any(case.swap_bytes for case in cases):
        lines.append(f"files go to {settings.swap_folder} and are removed afterwards")
    return "\n".join(lines)


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
    missing = check(cases, settings)
    if missing:
        raise _refusal("", missing)
    facts = machine_facts()
    existed = settings.folder.exists()
    work_folder = settings.folder / ".work"
    try:
        work_folder.mkdir(parents=True)
        settings.swap_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(error.filename, f"cannot be created: {error.strerror}; name another folder") from None
    results: dict[int, dict[str, Any]] = {}
    try:
        for _ in _run_all(cases, settings, work_folder, results, progress):
            _write(settings.folder / RUNS, cases, results, facts)
    finally:
        if results:
            _write(settings.folder / RUNS, cases, results, facts)
        shutil.rmtree(work_folder, ignore_errors=True)
        for name in ("zero_stage_3", *(f"{index:03d}" for index in range(len(cases)))):
            shutil.rmtree(settings.swap_folder / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            settings.swap_folder.rmdir()
        if not existed and not (settings.folder / LOG).exists():
            with contextlib.suppress(OSError):
                settings.folder.rmdir()
    failed = tuple(
        (case.request.name, results.get(index, {}).get("error", _NOT_STARTED))
        for index, case in enumerate(cases)
        if "passes" not in results.get(index, {})
    )
    return Outcome(settings.folder / RUNS, len(cases) - len(failed), failed)


def check(cases: Sequence[CalibrationRun], settings: LaunchSettings) -> str:
    """Check folders and sizes, and return a message about missing packages, or "". Raises InputError."""
    _check_folder(settings.folder, "is not an empty folder; name another")
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
    needed = dict.fromkeys(name for case in cases for name in _WORKERS[case.kind].needed)
    missing = ", ".join(missing_packages(tuple(needed)))
    return (
        f"{missing}: not installed; pip install simoffload[calibrate] (docs/CALIBRATION.md)"
        if missing
        else ""
    )


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


def _run_all(
    cases: Sequence[CalibrationRun],
    settings: LaunchSettings,
    work_folder: Path,
    results: dict[int, dict[str, Any]],
    progress: Callable[[str], None],
) -> Iterator[int]:
    """Run the cases, and yield the index of each when its record, or why it has none, is in ``results``."""
    deadline = time.monotonic() + settings.seconds
    for worker, ranks in dict.fromkeys((_WORKERS[case.kind], case.ranks) for case in cases):
        remaining = [
            index for index, case in enumerate(cases) if (_WORKERS[case.kind], case.ranks) == (worker, ranks)
        ]
        while remaining and time.monotonic() < deadline:
            batch = _batch(cases, remaining)
            progress(f"{plural(ranks, 'rank')}: {', '.join(cases[index].request.name for index in batch)}")
            shutil.rmtree(settings.swap_folder / "zero_stage_3", ignore_errors=True)  # of a case that failed
            settings.swap_folder.mkdir(parents=True, exist_ok=True)
            with JobProcesses(
                work_folder / f"{batch[0]:03d}",
                {"swap_folder": str(settings.swap_folder), "imports": worker.imports},
                ranks=ranks,
                log=settings.folder / LOG,
                environment=thread_environment(ranks),
            ) as job:
                for index in batch:
                    results[index] = {"error": "was interrupted"}
                    case = case_data(index, cases[index], trace=settings.trace)
                    limit = min(settings.seconds_per_case, deadline - time.monotonic())
                    answer = job.call(worker.runs, {"case": case}, limit=limit)
                    results[index] = answer.get("found") or {"error": answer["failed"]}
                    remaining.remove(index)
                    yield index
                    if "failed" in answer or time.monotonic() >= deadline:
                        break


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


def case_data(index: int, case: CalibrationRun, *, trace: bool) -> dict[str, Any]:
    """Return a case in the form that the process with PyTorch reads."""
    request = case.request
    cache = request.strategy.kv_cache.plain
    return {
        "index": index,
        "name": request.name,
        "model": request.model.model_dump(exclude_none=True),
        "workload": request.workload.model_dump(),
        "hf_config": dict(case.hf_config),
        "attention": request.model.attention,
        "dtype": case.dtype,
        "ranks": case.ranks,
        "ds_config": None if case.ds_config is None else dict(case.ds_config),
        "strategy": None if case.ds_config is not None else _section(request),
        "kv_cache": None if cache == DEFAULT else cache.model_dump(),
        "homes": None if case.homes is None else dict(case.homes),
        "trace": trace,
    }


def _section(request: RunRequest) -> dict[str, Any]:
    """Return the strategy of a run without that of its cache, which runs under DeepSpeed have, too."""
    return request.strategy.model_dump(mode="json", exclude={"kv_cache"})


def _write(
    path: Path,
    cases: Sequence[CalibrationRun],
    results: Mapping[int, Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> None:
    data = {
        "schema": SCHEMA,
        "simoffload": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": facts,
        "runs": [results[index] for index in sorted(results) if "passes" in results[index]],
        "failed": [
            {"name": case.request.name, "error": results.get(index, {}).get("error", _NOT_STARTED)}
            for index, case in enumerate(cases)
            if "passes" not in results.get(index, {})
        ],
    }
    with replacing(path) as file:
        json.dump(data, file, separators=(",", ":"), allow_nan=False)
        file.write("\n")
