"""Running a sweep: simulate what is not done yet, and write the rows as CSV, JSON or Parquet.

What is written depends on the rows alone: not on when, where or in which order they were computed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from simoffload.errors import InputError, SimulationError, shortened
from simoffload.exchange.files import check_target, replacing, write_csv
from simoffload.planning.sweep.definition import Points, Sweep
from simoffload.planning.sweep.journal import AFTER, Journal, SweepId, anew, beside
from simoffload.planning.sweep.tasks import (
    MOST_DEATHS,
    THIS_PROCESS,
    Pool,
    check_workers_can_import,
    job_of,
    run_tasks,
    tasks_of,
)
from simoffload.results import interval_columns, with_intervals

if TYPE_CHECKING:
    from distributed import Client

# -- workers ---------------------------------------------------------------------------------------

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
    journal = journal or journal_of(outputs[0])
    for path in outputs:
        check_format(path)
        if outputs.count(path) > 1:
            raise _refusal(path, "is given twice")
    for path in (*outputs, journal, beside(journal), anew(journal)):
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
