"""Memory that a forward pass needs beside its weights."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results.capacity import MemoryTerm
from simoffload.workload import Inference

__all__ = ["activation_bytes", "pinned_rounding", "working_memory"]

_HIDDEN_COPIES = 4  # input, residual, normalised, output of a block, counted in transformers' eager code


def activation_bytes(model: ModelShape, *, batch: int, tokens: int) -> int:
    """[B] peak of a prefill's activations, counted in transformers' code (an estimate).

    The larger of eager attention's scores (model dtype, their fp32 softmax and its cast back) and the MLP's
    two intermediates, beside the block's hidden states and the last position's logits in fp32.
    """
    hidden = _HIDDEN_COPIES * batch * tokens * model.hidden_size * model.dtype_bytes
    scores = batch * model.num_attention_heads * tokens * tokens * (2 * model.dtype_bytes + 4)
    if model.attention == "sdpa":
        scores = 0  # the fused kernels keep them on the chip
    intermediate = 2 * batch * tokens * model.intermediate_size * model.dtype_bytes
    logits = batch * model.vocab_size * (model.dtype_bytes + 4)
    return hidden + max(scores, intermediate) + logits


def pinned_rounding(sizes: Sequence[int]) -> int:
    """[B] that PyTorch's pinned allocator adds by rounding every allocation up to a power of two.

    Source: aten/src/ATen/core/CachingHostAllocator.h of PyTorch 2.x (PowerOf2Ceil).
    """
    return sum((1 << (size - 1).bit_length()) - size for size in sizes if size > 0)


def working_memory(model: ModelShape, workload: Inference, machine: Machine) -> tuple[MemoryTerm, ...]:
    """HBM terms that every strategy has: cache, activations, and what CUDA and NCCL keep; DRAM of the OS."""
    batch = workload.batch_size
    return (
        MemoryTerm(
            "hbm",
            "key-value cache",
            model.kv_cache_bytes(batch=batch, tokens=workload.max_context),
            remedy="lower batch_size, prompt_length or output_length",
        ),
        MemoryTerm(
            "hbm",
            "activations",
            activation_bytes(model, batch=batch, tokens=workload.prompt_length),
            remedy="lower batch_size or prompt_length",
        ),
        MemoryTerm("hbm", "CUDA context and workspace", machine.accelerator.reserved_bytes),
        MemoryTerm("dram", "operating system and processes", machine.host.reserved_bytes),
    )
