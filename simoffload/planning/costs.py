"""Hardware to buy and its power: lists of prices, and the bill of an answer."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.brief import brief
from simoffload.documents import DocumentLocation, resolved, suggest, without
from simoffload.hardware import (
    MEMORY,
    STORAGE_KINDS,
    TIER_KINDS,
    Costs,
    Dated,
    DeviceCosts,
    DeviceGroup,
    Entry,
    Library,
    Machine,
    Power,
    RentKind,
    Setting,
    Sourced,
)
from simoffload.results import Group, PassResult, SimulationResult, by_name
from simoffload.scenario import LoadedScenario
from simoffload.schedule import CauseKind
from simoffload.units import format_bytes

# -- lists of prices and powers --------------------------------------------------------------------
# The shipped one, and the user's own that overrides it.


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


def dates_of(figures: Iterable[Figure]) -> str:
    """Return the first and the last date of prices: "2026-03-31 to 2026-06-04"; "" without any."""
    days = sorted(figure.date for figure in figures)
    return " to ".join(dict.fromkeys(map(str, (*days[:1], *days[-1:]))))


@dataclass(frozen=True)
class CostList:
    """Prices and powers by device, with the assumptions that turn them into the cost of an answer."""

    __repr__ = brief

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

    def price(self, group: DeviceGroup) -> tuple[Figure, float] | None:
        """A price, and how many times it is paid for one device; None where the list does not know it.

        Host memory is paid by the GB, and so, by the TB, are drives without a price of their own.
        """
        named = self._device(group.key).price
        if named is not None:
            return self._figure(named, group.key), 1.0
        if group.key == MEMORY:
            per_gb = self.costs.memory.price_per_gb
            return (self._figure(per_gb, "memory per GB"), group.size / _GB) if per_gb else None
        if group.kind == "drive" and self.costs.flash_per_tb is not None:
            return self._figure(self.costs.flash_per_tb, "flash per TB"), group.size / _TB
        return None

    def machine_price(self, platform: str) -> Figure | None:
        """Price of a complete machine as its platform file describes it."""
        named = self._device(f"platform/{platform}").price
        return self._figure(named, f"platform/{platform}") if named else None

    def rent(self, key: str, kind: RentKind = "on-demand") -> Figure | None:
        """Rent of one device or machine per hour; None where the list has none of this kind."""
        named = self._device(key).rent
        return self._figure(named, f"{key}, an hour") if named and named.kind == kind else None

    def pue(self, setting: Setting | None) -> Figure:
        """Power usage effectiveness of the place where a machine stands; None is taken for a rack."""
        listed = self.assumption("pue")
        if setting != "desk" or self.states_pue:
            return listed
        return listed._replace(value=1.0, origin="spec", source=_ON_A_DESK)

    def sold(self, key: str) -> bool:
        """Whether a device can be bought separately."""
        return self._device(key).sold is not False

    def power(self, group: DeviceGroup) -> tuple[Power, float] | None:
        """Return the power of one device, and how many such devices one of the part is; None where the
        list does not know it.

        Host memory counts as many modules as its size takes.
        """
        if group.key != MEMORY:
            power = self._device(group.key).power
            return (power, 1.0) if power else None
        memory = self.costs.memory
        if memory.power is None or memory.module is None:
            return None
        return memory.power, group.size / memory.module.value

    def assumption(self, key: str) -> Figure:
        """Return the value of ``electricity`` [per kWh], ``pue`` of a rack, ``lifetime`` [years] or
        ``utilization``."""
        value: Sourced[float] | None = getattr(self.costs, key)
        assert value is not None, f"the shipped list has {key}"
        return self._figure(value, key)

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
        return (f"prices older than a year: {names}; give newer ones with --costs FILE",)

    def _figure(self, value: Sourced[float], what: str) -> Figure:
        """Return a figure with the value of the day."""
        then = value.on(self.today) if isinstance(value, Dated) else value
        return Figure(float(then.value), what, then.origin, then.source, then.date)

    def _device(self, key: str) -> DeviceCosts:
        return self.costs.devices.get(key, DeviceCosts())


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
    if resolved(file) == resolved(shipped.document.path):
        return CostList(base, sources, now)
    mine = own.profile
    assert isinstance(mine, Costs)
    _check_dates(own, now)
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


def _check_dates(own: Entry, today: datetime.date) -> None:
    """Refuse prices of the user's that nobody can know yet."""
    assert isinstance(own.profile, Costs)
    for keys, one in own.profile.amounts():
        if one.date > today:
            text = f"the date {one.date} is in the future: today is {today}; give the day of the price"
            raise DocumentLocation(own.document, keys).error(text)


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


# -- bill of an answer -----------------------------------------------------------------------------
# Hardware to buy, replacement drives, and the power that devices draw.
#
# A device draws P = idle + (active - idle) x busy (drdobbs.com 215800830). A GPU is busy while it computes
# or copies in its own memory; a CPU while host threads run, each on one core, or all cores update; memory,
# adapters, drives and servers as far as their bandwidth is used.


_HOURS_A_DAY = 24


def _is_shared(kind: str) -> bool:
    """Return whether a kind of profile is of storage that is not part of any machine."""
    return kind in STORAGE_KINDS and not STORAGE_KINDS[kind].local


class Item(NamedTuple):
    """One line of a bill."""

    key: str
    """``kind/id`` of the profile, or "memory"."""
    description: str
    number: int
    price: Figure | None
    """Price from the list; None if it has none."""
    units: float = 1.0
    """Number of priced units in one item: the GB of memory, the TB of a drive."""
    covered: bool = False
    """Whether the item is included in the price of the machine, which is another line."""
    tier: str = ""
    """Storage tier to which the item belongs; "" for the rest of the machine."""

    @property
    def kind(self) -> str:
        """Kind of the item's profile: "drive", "host", …; or "memory"."""
        return self.key.partition("/")[0]

    @property
    def total(self) -> float | None:
        """Return the price of all units of this line; None if the unit price is unknown."""
        if self.covered:
            return 0.0
        return self.number * self.units * self.price.value if self.price else None

    def to_dict(self) -> dict[str, Any]:
        """Return what is paid for, how often, and at which price."""
        price = self.price.value if self.price else None
        return by_name(self, "key number units") | {"price": price} | by_name(self, "total covered")


class Bill(NamedTuple):
    """A Bill lists all hardware that an answer requires."""

    items: tuple[Item, ...]

    @property
    def total(self) -> float | None:
        """Sum of all prices; None if one of them is not known."""
        return None if self.missing else self.known

    @property
    def known(self) -> float | None:
        """Sum of all known prices, which the total is at least; None if none is known."""
        known = [item.total for item in self.items if item.total is not None]
        return sum(known) if known else None

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys of the items without a price."""
        return tuple(item.key for item in self.items if item.total is None)

    @property
    def by_key(self) -> dict[str, float]:
        """Sum of the known prices by key."""
        found: dict[str, float] = {}
        for item in self.items:
            found[item.key] = found.get(item.key, 0.0) + (item.total or 0.0)
        return found

    def beyond(self, now: Bill) -> float | None:
        """Return the price of what has to be bought where ``now`` is there: the sum of what each line exceeds
        the other bill's by.

        What has no price does not matter where the other bill has as much of it; else the price is None.
        """
        if not self._unpriced <= now._unpriced:
            return None
        before = now.by_key
        return sum(max(0.0, total - before.get(key, 0.0)) for key, total in self.by_key.items())

    def added(self, now: Bill) -> tuple[Figure, ...]:
        """Return the prices of what has to be bought where ``now`` is there."""
        before, after = now.by_key, self.by_key
        more = {key for key, total in after.items() if total > before.get(key, 0.0)}
        return Bill(tuple(item for item in self.items if item.key in more)).prices

    @property
    def _unpriced(self) -> set[tuple[str, str, int]]:
        return {(item.key, item.description, item.number) for item in self.items if item.total is None}

    @property
    def bought(self) -> tuple[tuple[str, float], ...]:
        """Key and quantity of every line that is paid for."""
        return tuple((item.key, item.number * item.units) for item in self.items if not item.covered)

    @property
    def prices(self) -> tuple[Figure, ...]:
        """Return every price that contributes to the total, each once."""
        found = (item.price for item in self.items if item.price and not item.covered)
        return tuple(dict.fromkeys(found))

    @property
    def by_tier(self) -> dict[str, float]:
        """Sum of the known prices of each storage tier, and under "" that of the rest of the machine."""
        found: dict[str, float] = {}
        for item in self.items:
            found[item.tier] = found.get(item.tier, 0.0) + (item.total or 0.0)
        return found

    @property
    def shared(self) -> dict[str, float]:
        """Sum of the known prices of each tier that is a server or filesystem, which other machines may
        use, too."""
        tiers = {item.tier for item in self.items if _is_shared(item.kind) and item.total}
        return {tier: price for tier, price in self.by_tier.items() if tier in tiers}

    def paid(self, price: str) -> float:
        """Return how many times a price (``Figure.what``) is paid."""
        mine = (one for one in self.items if one.price and one.price.what == price and not one.covered)
        return sum(item.number * item.units for item in mine)


def used_parts(scenario: LoadedScenario, result: SimulationResult) -> tuple[DeviceGroup, ...]:
    """Return the parts of the machine, without GPUs where the CPU computes everything, and of its storage
    only the tiers that must hold something."""
    tiers = {"", *(use.tier for use in result.capacity)}
    parts = (part for part in scenario.machine.parts if part.tier in tiers)
    computes = scenario.scenario.strategy.description.on_gpus
    return tuple(part for part in parts if computes or part.kind != "accelerator")


def bill(scenario: LoadedScenario, result: SimulationResult, costs: CostList) -> Bill:
    """Return what the machine and the storage in use cost.

    Machines are bought whole, with all their GPUs. Where the list has a price of the platform, that covers
    host, GPUs, memory, adapters and local drives as the platform's file has them, and what the scenario
    adds is paid for on top.
    """
    return _bill(scenario, used_parts(scenario, result), costs)


def bare(scenario: LoadedScenario, costs: CostList) -> Bill:
    """Return the bill of a machine with its own drives, whatever is done with it."""
    machine = scenario.machine
    drives = {tier for tier, target in machine.targets.items() if TIER_KINDS[target.kind].local}
    return _bill(scenario, tuple(part for part in machine.parts if part.tier in {"", *drives}), costs)


def present(scenario: LoadedScenario, result: SimulationResult, costs: CostList) -> Bill:
    """Return what need not be bought for a change: what is in use, and all drives of the machine.

    Drives for which the host has not enough slots are alternatives, of which those in use are there.
    """
    machine = scenario.machine
    drives = {tier for tier, target in machine.targets.items() if TIER_KINDS[target.kind].local}
    slots = machine.host.drive_slots
    number = sum(part.number for part in machine.parts if part.tier in drives) / machine.nodes
    if slots is not None and number > sum(one.value for one in slots.values()):
        drives = set()
    used = {"", *drives, *(use.tier for use in result.capacity)}
    return _bill(scenario, tuple(part for part in machine.parts if part.tier in used), costs)


def _bill(scenario: LoadedScenario, wanted: tuple[DeviceGroup, ...], costs: CostList) -> Bill:
    all_cores = costs.machine_price(scenario.machine.platform)
    if all_cores is None:
        return Bill(tuple(_item(part, costs, part.number) for part in wanted if part.number))
    items = [Item(all_cores.what, "whole machine", scenario.machine.nodes, all_cores)]
    for inside, added in _against_platform(scenario, wanted):
        items += [_item(one, costs, one.number)._replace(covered=True) for one in inside if one.number]
        items += [_item(one, costs, one.number) for one in added if one.number]
    return Bill(tuple(items))


def beyond_rent(scenario: LoadedScenario, result: SimulationResult, *, of_machines: bool) -> tuple[str, ...]:
    """Return the parts in use that a rent does not include: of machines what their platform's file does not
    have, of GPUs (``of_machines`` false) every storage tier."""
    wanted = used_parts(scenario, result)
    if of_machines:
        each = _against_platform(scenario, wanted)
        wanted = tuple(one for _, added in each for one in added if one.number)
    else:
        wanted = tuple(part for part in wanted if part.tier)
    return tuple(dict.fromkeys(part.tier or part.key for part in wanted))


def _against_platform(
    scenario: LoadedScenario, wanted: Iterable[DeviceGroup]
) -> Iterator[tuple[tuple[DeviceGroup, ...], tuple[DeviceGroup, ...]]]:
    """Yield of each part what the platform's file has, and what the scenario adds."""
    included = _included(scenario, scenario.machine.nodes)
    for part in wanted:
        yield _split(part, included.get((part.key, part.tier), part._replace(number=0)))


def _split(group: DeviceGroup, has: DeviceGroup) -> tuple[tuple[DeviceGroup, ...], tuple[DeviceGroup, ...]]:
    """Divide a part into what the machine has already and what is added; added memory comes on top of what is
    there."""
    covered = min(group.number, has.number)
    inside, added = group._replace(number=covered), group._replace(number=group.number - covered)
    if group.key != MEMORY or group.size <= has.size:
        return (inside,), (added,)
    more = group._replace(number=covered, size=group.size - has.size)
    return (inside._replace(size=has.size),), (more, added)


def _included(scenario: LoadedScenario, nodes: int) -> dict[tuple[str, str], DeviceGroup]:
    """Return, by key and tier, the parts that come with a platform as its file has it, without the scenario's
    changes."""
    plain = without(scenario.document, "equipment")
    shipped = scenario.cache.platform(plain, changed=False).machine(nodes=nodes).parts
    return {(part.key, part.tier): part for part in shipped if not _is_shared(part.kind)}


def _item(group: DeviceGroup, costs: CostList, count: int) -> Item:
    description = group.key.partition("/")[2] or group.key
    if group.key == MEMORY:
        description = f"host memory, {format_bytes(group.size, binary=True)}"
    price, units = costs.price(group) or (None, 1.0)
    return Item(group.key, description, count, price, units, tier=group.tier)


class Replacement(NamedTuple):
    """A Replacement is the set of drives of a tier that wear out before the purchase is written off."""

    tier: str
    price: str
    """Name (``Figure.what``) of the price of each replaced drive."""
    paid_per_h: float
    """How many times that price is paid in an hour of work, beyond the purchase."""
    value: float | None
    """Price of one drive, in the list's currency; None: not known."""

    @property
    def per_h(self) -> float | None:
        """Cost per hour of work, in the list's currency; None: not known."""
        return None if self.value is None else self.paid_per_h * self.value


def replacements(result: SimulationResult, bill: Bill, *, hours: float) -> tuple[Replacement, ...]:
    """Return the drives whose rating is used up within ``hours`` of work; each costs price x (1 / hours they
    last - 1 / hours).

    Those that come with a machine have the price of their kind.
    """
    lasting = {
        one.tier: one.drive_lifetime.days
        for one in result.drive_lifetime
        if one.drive_lifetime.days is not None
    }
    found = []
    for item in bill.items:
        days = lasting.get(item.tier)
        if days is None or item.kind != "drive":
            continue
        rate = 1 / (days * _HOURS_A_DAY) - 1 / hours
        if rate > 0:
            paid = item.number * item.units * rate
            what, value = (item.price.what, item.price.value) if item.price else (item.key, None)
            found.append(Replacement(item.tier, what, paid, value))
    return tuple(found)


_ALL_CORES: frozenset[CauseKind] = frozenset(("cpu-adam", "cpu-casts", "cpu-overflow-check"))
"""Host activities that keep every core busy; the others keep one core per rank busy."""


class Draw(NamedTuple):
    """The average power of equal devices."""

    key: str
    number: float
    idle_w: float
    """Idle power of one device [W]."""
    active_w: float
    busy: float
    """Fraction of the time, or of the bandwidth, in use."""

    @property
    def watts(self) -> float:
        """Power of all devices together [W]."""
        return self.number * (self.idle_w + (self.active_w - self.idle_w) * self.busy)


class Energy(NamedTuple):
    """The power while the work goes on, PUE not included."""

    draws: tuple[Draw, ...]
    missing: tuple[str, ...]
    """Keys of devices whose power is not in the list."""
    time_s: float
    """Duration of the work [s]."""

    @property
    def watts(self) -> float:
        """Mean power during the work [W]."""
        return sum(draw.watts for draw in self.draws)


def energy(
    machine: Machine, result: SimulationResult, parts: Iterable[DeviceGroup], costs: CostList
) -> Energy | None:
    """Return the power and energy of the work; None where it does not fit."""
    work = result.spent
    total = sum(time for _, time in work)
    if not total:
        return None
    draws, missing = [], []
    for part in parts:
        known = costs.power(part)
        if known is None:
            missing.append(part.key)
            continue
        power, each = known
        busy = sum(time * _busy(part, one, machine, result) for one, time in work) / total
        limit = machine.accelerator.power_limit if part.key.startswith("accelerator/") else None
        active = min(power.active.value, limit) if limit else power.active.value
        draws.append(Draw(part.key, part.number * each, power.idle.value, active, busy))
    return Energy(tuple(draws), tuple(missing), total)


def _busy(group: DeviceGroup, one: PassResult, machine: Machine, result: SimulationResult) -> float:
    """Return the fraction of a pass in which the devices of a part are busy, on average over all of them."""
    if not one.time_s:
        return 0.0
    if group.kind == "accelerator":
        return min(1.0, one.gpus_s / one.time_s / machine.gpus)
    if group.kind == "host":
        all_cores = sum(share.busy_s for share in one.shares if share.cause.kind in _ALL_CORES) / one.time_s
        threads = (_share(one, "host") - all_cores) * machine.ranks_per_node(result.ranks)
        cores = threads / machine.host.cpu_optimizer.cores.value
        linked = sum(use.size / (use.capacity * one.time_s) for use in one.links if use.unit == "core-ns")
        return min(1.0, min(1.0, cores + all_cores) * machine.nodes_of(result.gpus) / machine.nodes + linked)
    used = {use.link: use.size / (use.capacity * one.time_s) for use in one.links}
    loads = [min(1.0, sum(used.get(link, 0.0) for link in links)) for links in group.links]
    return sum(loads) / len(loads)


def _share(one: PassResult, group: Group) -> float:
    """Return the fraction of a pass in which something of a group is busy, on the rank where that is most."""
    return sum(share.busy_s for share in one.shares if share.group == group) / one.time_s
