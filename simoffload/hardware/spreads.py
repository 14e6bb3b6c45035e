"""Spreads of the numbers that decide times: how wrong they may be on the machine that does the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import hypot, log
from typing import NamedTuple

from simoffload.hardware.costs import Costs
from simoffload.hardware.host import Host
from simoffload.hardware.library import ProfileInput, ProfileUse
from simoffload.hardware.loading import load_profile
from simoffload.hardware.machine import Machine
from simoffload.hardware.profiles import Accelerator
from simoffload.hardware.quantities import Provenance
from simoffload.hardware.wiring import SWITCHES, PlatformProfile


class TimeInput(StrEnum):
    """A TimeInput is something whose speed decides a part of a time."""

    HOST = "host thread"
    CPU = "CPU work"
    OVERFLOW_CHECK = "CPU overflow check"
    COPIES = "copies"
    PAGEABLE = "copies of pageable memory"
    IN_PLACE = "weights read in host memory"
    TILES = "weights read in host memory, again for every tile of tokens"
    LINKS = "links between GPUs"
    GPU = "GPU"
    STORAGE = "storage"
    FAULTS = "page faults"
    EXPERT_FAULTS = "page faults of experts"


class DefaultSpread(NamedTuple):
    """A DefaultSpread is the relative standard deviation of numbers for which no profile states one."""

    measured: float
    """Spread of a number that was measured on the machine itself, beyond what errors of real runs contain:
    these were predicted with numbers measured in the same way."""
    other: float
    """Spread of a number from another machine of the kind, or from a data sheet."""


DEFAULT_SPREADS: Mapping[TimeInput, DefaultSpread] = {
    TimeInput.HOST: DefaultSpread(0.09, 0.24),
    TimeInput.CPU: DefaultSpread(0.0, 0.30),
    TimeInput.OVERFLOW_CHECK: DefaultSpread(0.0, 0.30),
    TimeInput.COPIES: DefaultSpread(0.0, 0.03),
    TimeInput.PAGEABLE: DefaultSpread(0.0, 0.25),
    TimeInput.IN_PLACE: DefaultSpread(0.0, 0.10),
    TimeInput.TILES: DefaultSpread(0.0, 0.30),
    TimeInput.LINKS: DefaultSpread(0.0, 0.22),
    TimeInput.GPU: DefaultSpread(0.0, 0.10),
    TimeInput.STORAGE: DefaultSpread(0.0, 0.18),
    TimeInput.FAULTS: DefaultSpread(0.1, 0.7),
    TimeInput.EXPERT_FAULTS: DefaultSpread(0.5, 1.1),
}
"""Spreads by what decides the time; docs/explanations.md has the observations behind each number."""
P90 = 1.2816
"""Quantile of the normal distribution below which 90 % lies, and above which minus it does: 80 % between."""
FEW_READINGS = 5
"""Number of readings from which on one more is within the spread of the rows of a reading, 0.15 and more in
profiles (``repeated_reads``)."""
_SEVERAL = 0.26
"""Spread of the rate of three and more GPUs of a host that copy simultaneously, where that was not measured;
two reached the rate of one on every measured machine."""
_ESTIMATE = 0.30
"""Least spread of a rate that is an estimate: of copies without a measurement of any machine, and of the
overflow check where a share of Adam's rate is assumed; our choice."""
_RATES = ("read", "write", "read_efficiency", "write_efficiency")
"""Keys of the rates of storage profiles."""
_SHIPPED = "hardware_profiles/"


class Spread(NamedTuple):
    """A Spread is the relative standard deviation of one of the inputs that decide times."""

    value: float
    measured: bool
    """Whether the input was measured on the machine itself: a measured number in a profile of the user."""
    source: str
    """``kind/id`` of the profile; results with the same source have the same error."""


def machine_spreads(
    machine: Machine,
    *,
    ranks: int,
    host_costs: Sequence[Provenance],
    cpu_costs: Sequence[Provenance] = (),
    gpu_rates: Sequence[Provenance] = (),
) -> dict[str, Spread]:
    """Return the spreads of a machine's numbers, by what they decide; those of storage by the name of the
    tier.

    ``host_costs`` are the costs of the host thread that make up most of its time, ``cpu_costs`` further
    numbers that decide the work of the CPU, ``gpu_rates`` the rates of the GPU's kernels, of which the least
    certain decides, if they are not those of PyTorch. The overflow check has one of its own only where its
    rate is less certain than other work of the CPU.
    """
    pcie = machine.topology.gpu_pcie_link.pcie
    links = machine.accelerator.interconnect
    gpu = machine.accelerator
    own = _OwnProfiles(machine.profiles)
    found: dict[str, Spread] = {
        TimeInput.HOST: _host(machine, own, host_costs),
        TimeInput.CPU: own.spread(
            TimeInput.CPU, f"host/{machine.host.id}", [machine.host.cpu_optimizer.limit, *cpu_costs]
        ),
        TimeInput.COPIES: own.spread(
            TimeInput.COPIES, f"pcie/{pcie.id}", [pcie.host_to_device, pcie.device_to_host]
        ),
        TimeInput.PAGEABLE: own.spread(
            TimeInput.PAGEABLE, f"host/{machine.host.id}", [machine.host.pageable_copies]
        ),
        TimeInput.LINKS: own.spread(
            TimeInput.LINKS, f"accelerator/{gpu.id}", [links.efficiency] if links else []
        ),
        TimeInput.GPU: own.spread(
            TimeInput.GPU,
            f"accelerator/{gpu.id}",
            list(gpu_rates) or [gpu.hbm_efficiency, gpu.matmul_efficiency],
        ),
    }
    faults = own.spread(TimeInput.FAULTS, f"host/{machine.host.id}", [machine.host.products.page_faults])
    found[TimeInput.FAULTS] = faults
    pages = DEFAULT_SPREADS[TimeInput.EXPERT_FAULTS]
    beside = pages.measured if machine.host.read_ahead else pages.other
    found[TimeInput.EXPERT_FAULTS] = faults._replace(value=hypot(faults.value, beside))
    cpu = found[TimeInput.CPU]
    if machine.host.cpu_optimizer.overflow_limit is None and cpu.value < _ESTIMATE:
        found[TimeInput.OVERFLOW_CHECK] = cpu._replace(value=_ESTIMATE, measured=False)
    found |= _reads_in_place(machine, found[TimeInput.COPIES])
    copies, memory = found[TimeInput.COPIES], machine.host.stream_fraction
    shared = [
        one for one in machine.inputs() if one.key.startswith(SWITCHES) and not one.key.endswith(".lanes")
    ]
    measured = own.measured(f"host/{machine.host.id}", [memory])
    if shared:
        measured = measured and own.measured(f"platform/{machine.platform}", shared)
    if machine.ranks_per_node(ranks) > 2 and not measured:
        stated = [float(one.spread) for one in shared if one.spread]
        stated += [memory.spread] if memory.spread is not None else []
        several = max(stated, default=_SEVERAL)
        found[TimeInput.COPIES] = copies._replace(value=max(copies.value, several), measured=False)
    return found | _storage(machine, own)


def repeated_reads(times: int) -> str:
    """Return the input that decides how long weights in host memory take that a product reads ``times``.

    Where readings are few, one more matters, and which tiles a kernel has is not known: 246 products of
    16 bits with weights in place, by cuBLAS on one H100, took for a whole layer of Llama-3.1-8B the time of
    1.10, 1.10, 1.20, 1.58, 2.89, 4.30 and 8.81 copies of the weights for 1, 16, 128, 256, 512, 1,024 and
    2,048 rows, where tiles of 256 rows make 1, 1, 1, 1, 2, 4 and 8: kernels for few rows have smaller tiles.
    """
    return TimeInput.TILES if times >= FEW_READINGS else f"{TimeInput.IN_PLACE}, {times} or {times + 1} times"


def _reads_in_place(machine: Machine, copies: Spread) -> dict[str, Spread]:
    """Return the spreads of weights that kernels read in host memory: that of copies and of their rate, and
    for products that may read them again also that of the rows which share a reading, with which one reading
    more is in the 80 % interval."""
    reads, profile = machine.accelerator.reads, f"accelerator/{machine.accelerator.id}"
    rate, rows = (
        DEFAULT_SPREADS[part].other if number.spread is None else number.spread
        for part, number in ((TimeInput.IN_PLACE, reads.rate_share), (TimeInput.TILES, reads.rows))
    )
    once = hypot(copies.value, rate)
    found = {TimeInput.IN_PLACE.value: Spread(once, False, profile)}
    for times in range(1, FEW_READINGS + 1):
        again = max(rows, log((times + 1) / times) / P90)
        found[repeated_reads(times)] = Spread(hypot(once, again), False, profile)
    return found


class _OwnProfiles:
    """Decides which numbers are from profiles of the user's own machine."""

    def __init__(self, uses: Iterable[ProfileUse]) -> None:
        self._own = {f"{use.kind}/{use.id}" for use in uses if not use.path.startswith(_SHIPPED)}

    def measured(self, profile: str, numbers: Iterable[Provenance | ProfileInput]) -> bool:
        return profile in self._own and all(number.origin == "measured" for number in numbers)

    def spread(self, part: TimeInput, profile: str, numbers: list[Provenance]) -> Spread:
        """Return the largest spread that the numbers state, or else the default."""
        measured = bool(numbers) and self.measured(profile, numbers)
        stated = [number.spread for number in numbers if number.spread is not None]
        default = DEFAULT_SPREADS[part].measured if measured else DEFAULT_SPREADS[part].other
        if part in (TimeInput.COPIES, TimeInput.PAGEABLE) and any(
            number.origin == "estimate" for number in numbers
        ):
            default = max(default, _ESTIMATE)
        return Spread(max(stated, default=default), measured, profile)


def _host(machine: Machine, own: _OwnProfiles, costs: Sequence[Provenance]) -> Spread:
    """Return the spread of the thread's speed: of its costs and their factor, where the profile states
    them; costs that were measured do not contain a factor that was not.

    A measured factor is the speed of DeepSpeed's costs, also of those that are the reference host's times it.
    FSDP's are not measured with it.
    """
    factor, profile = machine.host.host_factor, f"host/{machine.host.id}"
    numbers, speed = list(costs), list(costs)
    if factor is not None and (factor.origin == "measured" or not own.measured(profile, costs)):
        numbers.append(factor)
        of_deepspeed = [cost for _, cost in machine.host.deepspeed]
        if factor.origin == "measured" and all(cost in of_deepspeed for cost in costs):
            speed = [factor]
    return own.spread(TimeInput.HOST, profile, numbers)._replace(measured=own.measured(profile, speed))


def _storage(machine: Machine, own: _OwnProfiles) -> dict[str, Spread]:
    """Return the spreads of the rates of the storage tiers, by tier."""
    origins: dict[str, set[str]] = {}
    for number in machine.numbers:
        if number.key in _RATES:
            origins.setdefault(number.profile, set()).add(number.origin)
    kinds = {use.id: use.kind for use in machine.profiles}
    default = DEFAULT_SPREADS[TimeInput.STORAGE]
    found = {}
    for name, target in machine.targets.items():
        profile = f"{kinds.get(target.id, target.kind)}/{target.id}"
        measured = own.measured(profile, []) and origins.get(target.id) == {"measured"}
        rates = [target.drive.read, target.drive.write] if target.drive else []
        stated = [rate.spread for rate in rates if rate.spread is not None]
        value = max(stated, default=default.measured if measured else default.other)
        found[name] = Spread(value, measured, profile)
    return found


# -- where the numbers that decide times are from, of each shipped profile, in a few words ---------


_CALLED = {"measured": "measured", "spec": "data sheet", "quote": "quote", "estimate": "estimate"}
"""Words for origins; ``measured`` in a shipped profile is on a machine of its kind."""
_ELSEWHERE = "on other machines"
_STORAGE = {"reads": "read", "writes": "write", "latency": "latency"}
_PARTS: Mapping[str, Mapping[str, str]] = {
    "drive": {"reads": "read", "writes": "write", "latency": "read_latency"},
    "nfs": _STORAGE,
    "nic": {"rate": "achieved", "latency": "latency"},
    "nvmeof": {"rate": "efficiency", "latency": "transport_latency"},
    "pcie": {"copies": "host_to_device", "latency": "latency"},
    "pfs": _STORAGE,
    "raid": {"reads": "read_efficiency", "writes": "write_efficiency"},
    "remote": {"rate": "efficiency", "latency": "latency"},
}
"""Keys of the numbers that decide times, by kind of profile and in words."""


def profile_evidence(kind: str, name: str) -> dict[str, str]:
    """Return where the numbers of a shipped profile are from, by part.

    The words are those of ``_CALLED``, or the machines of another kind on which an estimate was measured.
    """
    profile = load_profile(kind, name)
    if isinstance(profile, Host):
        return _host_origins(profile)
    if isinstance(profile, Accelerator):
        return {"arithmetic": _called(profile.matmul_efficiency), "memory": _memory_of(profile)}
    if isinstance(profile, Costs):
        origins = Counter(one.price.origin for one in profile.devices.values() if one.price)
        return {"most prices": _CALLED[origins.most_common(1)[0][0]]} if origins else {}
    if not isinstance(profile, PlatformProfile):
        keys = _PARTS.get(kind, {})
        return {part: _called(getattr(profile, key)) for part, key in keys.items()} or {"all": _ELSEWHERE}
    host, gpu = load_profile("host", profile.host), load_profile("accelerator", profile.accelerator)
    assert isinstance(host, Host)
    assert isinstance(gpu, Accelerator)
    parts = _host_origins(host)
    parts["GPU"] = _memory_of(gpu)
    rates = [switch.host_to_device for switch in profile.switches.values() if switch.host_to_device]
    return parts | ({"copies of several GPUs": _called(rates[0])} if rates else {})


def evidence_sentence(parts: Mapping[str, str]) -> str:
    """Return the parts by what they are from: "measured: memory; data sheet: GPU"."""
    order = [
        _CALLED["measured"],
        *sorted(set(parts.values()) - set(_CALLED.values())),
        *list(_CALLED.values())[1:],
    ]
    grouped = {origin: [part for part, other in parts.items() if other == origin] for origin in order}
    return "; ".join(f"{origin}: {', '.join(found)}" for origin, found in grouped.items() if found)


def _memory_of(gpu: Accelerator) -> str:
    return _called(gpu.hbm_efficiency if gpu.hbm_efficiency.origin == "measured" else gpu.hbm_bandwidth)


def _host_origins(host: Host) -> dict[str, str]:
    thread = host.host_factor or host.deepspeed.module_call
    memory = host.stream_fraction if host.stream_fraction.origin == "measured" else host.memory_bandwidth
    numbers: dict[str, Provenance] = {
        "host thread": thread,
        "CPU Adam": host.cpu_optimizer.limit,
        "memory": memory,
    }
    return {part: _called(number) for part, number in numbers.items()}


def _called(number: Provenance) -> str:
    return f"on {number.measured_on}" if number.measured_on else _CALLED[number.origin]
