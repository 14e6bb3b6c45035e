"""What Adam moves through memory on the CPU, by implementation.

Sources: csrc/adam/cpu_adam_impl.cpp of DeepSpeed (one loop over a parameter's elements) and
torch/optim/adam.py of PyTorch (``_single_tensor_adam``: one operation over the whole tensor after the
other; the default on the CPU, where neither ``foreach`` nor ``fused`` is chosen).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from simoffload.hardware.profiles import Host
from simoffload.models.shape import SINGLE

__all__ = ["DEEPSPEED_ADAM", "TORCH_ADAM", "TORCH_WEIGHT_DECAY", "Implementation", "cpu_adam_s"]

Implementation = Literal["deepspeed", "torch"]


class _Operation(NamedTuple):
    """One pass over tensors in single precision."""

    read: int
    """Tensors that are read; the same one twice counts once, as its element is at hand."""
    written: int = 1

    @property
    def traffic(self) -> int:
        """[B] of one element."""
        return (self.read + self.written) * SINGLE


DEEPSPEED_ADAM = _Operation(read=4, written=3).traffic
"""[B] a parameter: weight, gradient and two moments read, all but the gradient written."""

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
"""[B] a parameter of ``torch.optim.Adam`` without weight decay, its default."""
TORCH_WEIGHT_DECAY = _Operation(1).traffic
"""[B] a parameter more in ``torch.optim.AdamW`` (``param.mul_``)."""


def cpu_adam_s(
    host: Host,
    numel: float,
    *,
    threads: int,
    processes: int = 1,
    implementation: Implementation = "deepspeed",
) -> float:
    """[s] that one of ``processes`` spends in Adam over ``numel`` parameters in single precision.

    Bytes over the rate that the host's profile gives for so many threads: that of Adam for DeepSpeed's
    kernel, that of element-by-element loops for PyTorch. Raises nothing.
    """
    if implementation == "deepspeed":
        return DEEPSPEED_ADAM * numel / host.cpu_optimizer.rate(threads, processes=processes)
    return TORCH_ADAM * numel / host.elementwise_rate(threads, processes=processes)
