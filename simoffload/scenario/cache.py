"""What scenarios have in common, each read and built once: files, platforms, machines, models."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from simoffload.documents import Document, quoted, read_document, resolved, validate
from simoffload.errors import InputError
from simoffload.hardware import Machine, load_platform
from simoffload.hardware.changes import Changes
from simoffload.hardware.equipment import Equipment
from simoffload.hardware.library import Library
from simoffload.hardware.platforms import platform_from
from simoffload.hardware.targets import STORAGE_KINDS
from simoffload.hardware.topology import Platform
from simoffload.models import ModelShape, ModelSpec, load_model
from simoffload.strategies import strategies
from simoffload.strategies.ds_config import DeepSpeedConfig

__all__ = ["ScenarioCache", "canonical"]

T = TypeVar("T")
_MODELS, _PLATFORMS, _CHANGES = 64, 256, 65_536
_SECTIONS = ("checkpoint", "dataset")
"""Sections that may use tiers, too."""
_SPEEDS = ("read", "write", "latency", "read_latency", "write_latency", "per_connection")
"""Keys of storage profiles that do not decide what fits."""


def canonical(data: Any) -> str:
    """Plain values as JSON in which equal values have equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class _Recent(Generic[T]):
    """The values asked for last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make()
        if len(self._values) > self._size:
            self._values.popitem(last=False)
        return value


class ScenarioCache:
    """Keeps what is read and built for the next scenario that asks for the same.

    A file is read once: what changes on disk afterwards is not seen. Not for several threads at once.
    """

    def __init__(self) -> None:
        self._libraries: dict[Path | None, Library] = {}
        self._apart: dict[str, tuple[Path, str]] = {}
        self._configs: dict[tuple[str, str], Any] = {}
        self._shapes: dict[tuple[str, str], tuple[ModelShape, str]] = {}
        self._models: _Recent[ModelShape] = _Recent(_MODELS)
        self._platforms: _Recent[Platform] = _Recent(_PLATFORMS)
        self._possible: _Recent[bool] = _Recent(_CHANGES)
        self._machines: _Recent[tuple[Platform, Machine]] = _Recent(_PLATFORMS)

    def model(self, spec: ModelSpec, *, root: Path | None) -> ModelShape:
        """The shape of a model; raises what ``load_model`` raises."""
        if spec.config is not None:
            return self._from_config(spec, root)[0]
        return self._models.get(canonical(spec.model_dump()), lambda: load_model(spec, root=root))

    def _from_config(self, spec: ModelSpec, root: Path | None) -> tuple[ModelShape, str]:
        key = (str(root), canonical(spec.model_dump()))
        if key not in self._shapes:
            shape = load_model(spec, root=root)
            self._shapes[key] = (shape, _digest(canonical([shape.name, spec.hf_config(root=root)])))
        return self._shapes[key]

    def name_platform(self, reference: str, path: Path) -> None:
        """Let ``reference`` mean a platform file that the user has named apart from any scenario.

        It need not be in the folder of a scenario that is put on it; paths in it start from its own.
        """
        folder = path.parent.parent if path.parent.name == "platform" else path.parent
        self._apart[reference] = folder, f"./{path.relative_to(folder).as_posix()}"

    def platform(self, document: Document, *, changed: bool = True) -> Platform:
        """The platform of a scenario with its equipment and, if ``changed``, the changes to its profiles.

        Raises what ``load_platform`` raises.
        """
        reference, root = document.data["platform"], document.root
        root, reference = self._apart.get(reference, (root, reference))
        changes = Changes.of(document) if changed else None
        equipment = Equipment.of(document)
        if root is None:
            return load_platform(reference, changes=changes, equipment=equipment)
        if root not in self._libraries:
            self._libraries[root] = Library(root)
        library = self._libraries[root]
        written = canonical([document.data.get("equipment"), changes and changes.by_profile])
        return self._platforms.get(
            (root, reference, written),
            lambda: platform_from(library, reference, changes=changes, equipment=equipment),
        )

    def machine(self, platform: Platform, *, nodes: int) -> Machine:
        """``nodes`` hosts of a platform; raises what ``Platform.machine`` raises."""
        # The platform is kept beside its machine: no other can then have its identity.
        made = self._machines.get((id(platform), nodes), lambda: (platform, platform.machine(nodes=nodes)))
        return made[1]

    def ds_config(self, name: str, *, root: Path | None) -> Any:
        """The content of a ds_config file in the folder of a scenario. Raises InputError."""
        key = (str(root), name)
        if key not in self._configs:
            self._configs[key] = _read_ds_config(root or Path(), name)
        return self._configs[key]

    def identity(self, data: dict[str, Any], *, root: Path | None) -> str:
        """A hash of what decides the result of a complete scenario: files by their content, neither its name
        nor rates of storage that it does not use.

        Files that cannot be read count by their names.
        """
        content = {key: value for key, value in data.items() if key not in {"name", "description"}}
        platform, model = content.get("platform"), content.get("model")
        if isinstance(platform, str):
            document = Document("", data, root)
            content["platform"] = self._platforms_content(document)
            if content.get("profiles"):
                content["profiles"] = self._changes(document)
        if isinstance(model, dict) and "config" in model:
            content["model"] = self._models_content(model, root)
        return _digest(canonical(content))

    def _platforms_content(self, document: Document) -> Any:
        try:
            platform = self.platform(document, changed=False)
        except InputError:
            return document.data["platform"]
        return [use.sha256 for use in platform.profiles]

    def _changes(self, document: Document) -> Any:
        """The changes to profiles that decide anything; all of them where they cannot be made."""
        data, changes = document.data, document.data["profiles"]
        try:
            decide = _cache_key_changes(data, self.platform(document, changed=False))
        except InputError:
            return changes
        if decide == changes:
            return changes
        key = document.root, data["platform"], canonical([data.get("equipment"), changes])
        possible = self._possible.get(key, lambda: self._is_possible(document))
        return decide if possible else changes

    def _is_possible(self, document: Document) -> bool:
        """Whether a machine can be made with the changes of a scenario."""
        try:
            machine = self.platform(document).machine()
        except InputError:
            return False
        return all(resource.capacity > 0 for resource in machine.resources)

    def _models_content(self, model: dict[str, Any], root: Path | None) -> Any:
        try:
            spec = ModelSpec.model_validate(model)
            return self._from_config(spec, root)[1] + canonical(spec.model_dump())
        except (InputError, ValueError):
            return model

    def profiles(self) -> tuple[tuple[str, str, str], ...]:
        """(kind, id, sha256) of all profiles that were read."""
        uses = (use for library in self._libraries.values() for use in library.uses())
        return tuple(sorted({(use.kind, use.id, use.sha256) for use in uses}))

    def snapshot(self) -> dict[str, Any]:
        """Everything that was read from files, to be sent where those files are not."""
        libraries = {root: library.snapshot() for root, library in self._libraries.items()}
        return {
            "libraries": libraries,
            "apart": self._apart,
            "configs": self._configs,
            "shapes": self._shapes,
        }

    @classmethod
    def restored(cls, snapshot: dict[str, Any]) -> ScenarioCache:
        """The shelf of a snapshot."""
        cache = cls()
        cache._libraries = {
            root: Library.restored(library, root) for root, library in snapshot["libraries"].items()
        }
        cache._apart = dict(snapshot["apart"])
        cache._configs, cache._shapes = dict(snapshot["configs"]), dict(snapshot["shapes"])
        return cache


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read_ds_config(root: Path, name: str) -> Any:
    path = root / name
    if not resolved(path).is_relative_to(resolved(root)):
        raise InputError.at("", f"{quoted(name)} is outside the folder of the scenario")
    read = read_document(path)
    validate(read, DeepSpeedConfig)
    return read.data


def _cache_key_changes(data: Mapping[str, Any], platform: Platform) -> Any:
    """The section ``profiles`` of a complete scenario without how fast storage is that is left aside.

    Its capacity counts: advice names the smallest tier that would do.
    """
    changes, used = data["profiles"], _used(data)
    if used is None or not isinstance(changes, Mapping):
        return changes
    if not all(isinstance(name, str) and isinstance(change, Mapping) for name, change in changes.items()):
        return changes
    decide = dict(changes)
    for name in _left_aside(platform, used) & changes.keys():
        decide[name] = {key: value for key, value in changes[name].items() if key not in _SPEEDS}
    return decide


def _used(data: Mapping[str, Any]) -> set[str] | None:
    """Tiers that the scenario names; None if it leaves any of them to be found out."""
    strategy = data.get("strategy")
    kind = strategy.get("kind") if isinstance(strategy, Mapping) else None
    known = strategies().get(kind) if isinstance(kind, str) else None
    if known is None or not known.tier_keys or any(section in data for section in _SECTIONS):
        return None
    assert isinstance(strategy, Mapping)
    named = [strategy.get(key) for key in known.tier_keys]
    return {name for name in named if isinstance(name, str)} if all(named) else None


def _left_aside(platform: Platform, used: set[str]) -> set[str]:
    """Names of the profiles of storage of which no tier is used."""
    targets = platform.targets
    aside = {target.id for name, target in targets.items() if name not in used}
    if any(target.drive for name, target in targets.items() if name in used):
        # One may be built of the other.
        aside -= {target.id for target in targets.values() if target.drive}
    aside -= {target.id for name, target in targets.items() if name in used}
    kinds = {one: [use.kind for use in platform.profiles if use.id == one] for one in aside}
    return {
        name
        for one, (kind, *others) in kinds.items()
        if kind in STORAGE_KINDS and not others
        for name in (one, f"{kind}/{one}")
    }
