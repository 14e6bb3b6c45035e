"""Steps of DeepSpeed's Adam on the CPU by number of threads (child process only)."""

from __future__ import annotations

import contextlib
import ctypes
import time
from statistics import median
from typing import Any

import torch

from simoffload.calibration.micro.host_memory import thread_counts
from simoffload.calibration.micro.timing import Job, SkippedError

__all__ = ["measure"]

_PARAMETERS = 64 << 20


def measure(job: Job) -> dict[str, Any]:
    """Seconds of one step, and threads that were really busy, by the threads that were asked for."""
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        raise SkippedError("deepspeed is not installed") from None
    number = _PARAMETERS // 8 if job.quick else _PARAMETERS
    parameter = torch.nn.Parameter(torch.ones(number))
    begin = time.perf_counter()
    try:
        optimizer = DeepSpeedCPUAdam([parameter])
    except Exception as error:
        raise SkippedError(f"DeepSpeed's cpu_adam cannot be loaded: {error.__cause__ or error}") from None
    compile_seconds = time.perf_counter() - begin
    parameter.grad = torch.full_like(parameter, 0.1)
    before = torch.get_num_threads()
    steps = []
    try:
        for threads in thread_counts(1, 4, 8, 16):
            _use(threads)
            steps.append({"threads": threads, "parameters": number, **_step(optimizer)})
    finally:
        _use(before)
    return {"steps": steps, "compile_seconds": compile_seconds}


def _use(threads: int) -> None:
    """PyTorch may bring an OpenMP library of its own, while the compiled step uses the system's."""
    torch.set_num_threads(threads)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)


def _step(optimizer: Any) -> dict[str, float]:
    optimizer.step()
    times, busy = [], []
    for _ in range(3):
        begin, used = time.perf_counter(), time.process_time()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        busy.append(time.process_time() - used)
    return {"seconds": median(times), "busy_threads": round(median(busy) / median(times), 2)}
