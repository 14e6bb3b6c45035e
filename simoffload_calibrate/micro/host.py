"""The host's thread, memory and cores: probes, copies, and DeepSpeed's optimizer (child process only)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import quantiles
from typing import Any

import torch

from simoffload_calibrate.child import Job, synchronize
from simoffload_calibrate.micro.benchmarks import SkippedError
from simoffload_calibrate.micro.timing import seconds_by_rank

_GIB = 1 << 30
_PARAMETERS = 256 << 20
"""The number of parameters of a step: four tensors of 1 GiB, far more than caches hold (320 MB on an Emerald
Rapids)."""
_TOGETHER_S = 0.3
"""[s] Approximate time of a repetition with several processes."""
_REPETITIONS = 2
_THREADS = (1, 2, 4, 8, 16)
_CHECKING_THREADS = (1, 4)
"""The numbers of threads that check an eighth of the gradients for overflow, because one thread needs seconds
for all of them; all threads check all of them."""
_CROWDED = ("scale", "round")
"""Work around Adam, each a parallel region, that is also timed with more threads than cores."""
_ADAM, _PINNED = "adam", "pinned"
"""The keys under which parameters and their optimizer are kept between rounds, and that memory was pinned."""


# -- the thread -----------------------------------------------------------------------------------

_PROBE_CALLS = 20
"""The number of calls in a repetition, which takes a few tenths of a millisecond.

An interrupt then affects one short repetition only."""
_PROBE_WIDTH = 64
_PROBE_DEPTH = 8


class HostProbe:
    """A timer of four kinds of calls that offloading makes all the time, in many short repetitions.

    "launch" is a small operation in place, "module" the call of a module that does nothing, "hooks" the
    same with a hook before and after it, "autograd" one operation of a small graph, forward and backward.
    """

    def __init__(self, device: str) -> None:
        self._x = torch.ones(_PROBE_WIDTH, device=device)
        self._weight = torch.ones(_PROBE_WIDTH, device=device, requires_grad=True)
        self._plain, self._hooked = torch.nn.Identity(), torch.nn.Identity()
        self._hooked.register_forward_pre_hook(lambda _module, _inputs: None)
        self._hooked.register_forward_hook(lambda _module, _inputs, _output: None)
        self._kinds: dict[str, tuple[Callable[[], object], int]] = {
            "launch": (lambda: self._x.mul_(1.0), 1),
            "module": (lambda: self._plain(self._x), 1),
            "hooks": (lambda: self._hooked(self._x), 1),
            "autograd": (self._graph, 2 * _PROBE_DEPTH),
        }
        self.measure(0.2)  # the first calls load kernels

    def _graph(self) -> None:
        y = self._weight
        for _ in range(_PROBE_DEPTH):
            y = y * self._weight
        y.sum().backward()
        self._weight.grad = None

    def measure(self, seconds: float) -> dict[str, Any]:
        """Return quantiles of the time per call of each kind [s]; the kinds alternate for ``seconds`` [s]."""
        times: dict[str, list[float]] = {kind: [] for kind in self._kinds}
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds or len(times["launch"]) < 2:
            for kind, (call, count) in self._kinds.items():
                calls = max(1, _PROBE_CALLS // count)
                synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                times[kind].append((time.perf_counter() - start) / (calls * count))
        synchronize()
        taken = time.perf_counter() - begin
        return {
            "seconds": round(taken, 3),
            "calls": {kind: _quantiles(samples) for kind, samples in times.items()},
        }


def _quantiles(samples: list[float]) -> dict[str, float]:
    cuts = quantiles(samples, n=20, method="inclusive")
    shown = {"p10": cuts[1], "p25": cuts[4], "p50": cuts[9], "p75": cuts[14], "p90": cuts[17]}
    return {"repetitions": len(samples), **{name: float(f"{value:.4g}") for name, value in shown.items()}}


def probe_host(job: Job) -> dict[str, Any]:
    """Probe the host for the time that the job states."""
    probe = job.kept.get("probe")
    if probe is None:
        probe = job.kept["probe"] = HostProbe(job.device)
    result: dict[str, Any] = probe.measure(job.data["duration"])
    return result


# -- memory ---------------------------------------------------------------------------------------


def thread_counts(*counts: int) -> list[int]:
    """Return the counts up to the number of cores of the machine, and that number."""
    cores = len(os.sched_getaffinity(0))
    return sorted({count for count in counts if count <= cores} | {cores})


def _repeated(work: Callable[[], object], repetitions: int = _REPETITIONS) -> list[float]:
    """Return the time of each repetition [s]."""
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return times


def measure_memory(job: Job) -> dict[str, Any]:
    """Measure copies between two buffers by threads, and in the first round allocations of pinned memory:
    once in a process, as PyTorch then has blocks of these sizes."""
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
    results: dict[str, Any] = {"copies": copies}
    if job.device != "cpu" and job.data["round"] == 1 and _PINNED not in job.kept:
        job.kept[_PINNED] = True
        results["pinning"] = [_pinned(part) for part in (64 << 20, size)]
    return results


def _pinned(size: int) -> dict[str, Any]:
    """Time the first allocation of a size; PyTorch keeps released blocks for later ones."""

    def allocate() -> object:
        return torch.empty(size + 4096, dtype=torch.uint8, pin_memory=True)

    return {"bytes": size, "seconds": _repeated(allocate, 1)}


# -- the optimizer ------------------------------------------------------------------------------


def compile_operations(job: Job) -> dict[str, Any]:
    """Compile or load the operations that DeepSpeed compiles at their first use, and ignore failures."""
    from deepspeed.ops import op_builder

    begin = time.perf_counter()
    wanted = ["CPUAdamBuilder"]
    wanted += ["FusedAdamBuilder"] if job.device != "cpu" else []
    wanted += ["AsyncIOBuilder"] if job.data.get("storage") else []
    for name in wanted:
        with contextlib.suppress(Exception):
            builder = getattr(op_builder, name)()
            if builder.is_compatible(verbose=False):
                builder.load(verbose=False)
    return {"compile_seconds": time.perf_counter() - begin}


def measure_adam(job: Job) -> dict[str, Any]:
    """Measure a step of Adam and the overflow check by threads, and with all threads the work around Adam.

    Around Adam, DeepSpeed scales the gradients in place and rounds the parameters to 16 bits, into ordinary
    memory or into pinned memory (deepspeed/runtime/zero/stage3.py, ``unscale_and_clip_grads`` and
    ``_reassign_or_swap_out_partitioned_parameters``). Before a copy to the GPU they are rounded into newly
    allocated memory. Before all of this it checks float16 gradients for overflow (``has_overflow``).
    """
    parameter, optimizer, around = _prepared(job)
    before = torch.get_num_threads()
    steps: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    gradients = torch.full((parameter.numel() // 8,), 0.1, dtype=torch.float16)
    try:
        for threads in thread_counts(*(_THREADS[:1] if job.quick else _THREADS)):
            _use(threads)
            row = {"threads": threads, "parameters": parameter.numel()}
            steps.append({**row, "seconds": _repeated(optimizer.step)})
            if threads in _CHECKING_THREADS:
                row = {"threads": threads, "parameters": gradients.numel()}
                checks.append({**row, "seconds": _repeated(partial(_overflow_check, gradients), 1)})
        for name, work in around.items():
            steps[-1][f"{name}_seconds"] = _repeated(work)
    finally:
        _use(before)
    return {"steps": steps, "overflow_checks": checks}


def measure_adam_together(job: Job) -> dict[str, Any]:
    """Measure a step of Adam and the work around it on all ranks at once, which share the cores equally, and
    some of that work with as many threads on each rank as there are cores, as ``deepspeed`` starts them."""
    parameter, optimizer, around = _prepared(job)
    cores = thread_counts()[-1]
    threads = max(1, cores // job.ranks)
    before = torch.get_num_threads()
    row: dict[str, Any] = {"threads": threads, "processes": job.ranks, "parameters": parameter.numel()}
    try:
        _use(threads)
        for name, work in {"": optimizer.step, **around}.items():
            key = f"{name}_seconds" if name else "seconds"
            row[key] = seconds_by_rank(job, work, duration=_TOGETHER_S, least=1)
        if not job.quick:
            _use(cores)
            row["crowded_threads"] = cores
        for name in () if job.quick else _CROWDED:
            row[f"{name}_crowded_seconds"] = seconds_by_rank(job, around[name], duration=_TOGETHER_S, least=1)
    finally:
        _use(before)
    return {"together": [row]}


def _prepared(job: Job) -> tuple[torch.nn.Parameter, Any, dict[str, Callable[[], object]]]:
    """Return parameters with a gradient, DeepSpeed's optimizer and the work around it.

    They are kept for later rounds. The first step allocates the states.
    """
    if _ADAM in job.kept:
        kept: tuple[torch.nn.Parameter, Any, dict[str, Callable[[], object]]] = job.kept[_ADAM]
        return kept
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameter = torch.nn.Parameter(torch.ones(_PARAMETERS))
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
    """Set the threads of PyTorch's OpenMP library, and of the system's, which compiled steps use."""
    torch.set_num_threads(threads)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)


def _around(parameter: torch.nn.Parameter, job: Job) -> dict[str, Callable[[], object]]:
    """Return the work of a step around Adam, on as many elements."""
    source, gradient = parameter.data, parameter.grad
    assert gradient is not None
    rounded = torch.empty_like(source, dtype=torch.bfloat16)
    half = torch.full_like(source, 0.1, dtype=torch.float16)
    work: dict[str, Callable[[], object]] = {
        "scale": lambda: gradient.mul_(1.0),
        "round": lambda: rounded.copy_(source),
        "round_fresh": lambda: source.to(torch.bfloat16),
        "overflow_check": lambda: _overflow_check(half),
    }
    if job.device != "cpu":
        page_locked = torch.empty(source.shape, dtype=torch.bfloat16, pin_memory=True)
        on_gpu = torch.empty(source.shape, dtype=torch.bfloat16, device=job.device)
        work["round_pinned"] = lambda: page_locked.copy_(source)
        work["to_gpu"] = lambda: on_gpu.copy_(source)
    return work


def _overflow_check(gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Search float16 gradients for infinite values and for those that are not numbers, as ZeRO-3 does."""
    return torch.isinf(gradients).any(), torch.isnan(gradients).any()
