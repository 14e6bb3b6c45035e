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
from simoffload.hardware.quantities import Count, EfficiencyCurve, Provenance, Share, Sourced
from simoffload.units import Seconds

Kernel = Literal["", "int4", "int8", "float8", "mxfp4"]
"""Kind of kernel that reads the weights of a product; empty for 16 bits."""


class ServingKernels(NamedTuple):
    """ServingKernels are all numbers of ``CompiledKernels``, those of a profile or estimates."""

    kernel_latency: Sourced[Seconds]
    read_efficiency: Sourced[Share]
    least_rows: Sourced[Count]
    products: EfficiencyCurve
    grouped: EfficiencyCurve
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
    grouped: EfficiencyCurve | None = None
    """Share of the peak rate that grouped products of experts reach, by the operations of the product of one
    expert; None: an estimate."""
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
        others = {key: one.model_copy(update={"spread": _OTHER_KERNELS}) for key, one in of_gpu.items()}
        assumed = {key: one for key, one in estimated_kernels() if one is not None}
        return ServingKernels(**{**assumed, **others, **stated})


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
                [["10 MFLOP", 0.02], ["0.27 GFLOP", 0.2], ["1.1 GFLOP", 0.37], ["4.4 GFLOP", 0.52]],
                "benchmark_moe.py of vLLM on an A100 80 GB, 64 experts of 2048 x 1408 (vllm-project/vllm "
                "pull request 40542): 930 us for 1,024 tokens, 2637 us for 4,096",
                0.3,
            ),
            "weight_latency": _estimate(
                "4 us",
                "Marlin on an H100, 8192 x 8192, 1 token: 27.0 us for 4 bits and 38.8 us for 8, 58.3 us for "
                "16 (inclusionAI/humming pull request 2); what does not shrink with the bytes, less a kernel",
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


_OPERATIONS = {"step": 150.0, "kernel": 1.0, "attention": 20.0, "experts": 40.0, "mxfp4": 120.0}
"""Times per event as multiples of a PyTorch operation without DeepSpeed: see docs/measurements."""


@cache
def estimated_compiled_costs(*, operation_s: float) -> CompiledCosts:
    """Return the costs of a host on which they were not measured, from its time of a PyTorch operation."""
    source = "vLLM 0.25.1 on another host, scaled with the time of a PyTorch operation"
    return CompiledCosts.model_validate(
        {
            key: _estimate(f"{count * operation_s * 1e6:.4f} us", source, 0.3)
            for key, count in _OPERATIONS.items()
        }
    )
