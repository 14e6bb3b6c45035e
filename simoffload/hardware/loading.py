"""Load a platform: its file, all profiles that it refers to, and a check of the wiring."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import TypeVar

from simoffload.documents import DocumentLocation, quoted, suggest
from simoffload.errors import InputError, Problem
from simoffload.hardware.changes import Changes, Equipment
from simoffload.hardware.host import Host
from simoffload.hardware.library import KINDS, Entry, Library, ProfileSummary, is_path
from simoffload.hardware.machine import Platform
from simoffload.hardware.profiles import Accelerator, Nic, Pcie, Profile
from simoffload.hardware.storage import STORAGE_KINDS
from simoffload.hardware.targets import PcieLink, Target, pcie_link, resolve_target
from simoffload.hardware.unmeasured import ELSEWHERE, UNMEASURED, Unmeasured, completed
from simoffload.hardware.wiring import CPU, PlatformProfile, StorageTier
from simoffload.units import plural

T = TypeVar("T")


def list_profiles(kind: str | None = None, *, root: FilePath | None = None) -> tuple[ProfileSummary, ...]:
    """Return the shipped profiles and those in the folder ``root``, which has the layout of
    ``hardware_profiles``.

    Raises InputError for an unknown kind or an invalid file.
    """
    return tuple(Library(root).summaries(kind))


def load_profile(kind: str, name: str, *, root: FilePath | None = None) -> Profile:
    """Read and check one profile by id (or path), without following its references. Raises InputError."""
    return Library(root).find(name, (kind,)).profile


def load_platform(
    name_or_path: str | FilePath,
    *,
    root: FilePath | None = None,
    changes: Changes | None = None,
    equipment: Equipment | None = None,
) -> Platform:
    """Load a shipped platform by id, or a platform file of your own.

    ``root`` is the user's folder: paths are relative to it and may not leave it, and ids are looked up in it
    first if it has the layout of ``hardware_profiles``. Without ``root`` it is the folder of the platform
    file, or the parent folder if that is called ``platform``. ``equipment`` is installed in the platform, and
    ``changes`` are applied to the profiles from which it is then built. Raises InputError with every problem
    found.
    """
    text = str(name_or_path)
    if root is None and (isinstance(name_or_path, FilePath) or is_path(text)):
        path = FilePath(name_or_path)
        folder = path.parent
        library = Library(folder.parent if folder.name == "platform" else folder)
        view = library.view(changes, equipment and equipment.cables())
        return _Loader(view, view.read(path, ("platform",)), equipment).load()
    return platform_from(Library(root), text, changes=changes, equipment=equipment)


def platform_from(
    library: Library,
    reference: str,
    *,
    changes: Changes | None = None,
    equipment: Equipment | None = None,
) -> Platform:
    """Load a platform from a library, which keeps the profiles that it reads for the next platform."""
    view = library.view(changes, equipment and equipment.cables())
    return _Loader(view, view.find(reference, ("platform",)), equipment).load()


class _Loader:
    """Follows the references of a platform and collects all problems."""

    def __init__(self, library: Library, entry: Entry, equipment: Equipment | None) -> None:
        assert isinstance(entry.profile, PlatformProfile)
        self._library, self._entry, self._equipment = library, entry, equipment
        library.adapt(entry, Changes.of(entry.document))
        self._platform = equipment.installed_in(entry.profile) if equipment else entry.profile
        self._problems: list[Problem] = []

    def load(self) -> Platform:
        platform = self._platform
        host_entry = self._try(lambda: self._entry_of(platform.host, ("host",), "host"))
        slots = self._slots(host_entry) if host_entry else {}
        switches = {name: self._stated(name) for name, one in platform.switches.items() if one.lanes is None}
        accelerator_entry = self._try(
            lambda: self._entry_of(platform.accelerator, ("accelerator",), "accelerator")
        )
        gpu_pcie_link = accelerator_entry and self._try(lambda: self._gpu_pcie_link(accelerator_entry))
        nics = {name: self._nic(name) for name in platform.nics}
        targets = {name: self._target(name, tier) for name, tier in platform.tiers.items()}
        unmeasured_entry = self._try(lambda: self._library.find(ELSEWHERE, (UNMEASURED,)))
        self._check_wiring()
        if not self._problems:
            self._try(functools.partial(self._library.check_changes, adapted=not self._equipment))
        accelerator = accelerator_entry.profile if accelerator_entry else None
        host = host_entry.profile if host_entry else None
        unmeasured = unmeasured_entry.profile if unmeasured_entry else None
        if (
            self._problems
            or not isinstance(host, Host)
            or gpu_pcie_link is None
            or not isinstance(accelerator, Accelerator)
            or not isinstance(unmeasured, Unmeasured)
        ):
            raise InputError(sorted(self._problems, key=self._order))
        entries = self._library.entries()
        missing = {f"{key}." for key in unmeasured.used_by(host, accelerator)}
        stated = [
            [
                line
                for line in entry.inputs()
                if entry.use.kind != UNMEASURED or f"{line.key}.".startswith(tuple(missing))
            ]
            for entry in entries
        ]
        added = self._equipment.inputs(platform.id) if self._equipment else ()
        return Platform(
            profile=platform,
            host=self._library.completed(host, unmeasured, Host.completed),
            accelerator=self._library.completed(
                accelerator, unmeasured.accelerator, lambda own, other: completed(own, other).limited()
            ),
            gpu=gpu_pcie_link,
            slots=slots,
            stated={name: pcie for name, pcie in switches.items() if pcie},
            nics={name: found for name, found in nics.items() if found},
            targets={name: found for name, found in targets.items() if found},
            profiles=tuple(entry.use for entry in entries),
            inputs=tuple(line for lines in (*stated, added) for line in lines),
            remarks=(*self._no_faster(slots, gpu_pcie_link, accelerator.id), *self._kept(slots)),
        )

    def _order(self, problem: Problem) -> tuple[bool, str, int, int]:
        """Return the sort key of a problem: first the platform's own file, each file from its top."""
        other = problem.path != self._entry.document.path
        return other, problem.path, problem.line or 0, problem.column or 0

    # -- references -----------------------------------------------------------------------------

    def _at(self, *keys: str | int) -> DocumentLocation:
        """Return where an entry of the platform is written: in its file, or in the scenario's equipment."""
        added = self._equipment.place(keys) if self._equipment else None
        return added or DocumentLocation(self._entry.document, keys)

    def _try(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except InputError as error:
            self._problems.extend(problem for problem in error.problems if problem not in self._problems)
            return None

    def _entry_of(self, reference: str, kinds: tuple[str, ...], *keys: str | int) -> Entry:
        return self._library.find(reference, kinds, self._at(*keys))

    def _gpu_pcie_link(self, entry: Entry) -> PcieLink:
        accelerator = entry.profile
        assert isinstance(accelerator, Accelerator)
        if self._platform.gpu_links == "switched" and accelerator.interconnect is None:
            raise self._unlinked(accelerator)
        if accelerator.is_unified and len(self._platform.gpus) > 1:
            text = f"{accelerator.id} works in the memory of its host, which only one can; name one vertex"
            raise self._at("gpus").error(text)
        return pcie_link(self._library, accelerator.pcie, entry, "pcie")

    def _unlinked(self, accelerator: Accelerator) -> InputError:
        added = self._equipment.place(("accelerator",)) if self._equipment else None
        text = f"{accelerator.id} has no links to other GPUs"
        if added is None:
            return self._at("gpu_links").error(f"{text}; write gpu_links: none")
        return added.error(f"{text}, which {self._platform.id} requires; choose one that has")

    def _slots(self, host: Entry) -> dict[str, Pcie | None]:
        """Return the PCIe generation of the slots at each vertex; None where it is not known."""
        assert isinstance(host.profile, Host)
        stated = host.profile.slots
        written = (
            {}
            if stated is None
            else {CPU: (stated.value, DocumentLocation(host.document, ("slots", "value")))}
        )
        for name, switch in self._platform.switches.items():
            written[name] = switch.pcie, self._at("switches", name, "pcie")
        found: dict[str, Pcie | None] = {CPU: None}
        for name, (reference, place) in written.items():
            found[name] = self._try(functools.partial(self._library.slot, reference, place))
        return found

    def _stated(self, name: str) -> Pcie | None:
        """Return the generation that the platform names for a switch, whatever replaces its slots."""
        place, reference = self._at("switches", name, "pcie"), self._platform.switches[name].pcie
        entry = self._try(lambda: self._library.find(reference, ("pcie",), place))
        return entry.profile if entry and isinstance(entry.profile, Pcie) else None

    def _no_faster(self, slots: Mapping[str, Pcie | None], gpu: PcieLink, name: str) -> Iterator[str]:
        """Yield warnings where the scenario's equipment has faster slots, but the GPUs stay at their own
        generation."""
        under = [slots[vertex] for vertex in self._platform.gpus]
        for reference, place in self._equipment.cables().values() if self._equipment else ():
            taken = self._library.find(reference, ("pcie",), place).profile
            assert isinstance(taken, Pcie)
            if taken in under and gpu.pcie.protocol == "pcie" and gpu.pcie.is_slower(taken):
                text = (
                    f"{name} has {gpu.label} and runs at that generation in slots of {taken.name}; only the "
                    "cables of switches, and drives and adapters of that generation, become faster"
                )
                yield str(place.problem(text))

    def _kept(self, slots: Mapping[str, Pcie | None]) -> Iterator[str]:
        """Yield warnings where the scenario's equipment has another generation for switches whose rates are
        stated, and therefore stay."""
        for reference, place in self._equipment.cables().values() if self._equipment else ():
            taken = self._library.find(reference, ("pcie",), place).profile
            kept = [
                name
                for name, switch in self._platform.switches.items()
                if switch.lanes is None and slots[name] == taken
            ]
            if kept:
                text = f"{', '.join(kept)} of {self._platform.id} keep the rates that the platform states"
                yield str(place.problem(text))

    def _nic(self, name: str) -> tuple[Nic, PcieLink] | None:
        reference = self._platform.nics[name].profile
        entry = self._try(lambda: self._entry_of(reference, ("nic",), "nics", name, "profile"))
        if entry is None or not isinstance(entry.profile, Nic):
            return None
        nic = entry.profile
        found = self._try(lambda: pcie_link(self._library, nic.pcie, entry, "pcie"))
        return (nic, found) if found else None

    def _target(self, name: str, tier: StorageTier) -> Target | None:
        keys = ("tiers", name)
        entry = self._try(lambda: self._entry_of(tier.profile, tuple(STORAGE_KINDS), *keys, "profile"))
        if entry is None:
            return None
        kind = entry.use.kind
        if STORAGE_KINDS[kind].local != (tier.at is not None):
            given, text = "through", f"a {kind} is local; write `at` with its vertices"
            if tier.at is not None:
                given, text = "at", f"a target of kind {kind} is remote; write `through` with its adapters"
            self._problems.append(self._at(*keys, given).problem(text))
        link = (tier.link, self._at(*keys, "link")) if tier.link else None
        if link and "link" not in KINDS[kind].model_fields:
            message = f"a {kind} has no network adapters in its profile; leave `link` out"
            self._problems.append(link[1].problem(message))
        target = self._try(lambda: resolve_target(self._library, entry, link=link))
        # If the scenario's `profiles` reduce the number of drives, some slots are empty.
        taken = 1 if self._library.changes(entry) else len(tier.at or ())
        if target and taken > max(1, target.drives):
            message = (
                f"{taken} vertices for {plural(target.drives, 'drive')}; name at most one vertex per drive"
            )
            self._problems.append(self._at(*keys, "at").problem(message))
        return target

    # -- wiring ---------------------------------------------------------------------------------

    def _check_wiring(self) -> None:
        platform = self._platform
        vertices = (CPU, *platform.switches)
        for name, switch in platform.switches.items():
            self._known(switch.to, vertices, "vertex", "switches", name, "to")
        for index, vertex in enumerate(platform.gpus):
            self._known(vertex, vertices, "vertex", "gpus", index)
        for name, nic in platform.nics.items():
            self._known(nic.at, vertices, "vertex", "nics", name, "at")
        for index, name in enumerate(platform.network):
            self._known(name, tuple(platform.nics), "adapter", "network", index)
        for name, tier in platform.tiers.items():
            for index, vertex in enumerate(tier.at or ()):
                self._known(vertex, vertices, "vertex", "tiers", name, "at", index)
            for index, nic_name in enumerate(tier.through or ()):
                self._known(nic_name, tuple(platform.nics), "adapter", "tiers", name, "through", index)
        self._check_reachable()

    def _known(self, name: str, names: tuple[str, ...], what: str, *keys: str | int) -> None:
        if name not in names:
            has = ", ".join(names) or "none"
            message = f"no {what} {quoted(name)} (has: {has}){suggest(name, names)}"
            self._problems.append(self._at(*keys).problem(message))

    def _check_reachable(self) -> None:
        """Check that every switch leads to the CPU, so that the devices behind it can be reached."""
        switches = self._platform.switches
        lost = set()
        for name in switches:
            seen = {name}
            vertex = switches[name].to
            while vertex in switches and vertex not in seen:
                seen.add(vertex)
                vertex = switches[vertex].to
            if vertex in seen:
                lost.add(name)
                message = f"{name} does not lead to {CPU}: its cables form a cycle"
                self._problems.append(self._at("switches", name, "to").problem(message))
        for name, tier in self._platform.tiers.items():
            at = tier.at or tuple(
                self._platform.nics[nic].at for nic in tier.through or () if nic in self._platform.nics
            )
            if lost.intersection(at):
                message = (
                    f"unreachable from {CPU}: {', '.join(sorted(lost.intersection(at)))} leads into a cycle"
                )
                self._problems.append(self._at("tiers", name).problem(message))
