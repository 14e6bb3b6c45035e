"""Storage targets of all kinds, with the properties that the topology needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, get_args

from simoffload.documents import DocumentLocation
from simoffload.errors import InputError
from simoffload.hardware.library import DEVICES, KINDS, Entry, Library
from simoffload.hardware.profiles import Nic, Pcie, Profile, Slot
from simoffload.hardware.quantities import Curve, RateCurve, whole_rate
from simoffload.hardware.storage import STORAGE_KINDS, Drive, Nfs, NvmeOf, Pfs, Raid, RemoteMemory, Service
from simoffload.hardware.tiers import GPU, HOST, NVME, TIER_KINDS, TierKind


class Cable(NamedTuple):
    """A cable between CPU, switches and GPUs, with the rates of copies over it."""

    label: str
    """A description for messages, for example "PCI Express 4.0 x4"."""
    down: int
    """Rate [B/s] away from the host."""
    up: int
    """Rate [B/s] towards the host."""
    both_ways: Curve
    """Rate [B/s] of both directions together, by the size of copies."""


class PcieLink(NamedTuple):
    """A PCIe cable of a generation and a width."""

    pcie: Pcie
    lanes: int

    def within(self, slot: Pcie | None) -> PcieLink:
        """Return the same device in ``slot``, at the generation of the slower of the two."""
        return PcieLink(self.pcie.within(slot), self.lanes)

    @property
    def payload_rate(self) -> int:
        """The rate [B/s] at which drives and adapters can move data in one direction."""
        return self.pcie.payload_rate(self.lanes)

    @property
    def label(self) -> str:
        """The generation and width, for example "PCI Express 4.0 x4"."""
        return f"{self.pcie.name} x{self.lanes}"

    @property
    def cable(self) -> Cable:
        """The rates of copies over all lanes."""
        down, up = self.pcie.down_rate(self.lanes), self.pcie.up_rate(self.lanes)
        return Cable(self.label, down, up, self.pcie.both_ways_rate(down, up))


class Ports(NamedTuple):
    """The network ports of a remote target's server."""

    nic: Nic
    number: int
    rate: int
    """Rate [B/s] of each port in one direction, limited by its slot."""
    read: int
    """Rate [B/s] at which the storage behind the ports reads."""
    write: int
    """Rate [B/s] at which the storage behind the ports writes."""
    mounts: int = 0
    """Mounts of one client, each over one port; 0 = a client uses all ports."""

    @property
    def total(self) -> int:
        """The rate [B/s] of all ports together in one direction."""
        return self.number * self.rate


class Target(NamedTuple):
    """A storage target of any kind, with its rates and capacity."""

    id: str
    kind: str
    capacity: int
    """Capacity of the target [B]."""
    read: Service
    write: Service
    sustained: Service | None = None
    """Service of writes once the write caches of its drives are full; None where they have none."""
    write_cache: int = 0
    """Bytes [B] that hosts can write until all write caches are full."""
    drives: int = 0
    """Number of local drives, each on a cable of its own."""
    pcie_link: PcieLink | None = None
    """The drives' own side of that cable; a slower slot limits it."""
    ports: Ports | None = None
    """Ports of a server whose adapters are known."""
    client_rate: int | None = None
    """Rate [B/s] that the requests in flight of one host can reach."""
    client_both_ways: bool = False
    """Whether reads and writes share ``client_rate``."""
    by_outstanding: RateCurve | None = None
    """Measured read rate by the bytes in flight, where the drive's profile states it."""
    drive: Drive | None = None
    """The drives of which it consists, where its profile names them."""
    array: Raid | None = None
    """The array that joins such drives; None for a single one."""
    systems: int = 1
    """Number of servers or appliances of which it consists."""
    has_rdma: bool = True
    """Whether GPUDirect Storage can access it. It can for drives of the host, NVMe-oF over RDMA and parallel
    filesystems (README of NVIDIA/gds-nvidia-fs), but not for NFS over TCP connections, nor NVMe-oF over TCP
    (from memory)."""

    @property
    def device(self) -> str:
        """``kind/id`` of the profile of its drives, where its own names them, or else its own."""
        return f"drive/{self.drive.id}" if self.drive else f"{self.kind}/{self.id}"

    def partly_cached(self, share: Fraction) -> Target:
        """Return the target with the write rate that results if ``share`` of all bytes fit into its drives'
        write caches."""
        if self.sustained is None or share == 1:
            return self
        return self._replace(write=self.write.mixed(self.sustained, share))


def pcie_link(library: Library, slot: Slot, entry: Entry, *keys: str) -> PcieLink:
    """Return a device's own side of its slot; ``keys`` lead to the slot in the device's file."""
    found = library.find(slot.profile, ("pcie",), DocumentLocation(entry.document, (*keys, "profile")))
    assert isinstance(found.profile, Pcie)
    return PcieLink(found.profile, slot.lanes.value)


def slowest(plugs: Sequence[PcieLink]) -> PcieLink:
    """Return the link of the oldest generation; of equal ones the first."""
    return min(plugs, key=lambda one: one.pcie.lane_rate.value * one.pcie.encoding.value)


def adapter_rate(nic: Nic, pcie_link: PcieLink) -> int:
    """Return the rate [B/s] of a port and its slot in series: the slower of both, in each direction."""
    return min(nic.achieved.value, pcie_link.payload_rate)


Link = tuple[str, DocumentLocation] | None
"""Reference to the adapter of a server, and where it is written."""


def resolve_target(library: Library, entry: Entry, *, link: Link = None) -> Target:
    """Follow the references of a storage profile. Raises InputError for one that cannot be found.

    ``link`` is the reference to the server's adapter used instead of its profile's, and where that is
    written.
    """
    found = TARGETS[entry.use.kind](library, entry, link)
    if TIER_KINDS[found.kind].local and (found.drives < 1 or found.pcie_link is None):
        text = "a tier in the host is a Target with a pcie_link and with drives, the devices that share it"
        raise InputError.at(entry.use.id, text, path=found.kind)
    return found


def _ports(library: Library, entry: Entry, link: Link, *, read: int, write: int) -> Ports:
    profile = entry.profile
    assert isinstance(profile, Nfs | NvmeOf | RemoteMemory)
    reference, place = link or (profile.link, DocumentLocation(entry.document, ("link",)))
    found = library.find(reference, ("nic",), place)
    nic = found.profile
    assert isinstance(nic, Nic)
    rate = adapter_rate(nic, pcie_link(library, nic.pcie, found, "pcie"))
    mounts = profile.mounts.value if isinstance(profile, Nfs) else 0
    return Ports(nic, profile.links, rate, read, write, mounts)


def _served(library: Library, entry: Entry, link: Link) -> Target:
    profile = entry.profile
    assert isinstance(profile, Nfs)
    ports = _ports(library, entry, link, read=profile.read.value, write=profile.write.value)
    read, write = min(ports.read, ports.total), min(ports.write, ports.total)
    client = profile.client_rate_over(ports.rate)
    latency, streams = profile.latency.value, min(profile.per_connection.value, ports.rate)
    return Target(
        id=profile.id,
        kind="nfs",
        capacity=profile.capacity.value,
        read=Service(read, latency, streams, transfer=min(read, client)),
        write=Service(write, latency, streams, transfer=min(write, client)),
        client_rate=client,
        ports=ports,
        has_rdma=False,
    )


def _local(library: Library, entry: Entry, _link: Link) -> Target:
    profile = entry.profile
    if isinstance(profile, Drive):
        drive, drive_entry, count, array = profile, entry, 1, None
        read = Service(drive.read.value, drive.read_latency.value, drive.read.value)
        latency = drive.write_latency.value
        write, sustained = (
            Service(rate, latency, rate) for rate in (drive.write.value, drive.sustained_write)
        )
        capacity, outstanding = drive.capacity.value, drive.read_by_outstanding
    else:
        assert isinstance(profile, Raid)
        drive_entry = library.find(profile.drive, ("drive",), DocumentLocation(entry.document, ("drive",)))
        assert isinstance(drive_entry.profile, Drive)
        drive, count, array = drive_entry.profile, profile.count, profile
        read = profile.read_service(drive)
        write, sustained = profile.write_service(drive), profile.write_service(drive, sustained=True)
        # The curve of one drive does not apply to several, among which requests are distributed.
        capacity, outstanding = profile.usable(drive), None
    cache, data_drives = drive.write_cache, array.data_drives if array else 1
    return Target(
        id=profile.id,
        kind="nvme",
        capacity=capacity,
        read=read,
        write=write,
        sustained=sustained if cache else None,
        write_cache=data_drives * cache.capacity.value if cache else 0,
        drives=count,
        pcie_link=pcie_link(library, drive.pcie, drive_entry, "pcie"),
        by_outstanding=outstanding,
        drive=drive,
        array=array,
    )


def _parallel(_library: Library, entry: Entry, _link: Link) -> Target:
    profile = entry.profile
    assert isinstance(profile, Pfs)
    read, write = profile.count * profile.read.value, profile.count * profile.write.value
    latency = profile.latency.value
    # One request streams from one target.
    per_target = whole_rate(read // profile.targets), whole_rate(write // profile.targets)
    return Target(
        id=profile.id,
        kind="pfs",
        capacity=profile.count * profile.capacity.value,
        read=Service(read, latency, per_target[0], transfer=profile.transfer_rate(read)),
        write=Service(write, latency, per_target[1], transfer=profile.transfer_rate(write)),
        client_rate=profile.client_rate,
        client_both_ways=True,
        systems=profile.count,
    )


def _exported(library: Library, entry: Entry, link: Link) -> Target:
    profile = entry.profile
    assert isinstance(profile, NvmeOf)
    inner = resolve_target(
        library, library.find(profile.target, _DRIVES, DocumentLocation(entry.document, ("target",)))
    )
    assert inner.pcie_link is not None
    cables = inner.drives * inner.pcie_link.payload_rate
    reads, writes = (one._replace(rate=min(one.rate, cables)) for one in (inner.read, inner.write))
    own_read, own_write = (whole_rate(one.rate * profile.efficiency.value) for one in (reads, writes))
    ports = _ports(library, entry, link, read=own_read, write=own_write)
    read, write = profile.through(reads, ports.rate), profile.through(writes, ports.rate)
    sustained = (
        profile.through(inner.sustained._replace(rate=min(inner.sustained.rate, cables)), ports.rate)
        if inner.sustained
        else None
    )
    return Target(
        id=profile.id,
        kind="nvmeof",
        capacity=inner.capacity,
        read=read,
        write=write,
        ports=ports,
        has_rdma=profile.protocol == "rdma",
        sustained=sustained,
        write_cache=inner.write_cache,
        drive=inner.drive,
        array=inner.array,
    )


def _remote_memory(library: Library, entry: Entry, link: Link) -> Target:
    profile = entry.profile
    assert isinstance(profile, RemoteMemory)
    ports = _ports(library, entry, link, read=0, write=0)
    rate = whole_rate(ports.total * profile.efficiency.value)
    ports, service = ports._replace(read=rate, write=rate), Service(rate, profile.latency.value, rate)
    return Target(
        id=profile.id,
        kind="remote",
        capacity=profile.capacity.value,
        read=service,
        write=service,
        ports=ports,
    )


_DRIVES = ("drive", "raid")
TARGETS: dict[str, Callable[[Library, Entry, Link], Target]] = {
    **dict.fromkeys(_DRIVES, _local),
    "nfs": _served,
    "pfs": _parallel,
    "nvmeof": _exported,
    "remote": _remote_memory,
}
"""The function that follows the references of a profile, by its kind."""
_OWN = frozenset(KINDS)


def register_tier(
    kind: TierKind, profile: type[Profile], target: Callable[[Library, Entry, Link], Target], devices: Path
) -> None:
    """Make a kind of tier known, whose ``profile`` has the kind as its ``kind``, and becomes a target.

    ``target`` gets the library, the entry of a profile, and the adapter that the platform names for it.
    ``devices`` is a folder with a folder of the kind's name, in which profiles are. Raises ValueError for
    the name of a kind of the package, and for a profile of another kind.
    """
    if kind.name in _OWN | {GPU.name, HOST.name, NVME.name}:
        raise ValueError(f"{kind.name} is a kind of simoffload; give the tier another name")
    if (named := get_args(profile.model_fields["kind"].annotation)) != (kind.name,):
        raise ValueError(f"{profile.__qualname__}.kind must be Literal[{kind.name!r}], got {named}")
    KINDS[kind.name], STORAGE_KINDS[kind.name], TIER_KINDS[kind.name] = profile, kind, kind
    TARGETS[kind.name] = target
    DEVICES[:] = dict.fromkeys((*DEVICES, devices.resolve()))


def tiers_outside() -> tuple[type[Profile], ...]:
    """Return the profiles of registered tiers, whose modules worker processes have to import."""
    return tuple(one for name, one in KINDS.items() if name not in _OWN)
