"""What a target is made of."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from simoffload.hardware import Machine, load_platform
from tests.hardware.conftest import crossed, number

GB = 10**9


@pytest.mark.parametrize(
    ("platform", "tier", "drive", "level", "count"),
    [
        ("dgx-h100", "raid", "samsung-pm1733-3.84tb", 0, 8),
        ("h100-storage-choices", "raid6", "micron-7450-pro-7.68tb", 6, 8),
        ("h100-storage-choices", "nvmeof-rdma", "solidigm-ps1010-7.68tb", 0, 4),
    ],
)
def test_drives_are_known_where_the_profiles_name_them(
    platform: str, tier: str, drive: str, level: int, count: int
) -> None:
    target = load_platform(platform).machine().targets[tier]
    assert target.drive is not None
    assert target.array is not None
    assert (target.drive.id, target.array.level, target.array.count) == (drive, level, count)


def test_a_single_drive_is_not_an_array() -> None:
    targets = load_platform("rtx-4090-desktop").machine().targets
    (target,) = (one for one in targets.values() if one.drives == 1)
    assert target.drive is not None
    assert target.array is None


@pytest.mark.parametrize("tier", ["nfs", "pfs"])
def test_drives_behind_a_server_are_not_known(tier: str) -> None:
    target = load_platform("dgx-h100").machine().targets[tier]
    assert (target.drive, target.array) == (None, None)


@pytest.fixture
def cached(folder: Path) -> Machine:
    """The small machine, whose drives write 1 GB/s until 100 GB are in their cache and 250 MB/s after."""
    path = folder / "drive" / "disk.yaml"
    cache = f"{{capacity: {number('100 GB')}, rate_after: {number('250 MB/s')}}}"
    path.write_text(f"{path.read_text()}write_cache: {cache}\n")
    return load_platform(folder / "small.yaml").machine()


@pytest.mark.parametrize(
    ("tier", "size", "rate", "after"),
    [
        ("disk", 100 * GB, 1 * GB, GB // 4),
        ("raid", 200 * GB, 1 * GB, GB // 4),  # two drives, of which half the rate is reached
        ("far", 200 * GB, GB // 2, GB // 8),  # half of it again
    ],
)
def test_caches_of_drives_behind_a_tier(cached: Machine, tier: str, size: int, rate: int, after: int) -> None:
    target = cached.targets[tier]
    assert target.sustained is not None
    assert (target.write_cache, target.write.rate, target.sustained.rate) == (size, rate, after)


@pytest.mark.parametrize(("level", "count", "drives"), [(0, 4, 4), (5, 4, 3), (6, 4, 2), (10, 4, 2)])
def test_parity_and_mirrors_fill_caches_too(
    cached: Machine, folder: Path, level: int, count: int, drives: int
) -> None:
    path = folder / "raid" / "pair.yaml"
    path.write_text(
        path.read_text().replace("level: 0\n", f"level: {level}\n").replace("count: 2", f"count: {count}")
    )
    target = load_platform(folder / "small.yaml").machine().targets["raid"]
    assert target.write_cache == drives * cached.targets["disk"].write_cache


def test_half_of_the_bytes_written_fit_into_the_cache(cached: Machine, small: Machine) -> None:
    """Half of the bytes at 1 GB/s and half at 250 MB/s are 400 MB/s; a byte takes the time of five read."""
    partly = cached.with_cached_writes({"disk": Fraction(1, 2)})
    assert partly.targets["disk"].write.rate == 400_000_000
    assert crossed(partly, partly.storage_write("disk", 0))["disk both ways"] == 5
    assert crossed(partly, partly.storage_read("disk", 0))["disk both ways"] == 1
    changed = [
        (mine.name, other.capacity)
        for mine, other in zip(small.resources, partly.resources, strict=True)
        if mine != other
    ]
    assert changed == [("disk write", 400_000_000)]
    assert cached.with_cached_writes({"raid": Fraction(1), "nfs": Fraction(0)}).resources == small.resources
