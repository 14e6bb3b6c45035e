"""What a target is made of."""

from __future__ import annotations

import pytest

from simoffload.hardware import load_platform


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
    target = load_platform(platform).machine().wiring.targets[tier]
    assert target.drive is not None
    assert target.array is not None
    assert (target.drive.id, target.array.level, target.array.count) == (drive, level, count)


def test_a_single_drive_is_no_array() -> None:
    targets = load_platform("rtx-4090-desktop").machine().wiring.targets
    (target,) = (one for one in targets.values() if one.drives == 1)
    assert target.drive is not None
    assert target.array is None


@pytest.mark.parametrize("tier", ["nfs", "pfs"])
def test_drives_behind_a_server_are_not_known(tier: str) -> None:
    target = load_platform("dgx-h100").machine().wiring.targets[tier]
    assert (target.drive, target.array) == (None, None)
