"""Schema of a platform file: the wiring of devices, without numbers of the devices.

The only rates in it are those that were measured of limits which devices share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from simoffload.documents import Frozen
from simoffload.hardware.profiles import Profile
from simoffload.hardware.quantities import Name, NumberOfParts, Provenance, Reference, Sourced, Text
from simoffload.hardware.tiers import GPU, HOST
from simoffload.units import BytesPerSecond

CPU = "cpu"
"""The vertex of the host: its sockets, their memory and the PCIe root."""
SWITCHES = "switches."
"""The begin of the keys of all numbers in a platform file: rates that switches state."""
_TAKEN = (CPU, GPU.name, HOST.name)
Setting = Literal["desk", "rack"]
"""Where a machine stands: at home or in an office, or in a rack of a computing centre."""


def name_fault(name: str, names: Sequence[str]) -> str | None:
    """Return why ``name`` cannot be one of the ``names`` of a platform's parts, or None if it can."""
    if name in _TAKEN:
        return f'"{name}" is reserved and cannot name anything else'
    if names.count(name) > 1:
        return f'"{name}" names two things; names must differ among switches, nics and tiers'
    return None


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f'names "{twice}" twice; an adapter counts only once: name each adapter once')
    return names


_EACH_ONCE = AfterValidator(_each_once)


class WiringStatement(Provenance):
    """A source for a part of the wiring."""

    about: Text
    """The part of the wiring to which the source refers."""


class Switch(Frozen):
    """A PCIe switch, a chipset or a socket, with its cable towards the CPU: anything that devices share.

    Its rates are those of its ``lanes``, or ``host_to_device`` and ``device_to_host``.
    """

    to: Name
    """Where the cable leads: ``cpu`` or another switch."""
    pcie: Reference
    """PCIe generation of the slots at the switch, and of the cable if it has ``lanes``. A cable with stated
    rates has its share of both directions together (``both_ways``), whatever the equipment of a scenario
    replaces."""
    lanes: NumberOfParts | None = None
    """Number of lanes of the cable; instead of the two rates."""
    host_to_device: Sourced[BytesPerSecond] | None = None
    """Rate of simultaneous copies from pinned host memory to all GPUs at the switch. It stays with another
    PCIe generation (``equipment.pcie``), because it may be that of a socket and not of the slots."""
    device_to_host: Sourced[BytesPerSecond] | None = None
    """Rate of simultaneous copies to pinned host memory from all GPUs at the switch."""

    @model_validator(mode="after")
    def _rates_once(self) -> Switch:
        rates = [self.host_to_device, self.device_to_host]
        if (self.lanes is None) != all(rates) or any(rates) != all(rates):
            raise ValueError("give either `lanes`, or both `host_to_device` and `device_to_host`")
        return self


class Attachment(Frozen):
    """A network adapter and the vertex at which it is installed."""

    profile: Reference
    """Profile of the network adapter."""
    at: Name
    """The vertex of its slot: ``cpu`` or a switch."""


class StorageTier(Frozen):
    """A storage tier: local drives ``at`` vertices of the host, or a remote target ``through`` adapters."""

    profile: Reference
    """Profile of a drive, an array, a server or a remote target."""
    at: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)] | None = None
    """Vertices of local drives: drive i is installed at entry i modulo their number."""
    through: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256), _EACH_ONCE] | None = None
    """Network adapters over which transfers are striped in equal parts."""
    link: Reference | None = None
    """Network adapter of the server (nfs, nvmeof, remote), instead of the one in its profile."""

    @model_validator(mode="after")
    def _one_way_in(self) -> StorageTier:
        if (self.at is None) == (self.through is None):
            raise ValueError("give either `at` (local drives) or `through` (network adapters)")
        return self


class PlatformProfile(Profile):
    """A host (or several equal ones) with accelerators and storage tiers."""

    kind: Literal["platform"]
    wiring: Annotated[tuple[WiringStatement, ...], Field(min_length=1)]
    """The sources from which the wiring is known."""
    setting: Setting | None = None
    """Where the machine stands. On a desk it draws no power for the site (a PUE of 1), and has no rack for
    servers; None: not stated, so that a rack is assumed, and results say so."""
    host: Reference
    """Profile of the host's CPU and memory."""
    accelerator: Reference
    """Profile of the host's GPUs."""
    gpus: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)]
    """The vertex at which each GPU is installed; GPU i is entry i, and rank i runs on it."""
    gpu_links: Literal["switched", "none"]
    """``switched``: every GPU reaches every other one over its own links (NVSwitch); ``none``: over PCIe."""
    switches: dict[Name, Switch] = Field(default_factory=dict)
    """PCIe switches of the host, by name."""
    nics: dict[Name, Attachment] = Field(default_factory=dict)
    """Network adapters of the host, by name."""
    network: Annotated[tuple[Name, ...], _EACH_ONCE] = ()
    """Network adapters that carry collectives between hosts."""
    tiers: dict[Name, StorageTier] = Field(default_factory=dict)
    """Storage tiers, by the names that scenarios use."""
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """What differs on this machine from the profiles that it names, by ``id`` or ``kind/id``, as if each were
    a profile of its own with that one as its ``base``."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parts of the platform."""
        return (*self.switches, *self.nics, *self.tiers, *(f"gpu{i}" for i in range(len(self.gpus))))

    @model_validator(mode="after")
    def _distinct(self) -> PlatformProfile:
        for name in self.names:
            fault = name_fault(name, self.names)
            if fault:
                raise ValueError(fault)
        return self
