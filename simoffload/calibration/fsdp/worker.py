"""The process that measures: ``python -m simoffload.calibration.fsdp.worker JOB``, one for each rank.

Rank 0 writes a file for each thing that was measured as soon as it is. The first failure ends the process;
the one that started it goes on with what is left, in new ones.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from simoffload.calibration.fsdp import adamw
from simoffload.calibration.fsdp.hook_times import HookTimes
from simoffload.calibration.fsdp.steps import cores_each, measured

__all__ = ["main"]

_MOST_THREADS = 16
"""Of each rank's optimizer, so that machines with more cores compare with those with as many."""


def _write(path: Path, data: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data, separators=(",", ":"), allow_nan=False), encoding="utf-8")
    partial.replace(path)


def _left(deadline: float, device: str) -> float:
    """[s] until the deadline, as rank 0 sees it: all ranks must decide alike."""
    value = torch.tensor([deadline - time.time()], dtype=torch.float64, device=device)
    dist.broadcast(value, 0)
    return float(value.item())


def _items(job: dict[str, Any], device: str) -> dict[str, tuple[float, Callable[[], Any]]]:
    """What is to be done by the name of its file, and the seconds that it takes about."""
    ranks, quick = dist.get_world_size(), job["quick"]
    threads = min(_MOST_THREADS, cores_each())
    hooks = HookTimes()
    items: dict[str, tuple[float, Callable[[], Any]]] = {}
    if job["adamw"]:
        rank = dist.get_rank()
        items["adamw"] = 45.0, lambda: adamw.alone(device, quick=quick) if rank == 0 else None
        if ranks > 1:
            items["adamw_together"] = 10.0, lambda: adamw.together(threads, quick=quick)
    for index, case in enumerate(job["cases"]):
        work = partial(measured, case, hooks, device, threads=threads)
        items[f"case-{index:03d}"] = case["seconds"], work
    return items


def main(job_path: str) -> int:
    """Carry out a job; status 1 when something failed."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=torch.device(device))
    else:
        dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(job["folder"])
    for name, (seconds, work) in _items(job, device).items():
        if (folder / f"{name}.begun").is_file() or (folder / f"{name}.left-out").is_file():
            continue
        if _left(job["deadline"], device) < seconds:
            if rank == 0:
                (folder / f"{name}.left-out").touch()
            continue
        dist.barrier()  # every rank has looked for the file before it is made
        if rank == 0:
            (folder / f"{name}.begun").touch()
        try:
            found = work()
        except Exception as error:
            text = traceback.format_exc()
            sys.stderr.write(text)
            _write(folder / f"{name}.failed-{rank}", {"error": f"{type(error).__name__}: {error}"[:2000]})
            sys.stderr.flush()
            os._exit(1)  # communicators would wait for one another
        if rank == 0:
            _write(folder / f"{name}.json", found)
        del found
        gc.collect()
        if device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            with contextlib.suppress(AttributeError):
                torch._C._host_emptyCache()  # noqa: SLF001
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
