"""The same work on several targets: tiers of its platform and of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path

from simoffload.documents import Edit, edited, quoted, resolved, same_name
from simoffload.errors import InputError, PlacementError, Problem
from simoffload.hardware import is_path
from simoffload.planning.question import chosen_once
from simoffload.scenario import (
    LoadedScenario,
    ScenarioSource,
    canonical_target,
    changed_platform,
    placement_of,
    read_source,
)
from simoffload.strategies import Placement, Plan

ALL = "all"
"""The target that stands for every placement."""


@dataclass(frozen=True, kw_only=True)
class Misplaced(LoadedScenario):
    """A scenario on a target that its strategy cannot use: it stays as it was, and planning it raises
    PlacementError."""

    target: str
    problems: tuple[Problem, ...]

    @property
    def places(self) -> tuple[str, str]:
        """Tiers of the requested placement."""
        asked = placement_of(self.target.rpartition("=")[2], self.machine)
        return asked.weights, asked.optimizer or super().places[1]

    def plan(self) -> Plan:
        """Raise PlacementError with the reasons why the target is impossible."""
        raise PlacementError(self.problems)


def one_target(target: str) -> tuple[str]:
    """Return the only target of a question that has one. Raises InputError for "all"."""
    if target.rpartition(":")[2].rpartition("=")[2] == ALL:
        text = "stands for several places; name one"
        raise InputError.at(target, text, path="--on")
    return (target,)


def on_targets(
    scenario: ScenarioSource, targets: Sequence[str], *, overrides: Sequence[str] = ()
) -> dict[str, LoadedScenario]:
    """Return the same work on every target, by target: the tier ("hbm" for "gpu"), with ``platform:`` before
    it on another platform.

    A target is what ``LoadedScenario.on`` takes: a tier of the scenario's platform, of training also
    ``weights+optimizer``, with ``part=`` before it of another part than usual. With ``platform:`` before it,
    it and those after it are on that platform, until the next one says another; ``:tier`` is on the
    scenario's own again. A part, too, is that of those after it. Where the strategy has no meaning on
    a target, only planning raises PlacementError (``Misplaced``), so that the others can be compared.
    "all" stands for every placement that the strategy has on the platform, or every tier for a part.
    ``overrides`` are assignments ``a.b=value`` in the sections ``equipment`` and ``profiles``; each holds on
    the targets whose platform has what it changes, and the others have a remark.
    Raises InputError for unknown targets and for overrides that no platform has a place for, all of them at
    once.
    """
    scenario = read_source(scenario)
    problems: list[Problem] = []
    retargeted: dict[str, LoadedScenario] = {}
    written: dict[str, str] = {}
    there = _Platforms(scenario, overrides)
    for platform, tier in _every(there, tuple(_placed(targets, scenario))):
        label = canonical_target(f"{platform}:{tier}" if platform else tier)
        if label in retargeted:
            names = f", as {written[label]} and {tier}" if written[label] != tier else ""
            problems.append(Problem("", None, None, "", f"target {quoted(label)} is given twice{names}"))
            continue
        written[label] = tier
        try:
            retargeted[label] = _retargeted(there.on(platform), tier)
        except InputError as error:
            problems += [one if one.path else one._replace(key="") for one in error.problems]
    problems += there.meaningless()
    if problems:
        raise InputError(dict.fromkeys(problems))
    return chosen_once(retargeted)


_MOST_NAMED = 3
"""Number of placements that are named instead of a refused one: our choice."""


def placements_instead(scenario: LoadedScenario, target: str) -> list[str]:
    """Return placements that can be planned where ``target`` was refused: those with its tier, which for the
    optimizer alone come first, or else any."""
    part, tier = scenario.named(target.rpartition(":")[2])
    if part not in scenario.weights_called:
        return []
    tier = placement_of(tier, scenario.machine).weights
    possible, row = scenario.placements.possible, scenario.machine.row
    known = sorted(possible, key=lambda one: (one.optimizer != tier, row(one.weights).is_gpu))
    with_tier = [one for one in known if tier in one]
    for some in (with_tier, [one for one in known if tier not in one]):
        if found := list(islice((str(one) for one in some if _can_be_planned(scenario, one)), _MOST_NAMED)):
            return found
    return []


def _can_be_planned(scenario: LoadedScenario, placement: Placement) -> bool:
    try:
        scenario.on(str(placement)).plan()
    except InputError:
        return False
    return True


def _placed(targets: Sequence[str], scenario: LoadedScenario) -> Iterator[tuple[str, str]]:
    """Yield the platform of each target, "" for the scenario's own, and the tiers, with what moves if that is
    said."""
    platform = part = ""
    for target in targets:
        before, colon, tier = target.rpartition(":")
        if colon:
            platform = "" if _is_own(before, scenario) else before
        named, equals, tier = tier.rpartition("=")
        part = f"{named}=" if equals else part
        yield platform, f"{part}{tier}"


def _every(there: _Platforms, given: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the given platforms and tiers; in place of "all", every placement that is not given itself."""
    named = {(platform, canonical_target(tier)) for platform, tier in given}
    for platform, tier in given:
        try:
            possible = _possible(there.on(platform), tier)
        except InputError:  # which is told of this platform's targets
            possible = ()
        yield from ((platform, one) for one in possible if (platform, one) not in named)
        if not possible:
            yield platform, tier


def _possible(scenario: LoadedScenario, target: str) -> tuple[str, ...]:
    """Return all targets for which "all" stands; none for any other target."""
    before, equals, tier = target.rpartition("=")
    if tier != ALL:
        return ()
    part, _ = scenario.named(target)
    if part in scenario.weights_called:
        return tuple(f"{before}{equals}{one}" for one in scenario.placements.possible)
    names = (one.name for one in scenario.machine.tiers.values() if not one.row.is_gpu)
    return tuple(f"{before}{equals}{one}" for one in names)


def _is_own(platform: str, scenario: LoadedScenario) -> bool:
    """Return whether a name or path means the scenario's platform; the scenario's own path starts from its
    folder."""
    own, root = scenario.scenario.platform, scenario.document.root or Path()
    if is_path(platform) and is_path(own):
        return resolved(platform) == resolved(root / own)
    return same_name(platform, own)


def _from_root(platform: str, scenario: LoadedScenario) -> str:
    """Return a path as the scenario's file would write it; a path outside of its folder stays absolute."""
    if not is_path(platform):
        return platform
    root, path = resolved(scenario.document.root or Path()), resolved(platform)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


class _Platforms:
    """A scenario on each of several platforms, with the overrides that the platform has a place for."""

    def __init__(self, scenario: LoadedScenario, overrides: Sequence[str]) -> None:
        self._scenario, self._overrides = scenario, overrides
        self._made: dict[str, LoadedScenario] = {}
        self._left_out: dict[str, dict[str, tuple[Problem, ...]]] = {}

    def on(self, platform: str) -> LoadedScenario:
        """Return the scenario on a platform; "" means its own. Raises InputError."""
        if platform not in self._made:
            self._made[platform] = self._changed(platform)
        return self._made[platform]

    def _changed(self, platform: str) -> LoadedScenario:
        scenario, document, cache = self._scenario, self._scenario.document, self._scenario.cache
        if platform:
            reference = _from_root(platform, scenario)
            if is_path(platform):
                cache.name_platform(reference, Path(platform))
            edits = Edit.at("platform", reference), Edit.at("name", f"{scenario.name} on {platform}")
            document = edited(document, edits, in_place=True)
        elif not self._overrides:
            return scenario
        changed = changed_platform(document, self._overrides, cache)
        machine = cache.machine(changed.platform, nodes=scenario.scenario.nodes)
        self._left_out[machine.platform] = changed.left_out
        left_out = (
            f"{assignment} is left out on {machine.platform}: {problems[0].message}"
            for assignment, problems in changed.left_out.items()
        )
        remarks = (*scenario.remarks, *left_out)
        return replace(scenario, document=changed.document, machine=machine, remarks=remarks)

    def meaningless(self) -> Iterator[Problem]:
        """Yield the problems of the overrides that were left out on every platform."""
        several = len(self._left_out) > 1
        for assignment in self._overrides if self._left_out else ():
            if all(assignment in one for one in self._left_out.values()):
                for platform, one in self._left_out.items():
                    before = f"on {platform}: " if several else ""
                    yield from (each._replace(message=f"{before}{each.message}") for each in one[assignment])


def _retargeted(there: LoadedScenario, tier: str) -> LoadedScenario:
    """Return the scenario on a tier of its platform."""
    try:
        return there.on(tier)
    except PlacementError as error:
        kept = {one.name: getattr(there, one.name) for one in fields(there)}
        return Misplaced(**kept, target=tier, problems=error.problems)
