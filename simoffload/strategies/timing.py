"""Durations and routes on a machine: kernels on the GPU, transfers over paths, costs of the host thread."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from simoffload.hardware import Machine, Path
from simoffload.models import ModelShape, Module, ModuleCost, Sequences, batch_cost

__all__ = ["PassTimings", "Timing", "copy_name", "effective_rate", "operations", "picoseconds", "shares"]

_MOST_KERNELS = 16
"""Kernels of an attention in transformers' eager code (our count): its other operations only make views."""


def picoseconds(seconds: float) -> int:
    """Round a duration [s] to the clock's unit [ps]."""
    return round(seconds * 1e12)


def copy_name(*, to_device: bool, pinned: bool) -> str:
    """What copies between the GPU and host memory are called."""
    name = "host to GPU" if to_device else "GPU to host"
    return name if pinned else f"{name}, pageable"


def effective_rate(path: Path, sizes: Sequence[int]) -> int:
    """[B/s] of several transfers made one after the other, each at the rate of its own size."""
    seconds = sum(size / path.curve.rate(size) for size in sizes)
    return max(1, int(sum(sizes) / seconds))


class Timing:
    """Durations of one model's modules on one machine, for a given pass."""

    def __init__(self, *, machine: Machine, model: ModelShape, batch: tuple[Sequences, ...]) -> None:
        self.machine = machine
        self._model, self._batch = model, batch
        self._seen: dict[Module, int] = {}

    def cost(self, module: Module) -> ModuleCost:
        """FLOP and HBM bytes of one call of ``module``."""
        return batch_cost(self._model, module, self._batch)

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
            kernels = min(1 + operations(self._model, module), _MOST_KERNELS)
            seconds = max(arithmetic, cost.bytes / gpu.hbm_rate) + kernels * gpu.kernel_latency_s
        self._seen[module] = picoseconds(seconds)
        return self._seen[module]

    def launch_s(self, module: Module, *, zero: bool = True) -> float:
        """[s] of the host thread for calling ``module`` and launching its kernels, with ZeRO-3 or without."""
        costs = self.machine.host.deepspeed
        call = 0.0 if module.kind in {"attention", "container"} else costs.module_call.value
        if zero and module.kind == "linear":
            call = costs.linear_call.value
        return call + operations(self._model, module) * costs.operation.value

    def hbm_copy(self, size: int) -> int:
        """[ps] to read and write ``size`` bytes within HBM."""
        return picoseconds(2 * size / self.machine.accelerator.hbm_rate)


def operations(model: ModelShape, module: Module) -> int:
    """PyTorch operations of one call of ``module`` beyond the call itself."""
    own = model.traits.operations
    if module.kind == "container":  # what attention does is counted where it is done
        if module is model.layer[0]:
            return own.block
        return own.mlp if module.name == "mlp" else 0
    count: int = getattr(own, module.kind)
    eager = module.kind == "attention" and model.attention == "eager"
    return count + own.eager if eager else count


def shares(paths: Sequence[Path]) -> tuple[tuple[tuple[int, Fraction], ...], ...]:
    """The hops of one path per rank, as the schedule wants them."""
    return tuple(path.hops for path in paths)


class PassTimings:
    """Durations of one model's modules on one machine, pass by pass; what does not depend on the context is
    computed once."""

    def __init__(self, *, machine: Machine, model: ModelShape, modules: Sequence[Module]) -> None:
        self._machine, self._model = machine, model
        self._modules = tuple(modules)
        self._attention = [index for index, one in enumerate(modules) if one.kind == "attention"]
        self._known: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}

    def timing(self, batch: tuple[Sequences, ...]) -> Timing:
        """Durations in one pass."""
        return Timing(machine=self._machine, model=self._model, batch=batch)

    def durations(self, batch: tuple[Sequences, ...]) -> tuple[int, ...]:
        """[ps] that the GPU is busy with each of the modules."""
        timing = self.timing(batch)
        tokens = tuple((one.number, one.new_tokens) for one in batch)
        known = self._known.get(tokens)
        if known is None:
            known = self._known[tokens] = tuple(map(timing.compute, self._modules))
        durations = list(known)
        for index in self._attention:
            durations[index] = timing.compute(self._modules[index])
        return tuple(durations)
