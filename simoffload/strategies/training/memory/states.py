"""Bytes of what training keeps for every parameter: the parameter, its gradient, master weight, moments.

Partitioning by stage: Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5. What each optimizer keeps is
read in DeepSpeed 0.19.8 (``DeepSpeedCPUAdam``), PyTorch (SGD), bitsandbytes and transformers (Adafactor).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simoffload.models.shape import SINGLE
from simoffload.strategies.ds_config.training import OptimizerKind
from simoffload.strategies.training.memory.weights import (
    Weight,
    partition_numel,
    stored_bytes,
)

__all__ = ["StateBytes", "moment_bytes", "state_bytes"]

_BLOCK = 256
"""Elements that share a scale in bitsandbytes' 8-bit states (2048 before 0.45; from memory, unverified)."""
_SMALLEST_8BIT = 4096
"""Elements below which bitsandbytes keeps states in single precision (``min_8bit_size``)."""


class StateBytes(NamedTuple):
    """[B] of one rank."""

    parameters: int
    gradients: int
    master: int
    moments: int

    @property
    def total(self) -> int:
        """[B] of all four."""
        return sum(self)


def moment_bytes(kind: OptimizerKind, weights: Sequence[Weight], *, numel: int, flat: bool) -> int:
    """What the optimizer remembers of ``numel`` elements [B].

    Adam keeps two elements in single precision, SGD one (momentum), 8-bit Adam two bytes and two scales a
    block of 256. Adafactor keeps sums over rows and columns only while tensors are matrices: ZeRO hands the
    optimizer flat partitions (``flat``), for which it keeps an element each.
    """
    if kind == "adam":
        return 2 * SINGLE * numel
    if kind == "sgd":
        return SINGLE * numel
    if kind == "adam8bit":
        tensors = [numel] if flat else [weight.numel for weight in weights if weight.trainable]
        return sum(_moments_8bit(one) for one in tensors)
    return SINGLE * (numel if flat else sum(weight.sums for weight in weights if weight.trainable))


def _moments_8bit(numel: int) -> int:
    if numel < _SMALLEST_8BIT:
        return 2 * SINGLE * numel
    return 2 * (numel + SINGLE * -(-numel // _BLOCK))


def state_bytes(
    weights: Sequence[Weight],
    *,
    kind: OptimizerKind,
    stage: int,
    ranks: int,
    dtype_bytes: int,
    gradient_bytes: int,
    weight_bits: float | None = None,
) -> StateBytes:
    """What one rank keeps of all tensors [B], wherever it lies.

    Stage 1 cuts master weights and moments, stage 2 also gradients, stage 3 also parameters. A model in
    single precision has no master weights in stages 0 and 3 (``_create_fp32_partitions`` aliases them).
    """
    part = partition_numel(weights, stage=stage, ranks=ranks)
    trained = sum(weight.numel for weight in weights if weight.trainable)
    cut = ranks if stage == 3 else 1
    aliased = dtype_bytes == SINGLE and stage in (0, 3)
    return StateBytes(
        parameters=sum(
            stored_bytes(one, -(-one.numel // cut), dtype_bytes=dtype_bytes, weight_bits=weight_bits)
            for one in weights
        ),
        gradients=gradient_bytes * (part if stage >= 2 else trained),
        master=0 if aliased else SINGLE * part,
        moments=moment_bytes(kind, weights, numel=part, flat=stage > 0),
    )
