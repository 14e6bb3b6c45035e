"""Products that the CPU computes from weights in host memory, as llama.cpp does (ggml-cpu)."""

from __future__ import annotations

from typing import Literal

from simoffload.documents import Frozen
from simoffload.hardware.quantities import PositiveSeconds, Provenance, Share, Sourced
from simoffload.units import BytesPerSecond, FlopsPerSecond

ProductKernel = Literal["dot", "blocked", "tiled"]
"""Kind of kernel that multiplies several tokens: one dot product after the other (``vec_dot``), blocks of
rows (llamafile's ``sgemm``), or tiles (``ggml-cpu/tiled``)."""


class CpuProducts(Frozen):
    """Speed at which the CPU multiplies weights with few tokens, or with many, and of what is around it."""

    weights: Sourced[Share]
    """Share of the memory's peak bandwidth with which all cores read the weights of one product."""
    experts: Sourced[Share]
    """The same for the chosen experts of a layer, one after the other."""
    thread: Sourced[BytesPerSecond]
    """Rate at which one thread reads weights; several are as fast together until memory limits them."""
    dot: Sourced[FlopsPerSecond]
    """Rate of a core for many tokens with kernels of dot products."""
    blocked: Sourced[FlopsPerSecond]
    """The same with kernels that multiply blocks of rows."""
    tiled: Sourced[FlopsPerSecond]
    """The same with kernels that multiply tiles."""
    operation: Sourced[PositiveSeconds]
    """Time of each operation of a graph for which all threads meet, in addition to its work."""
    switch: Sourced[PositiveSeconds]
    """Time that it takes to go on from the GPU to the CPU, or back, in addition to what is copied."""
    page_faults: Sourced[BytesPerSecond]
    """Rate at which pages of a mapped file enter memory that is full, however fast the drive is."""

    @property
    def deciding(self) -> tuple[Provenance, ...]:
        """The numbers that decide the time of generating text."""
        return self.weights, self.experts, self.operation, self.switch

    def read_rate(self, peak: int, *, threads: int, experts: bool) -> float:
        """Return the rate [B/s] at which ``threads`` read weights from memory of a ``peak`` bandwidth
        [B/s]."""
        share = (self.experts if experts else self.weights).value
        return min(threads * self.thread.value, share * peak)


class CpuClasses(Frozen):
    """Products on CPUs where they were not measured, by the class of the host."""

    desktop: CpuProducts
    """Those of hosts with two channels of memory."""
    workstation: CpuProducts
    """Those of hosts with four to eight channels."""
    server: CpuProducts
    """Those of hosts with more channels, or with several sockets."""

    def of(self, bandwidth: int, *, nodes: int, channels: int | None = None) -> CpuProducts:
        """Return the class of a host with ``nodes`` NUMA nodes and a peak ``bandwidth`` [B/s] of memory in
        ``channels``, if their number is known."""
        if channels is None:
            channels = 2 if bandwidth <= _DESKTOP else 8 if bandwidth <= _WORKSTATION else 12
        if nodes > 1 or channels > 8:
            return self.server
        return self.workstation if channels > 2 else self.desktop


_DESKTOP, _WORKSTATION = 140_000_000_000, 400_000_000_000
"""Most bandwidth [B/s] of two channels of DDR5-8800, and of eight of DDR5-6250."""
