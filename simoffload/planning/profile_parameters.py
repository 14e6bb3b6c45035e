"""The numbers that a scenario takes from profiles, and the scenario with some of them changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from simoffload.documents import Edit
from simoffload.hardware import KINDS, STORAGE_KINDS, SWITCHES, TIER_KINDS, Machine, ProfileInput
from simoffload.results import SimulationResult

_QUANTITY = re.compile(r"([0-9.eE+-]+) *(.*)")
_DIGITS = 6
"""Significant digits of a changed number."""
_NO_TIME = (
    *("capacity", "hbm_capacity", "memory_capacity", "memory_maximum", "reserved"),  # decide what fits
    *("endurance.", "random_read", "random_write"),
    "deepspeed.ranks",  # says where the range of the measurements ends
    "host.fsdp.ranks",
    "host_factor",  # the costs contain it
    *("level", "copy_lanes"),  # say what the other numbers belong to
)
"""Numbers, or prefixes of keys, that affect no time."""
_OF_TRAINING = ("training.", "cpu_optimizer.", "host.fsdp.", "host.page_cache.", "host.checksum")
"""Prefixes of keys that affect no time of inference, those of checkpoints included."""


class ProfileParameter(NamedTuple):
    """A ProfileParameter is one number, or one curve, of a profile."""

    profile: str
    """``kind/id``, as a scenario's section ``profiles`` names it."""
    key: str
    text: str
    """Text of the number as written; a curve is "x: y, x: y"."""
    origin: str
    source: str


def profile_parameters(machine: Machine) -> Iterator[ProfileParameter]:
    """Yield every number of a machine's profiles, of its platform the rates that switches state."""
    for given in machine.inputs():
        kind = _kind(machine, given)
        if (kind != "platform" or given.key.startswith(SWITCHES)) and given.text[:1].isdigit():
            yield ProfileParameter(
                f"{kind}/{given.profile}", given.key, given.text, given.origin, given.source
            )


def _kind(machine: Machine, given: ProfileInput) -> str:
    """Return which of several profiles with one id has such a key."""
    kinds = [use.kind for use in machine.profiles if use.id == given.profile]
    first = re.split(r"[.\[]", given.key)[0]
    return next((kind for kind in kinds if first in KINDS[kind].model_fields), "platform")


def deciding_parameters(machine: Machine, result: SimulationResult) -> tuple[ProfileParameter, ...]:
    """Return the numbers on which the times of a result may depend: no capacities, no storage and adapters
    that it does not use, of inference nothing that only training uses."""
    left_out = _NO_TIME + (_OF_TRAINING if result.kind == "inference" else ())
    tiers = [machine.targets[use.tier] for use in result.capacity if use.tier in machine.targets]
    used = {part.id for target in tiers for part in (target, target.drive, target.array) if part}
    network = machine.nodes > 1 or any(not TIER_KINDS[target.kind].local for target in tiers)

    def decides(number: ProfileParameter) -> bool:
        kind, _, name = number.profile.partition("/")
        there = name in used if kind in STORAGE_KINDS else network or kind != "nic"
        return there and not number.key.startswith(left_out)

    return tuple(filter(decides, profile_parameters(machine)))


def scaled(number: ProfileParameter, factor: float) -> tuple[Any, float] | None:
    """Return a number times ``factor`` as the section ``profiles`` takes it, and the ratio by which it then
    really differs.

    A whole number changes by one, a share ends at 1, and of a curve every rate changes. None where it cannot
    change in that direction.
    """
    if ": " in number.text:
        points = [point.split(": ") for point in number.text.split(", ")]
        return {"points": [[_plain(x), _plain(_times(y, factor))] for x, y in points]}, factor
    if number.text.isdecimal():
        count = int(number.text)
        other = count + (1 if factor > 1 else -1)
        return (other, other / count) if count and other else None
    text = _times(number.text, factor)
    old, new = _value(number.text), _value(text)
    return (_plain(text), new / old) if new != old else None


def _times(text: str, factor: float) -> str:
    """Multiply a quantity; a share stays at most 1, and a multiple at least 1."""
    match = _QUANTITY.fullmatch(text)
    assert match is not None, text
    old, unit = float(match[1]), match[2]
    new = old * factor
    if not unit:
        new = min(1.0, new) if old <= 1 else max(1.0, new)
    return f"{new:.{_DIGITS}g} {unit}".rstrip()


def _value(text: str) -> float:
    return float(text.partition(" ")[0])


def _plain(text: str) -> str | float:
    """Return a value as a scenario file holds it: text where there is a unit, and counts as whole numbers."""
    return text if " " in text else int(text) if text.isdecimal() else float(text)


def edit_of(profile: str, key: str, value: Any) -> Edit:
    """Return the edit that sets a number of a profile in a scenario's section ``profiles``."""
    return Edit(("profiles", profile, *key.split(".")), value)
