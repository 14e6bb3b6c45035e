"""The process that measures: ``python -m simoffload.calibration.fsdp.worker JOB``, one per rank.

The first failure ends the process; the parent then starts new ones for the remaining measurements.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from simoffload.calibration.child import (
    release_memory,
    run_in_turn,
    select_device,
    synchronize,
    value_of_rank_0,
)
from simoffload.calibration.fsdp.steps import HookTimes, measured
from simoffload.calibration.micro.host import thread_counts

__all__ = ["main"]

_MOST_THREADS = 16
"""The most threads of each rank's optimizer, so that machines with more cores stay comparable."""
_LAYER = 50 << 20
"""The number of parameters of a layer in a model with a few billion."""
_SIZES = ((4 << 20, 8), (16 << 20, 4), (_LAYER, 2), (200 << 20, 1), (500 << 20, 1))
"""Pairs of the parameters of a tensor and the number of such tensors."""
_GPU_SIZES = ((1 << 10, 24), (_LAYER, 12), (200 << 20, 3))
_REPETITIONS = 3
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def adamw_alone(device: str, *, quick: bool) -> dict[str, Any]:
    """Time AdamW in a single process: by threads and size, in both dtypes, per operation, and on the GPU."""
    before = torch.get_num_threads()
    most = max(count for count in thread_counts(1, 2, 4, 8, 16) if count <= 16)
    sizes = [(size // 64 if quick else size, count) for size, count in _SIZES]
    layer = sizes[2]
    results: dict[str, Any] = {"threads": [], "sizes": [], "operations": [], "gpu": []}
    try:
        for threads in thread_counts(1, 2, 4, 8, 16):
            torch.set_num_threads(threads)
            results["threads"].append(_stepped(*layer, "float32"))
            results["operations"].append({"threads": threads, **_operations(layer[0])})
        torch.set_num_threads(most)
        results["sizes"] = [_stepped(*size, kind) for kind in _TYPES for size in sizes]
        if device != "cpu":
            results["gpu"] = [_stepped(*size, kind, device=device) for kind in _TYPES for size in _GPU_SIZES]
    finally:
        torch.set_num_threads(before)
    return results


def adamw_together(threads: int, *, quick: bool) -> list[dict[str, Any]]:
    """Time AdamW on all ranks at once with ``threads`` threads each; seconds are given by rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    size = _LAYER // 64 if quick else _LAYER
    rows = []
    for kind in _TYPES:
        dist.barrier()
        row = _stepped(size, 2, kind)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, row["seconds"])
        rows.append({**row, "processes": len(every), "seconds": every})
    torch.set_num_threads(before)
    return rows


def _stepped(size: int, count: int, kind: str, *, device: str = "cpu") -> dict[str, Any]:
    """Return the median time [s] of a step over ``count`` tensors, and of its call."""
    made = {"dtype": _TYPES[kind], "device": device}
    parameters = [torch.nn.Parameter(torch.ones(size, **made)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    row = {"parameters": size, "tensors": count, "type": kind, "device": device.partition(":")[0]}
    return {**row, "threads": torch.get_num_threads(), **_timed(optimizer.step)}


def _operations(size: int) -> dict[str, Any]:
    """Return the time [s] of each operation of ``_single_tensor_adam``; two of them create tensors."""
    parameter, gradient, first, second = (torch.full((size,), 0.1) for _ in range(4))
    fresh = second.sqrt()
    work: dict[str, Callable[[], object]] = {
        "mul": lambda: parameter.mul_(0.999),
        "lerp": lambda: first.lerp_(gradient, 0.1),
        "addcmul": lambda: second.mul_(0.999).addcmul_(gradient, gradient, value=0.001),
        "sqrt": second.sqrt,
        "div": lambda: fresh / 0.9,
        "add": lambda: fresh.add_(1e-8),
        "addcdiv": lambda: parameter.addcdiv_(first, fresh, value=-1e-5),
    }
    return {"parameters": size, "seconds": {name: _timed(call)["seconds"] for name, call in work.items()}}


def _timed(work: Callable[[], object]) -> dict[str, float]:
    work()
    times, calls, busy = [], [], []
    for _ in range(_REPETITIONS):
        synchronize()
        begin, used = time.perf_counter(), sum(os.times()[:2])
        work()
        calls.append(time.perf_counter() - begin)
        synchronize()
        times.append(time.perf_counter() - begin)
        busy.append(sum(os.times()[:2]) - used)
    return {
        "seconds": median(times),
        "call_seconds": median(calls),
        "busy_threads": round(median(busy) / max(median(times), 1e-9), 2),
    }


def _items(job: dict[str, Any], device: str) -> dict[str, tuple[float, Callable[[], Any]]]:
    """Return the measurements by the name of their file, each with its estimated time [s]."""
    ranks, quick = dist.get_world_size(), job["quick"]
    threads = min(_MOST_THREADS, max(1, len(os.sched_getaffinity(0)) // ranks))
    hooks = HookTimes()
    items: dict[str, tuple[float, Callable[[], Any]]] = {}
    if job["adamw"]:
        rank = dist.get_rank()
        items["adamw"] = 45.0, lambda: adamw_alone(device, quick=quick) if rank == 0 else None
        if ranks > 1:
            items["adamw_together"] = 10.0, lambda: adamw_together(threads, quick=quick)
    for index, case in enumerate(job["cases"]):
        work = partial(measured, case, hooks, device, threads=threads)
        items[f"case-{index:03d}"] = case["seconds"], work
    return items


def _cases(job: dict[str, Any], device: str, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the measurements that no earlier process started and that fit into the remaining time."""
    earlier = {path.stem for path in folder.iterdir() if path.suffix in (".begun", ".left-out")}
    dist.barrier()  # rank 0 creates such files from here on
    for name, (seconds, work) in _items(job, device).items():
        if name in earlier:
            continue
        if value_of_rank_0(job["deadline"] - time.time(), device) >= seconds:
            yield name, work
            release_memory()
        elif dist.get_rank() == 0:
            (folder / f"{name}.left-out").touch()


def main(job_path: str) -> int:
    """Run the measurements of a job; the status is 1 if one failed."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    device = select_device()
    if device == "cpu":
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("nccl", device_id=torch.device(device))
    folder = Path(job["folder"])
    status = run_in_turn(_cases(job, device, folder), folder)
    sys.stdout.flush()
    os._exit(status)  # communicators of a failed measurement would wait for one another


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
