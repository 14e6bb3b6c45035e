"""Where the numbers that decide times are from, and those of each shipped profile in a few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

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
    COPIES = "copies"
    PAGEABLE = "copies of pageable memory"
    LINKS = "links between GPUs"
    GPU = "GPU"
    FAULTS = "page faults"
    EXPERT_FAULTS = "page faults of experts"


P90 = 1.2816
"""Quantile of the normal distribution below which 90 % lies, and above which minus it does: 80 % between."""
HOST_SPREAD = 0.24
"""Relative standard deviation of the speed of the host thread among virtual machines (``validation``)."""
Evidence = Literal["own", "same kind", "shipped", "estimated"]
"""What numbers are: measured on the machine itself, on one other machine of its kind, on others whose median
a shipped profile has, or not on its kind: estimates and data sheets."""
_RATES = ("read", "write", "read_efficiency", "write_efficiency")
"""Keys of the rates of storage profiles."""
_SHIPPED = "hardware_profiles/"


class InputSource(NamedTuple):
    """An InputSource says what one of the inputs that decide times rests on."""

    evidence: Evidence
    profile: str
    """``kind/id`` of the profile; results with the same profile have the same error."""


def input_sources(
    machine: Machine,
    *,
    ranks: int,
    host_costs: Sequence[Provenance],
    cpu_costs: Sequence[Provenance] = (),
    gpu_rates: Sequence[Provenance] = (),
) -> dict[str, InputSource]:
    """Return what a machine's numbers rest on, by what they decide; those of storage by the name of the tier.

    ``host_costs`` are the costs of the host thread that make up most of its time, ``cpu_costs`` the numbers
    that decide the work of the CPU, if it is not Adam's, ``gpu_rates`` the rates of the GPU's kernels, if
    they are not those of PyTorch. Page faults are measured where it is known how far Linux reads ahead.
    """
    pcie, host, gpu = machine.topology.gpu_pcie_link.pcie, machine.host, machine.accelerator
    of_host, of_gpu, of_link = f"host/{host.id}", f"accelerator/{gpu.id}", f"pcie/{pcie.id}"
    own = _OwnProfiles(machine.profiles)
    several = [
        one for one in machine.inputs() if one.key.startswith(SWITCHES) and not one.key.endswith(".lanes")
    ]
    copies: list[Provenance | ProfileInput] = [pcie.host_to_device, pcie.device_to_host]
    if machine.ranks_per_node(ranks) > _SHARING:
        copies += [host.stream_fraction, *several]
    faults = own.source(of_host, [host.products.page_faults])
    kernels = list(gpu_rates) or [gpu.hbm_efficiency, gpu.matmul_efficiency]
    found: dict[str, InputSource] = {
        TimeInput.HOST: own.source(of_host, _speed(machine, own, host_costs)),
        TimeInput.CPU: own.source(of_host, list(cpu_costs) or [host.cpu_optimizer.limit]),
        TimeInput.COPIES: own.source(of_link, copies),
        TimeInput.PAGEABLE: own.source(of_host, [host.pageable_copies]),
        TimeInput.LINKS: own.source(of_gpu, [gpu.interconnect.efficiency] if gpu.interconnect else []),
        TimeInput.GPU: own.source(of_gpu, kernels),
        TimeInput.FAULTS: faults,
        TimeInput.EXPERT_FAULTS: faults if host.read_ahead else faults._replace(evidence="estimated"),
    }
    return found | _storage(machine, own)


_SHARING = 2
"""GPUs of a host that reach the rate of one when they copy simultaneously, as on every measured machine."""


class _OwnProfiles:
    """Decides which numbers are from profiles of the user's own machine."""

    def __init__(self, uses: Iterable[ProfileUse]) -> None:
        self._own = {f"{use.kind}/{use.id}" for use in uses if not use.path.startswith(_SHIPPED)}

    def source(self, profile: str, numbers: Iterable[Provenance | ProfileInput]) -> InputSource:
        """Return what the numbers of a profile rest on: on measurements only if all of them do."""
        origins = {number.origin for number in numbers}
        if origins != {"measured"}:
            return InputSource("estimated", profile)
        return InputSource("own" if profile in self._own else "shipped", profile)


def _speed(machine: Machine, own: _OwnProfiles, costs: Sequence[Provenance]) -> list[Provenance]:
    """Return the numbers that are the thread's speed: its costs and their factor; costs that were measured do
    not contain a factor that was not.

    A measured factor is the speed of DeepSpeed's costs, also of those that are the reference host's times it.
    FSDP's are not measured with it.
    """
    factor, of_deepspeed = machine.host.host_factor, [cost for _, cost in machine.host.deepspeed]
    if factor is not None and factor.origin == "measured" and all(cost in of_deepspeed for cost in costs):
        return [factor]
    profile = f"host/{machine.host.id}"
    if factor is None or (own.source(profile, costs).evidence == "own" and factor.origin != "measured"):
        return list(costs)
    return [*costs, factor]


def _storage(machine: Machine, own: _OwnProfiles) -> dict[str, InputSource]:
    """Return what the rates of the storage tiers rest on, by tier."""
    rates: dict[str, list[ProfileInput]] = {}
    for number in machine.numbers:
        if number.key in _RATES:
            rates.setdefault(number.profile, []).append(number)
    kinds = {use.id: use.kind for use in machine.profiles}
    return {
        name: own.source(f"{kinds.get(target.id, target.kind)}/{target.id}", rates.get(target.id, []))
        for name, target in machine.targets.items()
    }


# -- shipped profiles in a few words ----------------------------------------------------------------


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
