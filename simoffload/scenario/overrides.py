"""Overrides, ``a.b=value``: applied to a scenario, and those of its platform where the platform has what they
change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simoffload.documents import Document, Edit, Location, edited, key_path, parse_path, set_value
from simoffload.documents import split_assignment as split
from simoffload.errors import InputError, Problem
from simoffload.hardware import Platform
from simoffload.scenario.cache import ScenarioCache
from simoffload.strategies import strategy_for, strategy_of

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
        named = Edit(("model",), {"name": document.data["model"]})
        return edited(document, [named], in_place=True)
    strategy = document.data.get("strategy")
    if location[:1] != ("strategy",) or len(location) < 2 or not isinstance(strategy, dict):
        return document
    known = strategy_of(strategy.get("kind", usual_kind(document.data.get("workload"))))
    key = str(location[1])
    if known is None or key not in known.traits.files:
        return document
    return cache.opened(document, key, known.traits.files[key])


def usual_kind(workload: Any) -> str:
    """Return the default kind of strategy of a workload."""
    kind = workload.get("kind") if isinstance(workload, dict) else None
    return (strategy_for(str(kind)) or strategy_for("inference"))[0]


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
