"""Parts that a scenario adds to its platform, or puts in the place of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import Field

from simoffload.documents import Document, Frozen, validate
from simoffload.errors import InputError, Problem
from simoffload.hardware.library import ProfileInput
from simoffload.hardware.location import DocumentLocation
from simoffload.hardware.platform import Attachment, PlatformProfile, StorageTier, name_fault
from simoffload.hardware.quantities import Identifier, Name, Reference

__all__ = ["Equipment", "Parts"]

_SECTION = "equipment"
_WIRED = ("nics", "tiers")
_SINGLE_SECTIONS = ("host", "accelerator")


class Parts(Frozen):
    """The section ``equipment`` of a scenario: keys of a platform file, and another generation of PCIe."""

    host: Reference | None = None
    """In place of the platform's CPU and memory."""
    accelerator: Reference | None = None
    """In every slot that has a GPU."""
    nics: dict[Name, Attachment] = Field(default_factory=dict)
    """Added, or in place of the one of that name."""
    tiers: dict[Name, StorageTier] = Field(default_factory=dict)
    """Added, or in place of the one of that name."""
    pcie: dict[Identifier, Reference] = Field(default_factory=dict)
    """By the id of a generation, the one of the slots and cables of host and switches instead; what is in a
    slot stays at its own generation where that is the slower one."""


class Equipment(NamedTuple):
    """The parts, and the scenario in which they are written."""

    document: Document
    parts: Parts

    @classmethod
    def of(cls, document: Document) -> Equipment | None:
        """What a scenario says about equipment; None if it says nothing. Raises InputError."""
        if not document.data.get(_SECTION):
            return None
        return cls(document, validate(document, Parts, at=(_SECTION,)))

    def installed_in(self, platform: PlatformProfile) -> PlatformProfile:
        """The platform with the parts in it; InputError for names that something else has."""
        parts = self.parts
        changes = {key: {**getattr(platform, key), **getattr(parts, key)} for key in _WIRED}
        changes |= {key: getattr(parts, key) for key in _SINGLE_SECTIONS if getattr(parts, key)}
        equipped = platform.model_copy(update=changes)
        problems = list(self._misnamed(equipped.names))
        if problems:
            raise InputError(problems)
        return equipped

    def place(self, keys: tuple[str | int, ...]) -> DocumentLocation | None:
        """Where the entry of the platform is written if that is here; None if it is the platform's own."""
        section, *inner = keys
        given = getattr(self.parts, str(section), None) or ()
        here = bool(given) if section in _SINGLE_SECTIONS else bool(inner) and inner[0] in given
        return DocumentLocation(self.document, (_SECTION, *keys)) if here else None

    def cables(self) -> dict[str, tuple[str, DocumentLocation]]:
        """By the id of a cable, the one taken instead and where that is written."""
        return {
            cable: (other, DocumentLocation(self.document, (_SECTION, "pcie", cable)))
            for cable, other in self.parts.pcie.items()
        }

    def inputs(self, platform: str) -> Iterator[ProfileInput]:
        """The parts as lines of the inputs of a platform."""
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
