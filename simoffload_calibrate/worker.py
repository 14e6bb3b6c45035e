"""The process of a job: ``python -m simoffload_calibrate.worker FOLDER``, one per rank.

It carries out the tasks of the folder (``jobs``), and keeps models and buffers for later ones. If the parent
ends, it removes the files of the job elsewhere ("scratch"), and ends, too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from simoffload_calibrate.child import Job, select_device, synchronize
from simoffload_calibrate.jobs import json_line
from simoffload_calibrate.micro.benchmarks import SkippedError

_PERIOD = 0.02
"""[s] Time between two looks for the next task."""


def _carry_out(job: Job) -> dict[str, Any]:
    module, _, function = job.data["runs"].partition(":")
    try:
        return {"found": getattr(importlib.import_module(module), function)(job)}
    except SkippedError as reason:
        return {"skipped": str(reason)}
    finally:
        synchronize()


def _end_with_parent(parent: int, scratch: str | None) -> None:
    """End this process when the parent has ended, even if it was killed."""

    def watch() -> None:
        while True:
            time.sleep(1.0)
            try:
                os.kill(parent, 0)
            except ProcessLookupError:
                break
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()


def _tasks(path: Path) -> Iterator[dict[str, Any]]:
    """Yield tasks as the parent writes them."""
    with path.open(encoding="utf-8") as file:
        line = ""
        while True:
            line += file.readline()
            if line.endswith("\n"):
                yield json.loads(line)
                line = ""
            else:
                time.sleep(_PERIOD)


def _serve(folder: Path, job: Job) -> int:
    """Carry out tasks until one fails; the parent then starts new processes for the remaining ones."""
    with (folder / f"answers-{job.rank}.jsonl").open("a", encoding="utf-8") as answers:
        if job.rank == 0:
            answers.write(json_line({"ready": True}))
            answers.flush()
        for number, task in enumerate(_tasks(folder / "tasks.jsonl")):
            until = time.monotonic() + task.get("seconds", float("inf"))
            text, failed = _answer(number, job._replace(data={**job.data, **task}, until=until))
            if job.rank == 0 or failed:
                answers.write(text)
                answers.flush()
            if failed:
                break
            if not task.get("light"):
                gc.collect()
            if job.ranks > 1:
                dist.barrier()
    return 3


def _answer(number: int, job: Job) -> tuple[str, bool]:
    """Return the line of the answer, and whether the task failed."""
    try:
        return json_line({"task": number, **_carry_out(job)}), False
    except Exception as error:
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
        return json_line({"task": number, "failed": f"{type(error).__name__}: {error}"[:2000]}), True


def main(folder: Path) -> int:
    """Carry out the tasks of a job; the status is 3 if one failed."""
    data: Mapping[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    _end_with_parent(data["parent"], data.get("scratch"))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = select_device()
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if ranks > 1:
        dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=rank, world_size=ranks)
    for package in data.get("imports", ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    status = _serve(folder, Job(rank, ranks, device, dict(data), {}))
    sys.stdout.flush()
    sys.stderr.flush()
    # Destructors are skipped, because communicators of a failed section would wait for one another.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
