"""The process that measures: ``python -m simoffload.calibration.micro.worker JOB``.

One process per rank carries out what it is told to in files ``0000.ask``, ``0001.ask``, … of a folder, and
keeps what it has built for the next round. Rank 0 writes what each found. When the process that wrote the
job is gone, this one removes its storage files and ends too.
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

import torch
import torch.distributed as dist

from simoffload.calibration.micro.plan import SkippedError
from simoffload.calibration.micro.timing import MeasurementJob, synchronize

__all__ = ["WORK", "main"]

WORK = {
    "facts": ("probe", "facts"),
    "probe": ("probe", "measure"),
    "compile": ("host", "compile_operations"),
    "copies": ("links", "measure_copies"),
    "copies_together": ("links", "measure_copies_together"),
    "collectives": ("links", "measure_collectives"),
    "hbm": ("gpu", "measure_memory"),
    "matmul": ("gpu", "measure_matmul"),
    "attention": ("gpu", "measure_attention"),
    "kernels": ("gpu", "measure_kernels"),
    "dram": ("host", "measure_memory"),
    "hooks_decode": ("hooks", "measure_decode"),
    "hooks_training": ("hooks", "measure_training"),
    "storage": ("storage", "measure"),
    "storage_gds": ("storage", "measure_gds"),
    "cpu_adam": ("host", "measure_adam"),
    "cpu_adam_together": ("host", "measure_adam_together"),
}
"""Module and function of everything that can be asked for."""
_PERIOD = 0.02
"""[s] between two looks for what is asked next."""


def _write(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(f"{path.suffix}.partial")
    partial.write_text(json.dumps(data, allow_nan=False, separators=(",", ":")), encoding="utf-8")
    partial.replace(path)


def _carry_out(job: MeasurementJob) -> dict[str, Any]:
    module, function = WORK[job.data["work"]]
    measure: Callable[[MeasurementJob], dict[str, Any]] = getattr(
        importlib.import_module(f"simoffload.calibration.micro.{module}"), function
    )
    try:
        return {"found": measure(job)}
    except SkippedError as reason:
        return {"skipped": str(reason)}
    finally:
        synchronize()


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


def _serve(folder: Path, job: MeasurementJob) -> int:
    """Do what is asked for until something fails: the parent then begins anew with what is left."""
    number = 0
    while True:
        ask = folder / f"{number:04d}.ask"
        while not ask.is_file():
            time.sleep(_PERIOD)
        asked = json.loads(ask.read_text(encoding="utf-8"))
        one = job._replace(data={**job.data, **asked}, until=time.monotonic() + asked["seconds"])
        try:
            answer = _carry_out(one)
        except Exception as error:
            sys.stderr.write(traceback.format_exc())
            answer = {"failed": f"{type(error).__name__}: {error}"[:1000]}
        if job.rank == 0 or "failed" in answer:
            _write(folder / f"{number:04d}.answer-{job.rank}", answer)
        if "failed" in answer:
            return 3
        if asked["work"] != "probe":
            gc.collect()
        if job.ranks > 1:
            dist.barrier()
        number += 1


def main(job_path: str) -> int:
    """Carry out a job; status 3 when something failed."""
    data = json.loads(Path(job_path).read_text(encoding="utf-8"))
    storage = data.get("storage")
    _guard(data["parent"], storage["scratch"] if storage else None)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    else:
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
    # Leave without destructors: communicators of a failed section would wait for one another.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
