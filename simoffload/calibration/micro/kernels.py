"""Launches: what small kernels cost on the GPU and on the host thread (child process only)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from simoffload.calibration.micro.timing import (
    MeasurementJob,
    SkippedError,
    busy_seconds,
    call_seconds,
    stream_seconds,
)

__all__ = ["host_calls", "measure", "spelled_rms_norm"]

_WIDTH = 64
_BATCH = 4
_LARGE = [64 << 20, 256 << 20, 1 << 30]


def spelled_rms_norm(x: Any, weight: Any) -> Any:
    """RMSNorm in single precision, as eager code of Llama spells it."""
    wide = x.to(torch.float32)
    mean = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(mean + 1e-6)).to(x.dtype)


def host_calls(device: str) -> dict[str, float]:
    """[s] of the host thread per call of small operations and modules."""
    kind = torch.bfloat16
    nn = torch.nn
    x = torch.ones(_BATCH, _WIDTH, device=device, dtype=kind)
    weight = torch.ones(_WIDTH, device=device, dtype=kind)
    token_ids = torch.zeros(_BATCH, 1, device=device, dtype=torch.long)
    made: dict[str, Any] = {
        "linear": nn.Linear(_WIDTH, _WIDTH, bias=False, device=device, dtype=kind),
        "linear+bias": nn.Linear(_WIDTH, _WIDTH, device=device, dtype=kind),
        "layer_norm": nn.LayerNorm(_WIDTH, device=device, dtype=kind),
        "gelu": nn.GELU(),
        "relu": nn.ReLU(),
        "identity": nn.Identity(),
    }
    embedding = nn.Embedding(_WIDTH, _WIDTH, device=device, dtype=kind)
    with torch.no_grad():
        found = {name: call_seconds(partial(module, x)) for name, module in made.items()}
        found["embedding"] = call_seconds(lambda: embedding(token_ids))
        found["rms_norm"] = call_seconds(lambda: spelled_rms_norm(x, weight), count=100)
        found["add"] = call_seconds(lambda: torch.add(x, 1))
        found["view"] = call_seconds(lambda: x.view(-1))
    return found


def _plus_one(source: Any, _: int) -> object:
    return torch.add(source, 1)


def measure(job: MeasurementJob) -> dict[str, Any]:
    """GPU time of the smallest kernels, host time of calls, rate of large elementwise work."""
    if job.device == "cpu":
        raise SkippedError("there is no GPU")
    small = torch.ones(256, device=job.device)
    large = []
    with torch.no_grad():
        graphed = busy_seconds(lambda _: small.add_(1), budget=0.05)
        queued = stream_seconds(lambda: small.add_(1), count=500)
        for size in _LARGE:
            source = torch.ones(size // 2, device=job.device, dtype=torch.bfloat16)
            large.append({"bytes": size, "seconds": busy_seconds(partial(_plus_one, source))})
    return {
        "kernel_seconds": graphed,
        "queued_kernel_seconds": queued,
        "host_seconds": host_calls(job.device),
        "elementwise": large,
    }
