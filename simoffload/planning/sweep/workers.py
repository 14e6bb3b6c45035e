"""Worker processes on this machine, behind the ``submit`` of a pool of threads.

Each thread of the pool has one worker: a fresh interpreter that inherits nothing, with a pipe to it and one
from it. A worker that ends closes its own pipe only, so that its end concerns one call; a worker whose parent
is gone reads the end of its pipe and leaves.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from simoffload.errors import SimulationError
from simoffload.planning.sweep.pool import MOST_DEATHS, Pool

__all__ = ["local_processes", "work"]

_READY = b"ready\n"


class WorkerEndedError(Exception):
    """The worker ended during a call; its text says how."""


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
    """One worker process for each thread that calls one."""

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
    """How a process ended, for which this waits."""
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
    """What a function returns, and what it fails with."""
    try:
        return function(*arguments), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
