"""The GPU alone: its memory, kernels, matrix products and attention (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, softmax

from simoffload_calibrate.child import Job
from simoffload_calibrate.micro.timing import busy_seconds, call_seconds, stream_seconds

_COPIED = [16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30]
"""[B] Sizes of copies within GPU memory."""
_NARROW = 64
_ROWS = 4
_BATCH, _LENGTH, _WIDE = 32, 512, 4096
"""Sequences, tokens and width of the tensors of kernels that are not vectorized."""
_ELEMENTWISE = [64 << 20, 256 << 20, 1 << 30]
_TOKENS = [1, 8, 64, 512, 4096, 16384]
_QUICK_TOKENS = [1, 512, 4096]
_MAIN = ("bfloat16", "linear")
"""Data type and form that profiles use; others are measured in one round, for fewer tokens."""
_CACHED = 256 << 20
"""[B] Size of the weights that are used in turn, so that none is in the L2 cache."""
_MOST_FLOPS = 1.5e13
_MOST_BYTES = 12 << 30
_REST = 0.01
"""[s] Pause before each measurement; without it the power limit lowers the clock, unlike in offloading."""
_BATCHES = [1, 16]
_CONTEXTS = [64, 512, 2048]
_MOST_SCORES = 20e9


def gpu_facts(_job: Job) -> dict[str, Any]:
    """Return the versions of PyTorch, CUDA and NCCL, and the GPUs; None without a GPU."""
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": _nccl_version(),
        "gpu": _gpu(),
    }


def _nccl_version() -> str | None:
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


# -- memory ---------------------------------------------------------------------------------------


def measure_memory(job: Job) -> dict[str, Any]:
    """Measure copies and additions within GPU memory by size; each byte is read and written."""
    free = torch.cuda.mem_get_info()[0]
    rows = []
    for size in _COPIED:
        if 4 * size > free // 2:
            continue
        pairs = max(2, min(4, (512 << 20) // size))
        sources = [torch.empty(size, dtype=torch.uint8, device=job.device).fill_(1) for _ in range(pairs)]
        targets = [torch.empty_like(source) for source in sources]

        def copy(index: int, targets: Any = targets, sources: Any = sources) -> object:
            return targets[index % len(targets)].copy_(sources[index % len(sources)])

        def add(index: int, targets: Any = targets, sources: Any = sources) -> object:
            at = index % len(targets)
            return torch.add(sources[at], 1, out=targets[at])

        rows.append({"bytes": size, "copy_seconds": busy_seconds(copy), "add_seconds": busy_seconds(add)})
    return {"within": rows}


# -- kernels ------------------------------------------------------------------------------------


def _rms_norm(x: Any, weight: Any) -> Any:
    """Compute RMSNorm in single precision, as in the eager code of Llama."""
    wide = x.to(torch.float32)
    mean = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(mean + 1e-6)).to(x.dtype)


def _host_calls(device: str) -> dict[str, list[float]]:
    """Return the time of the host thread per call of small operations and modules [s]."""
    kind = torch.bfloat16
    nn = torch.nn
    x = torch.ones(_ROWS, _NARROW, device=device, dtype=kind)
    weight = torch.ones(_NARROW, device=device, dtype=kind)
    tokens = torch.zeros(_ROWS, 1, device=device, dtype=torch.long)
    modules: dict[str, Any] = {
        "linear": nn.Linear(_NARROW, _NARROW, bias=False, device=device, dtype=kind),
        "linear+bias": nn.Linear(_NARROW, _NARROW, device=device, dtype=kind),
        "layer_norm": nn.LayerNorm(_NARROW, device=device, dtype=kind),
        "gelu": nn.GELU(),
        "relu": nn.ReLU(),
        "identity": nn.Identity(),
    }
    embedding = nn.Embedding(_NARROW, _NARROW, device=device, dtype=kind)
    with torch.no_grad():
        times = {name: call_seconds(partial(module, x)) for name, module in modules.items()}
        times["embedding"] = call_seconds(lambda: embedding(tokens))
        times["rms_norm"] = call_seconds(lambda: _rms_norm(x, weight), count=20)
        times["add"] = call_seconds(lambda: torch.add(x, 1))
        times["view"] = call_seconds(lambda: x.view(-1))
    return times


def _plus_one(source: Any, _: int) -> object:
    return torch.add(source, 1)


def _strided(device: str) -> dict[str, float]:
    """Measure kernels that PyTorch does not vectorize: a bias is added, and transposed keys are joined with
    an empty cache."""
    x = torch.ones(_BATCH, _LENGTH, _WIDE, device=device, dtype=torch.bfloat16)
    bias = torch.ones(_WIDE, device=device, dtype=torch.bfloat16)
    keys, empty = x.view(_BATCH, _LENGTH, -1, 128).transpose(1, 2), x.new_empty(0)
    return {
        "bytes": 2 * x.nbytes,
        "strided_rate_seconds": busy_seconds(lambda _: x.add_(bias)),
        "join_rate_seconds": busy_seconds(lambda _: torch.cat([empty, keys], dim=-2)),
    }


def measure_kernels(job: Job) -> dict[str, Any]:
    """Measure the GPU time of the smallest kernels, the host time of calls, and large elementwise kernels."""
    small = torch.ones(256, device=job.device)
    large = []
    with torch.no_grad():
        graphed = busy_seconds(lambda _: small.add_(1), budget=0.05)
        queued = stream_seconds(lambda: small.add_(1), count=500, repetitions=3)
        for size in _ELEMENTWISE:
            source = torch.ones(size // 2, device=job.device, dtype=torch.bfloat16)
            large.append({"bytes": size, "seconds": busy_seconds(partial(_plus_one, source))})
        strided = _strided(job.device)
    return {
        "strided": strided,
        "kernel_seconds": graphed,
        "queued_kernel_seconds": queued,
        "host_seconds": _host_calls(job.device),
        "elementwise": large,
    }


# -- matrix products ----------------------------------------------------------------------------


def measure_matmul(job: Job) -> dict[str, Any]:
    """Measure y = x·Wᵀ by data type, form, shape and tokens.

    All shapes are measured in bfloat16 without bias; those in ``job.data["matmul_variants"]`` also in
    float16, with bias, and as the operator ``@``.
    """
    points: list[dict[str, Any]] = []
    left_out: list[list[int]] = []
    variants = {tuple(shape) for shape in job.data["matmul_variants"]}
    for shape in job.data["matmul_shapes"]:
        if not job.in_time():
            left_out.append(shape)
            continue
        forms = [_MAIN]
        if tuple(shape) in variants and not job.quick and job.data["round"] == 1:
            forms += [("float16", "linear"), ("bfloat16", "linear+bias"), ("bfloat16", "matmul")]
        for dtype, form in forms:
            points += _shape(job, shape[0], shape[1], dtype=dtype, form=form)
        torch.cuda.empty_cache()
    return {"points": points, "left_out": left_out}


def _shape(job: Job, inner: int, outer: int, *, dtype: str, form: str) -> list[dict[str, Any]]:
    kind = getattr(torch, dtype)
    size = 2 * inner * outer
    copies = max(1, min(16, -(-_CACHED // size)))
    weights = [
        torch.randn(outer, inner, device=job.device, dtype=kind).mul_(inner**-0.5) for _ in range(copies)
    ]
    bias = torch.randn(outer, device=job.device, dtype=kind)
    points = []
    for tokens in _QUICK_TOKENS if job.quick or (dtype, form) != _MAIN else _TOKENS:
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
                "seconds": busy_seconds(call, budget=0.006, repetitions=2),
            }
        )
    return points


def _form(form: str, x: Any, weights: list[Any], bias: Any) -> Callable[[int], object]:
    if form == "matmul":
        return lambda index: x @ weights[index % len(weights)].T
    added = bias if form == "linear+bias" else None
    return lambda index: linear(x, weights[index % len(weights)], added)


# -- attention ----------------------------------------------------------------------------------


def measure_attention(job: Job) -> dict[str, Any]:
    """Measure scores, softmax and values by family, heads, batch, new tokens and context."""
    points: list[dict[str, Any]] = []
    left_out = 0
    for shape in job.data["attention_shapes"]:
        for batch in _BATCHES[: 1 if job.quick else None]:
            for context in _CONTEXTS:
                for new in (1, context):
                    scores = batch * shape["heads"] * new * context
                    if scores * 16 > _MOST_SCORES:
                        continue
                    if not job.in_time():
                        left_out += 1
                        continue
                    points.append(_point(job, shape, batch=batch, new=new, context=context))
        torch.cuda.empty_cache()
    return {"points": points, "left_out": left_out}


def _point(job: Job, shape: dict[str, Any], *, batch: int, new: int, context: int) -> dict[str, Any]:
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
        "eager_seconds": busy_seconds(eager, budget=0.005),
        "fused_seconds": busy_seconds(fused, budget=0.005),
    }


def _repeated(tensor: Any, groups: int) -> Any:
    """Return keys or values of shared heads, copied for each query head."""
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
    """Compute the attention of BLOOM, which adds positions to the product of queries and keys."""
    batch, new, context = mask.shape[0], mask.shape[2], mask.shape[3]
    scale = query.shape[-1] ** -0.5
    scores = slopes.baddbmm(query, key.transpose(1, 2), beta=1.0, alpha=scale)
    scores = scores.view(batch, -1, new, context) + mask
    weights = softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = torch.bmm(weights.view(-1, new, context), value)
    return mixed.view(batch, -1, new, value.shape[-1]).permute(0, 2, 1, 3).reshape(batch, new, -1)
