"""Capacities and rates of arrays, servers and parallel filesystems, reckoned by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from simoffload.hardware import load_platform, load_profile
from simoffload.hardware.storage import Drive, Nfs, NvmeOf, Pfs, Raid, Service

TB, GB = 10**12, 10**9


def array(folder: Path, **changes: object) -> Raid:
    raid = load_profile("raid", "pair", root=folder)
    assert isinstance(raid, Raid)
    return Raid.model_validate(raid.model_dump() | {"chunk": raw(512 * 1024)} | efficiency(1, 1) | changes)


def raw(size: int) -> dict[str, object]:
    return {"value": f"{size} B", "origin": "spec", "source": "made up", "date": "2026-11-20"}


def efficiency(read: float, write: float) -> dict[str, object]:
    origin = {"origin": "spec", "source": "made up", "date": "2026-11-20"}
    return {"read_efficiency": {"value": read, **origin}, "write_efficiency": {"value": write, **origin}}


@pytest.fixture
def disk(folder: Path) -> Drive:
    drive = load_profile("drive", "disk", root=folder)
    assert isinstance(drive, Drive)
    return drive


@pytest.mark.parametrize(
    ("level", "count", "usable", "write"),
    [
        (0, 1, 1, 1),
        (0, 4, 4, 4),
        (5, 3, 2, 2),
        (5, 8, 7, 7),
        (6, 4, 2, 2),
        (6, 10, 8, 8),
        (10, 4, 2, 2),
        (10, 8, 4, 4),
    ],
)
def test_array_of_terabyte_drives(
    folder: Path, disk: Drive, level: int, count: int, usable: int, write: int
) -> None:
    """A drive of 1 TB reads 2 GB/s and writes 1 GB/s; at full efficiency the array multiplies that."""
    raid = array(folder, level=level, count=count)
    assert raid.usable(disk) == usable * TB
    chunk, data = 512 << 10, raid.data_drives
    assert raid.read_service(disk) == Service(2 * count * GB, 100e-6, 2 * GB, chunk, count)
    assert raid.write_service(disk) == Service(write * GB, 50e-6, GB, chunk, data)


def test_efficiencies_scale_each_direction(folder: Path, disk: Drive) -> None:
    raid = array(folder, level=5, count=4, **efficiency(0.75, 0.25))
    assert raid.read_service(disk).rate == 6 * GB  # 4 drives x 2 GB/s x 0.75
    assert raid.write_service(disk).rate == 750_000_000  # 3 data drives x 1 GB/s x 0.25


@pytest.mark.parametrize(("level", "count"), [(5, 2), (6, 3), (10, 2), (10, 5), (1, 2)])
def test_too_few_drives_are_refused(folder: Path, level: int, count: int) -> None:
    with pytest.raises(ValidationError):
        array(folder, level=level, count=count)


def test_nfs_client_is_limited_by_its_connections(folder: Path) -> None:
    nfs = load_profile("nfs", "share", root=folder)
    assert isinstance(nfs, Nfs)
    assert nfs.client_rate == 2 * GB  # 1 mount x nconnect 2 x 1 GB/s


def test_pfs_client_is_limited_by_requests_in_flight(folder: Path) -> None:
    """4 targets x 2 RPCs x 1 MB / 1 ms = 8 GB/s; one file lies on 2 of the targets."""
    pfs = load_profile("pfs", "stripes", root=folder)
    assert isinstance(pfs, Pfs)
    assert pfs.client_rate == 8 * GB
    assert pfs.transfer_rate(20 * GB) == 4 * GB  # its window: 2 GB/s per target
    assert pfs.transfer_rate(4 * GB) == 2 * GB  # the servers: 1 GB/s per target


def test_remote_drives_are_slower_than_local_ones(folder: Path) -> None:
    far = load_profile("nvmeof", "far", root=folder)
    assert isinstance(far, NvmeOf)
    assert far.through(Service(3 * GB, 100e-6, 2 * GB), 4 * GB) == Service(1_500_000_000, 120e-6, 2 * GB)
    assert far.through(Service(20 * GB, 100e-6, 2 * GB), 4 * GB).rate == 4 * GB  # one port


def test_capacities_of_tiers(folder: Path) -> None:
    tiers = load_platform(folder / "small.yaml").machine().tiers
    assert {name: tier.capacity for name, tier in tiers.items()} == {
        "hbm": 10 * GB,
        "dram": 100 * GB,
        "disk": 1 * TB,
        "raid": 2 * TB,
        "nfs": 50 * TB,
        "pfs": 100 * TB,
        "far": 2 * TB,
    }
    assert [tier.kind for tier in tiers.values()] == ["hbm", "dram", "nvme", "nvme", "nfs", "pfs", "nvmeof"]
    assert (tiers["hbm"].reserved, tiers["dram"].reserved) == (1 * GB, 10 * GB)


def test_local_drives_add_up_over_hosts_and_servers_do_not(folder: Path) -> None:
    tiers = load_platform(folder / "small.yaml").machine(nodes=3).tiers
    assert (tiers["raid"].capacity, tiers["pfs"].capacity) == (6 * TB, 100 * TB)
    assert (tiers["hbm"].capacity, tiers["dram"].capacity) == (10 * GB, 100 * GB)  # per GPU, per host
