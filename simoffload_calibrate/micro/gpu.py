"""The GPU alone: its memory, kernels, matrix products and attention (child process only)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations
from math import comb
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
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


# -- GPUs that slow each other's copies ------------------------------------------------------------
# Subsets to measure, and the groups that their times show.
#
# GPUs whose copies pass through the same socket, PCIe switch or cable share its rate. Subsets of the GPUs
# copy at once: what all of them share slows every subset of one size alike, so a GPU that is slower in the
# company of another one shares something with it alone. In subsets of half of the GPUs the limit of all
# does not hide that of a group; subsets of all but one show what only a complete group reaches.


_LEAST = 3
"""The least number of GPUs of which some may share what others do not."""
_MOST = 70
"""The number of copies of subsets of half of the GPUs, and the largest number of such subsets of which all
are measured; eight GPUs have as many subsets of four."""
_SAMPLED = 4
"""The number of subsets per GPU where not all are measured, if this is more than 70. A GPU is in half of
them, twice as many as there are other GPUs."""
_ALL_BUT_ONE = 32
"""The number of copies of subsets that lack one GPU: there are few of them, so that each copies several
times."""
_SLOWING = 0.95
"""Ratio of the rates with and without another GPU below which both belong to one group; our choice. With an
error of 3 % in every time the ratios of eight GPUs have an error of 0.7 %."""

Row = Mapping[str, Any]


class GpuGroup(NamedTuple):
    """GPUs that share a rate."""

    gpus: tuple[int, ...]
    to_gpus: float
    """Rate [B/s] of pinned copies to all of them at once."""
    from_gpus: float
    """Rate [B/s] of pinned copies from all of them at once."""
    size: int
    """Number of GPUs in the subsets that show the group most clearly."""
    inside: float
    """Mean ratio of the rate of one of them with another of them to that without it, in these subsets."""
    outside: float
    """The same with a GPU of no group or another one."""
    subsets: int
    """The number of these subsets."""

    def alone(self) -> str:
        """Return how the rates were measured, for their source."""
        return f"GPUs {', '.join(map(str, self.gpus))} copying at once, and no others"

    def evidence(self) -> str:
        """Return how the group was found, for the source of its numbers."""
        return (
            f"pinned copies to {self.subsets} subsets of {self.size} of the GPUs at once: one of the group "
            f"has {self.inside:.2f} x its rate beside another of them, and {self.outside:.2f} x beside others"
        )


def subsets(gpus: int) -> list[tuple[int, ...]]:
    """Return the subsets of the GPUs that copy at once: those of half of them (of three: pairs), then those
    of all but one. There are none of fewer than three GPUs.

    If there are more than 70 of half of the GPUs, the result has a fixed sample of these in which pairs occur
    about equally often.
    """
    return [*_of_half(gpus), *_of_all_but_one(gpus)]


def copying_subsets(gpus: int) -> list[tuple[int, ...]]:
    """Return the subsets in the order in which they copy; if there are few of a size, each copies several
    times.

    The number of copies depends little on the number of GPUs; eight make 102.
    """
    half, all_but_one = _of_half(gpus), _of_all_but_one(gpus)
    return [*_repeated_together(half, _MOST), *_repeated_together(all_but_one, _ALL_BUT_ONE)]


def _repeated_together(chosen: list[tuple[int, ...]], copies: int) -> list[tuple[int, ...]]:
    return chosen * max(1, copies // max(1, len(chosen)))


def _of_all_but_one(gpus: int) -> list[tuple[int, ...]]:
    return list(combinations(range(gpus), gpus - 1)) if gpus > _LEAST else []


def _of_half(gpus: int) -> list[tuple[int, ...]]:
    if gpus < _LEAST:
        return []
    size = max(2, gpus // 2)
    if comb(gpus, size) <= _MOST:
        return list(combinations(range(gpus), size))
    together = [[0] * gpus for _ in range(gpus)]
    order, sample = Random(0), set[tuple[int, ...]]()
    while len(sample) < max(_MOST, _SAMPLED * gpus):
        rest = order.sample(range(gpus), gpus)
        chosen = [rest.pop()]
        while len(chosen) < size:
            chosen.append(min(rest, key=lambda gpu: sum(together[gpu][other] for other in chosen)))
            rest.remove(chosen[-1])
        for one, other in permutations(chosen, 2):
            together[one][other] += 1
        sample.add(tuple(sorted(chosen)))
    return sorted(sample)


def pair_ratios(rows: Sequence[Row]) -> dict[tuple[int, int], float]:
    """Return, for each pair of GPUs, the rate of one with the other over its rate without it.

    ``rows`` are pooled times of subsets of one size. The rates are means over all subsets, and the result is
    the mean of both directions of the pair. In a sample of the subsets, a third GPU may be there more often
    with the other than without it. So the means are those of a linear model of who is there, as if every
    third GPU were there equally often; with all subsets they are the plain means.
    """
    gpus = sorted({gpu for row in rows for gpu in row["gpus"]})
    slowed = {gpu: _ratios([row for row in rows if gpu in row["gpus"]], gpu, gpus) for gpu in gpus}
    return {
        (one, other): fmean((slowed[one][other], slowed[other][one])) for one, other in combinations(gpus, 2)
    }


def _ratios(rows: Sequence[Row], gpu: int, gpus: Sequence[int]) -> dict[int, float]:
    """Return the mean rate of a GPU with each other one over that without it."""
    others = [other for other in gpus if other != gpu]
    present = np.array([[other in row["gpus"] for other in others] for row in rows], dtype=float)
    rates = np.array([row["bytes"] / row["seconds"][list(row["gpus"]).index(gpu)] for row in rows])
    table = np.column_stack([np.ones(len(rows)), present])
    (constant, *effects), *_ = np.linalg.lstsq(table, rates, rcond=None)
    beside = present.sum(axis=1).mean()
    found = {}
    for other, effect in zip(others, effects, strict=True):
        third = (sum(effects) - effect) / max(1, len(others) - 1)
        found[other] = float((constant + effect + (beside - 1) * third) / (constant + beside * third))
    return found


def found_groups(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """Return the groups of GPUs that slow each other clearly, each of them and the groups in rising order.

    GPUs belong to one group if a chain of pairs connects them whose ratios are below 0.95 in subsets of any
    size. There are no groups if nothing slows anything, or if all GPUs belong together: their limit is that
    of the host's memory.
    """
    group = {gpu: {gpu} for row in rows for gpu in row["gpus"]}
    for ratios in _ratios_by_size(rows).values():
        for (one, other), ratio in ratios.items():
            if ratio < _SLOWING and group[one] is not group[other]:
                joined = group[one] | group[other]
                group |= dict.fromkeys(joined, joined)
    several = {tuple(sorted(members)) for members in group.values() if 1 < len(members) < len(group)}
    return sorted(several)


def _ratios_by_size(rows: Sequence[Row]) -> dict[int, dict[tuple[int, int], float]]:
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(len(row["gpus"]), []).append(row)
    return {size: pair_ratios(of_size) for size, of_size in sizes.items()}


def measured_groups(sections: Mapping[str, Any]) -> list[GpuGroup]:
    """Return the groups that a record has, with their rates; none if a subset was not measured, because the
    missing ones would mislead."""
    return [
        group
        for gpus, section in sections.get("copies_subsets", {}).items()
        if has_all_subsets(section["subsets"], int(gpus))
        for group in _rated_groups(section)
    ]


def has_all_subsets(rows: Sequence[Row], gpus: int) -> bool:
    """Return whether there is a row of every subset of so many GPUs."""
    return {tuple(row["gpus"]) for row in rows} == set(subsets(gpus))


def _rated_groups(section: Mapping[str, Any]) -> Iterator[GpuGroup]:
    """Yield the groups of a section whose rates were measured in both directions."""
    rows = section["subsets"]
    for gpus in found_groups(rows):
        rates = {
            row["direction"]: sum(row["bytes"] / seconds for seconds in row["seconds"])
            for row in section["groups"]
            if tuple(row["gpus"]) == gpus
        }
        if {"h2d", "d2h"} <= rates.keys():
            inside, outside, size = min(
                (*_mean_ratios(ratios, gpus), size) for size, ratios in _ratios_by_size(rows).items()
            )
            number = sum(len(row["gpus"]) == size for row in rows)
            yield GpuGroup(gpus, rates["h2d"], rates["d2h"], size, inside, outside, number)


def _mean_ratios(ratios: Mapping[tuple[int, int], float], gpus: Sequence[int]) -> tuple[float, float]:
    """Return the mean of the pairs within a group, and of those with one GPU in it."""
    members = [(len(set(pair) & set(gpus)), ratio) for pair, ratio in ratios.items()]
    inside, outside = (fmean(ratio for count, ratio in members if count == number) for number in (2, 1))
    return inside, outside
