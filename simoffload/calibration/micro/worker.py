"""The process that measures: ``python -m simoffload.calibration.micro.worker JOB``.

One process per rank carries out the sections of a job one after the other. Rank 0 writes what each found
as soon as it is done, so that nothing is lost when a later one fails. When the process that wrote the job
is gone, this one removes its storage files and ends too.
"""

from __future__ import annotations

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

import torch
import torch.distributed as dist

from simoffload.calibration.micro.timing import MeasurementJob, SkippedError, synchronize

__all__ = ["SECTIONS", "main"]

SECTIONS = {
    "copies": ("copies", "measure"),
    "copies_together": ("copies", "measure_together"),
    "collectives": ("collectives", "measure"),
    "hbm": ("gpu_memory", "measure"),
    "matmul": ("matmul", "measure"),
    "attention": ("attention", "measure"),
    "kernels": ("kernels", "measure"),
    "dram": ("host_memory", "measure"),
    "storage": ("storage", "measure"),
    "storage_gds": ("storage", "measure_gds"),
    "cpu_adam": ("cpu_adam", "measure"),
    "cpu_adam_together": ("cpu_adam", "measure_together"),
}
"""Module and function of each section."""


def _write(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data, allow_nan=False), encoding="utf-8")
    partial.replace(path)


def _carry_out(name: str, job: MeasurementJob) -> dict[str, Any]:
    module, function = SECTIONS[name]
    measure: Callable[[MeasurementJob], dict[str, Any]] = getattr(
        importlib.import_module(f"simoffload.calibration.micro.{module}"), function
    )
    begin = time.perf_counter()
    result: dict[str, Any]
    try:
        result = {"found": measure(job)}
    except SkippedError as reason:
        result = {"skipped": str(reason)}
    synchronize()
    return {**result, "seconds": round(time.perf_counter() - begin, 3)}


def _sections(job: MeasurementJob, names: list[str], folder: Path) -> int:
    """Status 0 when the parent need not begin again with the sections that are left."""
    for name in names:
        if job.rank == 0:
            (folder / f"{name}.begun").touch()
        try:
            result = _carry_out(name, job)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            sys.stderr.write(traceback.format_exc())
            _write(folder / f"{name}.failed-{job.rank}", {"skipped": text[:1000]})
            return 3
        if job.rank == 0:
            _write(folder / f"{name}.json", result)
        gc.collect()
        if job.device != "cpu":
            torch.cuda.empty_cache()
        if job.ranks > 1:
            dist.barrier()
    return 0


def _guard(parent: int, scratch: str | None) -> None:
    """End when the process that wrote the job is gone, however it went."""

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


def main(job_path: str) -> int:
    """Carry out a job; status 3 when a section failed, and then no later one is begun."""
    data = json.loads(Path(job_path).read_text(encoding="utf-8"))
    storage = data.get("storage")
    _guard(data["parent"], storage["scratch"] if storage else None)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = "cpu"
    if data["device"] == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    job = MeasurementJob(rank, ranks, device, data["quick"], data)
    if ranks > 1:
        dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=rank, world_size=ranks)
    status = _sections(job, data["sections"], Path(data["folder"]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Leave without destructors: communicators of a failed section would wait for one another.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
