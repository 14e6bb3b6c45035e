"""Where the numbers that decide times are from, of each shipped profile, in a few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from simoffload.hardware.costs import Costs
from simoffload.hardware.host import Host
from simoffload.hardware.loading import load_profile
from simoffload.hardware.profiles import Accelerator
from simoffload.hardware.quantities import Provenance
from simoffload.hardware.wiring import PlatformProfile

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
        return _host(profile)
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
    parts = _host(host)
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


def _host(host: Host) -> dict[str, str]:
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
