"""Storage targets of all kinds, reduced to what the topology needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from simoffload.hardware.library import Entry, Library
from simoffload.hardware.location import DocumentLocation
from simoffload.hardware.paths import TierKind
from simoffload.hardware.profiles import Nic, Pcie, Slot
from simoffload.hardware.quantities import RateCurve
from simoffload.hardware.storage import Drive, Nfs, NvmeOf, Pfs, Raid, Service

__all__ = [
    "LINKED_KINDS",
    "LOCAL_KINDS",
    "STORAGE_KINDS",
    "PcieLink",
    "Ports",
    "Target",
    "adapter_rate",
    "pcie_link",
    "resolve_target",
    "slowest",
]

LOCAL_KINDS = ("drive", "raid")
LINKED_KINDS = ("nfs", "nvmeof")
"""Servers whose adapters their profiles name."""
STORAGE_KINDS = (*LOCAL_KINDS, "nfs", "pfs", "nvmeof")


class PcieLink(NamedTuple):
    """A cable of a generation and width."""

    pcie: Pcie
    lanes: int

    def within(self, slot: Pcie | None) -> PcieLink:
        """The same device in a slot, at the slower one's generation."""
        return PcieLink(self.pcie.within(slot), self.lanes)

    @property
    def payload_rate(self) -> int:
        """[B/s] that drives and adapters can move in one direction."""
        return self.pcie.payload_rate(self.lanes)

    @property
    def label(self) -> str:
        """ "PCI Express 4.0 x4"."""
        return f"{self.pcie.name} x{self.lanes}"


class Ports(NamedTuple):
    """The server's side of a remote target."""

    nic: Nic
    number: int
    rate: int
    """[B/s] of each in one direction, its slot included."""
    read: int
    """[B/s] that what is behind them reads."""
    write: int
    """[B/s]"""
    mounts: int = 0
    """Of one client, each over one port; 0 = it uses all ports."""

    @property
    def total(self) -> int:
        """[B/s] of all of them in one direction."""
        return self.number * self.rate


class Target(NamedTuple):
    """A storage target."""

    id: str
    kind: TierKind
    capacity: int
    """[B]"""
    read: Service
    write: Service
    read_transfer: int
    """[B/s] of a single transfer, however much it has in flight."""
    write_transfer: int
    sustained: Service | None = None
    """Writing once the write caches of its drives are full; None where they have none."""
    write_cache: int = 0
    """[B] that hosts write until all of them are full."""
    drives: int = 0
    """Local drives, each on a cable of its own."""
    pcie_link: PcieLink | None = None
    """That cable, as the drives know it: a slower slot slows it down."""
    ports: Ports | None = None
    """Of a server whose adapters are known."""
    client_rate: int | None = None
    """[B/s] that one host can have in flight."""
    client_both_ways: bool = False
    """Reads and writes share ``client_rate``."""
    by_outstanding: RateCurve | None = None
    drive: Drive | None = None
    """Of what it is made, where its profile says so."""
    array: Raid | None = None
    """How such drives are joined; None for a single one."""
    systems: int = 1
    """Servers or appliances that it consists of."""
    has_rdma: bool = True
    """GPUDirect Storage reaches drives of the host, NVMe-oF over RDMA and parallel filesystems (README of
    NVIDIA/gds-nvidia-fs), not NFS over TCP connections, and NVMe-oF over TCP not (from memory)."""

    def partly_cached(self, share: Fraction) -> Target:
        """The same where of all bytes written ``share`` find room in the write caches of its drives."""
        if self.sustained is None or share == 1:
            return self
        write = self.write.mixed(self.sustained, share)
        return self._replace(write=write, write_transfer=write.rate)


def pcie_link(library: Library, slot: Slot, entry: Entry, *keys: str) -> PcieLink:
    """A device's own side of its slot; ``keys`` say where that stands in the device's file."""
    found = library.find(slot.profile, ("pcie",), DocumentLocation(entry.document, (*keys, "profile")))
    assert isinstance(found.profile, Pcie)
    return PcieLink(found.profile, slot.lanes.value)


def slowest(plugs: Sequence[PcieLink]) -> PcieLink:
    """The one of the oldest generation; of equals the first."""
    return min(plugs, key=lambda one: one.pcie.lane_rate.value * one.pcie.encoding.value)


def adapter_rate(nic: Nic, pcie_link: PcieLink) -> int:
    """[B/s] of a port and its slot in a row: the slower of both, in each direction."""
    return min(nic.achieved.value, pcie_link.payload_rate)


def resolve_target(
    library: Library, entry: Entry, *, link: tuple[str, DocumentLocation] | None = None
) -> Target:
    """Follow a storage profile's references; InputError for one that leads nowhere.

    ``link`` is the reference to the adapter of a server in place of its profile's, and where that is written.
    """
    profile = entry.profile
    match profile:
        case Drive() | Raid():
            return _local(library, entry)
        case Nfs():
            return _served(library, entry, profile, link)
        case Pfs():
            return _parallel(profile)
        case NvmeOf():
            return _exported(library, entry, profile, link)
        case _:
            raise AssertionError(f"{entry.use.kind} is no storage")


def _ports(
    library: Library,
    entry: Entry,
    profile: Nfs | NvmeOf,
    link: tuple[str, DocumentLocation] | None,
    *,
    read: int,
    write: int,
) -> Ports:
    reference, place = link or (profile.link, DocumentLocation(entry.document, ("link",)))
    found = library.find(reference, ("nic",), place)
    nic = found.profile
    assert isinstance(nic, Nic)
    rate = adapter_rate(nic, pcie_link(library, nic.pcie, found, "pcie"))
    mounts = profile.mounts.value if isinstance(profile, Nfs) else 0
    return Ports(nic, profile.links, rate, read, write, mounts)


def _served(
    library: Library, entry: Entry, profile: Nfs, link: tuple[str, DocumentLocation] | None
) -> Target:
    ports = _ports(library, entry, profile, link, read=profile.read.value, write=profile.write.value)
    read, write = min(ports.read, ports.total), min(ports.write, ports.total)
    client = profile.client_rate_over(ports.rate)
    latency, streams = profile.latency.value, min(profile.per_connection.value, ports.rate)
    return Target(
        id=profile.id,
        kind="nfs",
        capacity=profile.capacity.value,
        read=Service(read, latency, streams),
        write=Service(write, latency, streams),
        read_transfer=min(read, client),
        write_transfer=min(write, client),
        client_rate=client,
        ports=ports,
        has_rdma=False,
    )


def _local(library: Library, entry: Entry) -> Target:
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
        # A curve of one drive says nothing about several: their requests spread.
        capacity, outstanding = profile.usable(drive), None
    cache, data_drives = drive.write_cache, array.data_drives if array else 1
    return Target(
        id=profile.id,
        kind="nvme",
        capacity=capacity,
        read=read,
        write=write,
        read_transfer=read.rate,
        write_transfer=write.rate,
        sustained=sustained if cache else None,
        write_cache=data_drives * cache.capacity.value if cache else 0,
        drives=count,
        pcie_link=pcie_link(library, drive.pcie, drive_entry, "pcie"),
        by_outstanding=outstanding,
        drive=drive,
        array=array,
    )


def _parallel(profile: Pfs) -> Target:
    read, write = profile.count * profile.read.value, profile.count * profile.write.value
    latency = profile.latency.value
    # One request streams from one target.
    per_target = (read // profile.targets, write // profile.targets)
    return Target(
        id=profile.id,
        kind="pfs",
        capacity=profile.count * profile.capacity.value,
        read=Service(read, latency, per_target[0]),
        write=Service(write, latency, per_target[1]),
        read_transfer=profile.transfer_rate(read),
        write_transfer=profile.transfer_rate(write),
        client_rate=profile.client_rate,
        client_both_ways=True,
        systems=profile.count,
    )


def _exported(
    library: Library, entry: Entry, profile: NvmeOf, link: tuple[str, DocumentLocation] | None
) -> Target:
    inner = resolve_target(
        library, library.find(profile.target, LOCAL_KINDS, DocumentLocation(entry.document, ("target",)))
    )
    assert inner.pcie_link is not None
    cables = inner.drives * inner.pcie_link.payload_rate
    reads, writes = (one._replace(rate=min(one.rate, cables)) for one in (inner.read, inner.write))
    own_read, own_write = (int(one.rate * profile.efficiency.value) for one in (reads, writes))
    ports = _ports(library, entry, profile, link, read=own_read, write=own_write)
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
        read_transfer=read.rate,
        write_transfer=write.rate,
        ports=ports,
        has_rdma=profile.protocol == "rdma",
        sustained=sustained,
        write_cache=inner.write_cache,
        drive=inner.drive,
        array=inner.array,
    )
