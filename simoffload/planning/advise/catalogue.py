"""Purchasable storage, drives and memory, and the batch sizes worth running with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError, PlacementError
from simoffload.hardware import (
    LEAST_DRIVES,
    Drive,
    Machine,
    Nic,
    Platform,
    Raid,
    Tier,
    TierKind,
    list_profiles,
    load_profile,
)
from simoffload.planning.advise.options import (
    DriveSlots,
    array_edits,
    batches_of,
    more_memory,
    profile_of,
    shipped,
    takes_drives,
)
from simoffload.planning.alternatives import (
    OtherProgram,
    other_programs,
    placement_words,
    resident,
    with_formats,
)
from simoffload.planning.costs import CostList
from simoffload.planning.evaluator import Evaluator
from simoffload.results import Change
from simoffload.scenario import LoadedScenario
from simoffload.strategies.tunables import Placement, moving

_DRIVES = (2, 4, 8, 16)
_MEMORY = (2, 4)
_BATCH = (1, 2, 4, 8, 16)
_SYSTEMS = (1, 2)
_KIND = "hardware"
_TIER = "bought"
"""Name of the tier that a choice adds to the platform."""


_UNCHANGED = Change(_KIND, "")


class Family(NamedTuple):
    """A Family holds the purchases with which the work is done in one way on one platform.

    Of each sequence of choices one is made. More storage and memory take no more time, and a larger batch
    takes no less.
    """

    platform: Change
    """Change to the platform; without edits for the scenario's own."""
    storage: tuple[Change, ...]
    """Storage of one kind with its placement, the least first; an empty description keeps what is there."""
    memory: tuple[Change, ...]
    """Sizes of host memory, the least first."""
    batches: tuple[tuple[int, Change], ...]
    """Sizes of the batch as multiples of the scenario's, which is the first."""
    program: OtherProgram | None = None
    """Another program that does the work on the machine that is bought; None keeps the program."""

    @property
    def name(self) -> str:
        """Name for who waits: that of its largest storage."""
        return self.storage[-1].description or "storage unchanged"

    @property
    def size(self) -> int:
        """Number of combinations of one choice of each kind."""
        return len(self.storage) * len(self.memory) * len(self.batches)


def families(evaluator: Evaluator, name: str | None, costs: CostList) -> Iterator[Family]:
    """Yield what can be chosen for the work of a scenario on a platform; None means its own platform.

    Raises InputError for an unknown platform.
    """
    scenario = evaluator.scenario
    there = () if name is None else (Edit.at("platform", name),)
    platform = scenario.platform(*there)
    gpus = () if name is None else _all_gpus(scenario, len(platform.profile.gpus))
    placed = Change(_KIND, platform.profile.name if name else "", (*there, *gpus))
    memory = (_UNCHANGED, *more_memory(platform.host, *_MEMORY))
    batches = tuple(batches_of(evaluator, *_BATCH)) or ((1, _UNCHANGED),)
    offers = tuple(_storage(scenario, platform, costs, own=name is None))
    for series in offers:
        of_formats = zip(*(with_formats(evaluator, one) for one in series), strict=True)
        yield from (Family(placed, stored, memory, batches) for stored in of_formats)
    # The scenario's own program, which others replace, may be on a tier that another platform lacks.
    for one in (_UNCHANGED, *(series[0] for series in offers)):
        with suppress(InputError):
            found = tuple(other_programs(evaluator.changed_by(*joined_edits((placed, one)))))
            kept = (one._replace(description=""),)
            yield from (Family(placed, kept, memory, batches, other) for other in found)
            return


def limits_of(scenario: LoadedScenario, name: str | None, costs: CostList) -> tuple[str, ...]:
    """Return sentences on what a platform cannot take, and on what is assumed of it."""
    if not scenario.placements.storage:
        return ()
    platform = scenario.platform(*(() if name is None else (Edit.at("platform", name),)))
    here, setting, slots = platform.profile.id, platform.profile.setting, DriveSlots.of(platform)
    found = []
    if setting is None:
        found.append(f"{here} does not state its setting (desk or rack): a rack is assumed")
    if takes_drives(platform, costs):
        if slots.assumed:
            found.append(f"{slots.owner} does not state its drive_slots: assumed that it {slots.text}")
        sold = (profile_of("drive", one.drive, Drive) for one in _arrays(costs))
        if not all(slots.take(drive, number) for drive in sold for number in _DRIVES):
            found.append(f"arrays that cannot be attached are left out: {here} {slots.text}")
    if setting == "desk":
        found.append(f"servers and filesystems are left out: {here} stands on a desk, without a rack")
    return tuple(found)


def joined_edits(changes: Iterable[Change]) -> tuple[Edit, ...]:
    """Return the edits of one choice in each dimension.

    Those of a choice that replaces a whole section come last: what the others set in it belongs to the
    section that is replaced.
    """

    def replaces(change: Change) -> bool:
        return any(len(edit.path) == 1 and isinstance(edit.value, dict) for edit in change.edits)

    return tuple(edit for change in sorted(changes, key=replaces) for edit in change.edits)


def _all_gpus(scenario: LoadedScenario, gpus: int) -> tuple[Edit, ...]:
    """Return the edits that use all GPUs of one machine of another platform."""
    nodes = (Edit.at("nodes", 1),) if scenario.scenario.nodes > 1 else ()
    return *scenario.scenario.strategy.sizes().gpus(gpus), *nodes


Series = tuple[Change, ...]
"""Choices of one kind, the least first."""


def _storage(scenario: LoadedScenario, platform: Platform, costs: CostList, *, own: bool) -> Iterator[Series]:
    """Yield the present storage, every tier of the platform, arrays of any number of drives, and shared
    storage."""
    if not scenario.placements.storage:
        yield (_UNCHANGED,)
        return
    if own:
        yield (Change(_KIND, "storage unchanged"),)
    ranks = scenario.scenario.strategy.ranks if own else len(platform.profile.gpus)
    machine = platform.machine()
    for tier in ("hbm", "dram", *platform.targets):
        description = placement_words(scenario, Placement(tier), ranks=ranks)
        with suppress(PlacementError):  # not a place of the strategy's
            yield (Change(_KIND, description, _placement_edits(scenario, tier, machine)),)
    for copies in resident(scenario):
        gpus = () if own else (Edit.at("strategy.ranks", ranks),)
        yield (Change(_KIND, copies.description, (*copies.edits, *gpus)),)
    yield from filter(None, (*_own_arrays(scenario, platform, costs), *_shared(scenario, platform)))


def _own_arrays(scenario: LoadedScenario, platform: Platform, costs: CostList) -> Iterator[Series]:
    """Yield for each array that is sold its numbers of drives."""
    machine, where, slots = platform.machine(), _places_of_drives(platform), DriveSlots.of(platform)
    for array in _arrays(costs) if takes_drives(platform, costs) else ():
        placed_edits = _placement_edits(scenario, _TIER, _with_tier(machine, "nvme"))
        kind = array.name.partition("(")[2].removesuffix(")")  # the software, where the name says it
        least, drive = LEAST_DRIVES[array.level], profile_of("drive", array.drive, Drive)
        numbers = [one for one in _DRIVES if one >= least and slots.take(drive, one)]
        software = f", {kind}" if kind else ""
        yield tuple(
            Change(
                _KIND,
                f"RAID{array.level} of {number} x {array.drive}{software}",
                (*array_edits(_TIER, array, where, number), *placed_edits),
            )
            for number in numbers
        )


def _shared(scenario: LoadedScenario, platform: Platform) -> Iterator[Series]:
    """Yield servers and appliances, where there is a rack for them."""
    machine = platform.machine()
    if platform.profile.setting == "desk":
        return
    shared: tuple[TierKind, ...] = ("nfs", "pfs", "nvmeof")
    for kind in shared:
        for one in list_profiles(kind):
            through = _adapters(platform, getattr(load_profile(kind, one.id), "link", None))
            if not through:
                continue
            remote = Edit(("equipment", "tiers", _TIER), {"profile": one.id, "through": list(through)})
            placed_edits = _placement_edits(scenario, _TIER, _with_tier(machine, kind))
            count = ("profiles", f"{kind}/{one.id}", "count")
            yield tuple(
                Change(
                    _KIND,
                    f"{number} x {one.id}",
                    (remote, *([Edit(count, number)] if number > 1 else []), *placed_edits),
                )
                for number in (_SYSTEMS if kind == "pfs" else (1,))
            )


def _arrays(costs: CostList) -> Iterator[Raid]:
    """Yield the arrays whose drives are sold, one of those that differ only in the number of drives."""
    seen = set()
    for array in shipped("raid", Raid):
        key = (array.level, array.drive, array.name.partition("(")[2])
        if costs.sold(f"drive/{array.drive}") and key not in seen:
            seen.add(key)
            yield array


def _places_of_drives(platform: Platform) -> tuple[str, ...]:
    """Return where local drives are attached, by default at the CPU."""
    return max((tier.at for tier in platform.profile.tiers.values() if tier.at), key=len, default=("cpu",))


def _adapters(platform: Platform, server: str | None) -> tuple[str, ...]:
    """Return the largest set of adapters over which storage is used and that have the network of a server's
    adapter (None: of any); empty if there is none."""
    fabric = None if server is None else profile_of("nic", server, Nic).fabric
    used = (tier.through for tier in platform.profile.tiers.values() if tier.through)
    same = (names for names in used if {platform.nics[name][0].fabric for name in names} & {fabric, None})
    return max(used if fabric is None else same, key=len, default=())


def _with_tier(machine: Machine, kind: TierKind) -> Machine:
    """Return the machine with the tier that a choice adds; only its kind matters."""
    return replace(machine, tiers={**machine.tiers, _TIER: Tier(_TIER, kind, 0, _TIER)})


def _placement_edits(scenario: LoadedScenario, tier: str, machine: Machine) -> tuple[Edit, ...]:
    """Return the edits that put the weights into a tier, and in training the optimizer, too, if it is on
    storage now."""
    stored = scenario.places[1] in scenario.machine.targets
    return moving(scenario.scenario.strategy, Placement(tier, tier if stored else None), machine)
