"""What a host is made of: accelerators, host memory and CPU, PCIe generations, network adapters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simoffload.documents import Frozen
from simoffload.errors import InputError
from simoffload.hardware.fsdp_costs import FsdpCosts, scaled_costs
from simoffload.hardware.quantities import (
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
)
from simoffload.units import BytesPerSecond, FlopsPerSecond, PositiveBytes, Seconds

__all__ = [
    "Accelerator",
    "ComputeRates",
    "CpuOptimizer",
    "DeepSpeedCosts",
    "Host",
    "Interconnect",
    "Nic",
    "Pcie",
    "Profile",
    "Slot",
    "TrainingCosts",
]


class Profile(Frozen):
    """What every profile file begins with."""

    id: Identifier
    """By which other files refer to it; of a shipped profile also the name of its file."""
    name: Text
    """What people call it."""
    notes: str = ""
    """What must be known to use it."""


class Slot(Frozen):
    """A device's own side of its slot: a slower slot of the host or switch slows it down."""

    profile: Reference
    """The newest PCIe generation that the device itself has."""
    lanes: Sourced[Count]
    """Lanes that are wired."""


class Pcie(Profile):
    """A generation of PCIe (or another cable between host and accelerator)."""

    kind: Literal["pcie"]
    protocol: Literal["pcie", "nvlink"] = "pcie"
    """``pcie``: a slot and the device in it work at the slower one's generation; ``nvlink``: a cable that is
    in no slot."""
    lane_rate: Sourced[BytesPerSecond]
    """Of one lane in one direction, before encoding."""
    encoding: Sourced[Share]
    """Payload of the line code, e.g. 128/130."""
    packet_efficiency: Sourced[Share]
    """What drives and adapters get of the encoded rate: packet headers."""
    copy_lanes: Count
    """Lanes over which the copy rates below were measured."""
    host_to_device: RateCurve
    """Copy from pinned host memory, by size."""
    device_to_host: RateCurve
    """Copy to pinned host memory, by size."""
    pageable: RateCurve
    """Copy from or to pageable host memory, by size: the driver stages it in pinned buffers."""
    both_ways: Sourced[Share]
    """Copies in both directions at once reach this fraction of the sum of both directions alone."""
    latency: Sourced[Seconds]
    """From the call of one small copy to its end."""

    def within(self, slot: Pcie | None) -> Pcie:
        """The generation at which a device of this one works in a slot; its own where that is not known."""
        if slot is None or "nvlink" in (self.protocol, slot.protocol):
            return self
        return slot if slot.is_slower(self) else self

    def is_slower(self, other: Pcie) -> bool:
        """Whether it is an older generation: fewer bytes over a lane."""
        return self.lane_rate.value * self.encoding.value < other.lane_rate.value * other.encoding.value

    def payload_rate(self, lanes: int) -> int:
        """[B/s] that drives and adapters can move over ``lanes`` in one direction."""
        raw = self.lane_rate.value * lanes
        return int(raw * self.encoding.value * self.packet_efficiency.value)

    def down_rate(self, lanes: int) -> int:
        """[B/s] away from the host over ``lanes``: the best that was measured of copies."""
        return self.host_to_device.top * lanes // self.copy_lanes

    def up_rate(self, lanes: int) -> int:
        """[B/s] towards the host over ``lanes``: the best that was measured of copies."""
        return self.device_to_host.top * lanes // self.copy_lanes

    def copy_curve(self, *, to_device: bool, lanes: int) -> Curve:
        """Rate of one copy of pinned memory, by size."""
        curve = self.host_to_device if to_device else self.device_to_host
        return curve.scaled(lanes, self.copy_lanes)


class ComputeRates(Frozen):
    """Dense peak per data type, with fp32 accumulation; a type that the chip lacks is left out."""

    float32: Sourced[FlopsPerSecond]
    """Without TF32."""
    float16: Sourced[FlopsPerSecond] | None = None
    bfloat16: Sourced[FlopsPerSecond] | None = None
    float8: Sourced[FlopsPerSecond] | None = None


class Interconnect(Frozen):
    """Links among accelerators that do not use PCIe; absent when there are none."""

    name: Text
    """As NVLink."""
    per_direction: Sourced[BytesPerSecond]
    """Of all links of one accelerator together."""
    efficiency: Sourced[Share]
    """Of that rate in collectives."""
    latency: Sourced[Seconds]
    """Of one collective operation on little data."""

    @property
    def rate(self) -> int:
        """[B/s] that one accelerator receives, or sends, in practice."""
        return int(self.per_direction.value * self.efficiency.value)


class Accelerator(Profile):
    """A GPU."""

    kind: Literal["accelerator"]
    hbm_capacity: Sourced[PositiveBytes]
    """All of it, what is ``reserved`` included."""
    hbm_bandwidth: Sourced[BytesPerSecond]
    """Peak."""
    hbm_efficiency: Sourced[Share]
    """What kernels reach of the peak."""
    reserved: Sourced[PositiveBytes]
    """What the driver, the CUDA context, cuBLAS and NCCL keep of the capacity."""
    compute: ComputeRates
    """Peak rates of arithmetic."""
    matmul_efficiency: EfficiencyCurve
    """What matrix multiplications reach of the peak."""
    kernel_latency: Sourced[Seconds]
    """What one kernel costs on the GPU beyond its work."""
    pcie: Slot
    """Its own side of the slot."""
    gpudirect_storage: Sourced[Annotated[bool, Field(strict=True)]] | None = None
    """Whether the card and its driver have GPUDirect Storage; None: not known."""
    interconnect: Interconnect | None = None
    """Links to other GPUs; None: all traffic goes over PCIe."""

    @property
    def hbm_rate(self) -> float:
        """[B/s] of HBM in practice."""
        return self.hbm_bandwidth.value * self.hbm_efficiency.value

    @property
    def kernel_latency_s(self) -> float:
        """[s]"""
        return self.kernel_latency.value

    @property
    def reserved_bytes(self) -> int:
        """[B]"""
        return self.reserved.value

    def matmul_rate(self, work: float, dtype: str) -> float:
        """[FLOP/s] of a matrix multiplication of ``work`` [FLOP] on ``dtype``.

        Raises InputError for a data type that the chip lacks.
        """
        peak: Sourced[FlopsPerSecond] | None = getattr(self.compute, dtype, None)
        if peak is None:
            has = ", ".join(name for name, rate in self.compute if rate is not None)
            raise InputError.at("", f"{self.id} has no {dtype}; it has {has}")
        return peak.value * self.matmul_efficiency.at(work)


class DeepSpeedCosts(Frozen):
    """What the Python thread that drives a GPU spends, per event."""

    ranks: Sourced[Count]
    """Most ranks of one host with which these were measured, here or where they are scaled from."""
    module_call: Sourced[Seconds]
    """A call of a module that launches one kernel."""
    operation: Sourced[Seconds]
    """Every further PyTorch operation of a module."""
    linear_call: Sourced[Seconds]
    """A call of a linear layer under ZeRO-3, which puts an autograd function of its own in its place."""
    hook: Sourced[Seconds]
    """ZeRO-3's hooks of a module, before and after it."""
    hook_input: Sourced[Seconds]
    """Added for every tensor that a module gets by position: an autograd function is put before it."""
    fetch_call: Sourced[Seconds]
    """A call that gathers what a module needs at once."""
    prefetch_call: Sourced[Seconds]
    """A call that gathers ahead."""
    gathered_parameter: Sourced[Seconds]
    """Every parameter that is brought to the GPU."""
    copy_call: Sourced[Seconds]
    """Added for a parameter that is copied from host memory asynchronously, or from pageable memory."""
    blocking_copy_call: Sourced[Seconds]
    """Added for a parameter whose copy blocks the thread, beyond the copy itself."""
    collective_call: Sourced[Seconds]
    """Added on several ranks for every call that gathers."""
    coalesced_call: Sourced[Seconds]
    """Added on several ranks for a call that gathers several parameters: they are put together and apart."""
    collective_parameter: Sourced[Seconds]
    """Added on several ranks for every parameter that is gathered."""
    fetch_wait: Sourced[Seconds]
    """A module's wait for parameters in flight, beyond the wait itself."""
    released_parameter: Sourced[Seconds]
    """Every parameter that is let go."""
    cold_share: Sourced[Share]
    """Of a copy that blocks the thread, and of reads that it waits for: so much longer takes what it does
    next, its caches cold. Not of one rank's asynchronous copies, which mostly end before it asks."""
    cold_limit: Sourced[Seconds]
    """Most that one wait adds in this way."""
    pass_overhead: Sourced[Seconds]
    """A forward pass, outside of its modules: masks, positions, the choice of the next token."""


class TrainingCosts(Frozen):
    """What the Python thread spends in training beyond what inference does, per event."""

    graph: Sourced[Annotated[float, Field(ge=0, le=10)]]
    """Launches of forward take this fraction longer when autograd records them."""
    checkpoint: Sourced[Seconds]
    """A layer that keeps only its input: saving, and later restoring, the state of the random numbers."""
    backward_call: Sourced[Seconds]
    """Backward of a module that launches kernels, with ZeRO-3's hooks before and after it."""
    gradient: Sourced[Seconds]
    """A gradient that is complete: its hook, the bucket, and its way to where it is accumulated."""
    reduce_call: Sourced[Seconds]
    """A bucket that is reduced."""
    boundary_gradient: Sourced[Seconds]
    """Added in the last micro-step for every gradient that goes to an offloaded optimizer."""
    step_call: Sourced[Seconds]
    """A step of the optimizer."""
    sub_group_call: Sourced[Seconds]
    """Every sub-group in it."""
    updated_parameter: Sourced[Seconds]
    """Every parameter tensor in it."""


class CpuOptimizer(Frozen):
    """Adam, and element-by-element arithmetic, on the CPU; rates count bytes read and written.

    ``n`` threads reach 1 / sqrt(1 / (n x thread)^2 + 1 / limit^2): proportional to the threads until memory
    is full, with a soft corner (CPU Adam on a Xeon with 1 to 64 threads, and on an i5-14600K with 1 to 6, lie
    within 4 % of it: docs/measurements/training.md).
    PyTorch allocates a process's states from one thread, and Linux puts pages on the NUMA node of the thread
    that touches them first: a process has the bandwidth of one node, however many threads it runs.
    """

    cores: Sourced[Count]
    """All sockets."""
    numa_nodes: Sourced[Count]
    """Nodes with memory of their own."""
    thread: Sourced[BytesPerSecond]
    """One thread of Adam by itself, in the limit of few threads."""
    limit: Sourced[BytesPerSecond]
    """All threads on the memory of all nodes together, in the limit of many."""

    def rate(self, threads: int, *, processes: int = 1, local: bool = False) -> int:
        """[B/s] of memory traffic of Adam on ``threads`` threads of one of so many processes on the host.

        ``local`` = its threads lie spread over the memory that they work on, and so have their share of all
        nodes, not of one (ZenFlow's optimizer process: deepspeed/runtime/zenflow/zenflow_utils.py).
        """
        return self.shared(threads * self.thread.value, processes, local=local)

    def shared(self, threads_rate: float, processes: int, *, local: bool = False) -> int:
        """[B/s] that one of ``processes`` reaches whose threads could make ``threads_rate``."""
        share = self.limit.value / (processes if local else max(self.numa_nodes.value, processes))
        return int((threads_rate**-2 + share**-2) ** -0.5)


class Host(Profile):
    """CPUs and their memory, all sockets together."""

    kind: Literal["host"]
    cpu: Text
    """Name of the processors."""
    memory_capacity: Sourced[PositiveBytes]
    """All that is installed. A memory module sold as 64 GB holds 64 GiB."""
    memory_maximum: Sourced[PositiveBytes] | None = None
    """The most that its board takes; None: not known. No more is proposed."""
    memory_bandwidth: Sourced[BytesPerSecond]
    """Peak of all channels."""
    stream_fraction: Sourced[Share]
    """What the STREAM benchmark, or GPUs copying at once, reach of the peak."""
    from_gpu_traffic: Sourced[Multiple] | None = None
    """Bytes of ``memory_rate`` that a byte from a GPU takes, where GPUs that copy to the host at once were
    measured; else it is counted: 1."""
    pageable_traffic: Sourced[Multiple] | None = None
    """The same of a byte on its way from pageable memory to a GPU; else 3: the CPU reads and writes a staging
    buffer, then DMA reads."""
    memcpy_rate: Sourced[BytesPerSecond]
    """Bytes that one thread copies per second (read once and written once)."""
    reserved: Sourced[PositiveBytes]
    """Memory that the operating system and the processes keep."""
    slots: Sourced[Reference] | None = None
    """PCIe generation of the slots at its CPUs; None: not known, so that every device works at its own."""
    cpu_optimizer: CpuOptimizer
    """Arithmetic on the CPU."""
    deepspeed: DeepSpeedCosts
    """Costs of the Python thread under DeepSpeed."""
    training: TrainingCosts
    """Its costs in training beyond those."""
    fsdp: FsdpCosts | None = None
    """Its costs under PyTorch's FSDP; None: not measured, so that those of another host are scaled."""

    def elementwise_rate(self, threads: int, *, processes: int = 1) -> int:
        """[B/s] of memory traffic of PyTorch's loops over ``threads`` threads: casts, products, copies.

        One thread moves two bytes for each that it copies; all threads together reach what Adam reaches.
        """
        return self.cpu_optimizer.shared(threads * 2 * self.memcpy_rate.value, processes)

    @property
    def fsdp_costs(self) -> FsdpCosts:
        """Its own costs under FSDP, or another host's scaled to it."""
        if self.fsdp is not None:
            return self.fsdp
        cpu = self.cpu_optimizer
        return scaled_costs(
            operation_s=self.deepspeed.operation.value,
            loops_thread=2 * self.memcpy_rate.value,
            loops_limit=cpu.limit.value / cpu.numa_nodes.value,
        )

    @property
    def memory_rate(self) -> int:
        """[B/s] of reads and writes together, in practice."""
        return int(self.memory_bandwidth.value * self.stream_fraction.value)

    @property
    def reserved_bytes(self) -> int:
        """[B]"""
        return self.reserved.value


class Nic(Profile):
    """A port of a network adapter."""

    kind: Literal["nic"]
    link_rate: Sourced[BytesPerSecond]
    """On the wire, in one direction."""
    achieved: Sourced[BytesPerSecond]
    """Payload in one direction."""
    latency: Sourced[Seconds]
    """One way, of a small message."""
    pcie: Slot
    """Its own side of the slot."""
