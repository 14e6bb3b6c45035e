"""A machine: the paths of copies, reads, writes and all-gathers over its shared resources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.hardware.host import Host
from simoffload.hardware.library import ProfileInput, ProfileUse
from simoffload.hardware.paths import Graph, Load, Path, Resource, Tier
from simoffload.hardware.profiles import Accelerator
from simoffload.hardware.quantities import Curve
from simoffload.hardware.targets import PcieLink, Target, slowest
from simoffload.hardware.wiring import Setting

_PAGEABLE_TRAFFIC = 3
"""Bytes of host memory traffic per byte copied: the CPU reads and writes a staging buffer, then DMA reads."""
_STAGED_TRAFFIC = 2
"""Bytes per byte that goes from GPU to GPU by way of host memory: written once and read once."""


class Ingress(NamedTuple):
    """The vertex at which a part of a storage target's bytes enters a host."""

    vertex: str
    share: Fraction
    inward: tuple[int, ...]
    """Resources from the target to the vertex: the cable of a drive, or an adapter."""
    outward: tuple[int, ...]


class StorageAccess(NamedTuple):
    """The access of one host to a storage target."""

    ingresses: tuple[Ingress, ...]
    read_resources: tuple[int, ...]
    """Resources that every byte read crosses: the array or the server, and the limit of requests in
    flight."""
    write_resources: tuple[int, ...]
    both: tuple[int, ...] = ()
    """Resource of drives that divide their time between reads and writes, in units of bytes read."""
    write_share: Fraction = Fraction(1)
    """Bytes that could have been read in the time in which one byte is written."""


class Topology(NamedTuple):
    """Vertices, cables and shared resources of a machine."""

    graph: Graph
    cpus: tuple[str, ...]
    """The vertex of each host's CPU."""
    memories: tuple[int, ...]
    """The memory resource of each host."""
    gpus: tuple[str, ...]
    """The vertex of each GPU."""
    ports: tuple[tuple[int, int], ...]
    """Resources (in, out) of each GPU's own links; empty where GPUs have none."""
    networks: tuple[tuple[tuple[int, int], ...], ...]
    """For each host, resources (in, out) of the adapters between hosts."""
    network_latency: float
    """One-way latency [s] between hosts."""
    gpu_pcie_links: tuple[PcieLink, ...]
    """The PCIe link of each GPU of a host, limited by its slot."""
    access: dict[str, tuple[StorageAccess, ...]]
    """For each storage tier, its access from each host."""

    @property
    def gpu_pcie_link(self) -> PcieLink:
        """The PCIe link of the GPU in the slowest slot, for which all other GPUs wait."""
        return slowest(self.gpu_pcie_links)


MEMORY = "memory"
"""Key of host memory, which has no profile of its own."""


class DeviceGroup(NamedTuple):
    """Equal devices of a machine."""

    key: str
    """``kind/id`` of the profile of these devices."""
    number: int
    """Number of devices in the group."""
    links: tuple[tuple[str, ...], ...] = ()
    """Names of the links whose use determines how busy a device is; one entry per device, or one for all
    together."""
    tier: str = ""
    """The storage tier to which the devices belong; "" for all other devices."""
    size: int = 0
    """Capacity [B] of each device, for host memory and drives."""

    @property
    def kind(self) -> str:
        """The kind of device: "accelerator", "host", "memory", "nic", "drive", "nfs", "pfs", "nvmeof" or
        "remote"."""
        return self.key.partition("/")[0]


@dataclass(frozen=True)
class Machine:
    """Capacities and paths of one or several equal hosts; GPUs are numbered across all of them."""

    platform: str
    """Id of the platform from which the machine is built."""
    nodes: int
    gpus: int
    accelerator: Accelerator
    host: Host
    tiers: dict[str, Tier]
    targets: Mapping[str, Target]
    """Drives or storage systems of each tier of storage."""
    profiles: tuple[ProfileUse, ...]
    """The profile files from which the machine was built."""
    setting: Setting | None
    """Where the machine stands; None: not stated."""
    numbers: tuple[ProfileInput, ...] = field(repr=False)
    build_topology: Callable[[], tuple[tuple[Resource, ...], Topology]] = field(repr=False, compare=False)
    """Builds the topology, which takes noticeable time for a thousand hosts and is not needed to check
    capacities."""
    count: Callable[[], tuple[DeviceGroup, ...]] = field(repr=False, compare=False)
    """Counts the devices of the machine."""
    overruns: Callable[[Collection[str]], tuple[str, ...]] = field(repr=False, compare=False)
    """Returns warnings about devices, of the given tiers and in general, that are faster than their links."""
    with_cached_writes: Callable[[Mapping[str, Fraction]], Machine] = field(repr=False, compare=False)
    """Returns the machine in which only these shares of the bytes written to some tiers fit into the write
    caches of their drives."""

    @cached_property
    def _built_topology(self) -> tuple[tuple[Resource, ...], Topology]:
        return self.build_topology()

    @cached_property
    def parts(self) -> tuple[DeviceGroup, ...]:
        """The groups of equal devices of the machine, including the storage that its hosts share."""
        return self.count()

    @property
    def is_personal(self) -> bool:
        """Whether it stands on a desk, has a card for desktops (one whose profile says whether a display is
        connected) or GPUs that share the memory of the CPU: there programs that compute on CPU and GPU
        together are common."""
        gpu = self.accelerator
        return self.setting == "desk" or gpu.display is not None or gpu.is_unified

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources that transfers of the machine share."""
        return self._built_topology[0]

    @property
    def topology(self) -> Topology:
        """The topology, which is built on first use."""
        return self._built_topology[1]

    @property
    def gpus_per_node(self) -> int:
        """The number of GPUs of one host."""
        return self.gpus // self.nodes

    def ranks_per_node(self, ranks: int) -> int:
        """Return how many of ``ranks``, one for each GPU, share a host."""
        return min(ranks, self.gpus_per_node)

    def cores_per_rank(self, ranks: int) -> int:
        """Return the cores for each of ``ranks`` that share those of their host, at least one."""
        return max(1, self.host.cpu_optimizer.cores.value // self.ranks_per_node(ranks))

    def nodes_of(self, ranks: int) -> int:
        """Return the number of hosts that ``ranks`` need, one GPU for each."""
        return -(-ranks // self.gpus_per_node)

    def inputs(self) -> list[ProfileInput]:
        """Return every number that entered the machine, as it was written, with origin, source and date."""
        return list(self.numbers)

    def host_to_device(self, gpu: int, *, pinned: bool, size: int | None = None) -> Path:
        """Return the path of a copy from the memory of the GPU's host; ``size`` [B] is that of blocks that
        are copied one after the other."""
        return self._copy(gpu, to_device=True, pinned=pinned, size=size)

    def device_to_host(self, gpu: int, *, pinned: bool, size: int | None = None) -> Path:
        """Return the path of a copy to the memory of the GPU's host; ``size`` as in ``host_to_device``."""
        return self._copy(gpu, to_device=False, pinned=pinned, size=size)

    def cpu_work(self, gpu: int, rate: int) -> Path:
        """Return the path of CPU accesses to the memory of the GPU's host at ``rate`` [B/s].

        The host's memory rate is the rate that transfers of GPUs reach together; where its CPUs were measured
        to reach more, a byte of theirs takes less of it.
        """
        memory = self.topology.memories[self._node(gpu)]
        limit = max(rate, self.host.cpu_optimizer.limit.value)
        share = min(Fraction(1), Fraction(self.host.memory_rate, limit))
        return Path(f"CPU of gpu{gpu}", ((memory, share),), 0.0, Curve.flat(rate))

    def storage_read(self, tier: str, gpu: int, *, gds: bool = False) -> Path:
        """Return the path of a read into the memory of the GPU's host, or (``gds``) directly into the GPU's
        memory.

        Raises KeyError if ``tier`` is not a storage tier.
        """
        return self._storage(tier, gpu, gds=gds, written=False)

    def storage_write(self, tier: str, gpu: int, *, gds: bool = False) -> Path:
        """Return the path of a write from the memory of the GPU's host, or (``gds``) directly from the GPU's
        memory.

        Raises KeyError if ``tier`` is not a storage tier.
        """
        return self._storage(tier, gpu, gds=gds, written=True)

    def _storage(self, tier: str, gpu: int, *, gds: bool, written: bool) -> Path:
        topology, node = self.topology, self._node(gpu)
        target, access = self.targets[tier], topology.access[tier][node]
        memory = topology.gpus[gpu] if gds else topology.cpus[node]
        load = Load()
        load.put(access.write_resources if written else access.read_resources)
        load.put(access.both, access.write_share if written else 1)
        for ingress in access.ingresses:
            ends = (memory, ingress.vertex) if written else (ingress.vertex, memory)
            load.put(ingress.outward if written else ingress.inward, ingress.share)
            load.put(topology.graph.route(*ends), ingress.share)
        if not gds or self.accelerator.is_unified:
            load.put((topology.memories[node],))
        service = target.write if written else target.read
        outstanding = None if written else target.by_outstanding
        return Path(
            name=f"{memory} to {tier}" if written else f"{tier} to {memory}",
            hops=load.hops(),
            latency=service.latency,
            curve=Curve.flat(target.write_transfer if written else target.read_transfer),
            request_latency=service.latency,
            request_rate=service.request_rate,
            chunk=service.chunk,
            width=service.width,
            by_outstanding=outstanding.scaled(1, 1) if outstanding else None,
        )

    def gpudirect_warnings(self, key: str) -> tuple[str, ...]:
        """Return warnings if ``key`` requests GPUDirect Storage.

        Raises InputError for a GPU that does not support it: cuFile would at best copy through host memory
        (its compatibility mode, docs.nvidia.com/gpudirect-storage), and a prediction of direct reads would be
        wrong.
        """
        gpu = self.accelerator
        stated = gpu.gpudirect_storage
        if stated is None:
            message = "does not say whether it has GPUDirect Storage (gpudirect_storage)"
            return (f"{key}: the profile of {gpu.id} {message}; it is taken to have it",)
        if not stated.value:
            raise InputError.at(key, f"{gpu.id} has no GPUDirect Storage ({stated.source}); set it to false")
        return ()

    def gather(self, gpu: int, ranks: int, *, first: int = 0) -> Path:
        """Return the path of the bytes that a GPU receives in an all-gather among GPUs ``first`` to ``first``
        + ``ranks`` - 1.

        A ring: a GPU receives all bytes from its predecessor. Raises ValueError unless ``gpu`` is one of at
        least two such GPUs.
        """
        if not first <= gpu < first + ranks <= self.gpus or ranks < 2:
            raise ValueError(f"no all-gather to GPU {gpu} among {ranks} of {self.gpus} GPU(s)")
        return self._between(f"all-gather to gpu{gpu}", first + (gpu - first - 1) % ranks, gpu)

    def send(self, sender: int, receiver: int) -> Path:
        """Return the path of the bytes that one GPU sends to another."""
        return self._between(f"gpu{sender} to gpu{receiver}", sender, receiver)

    def _between(self, name: str, sender: int, receiver: int) -> Path:
        """Return the path from GPU to GPU as NCCL takes it.

        Between hosts the bytes are distributed over all adapters of ``network`` in equal parts, as NCCL's
        several rings do, and from adapter to GPU behind the same switch, whose cables are wider. Without
        links between GPUs a path that crosses the CPU is staged in host memory (NCCL's default beyond a PCIe
        switch; from memory).
        """
        topology = self.topology
        load = Load()
        link = self.accelerator.interconnect if topology.ports else None
        slot = topology.gpu_pcie_link
        curve = Curve.flat(link.rate) if link else slot.pcie.copy_curve(to_device=True, lanes=slot.lanes)
        latency = link.latency.value if link else slot.pcie.latency.value
        if link:
            load.put((topology.ports[sender][1], topology.ports[receiver][0]))
        if self._node(sender) != self._node(receiver):
            self._cross_network(load, self._node(sender), self._node(receiver))
            latency += topology.network_latency
        elif not link:
            self._cross_pcie(load, sender, receiver)
        return Path(name, load.hops(), latency, curve)

    def _node(self, gpu: int) -> int:
        if not 0 <= gpu < self.gpus:
            raise ValueError(f"no GPU {gpu}; there are {self.gpus}")
        return gpu // self.gpus_per_node

    def _copy(self, gpu: int, *, to_device: bool, pinned: bool, size: int | None) -> Path:
        topology, node = self.topology, self._node(gpu)
        pcie_link = topology.gpu_pcie_links[gpu % self.gpus_per_node]
        cpu, device = topology.cpus[node], topology.gpus[gpu]
        start, end = (cpu, device) if to_device else (device, cpu)
        load = Load()
        for index in topology.graph.route(start, end):
            load.put((index,), self.resources[index].share(size))
        load.put((topology.memories[node],), self._memory_traffic(to_device=to_device, pinned=pinned))
        name = f"{start} to {end}" if pinned else f"{start} to {end}, pageable"
        curve = self._copy_curve(gpu % self.gpus_per_node, to_device, pinned)
        return Path(name, load.hops(), pcie_link.pcie.latency.value, curve)

    @cached_property
    def _copy_curve(self) -> Callable[[int, bool, bool], Curve]:
        """Function from a GPU of a host, a direction and whether memory is pinned to the rate of copies [B/s]
        by their size; all hosts are equal."""

        @cache
        def curve(gpu: int, to_device: bool, pinned: bool) -> Curve:
            pcie, lanes = self.topology.gpu_pcie_links[gpu]
            copies = pcie.copy_curve(to_device=to_device, lanes=lanes)
            if pinned:
                return copies
            own = self.host.pageable_rate
            return copies.lower(Curve.flat(own.value) if own else Curve(pcie.pageable.points))

        return curve

    def _memory_traffic(self, *, to_device: bool, pinned: bool) -> Fraction:
        """Return the bytes of host memory traffic per copied byte; in unified memory the other end of the
        copy is host memory, too."""
        host, far_end = self.host, int(self.accelerator.is_unified)
        if pinned:
            measured = None if to_device else host.from_gpu_traffic
            counted = 1
        else:
            measured = host.pageable_traffic if to_device else None
            counted = _PAGEABLE_TRAFFIC
        return far_end + (Fraction(measured.value).limit_denominator(100) if measured else Fraction(counted))

    def _cross_pcie(self, load: Load, before: int, gpu: int) -> None:
        topology, node = self.topology, self._node(gpu)
        start, end, cpu = topology.gpus[before], topology.gpus[gpu], topology.cpus[node]
        load.put(topology.graph.route(start, end))
        if topology.graph.passes(cpu, start=start, end=end):
            load.put((topology.memories[node],), _STAGED_TRAFFIC)

    def _cross_network(self, load: Load, sender: int, receiver: int) -> None:
        """Put one byte, in equal parts, on the adapters of both hosts."""
        for node, direction in ((sender, 1), (receiver, 0)):
            ports = self.topology.networks[node]
            load.put((port[direction] for port in ports), Fraction(1, len(ports)))
