"""A machine by its parts: GPU, count, memory, drives and network, and a shipped machine for all the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import Field

from simoffload.documents import (
    SUFFIXES,
    Document,
    DocumentLocation,
    Edit,
    Frozen,
    Location,
    candidates,
    edited,
    listing,
    overlaid,
    suggest,
    validate,
)
from simoffload.errors import InputError, Problem
from simoffload.hardware.profiles import Accelerator, Nic
from simoffload.hardware.quantities import Reference, Text
from simoffload.hardware.storage import STORAGE_KINDS, Raid
from simoffload.hardware.wiring import CPU, PlatformProfile
from simoffload.units import parse_bytes, parse_rate, plural

if TYPE_CHECKING:
    from simoffload.hardware.library import Entry, Library
    from simoffload.hardware.machine import Platform

# -- profiles that are based on others -------------------------------------------------------------
# Only what differs is written, and what is inherited is marked.


_LONGEST = 2000
"""[characters] The longest text of a source."""
BASE = "base"
"""The key that names the profile on which another one is based."""


def restated(node: Mapping[str, Any], change: Any, source: str) -> dict[str, Any]:
    """Return a number of a profile with another value: an estimate unless the change states another origin.

    ``source`` has {} in the place of the value before.
    """
    if not isinstance(change, Mapping):
        change = {"points" if isinstance(change, list) and "points" in node else "value": change}
    old = node.get("value", "a curve")
    return {"origin": "estimate", "source": source.format(old), "date": node.get("date"), **change}


def inherited(node: Any, owner: str, *, source: str = "{}") -> Any:
    """Return numbers of the profile ``owner`` as another device has them: what was measured on that one is
    an estimate for this one, which says where it was measured; data sheets and estimates stay as they are.

    ``source`` has {} in the place of the source before.
    """
    if isinstance(node, list):
        return [inherited(one, owner, source=source) for one in node]
    if not isinstance(node, dict):
        return node
    if "origin" not in node:
        return {key: inherited(value, owner, source=source) for key, value in node.items()}
    found = {**node, "source": source.format(node["source"])[:_LONGEST]} if "source" in node else node
    if node["origin"] == "measured":
        return {**found, "origin": "estimate", "measured_on": node.get("measured_on", owner)}
    return found


def based(base: Document, own: Document, *, owner: str, at: Location = ()) -> Document:
    """Return the document of a profile that has everything of the profile ``owner``, whose document is
    ``base``, except what ``own`` writes at a location.

    Mappings are merged; an empty one, a number and a list replace what was there, and null removes a key.
    Raises InputError for null in the place of what the base does not have.
    """
    problems: list[Problem] = []
    change = own.data
    for key in at:
        change = change[key]
    if not isinstance(change, Mapping):
        raise InputError([own.problem(at, "must be a mapping of what differs")])
    data = _merged(inherited(base.data, owner), change, own, at, owner, problems)
    if problems:
        raise InputError(problems)
    return overlaid(base, own, data, at=at)


def _merged(node: Any, change: Any, own: Document, at: Location, owner: str, problems: list[Problem]) -> Any:
    if not isinstance(node, dict):
        return change
    if "origin" in node:
        return restated(node, change, f"stated for this machine; {owner} has {{}}")
    if not isinstance(change, Mapping) or not change:
        return change
    found = dict(node)
    for key, value in change.items():
        if value is not None:
            found[key] = _merged(node.get(key), value, own, (*at, key), owner, problems)
        elif found.pop(key, None) is None:
            hint = candidates(key, node) or suggest(key, node) or f" (has: {', '.join(map(str, node))})"
            text = f"is empty, which leaves a key of {owner} out, but it has none of that name{hint}"
            problems.append(own.problem((*at, key), text, at_key=True))
    return found


# -- A machine by its parts ------------------------------------------------------------------------


_TIMES = re.compile(r"([1-9][0-9]{0,3}) ?x ?(.+)")
_LEVEL = re.compile(r"raid ?(0|5|6|10) +(.+)", re.IGNORECASE)
_FABRICS = {"infiniband": "infiniband", "ethernet": "ethernet", "gbe": "ethernet"}
_MOST_GPUS = 256

T = TypeVar("T")


class MachineKeys(Frozen):
    """Keys of a platform file that describe the machine by its parts; the rest is that of ``base``, or of the
    smallest shipped platform with as many such GPUs."""

    gpu: Text | None = None
    """Profile of every GPU. Without it, the GPUs are those of ``base``."""
    gpus: Annotated[int, Field(strict=True, ge=1, le=_MOST_GPUS)] | None = None
    """Number of GPUs. Left out: those of ``base``, or 1."""
    memory: Text | None = None
    """Host memory as its modules are sold: 64 GB, which have 64 GiB."""
    drives: tuple[Text, ...] | Text | None = None
    """Local drives in place of those of the base, each a storage tier: an id, ``2x ID`` for an array in
    RAID0, ``raid5 4x ID`` for another level; an empty list for none. Left out: those of the base, or of the
    platform that stands for it."""
    network: Text | None = None
    """Network adapters in place of those of the base, separated by commas: ``10 Gb/s``, ``8x 400 Gb/s
    InfiniBand``, ``2x 100gbe`` or ``none``; the first kind carries collectives between hosts. File servers
    behind them go into ``tiers``. Left out: those of ``base``, or none."""


class ShortForm(MachineKeys):
    """Keys of a profile of which only what differs from another one is written, beside those of its kind: a
    mapping is merged with that of the base, null leaves a key out, and anything else replaces it."""

    base: Reference | None = None
    """Id or file of the profile of the same kind that gives what is not written; what was measured on it is
    an estimate here. A platform that names its ``gpu`` needs none."""


def parts_of(data: Mapping[str, Any]) -> set[str]:
    """Return the keys of a platform file that name parts; ``gpus`` and ``network`` may also be lists, of
    places and of adapters."""
    return {
        key
        for key in MachineKeys.model_fields
        if key in data and not (key in ("gpus", "network") and isinstance(data[key], list))
    }


def installed_memory(size: str) -> str:
    """Return the size of memory modules that are sold in GB or TB, which have as many GiB or TiB.

    Raises InputError for what is no size.
    """
    try:
        number = parse_bytes(size)
    except ValueError as error:
        raise InputError.at("", str(error)) from None
    if not number:
        raise InputError.at("", f'must be above 0, got "{size}"; write e.g. 64GB')
    return re.sub(r"([GTgt])[Bb]$", r"\1iB", size.strip())


def platforms_with(library: Library, gpu: str, gpus: int) -> list[str]:
    """Return the shipped platforms with at least as many of a GPU, the smallest first.

    Raises InputError if there is none.
    """
    sizes = _sizes(library, gpu)
    fit = [name for name, size in sizes.items() if size >= gpus]
    if not fit:
        hint = "name a platform with --set platform=ID, which then gets this GPU"
        if sizes:
            hint = f"the largest has {max(sizes.values())}, and one takes at most {MOST_GPUS} cards; "
            hint += "give fewer, or several machines (--set nodes=N)"
        raise InputError.at("", f"no shipped platform has {plural(gpus, 'GPU')} {gpu}; {hint}")
    return sorted(fit, key=lambda name: (sizes[name], name))


def platforms_for_more(library: Library, gpu: str, gpus: int) -> list[str]:
    """Return the shipped platforms that take so many of a GPU although no file lists them, those with the GPU
    first, and of these the smallest; then machines that take more cards.

    Raises InputError if there is none.
    """
    from simoffload.hardware.loading import load_platform

    if gpus <= MOST_GPUS and (sizes := _sizes(library, gpu)):
        known = sorted(sizes, key=lambda name: (sizes[name], name))
        found = [load_platform(name) for name in known]
        if found[0].is_card:
            found += [load_platform(name) for name in WITH_MORE if name not in known]
            setting = found[0].profile.setting
            found.sort(key=lambda one: one.profile.setting != setting)
            return [one.profile.id for one in found if GpuSlots.of(one, gpus) is not None]
        text = f"a {gpu} is a machine of its own; several are several machines (--set nodes={gpus})"
        raise InputError.at("", text)
    return platforms_with(library, gpu, gpus)  # which says what there is


def _sizes(library: Library, gpu: str) -> dict[str, int]:
    """Return the number of GPUs of each shipped platform with this one."""
    return {
        profile.id: len(profile.gpus)
        for one in library.summaries("platform")
        if isinstance(profile := library.find(one.id, ("platform",)).profile, PlatformProfile)
        and profile.accelerator == gpu
    }


MOST_GPUS = 8
"""Most GPUs of a machine that is composed: our choice, as many as shipped machines but one have."""
_DESK_SLOTS, _RACK_SLOTS = 1, 4
"""Slots that give a GPU all of its lanes, of hosts whose profiles state none: our choice, those of CPUs for
desktops with 16 lanes for cards, and half of the 128 lanes of one for servers."""
_CARD_LANES = 16
"""Lanes that CPUs for desktops have for cards; a card with 8 of its own keeps them beside a second one."""
WITH_MORE = ("rtx-4090-threadripper", "l40s-server")
"""Shipped machines that take more cards than a desktop: three or four, and up to eight behind switches."""


class GpuSlots(NamedTuple):
    """GpuSlots are where a machine has more GPUs than the file of its platform lists."""

    gpus: tuple[str, ...]
    """Vertices at which the GPUs are plugged in, one for each."""
    switches: dict[str, dict[str, Any]]
    """Slots with fewer lanes that are added, by name."""
    about: str
    """What each GPU then has, to follow the number of GPUs."""

    @classmethod
    def of(cls, platform: Platform, number: int) -> GpuSlots | None:
        """Return the slots of a number of GPUs on a platform; None if there are not enough.

        Two share the lanes of the only slot of a desktop, as boards divide them. Otherwise each has all of
        its lanes at the CPU, as far as the host has such slots (``gpu_slots``), or is behind a switch where
        those of the platform are.
        """
        places, host = tuple(dict.fromkeys(platform.profile.gpus)), platform.host
        if not platform.is_card or number > MOST_GPUS:
            return None
        link = platform.gpu_pcie_link
        if len(places) > 1:
            each = -(-number // len(places))
            about = f"{each} at most behind each of {len(places)} switches with {link.label}"
            return cls(tuple(sorted((places * each)[:number], key=places.index)), {}, about)
        usual = _DESK_SLOTS if platform.profile.setting == "desk" else _RACK_SLOTS
        slots = host.gpu_slots.value if host.gpu_slots is not None else usual
        if number <= slots:
            return cls(places * number, {}, f"each with {link.label} at the CPU")
        if slots > 1 or number > 2:
            return None
        wide = link.lanes if places[0] in platform.profile.switches else _CARD_LANES
        lanes = max(1, min(link.lanes, wide // 2))
        slot = {"to": places[0], "pcie": link.pcie.id, "lanes": lanes}
        names = ("slot-a", "slot-b")
        return cls(names, dict.fromkeys(names, slot), f"each with {lanes} lanes, as boards divide {wide}")

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of a scenario that put its GPUs there."""
        added = (Edit(("equipment", "switches", name), slot) for name, slot in self.switches.items())
        return (*added, Edit(("equipment", "gpus"), list(self.gpus)))


class Drives(NamedTuple):
    """Drives of one storage tier."""

    profile: str
    """Id of a drive, of an array, or of a server."""
    number: int
    kind: str

    @classmethod
    def read(cls, library: Library, text: str, written: DocumentLocation | None = None) -> Drives:
        """Return what ``ID``, ``2x ID`` or ``raid5 4x ID`` names; several drives are an array in RAID0.

        Raises InputError.
        """
        level = _LEVEL.fullmatch(text.strip())
        times = _TIMES.fullmatch(level[2] if level else text.strip())
        if level and not times:
            text = f'"{text}" names an array without its number of drives; write {level[0].split()[0]} 4x ID'
            raise InputError.at("", text)
        number, name = (int(times[1]), times[2]) if times else (1, text.strip())
        if number > 1 or level:
            drive = library.find(name, ("drive",), written).profile.id
            name = f"raid{level[1] if level else 0}-{number}x-{drive}"
        entry = library.find(name, tuple(STORAGE_KINDS), written)
        count = entry.profile.count if isinstance(entry.profile, Raid) else 1
        return cls(_reference(name, entry), count, entry.use.kind)

    def tier(self, at: Sequence[str]) -> dict[str, Any]:
        """Return the storage tier of local drives at these vertices."""
        return {"profile": self.profile, "at": list(at)[: self.number]}


def _reference(name: str, entry: Entry) -> str:
    """Return how a profile is referred to: by its file if it was named so, or else by its id."""
    return name if "/" in name or name.endswith(SUFFIXES) else entry.profile.id


def _adapters(library: Library, text: str) -> list[tuple[str, int]]:
    """Return the adapters that a text names: profile and number of each kind. Raises InputError."""
    found = []
    for part in text.split(","):
        times = _TIMES.fullmatch(part.strip())
        number, name = (int(times[1]), times[2]) if times else (1, part.strip())
        found.append((_adapter(library, name), number))
    return found


def _adapter(library: Library, name: str) -> str:
    rate, *fabric = re.split(r"\s+(?=[A-Za-z]+$)", name)
    try:
        speed = parse_rate(rate)
    except ValueError:
        return library.find(name, ("nic",)).profile.id
    wanted = _FABRICS.get(fabric[0].lower()) if fabric else "ethernet"
    nics = [one for kind in library.summaries("nic") if isinstance(one := _profile(library, kind.id), Nic)]
    for nic in nics:
        if nic.fabric == wanted and nic.link_rate.value == speed:
            return nic.id
    known = listing([nic.id for nic in nics])
    raise InputError.at("", f"there is no network adapter of {name}; name one of {known}")


def _profile(library: Library, nic: str) -> Any:
    return library.find(nic, ("nic",)).profile


def by_parts(library: Library, shipped: Library, own: Document, base: Entry | None) -> tuple[Document, str]:
    """Return the document of a platform with the parts that ``own`` names, and the id of the platform that
    gives everything else: ``base``, or the nearest one of those that are ``shipped``.

    Raises InputError at the part that is wrong.
    """
    names = parts_of(own.data)
    named = Edit((), {name: own.data[name] for name in names})
    keys = validate(edited(own, [named], in_place=True), MachineKeys)
    entry = base or _at(own, "gpu", lambda: _nearest(library, shipped, own, keys))
    data = inherited(entry.document.data, entry.profile.id)
    parts = _Assembly(library, own, keys, entry, is_stated=base is not None)
    document = edited(entry.document, [Edit((), data)], in_place=True)
    return edited(
        document, [Edit((key,), value) for key, value in parts.keys(data).items()]
    ), entry.profile.id


def _at(own: Document, key: str, action: Callable[[], T]) -> T:
    """Return what an action finds; its problems are those of a key of the document."""
    try:
        return action()
    except InputError as error:
        raise InputError(own.problem((key,), one.message) for one in error.problems) from None


def _nearest(library: Library, shipped: Library, own: Document, keys: MachineKeys) -> Entry:
    """Return the smallest shipped platform with as many of the GPU, or else the largest with any."""
    if keys.gpu is None:
        text = "name the GPU (gpu: rtx-4090), or a platform that gives what is not written (base: ID)"
        raise InputError.at("", text)
    gpu = library.find(keys.gpu, ("accelerator",), DocumentLocation(own, ("gpu",))).profile.id
    places = own.data.get("gpus")
    wanted = keys.gpus or (len(places) if isinstance(places, list) else 1)
    if not (sizes := _sizes(shipped, gpu)):
        text = f"no shipped platform has a {gpu}; name one that is like this machine with base: ID"
        raise InputError.at("", text)
    name = max(sizes, key=lambda one: sizes[one])
    if sizes[name] >= wanted:
        name = platforms_with(shipped, gpu, wanted)[0]
    return shipped.find(name, ("platform",))


class _Assembly(NamedTuple):
    """The parts of a machine and the platform into which they are put."""

    library: Library
    own: Document
    parts: MachineKeys
    entry: Entry
    is_stated: bool
    """Whether the file names the platform, so that parts that it leaves out are those of that one."""

    @property
    def base(self) -> PlatformProfile:
        """The platform that gives everything else."""
        assert isinstance(self.entry.profile, PlatformProfile)
        return self.entry.profile

    def keys(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of the platform's file that differ from those of the base."""
        (gpu, reference), parts, base = self._gpu(), self.parts, self.base
        vertices = list(base.gpus)
        count = parts.gpus or (len(vertices) if self.is_stated else 1)
        beyond = count > len(vertices)
        found: dict[str, Any] = {
            "name": f"{count}x {gpu.name}" + (f", {parts.memory}" if parts.memory else ""),
            "accelerator": reference,
            "gpus": [CPU] * count if beyond else vertices[:count],
            "gpu_links": base.gpu_links if gpu.interconnect else "none",
            "wiring": self._wiring(data, beyond=beyond),
        }
        found |= {} if self.is_stated else {"notes": ""}
        if parts.memory is not None:
            memory = parts.memory
            found["profiles"] = _at(self.own, "memory", lambda: self._memory(data, memory))
        return found | self._storage(data)

    def _gpu(self) -> tuple[Accelerator, str]:
        """Return the GPU and the reference to its profile."""
        document, key = (self.own, "gpu") if self.parts.gpu else (self.entry.document, "accelerator")
        named = self.parts.gpu or self.base.accelerator
        place = DocumentLocation(document, (key,))
        entry = _at(self.own, "gpu", lambda: self.library.find(named, ("accelerator",), place))
        assert isinstance(entry.profile, Accelerator)
        return entry.profile, _reference(named, entry)

    def _wiring(self, data: Mapping[str, Any], *, beyond: bool) -> list[dict[str, Any]]:
        base, stated = self.base, sorted(parts_of(self.own.data))
        about = f"described by its parts ({', '.join(stated)}); "
        about += "" if self.is_stated or "network" in self.own.data else "no network; "
        about += f"everything else as {base.id}, {base.name}"
        if beyond:
            about += "; each GPU has a slot with all its lanes at the CPU"
        dates = [one.date for one in base.wiring]
        text = {"about": about, "origin": "estimate", "source": f"{base.id} stands for this machine"}
        return [{**text, "date": max(dates)}, *(data["wiring"] if self.is_stated else ())]

    def _memory(self, data: Mapping[str, Any], memory: str) -> dict[str, Any]:
        """Return the section ``profiles`` with the memory of the host."""
        size = installed_memory(memory)
        document = self.own if isinstance(self.own.data.get("host"), str) else self.entry.document
        host = self.library.find(
            document.data["host"], ("host",), DocumentLocation(document, ("host",))
        ).profile
        change: dict[str, Any] = {"memory_capacity": size}
        most = getattr(host, "memory_maximum", None)
        if most is not None and most.value < parse_bytes(size):
            change["memory_maximum"] = None
        others = data.get("profiles", {})
        return {**others, f"host/{host.id}": {**others.get(f"host/{host.id}", {}), **change}}

    def _storage(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return drives, those of the base unless the file names others, and adapters, all of which a file
        without a base names."""
        parts, tiers = self.parts, data.get("tiers", {})
        local = {name: one for name, one in tiers.items() if "at" in one}
        remote = {name: one for name, one in tiers.items() if "through" in one}
        found: dict[str, Any] = {}
        if parts.drives is not None:
            texts = parts.drives.split(",") if isinstance(parts.drives, str) else parts.drives
            at = next((one["at"] for one in local.values()), [CPU])
            local = _at(self.own, "drives", lambda: dict(self._tiers(texts, at)))
        if parts.network is not None or not self.is_stated:
            remote, text = {}, parts.network or "none"
            found |= _at(self.own, "network", lambda: self._network(text))
        return {**found, "tiers": {**local, **remote}}

    def _tiers(self, texts: Sequence[str], at: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        counts = dict.fromkeys(STORAGE_KINDS, 0)
        for index, text in enumerate(texts):
            drives = Drives.read(self.library, text, DocumentLocation(self.own, ("drives",)))
            if not STORAGE_KINDS[drives.kind].local:
                raise InputError.at("", f"{drives.profile} is not in the machine; write it into tiers")
            number, name = counts[drives.kind], "nvme" if drives.kind == "drive" else drives.kind
            counts[drives.kind] += 1
            places = at if drives.kind == "raid" else [at[index % len(at)]]
            yield name + (str(number) if number else ""), drives.tier(places)

    def _network(self, text: str) -> dict[str, Any]:
        """Return the adapters, where those of the base are installed, and which carry collectives."""
        nics, base = dict[str, Any](), self.base
        adapters = [] if text.strip().lower() == "none" else _adapters(self.library, text)
        places = [base.nics[name].at for name in base.network] or [one.at for one in base.nics.values()]
        first: list[str] = []
        for index, (profile, number) in enumerate(adapters):
            for _ in range(number):
                name = f"eth{len(nics)}"
                place = places[len(nics) % len(places)] if places and not index else CPU
                nics[name] = {"profile": profile, "at": place}
                first += [] if index else [name]
        return {"nics": nics, "network": first}
