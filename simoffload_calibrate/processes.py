"""Processes that measure: each group of ranks is started, watched, and always ended completely."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["Ranks", "missing_packages", "run_ranks", "thread_environment"]

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


class Ranks:
    """A group of processes that run ``python -m module arguments``, one for each rank.

    Their output goes to ``log``. Ctrl-C does not reach them; the process that starts them calls ``end``.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        ranks: int,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        command = [sys.executable]
        variables = {**os.environ, "NCCL_NVLS_ENABLE": "0", "TOKENIZERS_PARALLELISM": "false", **environment}
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        else:
            variables |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
            variables["MASTER_PORT"] = str(_free_port())
        command += ["-m", module, *arguments]
        variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', '')}"  # ninja
        if any(letter.isalpha() for letter in variables.get("TORCH_CUDA_ARCH_LIST", "").replace("PTX", "")):
            del variables["TORCH_CUDA_ARCH_LIST"]  # DeepSpeed cannot read "9.0a"; without it, it asks the GPU
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status of the group; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End every process of the group: with SIGTERM, and after some seconds with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
                if number == signal.SIGTERM and not _group_exists(self._process.pid):
                    return


def run_ranks(
    module: str,
    arguments: Sequence[str],
    *,
    ranks: int,
    log: Path,
    environment: Mapping[str, str],
    watch: Callable[[], bool] | None = None,
) -> int | None:
    """Run ``python -m module arguments`` in ``ranks`` processes with their output in ``log``.

    ``watch`` is called several times a second; when it returns False the processes are stopped. Returns
    the exit status, or None if they were stopped. Any exception, including Ctrl-C, first ends the complete
    process group.
    """
    group = Ranks(module, arguments, ranks=ranks, log=log, environment=environment)
    try:
        while group.status is None:
            if watch is not None and not watch():
                return None
            time.sleep(0.1)
        return group.status
    finally:
        group.end()


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
