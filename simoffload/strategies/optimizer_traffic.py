"""Memory traffic of optimizers and of the search for overflow, per element.

Adam's memory traffic is counted in csrc/adam/cpu_adam_impl.cpp of DeepSpeed (one loop over the elements of a
parameter) and torch/optim/adam.py of PyTorch (``_single_tensor_adam``: a sequence of operations over the
whole tensor; the default on the CPU if neither ``foreach`` nor ``fused`` is chosen).
"""

from __future__ import annotations

from typing import NamedTuple

from simoffload.models import SINGLE


class _Operation(NamedTuple):
    """An _Operation is an element-by-element operation over tensors in single precision."""

    read: int
    """Number of tensors that are read; a tensor read twice counts once, as its element is cached."""
    written: int = 1

    @property
    def traffic(self) -> int:
        """Memory traffic per element [B]."""
        return (self.read + self.written) * SINGLE


DEEPSPEED_ADAM = _Operation(read=4, written=3).traffic
"""[B] of memory traffic per parameter: weight, gradient and two moments are read; all but the gradient are
written."""

_TORCH = (
    _Operation(2),  # exp_avg.lerp_(grad)
    _Operation(1),  # exp_avg_sq.mul_
    _Operation(2),  # exp_avg_sq.addcmul_(grad, grad)
    _Operation(1),  # exp_avg_sq.sqrt()
    _Operation(1),  # / bias_correction2_sqrt
    _Operation(1),  # .add_(eps)
    _Operation(3),  # param.addcdiv_(exp_avg, denom)
)

TORCH_ADAM = sum(operation.traffic for operation in _TORCH)
"""[B] of memory traffic per parameter of ``torch.optim.Adam`` without weight decay, its default."""
TORCH_ADAM_NEW = 2
"""Number of temporary tensors of a parameter's size in a step: results of ``sqrt()`` and the division."""
TORCH_FOREACH = TORCH_ADAM + SINGLE
"""[B] of memory traffic per parameter on the GPU, where PyTorch works on all tensors at once
(``_multi_tensor_adam``): ``_foreach_addcmul_`` reads the gradient as both of its factors."""
TORCH_WEIGHT_DECAY = _Operation(1).traffic
"""[B] of additional memory traffic per parameter in ``torch.optim.AdamW`` (``param.mul_``)."""


def overflow_check_traffic(element: int = 2) -> int:
    """Return the memory traffic per gradient of ``element`` [B] in ZeRO-3's search for overflow [B].

    ``torch.isinf`` writes the magnitudes and compares them, ``torch.isnan`` compares gradients with
    themselves; each result is a truth value of 1 B, which ``any()`` reads (``has_overflow``, stage3.py).
    """
    return (2 * element) + 2 * (element + 1) + 2
