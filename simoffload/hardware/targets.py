"""Storage targets of all kinds, with the properties that the topology needs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from simoffload.documents import DocumentLocation
from simoffload.hardware.library import Entry, Library
from simoffload.hardware.paths import TierKind
from simoffload.hardware.profiles import Nic, Pcie, Slot
from simoffload.hardware.quantities import Curve, RateCurve, whole_rate
from simoffload.hardware.storage import LOCAL_KINDS, Drive, Nfs, NvmeOf, Pfs, Raid, RemoteMemory, Service


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
    kind: TierKind
    capacity: int
    """Capacity of the target [B]."""
    read: Service
    write: Service
    read_transfer: int
    """Rate [B/s] of a single read transfer, however much it has in flight."""
    write_transfer: int
    """Rate [B/s] of a single write transfer, however much it has in flight."""
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

    def partly_cached(self, share: Fraction) -> Target:
        """Return the target with the write rate that results if ``share`` of all bytes fit into its drives'
        write caches."""
        if self.sustained is None or share == 1:
            return self
        write = self.write.mixed(self.sustained, share)
        return self._replace(write=write, write_transfer=write.rate)


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


def resolve_target(
    library: Library, entry: Entry, *, link: tuple[str, DocumentLocation] | None = None
) -> Target:
    """Follow the references of a storage profile. Raises InputError for one that cannot be found.

    ``link`` is the reference to the server's adapter used instead of its profile's, and where that is
    written.
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
        case RemoteMemory():
            return _remote_memory(library, entry, profile, link)
        case _:
            raise AssertionError(f"{entry.use.kind} is not a kind of storage")


def _ports(
    library: Library,
    entry: Entry,
    profile: Nfs | NvmeOf | RemoteMemory,
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
        # The curve of one drive does not apply to several, among which requests are distributed.
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
    per_target = whole_rate(read // profile.targets), whole_rate(write // profile.targets)
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
    own_read, own_write = (whole_rate(one.rate * profile.efficiency.value) for one in (reads, writes))
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


def _remote_memory(
    library: Library, entry: Entry, profile: RemoteMemory, link: tuple[str, DocumentLocation] | None
) -> Target:
    ports = _ports(library, entry, profile, link, read=0, write=0)
    rate = whole_rate(ports.total * profile.efficiency.value)
    ports, service = ports._replace(read=rate, write=rate), Service(rate, profile.latency.value, rate)
    return Target(
        id=profile.id,
        kind="remote",
        capacity=profile.capacity.value,
        read=service,
        write=service,
        read_transfer=rate,
        write_transfer=rate,
        ports=ports,
    )
