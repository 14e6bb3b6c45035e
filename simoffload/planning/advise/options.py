"""Possible changes to a scenario; each option is a scenario of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from simoffload.documents import Edit
from simoffload.hardware import (
    Drive,
    GpuSlots,
    Host,
    Nic,
    Pcie,
    PcieLink,
    Platform,
    Ports,
    Profile,
    Raid,
    Target,
    adapter_rate,
    list_profiles,
    load_profile,
)
from simoffload.planning.alternatives import formats, other_programs, places, possible, replaced, resident
from simoffload.planning.caches import cache_options
from simoffload.planning.costs import CostList
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.remedies import adapters_of, smallest_changes
from simoffload.progress import working_on
from simoffload.results import Change, SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.strategies.base import state_tiers
from simoffload.units import format_bytes, format_rate, plural
from simoffload.workload import Checkpointing, Training

P = TypeVar("P", bound=Profile)
_FASTER_DRIVES = 2
"""Kinds of faster drives to try: our choice."""
_FORMS = {"m2": "M.2", "u2": "U.2", "e1s": "E1.S", "e3s": "E3.S"}
"""Names of the forms of drives."""
_KINDS = {"tier": "placement", "strategy": "placement"} | dict.fromkeys(("stage", "setting"), "setting")
_KINDS |= dict.fromkeys(("batch", "context", "precision", "lora"), "workload")
"""Kinds of options by the first kind of a change of ``fit``; all others are "hardware"."""
_AS_MUCH = 1.05
"""Rates of both ends of a route within this factor count as equal: our choice."""
_FASTER_THREAD = 1.25
"""Assumed speed of a faster CPU thread, about one generation of server CPUs ahead: our choice."""
_OLDEST, _KIT, _BUS = 4_800_000_000, 6_000_000_000, 8
"""Transfers a second of the slowest DDR5 and of the kit that is tried (DDR5-6000), and the bytes of each."""
_FASTER_MEMORY = 1.2
"""Assumed bandwidth of faster modules, as of DDR5-6400 and -7200 over DDR5-5600 and -6000: our choice."""


def options_of(evaluator: Evaluator, result: SimulationResult, costs: CostList) -> tuple[Change, ...]:
    """Return all changes to try, each key once, without those that change nothing."""
    scenario, found = evaluator.scenario, dict[str, Change]()
    for option in (replaced(evaluator, one) for one in _options(evaluator, result, costs)):
        working_on(f"listing changes: {option.key}")
        if not evaluator.changes_nothing(*option.edits):
            found.setdefault(option.key, option)
    if not result.fits:
        found |= {option.key: option for option in remedies(scenario)}
    return tuple(found.values())


def _options(evaluator: Evaluator, result: SimulationResult, costs: CostList) -> Iterator[Change]:
    scenario, platform = evaluator.scenario, evaluator.scenario.platform()
    tiers = tuple(dict.fromkeys(result.targets))
    held = state_tiers(scenario.plan())
    stores = [tier for tier in platform.targets if tier in held]
    for tier in stores:
        yield from drives(platform, tier, costs)
        yield from systems(platform, tier)
        yield from ports(platform, tier, nodes=scenario.machine.nodes)
    yield from places(scenario, tiers)
    yield from resident(scenario)
    yield from second_card(scenario)
    yield from islice(memory(scenario), 1)
    if result.fits:  # none of these needs less memory
        yield from cables(scenario)
        on_cpu = scenario.scenario.strategy.traits.on_cpu
        yield from (faster_memory if on_cpu else processors)(scenario)
        yield from workloads(evaluator)
        for number, one in enumerate(adapters_of(evaluator), start=1):
            yield one._replace(kind="workload", key=f"adapters-{number}")
    yield from cache_options(evaluator)
    yield from (one._replace(kind="workload") for one in formats(evaluator))
    yield from possible(evaluator, other_programs(evaluator))
    yield from evaluator.changes("setting")


def batches_of(evaluator: Evaluator, *factors: int) -> Iterator[tuple[int, Change]]:
    """Yield batches that are some times as large, with their factors; none for checkpoints."""
    work, strategy = evaluator.workload, evaluator.strategy
    if isinstance(work, Checkpointing):
        return
    each = " per GPU" if strategy.replicas == strategy.gpus and strategy.description.on_gpus else ""
    for factor in factors:
        batch = factor * work.batch_size
        edits = evaluator.batch(batch) if factor > 1 else ()
        yield factor, Change("workload", f"batch {batch}{each}", edits, key=f"batch-{batch}")


def workloads(evaluator: Evaluator) -> Iterator[Change]:
    """Yield larger batches, and in training more micro-steps."""
    work = evaluator.workload
    for _, one in batches_of(evaluator, 2, 4, 8):
        assert not isinstance(work, Checkpointing)
        yield one._replace(description=f"{one.description} instead of {work.batch_size}")
    if isinstance(work, Training):
        free = evaluator.strategy.sizes().along("batch_size", "gradient_accumulation_steps")
        steps = 2 * work.gradient_accumulation_steps
        description = f"gradients accumulated over {steps} micro-steps instead of {steps // 2}"
        description += " (twice the batch of an update)"
        changed = Edit.at("workload.gradient_accumulation_steps", steps)
        yield Change("workload", description, (changed, *free), key=f"accumulate-{steps}")


def remedies(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield what ``fit`` would change, the smallest change of each kind."""
    alone = not scenario.placements.storage
    for number, one in enumerate(smallest_changes(scenario), start=1):
        if one.kind == "tier" and not alone:
            continue
        kind = _KINDS.get(one.kind.partition(" + ")[0], "hardware")
        # A server or a drive that is only called larger has no price of its own.
        priced = all(edit.path[-1] != "capacity" for edit in one.edits)
        yield one._replace(kind=kind, key=f"fit-{number}", priced=priced)


def memory(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield twice and four times the host memory, or as much as its board takes."""
    host = scenario.machine.host
    now, found = format_bytes(host.memory_capacity.value, binary=True), tuple(more_memory(host, 2, 4))
    if not found:
        why = f"host/{host.id} supports no more"
        yield Change("hardware", f"more host memory than {now}", barred=why, key="memory-x2")
    yield from (one._replace(description=f"{one.description} instead of {now}") for one in found)


def more_memory(host: Host, *factors: int) -> Iterator[Change]:
    """Yield some times the memory of a host, as far as its board takes that, each size once."""
    has = host.memory_capacity.value
    most = host.memory_maximum.value if host.memory_maximum else math.inf
    sizes = {has}
    for factor in factors:
        size = int(max(has, min(factor * has, most)))
        if size not in sizes:
            changed = Edit(("profiles", f"host/{host.id}", "memory_capacity"), f"{size} B")
            description = f"{format_bytes(size, binary=True)} of host memory"
            yield Change("hardware", description, (changed,), key=f"memory-x{factor}")
        sizes.add(size)


def systems(platform: Platform, tier: str) -> Iterator[Change]:
    """Yield a second filesystem appliance beside the first."""
    target = platform.targets[tier]
    if target.kind == "pfs":
        number = target.systems + 1
        description = f"{number} x {target.id} instead of {target.systems}"
        changed = (Edit(("profiles", f"pfs/{target.id}", "count"), number),)
        yield Change("hardware", description, changed, key=f"{tier}-{number}-systems")


def ports(platform: Platform, tier: str, *, nodes: int) -> Iterator[Change]:
    """Yield twice as many ports, or faster ones, at the narrower end of the way to a remote tier.

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
            yield Change("hardware", description, changed, priced=False, key=mine.key)


def _at_host(platform: Platform, tier: str, through: tuple[str, ...]) -> Iterator[Change]:
    attached = {name: platform.profile.nics[name] for name in through}
    taken = platform.profile.names
    letters = next(end for end in "bcdefghij" if not any(f"{name}-{end}" in taken for name in through))
    more = {f"{name}-{letters}": {"profile": one.profile, "at": one.at} for name, one in attached.items()}
    changed = tuple(Edit(("equipment", "nics", name), one) for name, one in more.items())
    doubled = Edit(("equipment", "tiers", tier), _wired(platform, tier, through=[*through, *more]))
    number = 2 * len(through)
    description = f"{number} ports of the host to {tier} instead of {len(through)}"
    yield Change("hardware", description, (*changed, doubled), key=f"{tier}-{number}-ports")
    nic = platform.nics[through[0]][0]
    faster = _next_nic(nic)
    if faster is not None:
        changed = tuple(
            Edit(("equipment", "nics", name), {"profile": faster.id, "at": one.at})
            for name, one in attached.items()
        )
        description = f"{faster.name} of the host to {tier} instead of {nic.name}"
        yield Change("hardware", description, changed, key=f"{tier}-{faster.id}")


def _at_server(platform: Platform, tier: str, server: Ports) -> Iterator[Change]:
    """Yield more and faster ports of the server; no list of prices has them, as they come with it."""
    target, number = platform.targets[tier], 2 * server.number
    profile = f"{target.kind}/{target.id}"
    changed = [Edit(("profiles", profile, "links"), number)]
    if server.mounts:  # a mount goes over one port
        changed.append(Edit(("profiles", profile, "mounts"), max(number, server.mounts)))
    description = f"{number} ports of the server of {tier} instead of {server.number}"
    yield Change("hardware", description, tuple(changed), priced=False, key=f"{tier}-server-{number}-ports")
    faster = _next_nic(server.nic)
    if faster is not None:
        linked = Edit(("equipment", "tiers", tier), _wired(platform, tier, link=faster.id))
        description = f"{faster.name} of the server of {tier} instead of {server.nic.name}"
        yield Change("hardware", description, (linked,), priced=False, key=f"{tier}-server-{faster.id}")


def _wired(platform: Platform, tier: str, **other: Any) -> dict[str, Any]:
    """Return a tier as connected to the platform, with some of its keys changed."""
    now = platform.profile.tiers[tier].model_dump(exclude_none=True)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (now | other).items()}


def _next_nic(now: Nic) -> Nic | None:
    """Return the next faster adapter of the same kind of network; None if there is none."""
    same = [one for one in shipped("nic", Nic) if one.fabric == now.fabric]
    faster = (one for one in same if one.link_rate.value > now.link_rate.value)
    return min(faster, key=lambda one: one.link_rate.value, default=None)


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
        changed = (count,) if target.array else array_edits(tier, array, where, number)
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
            array_edits(tier, joined, where, target.drives)
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
    return PcieLink(profile_of("pcie", drive.pcie.profile, Pcie), drive.pcie.lanes.value)


def shipped(kind: str, model: type[P]) -> Iterator[P]:
    """Yield all shipped profiles of a kind. Raises AssertionError for one of another class."""
    return (profile_of(kind, one.id, model) for one in list_profiles(kind))


def profile_of(kind: str, name: str, model: type[P]) -> P:
    """Return a shipped profile. Raises AssertionError for one of another class."""
    profile = load_profile(kind, name)
    assert isinstance(profile, model)
    return profile


def _striped(drive: str, *, like: Raid | None = None) -> Raid | None:
    """Return a shipped array of a drive with the RAID level of another array, or RAID0; None if there is
    none."""
    level = like.level if like is not None else 0
    return next((one for one in shipped("raid", Raid) if (one.drive, one.level) == (drive, level)), None)


def array_edits(tier: str, array: Raid, where: tuple[str, ...], number: int) -> tuple[Edit, ...]:
    """Return the edits that make a tier an array of a number of drives."""
    return (
        Edit(("equipment", "tiers", tier), {"profile": array.id, "at": list(where)}),
        Edit(("profiles", f"raid/{array.id}", "count"), number),
    )


def cables(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield the next generation of PCIe for slots and switches that are slower than the GPUs in them."""
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
    yield Change("hardware", description, changed, priced=False, key=f"pcie-{following.id}")


def processors(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield a CPU that is faster on one thread, which shortens every cost of the host thread."""
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
    description = f"a CPU with a {_FASTER_THREAD - 1:.0%} faster single thread".replace("%", " %")
    yield Change("hardware", description, tuple(changed), priced=False, key="faster-thread")


def second_card(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield a second GPU beside the one of a personal machine, for programs that divide layers between GPUs
    and the CPU."""
    strategy, platform = scenario.scenario.strategy, scenario.platform()
    one = strategy.traits.on_cpu and strategy.description.on_gpus and strategy.gpus == 1
    edits = strategy.sizes().gpus(2) if one else ()
    if not edits or not scenario.machine.is_personal or len(platform.profile.gpus) > 1:
        return
    slots = GpuSlots.of(platform, 2)
    if slots is not None:
        description = f"a second {platform.accelerator.name}, {slots.about}"
        yield Change("hardware", description, (*slots.edits, *edits), key="second-card")


def faster_memory(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield memory modules with a higher rate, for programs whose CPU computes from what they hold: the kit
    of DDR5 that most desktops take, and faster ones of any kind."""
    host = scenario.machine.host
    now, channels = host.memory_bandwidth.value, host.memory_channels.value if host.memory_channels else 2
    kit, path = _KIT * channels * _BUS, ("profiles", f"host/{host.id}", "memory_bandwidth")
    found = {"faster-memory": (f"memory of {format_rate(round(_FASTER_MEMORY * now))}", _FASTER_MEMORY * now)}
    if scenario.machine.is_personal and _OLDEST * channels * _BUS <= now < kit:
        found["memory-kit"] = f"DDR5-{_KIT // 10**6:d} in {channels} channels, {format_rate(kit)},", kit
    for key, (description, rate) in found.items():
        text, edits = f"{description} instead of {format_rate(now)}", (Edit(path, f"{round(rate)} B/s"),)
        yield Change("hardware", text, edits, priced=False, key=key)


_NO_TIMES = {"ranks", "cold_share", "cold_limit", "graph"}
"""Numbers among the costs of the host thread that are counts, fractions and limits."""
