"""DeepSpeed's optimizer step on the CPU, part by part and by number of threads (child process only)."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from simoffload.calibration.micro.host_memory import thread_counts
from simoffload.calibration.micro.timing import MeasurementJob, SkippedError, seconds_by_rank

__all__ = ["measure", "measure_together"]

_PARAMETERS = 512 << 20
"""Four tensors of 2 GiB, far more than caches hold."""
_PARAMETERS_EACH = 256 << 20
"""Of each process where there are several."""
_TOGETHER_S = 0.3
"""[s] that each repetition takes about where there are several."""
_PLAIN_PARAMETERS = 16 << 20
_REPETITIONS = 3


def measure(job: MeasurementJob) -> dict[str, Any]:
    """Seconds of one step and of the work around it, by the threads that were asked for.

    Around Adam, DeepSpeed scales the gradients in place and rounds the parameters to 16 bits, into ordinary
    memory or into pinned memory (deepspeed/runtime/zero/stage3.py, ``unscale_and_clip_grads`` and
    ``_reassign_or_swap_out_partitioned_parameters``). On their way to the GPU they are rounded into memory
    that is new each time.
    """
    begin = time.perf_counter()
    parameter, optimizer = _prepared(job, _PARAMETERS)
    compile_seconds = time.perf_counter() - begin
    around = _around(parameter, job)
    before = torch.get_num_threads()
    steps = []
    try:
        for threads in thread_counts(1, 2, 4, 8, 16):
            _use(threads)
            row = {"threads": threads, "parameters": parameter.numel(), **_timed(optimizer.step)}
            steps.append(row | {f"{name}_seconds": _timed(work)["seconds"] for name, work in around.items()})
        plain = {"threads": threads, **_plain(job.quick)}
    finally:
        _use(before)
    return {"steps": steps, "torch_adamw": plain, "compile_seconds": compile_seconds}


def measure_together(job: MeasurementJob) -> dict[str, Any]:
    """The same while all ranks do it at once, each with its share of the cores; one value per rank."""
    parameter, optimizer = _prepared(job, _PARAMETERS_EACH)
    threads = max(1, thread_counts()[-1] // job.ranks)
    _use(threads)
    work = {"seconds": optimizer.step} | {
        f"{name}_seconds": call for name, call in _around(parameter, job).items()
    }
    row: dict[str, Any] = {"threads": threads, "processes": job.ranks, "parameters": parameter.numel()}
    for name, call in work.items():
        row[name] = seconds_by_rank(job, call, duration=_TOGETHER_S, least=1)
    return {"together": [row]}


def _prepared(job: MeasurementJob, number: int) -> tuple[torch.nn.Parameter, Any]:
    """Parameters with a gradient and DeepSpeed's optimizer, which is compiled where it was not yet."""
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        raise SkippedError("deepspeed is not installed") from None
    parameter = torch.nn.Parameter(torch.ones(number // 8 if job.quick else number))
    try:
        optimizer = DeepSpeedCPUAdam([parameter])
    except Exception as error:
        raise SkippedError(f"DeepSpeed's cpu_adam cannot be loaded: {error.__cause__ or error}") from None
    parameter.grad = torch.full_like(parameter, 0.1)
    return parameter, optimizer


def _use(threads: int) -> None:
    """PyTorch may bring an OpenMP library of its own, while the compiled step uses the system's."""
    torch.set_num_threads(threads)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)


def _around(parameter: torch.nn.Parameter, job: MeasurementJob) -> dict[str, Callable[[], object]]:
    """What a step does besides Adam, over as many elements."""
    source, gradient = parameter.data, parameter.grad
    assert gradient is not None
    rounded = torch.empty_like(source, dtype=torch.bfloat16)
    work: dict[str, Callable[[], object]] = {
        "scale": lambda: gradient.mul_(1.0),
        "round": lambda: rounded.copy_(source),
        "round_fresh": lambda: source.to(torch.bfloat16),
    }
    if job.device != "cpu":
        page_locked = torch.empty(source.shape, dtype=torch.bfloat16, pin_memory=True)
        on_gpu = torch.empty(source.shape, dtype=torch.bfloat16, device=job.device)
        work["round_pinned"] = lambda: page_locked.copy_(source)
        work["to_gpu"] = lambda: on_gpu.copy_(source)
    return work


def _plain(quick: bool) -> dict[str, float]:
    """PyTorch's AdamW with its defaults."""
    number = _PLAIN_PARAMETERS // 8 if quick else _PLAIN_PARAMETERS
    parameter = torch.nn.Parameter(torch.ones(number))
    parameter.grad = torch.full_like(parameter, 0.1)
    return {"parameters": number, **_timed(torch.optim.AdamW([parameter]).step)}


def _timed(work: Callable[[], object]) -> dict[str, float]:
    """Median seconds after a first call, and threads that were really busy."""
    work()
    times, busy = [], []
    for _ in range(_REPETITIONS):
        begin, used = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - begin)
        busy.append(time.process_time() - used)
    return {"seconds": median(times), "busy_threads": round(median(busy) / median(times), 2)}
