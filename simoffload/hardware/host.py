"""Schemas of a host's CPUs and memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from simoffload.documents import Frozen
from simoffload.hardware.ggml import CpuProducts
from simoffload.hardware.profiles import Profile
from simoffload.hardware.program_costs import (
    CompiledCosts,
    DeepSpeedCosts,
    EagerCosts,
    FsdpCosts,
    NewMemory,
    PageCache,
    TrainingCosts,
    estimated_compiled_costs,
    estimated_eager_costs,
    scaled_costs,
)
from simoffload.hardware.quantities import (
    Count,
    Multiple,
    PositiveSeconds,
    RateCurve,
    Reference,
    Share,
    Sourced,
    Text,
    saturating,
    whole_rate,
)
from simoffload.hardware.storage import FormFactor
from simoffload.hardware.unmeasured import Unmeasured, UnmeasuredHost, completed, shipped_unmeasured
from simoffload.recent import Recent
from simoffload.units import BytesPerSecond, PositiveBytes

_OVERFLOW_THREAD, _OVERFLOW_CORE = 0.083, 0.050
"""Rates of a thread and of each of all cores in the search for overflow, as shares of Adam's rate of a
thread: medians of five machines (docs/measurements/training.md)."""
_LOOP_THREAD = 0.57
"""Rate of a thread of PyTorch's loops, as a share of Adam's: casts on four machines, 0.56 to 0.58; PyTorch's
own Adam on two reaches 0.58 and 0.63 (docs/measurements/training.md)."""
_TURN_S = 6.5e-3
"""Default of ``turn`` [s]: median over parallel regions of Adam, scaling, rounding and the search for
overflow with 2, 4 and 8 processes on one machine (docs/measurements/engine-parts.md)."""


_Slots = Annotated[int, Field(strict=True, ge=0, le=1000)]

T = TypeVar("T")


def remembered(of_host: Callable[[Host], T]) -> Callable[[Host], T]:
    """Return a function that keeps its answers for the last hosts."""
    answers: Recent[int, tuple[Host, T]] = Recent(64)

    @wraps(of_host)
    def found(host: Host) -> T:
        return answers.get(id(host), lambda: (host, of_host(host)))[1]

    return found


class CpuOptimizer(Frozen):
    """Rates of Adam, and of element-wise arithmetic, on the CPU; they count bytes read and written.

    ``n`` threads reach 1 / sqrt(1 / (n x thread)^2 + 1 / limit^2): the rate is proportional to the threads
    until memory bandwidth saturates, with a smooth transition. Measurements of CPU Adam on a Xeon with 1 to
    64 threads, and on an i5-14600K with 1 to 6, are within 4 % of it (docs/measurements/training.md). PyTorch
    allocates a process's states from one thread, and Linux places pages on the NUMA node of the thread that
    first touches them: a process has the bandwidth of one node, however many threads it runs.

    Processes with more threads than cores together take turns: they are no faster than with one thread for
    each core, and each parallel region loses ``turn`` for each further thread on a core.
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
    turn: Sourced[PositiveSeconds] | None = None
    """Time that a parallel region of OpenMP loses for each further thread that shares a core, as its threads
    wait for their turn before it begins and before it ends; None: that of another machine."""

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
        return self.shared(self.running(threads, processes) * self.thread.value, processes, local=local)

    def loops_rate(self, threads: int, *, processes: int = 1) -> int:
        """Return the memory traffic [B/s] of PyTorch's element-wise loops (casts, products, copies), which
        counts lines that are read before they are written (write-allocate)."""
        thread = _LOOP_THREAD * self.thread.value
        return self.shared(self.running(threads, processes) * thread, processes)

    def running(self, threads: int, processes: int) -> float:
        """Return how many ``threads`` of one of ``processes`` run at a time, on average."""
        return min(threads, self.cores.value / processes)

    def turns_s(self, threads: int, *, processes: int = 1) -> float:
        """Return the time [s] that a parallel region loses to threads that share its cores."""
        further = threads * processes / self.cores.value - 1 if threads > 1 else 0
        return max(0.0, further) * (self.turn.value if self.turn else _TURN_S)

    def shared(self, threads_rate: float, processes: int, *, local: bool = False) -> int:
        """Return the memory traffic [B/s] of one of ``processes`` whose threads alone could reach
        ``threads_rate``."""
        share = self.limit.value / (processes if local else max(self.numa_nodes.value, processes))
        return whole_rate(saturating(threads_rate, share))

    def overflow_check_rate(self, threads: int, *, processes: int = 1) -> int:
        """Return the memory traffic [B/s] of a search for overflow by one of ``processes`` on the host."""
        thread = self.overflow_thread.value if self.overflow_thread else _OVERFLOW_THREAD * self.thread.value
        core = _OVERFLOW_CORE * self.thread.value
        limit = self.overflow_limit.value if self.overflow_limit else self.cores.value * core
        return whole_rate(saturating(self.running(threads, processes) * thread, limit / processes))


def _read_ahead(size: int) -> int:
    if not 4096 <= size <= _MOST_AHEAD:
        raise ValueError("must be between a page, 4 KiB, and 1 GiB; the usual value is 128 KiB")
    return size


_MOST_AHEAD = 1 << 30
"""Largest read-ahead that is accepted [B]: our choice, beyond arrays' and network filesystems'."""


class Host(Profile):
    """CPUs and their memory, all sockets together."""

    elsewhere: ClassVar = {
        "pageable_rate": "copies are a curve now; write pageable: {points: [[256 MiB, RATE]], origin: …, …}",
    }
    kind: Literal["host"]
    cpu: Text
    """Model name of the processors."""
    memory_capacity: Sourced[PositiveBytes]
    """Installed memory. A memory module sold as 64 GB holds 64 GiB."""
    memory_maximum: Sourced[PositiveBytes] | None = None
    """Most memory that the board supports, and so the most that is proposed; None: not known."""
    drive_slots: dict[FormFactor, Sourced[_Slots]] | None = None
    """Number of slots for drives with data, by their form, and so the most drives that are proposed; an empty
    list for machines whose drives cannot be changed. None: not known."""
    gpu_slots: Sourced[_Slots] | None = None
    """Number of slots at the CPU that give a GPU all of its lanes, and so the most GPUs there if a machine is
    composed; None: not known."""
    memory_bandwidth: Sourced[BytesPerSecond]
    """Peak bandwidth of all memory channels together."""
    memory_channels: Sourced[Count] | None = None
    """Number of these channels; None: not known, so that the bandwidth tells the class of the host."""
    read_limit: Sourced[BytesPerSecond] | None = None
    """Largest rate at which all cores together read memory, where what connects them with it is slower than
    the memory: the fabric of chiplets; None: no such limit is known."""
    stream_fraction: Sourced[Share]
    """Share of the peak bandwidth that the STREAM benchmark, or GPUs that copy simultaneously, reach."""
    from_gpu_traffic: Sourced[Multiple] | None = None
    """Bytes of ``memory_rate`` that each byte copied from a GPU consumes, where it was measured with GPUs
    that copy to the host simultaneously; otherwise 1 is assumed."""
    pageable_traffic: Sourced[Multiple] | None = None
    """Bytes of ``memory_rate`` that each byte copied from pageable memory to a GPU consumes, where it was
    measured; otherwise 3 is assumed, as the CPU reads and writes a staging buffer, which DMA then reads."""
    pageable: RateCurve | None = None
    """Rate of a copy between pageable memory and a GPU, by size, which one thread of the CPU stages in pinned
    buffers, where it is known of this CPU; None: not known, so that it is as on other hosts."""
    memcpy_rate: Sourced[BytesPerSecond]
    """Rate at which one thread copies (each byte is read once and written once)."""
    mapped_read: Sourced[BytesPerSecond] | None = None
    """Largest rate at which PyTorch copies from a mapped file that is not in the page cache, with any number
    of threads (Accelerate, FlexGen); None: not measured, so that only the drive, Linux's read-ahead and the
    threads limit it (docs/measurements/mapped-files.md)."""
    read_ahead: Sourced[Annotated[PositiveBytes, AfterValidator(_read_ahead)]] | None = None
    """Bytes that Linux reads around a missing page of a mapped file, and ahead of a reader (``read_ahead_kb``
    of the drive); None: not known."""
    new_memory: NewMemory | None = None
    """Rates of memory that is new; None: not measured, so that they are as on another machine."""
    page_cache: PageCache | None = None
    """Rates of the page cache; None: as above."""
    checksum: Sourced[BytesPerSecond] | None = None
    """Rate of the CRC-32 of the zip format, by one thread; None: as above."""
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
    as on other machines."""
    eager: EagerCosts | None = None
    """Costs of the Python thread in transformers' code without DeepSpeed; None: not measured, so that they
    are estimated."""
    compiled: CompiledCosts | None = None
    """Costs of the Python thread of a serving engine; None: not measured, so that they are estimated."""
    cpu_products: CpuProducts | None = None
    """Products that the CPU computes from weights in host memory; None: not measured, so that they are as on
    other hosts of the class."""

    _unmeasured: Unmeasured | None = PrivateAttr(default=None)

    def completed(self, unmeasured: Unmeasured) -> Self:
        """Return the host with the numbers of other machines in place of those that it lacks."""
        other = completed(self, unmeasured.host)
        other._unmeasured = unmeasured  # noqa: SLF001 (a copy of this host)
        return other

    @property
    def _elsewhere(self) -> UnmeasuredHost:
        """The numbers of other machines for what this host does not state."""
        return (self._unmeasured or shipped_unmeasured()).host

    @property
    @remembered
    def fsdp_costs(self) -> FsdpCosts:
        """The host's own costs under FSDP, or those of the reference host scaled to it."""
        if self.fsdp is not None:
            return self.fsdp
        cpu = self.cpu_optimizer
        return scaled_costs(
            self._elsewhere.fsdp,
            operation_s=self.deepspeed.operation.value,
            loops_thread=2 * self.memcpy_rate.value,
            loops_limit=cpu.limit.value / cpu.numa_nodes.value,
            pages=self.fresh_memory,
        )

    @property
    @remembered
    def eager_costs(self) -> EagerCosts:
        """The host's own costs without DeepSpeed, or estimates from its time of a PyTorch operation."""
        if self.eager is not None:
            return self.eager
        return estimated_eager_costs(self._elsewhere.eager, operation_s=self.deepspeed.operation.value)

    @property
    @remembered
    def compiled_costs(self) -> CompiledCosts:
        """The host's own costs in a serving engine, or estimates from its time of a PyTorch operation."""
        if self.compiled is not None:
            return self.compiled
        return estimated_compiled_costs(self._elsewhere.compiled, operation_s=self.deepspeed.operation.value)

    @property
    @remembered
    def products(self) -> CpuProducts:
        """The host's own rates of products on the CPU, or those of its class, which read memory no faster
        than it was measured to be, and no faster than what is between."""
        if self.cpu_products is not None:
            return self.cpu_products
        classes, nodes = self._elsewhere.cpu_products, self.cpu_optimizer.numa_nodes.value
        channels = None if self.memory_channels is None else self.memory_channels.value
        peak = self.memory_bandwidth.value
        found = classes.of(peak, nodes=nodes, channels=channels)
        limits = [self.stream_fraction] if self.stream_fraction.origin == "measured" else []
        if self.read_limit is not None:
            share = self.read_limit.value / peak
            limits.append(Sourced[float].model_construct(**{**dict(self.read_limit), "value": share}))
        reads = {"weights": found.weights, "experts": found.experts}
        least = {key: min([one, *limits], key=lambda share: share.value) for key, one in reads.items()}
        return CpuProducts.model_construct(**{**dict(found), **least})

    @property
    def new_pinned_memory(self) -> Sourced[BytesPerSecond]:
        """The host's own rate at which new memory is pinned, or an estimate."""
        return self.pinned_allocation or self._elsewhere.pinned_allocation

    @property
    def pageable_copies(self) -> RateCurve:
        """The host's own rates of copies of pageable memory, or those of other hosts."""
        return self.pageable or self._elsewhere.pageable

    @property
    @remembered
    def fresh_memory(self) -> NewMemory:
        """The host's own rates of new memory, or those of another machine scaled to its thread."""
        return self.new_memory or self._elsewhere.new_memory.at(self.deepspeed.operation.value)

    @property
    def cached_files(self) -> PageCache:
        """The host's own rates of the page cache, or those of another machine."""
        return self.page_cache or self._elsewhere.page_cache

    @property
    def checksum_rate(self) -> Sourced[BytesPerSecond]:
        """The host's own rate of checksums, or that of another machine."""
        return self.checksum or self._elsewhere.checksum

    @property
    def memory_rate(self) -> int:
        """The rate [B/s] of memory reads and writes together, in practice."""
        return whole_rate(self.memory_bandwidth.value * self.stream_fraction.value)

    @property
    def reserved_bytes(self) -> int:
        """The memory [B] that operating system and processes occupy."""
        return self.reserved.value
