"""The devices and paths of a ds_config's offload sections, and the tiers of a machine that they stand for."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.ds_config.sections import OffloadOptimizerSection, OffloadParamSection

__all__ = ["OffloadDevice", "device_of", "offload_tier", "swap_path", "tier_edits", "weights_in_memory"]

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
    key: str,
    named: str | None,
    *,
    section: str,
    written: OffloadParamSection | OffloadOptimizerSection | None,
    machine: Machine,
) -> tuple[str, tuple[str, ...]]:
    """A tier of the machine and what to warn of; the scenario's word counts more than the configuration's.

    ``named`` is what the scenario says under ``strategy.key``, ``written`` the ``section`` of ds_config. Of
    several tiers of storage ``nvme_path`` says which, by the name of a folder in it.
    Raises InputError if the machine has no such tier.
    """
    configured = written.device if written else None
    path = written.nvme_path if written and configured == "nvme" else None
    told = _tier_of_path(path, machine) if path else None
    if named is not None:
        if configured is not None and machine.tiers[named].kind not in _KINDS[configured]:
            said = f'ds_config {section}.device: "{configured}" does not go with {key}: {named}'
            return named, (f"{said}; {named} is used",)
        if told not in (None, named):
            said = f'ds_config {section}.nvme_path: "{path}" does not go with {key}: {named}'
            return named, (f"{said}; {named} is used",)
        return named, ()
    if told is not None:
        return told, ()
    kinds = _KINDS[configured or "none"]
    found = [name for kind in kinds for name, tier in machine.tiers.items() if tier.kind == kind]
    if not found:
        text = f"the platform has no tier for offload device {configured!r}"
        raise InputError.at(f"strategy.{key}", text)
    if path and len(found) > 1:
        said = f'ds_config {section}.nvme_path: "{path}" names no tier of {machine.platform}'
        which = f"{found[0]} is used; say which with strategy.{key}, or end the path with the tier's name"
        return found[0], (f"{said} ({', '.join(found)}); {which}",)
    return found[0], ()


def tier_edits(
    key: str,
    tier: str,
    section: str,
    written: OffloadParamSection | OffloadOptimizerSection | None,
    machine: Machine,
) -> tuple[Edit, ...]:
    """Edits that name a tier under ``strategy.key`` and bring what ds_config says into line with it."""
    edits = [Edit(("strategy", key), tier)]
    zero = ("strategy", "ds_config", "zero_optimization", section)
    if written is not None and "device" in written.model_fields_set:
        edits.append(Edit((*zero, "device"), device_of(tier, machine)))
    path = swap_path(tier, written, machine=machine)
    if written is not None and written.nvme_path and path:
        edits.append(Edit((*zero, "nvme_path"), path))
    return tuple(edits)


def weights_in_memory(weights: str | None, config: DeepSpeedConfig) -> tuple[Edit, ...]:
    """``weights: dram`` for a strategy at stage 3 of which nothing says where they are."""
    zero = config.zero_optimization
    said = weights is not None or (zero.offload_param is not None and zero.offload_param.device is not None)
    return () if said or zero.stage < 3 else (Edit.at("strategy.weights", "dram"),)


def swap_path(
    tier: str, written: OffloadParamSection | OffloadOptimizerSection | None, *, machine: Machine
) -> str | None:
    """The ``nvme_path`` of a tier: what is written where it stands for the tier, else /mnt/<tier>.

    None for what is no storage. No profile knows where storage is mounted; ``offload_tier`` reads the tier
    from either path.
    """
    if device_of(tier, machine) != "nvme":
        return None
    if written is not None and written.nvme_path:
        section = written.model_copy(update={"device": "nvme"})
        found, warnings = offload_tier("", None, section="", written=section, machine=machine)
        if found == tier and not warnings:
            return written.nvme_path
    return f"/mnt/{tier}"


def _tier_of_path(path: str, machine: Machine) -> str | None:
    """The tier of storage after which the innermost folder of a path is called; None if none is."""
    folders = reversed(PurePosixPath(path).parts)
    return next((one for one in folders if one in machine.tiers and device_of(one, machine) == "nvme"), None)
