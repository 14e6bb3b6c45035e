"""The shared resources of a machine, built from the wiring of its platform.

Every directed cable is a resource; a cable whose two directions slow each other down has one more, which
carries the sum of both. A cable between CPU, switches and GPUs has the highest rate measured for copies over
its generation and width, or the rates that its switch states; the cable of a drive or an adapter has the
payload rate of its lanes. Host memory is one resource for reads and writes and for all sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from simoffload.errors import InputError
from simoffload.hardware.host import Host
from simoffload.hardware.library import ProfileInput, ProfileUse
from simoffload.hardware.links import overruns
from simoffload.hardware.machine import MEMORY, DeviceGroup, Ingress, Machine, StorageAccess, Topology
from simoffload.hardware.paths import Graph, Resource, Resources, Tier
from simoffload.hardware.profiles import Accelerator, Nic, Pcie
from simoffload.hardware.quantities import whole_rate
from simoffload.hardware.targets import Cable, PcieLink, Target, adapter_rate, slowest
from simoffload.hardware.wiring import CPU, PlatformProfile, StorageTier


@dataclass(frozen=True)
class Platform:
    """A platform file with all profiles that it refers to."""

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
            build_topology=lambda: _build_topology(replace(self, targets=targets), nodes),
            with_cached_writes=lambda shares: self.machine(nodes, cached_writes=shares),
            overruns=lambda tiers: (*self.remarks, *overruns(self, tiers, nodes=nodes)),
        )


def _tiers(platform: Platform, nodes: int) -> dict[str, Tier]:
    gpu, host = platform.accelerator, platform.host
    own = gpu.hbm_capacity
    tiers = {
        "hbm": Tier("hbm", "hbm", own.value, gpu.id, gpu.reserved_bytes)
        if own
        else Tier("hbm", "hbm", host.memory_capacity.value, gpu.id, gpu.reserved_bytes, pool="dram"),
        "dram": Tier("dram", "dram", host.memory_capacity.value, host.id, host.reserved_bytes),
    }
    for name, target in platform.targets.items():
        copies = nodes if target.drives else 1
        tiers[name] = Tier(name, target.kind, target.capacity * copies, target.id)
    return tiers


def _build_topology(platform: Platform, nodes: int) -> tuple[tuple[Resource, ...], Topology]:
    builder = _Builder(platform, nodes)
    topology = builder.build()
    return builder.resources.finish(), topology


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
            yield _drives(target, tier, nodes * target.drives, links)
            continue
        links = ((f"{tier} read", f"{tier} write"),)
        yield DeviceGroup(f"{target.kind}/{target.id}", target.systems, links, tier)
        if target.drive is not None:
            yield _drives(target, tier, target.array.count if target.array else 1, links)


def _drives(target: Target, tier: str, count: int, links: tuple[tuple[str, ...], ...]) -> DeviceGroup:
    assert target.drive is not None
    return DeviceGroup(f"drive/{target.drive.id}", count, links, tier, target.drive.capacity.value)


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
        self.resources = Resources()

    def build(self) -> Topology:
        """Add all hosts, GPUs, adapters and storage tiers, and return the topology."""
        platform, profile = self._platform, self._platform.profile
        prefixes = _prefixes(self._nodes)
        memories = tuple(self._host(prefix, profile) for prefix in prefixes)
        count = len(profile.gpus)
        gpus = tuple(f"{prefixes[i // count]}gpu{i}" for i in range(self._nodes * count))
        for index, vertex in enumerate(gpus):
            prefix = prefixes[index // count]
            self._cable(f"{prefix}{profile.gpus[index % count]}", vertex, self._cables[index % count])
        adapters = [
            {name: self._adapter(f"{prefix}{name}", rate) for name, rate in self._nic_rates.items()}
            for prefix in prefixes
        ]
        access = {name: self._accesses(name, prefixes, adapters) for name in profile.tiers}
        return Topology(
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

    def _host(self, prefix: str, profile: PlatformProfile) -> int:
        memory = self.resources.add(f"{prefix}dram", self._platform.host.memory_rate, "dram")
        for name, switch in profile.switches.items():
            self._cable(f"{prefix}{switch.to}", f"{prefix}{name}", self._switches[name])
        return memory

    def _cable(self, near: str, far: str, cable: Cable) -> None:
        """Add a cable whose ``near`` end is towards the CPU."""
        away = [self.resources.add(f"{near} -> {far}", cable.down, "pcie")]
        back = [self.resources.add(f"{far} -> {near}", cable.up, "pcie")]
        rates = cable.both_ways
        if rates.points[0][1] < cable.down + cable.up:
            by_size = rates if len(rates.points) > 1 else None
            shared = self.resources.add(
                f"{near} <-> {far}", whole_rate(rates.points[-1][1]), "duplex", by_size
            )
            away.append(shared)
            back.append(shared)
        self._graph.connect(near, far, there=tuple(away), back=tuple(back))

    def _adapter(self, name: str, rate: int) -> tuple[int, int]:
        """Add an adapter and its slot in series: the slower of both limits each direction, to ``rate``
        [B/s]."""
        return self.resources.add(f"{name} in", rate, "nic"), self.resources.add(f"{name} out", rate, "nic")

    def _ports(self, gpus: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
        link = self._platform.accelerator.interconnect
        if self._platform.profile.gpu_links == "none" or link is None:
            return ()
        return tuple(
            (
                self.resources.add(f"{gpu} link in", link.rate, "nvlink"),
                self.resources.add(f"{gpu} link out", link.rate, "nvlink"),
            )
            for gpu in gpus
        )

    def _accesses(
        self, name: str, prefixes: list[str], adapters: list[dict[str, tuple[int, int]]]
    ) -> tuple[StorageAccess, ...]:
        tier, target = self._platform.profile.tiers[name], self._platform.targets[name]
        if tier.at is not None:
            return tuple(self._local(f"{prefix}{name}", prefix, tier.at, target) for prefix in prefixes)
        server = self._pair(name, target, "server")
        accesses = []
        for prefix, ports in zip(prefixes, adapters, strict=True):
            window = self._window(f"{prefix}{name}", target)
            ingresses = self._remote(prefix, tier, ports)
            accesses.append(StorageAccess(ingresses, (server[0], *window[0]), (server[1], *window[1])))
        return tuple(accesses)

    def _pair(self, name: str, target: Target, kind: str) -> tuple[int, int]:
        return (
            self.resources.add(f"{name} read", target.read.rate, kind),
            self.resources.add(f"{name} write", target.write.rate, kind),
        )

    def _local(self, name: str, prefix: str, vertices: tuple[str, ...], target: Target) -> StorageAccess:
        array = self._pair(name, target, "drive")
        assert target.pcie_link is not None
        ingresses = []
        for index in range(target.drives):
            at = vertices[index % len(vertices)]
            rate = target.pcie_link.within(self._platform.slots[at]).payload_rate
            vertex = f"{prefix}{at}"
            drive = f"{name}.{index}"
            inward = self.resources.add(f"{drive} -> {vertex}", rate, "pcie")
            outward = self.resources.add(f"{vertex} -> {drive}", rate, "pcie")
            ingresses.append(Ingress(vertex, Fraction(1, target.drives), (inward,), (outward,)))
        # A drive reads or writes: r / read + w / write <= 1 (an estimate; datasheets rarely say).
        both = self.resources.add(f"{name} both ways", target.read.rate, "drive")
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
            shared = self.resources.add(f"{name} requests in flight", target.client_rate, "nic")
            return (shared,), (shared,)
        read_resources = self.resources.add(f"{name} connections in", target.client_rate, "nic")
        write_resources = self.resources.add(f"{name} connections out", target.client_rate, "nic")
        return (read_resources,), (write_resources,)
