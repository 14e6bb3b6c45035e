"""A machine by its parts: a GPU, memory and drives that are named instead of a platform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import (
    CPU,
    LOCAL_KINDS,
    Drives,
    Library,
    Platform,
    installed_memory,
    platforms_with,
)
from simoffload.scenario.loaded import LoadedScenario

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
        with _option("--gpu"):
            gpu = library.find(self.gpu, ("accelerator",)).profile.id
            try:
                return platforms_with(library, gpu, self.gpus or 1)
            except InputError as error:
                hint = "name a platform with --set platform=ID, which then gets this GPU"
                raise InputError.at("", f"{error.problems[0].message}; {hint}") from None

    def edits(self, scenario: LoadedScenario) -> tuple[Edit, ...]:
        """Return the edits that give a scenario's machine these parts. Raises InputError."""
        return tuple(self._edits(scenario, scenario.platform()))

    def _edits(self, scenario: LoadedScenario, platform: Platform) -> Iterator[Edit]:
        if self.gpu is not None:
            with _option("--gpu"):
                gpu = Library().find(self.gpu, ("accelerator",)).profile.id
            if gpu != platform.profile.accelerator:
                yield Edit(("equipment", "accelerator"), gpu)
        if self.memory is not None:
            with _option("--memory"):
                size = installed_memory(self.memory)
            yield Edit(("profiles", f"host/{platform.host.id}", "memory_capacity"), size)
        if self.drive is not None:
            with _option("--drive"):
                yield self._storage(platform, Drives.read(Library(), self.drive))
        if self.gpus is not None and self.gpus != scenario.scenario.strategy.gpus:
            edits = scenario.scenario.strategy.sizes().gpus(self.gpus)
            if not edits:
                text = f"{scenario.scenario.strategy.kind} cannot use {self.gpus} GPUs"
                raise InputError.at("", text, path="--gpus")
            yield from edits

    def _storage(self, platform: Platform, drives: Drives) -> Edit:
        """Return the edit that puts storage in the place of the first tier of its kind, or else of the first
        that is attached in its way, or adds a tier."""
        way = "at" if drives.kind in LOCAL_KINDS else "through"
        tiers = {one: tier for one, tier in platform.profile.tiers.items() if getattr(tier, way)}
        kinds = {one.id: one.kind for one in platform.profiles}
        of_kind = (one for one, tier in tiers.items() if kinds.get(tier.profile) == drives.kind)
        name = next(of_kind, next(iter(tiers), None))
        where = getattr(tiers[name], way) if name else ((CPU,) if way == "at" else platform.profile.nics)
        if not where:
            here, server = platform.profile.id, drives.profile
            text = f"{here} has no network adapter, over which {server} is reached; name a drive"
            raise InputError.at("", text)
        tier = drives.tier(tuple(where)) if way == "at" else {"profile": drives.profile, way: list(where)}
        return Edit(("equipment", "tiers", name or _NEW[way]), tier)


@contextmanager
def _option(name: str) -> Iterator[None]:
    """Name the option where a problem names no file."""
    try:
        yield
    except InputError as error:
        raise InputError(one if one.path else one._replace(path=name) for one in error.problems) from None
