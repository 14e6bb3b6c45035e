"""Schemas of storage outside of the host's memory: drives, arrays, file servers, remote drives."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator, model_validator

from simoffload.documents import Frozen
from simoffload.hardware.profiles import Profile, Slot
from simoffload.hardware.quantities import (
    Count,
    NumberOfParts,
    PositiveSeconds,
    RaidLevel,
    RateCurve,
    Reference,
    Share,
    Sourced,
    whole_rate,
)
from simoffload.hardware.tiers import NFS, NVME, NVMEOF, PFS, REMOTE
from simoffload.units import BytesPerSecond, PositiveBytes, Seconds, format_bytes, format_rate

STORAGE_KINDS = {"drive": NVME, "raid": NVME, "nfs": NFS, "pfs": PFS, "nvmeof": NVMEOF, "remote": REMOTE}
"""The kind of tier of every kind of profile of storage."""


class Service(NamedTuple):
    """What a storage target delivers in one direction."""

    rate: int
    """Rate [B/s] for all clients together."""
    latency: float
    """Latency [s] of one request on an idle target."""
    request_rate: int
    """Rate [B/s] at which one request streams from one device."""
    chunk: int = 0
    """Size [B] after which a request continues on the next device of an array; 0 = never."""
    width: int = 1
    """Number of devices from which one request can stream."""
    transfer: int = 0
    """Rate [B/s] of a single transfer, however much it has in flight; 0: that of all together."""

    def mixed(self, other: Service, share: Fraction) -> Service:
        """Return the mean of two services over bytes of which ``share`` are served by this one, the rest by
        the other.

        The times of both parts add up: 1 / rate = share / rate of this + (1 - share) / rate of the other.
        """
        rate, streams = (
            whole_rate(1 / (share / own_rate + (1 - share) / other_rate))
            for own_rate, other_rate in ((self.rate, other.rate), (self.request_rate, other.request_rate))
        )
        return self._replace(rate=rate, request_rate=streams)


Positive = Annotated[float, Field(strict=True, gt=0, le=1_000_000, allow_inf_nan=False)]


class Endurance(Frozen):
    """How much the manufacturer warrants that a host may write: ``tbw``, or ``dwpd`` over the warranty's
    years.

    Both count bytes that the host writes, under JEDEC's workloads (JESD219; from memory); the drive's own
    write amplification is included in the rating. Large sequential writes wear less: Micron rates the 9550
    MAX of 3.2 TB at 17 520 TB of random and 37 200 TB of sequential writing (table of StorageReview).
    """

    tbw: Sourced[PositiveBytes] | None = None
    """Total bytes written over the life of the drive."""
    dwpd: Sourced[Positive] | None = None
    """Full drive writes per day during the warranty."""
    warranty_years: Sourced[Positive] | None = None
    """Years of the warranty, over which ``dwpd`` holds."""

    @model_validator(mode="after")
    def _enough(self) -> Endurance:
        if self.tbw is None and self.dwpd is None:
            raise ValueError("give tbw (total bytes written), or dwpd (drive writes per day)")
        if self.tbw is None and self.warranty_years is None:
            raise ValueError("dwpd needs warranty_years, the time over which it holds")
        return self

    def rated_bytes(self, capacity: int) -> int:
        """Return the bytes [B] that a drive of ``capacity`` [B] is rated for: ``tbw``, else dwpd x capacity x
        365 x years.

        The 9550 MAX confirms the product: 3 x 3.2 TB x 365 x 5 = 17 520 TB.
        """
        if self.tbw is not None:
            return self.tbw.value
        assert self.dwpd is not None
        assert self.warranty_years is not None
        return int(self.dwpd.value * capacity * 365 * self.warranty_years.value)

    def rated_dwpd(self, capacity: int) -> float | None:
        """Return the rated drive writes per day: ``dwpd``, else tbw over capacity x 365 x years; None without
        a warranty."""
        if self.dwpd is not None:
            return self.dwpd.value
        if self.warranty_years is None:
            return None
        return self.rated_bytes(capacity) / (capacity * 365 * self.warranty_years.value)


class WriteCache(Frozen):
    """Part of a drive's flash that is written with one bit per cell (pseudo-SLC; Samsung's TurboWrite).

    It accepts writes faster than the rest, and is emptied into the rest while the drive is idle.
    """

    capacity: Sourced[PositiveBytes]
    """Size of the cache when it is empty."""
    rate_after: Sourced[BytesPerSecond]
    """Sequential write rate once the cache is full."""


FormFactor = Literal["m2", "u2", "e1s", "e3s"]
"""Form of a drive and of the slot that takes it: M.2, U.2 (also U.3), E1.S, E3.S."""


class Drive(Profile):
    """An NVMe drive as its data sheet describes it."""

    kind: Literal["drive"]
    capacity: Sourced[PositiveBytes]
    """Capacity that is available for data."""
    read: Sourced[BytesPerSecond]
    """Sequential read rate at a sufficient queue depth."""
    write: Sourced[BytesPerSecond]
    """Sequential write rate: sustained, or into ``write_cache`` where the drive has one."""
    write_cache: WriteCache | None = None
    """The drive's write cache; None where ``write`` is sustained, as with data-centre drives."""
    read_latency: Sourced[Seconds]
    """Latency of one read request on an idle drive."""
    write_latency: Sourced[Seconds]
    """Latency of one write request on an idle drive."""
    random_read: Sourced[Count] | None = None
    """Random reads of 4 KiB [requests/s]."""
    random_write: Sourced[Count] | None = None
    """Random writes of 4 KiB [requests/s]."""
    read_by_outstanding: RateCurve | None = None
    """Measured read rate by the bytes in flight, where known; otherwise it follows from latency and rate."""
    endurance: Endurance | None = None
    """Rated endurance; None where no rating was found."""
    form_factor: FormFactor | None = None
    """Form of the drive, which decides the slots that take it; None: not known, as with drives of rented
    machines."""
    pcie: Slot
    """The drive's own side of its slot."""

    @field_validator("write_cache")
    @classmethod
    def _slower_after(cls, cache: WriteCache | None, info: ValidationInfo) -> WriteCache | None:
        write, capacity = info.data.get("write"), info.data.get("capacity")
        if cache is None or write is None or capacity is None:
            return cache
        after, size = cache.rate_after.value, cache.capacity.value
        if after > write.value:
            raise ValueError(
                f"write_cache.rate_after {format_rate(after)} is above write {format_rate(write.value)}, the "
                f"rate into the cache; lower it, or leave write_cache out where writing is sustained"
            )
        if size >= capacity.value:
            has = format_bytes(capacity.value)
            raise ValueError(f"write_cache.capacity {format_bytes(size)} is not below the drive's {has}")
        return cache

    @property
    def sustained_write(self) -> int:
        """The rate [B/s] of writing without end."""
        return self.write_cache.rate_after.value if self.write_cache else self.write.value


LEAST_DRIVES = {0: 1, 5: 3, 6: 4, 10: 4}
"""Smallest number of drives of an array, by RAID level."""


class Raid(Profile):
    """An array of equal drives in one host."""

    kind: Literal["raid"]
    level: RaidLevel
    """RAID level: 0 none, 5 and 6 parity of one and two drives, 10 mirrors."""
    drive: Reference
    """Drive profile from which the array is built."""
    count: NumberOfParts
    """Number of drives in the array."""
    chunk: Sourced[PositiveBytes]
    """Bytes written to one drive before the next one follows."""
    read_efficiency: Sourced[Share]
    """Share of the summed read rate of all drives that the array reaches."""
    write_efficiency: Sourced[Share]
    """Share that the array reaches of the summed write rate of the drives that hold data (not parity, not
    mirrors)."""

    @model_validator(mode="after")
    def _enough_drives(self) -> Raid:
        least = LEAST_DRIVES[self.level]
        if self.count < least or (self.level == 10 and self.count % 2):
            even = "an even number of at least 4" if self.level == 10 else f"at least {least}"
            raise ValueError(f"RAID{self.level} needs {even} drives, not {self.count}")
        return self

    @property
    def data_drives(self) -> int:
        """The number of drives' worth of data: n, n-1 (RAID5), n-2 (RAID6), n/2 (RAID10)."""
        return {0: self.count, 5: self.count - 1, 6: self.count - 2, 10: self.count // 2}[self.level]

    def usable(self, drive: Drive) -> int:
        """Return the capacity [B] for data."""
        return self.data_drives * drive.capacity.value

    def read_service(self, drive: Drive) -> Service:
        """Return the service of reads, to which all drives contribute; a request streams from one of them."""
        rate = whole_rate(self.count * drive.read.value * self.read_efficiency.value)
        return Service(rate, drive.read_latency.value, drive.read.value, self.chunk.value, self.count)

    def write_service(self, drive: Drive, *, sustained: bool = False) -> Service:
        """Return the service of writes of whole stripes; the efficiency includes the cost of parity and
        mirrors."""
        each = drive.sustained_write if sustained else drive.write.value
        rate = whole_rate(self.data_drives * each * self.write_efficiency.value)
        return Service(rate, drive.write_latency.value, each, self.chunk.value, self.data_drives)


class Nfs(Profile):
    """A file server with NFS, and how clients mount it."""

    kind: Literal["nfs"]
    link: Reference
    """Network adapter of the server, as a profile."""
    links: NumberOfParts = 1
    """Number of server ports that are used; mounts are distributed over them."""
    mounts: Sourced[Count]
    """Number of mounts of one client, each over one port of the server."""
    nconnect: Sourced[Count]
    """Number of TCP connections per mount."""
    per_connection: Sourced[BytesPerSecond]
    """Rate that one TCP connection carries."""
    read: Sourced[BytesPerSecond]
    """Read rate of the server, all clients together."""
    write: Sourced[BytesPerSecond]
    """Write rate of the server, all clients together."""
    latency: Sourced[Seconds]
    """Latency of one request over the network."""
    capacity: Sourced[PositiveBytes]
    """Capacity that is available for data."""

    @property
    def client_rate(self) -> int:
        """The rate [B/s] of all connections of one client, in one direction, if its ports do not limit it."""
        return self.mounts.value * self._mount_rate()

    def client_rate_over(self, port: int) -> int:
        """Return the rate [B/s] of one client whose mounts are spread evenly over server ports of ``port``
        [B/s] each."""
        each, more = divmod(self.mounts.value, self.links)
        shares = [each + 1] * more + [each] * (self.links - more)
        return sum(min(port, mounts * self._mount_rate()) for mounts in shares)

    def _mount_rate(self) -> int:
        return self.nconnect.value * self.per_connection.value


class Pfs(Profile):
    """A parallel filesystem such as Lustre, with the settings of its clients.

    ``read`` and ``write`` are rates of the servers including their adapters, as such systems are measured and
    sold.
    """

    kind: Literal["pfs"]
    count: NumberOfParts = 1
    """Number of such systems joined to one filesystem; all numbers except those of clients and RPCs are per
    system."""
    osts: Sourced[Count]
    """Number of object storage targets of all servers."""
    stripe_count: Sourced[Count]
    """Number of targets over which one file is striped."""
    rpc_size: Sourced[PositiveBytes]
    """Size of one request on the wire."""
    rpcs_in_flight: Sourced[Count]
    """Requests in flight per client and target."""
    read: Sourced[BytesPerSecond]
    """Read rate of the servers, all clients together."""
    write: Sourced[BytesPerSecond]
    """Write rate of the servers, all clients together."""
    latency: Sourced[PositiveSeconds]
    """Latency of one RPC over the network."""
    capacity: Sourced[PositiveBytes]
    """Capacity that is available for data."""

    @model_validator(mode="after")
    def _stripes(self) -> Pfs:
        if self.stripe_count.value > self.targets:
            raise ValueError(f"stripe_count {self.stripe_count.value} is above osts {self.targets}")
        return self

    @property
    def client_rate(self) -> int:
        """The rate [B/s] that the requests in flight of one client reach: targets x RPCs x size over latency
        (Little's law)."""
        return self.targets * self._target_window()

    @property
    def targets(self) -> int:
        """The number of object storage targets of all systems."""
        return self.count * self.osts.value

    def transfer_rate(self, rate: int) -> int:
        """Return the rate [B/s] of one file when all targets together reach ``rate``."""
        per_target = min(whole_rate(rate // self.targets), self._target_window())
        return self.stripe_count.value * per_target

    def _target_window(self) -> int:
        return whole_rate(self.rpcs_in_flight.value * self.rpc_size.value / self.latency.value)


class NvmeOf(Profile):
    """Drives of another machine, accessed as block devices over the network."""

    kind: Literal["nvmeof"]
    protocol: Literal["rdma", "tcp"]
    """Transport protocol of the blocks."""
    target: Reference
    """The drive or array that is exported."""
    link: Reference
    """Network adapter of the target, as a profile."""
    links: NumberOfParts
    """Number of ports of the target that are used."""
    transport_latency: Sourced[Seconds]
    """Latency that the transport adds to that of the drive."""
    efficiency: Sourced[Share]
    """Share of the drive's own rate that is reached."""

    def through(self, service: Service, link_rate: int) -> Service:
        """Return rate and latency of the exported drives for a client on the network."""
        rate = min(whole_rate(service.rate * self.efficiency.value), self.links * link_rate)
        latency = service.latency + self.transport_latency.value
        return Service(rate, latency, service.request_rate, service.chunk, service.width)


class RemoteMemory(Profile):
    """Memory of another host, GPU memory or DRAM, read and written over RDMA by a transfer engine such as
    Mooncake's.

    A transfer of b bytes takes latency + b / (links x rate of a port x efficiency).
    """

    kind: Literal["remote"]
    link: Reference
    """Network adapter of the other host, as a profile."""
    links: NumberOfParts
    """Number of its ports over which transfers are striped."""
    latency: Sourced[Seconds]
    """Time from the beginning of a transfer until bytes move: look-up, requests, slicing."""
    efficiency: Sourced[Share]
    """Share of the rate of all ports that the transfer engine reaches."""
    capacity: Sourced[PositiveBytes]
    """Memory of the other host for data of this one."""
