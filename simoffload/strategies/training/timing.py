"""Durations of a training micro-step and of the optimizer on a machine."""

from __future__ import annotations

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module
from simoffload.models.cost import ModuleCost
from simoffload.models.training_cost import backward_cost, backward_products, training_cost
from simoffload.strategies.timing import Timing, operations, picoseconds
from simoffload.strategies.training.cpu_adam import DEEPSPEED_ADAM

__all__ = ["TrainingTiming"]

_MOST_KERNELS = 16  # as in forward
_BACKWARD_KERNELS = 2
"""Kernels of backward for each of forward: one for the input's gradient and one for the weight's or a saved
mask (an estimate)."""


class TrainingTiming(Timing):
    """Like ``Timing``, for whole sequences without a cache, and backwards."""

    def __init__(self, *, machine: Machine, model: ModelShape, batch: int, length: int) -> None:
        super().__init__(machine=machine, model=model, batch=batch, new_tokens=length, context=length)
        self._length = length
        self._back: dict[Module, int] = {}

    def cost(self, module: Module) -> ModuleCost:
        """FLOP and HBM bytes of the forward pass of ``module``."""
        return training_cost(self._model, module, batch=self._batch, length=self._length)

    def backward(self, module: Module) -> int:
        """[ps] that the GPU is busy with the backward pass of ``module``."""
        if module not in self._back:
            cost = backward_cost(self._model, module, batch=self._batch, length=self._length)
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
