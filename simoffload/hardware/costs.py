"""What devices cost and draw: a list of prices and powers, apart from what they do.

Prices change from month to month and from buyer to buyer, so that they are no part of the profiles of
devices: a list names devices by ``kind/id`` and may be laid over another one.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from simoffload.documents import Frozen, quoted
from simoffload.hardware.profiles import Profile
from simoffload.hardware.quantities import Origin, Share, Sourced, Text
from simoffload.units import PositiveBytes, Watts

__all__ = ["DEVICES", "Costs", "DeviceCosts", "MemoryCosts", "Power"]

DEVICES = ("platform", "host", "accelerator", "nic", "drive", "nfs", "pfs", "nvmeof")
"""Kinds of profiles that have costs; a RAID costs what its drives do."""

_DETAILED = "{value: 6900, origin: estimate, source: a quote, date: 2026-11-21}"
_SECTIONS = ("electricity", "pue", "lifetime", "utilization", "memory", "flash_per_tb", "devices")


def _not_bare(value: Any) -> Any:
    """Bare values were filled in by the list before, if it has a date."""
    if isinstance(value, int | float | str):
        raise ValueError(f'a bare value needs the list\'s "date" at the top; or write {_DETAILED}')
    return value


_Bare = BeforeValidator(_not_bare)
_Amount = Annotated[float, Field(strict=True, ge=0, le=1e12, allow_inf_nan=False)]
_Factor = Annotated[float, Field(strict=True, ge=1, le=10, allow_inf_nan=False)]
_Years = Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]
Money = Annotated[Sourced[_Amount], _Bare]
"""In the list's currency."""
Draw = Annotated[Sourced[Annotated[Watts, Field(ge=0)]], _Bare]
"""[W]"""


class Power(Frozen):
    """What a device draws; in between in proportion to how busy it is.

    P = idle + (active - idle) x busy (drdobbs.com 215800830).
    """

    idle: Draw
    """Switched on, with nothing to do."""
    active: Draw
    """Busy all the time."""

    @model_validator(mode="after")
    def _in_order(self) -> Power:
        if self.active.value < self.idle.value:
            raise ValueError("active is below idle")
        return self

    def at(self, busy: float) -> float:
        """[W] of a device that is busy for this fraction of the time."""
        return self.idle.value + (self.active.value - self.idle.value) * min(1.0, busy)


class DeviceCosts(Frozen):
    """One device, server, appliance or whole machine."""

    price: Money | None = None
    """To buy one. That of a platform is for a host with GPUs, memory, adapters and drives as its file has
    them."""
    rent: Money | None = None
    """Per hour for one, electricity included."""
    power: Power | None = None
    """What one draws."""
    sold: bool | None = None
    """False for parts of machines that are only rented: they are not proposed, nor others in their place."""


class MemoryCosts(Frozen):
    """Host memory."""

    price_per_gb: Money | None = None
    """Per GB as memory modules are sold, which is 2^30 bytes."""
    module: Annotated[Sourced[PositiveBytes], _Bare] | None = None
    """Size of the modules whose power is given: one sold as 64 GB holds 64 GiB."""
    power: Power | None = None
    """Of one module."""


class Costs(Profile):
    """A list of prices and powers, or what a list laid over another one changes.

    Bare numbers (and bare powers such as ``350 W``) take ``origin``, ``source`` and ``date`` of the list.
    """

    kind: Literal["costs"]
    currency: Annotated[str, Field(pattern=r"^[A-Za-z]{2,10}$")] | None = None
    """A word such as EUR, printed beside amounts; nothing is converted."""
    date: datetime.date | None = None
    """When the bare numbers of the list were looked up."""
    source: Text | None = None
    """Who says so; the list's name by default."""
    origin: Origin = "estimate"
    """Of the bare numbers."""
    electricity: Money | None = None
    """Per kWh."""
    pue: Annotated[Sourced[_Factor], _Bare] | None = None
    """Power usage effectiveness: what the site draws over what its computers draw."""
    lifetime: Annotated[Sourced[_Years], _Bare] | None = None
    """Years over which a purchase is written off, in equal parts."""
    utilization: Annotated[Sourced[Share], _Bare] | None = None
    """Fraction of those years in which the machine works on what is asked for here."""
    memory: MemoryCosts = MemoryCosts()
    """Host memory, whose size is the platform's."""
    flash_per_tb: Money | None = None
    """Per 10^12 bytes of drives that have no price of their own."""
    devices: dict[str, DeviceCosts] = Field(default_factory=dict)
    """By ``kind/id`` of their profiles."""

    @field_validator("devices", mode="after")
    @classmethod
    def _named(cls, devices: dict[str, DeviceCosts]) -> dict[str, DeviceCosts]:
        for name in devices:
            kind, _, identifier = name.partition("/")
            if kind not in DEVICES or not identifier:
                raise ValueError(
                    f"{quoted(name)} must be kind/id of a profile, kind one of {', '.join(DEVICES)}"
                )
        return devices

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or "date" not in raw:
            return raw
        defaults = {
            "origin": raw.get("origin", "estimate"),
            "source": raw.get("source", raw.get("name", "the list of costs")),
            "date": raw["date"],
        }
        return {key: _filled(node, defaults) if key in _SECTIONS else node for key, node in raw.items()}


def _filled(node: Any, defaults: Mapping[str, Any]) -> Any:
    """The same tree with origin, source and date at every bare value."""
    if isinstance(node, Mapping):
        if "value" in node:
            return {**defaults, **node}
        return {key: _filled(child, defaults) for key, child in node.items()}
    if isinstance(node, int | float | str) and not isinstance(node, bool):
        return {"value": node, **defaults}
    return node
