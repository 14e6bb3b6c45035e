"""Durations and routes on a machine: kernels on the GPU, transfers over paths, costs of the host thread."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from simoffload.hardware import Machine, Path
from simoffload.models import ModelShape, Module, ModuleCost, module_cost

__all__ = ["Timing", "effective_rate", "picoseconds", "shares"]

_OPERATIONS = {
    "container": 1,
    "embedding": 1,
    "norm": 1,
    "linear": 1,
    "activation": 1,
    "dropout": 0,
    "rotary": 12,
    "attention": 20,
    "router": 4,
}
"""PyTorch operations of one module call, counted in transformers' eager code (attention as below, for OPT);
a block's residual addition counts for its container."""
_FAMILY_OPERATIONS = {
    "bloom": {"attention": 34, "activation": 8},
    "llama": {"attention": 55, "norm": 6},
    "mixtral": {"attention": 55, "norm": 6},
}
"""Where a family differs from OPT. Norms and activations are counted in transformers' eager code;
attention is the measured host time of a layer of a plain decode pass, less its other modules, over that
of one operation (docs/measurements/host-thread.md): Python code around the kernels included."""
_MOST_KERNELS = 16
"""Kernels of an attention in transformers' eager code (our count): its other operations only make views."""


def picoseconds(seconds: float) -> int:
    """Round a duration [s] to the clock's unit [ps]."""
    return round(seconds * 1e12)


def effective_rate(path: Path, sizes: Sequence[int]) -> int:
    """[B/s] of several transfers made one after the other, each at the rate of its own size."""
    seconds = sum(size / path.curve.rate(size) for size in sizes)
    return max(1, int(sum(sizes) / seconds))


class Timing:
    """Durations of one model's modules on one machine, for a given pass."""

    def __init__(
        self, *, machine: Machine, model: ModelShape, batch: int, new_tokens: int, context: int
    ) -> None:
        self.machine = machine
        self._model = model
        self._batch, self._new_tokens, self._context = batch, new_tokens, context
        self._seen: dict[Module, int] = {}

    def cost(self, module: Module) -> ModuleCost:
        """FLOP and HBM bytes of one call of ``module``."""
        return module_cost(
            self._model, module, batch=self._batch, new_tokens=self._new_tokens, context=self._context
        )

    def compute(self, module: Module) -> int:
        """[ps] that the GPU is busy with ``module``: the roofline's larger side plus the kernels' latency."""
        known = self._seen.get(module)
        if known is not None:
            return known
        cost = self.cost(module)
        gpu = self.machine.accelerator
        seconds = 0.0
        if cost.flops or cost.bytes:
            arithmetic = cost.flops / gpu.matmul_rate(cost.flops, self._model.dtype) if cost.flops else 0.0
            kernels = min(self._operations(module), _MOST_KERNELS)
            seconds = max(arithmetic, cost.bytes / gpu.hbm_rate) + kernels * gpu.kernel_latency_s
        self._seen[module] = picoseconds(seconds)
        return self._seen[module]

    def launch_s(self, module: Module) -> float:
        """[s] of the host thread for calling ``module`` and launching its kernels."""
        costs = self.machine.host.deepspeed
        return costs.module_call.value + max(0, self._operations(module) - 1) * costs.operation.value

    def _operations(self, module: Module) -> int:
        return _FAMILY_OPERATIONS.get(self._model.family, {}).get(module.kind, _OPERATIONS[module.kind])

    def hbm_copy(self, size: int) -> int:
        """[ps] to read and write ``size`` bytes within HBM."""
        return picoseconds(2 * size / self.machine.accelerator.hbm_rate)


def shares(paths: Sequence[Path]) -> tuple[tuple[tuple[int, Fraction], ...], ...]:
    """The hops of one path per rank, as the schedule wants them."""
    return tuple(path.hops for path in paths)
