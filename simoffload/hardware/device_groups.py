"""Groups of equal devices of which a machine consists, as a bill of materials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from simoffload.hardware.targets import Target

if TYPE_CHECKING:
    from simoffload.hardware.topology import Platform

__all__ = ["MEMORY", "DeviceGroup", "device_groups"]

MEMORY = "memory"
"""Key of host memory, which has no profile of its own."""


class DeviceGroup(NamedTuple):
    """Equal devices of a machine."""

    key: str
    """``kind/id`` of the profile of these devices."""
    number: int
    """Number of devices in the group."""
    links: tuple[tuple[str, ...], ...] = ()
    """Names of the links whose use says how busy a device is; one entry per device, or one for all
    together."""
    tier: str = ""
    """The storage tier to which the devices belong; "" for all other devices."""
    size: int = 0
    """Capacity [B] of each device, for host memory and drives."""

    @property
    def kind(self) -> str:
        """The kind of device: "accelerator", "host", "memory", "nic", "drive", "nfs", "pfs" or "nvmeof"."""
        return self.key.partition("/")[0]


def device_groups(platform: Platform, prefixes: Iterable[str]) -> tuple[DeviceGroup, ...]:
    """Return the devices of equal hosts, whose vertices begin with ``prefixes``, and of the storage they
    share."""
    before = tuple(prefixes)
    return tuple(_device_groups(platform, before))


def _device_groups(platform: Platform, prefixes: tuple[str, ...]) -> Iterator[DeviceGroup]:
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
