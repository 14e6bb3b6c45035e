"""The content of a scenario file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from simoffload.documents import (
    Document,
    Edit,
    Frozen,
    Location,
    edited,
    either,
    key_path,
    parse_path,
    rename_keys,
    set_value,
)
from simoffload.documents import split_assignment as split
from simoffload.errors import InputError, Problem
from simoffload.hardware import KINDS, Parts, Platform
from simoffload.limits import DEFAULT_MEMORY, LEAST_MEMORY, Limits
from simoffload.models import ModelSpec, named_in_text
from simoffload.scenario.cache import ScenarioCache
from simoffload.scenario.streams import StreamOptions
from simoffload.strategies import AnyStrategy, in_new_form, strategy_in, usual_kind
from simoffload.units import PositiveBytes, Seconds, format_bytes
from simoffload.workload import Dataset, TrainingCheckpoints, Workload

RENAMED = {
    "engine.fold": "engine.rank_symmetry",
    "engine.jump": "engine.steady_state",
    "engine.tokens": "engine.decode_extrapolation",
}
"""Keys of scenarios that were renamed: old path, new path. The old ones are accepted for one release."""


def renamed(document: Document, problems: list[Problem]) -> Document:
    """Return the document with renamed keys, and a section ``strategy`` of an old kind, in their present
    form, and a warning for each.

    If the old and the new name of a key are given, this is added to ``problems``.
    """
    document = rename_keys(document, RENAMED, problems)
    section = document.data.get("strategy")
    if not isinstance(section, dict):
        return document
    new, text = in_new_form(section)
    if new is section:
        return document
    key = "kind" if new["kind"] != section["kind"] else "compiled"
    warnings = [document.problem(("strategy", key), old_form(text))] if text else []
    keys = {("strategy", "compiled"): "enforce_eager", ("strategy", "data_parallel_size"): "ranks"}
    marks = {
        (("strategy", keys[place]) if place in keys and place[1] not in new else place): mark
        for place, mark in document.marks.items()
    }
    document = edited(document, [Edit(("strategy",), dict(new))], in_place=True)
    return replace(document, marks=marks, warnings=(*document.warnings, *warnings))


def old_form(text: str) -> str:
    """Return the warning about an old kind of strategy, of which ``text`` says what to write."""
    return f"{text}, because 0.2.0 refuses the old name"


Shortcut = Literal["on", "off", "verify"]
"""``verify`` simulates with and without the shortcut; any difference is an error."""


def _enough(memory: int) -> int:
    if memory < LEAST_MEMORY:
        least = format_bytes(LEAST_MEMORY, binary=True)
        raise PydanticCustomError("greater_than_equal", "at least {ge}", {"ge": least})
    return memory


class EngineOptions(Frozen):
    """Options of the simulator that do not change what is simulated."""

    rank_symmetry: Shortcut = "on"
    """Identical ranks are simulated as one."""
    steady_state: Shortcut = "on"
    """Repeated periods of a steady state are counted instead of simulated."""
    decode_extrapolation: Shortcut = "on"
    """A few decode steps are simulated; the others are extrapolated as far as the result is certain."""
    max_events: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Largest number of operations in a pass, summed over all ranks and including counted ones; a larger pass
    is refused."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    """Time limit for reading, planning, simulating and reporting a scenario, after which it stops with an
    error; on the command line it includes importing libraries."""
    memory: Annotated[PositiveBytes, AfterValidator(_enough)] = DEFAULT_MEMORY
    """Limit of the memory that simoffload itself uses for this, at least 256 MiB, beyond which it stops with
    an error; on the command line it includes the complete process."""

    @property
    def limits(self) -> Limits:
        """The limits of time, memory and operations among the options."""
        return Limits(self.timeout, self.memory, self.max_events)


def _of_profiles() -> dict[str, str]:
    """Return what to write instead of each key that only profiles of devices have."""
    devices = {kind: one.model_fields.keys() for kind, one in KINDS.items() if kind not in _NO_DEVICES}
    return {
        key: f"it is one of a profile; write profiles.ID.{key}, with the id of the {either(having)}"
        for key in {key for keys in devices.values() for key in keys}
        - {"name", "kind", "id", "notes", *Parts.model_fields}
        if (having := [kind for kind, keys in devices.items() if key in keys])
    }


_NO_DEVICES = frozenset({"platform", "costs", "unmeasured"})


class Scenario(Frozen):
    """The content of a scenario file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the scenario in reports."""
    description: Annotated[str, Field(max_length=4000)] = ""
    """What the scenario represents, and which of its values are assumptions."""
    model: ModelSpec
    """The model: a name, a `config.json` or its sizes."""
    platform: Annotated[str, Field(min_length=1)]
    """Id of a shipped platform, or path of a platform file relative to the scenario."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=8192)] = 1
    """Number of identical hosts of that platform."""
    equipment: Parts = Parts()
    """Devices that are added to the platform or replace its own."""
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Values that replace those of the platform's profiles, by ``id`` or ``kind/id``."""
    workload: Workload
    """The work: inference, training or checkpoints."""
    strategy: AnyStrategy
    """The offload strategy and its settings."""
    checkpoint: TrainingCheckpoints | None = None
    """Checkpoints that the training run saves."""
    dataset: Dataset | None = None
    """Training data that the run reads from storage."""
    stream: StreamOptions | None = None
    """Requests that arrive one after the other, for ``simoffload stream``; other commands ignore it."""
    engine: EngineOptions = EngineOptions()
    """Shortcuts and limits of the simulator."""

    elsewhere: ClassVar = _of_profiles()


# -- overrides, ``a.b=value`` ----------------------------------------------------------------------
# Applied to a scenario, and those of its platform where the platform has what they change.


_OF_PLATFORM = {"equipment": 3, "profiles": 2}
"""Sections that change a platform, with the number of keys that name one change: equipment.pcie.gen5."""


_PCIE = ("equipment", "pcie")


def overridden(document: Document, overrides: Sequence[str], cache: ScenarioCache) -> Document:
    """Return the document with all overrides. Raises InputError."""
    for assignment in overrides:
        within = parse_path(split(assignment)[0])[:-1]
        document = set_value(opened(document, within, cache), assignment)
    return document


def opened(document: Document, location: Location, cache: ScenarioCache) -> Document:
    """Return the document with a file's content instead of its path, if the location is inside that file, and
    with the name of a model as a mapping, if it is inside the model.

    Raises InputError.
    """
    if location[:1] == ("model",) and isinstance(document.data.get("model"), str):
        named = named_in_text(document.data["model"])
        return edited(document, [Edit(("model",), named)], in_place=True)
    strategy = document.data.get("strategy")
    if location[:1] != ("strategy",) or len(location) < 2 or not isinstance(strategy, dict):
        return document
    key = str(location[1])
    known = strategy_in(document.data, key)
    if known is None or key not in known.traits.files:
        return document
    return cache.opened(document, key, known.traits.files[key])


def usual_kind_of(workload: Any, keys: Collection[str]) -> str:
    """Return the default kind of a section ``strategy`` with some keys for a section ``workload``."""
    kind = workload.get("kind", "inference") if isinstance(workload, dict) else "inference"
    return usual_kind(str(kind), keys)


# ---- overrides of a platform -------------------------------------------------------------------


def of_platform(assignment: str) -> bool:
    """Return whether an override changes the platform, so that it is checked where a platform is chosen."""
    return _change(assignment)[0] in _OF_PLATFORM


def _change(assignment: str) -> Location:
    """Return the keys of the smallest change that is complete by itself."""
    path = parse_path(split(assignment)[0])
    return path[: _OF_PLATFORM.get(str(path[0]), 1)]


class Changed(NamedTuple):
    """A scenario's platform with the overrides that it has a place for."""

    document: Document
    platform: Platform
    left_out: dict[str, tuple[Problem, ...]]
    """The overrides that this platform has no place for, with the reasons."""


def changed_platform(document: Document, overrides: Sequence[str], cache: ScenarioCache) -> Changed:
    """Apply overrides of the platform to a scenario; those that its platform refuses are left out, together
    with others of the same device.

    Raises InputError where the platform is wrong without them.
    """
    left_out: dict[str, tuple[Problem, ...]] = {}
    while True:
        kept = [one for one in overrides if one not in left_out]
        made = overridden(document, kept, cache)
        try:
            return Changed(made, cache.platform(made), left_out)
        except InputError as error:
            blamed = {
                one: problems
                for one in kept
                if (problems := tuple(problem for problem in error.problems if _concerns(problem, one)))
            }
            if not blamed:
                raise
            left_out |= blamed


def _concerns(problem: Problem, assignment: str) -> bool:
    own = key_path(_change(assignment))
    return problem.path == "--set" and (
        f"{problem.key}.".startswith(f"{own}.") or f"{own}.".startswith(f"{problem.key}.")
    )


def with_its_slots(document: Document, cache: ScenarioCache) -> Document:
    """Return the document without the PCIe generations of ``equipment`` that its platform has no slot for."""
    while True:
        try:
            cache.platform(document, changed=False)
        except InputError as error:
            pcie = (document.data.get("equipment") or {}).get("pcie") or {}
            missing = {
                one for one in pcie if key_path((*_PCIE, one)) in [each.key for each in error.problems]
            }
            if not missing:
                raise
            kept = {one: taken for one, taken in pcie.items() if one not in missing}
            document = edited(document, [Edit(_PCIE, kept)], in_place=True)
        else:
            return document
