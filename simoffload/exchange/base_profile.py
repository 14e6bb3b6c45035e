"""The base profile of a measured one: which of its numbers are kept, lowered or left out.

A benchmark of one direction does not give the rate of the other, and the rate of the base profile, which is a
different device, may be implausible next to the measured one. Such a rate is lowered in proportion and marked
an estimate; a number of requests that exceeds the measured rate is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, NamedTuple

from simoffload.hardware import Drive, Entry, Profile, RateCurve, inherited
from simoffload.units import format_rate

_HEAD = frozenset({"kind", "id", "name", "notes"})
_REQUEST = 4096
"""[B] Size of the random requests that profiles count."""

_BESIDE = {
    "drive": {"write": "read"},
    "pcie": {"host_to_device": "device_to_host", "device_to_host": "host_to_device"},
}
"""The measured rate with which each unmeasured rate is compared, by kind of profile."""
_MOST = 1.5
"""The largest plausible ratio to that rate (our choice). In the shipped profiles no drive writes faster than
it reads, and both directions of PCIe differ by less than a fifth."""


class BaseProfile(NamedTuple):
    """The part of the base profile that goes into the new one."""

    data: dict[str, Any]
    """The kept numbers by key, as in the file."""
    estimated: tuple[str, ...]
    """The keys whose rates were lowered."""
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


def base_profile(
    base: Entry, measured: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Profile]
) -> BaseProfile:
    """Return what ``base`` has in addition to ``measured``, as far as it is plausible with it.

    ``read`` makes a profile from keys and statements.
    """
    # A curve of the old drive would override the new rate.
    document = base.document.data
    own = {
        key: value for key, value in document.items() if key not in {*_HEAD, *measured, "read_by_outstanding"}
    }
    cache = own.pop("write_cache", None)  # without it any new rate of writing is valid
    owner = base.profile.id
    source = f"not measured here; of {owner}: {{}}"
    data: dict[str, Any] = inherited(own, owner, source=source)
    lowered = list(_lowered(base, measured, read({**data, **measured})))
    data |= {one.key: one.statement for one in lowered}
    beside = read({**data, **measured})
    if cache is not None:
        data |= inherited({"write_cache": cache}, owner, source=source)
    refused = dict(_refused(base, data, beside))
    data = {key: value for key, value in data.items() if key not in refused}
    warnings = [*(one.warning for one in lowered), *refused.values()]
    estimated = tuple(one.key for one in lowered)
    if kept := ", ".join(_numbers(base, {key for key in data if key not in estimated})):
        warnings.append(f"not measured, kept from {base.profile.id}: {kept}")
    return BaseProfile(data, estimated, tuple(refused), tuple(warnings))


class _Lowered(NamedTuple):
    key: str
    statement: dict[str, Any]
    warning: str


def _lowered(base: Entry, measured: Mapping[str, Any], profile: Profile) -> Iterator[_Lowered]:
    """Return the rates of the base profile that are too high, lowered in proportion to a measured rate."""
    for key, beside in _BESIDE.get(base.use.kind, {}).items():
        if key in measured or beside not in measured:
            continue
        seen, rate = _top(profile, beside), _top(profile, key)
        share = seen / _top(base.profile, beside)
        if rate <= _MOST * seen or share >= 1:
            continue
        warning = (
            f"not measured: {key}; {format_rate(rate)} of {base.profile.id} is not plausible next to the "
            f"measured {beside} of {format_rate(seen)}, so the profile has the proportional estimate "
            f"{format_rate(rate * share)}; measure it"
        )
        yield _Lowered(key, _scaled(base, key, beside, share), warning)


def _refused(base: Entry, data: Mapping[str, Any], profile: Profile) -> Iterator[tuple[str, str]]:
    """Return the optional keys of ``data`` that contradict the drive's rates, each with the reason."""
    drive = base.profile
    if not isinstance(drive, Drive) or not isinstance(profile, Drive):
        return
    for key, count, rate in (
        ("random_read", drive.random_read, profile.read.value),
        ("random_write", drive.random_write, profile.write.value),
    ):
        if key in data and count is not None and count.value * _REQUEST > rate:
            needed, has = (
                format_rate(count.value * _REQUEST),
                f"{key.removeprefix('random_')} is {format_rate(rate)}",
            )
            yield (
                key,
                f"not measured: {key}; {count.value} of {drive.id} would need {needed} where {has}: left out",
            )
    if "write_cache" in data and drive.sustained_write > profile.write.value:
        after, write = format_rate(drive.sustained_write), format_rate(profile.write.value)
        why = f"its rate_after of {after} in {drive.id} is above write {write}"
        yield "write_cache", f"not measured: write_cache; {why}: left out"


def _numbers(base: Entry, keys: Set[str]) -> Iterator[str]:
    """Return each number of the base profile below one of ``keys``, with its key."""
    for one in base.inputs():
        if one.key.partition(".")[0] in keys:
            yield f"{one.key} {one.text}"


def _top(profile: Profile, key: str) -> float:
    """Return a rate [B/s], or that of the fastest point of a curve."""
    value = getattr(profile, key)
    return float(value.top if isinstance(value, RateCurve) else value.value)


def _scaled(base: Entry, key: str, beside: str, share: float) -> dict[str, Any]:
    """Return the rates of a key times ``share``, marked as an estimate."""
    node, value = base.document.data[key], getattr(base.profile, key)
    source = f"not measured here; {key} of {base.profile.id} times {share:.3g}, as {beside} was measured"
    provenance = {"origin": "estimate", "source": source, "date": node["date"]}
    if isinstance(value, RateCurve):
        points = [
            [size, _rate(rate * share)]
            for (size, _), (_, rate) in zip(node["points"], value.points, strict=True)
        ]
        return {"points": points} | provenance
    return {"value": _rate(value.value * share)} | provenance


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.4g} MB/s" if rate < 1e10 else f"{rate / 1e9:.4g} GB/s"
