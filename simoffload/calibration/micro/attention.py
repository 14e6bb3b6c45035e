"""Attention as eager code of transformers runs it, and the fused one of PyTorch (child process only)."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention, softmax

from simoffload.calibration.micro.timing import MeasurementJob, SkippedError, busy_seconds

__all__ = ["measure"]

_BATCHES = [1, 8, 32]
_CONTEXTS = [64, 256, 1024, 2048]
_MOST_BYTES = 20e9
_DURATION = 30.0
"""[s] for the whole section."""


def measure(job: MeasurementJob) -> dict[str, Any]:
    """Seconds of scores, softmax and values by family, heads, batch, new tokens and context."""
    if job.device == "cpu":
        raise SkippedError("there is no GPU")
    begin = time.perf_counter()
    points: list[dict[str, Any]] = []
    left_out = 0
    limit = _DURATION * (0.3 if job.quick else 1.0)
    for shape in job.data["attention_shapes"]:
        for batch in _BATCHES:
            for context in _CONTEXTS:
                for new in (1, context):
                    scores = batch * shape["heads"] * new * context
                    if scores * 16 > _MOST_BYTES:
                        continue
                    if time.perf_counter() - begin > limit:
                        left_out += 1
                        continue
                    points.append(_point(job, shape, batch=batch, new=new, context=context))
        torch.cuda.empty_cache()
    return {"points": points, "left_out": left_out}


def _point(
    job: MeasurementJob, shape: dict[str, Any], *, batch: int, new: int, context: int
) -> dict[str, Any]:
    heads, kv_heads, width = shape["heads"], shape["kv_heads"], shape["head_dim"]

    def random(*extents: int) -> Any:
        return torch.randn(*extents, device=job.device, dtype=torch.bfloat16)

    query, key = random(batch, heads, new, width), random(batch, kv_heads, context, width)
    value = random(batch, kv_heads, context, width)
    mask = torch.zeros(batch, 1, new, context, device=job.device, dtype=torch.bfloat16)
    slopes = random(batch * heads, 1, context)
    groups = heads // kv_heads

    def eager(_: int) -> object:
        keys, values = (_repeated(one, groups) for one in (key, value))
        if shape["family"] == "bloom":
            flat = (one.reshape(batch * heads, -1, width) for one in (query, keys, values))
            return _bloom(*flat, slopes=slopes, mask=mask)
        return _eager(query, keys, values, mask)

    def fused(_: int) -> object:
        keys, values = (_repeated(one, groups) for one in (key, value))
        mixed = scaled_dot_product_attention(query, keys, values, is_causal=new > 1)
        return mixed.transpose(1, 2).contiguous()

    return {
        **shape,
        "batch": batch,
        "new": new,
        "context": context,
        "eager_seconds": busy_seconds(eager, budget=0.01),
        "fused_seconds": busy_seconds(fused, budget=0.01),
    }


def _repeated(tensor: Any, groups: int) -> Any:
    """Keys or values of shared heads, written out once for each query head."""
    if groups == 1:
        return tensor
    batch, heads, length, width = tensor.shape
    wide = tensor[:, :, None].expand(batch, heads, groups, length, width)
    return wide.reshape(batch, heads * groups, length, width)


def _eager(query: Any, key: Any, value: Any, mask: Any) -> Any:
    scores = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
    scores = scores + mask
    weights = softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous()


def _bloom(query: Any, key: Any, value: Any, *, slopes: Any, mask: Any) -> Any:
    """Positions enter as an addend of the product of queries and keys."""
    batch, new, context = mask.shape[0], mask.shape[2], mask.shape[3]
    scale = query.shape[-1] ** -0.5
    scores = slopes.baddbmm(query, key.transpose(1, 2), beta=1.0, alpha=scale)
    scores = scores.view(batch, -1, new, context) + mask
    weights = softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = torch.bmm(weights.view(-1, new, context), value)
    return mixed.view(batch, -1, new, value.shape[-1]).permute(0, 2, 1, 3).reshape(batch, new, -1)
