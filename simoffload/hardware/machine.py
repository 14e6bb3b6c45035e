"""A machine: the paths of copies, reads, writes and all-gathers over what its parts share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from simoffload.hardware.device_groups import DeviceGroup
from simoffload.hardware.library import ProfileInput, ProfileUse
from simoffload.hardware.paths import Graph, Load, Path, Resource, Tier
from simoffload.hardware.profiles import Accelerator, Host
from simoffload.hardware.quantities import Curve
from simoffload.hardware.storage import Service
from simoffload.hardware.targets import PcieLink, Target, slowest

__all__ = ["Ingress", "Machine", "StorageAccess", "Topology"]

_PAGEABLE_TRAFFIC = 3
"""Bytes of host memory traffic per byte copied: the CPU reads and writes a staging buffer, then DMA reads."""
_STAGED_TRAFFIC = 2
"""Bytes per byte that goes from GPU to GPU by way of host memory: written once and read once."""


class Ingress(NamedTuple):
    """Where a part of a storage target's bytes come into a host."""

    vertex: str
    share: Fraction
    inward: tuple[int, ...]
    """Resources from the target to the vertex: the cable of a drive, an adapter."""
    outward: tuple[int, ...]


class StorageAccess(NamedTuple):
    """A storage target as one host sees it."""

    ingresses: tuple[Ingress, ...]
    read_resources: tuple[int, ...]
    """Resources that every byte read crosses: the array or the server, what a client can have in flight."""
    write_resources: tuple[int, ...]
    both: tuple[int, ...] = ()
    """Resource of drives that share their time between reads and writes, in units of bytes read."""
    write_share: Fraction = Fraction(1)
    """Bytes that could have been read in the time in which one is written."""


class Topology(NamedTuple):
    """The built topology."""

    graph: Graph
    cpus: tuple[str, ...]
    """Vertex of each host."""
    memories: tuple[int, ...]
    """Memory resource of each host."""
    gpus: tuple[str, ...]
    """Vertex of each GPU."""
    ports: tuple[tuple[int, int], ...]
    """Resources (in, out) of each GPU's own links; empty without them."""
    networks: tuple[tuple[tuple[int, int], ...], ...]
    """For each host, resources (in, out) of the adapters between hosts."""
    network_latency: float
    """[s] one way between hosts."""
    gpu_pcie_links: tuple[PcieLink, ...]
    """How each GPU of a host works in its slot."""
    targets: dict[str, Target]
    """For each storage tier, what it is."""
    access: dict[str, tuple[StorageAccess, ...]]
    """For each storage tier, its access from each host."""

    @property
    def gpu_pcie_link(self) -> PcieLink:
        """That of the GPU in the slowest slot, which others wait for."""
        return slowest(self.gpu_pcie_links)


@dataclass(frozen=True)
class Machine:
    """Capacities and paths of one or several equal hosts; GPUs are counted through all of them."""

    platform: str
    """Id of the platform."""
    nodes: int
    gpus: int
    accelerator: Accelerator
    host: Host
    tiers: dict[str, Tier]
    profiles: tuple[ProfileUse, ...]
    """The files that it was built from."""
    numbers: tuple[ProfileInput, ...] = field(repr=False)
    build_topology: Callable[[], tuple[tuple[Resource, ...], Topology]] = field(repr=False, compare=False)
    """Lays the cables, which takes a while with a thousand hosts: what fits is known without them."""
    count: Callable[[], tuple[DeviceGroup, ...]] = field(repr=False, compare=False)
    """Counts the parts."""
    overruns: Callable[[Collection[str]], tuple[str, ...]] = field(repr=False, compare=False)
    """Says which devices, those of some tiers and of none, are faster than the links that they are behind."""
    with_cached_writes: Callable[[Mapping[str, Fraction]], Machine] = field(repr=False, compare=False)
    """The same machine where of what is written to some tiers only this share finds room in the write caches
    of their drives."""

    @cached_property
    def _built_topology(self) -> tuple[tuple[Resource, ...], Topology]:
        return self.build_topology()

    @cached_property
    def parts(self) -> tuple[DeviceGroup, ...]:
        """What it is made of, with the storage that its hosts share."""
        return self.count()

    @property
    def resources(self) -> tuple[Resource, ...]:
        """What its transfers share."""
        return self._built_topology[0]

    @property
    def topology(self) -> Topology:
        """The built topology."""
        return self._built_topology[1]

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one host."""
        return self.gpus // self.nodes

    def ranks_per_node(self, ranks: int) -> int:
        """How many of ``ranks``, one for each GPU, share a host."""
        return min(ranks, self.gpus_per_node)

    def cores_per_rank(self, ranks: int) -> int:
        """Cores for each of ``ranks`` that share those of their host, at least one."""
        return max(1, self.host.cpu_optimizer.cores.value // self.ranks_per_node(ranks))

    def nodes_of(self, ranks: int) -> int:
        """Hosts that ``ranks`` take, one for each GPU."""
        return -(-ranks // self.gpus_per_node)

    def inputs(self) -> list[ProfileInput]:
        """Every number that went in, as it was written, with its origin, source and date."""
        return list(self.numbers)

    def host_to_device(self, gpu: int, *, pinned: bool) -> Path:
        """The path of a copy from the memory of the GPU's host."""
        return self._copy(gpu, to_device=True, pinned=pinned)

    def device_to_host(self, gpu: int, *, pinned: bool) -> Path:
        """The path of a copy to the memory of the GPU's host."""
        return self._copy(gpu, to_device=False, pinned=pinned)

    def cpu_work(self, gpu: int, rate: int) -> Path:
        """The path of what the CPU reads from and writes to the memory of the GPU's host at ``rate`` [B/s].

        The host's memory rate is what transfers of GPUs reach together; where its CPUs were seen to reach
        more, a byte of theirs takes less of it.
        """
        memory = self.topology.memories[self._node(gpu)]
        share = min(Fraction(1), Fraction(self.host.memory_rate, self.host.cpu_optimizer.limit.value))
        return Path(f"CPU of gpu{gpu}", ((memory, share),), 0.0, Curve.flat(rate))

    def storage_read(self, tier: str, gpu: int, *, gds: bool = False) -> Path:
        """The path of a read into the memory of the GPU's host, or (``gds``) straight into the GPU's.

        Raises KeyError if ``tier`` is no storage tier.
        """
        topology, node = self.topology, self._node(gpu)
        target, access = topology.targets[tier], topology.access[tier][node]
        end = topology.gpus[gpu] if gds else topology.cpus[node]
        load = Load()
        load.put(access.read_resources)
        load.put(access.both)
        for ingress in access.ingresses:
            load.put(ingress.inward, ingress.share)
            load.put(topology.graph.route(ingress.vertex, end), ingress.share)
        if not gds:
            load.put((topology.memories[node],))
        return _storage_path(f"{tier} to {end}", load, target.read, target.read_transfer, target)

    def storage_write(self, tier: str, gpu: int, *, gds: bool = False) -> Path:
        """The path of a write from the memory of the GPU's host, or (``gds``) straight from the GPU's.

        Raises KeyError if ``tier`` is no storage tier.
        """
        topology, node = self.topology, self._node(gpu)
        target, access = topology.targets[tier], topology.access[tier][node]
        start = topology.gpus[gpu] if gds else topology.cpus[node]
        load = Load()
        load.put(access.write_resources)
        load.put(access.both, access.write_share)
        for ingress in access.ingresses:
            load.put(ingress.outward, ingress.share)
            load.put(topology.graph.route(start, ingress.vertex), ingress.share)
        if not gds:
            load.put((topology.memories[node],))
        return _storage_path(f"{start} to {tier}", load, target.write, target.write_transfer, None)

    def gather(self, gpu: int, ranks: int) -> Path:
        """The path of the bytes that a GPU receives in an all-gather among GPUs 0 to ``ranks`` - 1.

        A ring: all that a GPU receives comes from the one before it. Between hosts the bytes go over all
        adapters of ``network`` in equal parts, as NCCL's several rings do, and from adapter to GPU behind
        the same switch, whose cables are wider. Without own links a ring that crosses the CPU is staged in
        host memory (NCCL's default beyond a PCIe switch; from memory).
        Raises ValueError unless ``gpu`` < ``ranks`` and there are at least two ranks.
        """
        if not 0 <= gpu < ranks <= self.gpus or ranks < 2:
            raise ValueError(f"no all-gather to GPU {gpu} among {ranks} of {self.gpus} GPU(s)")
        topology, before = self.topology, (gpu - 1) % ranks
        load = Load()
        link = self.accelerator.interconnect if topology.ports else None
        slot = topology.gpu_pcie_link
        curve = Curve.flat(link.rate) if link else slot.pcie.copy_curve(to_device=True, lanes=slot.lanes)
        latency = link.latency.value if link else slot.pcie.latency.value
        if link:
            load.put((topology.ports[before][1], topology.ports[gpu][0]))
        if self._node(before) != self._node(gpu):
            self._cross_network(load, self._node(before), self._node(gpu))
            latency += topology.network_latency
        elif not link:
            self._cross_pcie(load, before, gpu)
        return Path(f"all-gather to gpu{gpu}", load.hops(), latency, curve)

    def _node(self, gpu: int) -> int:
        if not 0 <= gpu < self.gpus:
            raise ValueError(f"no GPU {gpu}; there are {self.gpus}")
        return gpu // self.gpus_per_node

    def _copy(self, gpu: int, *, to_device: bool, pinned: bool) -> Path:
        topology, node = self.topology, self._node(gpu)
        pcie_link = topology.gpu_pcie_links[gpu % self.gpus_per_node]
        cpu, device = topology.cpus[node], topology.gpus[gpu]
        start, end = (cpu, device) if to_device else (device, cpu)
        curve = pcie_link.pcie.copy_curve(to_device=to_device, lanes=pcie_link.lanes)
        if not pinned:
            curve = curve.lower(Curve(pcie_link.pcie.pageable.points))
        load = Load()
        load.put(topology.graph.route(start, end))
        load.put((topology.memories[node],), self._memory_traffic(to_device=to_device, pinned=pinned))
        name = f"{start} to {end}" if pinned else f"{start} to {end}, pageable"
        return Path(name, load.hops(), pcie_link.pcie.latency.value, curve)

    def _memory_traffic(self, *, to_device: bool, pinned: bool) -> Fraction:
        """Bytes of host memory's rate that a copied byte takes."""
        host = self.host
        if pinned:
            measured = None if to_device else host.from_gpu_traffic
            counted = 1
        else:
            measured = host.pageable_traffic if to_device else None
            counted = _PAGEABLE_TRAFFIC
        return Fraction(measured.value).limit_denominator(100) if measured else Fraction(counted)

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


def _storage_path(name: str, load: Load, service: Service, transfer: int, measured: Target | None) -> Path:
    outstanding = measured.by_outstanding if measured else None
    return Path(
        name=name,
        hops=load.hops(),
        latency=service.latency,
        curve=Curve.flat(transfer),
        request_latency=service.latency,
        request_rate=service.request_rate,
        chunk=service.chunk,
        width=service.width,
        by_outstanding=outstanding.scaled(1, 1) if outstanding else None,
    )
