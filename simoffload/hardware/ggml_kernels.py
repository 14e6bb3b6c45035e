"""Kernels of ggml's CUDA backend, with which llama.cpp multiplies weights of the types of GGUF."""

from __future__ import annotations

from simoffload.documents import Frozen
from simoffload.hardware.quantities import Provenance, RowsCurve, Sourced
from simoffload.units import BytesPerSecond, Seconds


class GgmlKernels(Frozen):
    """Speed of the kernels of ggml on a GPU.

    A product of one token takes the time of its bytes at the rate of 16-bit weights and that of decoding
    them, one after the other. A product of many tokens rounds its input to 8 bits (``mul_mat_q``); its rate
    depends on its tokens, that of experts on the tokens of each.
    """

    kernel_latency: Sourced[Seconds]
    """Time that each kernel of a CUDA graph costs in addition to its work."""
    decode: Sourced[BytesPerSecond]
    """Rate of decoding weights of fewer than 8 bits of one matrix."""
    decode_experts: Sourced[BytesPerSecond]
    """The same for the chosen experts of a layer, whatever their type: their matrices are small."""
    products: RowsCurve
    """Share of the peak rate in 16 bits that products of so many tokens reach."""
    grouped: RowsCurve
    """The same for experts, by the tokens of each."""

    @property
    def deciding(self) -> tuple[Provenance, ...]:
        """The numbers that decide the time of generating text."""
        return self.kernel_latency, self.decode, self.decode_experts
