"""Warnings about devices that are faster than the link through which they are connected, and the reverse:
links that are stated to be slower than one device.

These are warnings and not errors, because drives are sold for future slots, and servers can be extended. But
usually a number is wrong: a port that was not counted, a slot of another generation, bits taken for bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from simoffload.errors import InputError
from simoffload.hardware.host import Host
from simoffload.hardware.library import Entry, Library, ProfileInput
from simoffload.hardware.profiles import Nic
from simoffload.hardware.storage import STORAGE_KINDS
from simoffload.hardware.targets import (
    PcieLink,
    Target,
    adapter_rate,
    pcie_link,
    resolve_target,
)
from simoffload.hardware.wiring import CPU
from simoffload.units import format_bytes, format_rate

if TYPE_CHECKING:
    from simoffload.hardware.topology import Platform

_TOLERANCE = 1.03
"""Ratio of a device's rate to that of its link above which a warning is given: data sheets round by 1 or 2 %;
our choice."""
_DECIMAL = re.compile(r"([0-9.]+) *([GT])B")


def overruns(platform: Platform, tiers: Collection[str], *, nodes: int) -> tuple[str, ...]:
    """Return a warning for every device of the named tiers, and every adapter in use, that is faster than its
    link."""
    used = {name: target for name, target in platform.targets.items() if name in tiers}
    wired = {name: platform.profile.tiers[name] for name in used}
    adapters = {nic for tier in wired.values() for nic in tier.through or ()}
    adapters |= set(platform.profile.network if nodes > 1 else ())
    warnings_: list[str] = []
    for name, target in used.items():
        if (at := wired[name].at) is not None:
            warnings_ += _target(name, target, _slots(platform, target, at))
            warnings_ += _shared_cables(platform, name, target, at)
        else:
            warnings_ += _target(name, target)
            warnings_ += _client(platform, name, target, wired[name].through or (), nodes)
    for name in sorted(adapters):
        warnings_ += _adapter(name, platform.nics[name][0], platform.nic_pcie_link(name))
    for name in platform.stated:
        warnings_ += _slow_switch(platform, name)
    return tuple(dict.fromkeys(warnings_))


def profile_warnings(library: Library, entry: Entry) -> tuple[str, ...]:
    """Return the warnings about a single profile, and about a host's memory.

    References that cannot be found are ignored.
    """
    profile, warnings_ = entry.profile, list[str]()
    if isinstance(profile, Host):
        warnings_ += memory_warnings(profile, entry.inputs())
    with suppress(InputError):
        if isinstance(profile, Nic):
            warnings_ += _adapter(profile.id, profile, pcie_link(library, profile.pcie, entry, "pcie"))
        elif entry.use.kind in STORAGE_KINDS:
            warnings_ += _target(profile.id, resolve_target(library, entry))
    return tuple(warnings_)


def memory_warnings(host: Host, inputs: Iterable[ProfileInput]) -> Iterator[str]:
    """Yield warnings about more memory than the board supports, and sizes in units of 10^9 B, which no module
    has."""
    has, most = host.memory_capacity.value, host.memory_maximum
    if most is not None and has > most.value:
        size, limit = format_bytes(has, binary=True), format_bytes(most.value, binary=True)
        message = (
            f"host/{host.id}: memory_capacity {size} is more than its board supports, memory_maximum {limit}"
        )
        yield f"{message}; lower it, or raise memory_maximum if the board supports more"
    for line in inputs:
        if line.key == "memory_capacity" and (found := _DECIMAL.fullmatch(line.text)):
            message = f"host/{line.profile}: memory_capacity {line.text} is in powers of ten"
            yield f"{message}; memory modules sold in GB have GiB: write {found[1]} {found[2]}iB"


def _target(name: str, target: Target, slots: Collection[tuple[str, PcieLink]] = ()) -> Iterator[str]:
    """Yield warnings about drives that are faster than their slots, or a server that is faster than its
    ports.

    ``slots`` are those of local drives, each with its location; without them the drives' own generation is
    used.
    """
    if target.drive is not None and target.pcie_link is not None:
        drive = target.drive
        for where, slot in slots or [("", target.pcie_link)]:
            rates = {"reads": drive.read.value, "writes": drive.write.value}
            device = f"{name}: {drive.id}"
            link, todo = f"its slot{where} ({slot.label})", f"check read, write and pcie of drive/{drive.id}"
            if slot.pcie is not target.pcie_link.pcie:
                todo = f"use a slot with {target.pcie_link.pcie.name}, which the drive supports"
            yield from _above(device, rates, link, slot.payload_rate, todo)
    elif target.ports is not None:
        ports = target.ports
        link = f"{ports.number} port{'s' if ports.number > 1 else ''} of {ports.nic.id} of the server"
        todo = f"check link, links and the rates of {target.kind}/{target.id}: `links` counts its ports"
        device, rates = f"{name}: {target.id}", {"reads": ports.read, "writes": ports.write}
        drives = target.array.count if target.array is not None else 1
        # Drives and ports come in whole numbers: ports that need the last drive are no mistake.
        if drives == 1 or max(rates.values()) * (drives - 1) / drives > ports.total:
            yield from _above(device, rates, link, ports.total, todo)


def _adapter(name: str, nic: Nic, slot: PcieLink) -> Iterator[str]:
    """Yield a warning about an adapter that is faster than its slot."""
    todo = "use a wider or newer slot (pcie), or expect the rate of the slot"
    link = f"its slot ({slot.label})"
    yield from _above(f"{name}: {nic.id}", {"carries": nic.achieved.value}, link, slot.payload_rate, todo)


def _slots(platform: Platform, target: Target, at: tuple[str, ...]) -> list[tuple[str, PcieLink]]:
    """Return the slowest of the drives' slots."""
    assert target.pcie_link is not None
    links = {vertex: target.pcie_link.within(platform.slots[vertex]) for vertex in at[: target.drives]}
    least = min(one.payload_rate for one in links.values())
    return next([(f" at {vertex}", one)] for vertex, one in links.items() if one.payload_rate == least)


def _shared_cables(platform: Platform, name: str, target: Target, at: tuple[str, ...]) -> Iterator[str]:
    """Yield warnings about drives of a tier that are together faster than the cable of their switch."""
    drives = Counter[str]()
    for index in range(target.drives):
        drives.update(_switches_above(platform, at[index % len(at)]))
    for switch, number in drives.items():
        cable = platform.switch(switch)
        read, write = (one.rate * number // target.drives for one in (target.read, target.write))
        device, todo = f"{name}: the drives behind {switch}", "distribute its drives over more vertices (at)"
        link = f"the cable of {switch} ({cable.label})"
        warnings_ = [*_above(device, {"read": read}, link, cable.up, todo, them="them")]
        warnings_ += _above(device, {"write": write}, link, cable.down, todo, them="them")
        yield from warnings_[:1]


def _slow_switch(platform: Platform, name: str) -> Iterator[str]:
    """Yield a warning about a switch whose stated rate is below that of the cable of one GPU behind it."""
    cable, gpus = platform.switch(name), zip(platform.profile.gpus, platform.gpu_pcie_links, strict=True)
    own = [link for vertex, link in gpus if name in _switches_above(platform, vertex)]
    for key, rate, of_gpu in (
        ("host_to_device", cable.down, min((one.cable.down for one in own), default=0)),
        ("device_to_host", cable.up, min((one.cable.up for one in own), default=0)),
    ):
        if of_gpu > _TOLERANCE * rate:
            limit = f"less than the {format_rate(of_gpu)} of the cable of one GPU behind it ({own[0].label})"
            todo = f"check {key} of switches.{name}: is it in bytes, and of all its GPUs together?"
            found = f"{platform.profile.id}: {name} carries {format_rate(rate)}, {limit}"
            yield f"{found}, which it limits; {todo}"
            return


def _switches_above(platform: Platform, vertex: str) -> Iterator[str]:
    """Yield the switches from a vertex to the CPU, that of the vertex first."""
    while vertex != CPU:
        yield vertex
        vertex = platform.profile.switches[vertex].to


def _client(
    platform: Platform, name: str, target: Target, through: tuple[str, ...], nodes: int
) -> Iterator[str]:
    """Yield warnings about a server that is faster than the adapters of all hosts, or than the ports that
    their mounts use."""
    ports = target.ports
    if ports is None:
        return  # a filesystem serves more hosts than these
    # Transfers are striped in equal parts, so the slowest adapter determines the rate.
    slowest = min(adapter_rate(platform.nics[nic][0], platform.nic_pcie_link(nic)) for nic in through)
    adapters, hosts = nodes * len(through) * slowest, f" of {nodes} hosts" if nodes > 1 else ""
    link = f"the adapters to it ({', '.join(through)}{hosts})"
    todo = "give the tier more adapters (through), or faster ones"
    rates = {"reads": target.read.rate, "writes": target.write.rate}
    device = f"{name}: {target.id}"
    yield from _above(device, rates, link, adapters, todo)
    used = nodes * ports.mounts * ports.rate
    # If the adapters are the limit, mounts over other ports would not help.
    if 0 < ports.mounts < ports.number and used < adapters and max(rates.values()) > _TOLERANCE * used:
        link = f"the mounts to it ({ports.mounts}{hosts}, each over one of {ports.number} ports)"
        todo = f"mounts: {ports.number} of {target.kind}/{target.id} would use all ports; or use faster ports"
        yield from _above(device, rates, link, nodes * (target.client_rate or ports.rate), todo)


def _above(
    device: str, rates: dict[str, int], link: str, carries: int, todo: str, *, them: str = "it"
) -> Iterator[str]:
    """Yield a warning about the rate that exceeds the link most, if any does."""
    verb, rate = max(rates.items(), key=lambda one: one[1])
    if rate > _TOLERANCE * carries:
        limit = f"more than the {format_rate(carries)} of {link}, which limits {them}"
        yield f"{device} {verb} {format_rate(rate)}, {limit}; {todo}"
