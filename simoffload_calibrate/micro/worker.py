"""The process that measures: ``python -m simoffload_calibrate.micro.worker JOB``, one per rank.

It carries out the tasks that its parent writes to the files ``0000.task``, ``0001.task``, … of a folder, and
keeps models and buffers for later rounds. Rank 0 writes the result of each task. If the parent ends, the
process removes the storage files and ends, too.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from simoffload_calibrate.child import select_device, synchronize
from simoffload_calibrate.json_records import write_json
from simoffload_calibrate.micro.plan import SkippedError
from simoffload_calibrate.micro.timing import MeasurementJob

__all__ = ["FUNCTIONS", "main"]

FUNCTIONS = {
    "facts": ("gpu", "gpu_facts"),
    "probe": ("host", "probe_host"),
    "compile": ("host", "compile_operations"),
    "copies": ("links", "measure_copies"),
    "copies_together": ("links", "measure_copies_together"),
    "copies_subsets": ("links", "measure_copies_subsets"),
    "collectives": ("links", "measure_collectives"),
    "hbm": ("gpu", "measure_memory"),
    "matmul": ("gpu", "measure_matmul"),
    "attention": ("gpu", "measure_attention"),
    "kernels": ("gpu", "measure_kernels"),
    "dram": ("host", "measure_memory"),
    "hooks_decode": ("hooks", "measure_decode"),
    "hooks_training": ("hooks", "measure_training"),
    "eager": ("eager", "measure_eager"),
    "eager_together": ("eager", "measure_eager"),
    "storage": ("storage", "measure_storage"),
    "storage_gds": ("storage", "measure_gds"),
    "cpu_adam": ("host", "measure_adam"),
    "cpu_adam_together": ("host", "measure_adam_together"),
}
"""The module and the function of every kind of task."""
_PERIOD = 0.02
"""[s] Time between two looks for the next task."""


def _carry_out(job: MeasurementJob) -> dict[str, Any]:
    module, function = FUNCTIONS[job.data["work"]]
    measure: Callable[[MeasurementJob], dict[str, Any]] = getattr(
        importlib.import_module(f"simoffload_calibrate.micro.{module}"), function
    )
    try:
        return {"found": measure(job)}
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


def _serve(folder: Path, job: MeasurementJob) -> int:
    """Carry out tasks until one fails; the parent then starts a new process for the remaining tasks."""
    number = 0
    while True:
        path = folder / f"{number:04d}.task"
        while not path.is_file():
            time.sleep(_PERIOD)
        task = json.loads(path.read_text(encoding="utf-8"))
        limited = job._replace(data={**job.data, **task}, until=time.monotonic() + task["seconds"])
        try:
            answer = _carry_out(limited)
        except Exception as error:
            sys.stderr.write(traceback.format_exc())
            answer = {"failed": f"{type(error).__name__}: {error}"[:1000]}
        if job.rank == 0 or "failed" in answer:
            write_json(folder / f"{number:04d}.answer-{job.rank}", answer)
        if "failed" in answer:
            return 3
        if task["work"] != "probe":
            gc.collect()
        if job.ranks > 1:
            dist.barrier()
        number += 1


def main(job_path: str) -> int:
    """Carry out the tasks of a job; the status is 3 if one failed."""
    data = json.loads(Path(job_path).read_text(encoding="utf-8"))
    storage = data.get("storage")
    _end_with_parent(data["parent"], storage["scratch"] if storage else None)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = select_device()
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if ranks > 1:
        dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=rank, world_size=ranks)
    if data["deepspeed"]:
        with contextlib.suppress(ImportError):
            importlib.import_module("deepspeed")
    folder = Path(data["folder"])
    if rank == 0:
        (folder / "ready").touch()
    status = _serve(folder, MeasurementJob(rank, ranks, device, data["quick"], data, {}))
    sys.stdout.flush()
    sys.stderr.flush()
    # Destructors are skipped, because communicators of a failed section would wait for one another.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
