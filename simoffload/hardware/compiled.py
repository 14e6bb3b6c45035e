"""Kernels of compiled serving engines (vLLM, torch.compile) on a GPU, and the host thread that launches them.

Decode steps are replayed from CUDA graphs, so that only the GPU's own time between kernels counts. Longer
prefills are not: the host launches their kernels from Python, layer by layer (vLLM,
``compilation/cuda_graph.py`` and ``config/compilation.py``: ``cudagraph_capture_sizes``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple

from simoffload.documents import Frozen
from simoffload.hardware.quantities import (
    Count,
    EfficiencyCurve,
    PositiveMultiple,
    Provenance,
    RowsCurve,
    Share,
    Sourced,
)
from simoffload.hardware.thread_costs import Multiples
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
    """Speed of the kernels of compiled serving on a GPU; what is left out is as in ``unmeasured``."""

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

    def serving(self, **of_gpu: Provenance) -> ServingKernels:
        """Return all numbers of a GPU whose profile is completed: those that are stated, others ``of_gpu``,
        measured with other kernels."""
        others = {
            key: type(one).model_construct(**{**dict(one), "spread": _OTHER_KERNELS})
            for key, one in of_gpu.items()
        }
        stated = {key: one for key, one in self if one is not None}
        return ServingKernels(**{"pointwise": None, **others, **stated})


_OTHER_KERNELS = 0.2
"""Spread of numbers of a GPU on which compiled code was not measured: twice that of a GPU's rates from
another machine of the kind (``spreads``; our choice)."""


class UnmeasuredKernels(CompiledKernels):
    """What is assumed of GPUs on which the kernels of compiled serving were not measured, apart from what
    their other kernels tell."""

    least_rows: Sourced[Count]
    """Rows that tensor cores multiply at least."""
    grouped: RowsCurve
    """Share of the peak rate that grouped products of experts reach."""
    float8_products: Sourced[Share]
    """Efficiency of products in FP8 over that of products with 16 bits."""
    weight_latency: Sourced[Seconds]
    """Time that a product with weights that its kernel decodes costs in addition."""
    int4: Sourced[Share]
    """Rate of reading weights of 4 bits over that of 16 bits."""
    int8: Sourced[Share]
    """The same for weights of 8 bits that are decoded."""
    float8: Sourced[Share]
    """The same for weights in FP8 that tensor cores multiply as they are."""
    mxfp4: Sourced[Share]
    """The same for experts in MXFP4."""
    decoded: Sourced[Share]
    """Rate of large products with weights that are decoded over that of products with 16 bits."""


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


class CompiledReference(Multiples):
    """The numbers of ``CompiledCosts`` as multiples of ``deepspeed.operation`` of the same host."""

    step: Sourced[PositiveMultiple]
    """Multiple of a step before its first kernel."""
    kernel: Sourced[PositiveMultiple]
    """Multiple of launching a kernel of compiled code."""
    attention: Sourced[PositiveMultiple]
    """Multiple of calling attention between two pieces of compiled code."""
    experts: Sourced[PositiveMultiple]
    """Multiple of calling the experts of a layer."""
    mxfp4: Sourced[PositiveMultiple]
    """Multiple of calling those in MXFP4."""


@cache
def estimated_compiled_costs(reference: CompiledReference, *, operation_s: float) -> CompiledCosts:
    """Return the costs of a host on which they were not measured, from its time of a PyTorch operation under
    DeepSpeed."""
    return CompiledCosts.model_validate(reference.times(operation_s))
