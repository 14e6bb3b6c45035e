"""The devices of a ds_config's offload sections, and the tiers of a machine that they stand for."""

from __future__ import annotations

from typing import Literal

from simoffload.errors import InputError
from simoffload.hardware import Machine

__all__ = ["OffloadDevice", "device_of", "offload_tier"]

OffloadDevice = Literal["none", "cpu", "nvme"]

_KINDS: dict[str, tuple[str, ...]] = {
    "none": ("hbm",),
    "cpu": ("dram",),
    "nvme": ("nvme", "nvmeof", "nfs", "pfs"),
}


def device_of(tier: str, machine: Machine) -> OffloadDevice:
    """What ds_config calls a tier of the machine."""
    devices: dict[str, OffloadDevice] = {"hbm": "none", "dram": "cpu"}
    return devices.get(machine.tiers[tier].kind, "nvme")


def offload_tier(
    key: str, named: str | None, *, section: str, configured: str | None, machine: Machine
) -> tuple[str, tuple[str, ...]]:
    """A tier of the machine and what to warn of; the scenario's word counts more than the configuration's.

    ``named`` is what the scenario says under ``strategy.key``, ``configured`` the ``device`` of a ``section``
    that is there. Raises InputError if the machine has no such tier.
    """
    if named is not None:
        if configured is not None and machine.tiers[named].kind not in _KINDS[configured]:
            said = f'ds_config {section}.device: "{configured}" does not go with {key}: {named}'
            return named, (f"{said}; {named} is used",)
        return named, ()
    for wanted in _KINDS[configured or "none"]:
        for name, tier in machine.tiers.items():
            if tier.kind == wanted:
                return name, ()
    raise InputError.at(f"strategy.{key}", f"the platform has no tier for offload device {configured!r}")
