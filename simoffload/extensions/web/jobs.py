"""Jobs: questions of pages that worker processes answer, within limits and until nobody waits any more.

A worker answers one question at a time. A page has one job of each kind: its next question of that kind ends
the one before, unless another page waits for that, too. A job ends with its worker where it takes too long,
where its page was closed, and where the worker dies; another worker takes its place.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from math import inf
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.errors import InputError, Problem, SimulationError
from simoffload.extensions.web.leftovers import FOLDER
from simoffload.extensions.web.questions import QUESTIONS, START, forget
from simoffload.extensions.web.scenarios import problem_texts
from simoffload.limits import Limits, restrict, sharing
from simoffload.progress import Progress, clock, watched_by
from simoffload.results import registered
from simoffload.strategies.registry import register_outside, registered_outside

_BEYOND_MEMORY, _BEYOND_TIME = 4 << 30, 15.0
"""Address space [B] that a worker has beyond the limit of memory, and time [s] after which it is ended beyond
that of a question: the limits hold for what answers, not for what the worker holds and does besides."""
_KEPT, _ASKED = 64 << 20, 32 << 20
"""[B] of the answers that are kept, and [characters] of the questions that wait: our choice."""
_LARGE = 100_000
"""[characters] of a question after which a worker forgets what it worked out for it."""
_MOST_WAITING, _MOST_PAGES = 64, 512
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
    """With progress, a first answer, if there is one."""
    problems: tuple[str, ...] = ()
    progress: str = ""
    """How far the answer is; empty once it or a problem is there."""


class _PageJob:
    def __init__(self, key: str, size: int, kind: str, asked: tuple[Any, ...]) -> None:
        self.key, self.size, self.kind, self.asked = key, size, kind, asked
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
        self.outcome, self.asked = outcome, ()
        self.done.set()


class _Answers:
    """Answers as they came from workers, those asked for last, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._packed: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str) -> bytes | None:
        if key in self._packed:
            self._packed.move_to_end(key)
        return self._packed.get(key)

    def keep(self, key: str, packed: bytes) -> None:
        self._size += len(packed) - len(self._packed.pop(key, b""))
        self._packed[key] = packed
        while self._size > self._most and len(self._packed) > 1:
            self._size -= len(self._packed.popitem(last=False)[1])


_CLOSING = 2.0
"""Time [s] that workers have to end when the server does: our choice."""


class Jobs:
    """Jobs are asked by pages and answered by worker processes, which are killed when they are closed.

    Answers and questions are in memory alone. The one folder, in which workers start, is empty and cannot be
    written; the process that makes workers removes it where the server was killed (``leftovers``).
    """

    def __init__(self, kinds: Mapping[str, Kind], prepare: Callable[[], object] | None = None) -> None:
        """``prepare`` is called in each worker before its first question."""
        self._kinds, self._prepare = kinds, prepare
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._answers = _Answers(_KEPT)
        self._running: dict[str, _PageJob] = {}
        self._of_pages: OrderedDict[tuple[str, str], _PageJob] = OrderedDict()
        self._queues = {name: queue.SimpleQueue[_PageJob | None]() for name in kinds}
        shared = Path(get_temp_dir())  # of multiprocessing, with the socket through which workers are made
        self._folder = shared / "empty"
        self._folder.mkdir(mode=0o500, exist_ok=True)
        self._context = get_context("forkserver")
        own = __name__.rpartition(".")[0]
        self._context.set_forkserver_preload([f"{own}.leftovers", f"{own}.warm"])
        os.environ[FOLDER] = str(shared)
        forkserver.ensure_running()
        os.environ.pop(FOLDER)
        self._threads = [
            threading.Thread(target=self._serve, args=(name,), daemon=True)
            for name, kind in kinds.items()
            for _ in range(kind.workers)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, page: str, kind: str, question: str, *arguments: Any, wait: float) -> JobOutcome:
        """Return the answer to a question if it is there within ``wait`` [s], else how far it is."""
        text = repr((question, arguments)).encode(errors="surrogatepass")
        key = sha256(text).hexdigest()
        with self._lock:
            packed = self._answers.get(key)
            if packed is not None:
                self._leave(page, kind)
        if packed is not None:
            return _unpacked(packed)
        with self._lock:
            job = self._running.get(key)
            if job is None:
                waiting = sum(one.size for one in self._running.values()) + len(text)
                if self._queues[kind].qsize() >= _MOST_WAITING or waiting > _ASKED:
                    return JobOutcome(problems=("too many people ask at once; try again in a moment",))
                job = self._running[key] = _PageJob(key, len(text), kind, (question, arguments))
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
        if not before.pages and self._running.get(before.key) is before:
            del self._running[before.key]  # who asks from now on gets a job of its own

    def close(self) -> None:
        """End all workers with what they do."""
        for name, kind in self._kinds.items():
            for _ in range(kind.workers):
                self._queues[name].put(None)
        self._closing.set()
        end = time.monotonic() + _CLOSING
        for thread in self._threads:
            thread.join(timeout=max(0.0, end - time.monotonic()))

    # ---- one thread for each worker ----

    def _serve(self, name: str) -> None:
        kind, worker = self._kinds[name], None
        while (job := self._queues[name].get()) is not None:
            worker = worker if worker is not None and worker.is_alive() else self._started(kind)
            outcome, packed = JobOutcome(problems=("not needed any more",)), b""
            if job.pages:
                job.began = time.monotonic()
                outcome, packed = worker.answer(
                    job, (kind.limits.timeout or inf) + _BEYOND_TIME, self._closing
                )
            with self._lock:
                if self._running.get(job.key) is job:
                    del self._running[job.key]
                if outcome.value is not None:
                    self._answers.keep(job.key, packed)
                for page in job.pages:
                    if self._of_pages.get((page, job.kind)) is job:
                        del self._of_pages[page, job.kind]
            job.end(outcome)
        if worker is not None:
            worker.kill()

    def _started(self, kind: Kind) -> _PageWorker:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, str(self._folder), kind, self._prepare, registered_outside(), registered)
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

    def answer(self, job: _PageJob, seconds: float, closing: threading.Event) -> tuple[JobOutcome, bytes]:
        """Let the process answer, also packed; it is killed where the job shall end, or all is closing."""
        try:
            self._connection.send((*job.asked, job.size))
            while True:
                if self._connection.poll(0.02):
                    packed = self._connection.recv_bytes()
                    outcome = _unpacked(packed)
                    if not outcome.progress:
                        return outcome, packed
                    value = job.outcome.value if outcome.value is None else outcome.value
                    job.outcome = outcome._replace(value=value)
                elif why := "the server ends" if closing.is_set() else job.ended(seconds):
                    self.kill()
                    return JobOutcome(problems=(why,)), b""
        except (OSError, EOFError):
            self.kill()
            text = "stopped: the process that worked on it ended, perhaps for lack of memory"
            return JobOutcome(problems=(text,)), b""


def _unpacked(packed: bytes) -> JobOutcome:
    found: JobOutcome = pickle.loads(packed)  # of a worker of this process
    return found


# ---- in the worker -----------------------------------------------------------------------------


def work(
    connection: Connection,
    folder: str,
    kind: Kind,
    prepare: Callable[[], object] | None,
    outside: tuple[type, ...],
    metrics: Mapping[Any, Any],
) -> None:
    """Answer questions until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    os.chdir(folder)  # of all scenarios: it holds no file of the server, and none can be written into it
    os.nice(kind.nice)
    _limit_memory(kind.limits.memory + _BEYOND_MEMORY)
    restrict(kind.limits)
    gc.set_threshold(100_000)
    if prepare:
        prepare()
    register_outside(outside)
    for (result, _), metric in metrics.items():
        result.register(metric)
    _answered(connection, "answer", (START,))  # what it needs is then in memory of its own
    with suppress(EOFError, OSError):  # the server has ended
        while True:
            question, arguments, size = connection.recv()
            with sharing(kind.limits.timeout):
                outcome = _answered(connection, question, arguments)
            connection.send(outcome)
            if size > _LARGE:
                forget()


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
            found = QUESTIONS[question](*arguments)
            if not isinstance(found, Iterator):
                return JobOutcome(found)
            last: Any = ()
            for last in found:
                connection.send(JobOutcome(last, progress="a first answer is there"))
            return JobOutcome(last)
    except InputError as error:
        return JobOutcome(problems=problem_texts(error.problems))
    except SimulationError as error:
        return JobOutcome(problems=(str(error),))
    except MemoryError:
        return JobOutcome(problems=("stopped by the memory that the page allows; simulate less",))
    except Exception as error:
        if os.environ.get("SIMOFFLOAD_DEBUG") == "1":
            sys.excepthook(type(error), error, error.__traceback__)
        text = f"internal error: {type(error).__name__}: {error} (please report)"
        return JobOutcome(problems=(str(Problem("", None, None, "", text.replace("\n", " "))),))
