"""Speed of ggml's kernels on the CPU and on GPUs, with which llama.cpp computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from simoffload.documents import Frozen
from simoffload.hardware.quantities import (
    Count,
    PositiveMultiple,
    PositiveSeconds,
    Provenance,
    RowsCurve,
    Share,
    Sourced,
    saturating,
)
from simoffload.units import BytesPerSecond, FlopsPerSecond, Seconds

# -- products that the CPU computes from weights in host memory, as llama.cpp does (ggml-cpu) ------


ProductKernel = Literal["dot", "blocked", "tiled"]
"""Kind of kernel that multiplies several tokens: one dot product after the other (``vec_dot``), blocks of
rows (llamafile's ``sgemm``), or tiles (``ggml-cpu/tiled``)."""


_ONE_BY_ONE = 8
"""Tokens up to which types with tiles are multiplied by dot products (``ggml_tiled_min_batch``)."""


class CpuReads(Frozen):
    """Shares of the memory's peak bandwidth with which all cores read the weights of a product of one
    token, if their arithmetic is free."""

    weights: Sourced[Share]
    """Share for the weights of one matrix."""
    experts: Sourced[Share]
    """Share for the chosen experts of a layer, one after the other."""


class CpuKernels(Frozen):
    """Speed of the threads and kernels of products, and of what is around them."""

    thread: Sourced[BytesPerSecond]
    """Rate at which one thread multiplies weights with one token, if memory is fast."""
    dot_thread: Sourced[BytesPerSecond]
    """The same for types that have kernels of dot products alone (MXFP4)."""
    dot: Sourced[FlopsPerSecond]
    """Rate of a core for several tokens with kernels of dot products."""
    blocked: Sourced[FlopsPerSecond]
    """The same with kernels that multiply blocks of rows."""
    tiled: Sourced[FlopsPerSecond]
    """The same with kernels that multiply tiles, for very many tokens."""
    tiled_rows: Sourced[Count]
    """Tokens with which tiles are half as fast."""
    attention: Sourced[FlopsPerSecond]
    """Rate of a core for attention of one token to the cache."""
    operation: Sourced[PositiveSeconds]
    """Time in which all threads meet, once in each operation of a graph and twice in products."""
    switch: Sourced[PositiveSeconds]
    """Time that it takes to bring a tensor from the GPU to the CPU, or back, and to go on there, in addition
    to what is copied."""
    page_faults: Sourced[BytesPerSecond]
    """Rate at which pages of a mapped file enter memory that is full, however fast the drive is."""


class CpuProducts(CpuReads, CpuKernels):
    """Speed at which the CPU multiplies weights with few tokens, or with many, and of what is around it."""

    @property
    def deciding(self) -> tuple[Provenance, ...]:
        """The numbers that decide the time of generating text."""
        return self.weights, self.experts, self.thread, self.operation, self.switch

    def read_rate(self, kernel: ProductKernel, peak: int, *, threads: float, experts: bool) -> float:
        """Return the rate [B/s] at which ``threads`` multiply weights with one token, from memory of a
        ``peak`` bandwidth [B/s]: that of their arithmetic beneath that of the memory."""
        share = (self.experts if experts else self.weights).value
        return saturating(threads * self.thread_rate(kernel).value, share * peak)

    def thread_rate(self, kernel: ProductKernel) -> Sourced[BytesPerSecond]:
        """Return the rate at which one thread multiplies weights with one token, if memory is fast."""
        return self.dot_thread if kernel == "dot" else self.thread

    def kernel_rate(self, kernel: ProductKernel, rows: float) -> float:
        """Return the rate of a core with a kind of kernel for ``rows`` tokens of each matrix [FLOP/s]."""
        if kernel == "blocked":
            return self.blocked.value
        if kernel == "dot" or rows <= _ONE_BY_ONE:
            return self.dot.value
        return max(self.dot.value, self.tiled.value * rows / (rows + self.tiled_rows.value))


class CpuClasses(CpuKernels):
    """Products on CPUs where they were not measured; how fast weights are read depends on the class of the
    host."""

    desktop: CpuReads
    """Reads of hosts with two channels of memory."""
    workstation: CpuReads
    """Reads of hosts with four to eight channels."""
    server: CpuReads
    """Reads of hosts with more channels, or with several sockets."""

    def of(self, bandwidth: int, *, nodes: int, channels: int | None = None) -> CpuProducts:
        """Return the products of a host with ``nodes`` NUMA nodes and a peak ``bandwidth`` [B/s] of memory in
        ``channels``, if their number is known."""
        if channels is None:
            channels = 2 if bandwidth <= _DESKTOP else 8 if bandwidth <= _WORKSTATION else 12
        reads = self.workstation if channels > 2 else self.desktop
        reads = self.server if nodes > 1 or channels > 8 else reads
        kernels = {key: getattr(self, key) for key in CpuKernels.model_fields}
        return CpuProducts.model_construct(**kernels, **dict(reads))


_DESKTOP, _WORKSTATION = 140_000_000_000, 400_000_000_000
"""Most bandwidth [B/s] of two channels of DDR5-8800, and of eight of DDR5-6250."""


# -- kernels of ggml's CUDA backend, with which llama.cpp multiplies weights of the types of GGUF --


class GgmlKernels(Frozen):
    """Speed of the kernels of ggml on a GPU.

    A product of one token takes the time of its bytes at the rate of 16-bit weights and that of decoding
    them, one after the other. A product of many tokens rounds its input to 8 bits (``mul_mat_q``); its rate
    depends on its tokens, that of experts on how far the tokens of each fill its tiles.
    """

    kernel_latency: Sourced[Seconds]
    """Time that each kernel of a CUDA graph costs in addition to its work."""
    decode: Sourced[BytesPerSecond]
    """Rate of decoding weights of fewer than 8 bits of one matrix."""
    decode_experts: Sourced[BytesPerSecond]
    """The same for the chosen experts of a layer, whatever their type: their matrices are small."""
    products: RowsCurve
    """Share of the peak rate in 16 bits that products of so many tokens reach."""
    grouped: RowsCurve | None = None
    """The same for experts, by the tokens of each; None: by ``experts`` and by how far tiles are full."""
    experts: Sourced[PositiveMultiple] | None = None
    """Rate of experts with full tiles over that of products with many tokens."""
    four_bits: Sourced[PositiveMultiple] | None = None
    """Rate of products of MXFP4 over that of other types, where the GPU multiplies 4 bits; None: the same."""
    reads: Sourced[Share] | None = None
    """Share of the peak bandwidth with which a product of one token reads and decodes weights of one matrix;
    None: the rate of 16-bit weights and that of ``decode``."""
    expert_reads: Sourced[Share] | None = None
    """The same for the chosen experts of a layer."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.grouped is None) == (self.experts is None):
            raise ValueError("give either grouped or experts, for prompts of mixtures")
        return self

    def expert_share(self, rows: float, *, tokens: int) -> float:
        """Return the share of the peak rate that experts reach with ``rows`` tokens each of so many.

        A tile has as many columns as there are tokens, up to 128, and takes as long if few of them are an
        expert's; the last tile of an expert with many tokens is half full on the mean
        (``mul_mat_q_case``, ggml/src/ggml-cuda/mmq.cuh of llama.cpp@0c1e5709).
        """
        if self.grouped is not None:
            return self.grouped.at(rows)
        assert self.experts is not None
        columns = min(_COLUMNS, _STEP * -(-tokens // _STEP))
        tiles = max(1.0, rows / columns + 0.5)
        share = self.products.points[-1][1] * self.experts.value
        return share * rows / (tiles * (columns + _LOADED))

    def deciding(self, *, experts: bool) -> tuple[Provenance, ...]:
        """Return the numbers that decide the time of generating text with a mixture of ``experts`` or not."""
        if experts:
            return self.kernel_latency, self.expert_reads or self.decode_experts
        return self.kernel_latency, self.reads or self.decode


_COLUMNS, _STEP = 128, 16
"""Most columns of a tile with tensor cores (``get_mmq_x_max_host``), and the step of their number."""
_LOADED = 23
"""Columns whose products take as long as loading the weights of a tile: from 16, 32 and 128 tokens on an H100
(``grouped`` of h100-sxm: 0.075, 0.087 and 0.154 of the peak if tiles were full)."""


class GgmlShares(Frozen):
    """Speed of the kernels of ggml on GPUs of one architecture, as shares of what their data sheets say."""

    prompts: Sourced[PositiveMultiple]
    """Rate of products of 512 tokens over the peak in single precision: of the GPUs of an architecture the
    rates in int8 are one multiple of it, whereas those in 16 bits differ by the market."""
    reads: Sourced[Share]
    """Share of the peak bandwidth with which a product of one token reads and decodes weights."""
    expert_reads: Sourced[Share]
    """The same for the chosen experts of a layer."""


class GgmlElsewhere(Frozen):
    """Kernels of ggml on GPUs where they were not measured."""

    kernel_latency: Sourced[Seconds]
    """Time of a kernel, as of GPUs that were measured."""
    decode: Sourced[BytesPerSecond]
    """Rate of decoding, as of GPUs that were measured; it counts where ``hbm_efficiency`` of the profile is
    measured and the rate of 16-bit weights is not."""
    decode_experts: Sourced[BytesPerSecond]
    """Rate of decoding the chosen experts of a layer."""
    products: RowsCurve
    """Share of the rate of products with 512 tokens that those of so many reach."""
    experts: Sourced[PositiveMultiple]
    """Rate of experts with full tiles over that of products with 512 tokens."""
    four_bits: Sourced[PositiveMultiple]
    """Rate of products of MXFP4 over that of other types, from compute capability 12.0 on."""
    architectures: Mapping[Annotated[str, Field(pattern=r"^\d+\.\d$")], GgmlShares]
    """Shares of the peak by compute capability, such as "8.9"."""

    def of(self, capability: float | None, *, peak: float, single: float, measured: bool) -> GgmlKernels:
        """Return the kernels of a GPU with a ``peak`` in 16 bits and in ``single`` precision [FLOP/s], and
        whose share of the bandwidth is ``measured`` or not.

        Of another compute capability they are those of the next older one that is known, or else the oldest.
        """
        known = sorted(self.architectures, key=float)
        older = [one for one in known if capability is None or float(one) <= capability]
        shares = self.architectures[_OTHER if capability is None else (older or known[:1])[-1]]
        most = shares.prompts.value * single / peak
        kept = shares.prompts.model_dump(include={"origin", "source", "date", "spread"})
        points = tuple((rows, share * most) for rows, share in self.products.points)
        products = RowsCurve.model_construct(points=points, **kept)
        read: dict[str, Any] = (
            {} if measured else {"reads": shares.reads, "expert_reads": shares.expert_reads}
        )
        same: dict[str, Any] = {
            key: getattr(self, key) for key in ("kernel_latency", "decode", "decode_experts", "experts")
        }
        if capability is not None and capability >= _FOUR_BITS:
            same["four_bits"] = self.four_bits
        return GgmlKernels.model_construct(**same, products=products, **read)


_FOUR_BITS = 12.0
"""Compute capability from which llama.cpp multiplies MXFP4 in 4 bits (pull request 17906, 2025-12)."""
_OTHER = "9.0"
"""Compute capability whose shares GPUs of other makers have: accelerators of data centres, for which the
kernels were not written."""
