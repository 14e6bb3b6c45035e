"""A cache of what scenarios share: files, platforms, machines and models are read and built once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from simoffload.documents import Document, Edit, edited, quoted, read_document, resolved, validate
from simoffload.errors import InputError
from simoffload.hardware import (
    STORAGE_KINDS,
    Changes,
    Equipment,
    Library,
    Machine,
    Platform,
    load_platform,
    platform_from,
)
from simoffload.models import ModelShape, ModelSpec, canonical_model, load_model, named_in_text
from simoffload.recent import Recent
from simoffload.strategies import strategy_in
from simoffload.strategies.base import tier_paths

_PLATFORMS, _CHANGES = 256, 65_536
_MODELS = Recent[str, ModelShape]()
"""Models that no file of the user describes: one object each, by which what follows from it is known."""
_SECTIONS = ("checkpoint", "dataset")
"""Sections next to the strategy that may use tiers."""
_SPEEDS = ("read", "write", "latency", "read_latency", "write_latency", "per_connection")
"""Keys of storage profiles that do not decide whether something fits."""


def canonical(data: Any) -> str:
    """Write plain values as JSON, so that equal values have equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class ScenarioCache:
    """A cache of files, platforms, machines and models for all scenarios that use the same ones.

    A file is read once; later changes on disk are not seen. The cache is not safe for threads.
    """

    def __init__(self) -> None:
        self._libraries: dict[Path | None, Library] = {}
        self._apart: dict[str, tuple[Path, str]] = {}
        self._contents: dict[tuple[str, str], Any] = {}
        self._shapes: dict[tuple[str, str], tuple[ModelShape, str]] = {}
        self._allowed: set[str] = set()
        self._platforms = Recent[Hashable, Platform](_PLATFORMS)
        self._possible = Recent[Hashable, bool](_CHANGES)
        self._machines = Recent[tuple[int, int], tuple[Platform, Machine]](_PLATFORMS)

    def model(self, spec: ModelSpec, *, root: Path | None) -> ModelShape:
        """Return the shape of a model; raises what ``load_model`` raises."""
        if any(one.config is not None for one in (spec, spec.draft_model) if one is not None):
            return self._from_config(spec, root)[0]
        return _MODELS.get(_in_order(spec), lambda: load_model(spec, root=root))

    def _from_config(self, spec: ModelSpec, root: Path | None) -> tuple[ModelShape, str]:
        key = (str(root), _in_order(spec))
        if key not in self._shapes:
            allowed = spec.config in self._allowed
            shape = load_model(spec, root=root, allow_path=allowed)
            config = spec.hf_config(root=root, allow_path=allowed)
            content = [shape.name, *_stored(shape), config]
            if spec.draft_model is not None:
                content.append(self._from_config(spec.draft_model, root)[1])
            self._shapes[key] = (shape, _digest(canonical(content)))
        return self._shapes[key]

    def allow_model(self, path: str) -> None:
        """Let scenarios have the model of a file that the user named outside of any of them, and that may be
        outside their folder."""
        self._allowed.add(named_in_text(path).get("config", path))

    def name_platform(self, reference: str, path: Path) -> None:
        """Let ``reference`` mean a platform file that the user named outside of any scenario.

        It may be outside the folder of the scenarios that use it; paths in it start from its own folder.
        """
        folder = path.parent.parent if path.parent.name == "platform" else path.parent
        self._apart[reference] = folder, f"./{path.relative_to(folder).as_posix()}"

    def platform(self, document: Document, *, changed: bool = True) -> Platform:
        """Return the platform of a scenario with its equipment and, if ``changed``, its changes to profiles.

        Raises what ``load_platform`` raises.
        """
        reference, root = document.data["platform"], document.root
        root, reference = self._apart.get(reference, (root, reference))
        changes = Changes.of(document) if changed else None
        equipment = Equipment.of(document)
        written = canonical([document.data.get("equipment"), changes and changes.by_profile])

        def load() -> Platform:
            if root is None:
                return load_platform(reference, changes=changes, equipment=equipment)
            if root not in self._libraries:
                self._libraries[root] = Library(root)
            return platform_from(self._libraries[root], reference, changes=changes, equipment=equipment)

        return self._platforms.get((root, reference, written), load)

    def machine(self, platform: Platform, *, nodes: int) -> Machine:
        """Return a machine of ``nodes`` hosts of a platform; raises what ``Platform.machine`` raises."""
        # The platform is kept with its machine, so that no other object can get the same id().
        made = self._machines.get((id(platform), nodes), lambda: (platform, platform.machine(nodes=nodes)))
        return made[1]

    def opened(self, document: Document, key: str, content: type[BaseModel]) -> Document:
        """Return the document with the content of a file where the section ``strategy`` has its path.

        Raises InputError for a file that cannot be read or is not valid ``content``.
        """
        name = document.data["strategy"].get(key)
        if not isinstance(name, str):
            return document
        kept = (str(document.root), name)
        if kept not in self._contents:
            self._contents[kept] = _read_content(document.root or Path(), name, content)
        return edited(document, [Edit(("strategy", key), self._contents[kept])], in_place=True)

    def cache_key(self, data: dict[str, Any], *, root: Path | None) -> str:
        """Return a hash of everything that decides the result of a complete scenario.

        Files count by their content, or by their names if they cannot be read. The scenario's name and the
        rates of unused storage do not count.
        """
        content = {key: value for key, value in data.items() if key not in {"name", "description"}}
        platform, model = content.get("platform"), content.get("model")
        if isinstance(platform, str):
            document = Document("", data, root)
            content["platform"] = self._platforms_content(document)
            if content.get("profiles"):
                content["profiles"] = self._changes(document)
        if isinstance(model, dict) and ("config" in model or "draft_model" in model):
            content["model"] = self._models_content(model, root)
        elif isinstance(model, str):
            content["model"] = canonical_model(model)
        elif isinstance(model, dict) and isinstance(model.get("name"), str):
            content["model"] = {**model, "name": canonical_model(model["name"])}
        return _digest(canonical(content))

    def _platforms_content(self, document: Document) -> Any:
        try:
            platform = self.platform(document, changed=False)
        except InputError:
            return document.data["platform"]
        return [use.sha256 for use in platform.profiles]

    def _changes(self, document: Document) -> Any:
        """Return the changes to profiles that affect the result, or all of them if they are not valid."""
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
        """Return whether a machine can be made with the scenario's changes to profiles."""
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
        """Return (kind, id, sha256) of all profiles that were read."""
        uses = (use for library in self._libraries.values() for use in library.uses())
        return tuple(sorted({(use.kind, use.id, use.sha256) for use in uses}))

    def snapshot(self) -> dict[str, Any]:
        """Return everything that was read from files, for machines that do not have those files."""
        libraries = {root: library.snapshot() for root, library in self._libraries.items()}
        return {
            "libraries": libraries,
            "apart": self._apart,
            "contents": self._contents,
            "shapes": self._shapes,
        }

    @classmethod
    def restored(cls, snapshot: dict[str, Any]) -> ScenarioCache:
        """Make a cache from the snapshot of another one."""
        cache = cls()
        cache._libraries = {
            root: Library.restored(library, root) for root, library in snapshot["libraries"].items()
        }
        cache._apart = dict(snapshot["apart"])
        cache._contents, cache._shapes = dict(snapshot["contents"]), dict(snapshot["shapes"])
        return cache


def _stored(shape: ModelShape) -> Iterator[Any]:
    """Yield the form of every tensor of a model whose weights are quantized."""
    if shape.quantization is not None:
        parts = ((shape.modules_before,), *(group.layers for group in shape.groups), (shape.modules_after,))
        for layers in parts:
            tensors = (one.storage for layer in layers for module in layer for one in module.parameters)
            yield [one and [one.format.name, one.bytes] for one in tensors]


def _in_order(spec: ModelSpec) -> str:
    """Write a model as JSON, with its keys in the order in which its name lists those that are changed."""
    return json.dumps(spec.model_dump())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read_content(root: Path, name: str, content: type[BaseModel]) -> Any:
    path = root / name
    if not resolved(path).is_relative_to(resolved(root)):
        raise InputError.at("", f"{quoted(name)} is outside the folder of the scenario")
    read = read_document(path)
    validate(read, content)
    return read.data


def _cache_key_changes(data: Mapping[str, Any], platform: Platform) -> Any:
    """Return the section ``profiles`` of a complete scenario without the rates of unused storage.

    Its capacity stays, because advice names the smallest tier that would suffice.
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
    """Return the tiers that the scenario names; None if it leaves any of them open."""
    strategy, known = data.get("strategy"), strategy_in(data)
    paths = {} if known is None else tier_paths(known)
    keys = [key for key in paths if "." not in key]
    if not keys or any(section in data for section in _SECTIONS):
        return None
    assert isinstance(strategy, Mapping)
    named = [strategy.get(key) for key in keys]
    sections = {key.partition(".")[0] for key in paths if "." in key}
    if not all(named) or any(section in strategy for section in sections):
        return None
    return {name for name in named if isinstance(name, str)}


def _left_aside(platform: Platform, used: set[str]) -> set[str]:
    """Return the names of storage profiles of which no tier is used."""
    targets = platform.targets
    aside = {target.id for name, target in targets.items() if name not in used}
    if any(target.drive for name, target in targets.items() if name in used):
        # One drive's tier may be built from another's.
        aside -= {target.id for target in targets.values() if target.drive}
    aside -= {target.id for name, target in targets.items() if name in used}
    kinds = {one: [use.kind for use in platform.profiles if use.id == one] for one in aside}
    return {
        name
        for one, (kind, *others) in kinds.items()
        if kind in STORAGE_KINDS and not others
        for name in (one, f"{kind}/{one}")
    }
