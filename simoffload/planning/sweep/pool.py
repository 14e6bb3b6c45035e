"""Pools of workers: whatever has a ``submit`` that returns futures of ``concurrent.futures``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple

from simoffload.errors import SimulationError
from simoffload.planning.sweep.evaluate import SweepJob, Task, failed_row, rest_of, run_task
from simoffload.planning.sweep.journal import JournalRow

__all__ = ["MOST_DEATHS", "THIS_PROCESS", "Pool", "run_tasks"]

MOST_DEATHS = 3
"""Workers that may end over one point before it is given up."""


class Pool(NamedTuple):
    """Workers that simulate tasks."""

    name: str
    """What a message calls them, such as "the cluster"."""
    submit: Callable[..., Future[Any]]
    """Takes a function and its arguments, as ``concurrent.futures.Executor.submit`` does."""
    room: Callable[[], int]
    """How many tasks the pool can have at the moment."""
    how_it_ended: Callable[[Exception], str | None]
    """How the worker of a task ended; None for an exception that is no end of a worker."""


def _submit_here(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future


THIS_PROCESS = Pool("this process", _submit_here, lambda: 1, lambda _: None)
"""The pool without any process but this one."""


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
    """The rows that a task came to, and what is left of it."""
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
    """What is left of a task whose worker ended: its points one by one; a row for one that always ends so."""
    deaths = task.deaths + 1
    if len(task.points) > 1:
        return [], [Task((point,)) for point in task.points]
    if deaths < MOST_DEATHS:
        return [], [Task(task.points, deaths)]
    text = f"{deaths} workers ended while they simulated this point ({how}); is memory too small?"
    return [failed_row(task.points[0][0], text)], []
