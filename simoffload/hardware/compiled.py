"""Kernels of compiled serving engines (vLLM, torch.compile) on a GPU, and the host thread that launches them.

Decode steps are replayed from CUDA graphs, so that only the GPU's own time between kernels counts. Longer
prefills are not: the host launches their kernels from Python, layer by layer (vLLM,
``compilation/cuda_graph.py`` and ``config/compilation.py``: ``cudagraph_capture_sizes``).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, NamedTuple

from simoffload.documents import Frozen
from simoffload.hardware.quantities import Count, EfficiencyCurve, Provenance, RowsCurve, Share, Sourced
from simoffload.units import BytesPerSecond, Seconds

Kernel = Literal["", "int4", "int8", "float8", "mxfp4"]
"""Kind of kernel that reads the weights of a product; empty for 16 bits."""


class ServingKernels(NamedTuple):
    """ServingKernels are all numbers of ``CompiledKernels``, those of a profile or estimates."""

    kernel_latency: Sourced[Seconds]
    read_efficiency: Sourced[Share]
    least_rows: Sourced[Count]
    products: EfficiencyCurve
    pointwise: Sourced[BytesPerSecond] | None
    grouped: RowsCurve
    float8_products: Sourced[Share]
    weight_latency: Sourced[Seconds]
    int4: Sourced[Share]
    int8: Sourced[Share]
    float8: Sourced[Share]
    mxfp4: Sourced[Share]
    decoded: Sourced[Share]

    def share(self, kernel: Kernel) -> float:
        """Return the rate at which a kind of kernel reads weights over that with 16 bits."""
        return 1.0 if kernel == "" else float(getattr(self, kernel).value)

    def deciding(self, kernels: Iterable[Kernel], *, experts: bool) -> tuple[Provenance, ...]:
        """Return the numbers that decide the time of a model with such weights, with or without experts."""
        weights = [getattr(self, one) for one in kernels if one]
        decoded = [self.decoded] if weights else []
        return (self.kernel_latency, self.products, *([self.grouped] if experts else []), *weights, *decoded)


class CompiledKernels(Frozen):
    """Speed of the kernels of compiled serving on a GPU; what is left out is estimated."""

    kernel_latency: Sourced[Seconds] | None = None
    """Time that each kernel of a CUDA graph costs in addition to its work; None: ``kernel_latency`` of the
    GPU."""
    read_efficiency: Sourced[Share] | None = None
    """Share of the peak bandwidth with which products of few tokens read their weights; None:
    ``hbm_efficiency``."""
    least_rows: Sourced[Count] | None = None
    """Rows that tensor cores multiply at least: products of fewer tokens take as long; None: 16."""
    products: EfficiencyCurve | None = None
    """Share of the peak rate that the products of a model reach one after the other, at the clock that the
    power limit then allows; None: ``matmul_efficiency``."""
    grouped: RowsCurve | None = None
    """Share of the peak rate that grouped products of experts reach, by the tokens of each expert; None: an
    estimate."""
    float8_products: Sourced[Share] | None = None
    """Efficiency of products in FP8 over that of products with 16 bits, each of its own peak; None: an
    estimate."""
    pointwise: Sourced[BytesPerSecond] | None = None
    """Rate at which the kernels of norms and activation functions that Inductor makes read and write, for so
    many tokens that their data are not in the cache; None: that of other kernels."""
    weight_latency: Sourced[Seconds] | None = None
    """Time that a product with weights of fewer than 16 bits, which its kernel decodes, costs in addition to
    one with 16 bits; None: an estimate."""
    int4: Sourced[Share] | None = None
    """Rate at which the kernels of vLLM read weights of 4 bits in groups (Machete on Hopper, Marlin on other
    NVIDIA GPUs from Ampere on, Triton on AMD), over that of 16 bits; None: an estimate."""
    int8: Sourced[Share] | None = None
    """The same for weights of 8 bits that are decoded, FP8 on GPUs without such arithmetic among them."""
    float8: Sourced[Share] | None = None
    """The same for weights in FP8 that tensor cores multiply as they are."""
    mxfp4: Sourced[Share] | None = None
    """The same for experts in MXFP4 (Triton kernels on Hopper, FlashInfer on Blackwell, Marlin on others)."""
    decoded: Sourced[Share] | None = None
    """Rate of large products with weights that are decoded over that of products with 16 bits; None: an
    estimate."""

    def completed(self, **of_gpu: Provenance) -> ServingKernels:
        """Return all numbers: those that are stated, others ``of_gpu``, measured with other kernels, or
        estimates."""
        stated = {key: one for key, one in self if one is not None}
        others = {
            key: type(one).model_construct(**{**dict(one), "spread": _OTHER_KERNELS})
            for key, one in of_gpu.items()
        }
        assumed = {key: one for key, one in estimated_kernels() if one is not None}
        return ServingKernels(**{"pointwise": None, **assumed, **others, **stated})


_OTHER_KERNELS = 0.2
"""Spread of numbers of a GPU on which compiled code was not measured: twice that of a GPU's rates from
another machine of the kind (``spreads``; our choice)."""


def _estimate(value: Any, source: str, spread: float) -> dict[str, Any]:
    statement = {"points": value} if isinstance(value, list) else {"value": value}
    date = datetime.date(2026, 11, 24)
    return {**statement, "origin": "estimate", "source": source, "date": date, "spread": spread}


@cache
def estimated_kernels() -> CompiledKernels:
    """Return what is assumed of GPUs on which the kernels were not measured."""
    return CompiledKernels.model_validate(
        {
            "least_rows": _estimate(
                16, "rows of mma.m16n8k16, which kernels for few tokens use (PTX ISA)", 0.0
            ),
            "grouped": _estimate(
                [[16, 0.15], [24, 0.224], [96, 0.432], [384, 0.52]],
                "as a100-80g-sxm",
                0.3,
            ),
            "float8_products": _estimate(
                0.84,
                "torch._scaled_mm on an H100, a layer of Llama-3.1-8B with 2,048 tokens: 1156 TFLOP/s, 685 "
                "with 16 bits (2026-11-24)",
                0.15,
            ),
            "weight_latency": _estimate(
                "4 us",
                "Marlin on an H100, the products of a layer of Llama-3.1-8B with 1 token: 10.8, 9.2, 30.4 "
                "and 22.0 us, less their bytes at 0.9 of the rate of 16 bits and 2.9 us each (2026-11-24)",
                0.5,
            ),
            "int4": _estimate(
                0.8,
                "Marlin, 1 token: 3.12 times as fast as 16 bits with 3.88 times fewer bytes (vllm-project/"
                "vllm pull request 2497; the GPU is not named)",
                0.3,
            ),
            "int8": _estimate(0.9, "between 4 and 16 bits; not measured", 0.2),
            "float8": _estimate(1.0, "read as they are; not measured", 0.2),
            "mxfp4": _estimate(0.8, "as weights of 4 bits; not measured", 0.35),
            "decoded": _estimate(
                0.8,
                "Marlin, 512 tokens and more: 0.60 to 0.74 of torch.matmul in its first version (vllm-"
                "project/vllm pull request 2497), about equal in that of 2025 on Turing (pull request 29901)",
                0.25,
            ),
        }
    )


class CompiledCosts(Frozen):
    """Time that the host thread of a serving engine spends, per event."""

    step: Sourced[Seconds]
    """Time of a step before its first kernel: scheduling and preparing its input. While a decode step is
    computed, the next one is prepared (``async_scheduling`` of vLLM)."""
    kernel: Sourced[Seconds]
    """Time of launching a kernel of compiled code that is not in a CUDA graph."""
    attention: Sourced[Seconds]
    """Time of calling attention between two pieces of compiled code."""
    experts: Sourced[Seconds]
    """Time of calling the experts of a layer, their kernels excepted."""
    mxfp4: Sourced[Seconds]
    """The same for the Triton kernels of experts in MXFP4, which sort and prepare their arguments in
    Python."""


_OPERATIONS = {"step": 60.0, "kernel": 0.415, "attention": 8.0, "experts": 65.0, "mxfp4": 73.0}
"""Times per event as multiples of a PyTorch operation under DeepSpeed (24.8 us on machines with an H100, 19.2
with an H200: the medians in their profiles).

A mixture of experts that leaves the GPU idle (24 layers, hidden size 512, 64 experts; vLLM 0.25.1, one H100,
2026-11-24) takes 49.2 ms for 513 tokens: 80 operations in each layer beside a step. With CUDA graphs of the
pieces between attention it takes 6.8 ms for 64 tokens: 9 in each layer. A kernel is an operation without
DeepSpeed (``thread_costs``). ``triton_kernel_moe_forward``, with 7 kernels, takes the host 1.88 ms (median of
12 sizes, experts of gpt-oss-20b and -120b): 76 operations.
"""


@cache
def estimated_compiled_costs(*, operation_s: float) -> CompiledCosts:
    """Return the costs of a host on which they were not measured, from its time of a PyTorch operation."""
    source = "vLLM 0.25.1 on a host with one H100, scaled with the time of a PyTorch operation"
    return CompiledCosts.model_validate(
        {
            key: _estimate(f"{count * operation_s * 1e6:.4f} us", source, 0.3)
            for key, count in _OPERATIONS.items()
        }
    )
