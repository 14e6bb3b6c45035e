"""Matrix multiplications of the shapes of known models' linear layers (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear

from simoffload.calibration.micro.timing import MeasurementJob, SkippedError, busy_seconds

__all__ = ["measure"]

_TOKENS = [1, 8, 64, 512, 4096, 16384]
_QUICK_TOKENS = [1, 512, 4096]
_CACHED = 256 << 20
"""[B] of weights that are cycled through, so that none is found in the L2 cache."""
_MOST_FLOPS = 1.5e13
_MOST_BYTES = 12 << 30
_REST = 0.02
"""[s] before each measurement: back to back, power lowers the GPU's clock as it is not when layers wait."""
_DURATION = 45.0
"""[s] for the whole section; shapes that come after it are left out."""


def measure(job: MeasurementJob) -> dict[str, Any]:
    """Seconds of y = x·Wᵀ by data type, form, shape and tokens.

    All shapes in bfloat16 without bias; the first few (``job.data["matmul_variants"]``) also in float16,
    with bias, and spelled with ``@``.
    """
    if job.device == "cpu":
        raise SkippedError("there is no GPU")
    begin = time.perf_counter()
    points: list[dict[str, Any]] = []
    left_out: list[list[int]] = []
    variants = {tuple(shape) for shape in job.data["matmul_variants"]}
    for shape in job.data["matmul_shapes"]:
        if time.perf_counter() - begin > _DURATION * (0.3 if job.quick else 1.0):
            left_out.append(shape)
            continue
        forms = [("bfloat16", "linear")]
        if tuple(shape) in variants and not job.quick:
            forms += [("float16", "linear"), ("bfloat16", "linear+bias"), ("bfloat16", "matmul")]
        for dtype, form in forms:
            points += _shape(job, shape[0], shape[1], dtype=dtype, form=form)
        torch.cuda.empty_cache()
    return {"points": points, "left_out": left_out}


def _shape(job: MeasurementJob, inner: int, outer: int, *, dtype: str, form: str) -> list[dict[str, Any]]:
    kind = getattr(torch, dtype)
    size = 2 * inner * outer
    copies = max(1, min(16, -(-_CACHED // size)))
    weights = [
        torch.randn(outer, inner, device=job.device, dtype=kind).mul_(inner**-0.5) for _ in range(copies)
    ]
    bias = torch.randn(outer, device=job.device, dtype=kind)
    points = []
    for tokens in _QUICK_TOKENS if job.quick else _TOKENS:
        flops = 2 * tokens * inner * outer
        traffic = size + 2 * tokens * (inner + outer)
        if flops > _MOST_FLOPS or traffic > _MOST_BYTES:
            continue
        x = torch.randn(tokens, inner, device=job.device, dtype=kind)
        call = _form(form, x, weights, bias)
        torch.cuda.synchronize()
        time.sleep(_REST)
        points.append(
            {
                "dtype": dtype,
                "form": form,
                "in": inner,
                "out": outer,
                "tokens": tokens,
                "flops": flops,
                "bytes": traffic,
                "seconds": busy_seconds(call, budget=0.01),
            }
        )
    return points


def _form(form: str, x: Any, weights: list[Any], bias: Any) -> Callable[[int], object]:
    if form == "matmul":
        return lambda index: x @ weights[index % len(weights)].T
    added = bias if form == "linear+bias" else None
    return lambda index: linear(x, weights[index % len(weights)], added)
