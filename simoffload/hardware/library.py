"""Profile files: where they are found, how they are read, and the changes that a scenario makes to them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simoffload.documents import (
    SUFFIXES,
    Document,
    DocumentLocation,
    candidates,
    either,
    listing,
    named,
    quoted,
    read_bytes,
    read_document,
    resolved,
    same_name,
    suggest,
    validate,
    without,
)
from simoffload.errors import InputError
from simoffload.hardware.costs import Costs
from simoffload.hardware.host import Host
from simoffload.hardware.parts import BASE, based, by_parts, parts_of
from simoffload.hardware.profiles import Accelerator, Nic, Pcie, Profile
from simoffload.hardware.quantities import ID_PATTERN
from simoffload.hardware.storage import STORAGE_KINDS, Drive, Nfs, NvmeOf, Pfs, Raid, RemoteMemory
from simoffload.hardware.unmeasured import Unmeasured
from simoffload.hardware.wiring import PlatformProfile
from simoffload.recent import Recent
from simoffload.shipped import shipped_folder

if TYPE_CHECKING:
    from simoffload.hardware.changes import Changes

KINDS: dict[str, type[Profile]] = {
    "accelerator": Accelerator,
    "host": Host,
    "pcie": Pcie,
    "nic": Nic,
    "drive": Drive,
    "raid": Raid,
    "nfs": Nfs,
    "pfs": Pfs,
    "nvmeof": NvmeOf,
    "remote": RemoteMemory,
    "platform": PlatformProfile,
    "costs": Costs,
    "unmeasured": Unmeasured,
}
"""Every kind of profile; the files of a kind are in the folder of that name."""
DEVICES: list[Path] = []
"""Folders with the devices of kinds that were registered, of the layout of ``hardware_profiles``."""
OTHER_NAMES = {
    **dict.fromkeys(("gpu", "gpus", "accelerators"), "accelerator"),
    **dict.fromkeys(("machine", "machines", "server", "servers", "platforms"), "platform"),
    **dict.fromkeys(("ssd", "ssds", "nvme", "drives", "disk"), "drive"),
    **dict.fromkeys(("cpu", "hosts"), "host"),
}
"""Kinds by other names under which people look for them."""
_FEW = 12
"""Profiles that a message lists: our choice."""
_ID = re.compile(ID_PATTERN)
_ARRAY = re.compile(
    r"raid(?P<level>0|5|6|10)-(?P<count>[1-9][0-9]{0,3})x-(?P<drive>[a-z0-9][a-z0-9.+-]{0,79})"
)
"""Ids of arrays that need no file: raid0-2x-samsung-980-pro-2tb."""
_FORM = re.compile(r"(-sxm|-pcie|-nvl|-[0-9]+gb?)+$")
"""Form and memory at the end of the id of a GPU, which people leave out where there is only one."""
_TYPED_FORM = re.compile(r"([ -](sxm\d?|pcie|nvl|hbm\d?e?|\d+ ?gb?))+$", re.IGNORECASE)
PLATFORM = "platform"

P = TypeVar("P", bound=Profile)
Q = TypeVar("Q")


class ProfileUse(NamedTuple):
    """A profile file from which a machine was built."""

    id: str
    kind: str
    path: str
    """The path as the user named it; shipped files begin with ``hardware_profiles/``."""
    sha256: str


class ProfileInput(NamedTuple):
    """One number of a profile as it was written, with its origin."""

    profile: str
    key: str
    text: str
    origin: str
    source: str
    date: str
    spread: str = ""
    """The relative standard deviation that the profile states; "" where it states none."""


class ProfileSummary(NamedTuple):
    """A profile that can be referred to."""

    kind: str
    id: str
    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.id}"


class Entry(NamedTuple):
    """A profile that was read, with its document."""

    profile: Profile
    document: Document
    use: ProfileUse

    def inputs(self) -> tuple[ProfileInput, ...]:
        """Return all numbers of the profile, in the order of the file."""
        return _INPUTS.get(id(self.document), lambda: (self.document, tuple(self._inputs())))[1]

    def _inputs(self) -> Iterator[ProfileInput]:
        for key, node in _statements(self.document.data, ""):
            text = str(node["value"]) if "value" in node else str(node.get("about", ""))
            if "points" in node:
                text = ", ".join(f"{x}: {y}" for x, y in node["points"])
            origin, source, date = (str(node[part]) for part in ("origin", "source", "date"))
            spread = str(node.get("spread", ""))
            yield ProfileInput(self.use.id, key, text, origin, source, date, spread)


_INPUTS = Recent[int, tuple[Document, tuple[ProfileInput, ...]]](256)
"""Numbers of profiles by the identity of their documents, most of which changed machines share."""


def is_path(reference: str) -> bool:
    """Return whether a reference is the path of a file rather than an id."""
    return "/" in reference or reference.endswith(SUFFIXES)


def _statements(node: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "origin" in node:
            yield key, node
            yield from _statements(node.get("earlier", ()), f"{key}.earlier")
        else:
            for name, child in node.items():
                yield from _statements(child, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from _statements(child, f"{key}[{index}]")


@dataclass
class _Files:
    """Files that were found and read, so that each is searched for and read only once."""

    found: dict[tuple[str, tuple[str, ...], str], Path] = field(default_factory=dict)
    """Maps (reference, kinds, folder from which it starts) to the file."""
    real: dict[Path, Path] = field(default_factory=dict)
    """Maps a file to its path without symbolic links."""
    entries: dict[Path, Entry] = field(default_factory=dict)
    completed: dict[tuple[int, int], tuple[object, ...]] = field(default_factory=dict)
    """Profiles with the numbers of another machine, by the identity of both, which are kept, too."""


class Library:
    """The shipped profiles and those in the user's folder, which take precedence."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        """The user's folder: it has the layout of ``hardware_profiles``, and no path may leave it."""
        self._folders: list[Path] = [
            *((root,) if root else ()),
            *DEVICES,
            shipped_folder("hardware_profiles"),
        ]
        self._files = _Files()
        self._changes: Changes | None = None
        self._cables: Mapping[str, tuple[str, DocumentLocation]] = {}
        self._asked: dict[str, None] = {}  # ids of PCIe profiles, including those that were not used
        self._read: dict[Path, Entry] = {}
        self._platform: Entry | None = None
        self._own: Changes | None = None  # the section ``profiles`` of that platform
        self._opening: list[Path] = []

    def view(
        self, changes: Changes | None = None, cables: Mapping[str, tuple[str, DocumentLocation]] | None = None
    ) -> Library:
        """Return a library of the same files without any uses so far, with ``changes`` applied to what it
        reads.

        ``cables`` maps the id of a PCIe profile to the reference that :meth:`slot` uses instead, and where
        that is written.
        """
        other = Library(self.root)
        other._files, other._changes, other._cables = self._files, changes, cables or {}
        return other

    def adapt(self, platform: Entry, own: Changes | None) -> None:
        """Let what a platform's file writes of other profiles hold for those that are read from now on."""
        self._platform, self._own = platform, own

    def uses(self) -> Iterator[ProfileUse]:
        """Yield every profile that was read through this library or one of its views."""
        return (entry.use for entry in self._files.entries.values())

    def snapshot(self) -> dict[str, Any]:
        """Return everything that was read, as plain values; :meth:`restored` makes a library of it that needs
        no file."""
        return {
            "found": [(*key, str(path)) for key, path in self._files.found.items()],
            "real": {str(path): str(where) for path, where in self._files.real.items()},
            "entries": {
                str(where): (entry.document.path, entry.document.data, tuple(entry.use))
                for where, entry in self._files.entries.items()
            },
        }

    @classmethod
    def restored(cls, snapshot: dict[str, Any], root: Path | None) -> Library:
        """Return the library of a snapshot; profiles that are not in it are read from disk."""
        library = cls(root)
        files = library._files
        files.found = {(name, tuple(kinds), at): Path(path) for name, kinds, at, path in snapshot["found"]}
        files.real = {Path(path): Path(where) for path, where in snapshot["real"].items()}
        for where, (path, data, parts) in snapshot["entries"].items():
            document, use = Document(path, data), ProfileUse(*parts)
            files.entries[Path(where)] = Entry(validate(document, KINDS[use.kind]), document, use)
        return library

    def summaries(self, kind: str | None = None) -> Iterator[ProfileSummary]:
        """Yield the profiles of one kind or of all; of equal ids only the one that would be used.

        Raises InputError for an unknown kind.
        """
        kind = None if kind is None else OTHER_NAMES.get(kind, kind)
        if kind is not None and kind not in KINDS:
            raise InputError.at("kind", _unknown_kind(kind))
        for each in KINDS if kind is None else (kind,):
            found = {path.stem: path for path in self._files_of(each)}
            for path in (found[name] for name in sorted(found)):
                entry = self.read(path, (each,))
                yield ProfileSummary(each, entry.profile.id, entry.profile.name, entry.use.path)

    def names(self) -> set[str]:
        """Return ``kind/id`` of every profile, by the names of the files."""
        return {f"{kind}/{path.stem}" for kind in KINDS for path in self._files_of(kind)}

    def find(self, reference: str, kinds: tuple[str, ...], written: DocumentLocation | None = None) -> Entry:
        """Read the profile that ``reference`` names.

        ``reference`` is an id, or the path of a file: relative to the file in which it is ``written``,
        otherwise to the user's folder. Raises InputError if the profile does not exist, is of another kind,
        is outside the user's folder or is invalid.
        """
        with written.referring() if written else nullcontext():
            return self.read(self._found(reference, kinds, written), kinds, written)

    def slot(self, reference: str, written: DocumentLocation) -> Pcie:
        """Return the PCIe generation of a slot, or of a cable between switches, after replacement by the
        scenario.

        Raises what :meth:`find` raises.
        """
        kinds = ("pcie",)
        with written.referring():
            cable = self._entry(self._found(reference, kinds, written)).use.id
        self._asked[cable] = None
        replaced = (taken for name, taken in self._cables.items() if same_name(name, cable))
        taken, place = next(replaced, (reference, written))
        profile = self.find(taken, kinds, place).profile
        assert isinstance(profile, Pcie)
        return profile

    def _found(self, reference: str, kinds: tuple[str, ...], written: DocumentLocation | None) -> Path:
        key = (reference, kinds, str(written.folder) if written and is_path(reference) else "")
        if key not in self._files.found:
            self._files.found[key] = self._locate(reference, kinds, written)
        return self._files.found[key]

    def _locate(self, reference: str, kinds: tuple[str, ...], written: DocumentLocation | None) -> Path:
        if is_path(reference):
            return self._within(reference, written)
        if found := self._file(reference, kinds):
            return found
        if "raid" in kinds and _ARRAY.fullmatch(reference):
            return self._folders[-1] / "raid" / f"{reference}.yaml"
        known = sorted({path.stem for kind in kinds for path in self._files_of(kind)})
        meant = named(reference, known) or self._without_form(reference, kinds, known)
        if len(meant) == 1 and (found := self._file(meant[0], kinds)):
            return found
        hint = candidates(reference, meant) if meant else self.hint(reference)
        if not hint and "accelerator" in kinds:  # as a driver names it: H100 80GB HBM3
            hint = candidates(_TYPED_FORM.sub("", reference), known)
        hint = hint or candidates(reference, known)
        if not hint:
            every = f"; list: simoffload profiles list {kinds[0].replace('accelerator', 'gpu')}"
            hint = f"; known: {listing(known)}" if len(known) <= _FEW else every
            hint += "; or import the module that registers its kind" if "remote" in kinds else ""
        raise _error(f"there is no {either(kinds)} {quoted(reference)}{hint}", written)

    def hint(self, reference: str) -> str:
        """Return "; x is a platform: --set platform=x" for the name of a profile, where another thing is
        expected; "" for any other text."""
        ids = {path.stem: kind for kind in KINDS for path in self._files_of(kind)}
        one = next(iter(named(reference, ids)), "")
        if not one:
            return ""
        kind = ids[one]
        options = {"platform": "--set platform=", "accelerator": "--gpu "}
        option = options.get(kind, "--drive " if kind in STORAGE_KINDS else "")
        called = {"accelerator": "a GPU", "platform": "a machine", "drive": "a drive"}
        what = called.get(kind, f"a profile of the kind {kind}")
        return f"; {one} is {what}" + (f": {option}{one}" if option else "")

    def _without_form(self, reference: str, kinds: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
        """Return the ids of GPUs that a name means which lacks their form and memory, as B300, or has it
        although the id lacks it, as RTX 3060 12GB."""
        if "accelerator" not in kinds:
            return ()
        short = tuple(name for name in known if same_name(_FORM.sub("", name), reference))
        return short or tuple(
            one.id for one in self.summaries("accelerator") if same_name(one.name, reference)
        )

    def _file(self, identifier: str, kinds: tuple[str, ...]) -> Path | None:
        """Return the file of an id, in the user's folder before the shipped one; None if there is none."""
        if _ID.fullmatch(identifier):
            for folder in self._folders:
                for kind in kinds:
                    for path in (folder / kind / f"{identifier}{suffix}" for suffix in SUFFIXES):
                        if path.is_file() and self._inside(path, folder):
                            return path
        return None

    def read(self, path: Path, kinds: tuple[str, ...], written: DocumentLocation | None = None) -> Entry:
        """Read and check one file, which must be a profile of one of ``kinds``."""
        original = self._entry(path)
        where = self._files.real[path]
        if where not in self._read:
            self._read[where] = self._changed(original)
        entry = self._read[where]
        if entry.use.kind not in kinds:
            message = f"{entry.use.path} is a profile of kind {entry.use.kind}, not {either(kinds)}"
            raise _error(message, written or DocumentLocation(entry.document, ("kind",)))
        return entry

    def _entry(self, path: Path) -> Entry:
        """Return the content of a file before any change."""
        if path not in self._files.real:
            self._files.real[path] = resolved(path)
        where = self._files.real[path]
        if where not in self._files.entries:
            self._files.entries[where] = self._open(path)
        return self._files.entries[where]

    def completed(self, profile: P, elsewhere: Q, complete: Callable[[P, Q], P]) -> P:
        """Return a profile completed with numbers of other machines: the same object as before for the same
        two, so that what was worked out from it holds for platforms that differ in other profiles."""
        known = self._files.completed
        key = id(profile), id(elsewhere)
        if key not in known:
            known[key] = profile, elsewhere, complete(profile, elsewhere)
        found: P = known[key][-1]  # type: ignore[assignment]  # of the same profile
        return found

    def entries(self) -> tuple[Entry, ...]:
        """Return all profiles used so far, in the order of their first use."""
        return tuple(self._read.values())

    def changes(self, entry: Entry) -> bool:
        """Return whether numbers of a profile are changed."""
        return self._changes is not None and self._changes.concern(entry.use.kind, entry.use.id)

    def check_changes(self, *, adapted: bool = True) -> None:
        """Raise InputError for changes to profiles that were not used, or to a name that several kinds
        share; those of the platform's own file count only if ``adapted``."""
        for cable, (_, place) in self._cables.items():
            if not named(cable, self._asked):
                known = candidates(cable, self._asked) or f" (has: {', '.join(self._asked) or 'none known'})"
                text = f"no slot of this platform has that PCIe generation{known}"
                raise InputError((place.problem(text, at_key=True),))
        used = [(entry.use.kind, entry.use.id) for entry in self._read.values()]
        for changes in (self._own if adapted else None, self._changes):
            if changes is not None:
                changes.check_all_meant(used)

    def _adapted(self, entry: Entry) -> Entry:
        """Return the profile with what the platform's file writes of it, one object for the same file."""
        changes = self._own
        if changes is None or self._platform is None:
            return entry
        known = self._files.completed
        key = id(entry.profile), id(self._platform.profile)
        if key not in known:
            document, use = entry.document, entry.use
            for name in changes.names(use.kind, use.id):
                document = based(document, changes.document, owner=use.id, at=(*changes.keys, name))
            changed = document is not entry.document
            own = Entry(validate(document, KINDS[use.kind]), document, use) if changed else entry
            known[key] = entry.profile, self._platform.profile, own
        found: Entry = known[key][-1]  # type: ignore[assignment]  # of the same profile
        return found

    def _changed(self, entry: Entry) -> Entry:
        """Return the profile with the changes to its numbers by the platform's file and the scenario."""
        entry = self._adapted(entry)
        if self._changes is None:
            return entry
        kind = entry.use.kind
        document = self._changes.made_to(entry.document, kind, entry.use.id)
        if document is entry.document:
            return entry
        try:
            profile = validate(document, KINDS[kind])
        except InputError as error:
            raise self._changes.placed(error, kind, entry.use.id) from None
        return entry._replace(profile=profile, document=document)

    def _open(self, path: Path) -> Entry:
        if path.is_relative_to(self._folders[-1]) and path.is_file():
            status = path.stat()
            return _shipped(path, (status.st_mtime_ns, status.st_size))
        if array := _ARRAY.fullmatch(path.stem) if path.is_relative_to(self._folders[-1]) else None:
            return self._array(path, array)
        return self.opened(path)

    def opened(self, path: Path) -> Entry:
        """Return the content of a file, with everything that its ``base`` gives it."""
        document = read_document(path)
        base = self._base(path, document)
        kind = base.use.kind if base else document.data.get("kind")
        parts = parts_of(document.data) if kind in (None, PLATFORM) else set()
        given, owner = (base.document, base.profile.id) if base else (None, "")
        if parts:
            kind = PLATFORM
            given, owner = by_parts(Library(self.root), Library(), document, base)
        if given is not None:
            for key in {*parts, BASE} & document.data.keys():
                document = without(document, key)
            document = based(given, document, owner=owner)
        if not isinstance(kind, str) or kind not in KINDS:
            raise DocumentLocation(document, ("kind",)).error(_unknown_kind(kind))
        profile = validate(document, KINDS[kind])
        content = read_bytes(path)
        digest = hashlib.sha256(content + (base.use.sha256.encode() if base else b"")).hexdigest()
        return Entry(profile, document, ProfileUse(profile.id, kind, self._name(path), digest))

    def _base(self, path: Path, document: Document) -> Entry | None:
        """Return the profile on which a file is based; None if it is based on none.

        Raises InputError, also for a profile of another kind and for one that is based on itself.
        """
        reference, kind = document.data.get(BASE), document.data.get("kind")
        if BASE not in document.data:
            return None
        written = DocumentLocation(document, (BASE,))
        if not isinstance(reference, str):
            raise written.error("must be the id or the file of a profile")
        kinds = (kind,) if isinstance(kind, str) and kind in KINDS else tuple(KINDS)
        having = [one for one in kinds if not is_path(reference) and self._file(reference, (one,))]
        if len(having) > 1 and kind is None:
            text = f"profiles of several kinds have that id ({', '.join(having)}); write kind: {having[0]}"
            raise written.error(text)
        library: Library = self
        if reference == document.data.get("id") and not path.is_relative_to(self._folders[-1]):
            library = Library()  # a file that replaces a shipped profile may be based on that one
        where = resolved(path)
        if where in self._opening:
            raise written.error(f"is based on itself: {' → '.join(one.stem for one in self._opening)}")
        self._opening.append(where)
        try:
            with written.referring():
                found = library._entry(library._found(reference, kinds, written))
        finally:
            self._opening.pop()
        if found.use.kind not in kinds:
            raise written.error(
                f"{found.use.path} is a profile of kind {found.use.kind}, not {either(kinds)}"
            )
        return found

    def _array(self, path: Path, array: re.Match[str]) -> Entry:
        """Return an array of equal drives that no file describes: one of that level with other drives."""
        level, count = int(array["level"]), int(array["count"])
        drive = Library(self.root).find(array["drive"], ("drive",)).profile
        shipped = Library()
        likest = min(
            (shipped.find(one.id, ("raid",)) for one in shipped.summaries("raid")),
            key=lambda one: _unlike(one.profile, level, count, drive.id),
        )
        own = {
            "id": path.stem,
            "name": f"RAID{level} of {count} {drive.name}",
            "notes": f"Efficiencies are those of {likest.profile.id}.",
            "level": level,
            "count": count,
            "drive": drive.id,
        }
        document = based(likest.document, Document(path.stem, own), owner=likest.profile.id)
        try:
            profile = validate(document, Raid)
        except InputError as error:
            raise InputError.at("", error.problems[0].message) from None
        digest = hashlib.sha256(f"{path.stem} {likest.use.sha256}".encode()).hexdigest()
        return Entry(profile, document, ProfileUse(path.stem, "raid", self._name(path), digest))

    def _files_of(self, kind: str) -> list[Path]:
        """Return the files of a kind; of equal names the one that counts comes last."""
        return [
            path
            for folder in reversed(self._folders)
            for path in sorted((folder / kind).glob("*"))
            if path.suffix in SUFFIXES and self._inside(path, folder)
        ]

    def _inside(self, path: Path, folder: Path) -> bool:
        """Return whether a file is in the folder itself, and not only linked from it."""
        return folder != self.root or resolved(path).is_relative_to(resolved(folder))

    def _within(self, reference: str, written: DocumentLocation | None) -> Path:
        """Return the file of a relative reference, unless it is outside the user's folder."""
        folder = written.folder if written else self.root or Path()
        path, boundary = folder / reference, self.root or folder
        if not resolved(path).is_relative_to(resolved(boundary)):
            raise _error(f"{quoted(reference)} is outside the folder from which files may be read", written)
        return path

    def _name(self, path: Path) -> str:
        shipped = self._folders[-1]
        if path.is_relative_to(shipped):
            return str(Path("hardware_profiles") / path.relative_to(shipped))
        return str(path)


@lru_cache(maxsize=512)
def _shipped(path: Path, _version: tuple[int, int]) -> Entry:
    """Return the content of a shipped file, which all libraries share; it is read again only after a change
    on disk."""
    return Library().opened(path)


def _unlike(array: Profile, level: int, count: int, drive: str) -> tuple[bool, bool, int, str]:
    """Return how far an array is from another one: by level, drives and their number."""
    assert isinstance(array, Raid)
    return array.level != level, array.drive != drive, abs(array.count - count), array.id


def _error(message: str, written: DocumentLocation | None) -> InputError:
    return written.error(message) if written else InputError.at("", message)


def _unknown_kind(kind: object) -> str:
    known = ", ".join(KINDS)
    if kind is None:
        return f"missing; a profile must state its kind, one of {known}"
    if not isinstance(kind, str):
        return f"must be text, one of {known}"
    wrong = f"{quoted(kind)} is not a kind of profile{suggest(kind, tuple(KINDS))}"
    return f"{wrong}; known: {known}; or import the module that registers it"
