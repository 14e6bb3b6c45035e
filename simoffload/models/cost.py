"""FLOPs and HBM traffic of every module of a forward pass, as Hugging Face's code runs it.

Not counted: construction of masks and ALiBi, and, in eager attention, grouped keys and values repeated for
each query head.
"""

from __future__ import annotations

from typing import NamedTuple

from simoffload.models.modules import Module
from simoffload.models.shape import ModelShape

__all__ = ["ModuleCost", "attention_scores_bytes", "forward_cost", "linear_flops", "module_cost"]

# Maximum, subtract, exponentiate, sum, divide.
_SOFTMAX_FLOPS = 5


class ModuleCost(NamedTuple):
    """What one call of a module asks of the GPU."""

    flops: float
    """[FLOP] a multiplication and an addition are two."""
    bytes: float
    """[B] read from and written to HBM."""


def module_cost(
    shape: ModelShape, module: Module, *, batch: int, new_tokens: int, context: int
) -> ModuleCost:
    """Count the work of one call of ``module``.

    Parameters
    ----------
    batch
        Sequences.
    new_tokens
        Tokens that each sequence feeds in: the prompt at prefill, 1 at a decode step.
    context
        Keys that the last new token attends to, itself included.

    Raises
    ------
    ValueError
        Where a count is below 1 or ``context`` is shorter than ``new_tokens``.

    Notes
    -----
    A linear layer takes 2·in·out FLOPs a token and one more for each bias; other modules one for each
    element that a kernel writes. Logits are computed for the last position of each sequence only, as
    ``generate`` asks for (``logits_to_keep``). Older transformers compute them for all positions of a
    prefill: at 4.46.3 still for BLOOM and OPT, no longer for Llama and Mixtral.

    Attention counts the FLOPs of the keys that causality lets each token see. Eager code also moves the
    full score matrix several times; the fused kernels ("sdpa") keep scores on the chip. Both append to the
    cache with ``torch.cat`` (transformers' DynamicCache), which reads and writes all of it.

    An expert reads its weights only if a token comes to it. With tokens routed evenly and independently
    that has the probability 1 − (1 − share)^tokens, near 1 for all but the smallest batches.
    """
    if batch < 1 or new_tokens < 1 or context < new_tokens:
        raise ValueError(
            "batch and new_tokens must be at least 1 and context at least new_tokens, got "
            f"batch={batch}, new_tokens={new_tokens}, context={context}"
        )
    if module.kind == "attention":
        return _attention_cost(shape, module, batch=batch, new_tokens=new_tokens, context=context)
    tokens = batch * (1 if module.name == "lm_head" else new_tokens)
    seen = tokens * module.share
    traffic = seen * (module.in_features + module.out_features) * shape.dtype_bytes
    if module.kind == "embedding":
        return ModuleCost(0.0, traffic)
    touched = 1.0 if module.share == 1.0 else 1.0 - (1.0 - module.share) ** tokens
    traffic += touched * module.num_parameters * shape.dtype_bytes
    if module.kind in ("linear", "router"):
        return ModuleCost(seen * linear_flops(module), traffic)
    return ModuleCost(seen * module.out_features, traffic)


def forward_cost(shape: ModelShape, *, batch: int, new_tokens: int, context: int) -> ModuleCost:
    """Sum :func:`module_cost` over a whole forward pass; raises what that raises."""

    def total(modules: tuple[Module, ...]) -> ModuleCost:
        costs = [
            module_cost(shape, module, batch=batch, new_tokens=new_tokens, context=context)
            for module in modules
        ]
        return ModuleCost(sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs))

    outside, layer = total(shape.modules_before + shape.modules_after), total(shape.layer)
    return ModuleCost(
        outside.flops + shape.num_hidden_layers * layer.flops,
        outside.bytes + shape.num_hidden_layers * layer.bytes,
    )


def linear_flops(module: Module) -> int:
    """[FLOP] of one token; from the tensors, so that experts kept in one tensor count like separate ones."""
    return sum(
        parameter.numel if parameter.name.endswith("bias") else 2 * parameter.numel
        for parameter in module.parameters
    )


def _attention_cost(
    shape: ModelShape, module: Module, *, batch: int, new_tokens: int, context: int
) -> ModuleCost:
    keys = new_tokens * context - new_tokens * (new_tokens - 1) // 2
    flops = batch * shape.num_attention_heads * keys * (4 * shape.head_dim + _SOFTMAX_FLOPS)
    # The append reads and writes the cache; the kernels read it once more.
    cache = 2 * batch * shape.num_key_value_heads * shape.head_dim * 3 * context
    vectors = batch * new_tokens * (module.in_features + module.out_features)
    scores = batch * shape.num_attention_heads * new_tokens * context if shape.attention == "eager" else 0
    per_score = attention_scores_bytes(shape.dtype_bytes)
    return ModuleCost(float(flops), float((cache + vectors) * shape.dtype_bytes + scores * per_score))


def attention_scores_bytes(dtype_bytes: int) -> int:
    """[B] moved for each score: product written, scaled (read, written), masked (read, written), softmax
    to single precision (read, 4 B written), cast back (4 B read, written), times values (read)."""
    cast_back = 4 + dtype_bytes if dtype_bytes < 4 else 0
    return 7 * dtype_bytes + 4 + cast_back
