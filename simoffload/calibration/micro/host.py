"""The host's memory and cores: copies, pinning, and DeepSpeed's optimizer step (child process only)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from simoffload.calibration.micro.plan import SkippedError
from simoffload.calibration.micro.timing import MeasurementJob, seconds_by_rank

__all__ = ["compile_operations", "measure_adam", "measure_adam_together", "measure_memory", "thread_counts"]

_GIB = 1 << 30
_PARAMETERS = 256 << 20
"""Four tensors of 1 GiB, far more than caches hold (320 MB on an Emerald Rapids)."""
_TOGETHER_S = 0.3
"""[s] that each repetition takes about where there are several processes."""
_REPETITIONS = 2
_THREADS = (1, 2, 4, 8, 16)
_ADAM = "adam"
"""What is kept between rounds: parameters with a gradient and states, and their optimizer."""


def thread_counts(*counts: int) -> list[int]:
    """Those counts that the machine has cores for, and all its cores."""
    cores = len(os.sched_getaffinity(0))
    return sorted({count for count in counts if count <= cores} | {cores})


def _repeated(work: Callable[[], object], repetitions: int = _REPETITIONS) -> list[float]:
    """[s] of each repetition."""
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return times


def measure_memory(job: MeasurementJob) -> dict[str, Any]:
    """Seconds of a copy of one buffer to another, by threads; of allocating pinned memory, by size."""
    size = _GIB // 4 if job.quick else _GIB
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros(size, dtype=torch.uint8)
    before = torch.get_num_threads()
    copies = []
    for threads in thread_counts(*_THREADS):
        torch.set_num_threads(threads)
        target.copy_(source)
        copies.append({"threads": threads, "bytes": size, "seconds": _repeated(lambda: target.copy_(source))})
    torch.set_num_threads(before)
    found: dict[str, Any] = {"copies": copies}
    if job.device != "cpu" and job.data["round"] == 1:
        found["pinning"] = [_pinned(part) for part in (64 << 20, size)]
    return found


def _pinned(size: int) -> dict[str, Any]:
    """The first allocation of this size; PyTorch keeps freed blocks for later ones."""

    def allocate() -> object:
        return torch.empty(size + 4096, dtype=torch.uint8, pin_memory=True)

    return {"bytes": size, "seconds": _repeated(allocate, 1)}


# -- the optimizer ------------------------------------------------------------------------------


def compile_operations(job: MeasurementJob) -> dict[str, Any]:
    """Compile what DeepSpeed compiles at its first use, or load it; what cannot be is skipped later on."""
    begin = time.perf_counter()
    try:
        from deepspeed.ops import op_builder
    except ImportError:
        raise SkippedError("deepspeed is not installed") from None
    wanted = ["CPUAdamBuilder"]
    wanted += ["FusedAdamBuilder"] if job.device != "cpu" else []
    wanted += ["AsyncIOBuilder"] if job.data.get("storage") else []
    for name in wanted:
        with contextlib.suppress(Exception):
            builder = getattr(op_builder, name)()
            if builder.is_compatible(verbose=False):
                builder.load(verbose=False)
    return {"compile_seconds": time.perf_counter() - begin}


def measure_adam(job: MeasurementJob) -> dict[str, Any]:
    """Seconds of one step by threads, and with all of them of the work around it.

    Around Adam, DeepSpeed scales the gradients in place and rounds the parameters to 16 bits, into ordinary
    memory or into pinned memory (deepspeed/runtime/zero/stage3.py, ``unscale_and_clip_grads`` and
    ``_reassign_or_swap_out_partitioned_parameters``). On their way to the GPU they are rounded into memory
    that is new each time.
    """
    parameter, optimizer, around = _prepared(job)
    before = torch.get_num_threads()
    steps: list[dict[str, Any]] = []
    try:
        for threads in thread_counts(*_THREADS):
            _use(threads)
            row = {"threads": threads, "parameters": parameter.numel()}
            steps.append({**row, "seconds": _repeated(optimizer.step)})
        for name, work in around.items():
            steps[-1][f"{name}_seconds"] = _repeated(work)
    finally:
        _use(before)
    return {"steps": steps}


def measure_adam_together(job: MeasurementJob) -> dict[str, Any]:
    """The same while all ranks do it at once, each with its share of the cores; one value per rank."""
    parameter, optimizer, around = _prepared(job)
    threads = max(1, thread_counts()[-1] // job.ranks)
    before = torch.get_num_threads()
    row: dict[str, Any] = {"threads": threads, "processes": job.ranks, "parameters": parameter.numel()}
    try:
        _use(threads)
        for name, work in {"": optimizer.step, **around}.items():
            key = f"{name}_seconds" if name else "seconds"
            row[key] = seconds_by_rank(job, work, duration=_TOGETHER_S, least=1)
    finally:
        _use(before)
    return {"together": [row]}


def _prepared(job: MeasurementJob) -> tuple[torch.nn.Parameter, Any, dict[str, Callable[[], object]]]:
    """Parameters with a gradient, DeepSpeed's optimizer, and the work around it, as an earlier round left
    them or new; a first step makes the states."""
    if _ADAM in job.kept:
        kept: tuple[torch.nn.Parameter, Any, dict[str, Callable[[], object]]] = job.kept[_ADAM]
        return kept
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        raise SkippedError("deepspeed is not installed") from None
    parameter = torch.nn.Parameter(torch.ones(_PARAMETERS // 8 if job.quick else _PARAMETERS))
    try:
        optimizer = DeepSpeedCPUAdam([parameter])
    except Exception as error:
        raise SkippedError(f"DeepSpeed's cpu_adam cannot be loaded: {error.__cause__ or error}") from None
    parameter.grad = torch.full_like(parameter, 0.1)
    around = _around(parameter, job)
    for work in (optimizer.step, *around.values()):
        work()
    job.kept[_ADAM] = parameter, optimizer, around
    return parameter, optimizer, around


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
