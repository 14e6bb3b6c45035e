"""Running a sweep: find the points, simulate what is not done yet, write the result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from simoffload.documents import exists
from simoffload.errors import InputError, Problem
from simoffload.planning.sweep.definition import Sweep
from simoffload.planning.sweep.evaluate import check_workers_can_import, job_of, tasks_of
from simoffload.planning.sweep.journal import Journal, SweepId, beside
from simoffload.planning.sweep.points import Points
from simoffload.planning.sweep.pool import THIS_PROCESS, Pool, run_tasks
from simoffload.planning.sweep.table import SweepTable, check_format, write_table
from simoffload.planning.sweep.workers import local_processes

__all__ = ["Counts", "Progress", "Summary", "check_files", "journal_of", "run_sweep", "usable_cores"]

_CHUNK = 64
_SHARE = 8
"""Chunks for each worker, at least, so that the last ones end at about the same time."""


class Counts(NamedTuple):
    """How far a sweep is, in scenarios that are simulated."""

    total: int
    done: int
    resumed: int = 0
    """Of ``done``, those that an earlier run did."""
    failed: int = 0
    """Of those that this run did."""


Progress = Callable[[Counts], None]
"""Called when rows came in."""


class Summary(NamedTuple):
    """What a sweep came to, in points."""

    points: int
    duplicates: int
    resumed: int
    """Scenarios that an earlier run had done."""
    failed: int
    """Points with an error."""
    too_large: int
    """Points that do not fit."""
    outputs: tuple[Path, ...]
    journal: Path


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def journal_of(output: Path) -> Path:
    """The journal that stands beside a result."""
    return output.with_name(f"{output.name}.journal")


def check_files(outputs: Sequence[Path], *, resume: bool = False, overwrite: bool = False) -> None:
    """Raise InputError unless the files can be written and nothing is lost by it."""
    journal = journal_of(outputs[0])
    for path in (*outputs, journal, beside(journal)):
        exists(path)  # refuses names that are too long
    for path in outputs:
        check_format(path)
        if outputs.count(path) > 1:
            raise _refusal(path, "is given twice")
    for path in (*outputs, journal):
        if not path.parent.is_dir():
            raise _refusal(path, "its folder does not exist; make it first")
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise _refusal(path, "is not a plain file; name another")
    if overwrite:
        return
    if not resume and journal.exists():
        text = "a sweep was begun here; continue it with --resume, or start anew with --overwrite"
        raise _refusal(journal, text)
    for path in outputs:
        if path.exists() and not journal.exists():
            raise _refusal(path, "exists and has no journal; name another file or give --overwrite")


def run_sweep(
    sweep: Sweep,
    points: Points,
    outputs: Sequence[Path],
    *,
    workers: int | None = None,
    chunk: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Simulate all points and write the result to every one of ``outputs``; the first has the journal.

    ``workers`` are processes on this machine (default: its cores), or of the ``cluster`` "local"; other
    clusters have their own. ``chunk`` is how many points a worker is given at once. Raises InputError for
    files that cannot be used and SimulationError where workers or the cluster cannot go on.
    """
    check_files(outputs, resume=resume, overwrite=overwrite)
    count, unique = workers or usable_cores(), points.unique
    if cluster is not None or count > 1:
        check_workers_can_import()
    identity = SweepId(points.sweep_hash, len(points))
    path = journal_of(outputs[0])
    journal = (
        Journal.resumed(path, identity, expected=frozenset(unique))
        if resume
        else Journal.created(path, identity)
    )
    with _removed_if_empty(journal), contextlib.closing(journal):
        resumed = len(journal)
        left = [point for point in unique if point not in journal.done]
        left.sort(key=lambda point: sweep.grid.neighbourhood(points.combination[point]))
        size = chunk or max(1, min(_CHUNK, len(left) // (count * _SHARE)))
        tasks = tasks_of(points, left, size=size)
        counts = Counts(len(unique), resumed, resumed)
        if progress is not None:
            progress(counts)
        with _pool(cluster, min(count, len(tasks))) as pool:
            for rows in run_tasks(pool, job_of(sweep), tasks):
                journal.append(rows)
                failed = counts.failed + sum(row.error is not None for row in rows)
                counts = counts._replace(done=len(journal), failed=failed)
                if progress is not None:
                    progress(counts)
        table = SweepTable.of(sweep, points, journal)
        for output in outputs:
            write_table(table, output)
        return _summary(table, resumed, tuple(outputs))


@contextlib.contextmanager
def _removed_if_empty(journal: Journal) -> Iterator[None]:
    """A sweep that could not begin leaves no trace."""
    try:
        yield
    except BaseException:
        if not len(journal):
            journal.path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _pool(cluster: str | None, count: int) -> Iterator[Pool]:
    """Yield the workers that a sweep was given, as many as it has use for."""
    if cluster is not None and count:  # nothing to do needs no cluster
        from simoffload.planning.sweep.cluster import cluster_workers

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
    return InputError((Problem(str(path), None, None, "", message),))
