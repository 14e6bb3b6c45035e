"""The run of a sweep: its tasks, the workers that carry them out, and the answer."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from simoffload.brief import BriefTuple
from simoffload.documents import Document, Edit, edited, plain_document
from simoffload.errors import InputError, SimulationError, printable, shortened
from simoffload.exchange.files import check_target, replacing, write_csv
from simoffload.extensions.sweep.definition import NAME, Grid, Points, Sweep, define_sweep, find_points
from simoffload.extensions.sweep.journal import AFTER, Journal, JournalRow, SweepId, beside
from simoffload.limits import limited
from simoffload.models import families
from simoffload.planning.confidence import confidence
from simoffload.planning.question import QuestionOptions, loaded
from simoffload.planning.reported import ReportedAnswer
from simoffload.planning.service_levels import metric_named
from simoffload.progress import Watcher
from simoffload.results import SimulationResult, interval_columns, registered, with_intervals
from simoffload.scenario import (
    LoadedScenario,
    ScenarioCache,
    ScenarioSource,
    located,
    names_model,
)
from simoffload.shipped import __version__
from simoffload.simulation import simulate
from simoffload.simulation.capacity import BEYOND
from simoffload.strategies import registry
from simoffload.strategies.cache.kv_cache import formats_from_outside, register_cache_format
from simoffload.strategies.ds_config import extensions

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client
    from plotly.graph_objects import Figure

# -- the points of a sweep as tasks, and the pool of workers that simulates them -------------------


_TASK_SECONDS = 0.5  # [s] after which a task hands over what it has


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
    """Raise InputError for strategies, tiers, families, metrics and keys of the main program, which
    workers cannot import."""
    outside = (*families.registered_outside(), *registry.registered_outside(), *extensions)
    here = [one.__qualname__ for one in outside if one.__module__ == "__main__"]
    here += [name for (_, name), one in registered.items() if one.__module__ == "__main__"]
    if here:
        names = ", ".join(here)
        text = (
            f"workers cannot import {names}; define it in a module of its own, which the program that runs "
            "the command imports, or give --workers 1"
        )
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
        registry.register_outside(outside[1])
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
        if time.monotonic() - started > _TASK_SECONDS:
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
    scenario = setting.grid.resolved(combination, setting.cache, similar=before)
    _local.scenario = scenario
    document = replace(scenario.document, warnings=())  # they are not about a point: ``Sweep.warnings``
    return simulate(replace(scenario, document=document), scope="row")


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


# -- running a sweep -------------------------------------------------------------------------------
# Simulate what is not done yet, and write the rows as CSV, JSON or Parquet.
#
# What is written depends on the rows alone: not on when, where or in which order they were computed.

_READY = b"ready\n"


class WorkerEndedError(Exception):
    """A WorkerEndedError is raised when a worker ends during a call; its text describes the end."""


@contextmanager
def local_processes(count: int) -> Iterator[Pool]:
    """Yield a pool of ``count`` processes on this machine; they are killed when the block ends."""
    workers = _Workers()
    with ExitStack() as stack:
        stack.callback(workers.close)
        # Processes inherit the mask of the thread that starts them. Ctrl-C reaches the whole group, but the
        # parent decides what it means.
        mask = (signal.SIG_BLOCK, {signal.SIGINT})
        threads = ThreadPoolExecutor(count, initializer=signal.pthread_sigmask, initargs=mask)
        stack.enter_context(threads)
        stack.callback(workers.kill)

        def submit(*call: Any) -> Future[Any]:
            return threads.submit(workers.call, *call)

        yield Pool("a worker", submit, lambda: count, _exit_reason)


def _exit_reason(error: Exception) -> str | None:
    return str(error) if isinstance(error, WorkerEndedError) else None


class _Workers:
    """Keeps one worker process for each thread that calls one."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._killed = False

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in this thread's worker.

        Raises WorkerEndedError if the worker ends, and SimulationError if the function fails or if workers
        cannot even start.
        """
        process = getattr(self._of_thread, "process", None) or self._started()
        self._of_thread.process = process
        to_worker, from_worker = _pipes(process)
        try:
            pickle.dump((function, arguments), to_worker)
            to_worker.flush()
            answer, failure = pickle.load(from_worker)
        except (OSError, EOFError, pickle.UnpicklingError):
            self._of_thread.process = None
            raise WorkerEndedError(_ending(process)) from None
        if failure:
            raise SimulationError(f"a worker failed: {failure}")
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        how = ""
        for _ in range(MOST_DEATHS):
            with self._lock:
                if self._killed:
                    raise WorkerEndedError("killed")
                process = subprocess.Popen(
                    [sys.executable, "-c", f"from {__name__} import work; work()"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": path},
                )
                self._processes.append(process)
            if _pipes(process)[1].read(len(_READY)) == _READY:
                return process
            how = _ending(process)
        raise SimulationError(f"worker processes cannot start ({how})")

    def kill(self) -> None:
        """End all workers at once, so that no thread waits for one any more."""
        with self._lock:
            self._killed = True
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """Wait for the end of all workers."""
        for process in self._processes:
            _ending(process)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Wait for a process to end and return how it ended."""
    for pipe in _pipes(process):
        with suppress(OSError):  # what was not sent any more
            pipe.close()
    status = process.wait()
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status}, {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def work() -> None:
    """Answer calls until there are no more: the main function of a worker."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does so to standard error
    gc.set_threshold(100_000)  # simulations make few cycles, and modules and schemas many objects that stay
    try:
        answers.write(_READY)
        answers.flush()
        while True:
            function, arguments = pickle.load(calls)
            pickle.dump(_answer(function, arguments), answers)
            answers.flush()
    except (EOFError, pickle.UnpicklingError):
        return  # the parent sends no more
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    """Return what a function returns, and the error with which it fails."""
    try:
        return function(*arguments), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


LOCAL = "local"
"""Address that selects a cluster within this process."""
_PATIENCE = 20  # [s] for the scheduler to answer, and again for a first worker
_AHEAD = 2
"""Number of tasks sent in advance for each thread of the cluster."""


@contextlib.contextmanager
def cluster_workers(address: str, *, count: int) -> Iterator[Pool]:
    """Yield the pool of the workers at ``address``; ``count`` is how many ``local`` has.

    Raises InputError where there is no cluster, or Dask is not installed.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        text = "needs Dask distributed; install it with: pip install 'simoffload[cluster]'"
        raise _no_workers(text) from None
    with contextlib.ExitStack() as stack:
        if address == LOCAL:
            cluster = LocalCluster(
                n_workers=count, threads_per_worker=1, processes=False, dashboard_address=None
            )
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        else:
            client = stack.enter_context(_connected(address))
        submit = client.get_executor(pure=False).submit
        yield Pool("the cluster", submit, lambda: _room(client), _how_cluster_ended)


def _room(client: Client) -> int:
    """Return how many tasks keep the cluster busy without a queue in it."""
    threads: int = sum(client.nthreads().values())
    return _AHEAD * max(1, threads)


def _how_cluster_ended(error: Exception) -> str | None:
    from distributed import KilledWorker

    return "lost by the cluster" if isinstance(error, KilledWorker) else None


def _connected(address: str) -> Client:
    from distributed import Client

    try:
        client = Client(address, timeout=_PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise _no_workers(f"no scheduler answers at {shortened(address)} ({error})") from None
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError:
        client.close()
        text = f"the scheduler at {address} has no workers; start some with: dask worker {address}"
        raise _no_workers(text) from None
    return client


def _no_workers(message: str) -> InputError:
    return InputError.at("", message, path="--cluster")


# -- runs ------------------------------------------------------------------------------------------

SCHEMA = "simoffload/sweep-result/1"
FORMATS = (".csv", ".json", ".parquet")
_BATCH = 20_000


@dataclass(frozen=True)
class SweepTable:
    """The rows of a finished sweep."""

    sweep: Sweep
    points: Points
    journal: Journal
    metrics: tuple[str, ...]
    """Names of all metrics, in the order of the columns."""
    uncertain: frozenset[str]
    """Names of the metrics that have intervals."""
    failed: int
    """Number of points with an error."""
    too_large: int
    """Number of points that do not fit."""

    @classmethod
    def of(cls, sweep: Sweep, points: Points, journal: Journal) -> Self:
        """Return the table of a journal that holds every point."""
        metrics: dict[str, None] = {}
        times = Counter(points.first)
        uncertain: set[str] = set()
        failed = too_large = 0
        for point in points.unique:
            row = journal.row(point)
            metrics |= dict.fromkeys(row.metrics or ())
            uncertain |= (row.intervals or {}).keys()
            failed += times[point] * (row.error is not None)
            too_large += times[point] * (row.fits is False)
        return cls(sweep, points, journal, tuple(metrics), frozenset(uncertain), failed, too_large)

    def columns(self) -> list[str]:
        """Return the names of all columns."""
        numbers = (name for metric in self.metrics for name in self._columns_of(metric))
        return ["index", *(axis.name for axis in self.sweep.grid.axes), *numbers, *AFTER]

    def _columns_of(self, metric: str) -> tuple[str, ...]:
        return interval_columns(metric) if metric in self.uncertain else (metric,)

    def rows(self, plain: Sequence[bool]) -> Iterator[list[Any]]:
        """Yield all rows in order; axes that are ``plain`` as values, the others as they were written."""
        axes = [
            axis.values if as_value else axis.texts
            for axis, as_value in zip(self.sweep.grid.axes, plain, strict=True)
        ]
        for point, first in enumerate(self.points.first):
            row = self.journal.row(first)
            choice = self.sweep.grid.choice(self.points.combination[point])
            chosen = (values[i] for values, i in zip(axes, choice, strict=True))
            found = with_intervals(row.metrics or {}, row.intervals or {})
            numbers = (found.get(name) for metric in self.metrics for name in self._columns_of(metric))
            yield [point, *chosen, *numbers, *(getattr(row, name) for name in AFTER)]

    def all_axes(self, value: bool) -> list[bool]:
        """Return ``value`` for every axis."""
        return [value] * len(self.sweep.grid.axes)


def check_format(path: Path) -> None:
    """Raise InputError unless ``path`` can be written in the format that it names."""
    if path.suffix not in FORMATS:
        raise _refusal(path, f"the name of a result must end in {', '.join(FORMATS)}")
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            text = "Parquet needs pyarrow; install it with: pip install 'simoffload[parquet]'"
            raise _refusal(path, text) from None


def write_table(table: SweepTable, path: Path) -> None:
    """Write a file in the format of its suffix, whole or not at all."""
    _WRITERS[path.suffix](table, path)


def _write_csv(table: SweepTable, path: Path) -> None:
    write_csv(path, table.columns(), table.rows(table.all_axes(False)))


def _write_json(table: SweepTable, path: Path) -> None:
    profiles = [dict(zip(("kind", "id", "sha256"), one, strict=True)) for one in table.sweep.cache.profiles()]
    head = {
        "schema": SCHEMA,
        "sweep": table.points.sweep_hash,
        **table.sweep.description(),
        "profiles": profiles,
    }
    columns = table.columns()
    with replacing(path) as file:
        file.write(json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False)[:-2])
        file.write(',\n "rows": [')
        for number, row in enumerate(table.rows(table.all_axes(True))):
            text = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, allow_nan=False)
            file.write(f"{',' if number else ''}\n  {text}")
        file.write("\n ]\n}\n")


def _write_parquet(table: SweepTable, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = table.columns()
    kinds = [_axis_type(axis.values) for axis in table.sweep.grid.axes]
    metrics = [pa.float64()] * (len(columns) - 1 - len(kinds) - len(AFTER))
    types_of = {float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    after = [types_of[kind] for kind in AFTER.values()]
    types = [pa.int64(), *kinds, *metrics, *after]
    schema = pa.schema(list(zip(columns, types, strict=True)))
    # An axis is a column of numbers, or of texts as they were written.
    rows_of = table.rows([kind != pa.string() for kind in kinds])
    with replacing(path) as file, pq.ParquetWriter(file.buffer, schema) as writer:
        for rows in _batches(rows_of):
            by_column = zip(zip(*rows, strict=True), types, strict=True)
            arrays = [pa.array(values, kind) for values, kind in by_column]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _batches(rows: Iterator[list[Any]]) -> Iterator[list[list[Any]]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _axis_type(values: tuple[Any, ...]) -> Any:
    import pyarrow as pa

    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(abs(value) < 2**63 for value in values):
        return pa.int64()
    return pa.float64() if kinds <= {int, float} else pa.string()


_WRITERS: dict[str, Callable[[SweepTable, Path], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}


_CHUNK = 64
_SHARE = 8
"""Minimum number of chunks per worker, so that all workers end at about the same time."""


class Counts(NamedTuple):
    """Counts describe the progress of a sweep in simulated scenarios."""

    total: int
    done: int
    resumed: int = 0
    """Number of scenarios in ``done`` that an earlier run completed."""
    failed: int = 0
    """Number of failed scenarios of this run."""


Progress = Callable[[Counts], None]
"""Function that is called when rows arrive."""


class Summary(NamedTuple):
    """A Summary is the outcome of a sweep, counted in points."""

    points: int
    duplicates: int
    resumed: int
    """Number of scenarios that an earlier run completed."""
    failed: int
    """Number of points with an error."""
    too_large: int
    """Number of points that do not fit."""
    outputs: tuple[Path, ...]
    journal: Path


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def journal_of(output: Path) -> Path:
    """Return the path of the journal that belongs to a result."""
    return output.with_name(f"{output.name}.journal")


def check_files(
    outputs: Sequence[Path], *, journal: Path | None = None, resume: bool = False, overwrite: bool = False
) -> None:
    """Raise InputError unless the files can be written and nothing is lost by it; the ``journal`` is by
    default that of the first of them."""
    if resume and overwrite:
        raise InputError.at("--resume", "keeps what --overwrite would replace; give one of them")
    journal = journal or journal_of(outputs[0])
    for path in outputs:
        check_format(path)
        if outputs.count(path) > 1:
            raise _refusal(path, "is given twice")
    for path in (*outputs, journal, beside(journal)):
        check_target(path)
    if overwrite:
        return
    if not resume and journal.exists():
        text = "a sweep was started here; continue it with --resume, or start again with --overwrite"
        raise _refusal(journal, text)
    for path in outputs:
        if path.exists() and not journal.exists():
            raise _refusal(path, "exists and has no journal; name another file or give --overwrite")


def run_sweep(
    sweep: Sweep,
    points: Points,
    outputs: Sequence[Path],
    *,
    journal: Path | None = None,
    workers: int | None = None,
    chunk: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Simulate all points and write the result to every one of ``outputs``; the first has the journal,
    unless ``journal`` names its file.

    ``workers`` are processes on this machine (default: its cores), or of the ``cluster`` "local"; other
    clusters have their own. ``chunk`` is how many points a worker is given at once. Raises InputError for
    files that cannot be used and SimulationError where workers or the cluster cannot go on.
    """
    check_files(outputs, journal=journal, resume=resume, overwrite=overwrite)
    count, unique = workers or usable_cores(), points.unique
    if cluster is not None or count > 1:
        check_workers_can_import()
    identity = SweepId(points.sweep_hash, len(points))
    path = journal or journal_of(outputs[0])
    kept = (
        Journal.resumed(path, identity, expected=frozenset(unique))
        if resume
        else Journal.created(path, identity)
    )
    with contextlib.closing(kept):
        resumed = len(kept)
        left = [point for point in unique if point not in kept.done]
        left.sort(key=lambda point: sweep.grid.neighbourhood(points.combination[point]))
        size = chunk or max(1, min(_CHUNK, len(left) // (count * _SHARE)))
        tasks = tasks_of(points, left, size=size)
        counts = Counts(len(unique), resumed, resumed)
        if progress is not None:
            progress(counts)
        with _pool(cluster, min(count, len(tasks))) as pool:
            for rows in run_tasks(pool, job_of(sweep), tasks):
                kept.append(rows)
                failed = counts.failed + sum(row.error is not None for row in rows)
                counts = counts._replace(done=len(kept), failed=failed)
                if progress is not None:
                    progress(counts)
        table = SweepTable.of(sweep, points, kept)
        for output in outputs:
            write_table(table, output)
        return _summary(table, resumed, tuple(outputs))


@contextlib.contextmanager
def _pool(cluster: str | None, count: int) -> Iterator[Pool]:
    """Yield the workers of a sweep, no more than it can use."""
    if cluster is not None and count:  # nothing to do needs no cluster
        with cluster_workers(cluster, count=count) as pool:
            yield pool
    elif count > 1:
        with local_processes(count) as pool:
            yield pool
    else:
        yield THIS_PROCESS


def _summary(table: SweepTable, resumed: int, outputs: tuple[Path, ...]) -> Summary:
    return Summary(
        points=len(table.points),
        duplicates=table.points.duplicates,
        resumed=resumed,
        failed=table.failed,
        too_large=table.too_large,
        outputs=outputs,
        journal=table.journal.path,
    )


def _refusal(path: Path, message: str) -> InputError:
    return InputError.at("", message, path=str(path))


# -- the answer of a sweep in memory, as Python asks for it and as reports show it -----------------


@dataclass(frozen=True, repr=False)
class SweepResult(ReportedAnswer):
    """A SweepResult has a row for each point of a sweep."""

    report = "simoffload.extensions.sweep.report:sweep_document"

    name: str
    """Name of the scenario that is varied."""
    axes: tuple[str, ...]
    """Names of the columns with the values that were varied, such as "workload.batch_size"."""
    rows: tuple[dict[str, Any], ...]
    """Values by column: index, axes, metrics [s], [1/s] with P10 and P90, ``fits``, ``error`` and so on."""
    scenario: Mapping[str, Any] = field(default_factory=dict)
    """The scenario that is varied, as in its file."""
    objective: str = ""
    """Name of the metric that decides which point is best; "": throughput, or else the time of a step or a
    checkpoint."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the result that ``run_sweep`` wrote as JSON. Raises OSError if there is no such file."""
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = BriefTuple(found["rows"])
        columns = list(rows[0])
        axes = tuple(columns[1 : 1 + len(found["axes"])])
        return cls(str(found["scenario"].get("name", "")), axes, rows, found["scenario"])

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each point, with a type for each column and units in the names of metrics."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def plot(self) -> Figure:
        """Return a chart: a heat map of two axes, or else the best value of each value of the first axis."""
        from simoffload.extensions.sweep.report import overview
        from simoffload.report.plotting import of_plotly

        return of_plotly(overview(self))


def sweep(
    scenario: ScenarioSource,
    *axes: str | Mapping[str, Any],
    constraints: str | Sequence[str] = (),
    objective: str | None = None,
    workers: int | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Watcher | None = None,
    **machine: Unpack[QuestionOptions],
) -> SweepResult:
    """Simulate a scenario at all combinations of the values of axes.

    Axes are texts such as "workload.batch_size=1,4,16", or mappings of paths to values,
    ``{"workload.batch_size": [1, 4, 16]}``, or to ranges, ``{"min": 1, "max": 64, "n": 7, "scale": "log"}``;
    those of the scenario's section ``sweep`` are varied, too. ``constraints`` are conditions for points,
    ``objective`` is the metric that decides which is best, as ``compare`` takes it, and ``workers`` the
    number of processes, by default one for each core. ``output`` is a file for the rows (.csv, .json or
    .parquet): beside it is a journal, with which ``resume`` continues what was interrupted.
    ``progress`` is called with a line of text, such as "12 of 60 points". ``machine`` as in ``simulate``.
    Raises InputError for axes or constraints that are invalid, for more than a million points, and for a file
    that exists unless ``resume`` or ``overwrite``.
    """
    if resume and output is None:
        raise InputError.at("resume", "needs output, the file whose journal it continues")
    texts = [one for one in axes if isinstance(one, str)]
    mappings = [one for one in axes if not isinstance(one, str)]
    named = Counter([*(one.partition("=")[0].strip() for one in texts), *chain.from_iterable(mappings)])
    if twice := [path for path, number in named.items() if number > 1]:
        raise InputError.at(str(twice[0]), "is given twice", path="--axis")
    constraints = [constraints] if isinstance(constraints, str) else constraints
    source = _varied(scenario, machine)
    best_by = objective_name(objective, source)
    defined = define_sweep(_with_axes(source, mappings), axes=texts, constraints=constraints)
    with TemporaryDirectory() as folder:
        rows = Path(folder, "sweep.json")
        outputs = [rows] if output is None else [Path(output), rows]
        follow = None if progress is None else partial(_follow, progress)
        points = find_points(defined)
        run_sweep(
            defined,
            points,
            outputs,
            workers=workers,
            resume=resume,
            overwrite=overwrite,
            progress=follow,
        )
        return replace(SweepResult.read(rows), objective=best_by)


def objective_name(asked: str | None, scenario: Document) -> str:
    """Return the name of the metric that is asked for, which rows have; "" for the usual one. Raises
    InputError."""
    if asked is None:
        return ""
    work = scenario.data.get("workload") if isinstance(scenario.data, Mapping) else None
    return metric_named(asked, work.get("kind") if isinstance(work, Mapping) else None).name


def _varied(scenario: ScenarioSource, machine: QuestionOptions) -> Document:
    """Return the document to vary: a file as it is, or the scenario that is asked for."""
    if isinstance(scenario, str | Path) and not machine and not names_model(str(scenario)):
        return located(scenario)
    return loaded(scenario, **machine).document


def _with_axes(document: Document, mappings: Sequence[Mapping[str, Any]]) -> Document:
    """Return the document with axes in its section ``sweep``: each a list of values, or a range."""
    for axes in mappings:
        written = {path: _in_short(values) for path, values in axes.items()}
        for path, values in plain_document(written, name="axes").data.items():
            spec = (
                values
                if isinstance(values, dict)
                else {"choices": values if isinstance(values, list) else [values]}
            )
            spec = spec if spec.keys() & {"choices", "range"} else {"range": spec}
            document = edited(document, [Edit((NAME, "axes", path), spec)])
    return document


def _in_short(values: Any) -> Any:
    """Return a range of Python as that of a sweep, which is not listed before its length is checked."""
    if not isinstance(values, range) or not values or values.step < 0:
        return values
    return {"min": values[0], "max": values[-1], "step": values.step}


def _follow(progress: Watcher, counts: Counts) -> None:
    progress(f"{counts.done:,} of {counts.total:,} points")
