"""A machine by its parts: a GPU, memory and drives that are named instead of a platform."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import (
    CPU,
    LOCAL_KINDS,
    STORAGE_KINDS,
    Entry,
    Library,
    Platform,
    PlatformProfile,
    Profile,
    Raid,
)
from simoffload.scenario.loaded import LoadedScenario
from simoffload.units import parse_bytes, plural

_NEW = {"at": "nvme", "through": "server"}
"""Names of tiers that are added, by how they are attached."""


class MachineParts(NamedTuple):
    """Parts that replace those of a platform, or that choose one; None stands for what is not named."""

    gpu: str | None = None
    """Id of the accelerator in every slot that has a GPU."""
    gpus: int | None = None
    """Number of GPUs that are used."""
    memory: str | None = None
    """Size of the host memory; as modules are sold, 64 GB are 64 GiB."""
    drive: str | None = None
    """Id of a drive, of an array, or of a server, which becomes a storage tier."""

    def platforms(self) -> list[str]:
        """Return the shipped platforms with enough of the GPU, the smallest first; none if no GPU is named.

        Raises InputError for an unknown GPU and for one that no platform has.
        """
        if self.gpu is None:
            return []
        library = Library()
        gpu = _find(library, self.gpu, ("accelerator",), "--gpu").profile.id
        sizes = {
            profile.id: len(profile.gpus)
            for one in library.summaries("platform")
            if isinstance(profile := library.find(one.id, ("platform",)).profile, PlatformProfile)
            and profile.accelerator == gpu
        }
        fit = [name for name, size in sizes.items() if size >= (self.gpus or 1)]
        if not fit:
            has = f"; the largest has {max(sizes.values())}" if sizes else ""
            text = (
                f"no shipped platform has {plural(self.gpus or 1, 'GPU')} {gpu}{has}; name a platform with "
                "--set platform=ID, which then gets this GPU"
            )
            raise InputError.at("", text, path="--gpu")
        return sorted(fit, key=lambda name: (sizes[name], name))

    def edits(self, scenario: LoadedScenario) -> tuple[Edit, ...]:
        """Return the edits that give a scenario's machine these parts. Raises InputError."""
        return tuple(self._edits(scenario, scenario.platform()))

    def _edits(self, scenario: LoadedScenario, platform: Platform) -> Iterator[Edit]:
        if self.gpu is not None:
            gpu = _find(Library(), self.gpu, ("accelerator",), "--gpu").profile.id
            if gpu != platform.profile.accelerator:
                yield Edit(("equipment", "accelerator"), gpu)
        if self.memory is not None:
            yield Edit(("profiles", f"host/{platform.host.id}", "memory_capacity"), _modules(self.memory))
        if self.drive is not None:
            yield from self._storage(platform, self.drive)
        if self.gpus is not None and self.gpus != scenario.scenario.strategy.gpus:
            edits = scenario.scenario.strategy.sizes().gpus(self.gpus)
            if not edits:
                text = f"{scenario.scenario.strategy.kind} cannot use {self.gpus} GPUs"
                raise InputError.at("", text, path="--gpus")
            yield from edits

    def _storage(self, platform: Platform, drive: str) -> tuple[Edit, ...]:
        """Return the edits that put storage in the place of the first tier of its kind, or else of the first
        that is attached in its way, or add a tier."""
        number, kind, profile = _drives(drive)
        way = "at" if kind in LOCAL_KINDS else "through"
        tiers = {one: tier for one, tier in platform.profile.tiers.items() if getattr(tier, way)}
        kinds = {one.id: one.kind for one in platform.profiles}
        of_kind = (one for one, tier in tiers.items() if kinds.get(tier.profile) == kind)
        name = next(of_kind, next(iter(tiers), None))
        where = getattr(tiers[name], way) if name else ((CPU,) if way == "at" else platform.profile.nics)
        if not where:
            here, server = platform.profile.id, profile.id
            text = f"{here} has no network adapter, over which {server} is reached; name a drive"
            raise InputError.at("", text, path="--drive")
        if kind == "drive" or number > 1:
            where = tuple(where)[:number]
        tier = Edit(("equipment", "tiers", name or _NEW[way]), {"profile": profile.id, way: list(where)})
        count = Edit(("profiles", f"raid/{profile.id}", "count"), number)
        return (tier, count) if kind == "raid" and number > 1 else (tier,)


def _modules(size: str) -> str:
    """Return the size of memory modules that are sold in GB or TB, which have as many GiB or TiB.

    Raises InputError for what is no size.
    """
    try:
        parse_bytes(size)
    except ValueError as error:
        raise InputError.at("", str(error), path="--memory") from None
    return re.sub(r"([GTgt])[Bb]$", r"\1iB", size.strip())


def _find(library: Library, name: str, kinds: tuple[str, ...], option: str) -> Entry:
    """Return the shipped profile that an option names. Raises InputError."""
    try:
        return library.find(name, kinds)
    except InputError as error:
        raise InputError(one if one.path else one._replace(path=option) for one in error.problems) from None


def _drives(text: str) -> tuple[int, str, Profile]:
    """Return how many drives are meant, with kind and profile; of several of one type it is an array's."""
    times = re.fullmatch(r"([1-9][0-9]{0,3}) ?x ?(.+)", text)
    number, name = (int(times[1]), times[2]) if times else (1, text)
    library = Library()
    entry = _find(library, name, STORAGE_KINDS, "--drive")
    if number == 1:
        return number, entry.use.kind, entry.profile
    for one in library.summaries("raid"):
        array = library.find(one.id, ("raid",)).profile
        if isinstance(array, Raid) and (array.drive, array.level) == (entry.profile.id, 0):
            return number, "raid", array
    arrays = ", ".join(one.id for one in library.summaries("raid"))
    message = (
        f"there is no RAID0 of {name} among the shipped profiles; name one drive or an array of {arrays}"
    )
    raise InputError.at("", message, path="--drive")
