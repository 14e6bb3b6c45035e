"""Durations of the kernels of ggml's CUDA backend, with which llama.cpp computes on the GPU."""

from __future__ import annotations

from simoffload.hardware import GgmlKernels
from simoffload.models import Module, ModuleCost, Sequences
from simoffload.strategies.passes.timing import FusedTiming, PassTimings

_LAUNCH_S = 3e-6
"""Time [s] of launching a kernel from C++ (an estimate; from memory, unverified)."""
_CACHE_FLOPS = 32
"""Operations in single precision that attention of one token takes for each byte of the cache.

Source: three models on a DGX Spark, 32,768 tokens in the cache against none, read 180 to 193 GB/s of it where
weights are read at 232 (benches/dgx-spark of llama.cpp, 2026-02; rows in view)."""
_EIGHT = 8
"""Bits per weight from which weights need no decoding."""


class GgmlTiming(FusedTiming):
    """A GgmlTiming has the durations of ggml's CUDA kernels, of which a stretch is one CUDA graph in a
    decode step.

    Counted in ggml/src/ggml-cuda of llama.cpp@0c1e5709 with its fusions: a norm with its weight, and an
    addition behind each block; a product of quantized weights with the rounding of its input to 8 bits
    (``quantize_q8_1``), those of gate and up in one kernel if there is one token; rotations, that of keys
    with their write, and the write of values (3), attention and the sum of its parts (2); router and choice
    of experts (2), their weighing and sum (2).
    """

    def launch_s(self, module: Module) -> float:
        """Return the host time of launching the kernels of ``module`` [s]."""
        return 0.0 if self.decodes else self.kernels(module) * _LAUNCH_S

    def kernels(self, module: Module) -> int:
        """Count the kernels of one call of ``module``."""
        return kernels_of(module, decodes=self.decodes)

    def _kernels_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of the kernels of ``module`` [s], each with the latency of ggml's."""
        found, gpu = super()._kernels_s(module, cost), self.machine.accelerator
        code = gpu.llama_kernels
        shorter = gpu.kernels.kernel_latency.value - code.kernel_latency.value
        found -= self.kernels(module) * shorter if found else 0.0
        if module.kind == "attention":  # its kernels have the instructions of those of products
            found = max(found, cost.flops / (gpu.peak("float16") * code.products.points[-1][1]))
            if self.decodes:
                found += cost.bytes * _CACHE_FLOPS / gpu.compute.float32.value
        return found

    def _product_s(self, module: Module, cost: ModuleCost) -> float:
        """Return the time of a product [s] without the latency of its kernels; weights in single precision
        and of 16 bits are multiplied as elsewhere."""
        stored = self._stored(module)
        if not stored:
            return super()._product_s(module, cost)
        gpu, code, model = self.machine.accelerator, self.machine.accelerator.llama_kernels, self._model
        experts, tokens = module.parallel == "experts", max(1, self._tokens(module))
        read_s = cost.bytes / (gpu.hbm_bandwidth.value * gpu.kernels.read_efficiency.value)
        read_s += decoding_s(module, stored, code)
        rows, curve = float(tokens), code.products
        if experts:
            touched = max(1.0, model.num_experts * model.touched_share(module, tokens))
            rows, curve = tokens * model.experts_per_token / touched, code.grouped
        if tokens == 1:
            return read_s
        return max(read_s, cost.flops / (gpu.peak("float16") * curve.at(rows)))


def kernels_of(module: Module, *, decodes: bool) -> int:
    """Count the kernels of one call of ``module``."""
    match module.kind:
        case "attention":
            return 5
        case "norm":
            return 2 if module.parallel == "whole" else 1
        case "router":
            return 2
        case "linear" if module.parallel == "experts":
            return 6
        case "linear" if decodes and module.name.endswith("up_proj"):
            return 0
        case "linear":
            return 2
        case "activation":
            return 0 if decodes else 1
    return 0


def decoding_s(module: Module, stored: float, code: GgmlKernels) -> float:
    """Return the time of decoding ``stored`` bytes of quantized weights of a module for one token [s]."""
    if module.parallel == "experts":
        return stored / code.decode_experts.value
    forms = [one.storage.format.bits_per_weight for one in module.parameters if one.storage is not None]
    return stored / code.decode.value if forms and min(forms) < _EIGHT else 0.0


class GgmlTimings(PassTimings):
    """GgmlTimings are the durations of modules with kernels of ggml."""

    def timing(self, batch: tuple[Sequences, ...]) -> GgmlTiming:
        """Return the timing of one pass."""
        return GgmlTiming(
            machine=self._machine, model=self._model, batch=batch, zero3=False, cache=self._cache
        )
