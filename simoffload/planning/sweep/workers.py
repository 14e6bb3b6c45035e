"""Execution of tasks: processes of this machine, or the workers of a Dask cluster (https://distributed.dask.org).

Each thread of the local pool has one worker: a fresh interpreter that inherits nothing, with a pipe to it and
one from it. A worker that ends closes its own pipe only, so that its end concerns one call; a worker whose
parent is gone reads the end of its pipe and leaves. A task of a cluster carries all that it needs: data that
is scattered to workers would be lost with them, and a task that was sent does not ask this machine for
anything.
"""

from __future__ import annotations

import contextlib
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
from typing import IO, TYPE_CHECKING, Any

from simoffload.errors import InputError, SimulationError, shortened
from simoffload.planning.sweep.tasks import MOST_DEATHS, Pool

if TYPE_CHECKING:
    from distributed import Client

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
        raise _refusal(text) from None
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
        raise _refusal(f"no scheduler answers at {shortened(address)} ({error})") from None
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError:
        client.close()
        text = f"the scheduler at {address} has no workers; start some with: dask worker {address}"
        raise _refusal(text) from None
    return client


def _refusal(message: str) -> InputError:
    return InputError.at("", message, path="--cluster")
