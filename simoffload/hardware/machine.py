"""A machine: the shared resources of its wiring, and the paths of copies, reads, writes and all-gathers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import NamedTuple

from simoffload.brief import brief
from simoffload.errors import InputError
from simoffload.hardware.host import Host
from simoffload.hardware.library import Entry, Library, ProfileInput, ProfileUse
from simoffload.hardware.paths import Graph, Load, Path, Resource
from simoffload.hardware.profiles import Accelerator, Nic, Pcie
from simoffload.hardware.quantities import Curve, whole_rate
from simoffload.hardware.targets import (
    TARGETS,
    Cable,
    PcieLink,
    Target,
    adapter_rate,
    pcie_link,
    resolve_target,
    slowest,
)
from simoffload.hardware.tiers import Tier, TierKind
from simoffload.hardware.wiring import CPU, PlatformProfile, Setting, StorageTier
from simoffload.units import format_bytes, format_rate

# -- A machine -------------------------------------------------------------------------------------
# The paths of copies, reads, writes and all-gathers over its shared resources.


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

    __repr__ = brief

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

    def row(self, tier: str) -> TierKind:
        """Return what the tier of a name can do."""
        return self.tiers[tier].row

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

    def host_to_device(self, gpu: int, *, pinned: bool, size: int | None = None, tier: str = "dram") -> Path:
        """Return the path of a copy from the memory of the GPU's host, by default from its DRAM; ``size`` [B]
        is that of blocks that are copied one after the other."""
        return self._copy(gpu, to_device=True, pinned=pinned, size=size, tier=tier)

    def device_to_host(self, gpu: int, *, pinned: bool, size: int | None = None, tier: str = "dram") -> Path:
        """Return the path of a copy to the memory of the GPU's host; the rest as in ``host_to_device``."""
        return self._copy(gpu, to_device=False, pinned=pinned, size=size, tier=tier)

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
            curve=Curve.flat(service.transfer or service.rate),
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

    def gather(self, gpu: int, ranks: int, *, first: int = 0, compiled: bool = False) -> Path:
        """Return the path of the bytes that a GPU receives in an all-gather among GPUs ``first`` to ``first``
        + ``ranks`` - 1, or in an all-reduce of ``compiled`` code.

        A ring: a GPU receives all bytes from its predecessor. Raises ValueError unless ``gpu`` is one of at
        least two such GPUs.
        """
        if not first <= gpu < first + ranks <= self.gpus or ranks < 2:
            raise ValueError(f"no all-gather to GPU {gpu} among {ranks} of {self.gpus} GPU(s)")
        before = first + (gpu - first - 1) % ranks
        found = self._between(f"all-gather to gpu{gpu}", before, gpu)
        if not compiled or not self.topology.ports or self._node(before) != self._node(gpu):
            return found
        kernels = self.accelerator.kernels
        curve = Curve.flat(round(found.curve.rate(1) * kernels.all_reduce_share.value))
        return replace(found, latency=kernels.all_reduce_s(ranks), curve=curve)

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

    def _copy(self, gpu: int, *, to_device: bool, pinned: bool, size: int | None, tier: str) -> Path:
        topology, node = self.topology, self._node(gpu)
        pcie_link = topology.gpu_pcie_links[gpu % self.gpus_per_node]
        cpu, device = topology.cpus[node], topology.gpus[gpu]
        start, end = (cpu, device) if to_device else (device, cpu)
        load = Load()
        for index in topology.graph.route(start, end):
            load.put((index,), self.resources[index].share(size))
        other = tier in self.targets and self.tiers[tier].row.is_host
        traffic = self._memory_traffic(to_device=to_device, pinned=pinned or other)
        load.put((topology.memories[node],), traffic)
        name = f"{start} to {end}" if pinned else f"{start} to {end}, pageable"
        curve = self._copy_curve(gpu % self.gpus_per_node, to_device, pinned)
        copy = Path(name, load.hops(), pcie_link.pcie.latency.value, curve)
        if not other:
            return copy
        # The GPU copies other memory of the host itself; what is not pinned goes through a buffer in DRAM.
        path, hops = self._storage(tier, gpu, gds=pinned, written=not to_device), Load()
        for index, share in path.hops if pinned else (*path.hops, *copy.hops):
            hops.put((index,), share)
        latency, curve = copy.latency + path.latency, curve.lower(path.curve)
        return replace(path, hops=hops.hops(), latency=latency, curve=curve)

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
            return copies.lower(Curve(self.host.pageable_copies.points))

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


# -- the shared resources of a machine, built from the wiring of its platform ----------------------
# Every directed cable is a resource; a cable whose two directions slow each other down has one more, which
# carries the sum of both. A cable between CPU, switches and GPUs has the highest rate measured for copies
# over its generation and width, or the rates that its switch states; the cable of a drive or an adapter has
# the payload rate of its lanes. Host memory is one resource for reads and writes and for all sockets.


@dataclass(frozen=True)
class Platform:
    """A platform file with all profiles that it refers to."""

    __repr__ = brief

    profile: PlatformProfile
    host: Host
    accelerator: Accelerator
    gpu: PcieLink
    """The GPUs' own side of their slots."""
    slots: dict[str, Pcie | None]
    """PCIe generation of the slots at the CPU and at each switch; None where it is not known."""
    stated: dict[str, Pcie]
    """PCIe generation that the platform's file names for each switch with stated rates. It determines the
    rate of both directions together, also if the equipment of a scenario replaces the slots."""
    nics: dict[str, tuple[Nic, PcieLink]]
    """Network adapters with their own side of their slots."""
    targets: dict[str, Target]
    profiles: tuple[ProfileUse, ...]
    inputs: tuple[ProfileInput, ...]
    remarks: tuple[str, ...] = ()
    """Warnings about equipment of the scenario that has no effect."""

    @property
    def is_card(self) -> bool:
        """Whether the GPU is in a slot of PCIe, not on one module with the CPU."""
        return self.gpu.pcie.id.startswith("gen") and not self.accelerator.is_unified

    @property
    def gpu_pcie_links(self) -> tuple[PcieLink, ...]:
        """The PCIe link of each GPU, limited by its slot."""
        return tuple(self.gpu.within(self.slots[vertex]) for vertex in self.profile.gpus)

    @property
    def gpu_pcie_link(self) -> PcieLink:
        """The PCIe link of the GPU in the slowest slot."""
        return slowest(self.gpu_pcie_links)

    def switch(self, name: str) -> Cable:
        """Return the cable of a switch towards the CPU: its lanes, or the rates that are stated."""
        pcie, switch = self.slots[name], self.profile.switches[name]
        if switch.lanes is not None:
            assert pcie is not None
            return PcieLink(pcie, switch.lanes).cable
        assert switch.host_to_device is not None
        assert switch.device_to_host is not None
        down, up = switch.host_to_device.value, switch.device_to_host.value
        return Cable("as the platform states", down, up, self.stated[name].both_ways_rate(down, up))

    def nic_pcie_link(self, name: str) -> PcieLink:
        """Return the PCIe link of an adapter, limited by its slot."""
        return self.nics[name][1].within(self.slots[self.profile.nics[name].at])

    def machine(self, nodes: int = 1, *, cached_writes: Mapping[str, Fraction] | None = None) -> Machine:
        """Return the machine of ``nodes`` equal hosts that share remote storage.

        ``cached_writes`` has, by storage tier, the share of all bytes written that fits into the write caches
        of its drives; for other tiers everything does.

        Raises InputError for several hosts without a network between them.
        """
        profile = self.profile
        if nodes > 1 and not profile.network:
            message = f"{profile.id} has no network between hosts; add `network` to it or use one node"
            raise InputError.at("nodes", message)
        partly = {tier: self.targets[tier].partly_cached(one) for tier, one in (cached_writes or {}).items()}
        targets = {**self.targets, **partly}
        return Machine(
            platform=profile.id,
            nodes=nodes,
            gpus=nodes * len(profile.gpus),
            accelerator=self.accelerator,
            host=self.host,
            tiers=_tiers(self, nodes),
            targets=targets,
            count=lambda: tuple(_device_groups(self, _prefixes(nodes))),
            profiles=self.profiles,
            setting=profile.setting,
            numbers=self.inputs,
            build_topology=lambda: _Builder(replace(self, targets=targets), nodes).build(),
            with_cached_writes=lambda shares: self.machine(nodes, cached_writes=shares),
            overruns=lambda tiers: (*self.remarks, *overruns(self, tiers, nodes=nodes)),
        )


def _tiers(platform: Platform, nodes: int) -> dict[str, Tier]:
    gpu, host = platform.accelerator, platform.host
    own, memory = gpu.hbm_capacity, host.memory_capacity.value
    hbm = Tier("hbm", "hbm", own.value if own else memory, gpu.id, gpu.reserved_bytes, "" if own else "dram")
    tiers = [hbm, Tier("dram", "dram", memory, host.id, host.reserved_bytes)]
    for name, target in platform.targets.items():
        copies = nodes if target.drives else 1
        tiers.append(Tier(name, target.kind, target.capacity * copies, target.id))
    return {one.name: one for one in tiers}


def _prefixes(nodes: int) -> list[str]:
    """Return the prefixes of each host's vertices."""
    return [f"node{node} " if nodes > 1 else "" for node in range(nodes)]


def _device_groups(platform: Platform, prefixes: Sequence[str]) -> Iterator[DeviceGroup]:
    """Yield the devices of equal hosts (``prefixes`` of their vertices), and of their shared storage."""
    profile, nodes = platform.profile, len(prefixes)
    yield DeviceGroup(f"host/{platform.host.id}", nodes)
    memories = tuple((f"{prefix}dram",) for prefix in prefixes)
    yield DeviceGroup(MEMORY, nodes, memories, size=platform.host.memory_capacity.value)
    yield DeviceGroup(f"accelerator/{platform.accelerator.id}", nodes * len(profile.gpus))
    for key in dict.fromkeys(nic.id for nic, _ in platform.nics.values()):
        ports = [name for name, (nic, _) in platform.nics.items() if nic.id == key]
        links = tuple((f"{prefix}{name} in", f"{prefix}{name} out") for prefix in prefixes for name in ports)
        yield DeviceGroup(f"nic/{key}", len(links), links)
    for tier, target in platform.targets.items():
        if target.drives:
            links = tuple((f"{prefix}{tier} read", f"{prefix}{tier} write") for prefix in prefixes)
            count = nodes * target.drives
        else:
            links, count = ((f"{tier} read", f"{tier} write"),), target.array.count if target.array else 1
            yield DeviceGroup(f"{target.kind}/{target.id}", target.systems, links, tier)
        if target.drives or target.drive:
            size = target.drive.capacity.value if target.drive else target.capacity
            yield DeviceGroup(target.device, count, links, tier, size)


class _Builder:
    """Builds the topology host by host."""

    def __init__(self, platform: Platform, nodes: int) -> None:
        self._platform, self._nodes = platform, nodes
        # Hosts are equal, so that what their cables and adapters carry is worked out once.
        self._links = platform.gpu_pcie_links
        self._cables = [link.cable for link in self._links]
        self._switches = {name: platform.switch(name) for name in platform.profile.switches}
        self._nic_rates = {
            name: adapter_rate(nic, platform.nic_pcie_link(name)) for name, (nic, _) in platform.nics.items()
        }
        self._graph = Graph()
        self._resources = list[Resource]()

    def build(self) -> tuple[tuple[Resource, ...], Topology]:
        """Add all hosts, GPUs, adapters and storage tiers, and return all resources and the topology."""
        platform, profile = self._platform, self._platform.profile
        prefixes = _prefixes(self._nodes)
        memories = tuple(self._host(prefix, profile) for prefix in prefixes)
        count = len(profile.gpus)
        gpus = tuple(f"{prefixes[i // count]}gpu{i}" for i in range(self._nodes * count))
        for index, vertex in enumerate(gpus):
            prefix = prefixes[index // count]
            self._cable(f"{prefix}{profile.gpus[index % count]}", vertex, self._cables[index % count])
        adapters = [
            {
                name: self._pair(f"{prefix}{name} {{}}", "in out", "nic", rate)
                for name, rate in self._nic_rates.items()
            }
            for prefix in prefixes
        ]
        access = {name: self._accesses(name, prefixes, adapters) for name in profile.tiers}
        topology = Topology(
            graph=self._graph,
            cpus=tuple(f"{prefix}{CPU}" for prefix in prefixes),
            memories=memories,
            gpus=gpus,
            ports=self._ports(gpus),
            networks=tuple(tuple(ports[name] for name in profile.network) for ports in adapters),
            network_latency=max(
                (platform.nics[name][0].latency.value for name in profile.network), default=0.0
            ),
            gpu_pcie_links=self._links,
            access=access,
        )
        return tuple(self._resources), topology

    def _host(self, prefix: str, profile: PlatformProfile) -> int:
        memory = self._add(f"{prefix}dram", self._platform.host.memory_rate, "dram")
        for name, switch in profile.switches.items():
            self._cable(f"{prefix}{switch.to}", f"{prefix}{name}", self._switches[name])
        return memory

    def _cable(self, near: str, far: str, cable: Cable) -> None:
        """Add a cable whose ``near`` end is towards the CPU."""
        away = self._add(f"{near} -> {far}", cable.down, "pcie")
        back = self._add(f"{far} -> {near}", cable.up, "pcie")
        rates, shared = cable.both_ways, tuple[int, ...]()
        if rates.points[0][1] < cable.down + cable.up:
            by_size = rates if len(rates.points) > 1 else None
            shared = (self._add(f"{near} <-> {far}", whole_rate(rates.points[-1][1]), "duplex", by_size),)
        self._graph.connect(near, far, there=(away, *shared), back=(back, *shared))

    def _add(self, name: str, capacity: int, kind: str, by_size: Curve | None = None) -> int:
        """Append a resource and return its index."""
        self._resources.append(Resource(name, capacity, kind, by_size))
        return len(self._resources) - 1

    def _pair(self, names: str, directions: str, kind: str, *rates: int) -> tuple[int, int]:
        """Add a resource for each of two ``directions``, in and out, read and write; of one rate [B/s], or of
        two."""
        there, back = (names.format(way) for way in directions.split())
        return self._add(there, rates[0], kind), self._add(back, rates[-1], kind)

    def _ports(self, gpus: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
        link = self._platform.accelerator.interconnect
        if self._platform.profile.gpu_links == "none" or link is None:
            return ()
        return tuple(self._pair(f"{gpu} link {{}}", "in out", "nvlink", link.rate) for gpu in gpus)

    def _accesses(
        self, name: str, prefixes: list[str], adapters: list[dict[str, tuple[int, int]]]
    ) -> tuple[StorageAccess, ...]:
        tier, target = self._platform.profile.tiers[name], self._platform.targets[name]
        if tier.at is not None:
            return tuple(self._local(f"{prefix}{name}", prefix, tier.at, target) for prefix in prefixes)
        server = self._pair(f"{name} {{}}", "read write", "server", target.read.rate, target.write.rate)
        accesses = []
        for prefix, ports in zip(prefixes, adapters, strict=True):
            window = self._window(f"{prefix}{name}", target)
            ingresses = self._remote(prefix, tier, ports)
            accesses.append(StorageAccess(ingresses, (server[0], *window[0]), (server[1], *window[1])))
        return tuple(accesses)

    def _local(self, name: str, prefix: str, vertices: tuple[str, ...], target: Target) -> StorageAccess:
        array = self._pair(f"{name} {{}}", "read write", "drive", target.read.rate, target.write.rate)
        assert target.pcie_link is not None
        ingresses = []
        for index in range(target.drives):
            at = vertices[index % len(vertices)]
            rate = target.pcie_link.within(self._platform.slots[at]).payload_rate
            vertex = f"{prefix}{at}"
            drive = f"{name}.{index}"
            inward = (self._add(f"{drive} -> {vertex}", rate, "pcie"),)
            outward = (self._add(f"{vertex} -> {drive}", rate, "pcie"),)
            ingresses.append(Ingress(vertex, Fraction(1, target.drives), inward, outward))
        # A drive reads or writes: r / read + w / write <= 1 (an estimate; datasheets rarely say).
        both = self._add(f"{name} both ways", target.read.rate, "drive")
        share = Fraction(target.read.rate, target.write.rate)
        return StorageAccess(tuple(ingresses), array[:1], array[1:], (both,), share)

    def _remote(
        self, prefix: str, tier: StorageTier, ports: dict[str, tuple[int, int]]
    ) -> tuple[Ingress, ...]:
        assert tier.through is not None
        nics, share = self._platform.profile.nics, Fraction(1, len(tier.through))
        return tuple(
            Ingress(f"{prefix}{nics[name].at}", share, ports[name][:1], ports[name][1:])
            for name in tier.through
        )

    def _window(self, name: str, target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the resources that limit what one host has in flight, in each direction or in both
        together."""
        if target.client_rate is None:
            return (), ()
        if target.client_both_ways:
            shared = self._add(f"{name} requests in flight", target.client_rate, "nic")
            return (shared,), (shared,)
        read, write = self._pair(f"{name} connections {{}}", "in out", "nic", target.client_rate)
        return (read,), (write,)


# -- links -----------------------------------------------------------------------------------------
# Warnings about devices that are faster than the link through which they are connected, and the reverse:
# links that are stated to be slower than one device.
#
# These are warnings and not errors, because drives are sold for future slots, and servers can be extended.
# But usually a number is wrong: a port that was not counted, a slot of another generation, bits taken for
# bytes.


_TOLERANCE = 1.03
"""Ratio of a device's rate to that of its link above which a warning is given: data sheets round by 1 or 2 %;
our choice."""
_DECIMAL = re.compile(r"([0-9.]+) *([GT])B")


def overruns(platform: Platform, tiers: Collection[str], *, nodes: int) -> tuple[str, ...]:
    """Return a warning for every device of the named tiers, and every adapter in use, that is faster than its
    link."""
    used = {name: target for name, target in platform.targets.items() if name in tiers}
    wired = {name: platform.profile.tiers[name] for name in used}
    adapters = {nic for tier in wired.values() for nic in tier.through or ()}
    adapters |= set(platform.profile.network if nodes > 1 else ())
    warnings_: list[str] = []
    for name, target in used.items():
        if (at := wired[name].at) is not None:
            warnings_ += _target(name, target, _slots(platform, target, at))
            warnings_ += _shared_cables(platform, name, target, at)
        else:
            warnings_ += _target(name, target)
            warnings_ += _client(platform, name, target, wired[name].through or (), nodes)
    for name in sorted(adapters):
        warnings_ += _adapter(name, platform.nics[name][0], platform.nic_pcie_link(name))
    for name in platform.stated:
        warnings_ += _slow_switch(platform, name)
    return tuple(dict.fromkeys(warnings_))


def profile_warnings(library: Library, entry: Entry) -> tuple[str, ...]:
    """Return the warnings about a single profile, and about a host's memory.

    References that cannot be found are ignored.
    """
    profile, warnings_ = entry.profile, list[str]()
    if isinstance(profile, Host):
        warnings_ += memory_warnings(profile, entry.inputs())
    with suppress(InputError):
        if isinstance(profile, Nic):
            warnings_ += _adapter(profile.id, profile, pcie_link(library, profile.pcie, entry, "pcie"))
        elif entry.use.kind in TARGETS:
            warnings_ += _target(profile.id, resolve_target(library, entry))
    return tuple(warnings_)


def memory_warnings(host: Host, inputs: Iterable[ProfileInput]) -> Iterator[str]:
    """Yield warnings about more memory than the board supports, and sizes in units of 10^9 B, which no module
    has."""
    has, most = host.memory_capacity.value, host.memory_maximum
    if most is not None and has > most.value:
        size, limit = format_bytes(has, binary=True), format_bytes(most.value, binary=True)
        message = (
            f"host/{host.id}: memory_capacity {size} is more than its board supports, memory_maximum {limit}"
        )
        yield f"{message}; lower it, or raise memory_maximum if the board supports more"
    for line in inputs:
        if line.key == "memory_capacity" and (found := _DECIMAL.fullmatch(line.text)):
            message = f"host/{line.profile}: memory_capacity {line.text} is in powers of ten"
            yield f"{message}; memory modules sold in GB have GiB: write {found[1]} {found[2]}iB"


def _target(name: str, target: Target, slots: Collection[tuple[str, PcieLink]] = ()) -> Iterator[str]:
    """Yield warnings about drives that are faster than their slots, or a server that is faster than its
    ports.

    ``slots`` are those of local drives, each with its location; without them the drives' own generation is
    used.
    """
    if target.drive is not None and target.pcie_link is not None:
        drive = target.drive
        for where, slot in slots or [("", target.pcie_link)]:
            rates = {"reads": drive.read.value, "writes": drive.write.value}
            device = f"{name}: {drive.id}"
            link, todo = f"its slot{where} ({slot.label})", f"check read, write and pcie of drive/{drive.id}"
            if slot.pcie is not target.pcie_link.pcie:
                todo = f"use a slot with {target.pcie_link.pcie.name}, which the drive supports"
            yield from _above(device, rates, link, slot.payload_rate, todo)
    elif target.ports is not None:
        ports = target.ports
        link = f"{ports.number} port{'s' if ports.number > 1 else ''} of {ports.nic.id} of the server"
        todo = f"check link, links and the rates of {target.kind}/{target.id}: `links` counts its ports"
        device, rates = f"{name}: {target.id}", {"reads": ports.read, "writes": ports.write}
        drives = target.array.count if target.array is not None else 1
        # Drives and ports come in whole numbers: ports that need the last drive are no mistake.
        if drives == 1 or max(rates.values()) * (drives - 1) / drives > ports.total:
            yield from _above(device, rates, link, ports.total, todo)


def _adapter(name: str, nic: Nic, slot: PcieLink) -> Iterator[str]:
    """Yield a warning about an adapter that is faster than its slot."""
    todo = "use a wider or newer slot (pcie), or expect the rate of the slot"
    link = f"its slot ({slot.label})"
    yield from _above(f"{name}: {nic.id}", {"carries": nic.achieved.value}, link, slot.payload_rate, todo)


def _slots(platform: Platform, target: Target, at: tuple[str, ...]) -> list[tuple[str, PcieLink]]:
    """Return the slowest of the drives' slots."""
    assert target.pcie_link is not None
    links = {vertex: target.pcie_link.within(platform.slots[vertex]) for vertex in at[: target.drives]}
    least = min(one.payload_rate for one in links.values())
    return next([(f" at {vertex}", one)] for vertex, one in links.items() if one.payload_rate == least)


def _shared_cables(platform: Platform, name: str, target: Target, at: tuple[str, ...]) -> Iterator[str]:
    """Yield warnings about drives of a tier that are together faster than the cable of their switch."""
    drives = Counter[str]()
    for index in range(target.drives):
        drives.update(_switches_above(platform, at[index % len(at)]))
    for switch, number in drives.items():
        cable = platform.switch(switch)
        read, write = (one.rate * number // target.drives for one in (target.read, target.write))
        device, todo = f"{name}: the drives behind {switch}", "distribute its drives over more vertices (at)"
        link = f"the cable of {switch} ({cable.label})"
        warnings_ = [*_above(device, {"read": read}, link, cable.up, todo, them="them")]
        warnings_ += _above(device, {"write": write}, link, cable.down, todo, them="them")
        yield from warnings_[:1]


def _slow_switch(platform: Platform, name: str) -> Iterator[str]:
    """Yield a warning about a switch whose stated rate is below that of the cable of one GPU behind it."""
    cable, gpus = platform.switch(name), zip(platform.profile.gpus, platform.gpu_pcie_links, strict=True)
    own = [link for vertex, link in gpus if name in _switches_above(platform, vertex)]
    for key, rate, of_gpu in (
        ("host_to_device", cable.down, min((one.cable.down for one in own), default=0)),
        ("device_to_host", cable.up, min((one.cable.up for one in own), default=0)),
    ):
        if of_gpu > _TOLERANCE * rate:
            limit = f"less than the {format_rate(of_gpu)} of the cable of one GPU behind it ({own[0].label})"
            todo = f"check {key} of switches.{name}: is it in bytes, and of all its GPUs together?"
            found = f"{platform.profile.id}: {name} carries {format_rate(rate)}, {limit}"
            yield f"{found}, which it limits; {todo}"
            return


def _switches_above(platform: Platform, vertex: str) -> Iterator[str]:
    """Yield the switches from a vertex to the CPU, that of the vertex first."""
    while vertex != CPU:
        yield vertex
        vertex = platform.profile.switches[vertex].to


def _client(
    platform: Platform, name: str, target: Target, through: tuple[str, ...], nodes: int
) -> Iterator[str]:
    """Yield warnings about a server that is faster than the adapters of all hosts, or than the ports that
    their mounts use."""
    ports = target.ports
    if ports is None:
        return  # a filesystem serves more hosts than these
    # Transfers are striped in equal parts, so the slowest adapter determines the rate.
    slowest = min(adapter_rate(platform.nics[nic][0], platform.nic_pcie_link(nic)) for nic in through)
    adapters, hosts = nodes * len(through) * slowest, f" of {nodes} hosts" if nodes > 1 else ""
    link = f"the adapters to it ({', '.join(through)}{hosts})"
    todo = "give the tier more adapters (through), or faster ones"
    rates = {"reads": target.read.rate, "writes": target.write.rate}
    device = f"{name}: {target.id}"
    yield from _above(device, rates, link, adapters, todo)
    used = nodes * ports.mounts * ports.rate
    # If the adapters are the limit, mounts over other ports would not help.
    if 0 < ports.mounts < ports.number and used < adapters and max(rates.values()) > _TOLERANCE * used:
        link = f"the mounts to it ({ports.mounts}{hosts}, each over one of {ports.number} ports)"
        todo = f"mounts: {ports.number} of {target.kind}/{target.id} would use all ports; or use faster ports"
        yield from _above(device, rates, link, nodes * (target.client_rate or ports.rate), todo)


def _above(
    device: str, rates: dict[str, int], link: str, carries: int, todo: str, *, them: str = "it"
) -> Iterator[str]:
    """Yield a warning about the rate that exceeds the link most, if any does."""
    verb, rate = max(rates.items(), key=lambda one: one[1])
    if rate > _TOLERANCE * carries:
        limit = f"more than the {format_rate(carries)} of {link}, which limits {them}"
        yield f"{device} {verb} {format_rate(rate)}, {limit}; {todo}"
