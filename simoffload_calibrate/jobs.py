"""Jobs in child processes, which alone import PyTorch: one protocol for all that measures.

A job is a group of processes, one for each rank, that run ``worker`` in a folder of their own. The folder has
``job.json``, what all tasks of the job share; ``tasks.jsonl``, to which the parent adds a line for each task;
and ``answers-RANK.jsonl``, to which a rank adds a line for each answer. A task names the function that
carries it out under "runs", as ``module:function``, so that a new kind of work needs no other protocol. An
answer is {"ready": true} once, and then has the number of its "task" and what was "found", or the reason why
it was "skipped" or has "failed"; rank 0 answers, and any rank that fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

WORKER = "simoffload_calibrate.worker"
"""The module that the processes run."""
_START = 180.0
"""[s] Time limit for starting processes: their imports and the first contact of their ranks."""
_PERIOD = 0.05
"""[s] Time between two looks for an answer."""
_PATIENCE = 10.0
"""[s] Time between SIGTERM and SIGKILL."""


def missing_packages(names: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``names`` that this interpreter cannot find, without importing anything."""
    from importlib.util import find_spec

    return tuple(name for name in names if find_spec(name) is None)


def thread_environment(ranks: int) -> dict[str, str]:
    """Return the OpenMP threads of each rank: an equal share of the cores, unless the environment sets them.

    DeepSpeed's CPU Adam uses all OpenMP threads (its step is a ``parallel for``), and torch.distributed.run
    sets one per process if there are several and the environment sets none.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // ranks))}


def json_line(data: Mapping[str, Any]) -> str:
    """Return a line of a task or an answer. Raises ValueError if a number is not finite."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"


class JobProcesses:
    """The processes of a job, which carry out its tasks one after the other until one fails.

    Their output goes to ``log``. Ctrl-C does not reach them: as a context manager, it ends all of them.
    """

    def __init__(
        self,
        folder: Path,
        shared: Mapping[str, Any],
        *,
        ranks: int,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir()
        self._folder, self._log = folder, log or folder / "log.txt"
        self._tasks, self._ready, self._started = 0, False, time.monotonic()
        self._read: dict[Path, int] = {}
        (folder / "job.json").write_text(json_line({**shared, "parent": os.getpid(), "folder": str(folder)}))
        (folder / "tasks.jsonl").touch()
        command, variables = _command(ranks, environment or {})
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "-m", WORKER, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def call(self, runs: str, task: Mapping[str, Any], *, limit: float) -> dict[str, Any]:
        """Let the processes carry out a task within a time [s] from their start, and return the answer.

        After "failed" they end, or have to be ended.
        """
        number, self._tasks = self._tasks, self._tasks + 1
        with (self._folder / "tasks.jsonl").open("a", encoding="utf-8") as file:
            file.write(json_line({"runs": runs, **task}))
        until = time.monotonic() + limit
        while True:
            running = self._process.poll() is None
            for answer in self._answers():
                if "ready" in answer:
                    self._ready, until = True, time.monotonic() + limit
                elif answer["task"] == number:
                    return answer
            late = time.monotonic() >= (until if self._ready else self._started + _START)
            if not self._ready and (late or not running):
                return {"failed": f"the processes could not be started: {self._last_line()}"}
            if not running:
                status = self._process.returncode
                return {"failed": f"its process ended with status {status}: {self._last_line()}"}
            if late:
                return {"failed": f"stopped after {limit:.0f} s"}
            time.sleep(_PERIOD)

    def _answers(self) -> Iterator[dict[str, Any]]:
        """Yield the answers that came since the last look, those of higher ranks, which failed, first."""
        for path in sorted(self._folder.glob("answers-*.jsonl"), reverse=True):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):  # the rest is still being written
                        break
                    self._read[path] = self._read.get(path, 0) + len(line)
                    yield json.loads(line)

    def _last_line(self) -> str:
        """Return the last error in the log, else its last line."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            log = self._log.read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line and "torch.distributed.elastic" not in line]
        return (errors or lines or ["it wrote no output"])[-1][:300]

    def end(self) -> None:
        """End every process of the group: with SIGTERM, and after some seconds with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
                if number == signal.SIGTERM and not _group_exists(self._process.pid):
                    return


def _command(ranks: int, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts so many processes of a module, and their environment."""
    command = [sys.executable]
    variables = {**os.environ, "NCCL_NVLS_ENABLE": "0", "TOKENIZERS_PARALLELISM": "false", **environment}
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    else:
        variables |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        variables["MASTER_PORT"] = str(_free_port())
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', '')}"  # ninja
    if any(letter.isalpha() for letter in variables.get("TORCH_CUDA_ARCH_LIST", "").replace("PTX", "")):
        del variables["TORCH_CUDA_ARCH_LIST"]  # DeepSpeed cannot read "9.0a"; without it, it asks the GPU
    return command, variables


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
