"""Schemas of what is in a host: accelerators, PCIe generations, network adapters."""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator

from simoffload.documents import Frozen
from simoffload.errors import InputError
from simoffload.hardware.ggml import GgmlKernels
from simoffload.hardware.kernel_work import STORED_BYTES, KernelWork, product_work
from simoffload.hardware.program_costs import CompiledKernels, GpuAllocation, ServingKernels
from simoffload.hardware.quantities import (
    AttentionCurve,
    Count,
    Curve,
    EfficiencyCurve,
    Identifier,
    KernelTable,
    NumberOfParts,
    PowerCurve,
    PowerLimit,
    RateCurve,
    Reference,
    Share,
    Sourced,
    Text,
    whole_rate,
)
from simoffload.units import BytesPerSecond, FlopsPerSecond, PositiveBytes, Seconds, Watts


class Profile(Frozen):
    """The keys with which every profile file begins."""

    id: Identifier
    """The id by which other files refer to the profile; for a shipped profile also the name of its file."""
    name: Text
    """A descriptive name, shown in tables and reports."""
    notes: str = ""
    """What a user of the profile must know."""


class Slot(Frozen):
    """A device's own side of its slot; a slower slot of the host or switch limits the device to that slot's
    rate."""

    profile: Reference
    """The newest PCIe generation that the device itself supports."""
    lanes: Sourced[Count]
    """Number of lanes that are wired."""


_LEAST_POWER = 0.5
"""Least power limit as a share of the board's power, where the shipped curves begin."""
R = TypeVar("R", int, float)
_LARGE_COPY = 64 << 20  # smallest size of copies [B] with which `calibrate micro` measures both ways


class Pcie(Profile):
    """A generation of PCIe (or another cable between host and accelerator)."""

    elsewhere: ClassVar = {
        "pageable": "the CPU stages such copies; move this curve, as it is, to the profile of the host",
    }
    kind: Literal["pcie"]
    protocol: Literal["pcie", "nvlink"] = "pcie"
    """``pcie``: a slot and the device in it run at the slower generation of the two; ``nvlink``: a cable
    without a slot."""
    lane_rate: Sourced[BytesPerSecond]
    """Raw rate of one lane in one direction, before encoding."""
    encoding: Sourced[Share]
    """Payload share of the line code, e.g. 128/130."""
    packet_efficiency: Sourced[Share]
    """Share of the encoded rate that drives and adapters reach; the rest is packet headers."""
    copy_lanes: NumberOfParts
    """Number of lanes over which the copy rates below were measured."""
    host_to_device: RateCurve
    """Rate of a copy from pinned host memory, by size."""
    device_to_host: RateCurve
    """Rate of a copy to pinned host memory, by size."""
    both_ways: Sourced[Share]
    """Rate of simultaneous copies in both directions, as a fraction of the sum of the rates of each direction
    alone."""
    both_ways_by_size: RateCurve | None = None
    """Rate of both directions together for blocks that are copied one after the other, by the size of a copy
    below 64 MiB; everything else has ``both_ways``."""
    latency: Sourced[Seconds]
    """Time of one small copy, from the call to its end."""

    def within(self, slot: Pcie | None) -> Pcie:
        """Return the generation at which a device of this generation runs in ``slot``; None means that the
        slot is unknown, so that the device runs at its own generation."""
        if slot is None or "nvlink" in (self.protocol, slot.protocol):
            return self
        return slot if slot.is_slower(self) else self

    def is_slower(self, other: Pcie) -> bool:
        """Return whether this generation moves fewer bytes over a lane than the other one."""
        return self.lane_rate.value * self.encoding.value < other.lane_rate.value * other.encoding.value

    def payload_rate(self, lanes: int) -> int:
        """Return the rate [B/s] at which drives and adapters can move data over ``lanes`` in one
        direction."""
        raw = self.lane_rate.value * lanes
        return whole_rate(raw * self.encoding.value * self.packet_efficiency.value)

    def down_rate(self, lanes: int) -> int:
        """Return the rate [B/s] away from the host over ``lanes``: the highest measured rate of copies."""
        return whole_rate(self.host_to_device.top * lanes // self.copy_lanes)

    def up_rate(self, lanes: int) -> int:
        """Return the rate [B/s] towards the host over ``lanes``: the highest measured rate of copies."""
        return whole_rate(self.device_to_host.top * lanes // self.copy_lanes)

    @model_validator(mode="after")
    def _small_sizes(self) -> Pcie:
        if self.both_ways_by_size and self.both_ways_by_size.points[-1][0] >= _LARGE_COPY:
            raise ValueError("both_ways_by_size: sizes from 64 MiB on have both_ways; remove them")
        return self

    def both_ways_rate(self, down: int, up: int) -> Curve:
        """Return the rate [B/s] of copies in both directions together, by their size, over a cable that
        carries ``down`` and ``up`` [B/s] alone."""
        large = whole_rate(self.both_ways.value * (down + up))
        if self.both_ways_by_size is None:
            return Curve.flat(large)
        measured = self.host_to_device.top + self.device_to_host.top
        small = self.both_ways_by_size.scaled(down + up, measured).points
        return Curve((*((size, min(rate, large)) for size, rate in small), (_LARGE_COPY, large)))

    def copy_curve(self, *, to_device: bool, lanes: int) -> Curve:
        """Return the rate [B/s] of one copy of pinned memory, by size."""
        curve = self.host_to_device if to_device else self.device_to_host
        return curve.scaled(lanes, self.copy_lanes)


class ComputeRates(Frozen):
    """Dense peak rates per data type, with fp32 accumulation; a type that the chip does not support is left
    out."""

    float32: Sourced[FlopsPerSecond]
    """Peak rate in single precision, without TF32."""
    float16: Sourced[FlopsPerSecond] | None = None
    """Peak rate in half precision (fp16)."""
    bfloat16: Sourced[FlopsPerSecond] | None = None
    """Peak rate in brain floating point (bf16)."""
    float8: Sourced[FlopsPerSecond] | None = None
    """Peak rate in 8-bit floating point."""
    float4: Sourced[FlopsPerSecond] | None = None
    """Peak rate in 4-bit floating point with scales of groups (NVFP4, MXFP4), without sparsity."""


class Interconnect(Frozen):
    """Links between accelerators that do not use PCIe; left out when there are none."""

    name: Text
    """Name of the links, for example NVLink."""
    per_direction: Sourced[BytesPerSecond]
    """Rate of all links of one accelerator together, in one direction."""
    efficiency: Sourced[Share]
    """Share of that rate that collectives reach."""
    latency: Sourced[Seconds]
    """Time of one collective operation on little data."""

    @property
    def rate(self) -> int:
        """The rate [B/s] at which one accelerator receives, or sends, in practice."""
        return whole_rate(self.per_direction.value * self.efficiency.value)


class HostReads(Frozen):
    """How kernels read operands in host memory where they are, without a copy: no cache keeps what they have
    read, so that every tile of a product reads its weights again."""

    rows: Sourced[Count]
    """Number of rows (tokens) of a matrix multiplication that share one reading of the weights."""
    rate_share: Sourced[Share]
    """Rate of such reads as a fraction of that of large copies of pinned memory."""


class HostRows(Frozen):
    """How kernels gather rows that lie apart in host memory, of which each needs the addresses of its
    pages."""

    reach: Sourced[PositiveBytes]
    """Size [B] of the memory in which all rows may lie without a limit for their pages."""
    pages: Sourced[BytesPerSecond]
    """Pages per second beyond it, each counted as its 4 KiB [B/s]."""

    def rate(self, row: float, span: float) -> float:
        """Return the most bytes of rows per second [B/s] of which each has ``row`` [B], and all lie in
        ``span`` [B]: at any place a row touches 1 + row / 4,096 pages."""
        return inf if span <= self.reach.value else self.pages.value * row / (row + _PAGE)


_PAGE = 4096
"""Size [B] of a page of host memory."""


class PowerRates(Frozen):
    """What a GPU keeps of its rates at a power limit."""

    compute: PowerCurve
    """Part of the rates of arithmetic, and of unpacking weights of few bits, that is left."""
    memory: PowerCurve
    """Part of the rate of reading its memory that is left."""


TOGETHER = 3.0
"""Exponent p with which the times of bytes and arithmetic of a product make its time, (a^p + b^p)^(1/p): they
overlap, but not wholly where both are about equal. A layer of Llama-3.1-8B on an H100 takes 182, 220 and 346
us for 128, 256 and 512 tokens (2026-11-24), where its bytes need 156 and its arithmetic 88, 175 and 327."""


MULTIPLIED = ("float16", "bfloat16", "float8", "float4")
"""Data types whose products have tables."""


def together(read_s: float, arithmetic_s: float) -> float:
    """Return the time [s] of a product whose bytes and arithmetic take so long alone [s]."""
    return float((read_s**TOGETHER + arithmetic_s**TOGETHER) ** (1 / TOGETHER))


class Accelerator(Profile):
    """A GPU with its memory, its peak rates and its links."""

    kind: Literal["accelerator"]
    compute_capability: Sourced[Annotated[float, Field(strict=True, ge=1, le=99)]] | None = None
    """NVIDIA's compute capability, such as 8.9, below which programs refuse a GPU; None: not known, or of
    another manufacturer, so that nothing is refused for it."""
    display: Sourced[Annotated[bool, Field(strict=True)]] | None = None
    """Whether the GPU is one of a desktop, where a display takes some of its memory; None: it is not."""
    hbm_capacity: Sourced[PositiveBytes] | None = None
    """Memory of the GPU that programs can have, as CUDA or HIP reports it (``total_memory`` of PyTorch, which
    is less than nvidia-smi shows), including what is ``reserved``; required unless the memory is unified."""
    unified_memory: Sourced[Annotated[bool, Field(strict=True)]] | None = None
    """Whether the GPU has no memory of its own but works in that of its host; None: it has its own."""
    hbm_bandwidth: Sourced[BytesPerSecond]
    """Peak bandwidth at which the GPU reads its memory, or the host's if that is unified."""
    hbm_efficiency: Sourced[Share]
    """Share of the peak bandwidth that kernels reach."""
    power: Sourced[Watts] | None = None
    """Power of the board at which the rates hold, that of its data sheet; None: not known."""
    power_limit: PowerLimit | None = None
    """Lower limit of the board's power (``nvidia-smi -pl``), down to half of ``power``; None: no lower one.
    The machine has the rates that ``power_rates`` leave."""
    power_rates: PowerRates | None = None
    """What is left at a limit; None: not measured, so that it is as on other GPUs."""
    reserved: Sourced[PositiveBytes]
    """Memory that the CUDA context, cuBLAS and NCCL occupy."""
    compute: ComputeRates
    """Peak rates of arithmetic, per data type."""
    matmul_efficiency: EfficiencyCurve
    """Share of the peak rate that matrix multiplications reach."""
    strided_rate: Sourced[BytesPerSecond] | None = None
    """Rate at which kernels read and write 16-bit numbers that PyTorch does not vectorize: a bias, a mask or
    a factor that many elements share, or a copy of a transposed tensor; None: that of other kernels."""
    join_rate: Sourced[BytesPerSecond] | None = None
    """Rate at which ``torch.cat`` reads and writes transposed keys and values of a prompt; None: as above."""
    float16_share: Sourced[Share] | None = None
    """Rate of matrix multiplications in float16 as a fraction of that in bfloat16; None: they are equal."""
    fused_attention: AttentionCurve | None = None
    """Share of its ideal speed that PyTorch's fused attention reaches; None: not known, so that it takes the
    longer of the times of its arithmetic and its bytes."""
    eager_attention: AttentionCurve | None = None
    """Share of its ideal speed that attention spelled out in Python reaches; None: as above."""
    kernel_latency: Sourced[Seconds]
    """Time that each kernel costs on the GPU in addition to its work."""
    host_reads: HostReads | None = None
    """How kernels read weights in host memory; None: not known, so that it is as estimated for any GPU."""
    host_rows: HostRows | None = None
    """How kernels gather rows in host memory; None: as on an H200."""
    compiled: CompiledKernels = CompiledKernels()
    """Speed of the kernels of compiled serving engines."""
    ggml: GgmlKernels | None = None
    """Speed of the kernels of llama.cpp; None: not measured, so that it is as estimated for any GPU."""
    allocation: GpuAllocation | None = None
    """Times of allocating and releasing GPU memory; None: not measured, so that they are as on another
    machine."""
    pcie: Slot
    """The GPU's own side of its slot."""
    gpudirect_storage: Sourced[Annotated[bool, Field(strict=True)]] | None = None
    """Whether the card and its driver support GPUDirect Storage; None: not known."""
    interconnect: Interconnect | None = None
    """Links to other GPUs; None: all traffic between GPUs goes over PCIe."""

    @model_validator(mode="after")
    def _one_memory(self) -> Accelerator:
        if self.is_unified and self.hbm_capacity is not None:
            raise ValueError("unified_memory is true, so leave hbm_capacity out: the host's profile has it")
        if not self.is_unified and self.hbm_capacity is None:
            raise ValueError("hbm_capacity is missing: give it, or unified_memory if the GPU uses the host's")
        return self

    @model_validator(mode="after")
    def _limit_in_range(self) -> Accelerator:
        if self.power_limit is None:
            return self
        if self.power is None:
            raise ValueError("power_limit is a part of the board's power, which is not stated; add power")
        most = self.power.value
        if not _LEAST_POWER * most <= self.power_limit <= most:
            text = (
                f"power_limit must be from {_LEAST_POWER * most:g} W, below which what is left is not known"
            )
            raise ValueError(f"{text}, to {most:g} W, got {self.power_limit:g} W; leave it out for no limit")
        return self

    def limited(self) -> Accelerator:
        """Return the GPU with the rates of its power limit."""
        if self.power_limit is None or self.power is None or self.power_rates is None:
            return self
        share = self.power_limit / self.power.value
        compute, memory = self.power_rates.compute.at(share), self.power_rates.memory.at(share)
        slower = {key: _slower(rate, compute) for key, rate in self.compute if rate is not None}
        changes: dict[str, object] = {
            "compute": self.compute.model_copy(update=slower),
            "hbm_bandwidth": _slower(self.hbm_bandwidth, memory),
        }
        if (pointwise := self.compiled.pointwise) is not None:
            slower_work = {"pointwise": _slower(pointwise, memory)}
            changes["compiled"] = self.compiled.model_copy(update=slower_work)
        if self.ggml is not None:
            decode = {key: _slower(getattr(self.ggml, key), compute) for key in ("decode", "decode_experts")}
            changes["ggml"] = self.ggml.model_copy(update=decode)
        return self.model_copy(update=changes)

    @property
    def is_unified(self) -> bool:
        """Whether the GPU works in the memory of its host."""
        return self.unified_memory is not None and self.unified_memory.value

    @property
    def ggml_name(self) -> str:
        """Name of the GPU in llama.cpp, before its number: that of its library, HIP for those of AMD
        (``GGML_CUDA_NAME`` of ggml-cuda.h)."""
        return "ROCm" if self.name.upper().startswith("AMD ") else "CUDA"

    @property
    def has_display(self) -> bool:
        """Whether a display may take some of its memory."""
        return self.display is not None and self.display.value

    @property
    def hbm_rate(self) -> float:
        """The bandwidth [B/s] that kernels reach in GPU memory."""
        return self.hbm_bandwidth.value * self.hbm_efficiency.value

    @property
    def kernel_latency_s(self) -> float:
        """The time [s] that each kernel costs in addition to its work."""
        return self.kernel_latency.value

    @property
    def reads(self) -> HostReads:
        """How kernels read weights in host memory."""
        assert self.host_reads is not None, "machines complete their profiles"
        return self.host_reads

    @property
    def rows(self) -> HostRows:
        """How kernels gather rows in host memory."""
        assert self.host_rows is not None, "machines complete their profiles"
        return self.host_rows

    @property
    def llama_kernels(self) -> GgmlKernels:
        """Speed of the kernels of llama.cpp."""
        assert self.ggml is not None, "machines complete their profiles"
        return self.ggml

    @property
    def reserved_bytes(self) -> int:
        """The memory [B] that context and libraries occupy."""
        return self.reserved.value

    def matmul_rate(self, work: float, dtype: str) -> float:
        """Return the rate [FLOP/s] of a matrix multiplication of ``work`` [FLOP] on ``dtype``.

        Raises InputError for a data type that the chip does not support.
        """
        return self.peak(dtype) * self.matmul_efficiency.at(work)

    def native(self, arithmetic: str | None) -> str:
        """Return the data type in which tensor cores multiply weights of such an ``arithmetic``; empty if
        they cannot. FP8 with scales of groups (mxfloat8) needs those that have FP4."""
        if arithmetic is None:
            return ""
        needed, given = ("float4", "float8") if arithmetic == "mxfloat8" else (arithmetic, arithmetic)
        return given if getattr(self.compute, needed) is not None else ""

    def peak(self, dtype: str) -> float:
        """Return the rate [FLOP/s] of which an efficiency is a share. Raises InputError for a data type that
        the chip does not support."""
        peak: Sourced[FlopsPerSecond] | None = getattr(self.compute, dtype, None)
        if peak is None:
            has = ", ".join(name for name, rate in self.compute if rate is not None)
            raise InputError.at("", f"{self.id} does not support {dtype}; it supports {has}")
        share = self.float16_share.value if self.float16_share and dtype == "float16" else 1.0
        return peak.value * share

    def product_s(
        self, *, rows: int, outputs: int, inputs: int, dtype: str, size: int, bursts: bool = False
    ) -> float | None:
        """Return the time [s] of a product by the table of its data type, the latency of its kernel included;
        None without a table. Results have ``size`` [B] an element; for ``bursts`` see ``table_s``.
        """
        code, weight = self.compiled, STORED_BYTES.get(dtype, size)
        table = getattr(code, f"{dtype}_product_table") if dtype in STORED_BYTES else code.product_table
        if table is None or dtype not in MULTIPLIED:
            return None
        work = product_work(rows=rows, outputs=outputs, inputs=inputs, weight=weight, size=size)
        return self.table_s(table, work, dtype=dtype, bursts=bursts)

    def table_s(self, table: KernelTable, work: KernelWork, *, dtype: str, bursts: bool = False) -> float:
        """Return the time [s] of kernels by a table of their speed; in ``bursts`` the clock is not
        lowered."""
        share = table.share(
            rows=work.rows, outputs=work.outputs, inputs=work.inputs, padded=not bursts or work.apart
        )
        return self.ideal_s(work, dtype=dtype, kept=1.0 if bursts else table.value) / share

    def ideal_s(self, work: KernelWork, *, dtype: str, kept: float = 1.0) -> float:
        """Return the ideal time [s] of which the shares of tables are, with ``kept`` of the peak rate.

        Notes
        -----
        t = together(bytes / peak bandwidth, FLOP / (peak rate x kept)) + kernels x latency; of kernels apart
        the sum of both.
        """
        alone = work.traffic / self.hbm_bandwidth.value, work.flops / (self.peak(dtype) * kept)
        latency = self.compiled.kernel_latency or self.kernel_latency
        return (sum(alone) if work.apart else together(*alone)) + work.kernels * latency.value

    @cached_property
    def kernels(self) -> ServingKernels:
        """Kernels of compiled serving: the numbers of the section ``compiled``, or else others of the
        profile."""
        return self.compiled.serving(
            kernel_latency=self.kernel_latency,
            read_efficiency=self.hbm_efficiency,
            products=self.matmul_efficiency,
        )


def _slower(rate: Sourced[R], share: float) -> Sourced[R]:
    return rate.model_copy(update={"value": type(rate.value)(rate.value * share)})


class Nic(Profile):
    """One port of a network adapter."""

    kind: Literal["nic"]
    fabric: Literal["ethernet", "infiniband"] | None = None
    """Kind of network; both ends of a cable have the same one. None: not stated."""
    link_rate: Sourced[BytesPerSecond]
    """Rate on the wire, in one direction."""
    achieved: Sourced[BytesPerSecond]
    """Payload rate that is reached in one direction."""
    latency: Sourced[Seconds]
    """One-way latency of a small message."""
    pcie: Slot
    """The adapter's own side of its slot."""
