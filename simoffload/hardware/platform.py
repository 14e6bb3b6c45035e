"""The schema of a platform file: what is wired to what, and no device numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from simoffload.documents import Frozen
from simoffload.hardware.profiles import Profile
from simoffload.hardware.quantities import Count, Name, Provenance, Reference, Text

__all__ = ["CPU", "Attachment", "PlatformProfile", "StorageTier", "Switch", "WiringStatement", "name_fault"]

CPU = "cpu"
"""The vertex of the host: its sockets, their memory and the PCIe root."""
_TAKEN = {CPU, "hbm", "dram"}


def name_fault(name: str, names: Sequence[str]) -> str | None:
    """What is wrong with one of the ``names`` of a platform's parts, if anything."""
    if name in _TAKEN:
        return f'"{name}" is built in and cannot be the name of something else'
    if names.count(name) > 1:
        return f'"{name}" names two things; names must differ among switches, nics and tiers'
    return None


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f'names "{twice}" twice; an adapter carries its rate once: name each once')
    return names


_EACH_ONCE = AfterValidator(_each_once)


class WiringStatement(Provenance):
    """Where a part of the wiring is known from."""

    about: Text
    """Which part."""


class Switch(Frozen):
    """A PCIe switch (or a chipset) and its cable towards the CPU."""

    to: Name
    """``cpu`` or another switch."""
    pcie: Reference
    """Generation of the cable, and of the slots at the switch."""
    lanes: Count
    """Of the cable."""


class Attachment(Frozen):
    """A network adapter and where it is plugged in."""

    profile: Reference
    """The adapter."""
    at: Name
    """The vertex, ``cpu`` or a switch."""


class StorageTier(Frozen):
    """A place for weights: local drives ``at`` vertices of the host, or a target ``through`` adapters."""

    profile: Reference
    """A drive, an array, a server or a remote target."""
    at: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)] | None = None
    """Vertices of the drives: drive i is plugged in at entry i modulo their number."""
    through: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256), _EACH_ONCE] | None = None
    """Adapters over which transfers are striped in equal parts."""
    link: Reference | None = None
    """Adapter of the server (nfs, nvmeof) in place of the one that its profile names."""

    @model_validator(mode="after")
    def _one_way_in(self) -> StorageTier:
        if (self.at is None) == (self.through is None):
            raise ValueError("give either `at` (local drives) or `through` (network adapters)")
        return self


class PlatformProfile(Profile):
    """A host (or several equal ones) with accelerators and storage tiers."""

    kind: Literal["platform"]
    wiring: Annotated[tuple[WiringStatement, ...], Field(min_length=1)]
    """Where the wiring is known from."""
    host: Reference
    """Profile of the host."""
    accelerator: Reference
    """Profile of its GPUs."""
    gpus: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)]
    """The vertex at which each GPU is plugged in; GPU i is entry i, and rank i runs on it."""
    gpu_links: Literal["switched", "none"]
    """``switched``: every GPU reaches every other over its own links (NVSwitch); ``none``: over PCIe."""
    switches: dict[Name, Switch] = Field(default_factory=dict)
    """PCIe switches by name."""
    nics: dict[Name, Attachment] = Field(default_factory=dict)
    """Network adapters by name."""
    network: Annotated[tuple[Name, ...], _EACH_ONCE] = ()
    """Adapters that carry collectives between hosts."""
    tiers: dict[Name, StorageTier] = Field(default_factory=dict)
    """Places for weights, by the names that scenarios use."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all its parts."""
        return (*self.switches, *self.nics, *self.tiers, *(f"gpu{i}" for i in range(len(self.gpus))))

    @model_validator(mode="after")
    def _distinct(self) -> PlatformProfile:
        for name in self.names:
            fault = name_fault(name, self.names)
            if fault:
                raise ValueError(fault)
        return self
