"""The points of a sweep as tasks, and the pool of workers that simulates them."""

from __future__ import annotations

import hashlib
import math
import pickle
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any, NamedTuple

from simoffload import __version__
from simoffload.documents import Document
from simoffload.errors import InputError, SimulationError, printable
from simoffload.limits import limited
from simoffload.models import families
from simoffload.planning.confidence import confidence
from simoffload.planning.sweep.definition import Grid, Points, Sweep
from simoffload.planning.sweep.journal import JournalRow
from simoffload.results import SimulationResult, registered
from simoffload.scenario import LoadedScenario, ScenarioCache, resolve
from simoffload.simulation import simulate
from simoffload.simulation.capacity import BEYOND
from simoffload.strategies import registry
from simoffload.strategies.cache.kv_cache import formats_from_outside, register_cache_format
from simoffload.strategies.ds_config import extensions

_PATIENCE = 0.5  # [s] after which a task hands over what it has


class Task(NamedTuple):
    """Points of which a worker simulates as many as it can within a time."""

    points: tuple[tuple[int, int], ...]
    """Points of the task as pairs (number, combination)."""
    deaths: int = 0
    """Number of workers that ended during the task."""


class SweepJob(NamedTuple):
    """A SweepJob is the data that all tasks share, in a form that can be sent to another machine."""

    content: bytes
    digest: str


class _Setting(NamedTuple):
    digest: str
    grid: Grid
    cache: ScenarioCache


_local = threading.local()
"""Thread-local settings of the job and its latest scenario; a cache must not be shared by threads."""


def check_workers_can_import() -> None:
    """Raise InputError for strategies, families, metrics and keys that are defined in the main program, which
    workers cannot import."""
    outside = (*families.registered_outside(), *registry.registered_outside(), *extensions)
    here = [one.__qualname__ for one in outside if one.__module__ == "__main__"]
    here += [name for (_, name), one in registered.items() if one.__module__ == "__main__"]
    if here:
        names = ", ".join(here)
        text = f"workers cannot import {names}; define it in a module of its own, or give --workers 1"
        raise InputError.at("--workers", text)


def job_of(sweep: Sweep) -> SweepJob:
    """Pack a sweep with the content of all files that its points were found to need."""
    grid = sweep.grid
    base = (grid.base.path, grid.base.data, grid.base.root)
    outside = families.registered_outside(), registry.registered_outside(), formats_from_outside(), registered
    packed = pickle.dumps((__version__, (*outside, extensions), base, grid.axes, sweep.cache.snapshot()))
    content = zlib.compress(packed)
    return SweepJob(content, hashlib.sha256(content).hexdigest())


def _setting(job: SweepJob) -> _Setting:
    setting: _Setting | None = getattr(_local, "setting", None)
    if setting is None or setting.digest != job.digest:
        version, outside, (path, data, root), axes, snapshot = pickle.loads(zlib.decompress(job.content))
        if version != __version__:
            raise RuntimeError(
                f"the worker has simoffload {__version__}, but the sweep was started by {version}"
            )
        for family in outside[0]:  # their modules were imported to unpack them
            families.register(family)
        for strategy in outside[1]:
            registry.register(strategy)
        for name, size in outside[2].items():
            register_cache_format(name, size)
        for (kind, _), metric in outside[3].items():
            kind.register(metric)
        grid = Grid(Document(path, data, root), axes)
        setting = _local.setting = _Setting(job.digest, grid, ScenarioCache.restored(snapshot))
    return setting


def run_task(job: SweepJob, task: Task) -> list[JournalRow]:
    """Simulate points for some time, at least one, and return the rows of those that were reached."""
    setting = _setting(job)
    rows: list[JournalRow] = []
    started = time.monotonic()
    for number, combination in task.points:
        rows.append(_row(number, combination, setting))
        if time.monotonic() - started > _PATIENCE:
            break
    return rows


def rest_of(task: Task, rows: Sequence[JournalRow]) -> list[Task]:
    """Return a task of the points that a worker did not reach; none if it reached all."""
    left = task.points[len(rows) :]
    return [Task(left)] if left else []


def _row(number: int, combination: int, setting: _Setting) -> JournalRow:
    """Simulate a point; any failure becomes a row with an error."""
    try:
        return _row_of(number, _simulated(combination, setting))
    except InputError as error:
        return failed_row(number, "; ".join(_problem_text(*one) for one in error.problems))
    except SimulationError as error:
        return failed_row(number, str(error))
    except Exception as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return failed_row(number, f"internal error: {what} (please report)")


@limited
def _simulated(combination: int, setting: _Setting) -> SimulationResult:
    before: LoadedScenario | None = getattr(_local, "scenario", None)
    scenario = resolve(setting.grid.document(combination), cache=setting.cache, similar=before)
    _local.scenario = scenario
    document = replace(scenario.document, warnings=())  # they are not about a point: ``Sweep.warnings``
    return simulate(replace(scenario, document=document))


def _problem_text(_path: str, _line: int | None, _column: int | None, key: str, message: str) -> str:
    return f"{key}: {message}" if key else message


def failed_row(number: int, error: str) -> JournalRow:
    """Return the row of a point that has no result."""
    return JournalRow(point=number, error=printable(" ".join(error.split()))[:2000])


def _row_of(number: int, result: SimulationResult) -> JournalRow:
    intervals = confidence(result).intervals()
    return JournalRow(
        point=number,
        metrics={name: _finite(value) for name, value in result.metrics().items()},
        intervals={name: ends for name, ends in intervals.items() if all(map(math.isfinite, ends))},
        decode_bound=_finite(result.particulars().get("decode_bound")),
        bottleneck=result.bottleneck,
        limit=result.limit,
        bound_fraction=_finite(result.bound_fraction),
        fits=result.fits,
        extrapolates=bool(result.extrapolations),
        advice=printable("; ".join(result.advice)) or None,
        warnings=printable("; ".join(one for one in result.warnings if not one.startswith(BEYOND))) or None,
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def tasks_of(points: Points, numbers: Sequence[int], *, size: int) -> list[Task]:
    """Return the points in tasks of ``size``, in order."""
    return [
        Task(tuple((number, points.combination[number]) for number in numbers[start : start + size]))
        for start in range(0, len(numbers), size)
    ]


MOST_DEATHS = 3
"""Number of workers that may end during one point before it is given up."""


class Pool(NamedTuple):
    """Workers that simulate tasks: anything whose ``submit`` returns futures of ``concurrent.futures``."""

    name: str
    """Name of the pool in messages, such as "the cluster"."""
    submit: Callable[..., Future[Any]]
    """Function that submits a call, as ``concurrent.futures.Executor.submit`` does."""
    room: Callable[[], int]
    """Function that returns how many tasks the pool can take now."""
    how_it_ended: Callable[[Exception], str | None]
    """Function that describes how a task's worker ended; None for an exception that is no such end."""


def _submit_here(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future


THIS_PROCESS = Pool("this process", _submit_here, lambda: 1, lambda _: None)
"""Pool that runs tasks in this process."""


def run_tasks(pool: Pool, job: SweepJob, tasks: Sequence[Task]) -> Iterator[list[JournalRow]]:
    """Simulate all tasks in a pool; yield rows as they come.

    Raises SimulationError where the pool cannot go on.
    """
    waiting, running = deque(tasks), dict[Future[Any], Task]()
    while waiting or running:
        room = pool.room()
        while waiting and len(running) < room:
            # What is not sent yet can go to a worker that comes later.
            task = waiting.popleft()
            running[pool.submit(run_task, job, task)] = task
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            rows, left = _outcome(pool, running.pop(future), future)
            waiting.extendleft(reversed(left))
            if rows:
                yield rows


def _outcome(pool: Pool, task: Task, future: Future[Any]) -> tuple[list[JournalRow], list[Task]]:
    """Return the rows of a task, and its remaining points."""
    try:
        rows: list[JournalRow] = future.result()
        return rows, rest_of(task, rows)
    except SimulationError:
        raise
    except Exception as error:
        how = pool.how_it_ended(error)
        if how is None:
            raise SimulationError(f"{pool.name} failed: {type(error).__name__}: {error}") from None
    return _after_worker_end(task, how)


def _after_worker_end(task: Task, how: str) -> tuple[list[JournalRow], list[Task]]:
    """Return what is left of a task whose worker ended: its points one by one, and a row for a point that
    always ends a worker."""
    deaths = task.deaths + 1
    if len(task.points) > 1:
        return [], [Task((point,)) for point in task.points]
    if deaths < MOST_DEATHS:
        return [], [Task(task.points, deaths)]
    text = f"{deaths} workers ended while they simulated this point ({how}); is memory too small?"
    return [failed_row(task.points[0][0], text)], []
