"""Jobs: questions of pages that worker processes answer, within limits and until nobody waits any more.

A worker answers one question at a time. A page has one job of each kind: its next question of that kind ends
the one before, unless another page waits for that, too. A job ends with its worker where it takes too long,
where its page was closed, and where the worker dies; another worker takes its place.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from simoffload.errors import InputError, Problem, SimulationError
from simoffload.limits import Limits, restrict, sharing
from simoffload.progress import Progress, clock, watched_by
from simoffload.results import registered
from simoffload.strategies.registry import register, registered_outside
from simoffload.web.questions import QUESTIONS, START

_BEYOND_MEMORY, _BEYOND_TIME = 4 << 30, 15.0
"""Address space [B] that a worker has beyond the limit of memory, and time [s] after which it is ended beyond
that of a question: the limits hold for what answers, not for what the worker holds and does besides."""
_KEPT, _MOST_WAITING, _MOST_PAGES = 256, 64, 512
_SHORT = 0.5
"""Time [s] for which a job that nobody wants any more may go on, as its answer will be there soon."""
_ABANDONED = 15.0
"""Time [s] after which a page that does not ask again is taken to be closed."""
_OFTEN = 0.1
"""Time [s] between two messages about progress."""


class Kind(NamedTuple):
    """A Kind of question has workers of its own, so that slow ones do not keep quick ones waiting."""

    workers: int
    limits: Limits
    """Limits of a question, which has an answer with what was found until then."""
    nice: int = 0


class JobOutcome(NamedTuple):
    """A JobOutcome is the answer to a question, or why there is none (yet)."""

    value: Any = None
    problems: tuple[str, ...] = ()
    progress: str = ""
    """How far the answer is; empty once it or a problem is there."""


class _PageJob:
    def __init__(self, question: str, arguments: tuple[Any, ...]) -> None:
        self.question, self.arguments = question, arguments
        self.done = threading.Event()
        self.outcome = JobOutcome(progress="waiting")
        self.began: float | None = None
        self.awaited = time.monotonic()
        """Time until which somebody waits for the answer."""
        self.pages: set[str] = set()

    def ended(self, most: float) -> str:
        """Return why the job shall end, after ``most`` [s] at the latest; empty where it may go on."""
        now = time.monotonic()
        for_now = now - (self.began or now)
        if for_now > most:
            return f"stopped after {for_now:.0f} s (--timeout); raise the limit, or simulate less"
        unwanted = not self.pages and for_now > _SHORT
        return "not needed any more" if unwanted or now - self.awaited > _ABANDONED else ""

    def end(self, outcome: JobOutcome) -> None:
        self.outcome = outcome
        self.done.set()


class Jobs:
    """Jobs are asked by pages and answered by worker processes, which are killed when they are closed."""

    def __init__(self, kinds: Mapping[str, Kind], prepare: Callable[[], object] | None = None) -> None:
        """``prepare`` is called in each worker before its first question."""
        self._kinds, self._prepare = kinds, prepare
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, JobOutcome] = OrderedDict()
        self._running: dict[Hashable, _PageJob] = {}
        self._of_pages: OrderedDict[tuple[str, str], _PageJob] = OrderedDict()
        self._queues = {name: queue.SimpleQueue[_PageJob | None]() for name in kinds}
        self._folder = TemporaryDirectory(prefix="simoffload-")
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(["simoffload.web.warm"])
        self._threads = [
            threading.Thread(target=self._serve, args=(name,), daemon=True)
            for name, kind in kinds.items()
            for _ in range(kind.workers)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, page: str, kind: str, question: str, *arguments: Any, wait: float) -> JobOutcome:
        """Return the answer to a question if it is there within ``wait`` [s], else how far it is."""
        key = (question, arguments)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                self._leave(page, kind)
                return self._answers[key]
            job = self._running.get(key)
            if job is None:
                if self._queues[kind].qsize() >= _MOST_WAITING:
                    return JobOutcome(problems=("too many people ask at once; try again in a moment",))
                job = self._running[key] = _PageJob(question, arguments)
                job.pages.add(page)
                self._queues[kind].put(job)
            self._leave(page, kind, keep=job)
            job.pages.add(page)
            job.awaited = time.monotonic() + wait
            self._of_pages[page, kind] = job
            while len(self._of_pages) > _MOST_PAGES:
                self._of_pages.popitem(last=False)
        job.done.wait(wait)
        return job.outcome

    def answers(self, page: str, kind: str) -> bool:
        """Return whether the page's question of a kind is being answered."""
        with self._lock:
            job = self._of_pages.get((page, kind))
        return job is not None and not job.done.is_set()

    def cancel(self, page: str, kind: str) -> None:
        """End the page's job of a kind, unless others wait for it, too."""
        with self._lock:
            self._leave(page, kind)

    def _leave(self, page: str, kind: str, keep: _PageJob | None = None) -> None:
        before = self._of_pages.pop((page, kind), None)
        if before is None or before is keep:
            return
        before.pages.discard(page)
        key = (before.question, before.arguments)
        if not before.pages and self._running.get(key) is before:
            del self._running[key]  # who asks from now on gets a job of its own

    def close(self) -> None:
        """End all workers with what they do."""
        for name, kind in self._kinds.items():
            for _ in range(kind.workers):
                self._queues[name].put(None)
        for thread in self._threads:
            thread.join(timeout=2)
        self._folder.cleanup()

    # ---- one thread for each worker ----

    def _serve(self, name: str) -> None:
        kind, worker = self._kinds[name], None
        while (job := self._queues[name].get()) is not None:
            worker = worker if worker is not None and worker.is_alive() else self._started(kind)
            outcome = JobOutcome(problems=("not needed any more",))
            if job.pages:
                job.began = time.monotonic()
                outcome = worker.answer(job, (kind.limits.timeout or inf) + _BEYOND_TIME)
            with self._lock:
                key = (job.question, job.arguments)
                if self._running.get(key) is job:
                    del self._running[key]
                if outcome.value is not None:
                    self._answers[key] = outcome
                    while len(self._answers) > _KEPT:
                        self._answers.popitem(last=False)
            job.end(outcome)
        if worker is not None:
            worker.kill()

    def _started(self, kind: Kind) -> _PageWorker:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self._folder.name, kind, self._prepare, registered_outside(), registered)
        process = self._context.Process(target=work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _PageWorker(process, ours)


class _PageWorker:
    def __init__(self, process: Any, connection: Connection) -> None:
        self._process, self._connection = process, connection

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def answer(self, job: _PageJob, seconds: float) -> JobOutcome:
        """Let the process answer; it is killed where the job shall end."""
        try:
            self._connection.send((job.question, job.arguments))
            while True:
                if self._connection.poll(0.02):
                    outcome: JobOutcome = self._connection.recv()
                    if not outcome.progress:
                        return outcome
                    job.outcome = outcome
                elif why := job.ended(seconds):
                    self.kill()
                    return JobOutcome(problems=(why,))
        except (OSError, EOFError):
            self.kill()
            return JobOutcome(
                problems=("stopped: the process that worked on it ended, perhaps for lack of memory",)
            )


# ---- in the worker -----------------------------------------------------------------------------


def work(
    connection: Connection,
    folder: str,
    kind: Kind,
    prepare: Callable[[], object] | None,
    outside: Sequence[Any],
    metrics: Mapping[Any, Any],
) -> None:
    """Answer questions until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    own = Path(folder) / str(os.getpid())
    own.mkdir(exist_ok=True)
    os.chdir(own)  # the folder of all scenarios, which holds no file of the server
    os.nice(kind.nice)
    _limit_memory(kind.limits.memory + _BEYOND_MEMORY)
    restrict(kind.limits)
    gc.set_threshold(100_000)
    if prepare:
        prepare()
    for one in outside:
        register(one)
    for (result, _), metric in metrics.items():
        result.register(metric)
    _answered(connection, "answer", (START,))  # what it needs is then in memory of its own
    while True:
        try:
            question, arguments = connection.recv()
        except (EOFError, OSError):
            return
        with sharing(kind.limits.timeout):
            outcome = _answered(connection, question, arguments)
        connection.send(outcome)


def _limit_memory(most: int) -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _progress_texts(progress: Progress) -> Iterator[str]:
    """Yield what part is done, the time left as far as they are known, and what happens now."""
    if progress.total:
        yield f"{progress.share:.0%}"
    if (left := progress.time_left()) is not None:
        yield f"{clock(left)} left"
    yield progress.now or "working"


def _answered(connection: Connection, question: str, arguments: tuple[Any, ...]) -> JobOutcome:
    shown = 0.0

    def show(_line: str) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > _OFTEN:
            shown = now
            connection.send(JobOutcome(progress=" · ".join(_progress_texts(progress))))

    progress = Progress(show)
    try:
        with watched_by(progress):
            return JobOutcome(QUESTIONS[question](*arguments))
    except InputError as error:
        return JobOutcome(problems=tuple(map(str, error.problems)))
    except SimulationError as error:
        return JobOutcome(problems=(str(error),))
    except MemoryError:
        return JobOutcome(problems=("stopped by the memory that the page allows; simulate less",))
    except Exception as error:
        if os.environ.get("SIMOFFLOAD_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        text = f"internal error: {type(error).__name__}: {error} (please report)"
        return JobOutcome(problems=(str(Problem("", None, None, "", text.replace("\n", " "))),))
