"""Schemas of what a host is made of: accelerators, host memory and CPU, PCIe generations, network
adapters."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simoffload.documents import Frozen
from simoffload.errors import InputError
from simoffload.hardware.quantities import (
    AttentionCurve,
    Count,
    Curve,
    EfficiencyCurve,
    Identifier,
    Multiple,
    RateCurve,
    Reference,
    Share,
    Sourced,
    Text,
    saturating,
)
from simoffload.hardware.thread_costs import (
    DeepSpeedCosts,
    EagerCosts,
    FsdpCosts,
    TrainingCosts,
    estimated_eager_costs,
    scaled_costs,
)
from simoffload.units import BytesPerSecond, FlopsPerSecond, PositiveBytes, Seconds


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


_LARGE_COPY = 64 << 20  # smallest size of copies [B] with which `calibrate micro` measures both ways


class Pcie(Profile):
    """A generation of PCIe (or another cable between host and accelerator)."""

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
    copy_lanes: Count
    """Number of lanes over which the copy rates below were measured."""
    host_to_device: RateCurve
    """Rate of a copy from pinned host memory, by size."""
    device_to_host: RateCurve
    """Rate of a copy to pinned host memory, by size."""
    pageable: RateCurve
    """Rate of a copy from or to pageable host memory, by size; the driver stages it in pinned buffers."""
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
        return int(raw * self.encoding.value * self.packet_efficiency.value)

    def down_rate(self, lanes: int) -> int:
        """Return the rate [B/s] away from the host over ``lanes``: the highest measured rate of copies."""
        return self.host_to_device.top * lanes // self.copy_lanes

    def up_rate(self, lanes: int) -> int:
        """Return the rate [B/s] towards the host over ``lanes``: the highest measured rate of copies."""
        return self.device_to_host.top * lanes // self.copy_lanes

    @model_validator(mode="after")
    def _small_sizes(self) -> Pcie:
        if self.both_ways_by_size and self.both_ways_by_size.points[-1][0] >= _LARGE_COPY:
            raise ValueError("both_ways_by_size: sizes from 64 MiB on have both_ways; remove them")
        return self

    def both_ways_rate(self, lanes: int) -> Curve:
        """Return the rate [B/s] of copies in both directions together over ``lanes``, by their size."""
        large = int(self.both_ways.value * (self.down_rate(lanes) + self.up_rate(lanes)))
        if self.both_ways_by_size is None:
            return Curve.flat(large)
        small = self.both_ways_by_size.scaled(lanes, self.copy_lanes).points
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
        return int(self.per_direction.value * self.efficiency.value)


class Accelerator(Profile):
    """A GPU with its memory, its peak rates and its links."""

    kind: Literal["accelerator"]
    hbm_capacity: Sourced[PositiveBytes] | None = None
    """Total memory of the GPU, including what is ``reserved``; required unless the memory is unified."""
    unified_memory: Sourced[Annotated[bool, Field(strict=True)]] | None = None
    """Whether the GPU has no memory of its own but works in that of its host; None: it has its own."""
    hbm_bandwidth: Sourced[BytesPerSecond]
    """Peak bandwidth at which the GPU reads its memory, or the host's if that is unified."""
    hbm_efficiency: Sourced[Share]
    """Share of the peak bandwidth that kernels reach."""
    reserved: Sourced[PositiveBytes]
    """Memory that the driver, the CUDA context, cuBLAS and NCCL occupy."""
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

    @property
    def is_unified(self) -> bool:
        """Whether the GPU works in the memory of its host."""
        return self.unified_memory is not None and self.unified_memory.value

    @property
    def hbm_rate(self) -> float:
        """The bandwidth [B/s] that kernels reach in GPU memory."""
        return self.hbm_bandwidth.value * self.hbm_efficiency.value

    @property
    def kernel_latency_s(self) -> float:
        """The time [s] that each kernel costs in addition to its work."""
        return self.kernel_latency.value

    @property
    def reserved_bytes(self) -> int:
        """The memory [B] that driver and libraries occupy."""
        return self.reserved.value

    def matmul_rate(self, work: float, dtype: str) -> float:
        """Return the rate [FLOP/s] of a matrix multiplication of ``work`` [FLOP] on ``dtype``.

        Raises InputError for a data type that the chip does not support.
        """
        peak: Sourced[FlopsPerSecond] | None = getattr(self.compute, dtype, None)
        if peak is None:
            has = ", ".join(name for name, rate in self.compute if rate is not None)
            raise InputError.at("", f"{self.id} does not support {dtype}; it supports {has}")
        share = self.float16_share.value if self.float16_share and dtype == "float16" else 1.0
        return peak.value * self.matmul_efficiency.at(work) * share


_OVERFLOW_THREAD, _OVERFLOW_CORE = 0.087, 0.040
"""Rates of a thread and of each of all cores in the search for overflow, as shares of Adam's rate of a thread
(docs/measurements/training.md)."""


class CpuOptimizer(Frozen):
    """Rates of Adam, and of element-wise arithmetic, on the CPU; they count bytes read and written.

    ``n`` threads reach 1 / sqrt(1 / (n x thread)^2 + 1 / limit^2): the rate is proportional to the threads
    until memory bandwidth saturates, with a smooth transition. Measurements of CPU Adam on a Xeon with 1 to
    64 threads, and on an i5-14600K with 1 to 6, are within 4 % of it (docs/measurements/training.md). PyTorch
    allocates a process's states from one thread, and Linux places pages on the NUMA node of the thread that
    first touches them: a process has the bandwidth of one node, however many threads it runs.
    """

    cores: Sourced[Count]
    """Number of cores of all sockets together."""
    numa_nodes: Sourced[Count]
    """Number of NUMA nodes with memory of their own."""
    thread: Sourced[BytesPerSecond]
    """Rate of a single thread of Adam: the limit of the formula for few threads."""
    limit: Sourced[BytesPerSecond]
    """Rate of all threads on the memory of all nodes together: the limit of the formula for many threads."""
    overflow_thread: Sourced[BytesPerSecond] | None = None
    """Rate of a thread in ZeRO-3's search for overflow in float16; None: a share of ``thread`` is assumed."""
    overflow_limit: Sourced[BytesPerSecond] | None = None
    """Rate of all cores in that search; None: a smaller share of ``thread`` is assumed for each of them."""

    @model_validator(mode="after")
    def _overflow_rates_together(self) -> CpuOptimizer:
        thread, limit = self.overflow_thread, self.overflow_limit
        if (thread is None) != (limit is None):
            missing = "overflow_thread" if thread is None else "overflow_limit"
            raise ValueError(f"{missing} is missing: give overflow_thread and overflow_limit, or neither")
        if thread and limit and limit.value < thread.value:
            raise ValueError("overflow_limit, the rate of all cores, must be at least overflow_thread")
        return self

    def rate(self, threads: int, *, processes: int = 1, local: bool = False) -> int:
        """Return the memory traffic [B/s] of Adam on ``threads`` threads of one of ``processes`` processes on
        the host.

        ``local`` means that its threads are spread over the memory on which they work, and so have their
        share of all nodes, not of one (ZenFlow's optimizer process:
        deepspeed/runtime/zenflow/zenflow_utils.py).
        """
        return self.shared(threads * self.thread.value, processes, local=local)

    def shared(self, threads_rate: float, processes: int, *, local: bool = False) -> int:
        """Return the memory traffic [B/s] of one of ``processes`` whose threads alone could reach
        ``threads_rate``."""
        share = self.limit.value / (processes if local else max(self.numa_nodes.value, processes))
        return int(saturating(threads_rate, share))

    def overflow_check_rate(self, threads: int, *, processes: int = 1) -> int:
        """Return the memory traffic [B/s] of a search for overflow by one of ``processes`` on the host."""
        thread = self.overflow_thread.value if self.overflow_thread else _OVERFLOW_THREAD * self.thread.value
        core = _OVERFLOW_CORE * self.thread.value
        limit = self.overflow_limit.value if self.overflow_limit else self.cores.value * core
        return int(saturating(threads * thread, limit / processes))


_ESTIMATED_PINNED_ALLOCATION = Sourced[BytesPerSecond].model_validate(
    {
        "value": "2.8 GB/s",
        "origin": "estimate",
        "source": "median of 23 virtual machines with H100 and H200 (1.4 to 5.6 GB/s), calibrate micro: "
        "docs/measurements/kv-cache.md",
        "date": datetime.date(2026, 11, 23),
        "spread": 0.3,
    }
)
"""Rate at which hosts on which it was not measured pin new memory."""


class Host(Profile):
    """CPUs and their memory, all sockets together."""

    kind: Literal["host"]
    cpu: Text
    """Model name of the processors."""
    memory_capacity: Sourced[PositiveBytes]
    """Installed memory. A memory module sold as 64 GB holds 64 GiB."""
    memory_maximum: Sourced[PositiveBytes] | None = None
    """Most memory that the board supports, and so the most that is proposed; None: not known."""
    memory_bandwidth: Sourced[BytesPerSecond]
    """Peak bandwidth of all memory channels together."""
    stream_fraction: Sourced[Share]
    """Share of the peak bandwidth that the STREAM benchmark, or GPUs that copy simultaneously, reach."""
    from_gpu_traffic: Sourced[Multiple] | None = None
    """Bytes of ``memory_rate`` that each byte copied from a GPU consumes, where it was measured with GPUs
    that copy to the host simultaneously; otherwise 1 is assumed."""
    pageable_traffic: Sourced[Multiple] | None = None
    """Bytes of ``memory_rate`` that each byte copied from pageable memory to a GPU consumes, where it was
    measured; otherwise 3 is assumed, as the CPU reads and writes a staging buffer, which DMA then reads."""
    memcpy_rate: Sourced[BytesPerSecond]
    """Rate at which one thread copies (each byte is read once and written once)."""
    mapped_read: Sourced[BytesPerSecond] | None = None
    """Largest rate at which PyTorch copies from a mapped file that is not in the page cache, with any number
    of threads (FlexGen); None: not measured, so that 2.9 GB/s is assumed (docs/measurements/mapped-files.md).
    """
    reserved: Sourced[PositiveBytes]
    """Memory that the operating system and the processes occupy."""
    slots: Sourced[Reference] | None = None
    """PCIe generation of the slots at the CPUs; None: not known, so that every device runs at its own
    generation."""
    cpu_optimizer: CpuOptimizer
    """Rates of arithmetic on the CPU."""
    host_factor: Sourced[Annotated[float, Field(gt=0, le=100)]] | None = None
    """Time of the Python thread as a multiple of the reference host's (docs/measurements/host-thread.md),
    which the costs below contain already; its ``spread`` is from one stretch of time to another."""
    deepspeed: DeepSpeedCosts
    """Costs of the Python thread under DeepSpeed."""
    training: TrainingCosts
    """Additional costs of the Python thread in training."""
    fsdp: FsdpCosts | None = None
    """Costs of the Python thread under PyTorch's FSDP; None: not measured, so that those of another host are
    scaled."""
    pinned_allocation: Sourced[BytesPerSecond] | None = None
    """Rate at which new memory is allocated and pinned (``cudaHostAlloc``); None: not measured, so that it is
    estimated."""
    eager: EagerCosts | None = None
    """Costs of the Python thread in transformers' code without DeepSpeed; None: not measured, so that they
    are estimated."""

    def elementwise_rate(self, threads: int, *, processes: int = 1) -> int:
        """Return the memory traffic [B/s] of PyTorch's element-wise loops (casts, products, copies) on
        ``threads`` threads.

        One thread moves two bytes for each byte that it copies; all threads together reach the rate of Adam.
        """
        return self.cpu_optimizer.shared(threads * 2 * self.memcpy_rate.value, processes)

    @property
    def fsdp_costs(self) -> FsdpCosts:
        """The host's own costs under FSDP, or those of the reference host scaled to it."""
        if self.fsdp is not None:
            return self.fsdp
        cpu = self.cpu_optimizer
        return scaled_costs(
            operation_s=self.deepspeed.operation.value,
            loops_thread=2 * self.memcpy_rate.value,
            loops_limit=cpu.limit.value / cpu.numa_nodes.value,
        )

    @property
    def eager_costs(self) -> EagerCosts:
        """The host's own costs without DeepSpeed, or estimates from its time of a PyTorch operation."""
        return self.eager or estimated_eager_costs(operation_s=self.deepspeed.operation.value)

    @property
    def new_pinned_memory(self) -> Sourced[BytesPerSecond]:
        """The host's own rate at which new memory is pinned, or an estimate."""
        return self.pinned_allocation or _ESTIMATED_PINNED_ALLOCATION

    @property
    def memory_rate(self) -> int:
        """The rate [B/s] of memory reads and writes together, in practice."""
        return int(self.memory_bandwidth.value * self.stream_fraction.value)

    @property
    def reserved_bytes(self) -> int:
        """The memory [B] that operating system and processes occupy."""
        return self.reserved.value

    @property
    def mapped_read_rate(self) -> int:
        """The largest rate [B/s] of a copy from a mapped file that is not in the page cache."""
        return self.mapped_read.value if self.mapped_read else _MAPPED_READ


_MAPPED_READ = 2_900_000_000
"""[B/s] of a copy from a mapped file where it was not measured: one thread on a virtual AMD EPYC
(docs/measurements/mapped-files.md)."""


class Nic(Profile):
    """One port of a network adapter."""

    kind: Literal["nic"]
    link_rate: Sourced[BytesPerSecond]
    """Rate on the wire, in one direction."""
    achieved: Sourced[BytesPerSecond]
    """Payload rate that is reached in one direction."""
    latency: Sourced[Seconds]
    """One-way latency of a small message."""
    pcie: Slot
    """The adapter's own side of its slot."""
