"""Options that cost money: drives, memory, cables, adapters, other places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from simoffload.documents import Edit
from simoffload.errors import InputError, PlacementError
from simoffload.hardware import Platform, list_profiles, load_profile
from simoffload.hardware.profiles import Nic, Pcie, Profile
from simoffload.hardware.storage import Drive, Raid
from simoffload.hardware.targets import PcieLink, Ports, Target, adapter_rate
from simoffload.planning.advise.options import Option, placement_words
from simoffload.planning.costs import CostList
from simoffload.scenario import LoadedScenario
from simoffload.simulation import fit
from simoffload.strategies.placement import Placement
from simoffload.units import format_bytes, format_rate
from simoffload.workload import Training

__all__ = [
    "cables",
    "drives",
    "memory",
    "places",
    "ports",
    "processors",
    "resident",
    "shipped",
    "systems",
    "takes_drives",
]

P = TypeVar("P", bound=Profile)

_FASTER_DRIVES = 2
_AS_MUCH = 1.05
"""Rates of both ends of a way that are within this of each other are taken to be equal: our choice."""
_FASTER_THREAD = 1.25
"""Our choice: about a generation of server CPUs."""


def places(scenario: LoadedScenario, tiers: Sequence[str]) -> Iterator[Option]:
    """What lies in one tier put into another one: weights, checkpoints, in training the optimizer, too."""
    strategy, machine = scenario.scenario.strategy, scenario.machine
    for placement in _placements(scenario, tiers):
        try:
            edits = strategy.retarget(placement, machine)
        except PlacementError:
            continue
        description = placement_words(scenario, placement, ranks=strategy.ranks)
        yield Option(f"on-{placement}", description, "placement", edits)


def resident(scenario: LoadedScenario) -> Iterator[Option]:
    """A whole copy in each GPU, without ZeRO."""
    with suppress(PlacementError):
        if edits := scenario.scenario.strategy.resident():
            description = "a whole copy in each GPU, without ZeRO"
            yield Option("on-resident", description, "placement", edits)


def _placements(scenario: LoadedScenario, tiers: Sequence[str]) -> Iterator[Placement]:
    """Where the work is not yet."""
    names = scenario.machine.tiers
    if not isinstance(scenario.scenario.workload, Training):
        yield from (Placement(tier) for tier in names if tier not in tiers)
        return
    weights, now = tiers[0], tiers[-1]
    pairs = [Placement(weights, tier) for tier in names]
    pairs += [Placement("hbm", "dram"), *(Placement(tier, tier) for tier in names)]
    yield from (pair for pair in dict.fromkeys(pairs) if pair != (weights, now))


def memory(scenario: LoadedScenario, tiers: Sequence[str]) -> Iterator[Option]:
    """Twice the host memory, or all that its board takes, alone, and with the weights in it where they do not
    fit as it is."""
    host = scenario.machine.host
    has, most = host.memory_capacity.value, host.memory_maximum
    more = 2 * has if most is None else max(has, min(2 * has, most.value))
    size, now = (format_bytes(one, binary=True) for one in (more, has))
    description = f"{size} of host memory instead of {now}"
    if more == has:
        description = f"more host memory than {now}"
    changed = Edit(("profiles", f"host/{host.id}", "memory_capacity"), f"{more} B")
    barred = f"host/{host.id} takes no more" if more == has else ""
    yield Option("memory-x2", description, "hardware", (changed,), barred=barred)
    if barred:
        return
    if "dram" not in tiers:
        try:
            inside = scenario.on("dram")
        except InputError:
            return
        if fit(inside).fits:
            return
        on_dram = scenario.scenario.strategy.retarget(Placement("dram"), scenario.machine)
        yield Option(
            "memory-x2-on-dram", f"{description}, and the weights in it", "hardware", (changed, *on_dram)
        )


def takes_drives(platform: Platform, costs: CostList) -> bool:
    """Whether one can put drives into it: not into a machine that is only rented, whose own nobody sells."""
    own = (target.drive for target in platform.targets.values())
    return all(costs.sold(f"drive/{drive.id}") for drive in own if drive is not None)


def drives(platform: Platform, tier: str, costs: CostList) -> Iterator[Option]:
    """One more drive, twice as many, and faster ones."""
    target, where = platform.targets[tier], platform.profile.tiers[tier].at
    if target.drive is None or where is None or not takes_drives(platform, costs):
        return
    array = target.array or _striped(target.drive.id)
    if array is not None:
        yield from _more(tier, target, where, array)
    known = [one for one in shipped("drive", Drive) if costs.sold(f"drive/{one.id}")]
    yield from _faster(platform, tier, target, where, known)


def _more(tier: str, target: Target, where: tuple[str, ...], array: Raid) -> Iterator[Option]:
    for number in (target.drives + 1, 2 * target.drives):
        description = f"{number} drives in {tier} instead of {target.drives}"
        count = Edit(("profiles", f"raid/{array.id}", "count"), number)
        changed = (count,) if target.array else _array(tier, array, where, number)
        yield Option(f"{tier}-{number}-drives", description, "hardware", changed)


def _faster(
    platform: Platform, tier: str, target: Target, where: tuple[str, ...], known: Sequence[Drive]
) -> Iterator[Option]:
    """As many of faster drives, the fastest in these slots first."""
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
        yield Option(f"{tier}-{drive.id}", description, "hardware", changed)


def _rate(drive: Drive, pcie_link: PcieLink | None, slots: Sequence[Pcie | None]) -> int:
    """[B/s] that a drive reads in the slowest of some slots."""
    assert pcie_link is not None
    return min(drive.read.value, *(pcie_link.within(slot).payload_rate for slot in slots))


def _own_side(drive: Drive) -> PcieLink:
    """How a shipped drive is plugged in."""
    pcie = load_profile("pcie", drive.pcie.profile)
    assert isinstance(pcie, Pcie)
    return PcieLink(pcie, drive.pcie.lanes.value)


def shipped(kind: str, model: type[P]) -> Iterator[P]:
    """All shipped profiles of a kind, which are of a class."""
    for one in list_profiles(kind):
        profile = load_profile(kind, one.id)
        assert isinstance(profile, model)
        yield profile


def _striped(drive: str, *, like: Raid | None = None) -> Raid | None:
    """A shipped array of such drives, of the level of another one, or RAID0."""
    level = like.level if like is not None else 0
    return next((one for one in shipped("raid", Raid) if (one.drive, one.level) == (drive, level)), None)


def _array(tier: str, array: Raid, where: tuple[str, ...], number: int) -> tuple[Edit, ...]:
    return (
        Edit(("equipment", "tiers", tier), {"profile": array.id, "at": list(where)}),
        Edit(("profiles", f"raid/{array.id}", "count"), number),
    )


def systems(platform: Platform, tier: str) -> Iterator[Option]:
    """A second filesystem appliance, joined to the first."""
    target = platform.targets[tier]
    if target.kind == "pfs":
        number = target.systems + 1
        description = f"{number} x {target.id} instead of {target.systems}"
        changed = (Edit(("profiles", f"pfs/{target.id}", "count"), number),)
        yield Option(f"{tier}-{number}-systems", description, "hardware", changed)


def ports(platform: Platform, tier: str, *, nodes: int) -> Iterator[Option]:
    """Twice the ports, or faster ones, on the way to a remote tier, at the narrower end of it.

    The ends are the adapters of the hosts and the ports of the server, where its profile has them; ends that
    carry as much as each other change together.
    """
    through = platform.profile.tiers[tier].through
    if through is None:
        return
    server = platform.targets[tier].ports
    if server is None:
        yield from _at_host(platform, tier, through)
        return
    # Transfers are striped in equal parts over the adapters: the slowest decides.
    slowest = min(adapter_rate(platform.nics[name][0], platform.nic_pcie_link(name)) for name in through)
    here, there = nodes * len(through) * slowest, server.total
    if here * _AS_MUCH < there:
        yield from _at_host(platform, tier, through)
    elif there * _AS_MUCH < here:
        yield from _at_server(platform, tier, server)
    else:
        pairs = zip(_at_host(platform, tier, through), _at_server(platform, tier, server), strict=False)
        for mine, theirs in pairs:
            description, changed = (
                f"{mine.description}, and {theirs.description}",
                (*mine.edits, *theirs.edits),
            )
            yield Option(mine.key, description, "hardware", changed, priced=False)


def _at_host(platform: Platform, tier: str, through: tuple[str, ...]) -> Iterator[Option]:
    attached = {name: platform.profile.nics[name] for name in through}
    taken = platform.profile.names
    letters = next(end for end in "bcdefghij" if not any(f"{name}-{end}" in taken for name in through))
    more = {f"{name}-{letters}": {"profile": one.profile, "at": one.at} for name, one in attached.items()}
    changed = tuple(Edit(("equipment", "nics", name), one) for name, one in more.items())
    doubled = Edit(("equipment", "tiers", tier), _wired(platform, tier, through=[*through, *more]))
    number = 2 * len(through)
    description = f"{number} ports of the host to {tier} instead of {len(through)}"
    yield Option(f"{tier}-{number}-ports", description, "hardware", (*changed, doubled))
    nic = platform.nics[through[0]][0]
    faster = _next_nic(nic)
    if faster is not None:
        changed = tuple(
            Edit(("equipment", "nics", name), {"profile": faster.id, "at": one.at})
            for name, one in attached.items()
        )
        description = f"{faster.name} of the host to {tier} instead of {nic.name}"
        yield Option(f"{tier}-{faster.id}", description, "hardware", changed)


def _at_server(platform: Platform, tier: str, server: Ports) -> Iterator[Option]:
    """What a server's own adapters cost is in no list: they come with it."""
    target, number = platform.targets[tier], 2 * server.number
    profile = f"{target.kind}/{target.id}"
    changed = [Edit(("profiles", profile, "links"), number)]
    if server.mounts:  # a mount goes over one port
        changed.append(Edit(("profiles", profile, "mounts"), max(number, server.mounts)))
    description = f"{number} ports of the server of {tier} instead of {server.number}"
    yield Option(f"{tier}-server-{number}-ports", description, "hardware", tuple(changed), priced=False)
    faster = _next_nic(server.nic)
    if faster is not None:
        linked = Edit(("equipment", "tiers", tier), _wired(platform, tier, link=faster.id))
        description = f"{faster.name} of the server of {tier} instead of {server.nic.name}"
        yield Option(f"{tier}-server-{faster.id}", description, "hardware", (linked,), priced=False)


def _wired(platform: Platform, tier: str, **other: Any) -> dict[str, Any]:
    """A tier as it is wired, but for something."""
    now = platform.profile.tiers[tier].model_dump(exclude_none=True)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (now | other).items()}


def _next_nic(now: Nic) -> Nic | None:
    """The next faster adapter of the same network."""
    same = [one for one in shipped("nic", Nic) if one.id.endswith("gbe") == now.id.endswith("gbe")]
    faster = (one for one in same if one.link_rate.value > now.link_rate.value)
    return min(faster, key=lambda one: one.link_rate.value, default=None)


def cables(scenario: LoadedScenario) -> Iterator[Option]:
    """The next generation of PCIe in slots and switches, where the GPUs have it and their slots do not."""
    platform = scenario.platform()
    own, now = platform.gpu.pcie, platform.gpu_pcie_link.pcie
    known = [one for one in shipped("pcie", Pcie) if one.id.startswith("gen")]
    later = [one for one in known if now.is_slower(one) and not own.is_slower(one)]
    if not now.id.startswith("gen") or not later:
        return
    following = min(later, key=lambda one: one.lane_rate.value)
    before: dict[str, str] = (scenario.document.data.get("equipment") or {}).get("pcie") or {}
    replaced = [key for key, other in before.items() if other == now.id] or [now.id]
    changed = tuple(Edit(("equipment", "pcie", key), following.id) for key in replaced)
    description = f"host and switches with {following.name} instead of {now.name}"
    yield Option(f"pcie-{following.id}", description, "hardware", changed, priced=False)


def processors(scenario: LoadedScenario) -> Iterator[Option]:
    """A CPU that is faster on one thread: every cost of the host thread shorter."""
    host = scenario.machine.host
    changed = []
    for section in ("deepspeed", "training"):
        costs = getattr(host, section)
        for key in type(costs).model_fields:
            value = getattr(costs, key).value
            if isinstance(value, float) and key not in _NO_TIMES:
                changed.append(
                    Edit(("profiles", f"host/{host.id}", section, key), f"{value / _FASTER_THREAD} s")
                )
    description = f"a CPU {_FASTER_THREAD:g} times as fast on one thread"
    yield Option("faster-thread", description, "hardware", tuple(changed), priced=False)


_NO_TIMES = {"ranks", "cold_share", "cold_limit", "graph"}
"""Numbers among the costs of the host thread that are counts, fractions and limits."""
