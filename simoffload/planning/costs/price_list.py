"""Lists of prices and powers: the shipped one, and the user's own that overrides it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.documents import DocumentLocation, suggest
from simoffload.hardware import (
    MEMORY,
    Costs,
    DeviceCosts,
    DeviceGroup,
    Entry,
    Library,
    Power,
    RentKind,
    Setting,
    Sourced,
)

REFERENCE = "reference"
"""Name of the shipped price list."""
_GB = float(1 << 30)
"""Bytes of memory that are sold as one GB [B]."""
_TB = 1e12
_HOURS_A_YEAR = 8766.0
_ON_A_DESK = "by definition: a desk has no site that draws power"
_OLD = 365
"""Age after which a price is reported as old [d]."""


class Figure(NamedTuple):
    """A Figure is an amount and its source."""

    value: float
    """Amount in the list's currency, or in the unit that ``what`` names."""
    what: str
    """Name of the priced thing: "accelerator/l40s", "electricity per kWh"."""
    origin: str
    source: str
    date: datetime.date


@dataclass(frozen=True)
class CostList:
    """Prices and powers by device, with the assumptions that turn them into the cost of an answer."""

    costs: Costs
    sources: tuple[tuple[str, str], ...]
    """Names and hashes (name, sha256) of the files; later files override earlier ones."""
    today: datetime.date
    remarks: tuple[str, ...] = ()
    states_pue: bool = False
    """Whether a list of the user's own states ``pue``, which then holds for machines on a desk, too."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Messages by key about devices without a shipped profile: typing errors, or the user's own."""

    @property
    def currency(self) -> str:
        """Currency that is printed next to amounts."""
        return self.costs.currency or ""

    def price(self, part: DeviceGroup) -> tuple[Figure, float] | None:
        """A price, and how many times it is paid for one device; None where the list does not know it.

        Host memory is paid by the GB, and so, by the TB, are drives without a price of their own.
        """
        named = self._device(part.key).price
        if named is not None:
            return _figure(named, part.key), 1.0
        if part.key == MEMORY:
            per_gb = self.costs.memory.price_per_gb
            return (_figure(per_gb, "memory per GB"), part.size / _GB) if per_gb else None
        if part.kind == "drive" and self.costs.flash_per_tb is not None:
            return _figure(self.costs.flash_per_tb, "flash per TB"), part.size / _TB
        return None

    def machine_price(self, platform: str) -> Figure | None:
        """Price of a complete machine as its platform file describes it."""
        named = self._device(f"platform/{platform}").price
        return _figure(named, f"platform/{platform}") if named else None

    def rent(self, key: str, kind: RentKind = "on-demand") -> Figure | None:
        """Rent of one device or machine per hour; None where the list has none of this kind."""
        named = self._device(key).rent
        return _figure(named, f"{key}, an hour") if named and named.kind == kind else None

    def pue(self, setting: Setting | None) -> Figure:
        """Power usage effectiveness of the place where a machine stands; None is taken for a rack."""
        listed = self.assumption("pue")
        if setting != "desk" or self.states_pue:
            return listed
        return listed._replace(value=1.0, origin="spec", source=_ON_A_DESK)

    def sold(self, key: str) -> bool:
        """Whether a device can be bought separately."""
        return self._device(key).sold is not False

    def power(self, part: DeviceGroup) -> tuple[Power, float] | None:
        """Return the power of one device, and how many such devices one of the part is; None where the
        list does not know it.

        Host memory counts as many modules as its size takes.
        """
        if part.key != MEMORY:
            power = self._device(part.key).power
            return (power, 1.0) if power else None
        memory = self.costs.memory
        if memory.power is None or memory.module is None:
            return None
        return memory.power, part.size / memory.module.value

    def assumption(self, key: str) -> Figure:
        """Return the value of ``electricity`` [per kWh], ``pue`` of a rack, ``lifetime`` [years] or
        ``utilization``."""
        value: Sourced[float] | None = getattr(self.costs, key)
        assert value is not None, f"the shipped list has {key}"
        return _figure(value, key)

    @property
    def hours(self) -> float:
        """Hours of work over which a purchase is written off [h]."""
        return self.assumption("lifetime").value * _HOURS_A_YEAR * self.assumption("utilization").value

    def old(self, figures: Iterable[Figure]) -> tuple[str, ...]:
        """Sentence about prices older than a year, if there are any."""
        aged = sorted({f for f in figures if (self.today - f.date).days > _OLD}, key=lambda one: one.what)
        if not aged:
            return ()
        names = ", ".join(f"{figure.what} ({figure.date})" for figure in aged)
        return (f"prices older than a year: {names}; give a newer list with --costs",)

    def _device(self, key: str) -> DeviceCosts:
        return self.costs.devices.get(key, DeviceCosts())


def _figure(value: Sourced[Any], what: str) -> Figure:
    return Figure(float(value.value), what, value.origin, value.source, value.date)


def load_costs(path: str | Path | None = None, *, today: datetime.date | None = None) -> CostList:
    """Read the shipped list, or that with a list of your own (kind: costs) on top of it.

    In another currency than the shipped one's, a list stands alone but for powers and PUE: nothing is
    converted. ``today`` decides which prices are old. Raises InputError for a file that is wrong.
    """
    now = today or _today()
    shipped = Library().find(REFERENCE, ("costs",))
    sources = ((shipped.use.path, shipped.use.sha256),)
    base = shipped.profile
    assert isinstance(base, Costs)
    if path is None:
        return CostList(base, sources, now)
    file = Path(path)
    own = Library(file.parent).read(file, ("costs",))
    mine = own.profile
    assert isinstance(mine, Costs)
    remarks: tuple[str, ...] = ()
    if mine.currency is not None and mine.currency != base.currency:
        base = _without_money(base)
        remarks = (f"prices in {mine.currency} come from {file.name} alone: nothing is converted",)
        _check_complete(own)
    merged = _merged_costs(mine, base)
    lists, states_pue = (*sources, (own.use.path, own.use.sha256)), mine.pue is not None
    return CostList(merged, lists, now, remarks, states_pue, _unknown(mine))


def _today() -> datetime.date:
    return datetime.date.today()  # noqa: DTZ011 - the user's day is meant


def _without_money(base: Costs) -> Costs:
    nothing = {"price": None, "rent": None}
    devices = {key: one.model_copy(update=nothing) for key, one in base.devices.items()}
    memory = base.memory.model_copy(update={"price_per_gb": None})
    return base.model_copy(
        update={"devices": devices, "memory": memory, "electricity": None, "flash_per_tb": None}
    )


def _check_complete(own: Entry) -> None:
    assert isinstance(own.profile, Costs)
    if own.profile.electricity is None:
        text = f"give the price of a kWh in {own.profile.currency}, too"
        raise DocumentLocation(own.document, ("currency",)).error(f"electricity is missing: {text}")


def _merged_costs(mine: Costs, base: Costs) -> Costs:
    """Return a list on top of another: each single figure that ``mine`` does not give comes from ``base``."""
    devices = {key: _overlaid(base.devices.get(key, DeviceCosts()), one) for key, one in mine.devices.items()}
    both = {"devices": base.devices | devices, "memory": _overlaid(base.memory, mine.memory)}
    merged: Costs = _overlaid(base, mine).model_copy(update=both)
    return merged


def _overlaid(below: Any, above: Any) -> Any:
    found = {name: value for name in above.model_fields_set if (value := getattr(above, name)) is not None}
    return below.model_copy(update=found)


_NOBODY = "is neither a shipped profile nor part of this machine, so that its price is not used"


def _unknown(mine: Costs) -> dict[str, str]:
    known = Library().names()
    return {
        key: f'the list of costs names "{key}", which {_NOBODY}{suggest(key, known)}'
        for key in mine.devices
        if key not in known
    }
