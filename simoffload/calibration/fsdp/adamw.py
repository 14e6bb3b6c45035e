"""PyTorch's AdamW by threads, size and type of numbers, on the CPU and on the GPU (child process only)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from simoffload.calibration.micro.host import thread_counts

__all__ = ["alone", "together"]

_LAYER = 50 << 20
"""Parameters of a layer of a model of some billion."""
_SIZES = ((4 << 20, 8), (16 << 20, 4), (_LAYER, 2), (200 << 20, 1), (500 << 20, 1))
"""Parameters of a tensor, and how many such tensors."""
_GPU_SIZES = ((1 << 10, 24), (_LAYER, 12), (200 << 20, 3))
_REPETITIONS = 3
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def alone(device: str, *, quick: bool) -> dict[str, Any]:
    """One process by itself: by threads, by size, in both types; each operation; and on the GPU."""
    before = torch.get_num_threads()
    most = max(count for count in thread_counts(1, 2, 4, 8, 16) if count <= 16)
    sizes = [(size // 64 if quick else size, count) for size, count in _SIZES]
    layer = sizes[2]
    found: dict[str, Any] = {"threads": [], "sizes": [], "operations": [], "gpu": []}
    try:
        for threads in thread_counts(1, 2, 4, 8, 16):
            torch.set_num_threads(threads)
            found["threads"].append(_stepped(*layer, "float32"))
            found["operations"].append({"threads": threads, **_operations(layer[0])})
        torch.set_num_threads(most)
        found["sizes"] = [_stepped(*size, kind) for kind in _TYPES for size in sizes]
        if device != "cpu":
            found["gpu"] = [_stepped(*size, kind, device=device) for kind in _TYPES for size in _GPU_SIZES]
    finally:
        torch.set_num_threads(before)
    return found


def together(threads: int, *, quick: bool) -> list[dict[str, Any]]:
    """All ranks at once, each on so many threads; seconds by rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    size = _LAYER // 64 if quick else _LAYER
    rows = []
    for kind in _TYPES:
        dist.barrier()
        mine = _stepped(size, 2, kind)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine["seconds"])
        rows.append({**mine, "processes": len(every), "seconds": every})
    torch.set_num_threads(before)
    return rows


def _stepped(size: int, count: int, kind: str, *, device: str = "cpu") -> dict[str, Any]:
    """Median seconds of a step with PyTorch's defaults, and of its call, over ``count`` tensors."""
    made = {"dtype": _TYPES[kind], "device": device}
    parameters = [torch.nn.Parameter(torch.ones(size, **made)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    row = {"parameters": size, "tensors": count, "type": kind, "device": device.partition(":")[0]}
    return {**row, "threads": torch.get_num_threads(), **_timed(optimizer.step)}


def _operations(size: int) -> dict[str, Any]:
    """Each operation of ``_single_tensor_adam`` by itself [s]; two of them make new tensors."""
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
        _synchronize()
        begin, used = time.perf_counter(), sum(os.times()[:2])
        work()
        calls.append(time.perf_counter() - begin)
        _synchronize()
        times.append(time.perf_counter() - begin)
        busy.append(sum(os.times()[:2]) - used)
    return {
        "seconds": median(times),
        "call_seconds": median(calls),
        "busy_threads": round(median(busy) / max(median(times), 1e-9), 2),
    }


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
