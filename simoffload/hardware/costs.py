"""Prices and electrical power of devices, kept apart from their performance.

Prices differ from month to month and from buyer to buyer. They are therefore not part of the profiles of
devices: a list names devices by ``kind/id``, and another list may override it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from simoffload.documents import Frozen, quoted
from simoffload.hardware.profiles import Profile
from simoffload.hardware.quantities import Share, Sourced, Text
from simoffload.units import PositiveBytes, Watts

DeviceKind = Literal["platform", "host", "accelerator", "nic", "drive", "nfs", "pfs", "nvmeof", "remote"]
DEVICES: tuple[DeviceKind, ...] = get_args(DeviceKind)
"""Kinds of profiles that have costs; a RAID costs what its drives cost."""

PriceOrigin = Literal["spec", "measured", "quote", "estimate"]
"""``spec``: the manufacturer's list; ``measured``: a statistic of many offers; ``quote``: what a named source
asked or stated on that day; ``estimate``: everything else, such as guesses and prices of similar things."""
RentKind = Literal["on-demand", "spot"]
"""``on-demand``: kept as long as it is paid; ``spot``: may be taken away at any time."""
_DETAILED = "{value: 6900, source: offer 4711, date: 2026-11-21}"
_SECTIONS = ("electricity", "pue", "lifetime", "utilization", "memory", "flash_per_tb", "devices")


def _not_bare(value: Any) -> Any:
    """Refuse a bare value; a list with a date has completed them before."""
    if isinstance(value, int | float | str):
        raise ValueError(f'a bare value needs the list\'s "date" at the top; or write {_DETAILED}')
    return value


_Bare = BeforeValidator(_not_bare)
_Amount = Annotated[float, Field(strict=True, ge=0, le=1e12, allow_inf_nan=False)]
_Factor = Annotated[float, Field(strict=True, ge=1, le=10, allow_inf_nan=False)]
_Years = Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]
T = TypeVar("T")


class Priced(Sourced[T]):
    """A number of a price list, by default a ``quote``: it has a source and a date."""

    origin: PriceOrigin  # type: ignore[assignment]  # prices have one origin more than properties


class Dated(Priced[T]):
    """A number of a price list that changes with time: its newest value, and those before."""

    earlier: tuple[Priced[T], ...] = ()
    """Values before this one, the newest first, each with its own date."""

    @model_validator(mode="after")
    def _newest_first(self) -> Dated[T]:
        for newer, older in pairwise((self, *self.earlier)):
            if older.date >= newer.date:
                raise ValueError(f'"earlier" has {older.date} after {newer.date}: give the newest date first')
        return self

    def on(self, day: datetime.date) -> Priced[T]:
        """Return the newest value that is not later than ``day``; the oldest, if all are later."""
        values = (self, *self.earlier)
        return next((one for one in values if one.date <= day), values[-1])


class Rental(Dated[_Amount]):
    """A rent per hour, electricity included."""

    kind: RentKind = "on-demand"
    """Kind of the offer; costs are calculated from ``on-demand`` alone."""


Money = Annotated[Dated[_Amount], _Bare]
"""An amount in the currency of the list."""
Rent = Annotated[Rental, _Bare]
"""A rent per hour in the currency of the list."""
Draw = Annotated[Priced[Annotated[Watts, Field(ge=0)]], _Bare]  # [W]


class Power(Frozen):
    """Electrical power of a device; between idle and active it is proportional to how busy the device is.

    P = idle + (active - idle) x busy (drdobbs.com 215800830).
    """

    idle: Draw
    """Power when the device is switched on and idle."""
    active: Draw
    """Power when the device is busy all the time."""

    @model_validator(mode="after")
    def _in_order(self) -> Power:
        if self.active.value < self.idle.value:
            raise ValueError("active is below idle")
        return self

    def at(self, busy: float) -> float:
        """Return the power [W] of a device that is busy for this fraction of the time."""
        return self.idle.value + (self.active.value - self.idle.value) * min(1.0, busy)


class DeviceCosts(Frozen):
    """Price, rent and power of one device, server, appliance or whole machine."""

    price: Money | None = None
    """Purchase price of one. The price of a platform covers a host with GPUs, memory, adapters and drives as
    in its file."""
    rent: Rent | None = None
    """Rent of one per hour, electricity included; ``kind: spot`` marks one that may end at any time."""
    power: Power | None = None
    """Electrical power of one device."""
    sold: bool | None = None
    """False for parts of machines that can only be rented: neither they nor replacements for them are
    proposed."""


class MemoryCosts(Frozen):
    """Price and electrical power of host memory."""

    price_per_gb: Money | None = None
    """Price per GB as memory modules are sold, which is 2^30 bytes."""
    module: Annotated[Priced[PositiveBytes], _Bare] | None = None
    """Size of the module whose power is given: one sold as 64 GB holds 64 GiB."""
    power: Power | None = None
    """Electrical power of one module."""


class Costs(Profile):
    """A list of prices and powers, or the changes that one list makes to another.

    Bare numbers (and bare powers such as ``350 W``) take ``origin``, ``source`` and ``date`` of the list.
    """

    kind: Literal["costs"]
    currency: Annotated[str, Field(pattern=r"^[A-Za-z]{2,10}$")] | None = None
    """Currency such as EUR, printed next to amounts; nothing is converted."""
    date: datetime.date | None = None
    """Date on which the bare numbers of the list were looked up."""
    source: Text | None = None
    """Source of the bare numbers; by default the name of the list."""
    origin: PriceOrigin = "quote"
    """Origin of the numbers that state none."""
    electricity: Money | None = None
    """Price of electricity per kWh."""
    pue: Annotated[Priced[_Factor], _Bare] | None = None
    """Power usage effectiveness: power of the site divided by the power of its computers. Machines on a desk
    have 1, unless a list of your own states this key."""
    lifetime: Annotated[Priced[_Years], _Bare] | None = None
    """Years over which a purchase is depreciated, in equal parts."""
    utilization: Annotated[Priced[Share], _Bare] | None = None
    """Fraction of those years in which the machine runs this workload."""
    memory: MemoryCosts = MemoryCosts()
    """Costs of host memory, whose size is the platform's."""
    flash_per_tb: Money | None = None
    """Price per 10^12 bytes of drives that have no price of their own."""
    devices: dict[str, DeviceCosts] = Field(default_factory=dict)
    """Costs of devices, by ``kind/id`` of their profiles."""

    def amounts(self) -> Iterator[tuple[tuple[str, ...], Dated[float]]]:
        """Yield the keys and the value of every amount of money in the list."""
        found: list[tuple[tuple[str, ...], Dated[float] | None]] = [
            (("electricity",), self.electricity),
            (("flash_per_tb",), self.flash_per_tb),
            (("memory", "price_per_gb"), self.memory.price_per_gb),
        ]
        for name, device in self.devices.items():
            found += [(("devices", name, "price"), device.price), (("devices", name, "rent"), device.rent)]
        return ((keys, one) for keys, one in found if one is not None)

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
        if not isinstance(raw, Mapping):
            return raw
        defaults = {"origin": raw.get("origin", "quote")}
        if "date" in raw:
            source = raw.get("source", raw.get("name", "the list of costs"))
            defaults |= {"source": source, "date": raw["date"]}
        return {key: _filled(node, defaults) if key in _SECTIONS else node for key, node in raw.items()}


def _filled(node: Any, defaults: Mapping[str, Any]) -> Any:
    """Return the same tree with origin, source and date added to every number that lacks them."""
    if isinstance(node, Mapping):
        if "value" in node:
            before = {key: text for key, text in defaults.items() if key != "date"}
            given = node.get("earlier", ())
            earlier = {"earlier": [_filled(one, before) for one in given]} if isinstance(given, list) else {}
            return {**defaults, **node, **earlier}
        return {key: _filled(child, defaults) for key, child in node.items()}
    if "date" in defaults and isinstance(node, int | float | str) and not isinstance(node, bool):
        return {"value": node, **defaults}
    return node
