"""Drives to buy: what a machine has slots for, more drives in a tier, and faster ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from simoffload.documents import Edit
from simoffload.hardware import (
    Drive,
    Pcie,
    PcieLink,
    Platform,
    Profile,
    Raid,
    Target,
    list_profiles,
    load_profile,
)
from simoffload.planning.costs import CostList
from simoffload.results import Change
from simoffload.units import format_rate, plural

P = TypeVar("P", bound=Profile)

_FASTER_DRIVES = 2
"""Kinds of faster drives to try: our choice."""
_FORMS = {"m2": "M.2", "u2": "U.2", "e1s": "E1.S", "e3s": "E3.S"}
"""Names of the forms of drives."""


class DriveSlots(NamedTuple):
    """DriveSlots are the places for drives in one host; bought drives may replace those that are there."""

    owner: str
    """Host profile that has the slots, as kind/id."""
    by_form: Mapping[str, int] | None
    """Number of slots by the form of drive that they take; None: as many as needed."""
    assumed: bool
    """Whether the host's profile does not state its slots."""

    @classmethod
    def of(cls, platform: Platform) -> DriveSlots:
        """Return the slots that the host's profile states.

        Where it states none, a machine on a desk is taken to have those that its drives occupy, one in a rack
        to have as many as needed.
        """
        host = platform.host
        if host.drive_slots is not None:
            stated: dict[str, int] = {form: number.value for form, number in host.drive_slots.items()}
            return cls(f"host/{host.id}", stated, assumed=False)
        if platform.profile.setting != "desk":
            return cls(f"host/{host.id}", None, assumed=True)
        occupied = Counter[str]()
        for target in platform.targets.values():
            if target.drive is not None and target.drives:
                form = target.drive.form_factor or ""
                occupied[form] = max(occupied[form], target.drives)
        return cls(f"host/{host.id}", occupied, assumed=True)

    def take(self, drive: Drive, number: int) -> bool:
        """Return whether a number of drives can be attached; those of an unknown form to any slots."""
        if self.by_form is None:
            return True
        form = drive.form_factor
        return number <= (sum(self.by_form.values()) if form is None else self.by_form.get(form, 0))

    @property
    def text(self) -> str:
        """Return the slots in words, such as "has 8 U.2 slots"."""
        if self.by_form is None:
            return "has as many slots as needed"
        named = (
            plural(number, f"{_FORMS.get(form, 'drive')} slot")
            for form, number in self.by_form.items()
            if number
        )
        return f"has {' and '.join(named) or 'no slot for drives'}"


def takes_drives(platform: Platform, costs: CostList) -> bool:
    """Return whether drives can be added: not to a machine that is only rented, whose own drives nobody
    sells."""
    own = (target.drive for target in platform.targets.values())
    return all(costs.sold(f"drive/{drive.id}") for drive in own if drive is not None)


def drives(platform: Platform, tier: str, costs: CostList) -> Iterator[Change]:
    """Yield one more drive, twice as many, and faster ones."""
    target, where = platform.targets[tier], platform.profile.tiers[tier].at
    if target.drive is None or where is None or not takes_drives(platform, costs):
        return
    array, slots = target.array or _striped(target.drive.id), DriveSlots.of(platform)
    if array is not None:
        yield from _more(tier, target, where, array, slots)
    known = [one for one in shipped("drive", Drive) if costs.sold(f"drive/{one.id}")]
    attachable = [one for one in known if slots.take(one, target.drives)]
    yield from _faster(platform, tier, target, where, attachable)


def _more(
    tier: str, target: Target, where: tuple[str, ...], array: Raid, slots: DriveSlots
) -> Iterator[Change]:
    assert target.drive is not None
    for number in (target.drives + 1, 2 * target.drives):
        barred = "" if slots.take(target.drive, number) else f"{slots.owner} {slots.text}"
        description = f"{number} drives in {tier} instead of {target.drives}"
        count = Edit(("profiles", f"raid/{array.id}", "count"), number)
        changed = (count,) if target.array else _array(tier, array, where, number)
        yield Change("hardware", description, changed, barred=barred, key=f"{tier}-{number}-drives")


def _faster(
    platform: Platform, tier: str, target: Target, where: tuple[str, ...], known: Sequence[Drive]
) -> Iterator[Change]:
    """Yield as many faster drives, those first that are fastest in the slots of this machine."""
    assert target.drive is not None
    slots = [platform.slots[vertex] for vertex in where]
    rates, found = {one.id: _rate(one, _own_side(one), slots) for one in known}, 0
    rate = _rate(target.drive, target.pcie_link, slots)
    faster = (one for one in known if rates[one.id] > rate)
    for drive in sorted(faster, key=lambda one: (-rates[one.id], one.id)):
        joined = _striped(drive.id, like=target.array) if target.array else None
        if found == _FASTER_DRIVES or (target.array and joined is None):
            continue
        found += 1
        rate_text = format_rate(drive.read.value)
        if rates[drive.id] < drive.read.value:
            rate_text = f"slot: {format_rate(rates[drive.id])}"
        description = f"{target.drives} x {drive.name} ({rate_text}) in {tier}"
        changed = (
            _array(tier, joined, where, target.drives)
            if joined is not None
            else (Edit(("equipment", "tiers", tier), {"profile": drive.id, "at": list(where)}),)
        )
        yield Change("hardware", description, changed, key=f"{tier}-{drive.id}")


def _rate(drive: Drive, pcie_link: PcieLink | None, slots: Sequence[Pcie | None]) -> int:
    """Return the rate [B/s] at which a drive reads in the slowest of some slots."""
    assert pcie_link is not None
    return min(drive.read.value, *(pcie_link.within(slot).payload_rate for slot in slots))


def _own_side(drive: Drive) -> PcieLink:
    """Return the PCIe connector of a shipped drive."""
    pcie = load_profile("pcie", drive.pcie.profile)
    assert isinstance(pcie, Pcie)
    return PcieLink(pcie, drive.pcie.lanes.value)


def shipped(kind: str, model: type[P]) -> Iterator[P]:
    """Yield all shipped profiles of a kind. Raises AssertionError for one of another class."""
    for one in list_profiles(kind):
        profile = load_profile(kind, one.id)
        assert isinstance(profile, model)
        yield profile


def _striped(drive: str, *, like: Raid | None = None) -> Raid | None:
    """Return a shipped array of a drive with the RAID level of another array, or RAID0; None if there is
    none."""
    level = like.level if like is not None else 0
    return next((one for one in shipped("raid", Raid) if (one.drive, one.level) == (drive, level)), None)


def _array(tier: str, array: Raid, where: tuple[str, ...], number: int) -> tuple[Edit, ...]:
    return (
        Edit(("equipment", "tiers", tier), {"profile": array.id, "at": list(where)}),
        Edit(("profiles", f"raid/{array.id}", "count"), number),
    )
