"""What PyTorch sees, and how fast the host thread is at this moment (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

import torch

from simoffload.calibration.micro.timing import MeasurementJob, synchronize

__all__ = ["HostProbe", "facts", "measure"]

_CALLS = 20
"""Calls in a repetition: some tenths of a millisecond, so that one interrupt spoils one repetition."""
_WIDTH = 64
_DEPTH = 8


class HostProbe:
    """Four kinds of calls that offloading makes all the time, each in many short repetitions.

    "launch" is a small operation in place, "module" the call of a module that does nothing, "hooks" the
    same with a hook before and after it, "autograd" one operation of a small graph, forward and backward.
    """

    def __init__(self, device: str) -> None:
        self._x = torch.ones(_WIDTH, device=device)
        self._weight = torch.ones(_WIDTH, device=device, requires_grad=True)
        self._plain, self._hooked = torch.nn.Identity(), torch.nn.Identity()
        self._hooked.register_forward_pre_hook(lambda _module, _inputs: None)
        self._hooked.register_forward_hook(lambda _module, _inputs, _output: None)
        self._kinds: dict[str, tuple[Callable[[], object], int]] = {
            "launch": (lambda: self._x.mul_(1.0), 1),
            "module": (lambda: self._plain(self._x), 1),
            "hooks": (lambda: self._hooked(self._x), 1),
            "autograd": (self._graph, 2 * _DEPTH),
        }
        self.measure(0.2)  # the first calls load kernels

    def _graph(self) -> None:
        y = self._weight
        for _ in range(_DEPTH):
            y = y * self._weight
        y.sum().backward()
        self._weight.grad = None

    def measure(self, seconds: float) -> dict[str, Any]:
        """Seconds per call of each kind, as quantiles over the repetitions; all kinds take turns."""
        times: dict[str, list[float]] = {kind: [] for kind in self._kinds}
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds or len(times["launch"]) < 2:
            for kind, (call, count) in self._kinds.items():
                calls = max(1, _CALLS // count)
                synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                times[kind].append((time.perf_counter() - start) / (calls * count))
        synchronize()
        taken = time.perf_counter() - begin
        return {"seconds": round(taken, 3), "calls": {kind: _summary(found) for kind, found in times.items()}}


def _summary(found: list[float]) -> dict[str, float]:
    cuts = quantiles(found, n=20, method="inclusive")
    shown = {"p10": cuts[1], "p25": cuts[4], "p50": cuts[9], "p75": cuts[14], "p90": cuts[17]}
    return {"repetitions": len(found), **{name: float(f"{value:.4g}") for name, value in shown.items()}}


def measure(job: MeasurementJob) -> dict[str, Any]:
    """A probe of about two seconds."""
    probe = job.kept.get("probe")
    if probe is None:
        probe = job.kept["probe"] = HostProbe(job.device)
    found: dict[str, Any] = probe.measure(job.data["duration"])
    return found


def facts(_job: MeasurementJob) -> dict[str, Any]:
    """Versions, and the GPUs or None."""
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda, "nccl": _nccl(), "gpu": _gpu()}


def _nccl() -> str | None:
    if not torch.cuda.is_available():
        return None
    version: Any = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _gpu() -> dict[str, Any] | None:
    if not torch.cuda.is_available():
        return None
    properties: Any = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory": properties.total_memory,
        "l2": getattr(properties, "L2_cache_size", None),
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
    }
