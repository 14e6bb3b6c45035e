"""Changes that a scenario makes to its platform: numbers of profiles, and devices added or replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import Field

from simoffload.documents import (
    Document,
    DocumentLocation,
    Edit,
    Frozen,
    candidates,
    edited,
    key_path,
    named,
    same_name,
    validate,
)
from simoffload.errors import InputError, Problem
from simoffload.hardware.library import ProfileInput
from simoffload.hardware.parts import restated
from simoffload.hardware.quantities import Identifier, Name, Reference
from simoffload.hardware.wiring import Attachment, PlatformProfile, StorageTier, Switch, name_fault

_SOURCE = "set by the scenario; the profile says {}"


def spelled(section: Mapping[str, Any], name: str) -> str:
    """Return the key by which a section ``profiles`` names the profile ``kind/id``: its id where the section
    uses it."""
    identifier = name.partition("/")[2]
    return next((one for form in (identifier, name) for one in named(form, section)), name)


class Changes(NamedTuple):
    """A section of a scenario that changes numbers of profiles, by ``id`` or ``kind/id``."""

    document: Document
    keys: tuple[str, ...]
    """The keys in the document that lead to the section."""

    @classmethod
    def of(cls, document: Document) -> Changes | None:
        """Read the section ``profiles`` of a scenario; return None if it has none."""
        return cls(document, ("profiles",)) if document.data.get("profiles") else None

    @property
    def by_profile(self) -> Mapping[str, Mapping[str, Any]]:
        """The changes to each profile, by its id or ``kind/id``."""
        node = self.document.data
        for key in self.keys:
            node = node[key]
        section: Mapping[str, Mapping[str, Any]] = node
        return section

    def made_to(self, document: Document, kind: str, identifier: str) -> Document:
        """Return the profile's document with the changes that name it; the same document where there are
        none.

        Raises InputError for a change of anything but a number.
        """
        for name in self.names(kind, identifier):
            place = (*self.keys, name)
            if kind == "platform" and not _are_rates(document.data, self.by_profile[name]):
                raise self._refusal(
                    place,
                    "is the platform itself, of which only rates that switches state can be changed here; "
                    "write another platform",
                )
            problems: list[Problem] = []
            data = self._merged(document.data, self.by_profile[name], place, problems)
            if problems:
                raise InputError(problems)
            document = edited(document, [Edit((), data)])
        return document

    def concern(self, kind: str, identifier: str) -> bool:
        """Return whether any number of a profile changes."""
        return bool(self.names(kind, identifier))

    def placed(self, error: InputError, kind: str, identifier: str) -> InputError:
        """Return the problems of a changed profile, located at the change in the scenario."""
        (name, *_) = self.names(kind, identifier)
        return InputError(
            self.document.problem(self._nearest(name, problem.key), problem.message)
            for problem in error.problems
        )

    def check_all_meant(self, used: list[tuple[str, str]]) -> None:
        """Raise InputError for names of profiles that match none of the ``used`` (kind, id), or several."""
        problems = []
        names = {name for kind, identifier in used for name in (identifier, f"{kind}/{identifier}")}
        for name in self.by_profile:
            meant = [(kind, one) for kind, one in used if name in self.names(kind, one)]
            twice = [other for of in meant for other in self.names(*of) if other != name]
            if len(meant) == 1 and not twice:
                continue
            known = [identifier for kind, identifier in used if kind != "platform"]
            text = f"this platform uses no profile of that name{candidates(name, known) or _has(known)}"
            if unquoted := self._unquoted(name, names):
                text = f"a profile name that contains a dot needs quotes: {unquoted}"
            elif twice:
                text = f'the same profile as "{twice[0]}", also in this section; merge both'
            elif meant:
                text = "several profiles have that name: " + ", ".join(f"{kind}/{one}" for kind, one in meant)
            problems.append(self.document.problem((*self.keys, name), text, at_key=True))
        if problems:
            raise InputError(problems)

    def names(self, kind: str, identifier: str) -> tuple[str, ...]:
        """Return the names in the section that mean a profile; exact ones come first."""
        section, forms = self.by_profile, (identifier, f"{kind}/{identifier}")
        exact = [name for name in forms if name in section]
        similar = [name for name in section if any(same_name(name, form) for form in forms)]
        return tuple(dict.fromkeys([*exact, *similar]))

    def _unquoted(self, name: str, names: Collection[str]) -> str | None:
        """Return the path with quotes, where one without them was split at the dots of a profile's name."""
        node: Any = self.by_profile[name]
        joined = name
        while isinstance(node, Mapping) and node:
            part, node = next(iter(node.items()))
            joined = f"{joined}.{part}"
            if joined in names:
                return key_path((*self.keys, joined, *list(node)[:1]))
        return None

    def _nearest(self, name: str, key: str) -> tuple[str | int, ...]:
        """Return the keys of the innermost change that contains ``key`` of the profile."""
        place: tuple[str | int, ...] = (*self.keys, name)
        node: Any = self.by_profile[name]
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                break
            place, node = (*place, part), node[part]
        return place

    def _merged(self, node: Any, change: Any, place: tuple[str | int, ...], problems: list[Problem]) -> Any:
        if isinstance(node, dict) and "origin" in node:
            return self._sourced(node, change, place, problems)
        if isinstance(node, dict) and isinstance(change, Mapping):
            changed = {
                key: self._merged(node.get(key), value, (*place, key), problems)
                for key, value in change.items()
            }
            return {**node, **changed}
        if node is None or _is_number(node):  # not stated, or one of the numbers that may be plain
            if isinstance(change, Mapping) and change.keys() == {"value"}:
                change = change["value"]
            complete = isinstance(change, Mapping) and {"value", "origin"} <= change.keys()
            if node is None or complete or _is_number(change):
                return change
        text = "is not a number; only numbers can be changed here, anything else needs a profile of your own"
        if isinstance(node, dict):
            text = f"contains several numbers; name one of {', '.join(node)}"
        elif _is_number(node):
            text = "must be a number"
        problems.append(self.document.problem(place, text))
        return node

    def _sourced(
        self, node: dict[str, Any], change: Any, place: tuple[str | int, ...], problems: list[Problem]
    ) -> Any:
        """Return a changed number with its origin: an estimate unless the change states another origin."""
        if "points" in node and not isinstance(change, Mapping):
            text = "is a curve; write {points: [[1 MiB, 3 GB/s], …]}"
            problems.append(self.document.problem(place, text))
            return node
        return restated(node, change, _SOURCE)

    def _refusal(self, place: tuple[str, ...], message: str) -> InputError:
        return InputError((self.document.problem(place, message, at_key=True),))


def _are_rates(platform: Mapping[str, Any], change: Any) -> bool:
    """Return whether a change of a platform's file concerns nothing but rates that its switches state."""
    switches = change.get("switches") if isinstance(change, Mapping) and set(change) == {"switches"} else None
    return isinstance(switches, Mapping) and all(
        isinstance(rates, Mapping)
        and all(_is_sourced(platform.get("switches", {}).get(name, {}).get(key)) for key in rates)
        for name, rates in switches.items()
    )


def _is_sourced(value: Any) -> bool:
    return isinstance(value, Mapping) and "origin" in value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _has(names: list[str]) -> str:
    return f" (has: {', '.join(names)})"


# -- equipment -----------------------------------------------------------------------------------

_SECTION = "equipment"
_WIRED = ("nics", "tiers", "switches")
_SINGLE_SECTIONS = ("host", "accelerator", "gpus")


class Parts(Frozen):
    """The section ``equipment`` of a scenario: keys of a platform file, and other PCIe generations."""

    host: Reference | None = None
    """Host profile used instead of the platform's."""
    accelerator: Reference | None = None
    """Accelerator installed in every slot that has a GPU."""
    gpus: tuple[Name, ...] = ()
    """Vertices at which the GPUs are, instead of the platform's; a vertex may have several."""
    switches: dict[Name, Switch] = Field(default_factory=dict)
    """PCIe switches, or slots with fewer lanes, that are added."""
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
        given = {key: str(one) for key in ("host", "accelerator") if (one := getattr(parts, key))}
        given |= {"gpus": ", ".join(parts.gpus)} if parts.gpus else {}
        given |= {
            f"switches.{name}": f"{one.lanes} lanes of {one.pcie} to {one.to}"
            for name, one in parts.switches.items()
        }
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
