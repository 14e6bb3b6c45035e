"""Durations of a training micro-step and of the optimizer on a machine.

Adam's traffic: csrc/adam/cpu_adam_impl.cpp of DeepSpeed (one loop over a parameter's elements) and
torch/optim/adam.py of PyTorch (``_single_tensor_adam``: one operation over the whole tensor after the
other; the default on the CPU, where neither ``foreach`` nor ``fused`` is chosen).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from simoffload.hardware import Machine
from simoffload.hardware.profiles import Host
from simoffload.models import ModelShape, Module, Sequences
from simoffload.models.cost import ModuleCost
from simoffload.models.shape import SINGLE
from simoffload.models.training_cost import backward_cost, backward_products, training_cost
from simoffload.strategies.timing import Timing, operations, picoseconds

__all__ = [
    "DEEPSPEED_ADAM",
    "TORCH_ADAM",
    "TORCH_ADAM_NEW",
    "TORCH_FOREACH",
    "TORCH_WEIGHT_DECAY",
    "Implementation",
    "TrainingTiming",
    "cpu_adam_s",
]

_MOST_KERNELS = 16  # as in forward
_BACKWARD_KERNELS = 2
"""Kernels of backward for each of forward: one for the input's gradient and one for the weight's or a saved
mask (an estimate)."""

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
TORCH_ADAM_NEW = 2
"""Tensors of a parameter's size that a step makes: those of ``sqrt()`` and of the division."""
TORCH_FOREACH = TORCH_ADAM + SINGLE
"""[B] a parameter on the GPU, where PyTorch works on all tensors at once (``_multi_tensor_adam``):
``_foreach_addcmul_`` reads the gradient as both of its factors."""
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


class TrainingTiming(Timing):
    """Like ``Timing``, for whole sequences without a cache, and backwards."""

    def __init__(self, *, machine: Machine, model: ModelShape, batch: int, length: int) -> None:
        super().__init__(machine=machine, model=model, batch=(Sequences(batch, length, length),))
        self._sequences, self._length = batch, length
        self._back: dict[Module, int] = {}

    def cost(self, module: Module) -> ModuleCost:
        """FLOP and HBM bytes of the forward pass of ``module``."""
        return training_cost(self._model, module, batch=self._sequences, length=self._length)

    def backward(self, module: Module) -> int:
        """[ps] that the GPU is busy with the backward pass of ``module``."""
        if module not in self._back:
            cost = backward_cost(self._model, module, batch=self._sequences, length=self._length)
            products = backward_products(module) if module.kind in ("linear", "router") else 1
            self._back[module] = self._duration(module, cost, products=products)
        return self._back[module]

    def _duration(self, module: Module, cost: ModuleCost, *, products: int) -> int:
        gpu = self.machine.accelerator
        if not (cost.flops or cost.bytes):
            return 0
        single = cost.flops / products
        arithmetic = cost.flops / gpu.matmul_rate(single, self._model.dtype) if cost.flops else 0.0
        kernels = _BACKWARD_KERNELS * min(1 + operations(self._model, module), _MOST_KERNELS)
        return picoseconds(max(arithmetic, cost.bytes / gpu.hbm_rate) + kernels * gpu.kernel_latency_s)

    def operations(self, module: Module) -> int:
        """PyTorch operations of one call of ``module``, the call itself included."""
        return 1 + operations(self._model, module)

    def hbm_traffic(self, size: float) -> int:
        """[ps] to move ``size`` bytes, reads and writes together, within HBM."""
        return picoseconds(size / self.machine.accelerator.hbm_rate)

    def gpu_adam(self, numel: int) -> int:
        """[ps] of Adam in single precision on the GPU: the same bytes as DeepSpeed's on the CPU."""
        return self.hbm_traffic(DEEPSPEED_ADAM * numel)
