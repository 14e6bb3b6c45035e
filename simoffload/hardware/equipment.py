"""Devices that a scenario adds to its platform, or installs instead of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import Field

from simoffload.documents import Document, DocumentLocation, Frozen, validate
from simoffload.errors import InputError, Problem
from simoffload.hardware.library import ProfileInput
from simoffload.hardware.platform import Attachment, PlatformProfile, StorageTier, name_fault
from simoffload.hardware.quantities import Identifier, Name, Reference

__all__ = ["Equipment", "Parts"]

_SECTION = "equipment"
_WIRED = ("nics", "tiers")
_SINGLE_SECTIONS = ("host", "accelerator")


class Parts(Frozen):
    """The section ``equipment`` of a scenario: keys of a platform file, and other PCIe generations."""

    host: Reference | None = None
    """Host profile used instead of the platform's."""
    accelerator: Reference | None = None
    """Accelerator installed in every slot that has a GPU."""
    nics: dict[Name, Attachment] = Field(default_factory=dict)
    """Network adapters that are added, or that replace the one of the same name."""
    tiers: dict[Name, StorageTier] = Field(default_factory=dict)
    """Storage tiers that are added, or that replace the one of the same name."""
    pcie: dict[Identifier, Reference] = Field(default_factory=dict)
    """Generations that replace others, by the id of the one replaced, in the slots and cables of host and
    switches. A device in such a slot still runs at its own generation where that is the slower one."""


class Equipment(NamedTuple):
    """The section ``equipment`` of a scenario, with the scenario as the place of its errors."""

    document: Document
    parts: Parts

    @classmethod
    def of(cls, document: Document) -> Equipment | None:
        """Read the section ``equipment`` of a scenario; return None if it has none. Raises InputError."""
        if not document.data.get(_SECTION):
            return None
        return cls(document, validate(document, Parts, at=(_SECTION,)))

    def installed_in(self, platform: PlatformProfile) -> PlatformProfile:
        """Return the platform with this equipment installed. Raises InputError for names that are taken."""
        parts = self.parts
        changes = {key: {**getattr(platform, key), **getattr(parts, key)} for key in _WIRED}
        changes |= {key: getattr(parts, key) for key in _SINGLE_SECTIONS if getattr(parts, key)}
        equipped = platform.model_copy(update=changes)
        problems = list(self._misnamed(equipped.names))
        if problems:
            raise InputError(problems)
        return equipped

    def place(self, keys: tuple[str | int, ...]) -> DocumentLocation | None:
        """Return where the scenario writes this entry of the platform, or None if the platform itself
        does."""
        section, *inner = keys
        given = getattr(self.parts, str(section), None) or ()
        here = bool(given) if section in _SINGLE_SECTIONS else bool(inner) and inner[0] in given
        return DocumentLocation(self.document, (_SECTION, *keys)) if here else None

    def cables(self) -> dict[str, tuple[str, DocumentLocation]]:
        """Return for each replaced cable, by id, the reference to the one used instead and where that is
        written."""
        return {
            cable: (other, DocumentLocation(self.document, (_SECTION, "pcie", cable)))
            for cable, other in self.parts.pcie.items()
        }

    def inputs(self, platform: str) -> Iterator[ProfileInput]:
        """Return the equipment as lines of the inputs of a platform."""
        parts = self.parts
        given = {key: getattr(parts, key) for key in _SINGLE_SECTIONS if getattr(parts, key)}
        given |= {f"nics.{name}": f"{nic.profile} at {nic.at}" for name, nic in parts.nics.items()}
        given |= {f"tiers.{name}": _wiring(tier) for name, tier in parts.tiers.items()}
        given |= {f"pcie.{cable}": other for cable, other in parts.pcie.items()}
        for key, text in given.items():
            yield ProfileInput(platform, key, text, "estimate", "equipment of the scenario", "")

    def _misnamed(self, names: tuple[str, ...]) -> Iterator[Problem]:
        for key in _WIRED:
            for name in getattr(self.parts, key):
                fault = name_fault(name, names)
                if fault:
                    yield DocumentLocation(self.document, (_SECTION, key, name)).problem(fault, at_key=True)


def _wiring(tier: StorageTier) -> str:
    way, names = ("at", tier.at) if tier.at else ("through", tier.through or ())
    return f"{tier.profile} {way} {', '.join(names)}"
