"""The sentences and numbers that terminal and page share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from simoffload.errors import printable
from simoffload.results.capacity import TierUse
from simoffload.results.passes import LinkUse, PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.timeline import PassWork
from simoffload.units import format_bytes, format_number, format_rate, format_seconds

__all__ = [
    "LIMITS",
    "LinkGroup",
    "bottleneck",
    "bound",
    "capacity",
    "carried",
    "counted",
    "group_bounds",
    "group_links",
    "group_name",
    "held_back",
    "largest",
    "origins",
    "per_second",
    "percent",
    "place",
    "plural",
    "sentence",
    "uncapitalized",
    "worked",
]

LIMITS = (
    "The profiles hold data-sheet and published values and timings of single operations; nothing here has "
    "been calibrated against runs on the machine itself yet. Ratios between targets are safer than "
    "absolute times."
)
"""What must not be concluded."""

_ORIGINS = ("measured", "spec", "estimate")
_MOST_REASONS = 3
_BINARY = {"hbm", "dram"}  # memory is sold and shown by its tools in powers of two, storage is not


def percent(fraction: float) -> str:
    """ "81 %"; one digit more below ten per cent, where it matters."""
    if 0 < fraction < 0.0005:
        return "<0.1 %"
    return f"{fraction * 100:.1f} %" if 0 < fraction < 0.0995 else f"{fraction * 100:.0f} %"


def plural(count: int, noun: str) -> str:
    """ "1 GPU", "8 GPUs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sentence(text: str) -> str:
    """Text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def uncapitalized(text: str) -> str:
    """Text as it goes on within a sentence: "time per token" of "Time per token"."""
    return text[:1].lower() + text[1:]


def place(target: str) -> str:
    """Where the weights are: "in HBM", "in DRAM", "on raid"."""
    return {"hbm": "in HBM", "dram": "in DRAM"}.get(target, f"on {printable(target)}")


def bottleneck(one: PassResult, called: str = "") -> str:
    """ "raid read takes 81 % of decode 1, held back by nvme"; ``called`` is another name for the pass."""
    share = one.bottleneck
    part = percent(share.exposed_s / one.time_s)
    held = f", held back by {printable(share.limit)}" if share.limit else ""
    return f"{printable(share.cause)} takes {part} of {called or printable(one.name)}{held}"


def largest(one: PassResult) -> str:
    """ "raid read 81 %": what most of a pass goes to."""
    return f"{printable(one.bottleneck.cause)} {percent(one.bottleneck.exposed_s / one.time_s)}"


def held_back(one: PassResult) -> str:
    """ ", held back by ib0 in": what else keeps the largest part of a pass from being faster, if anything."""
    share = one.bottleneck
    return f", held back by {printable(share.limit)}" if share.limit not in {"", share.cause} else ""


def bound(one: PassResult) -> str:
    """ "74 % of the speed of light (14.2 s, set by raid)"."""
    light = f"{format_seconds(one.bound_s)}, set by {printable(one.bound_by)}"
    return f"{percent(one.bound_s / one.time_s)} of the speed of light ({light})"


def counted(size: int, use: TierUse) -> str:
    """A size on a tier, negative for what is missing, in the unit that is usual there."""
    return ("−" if size < 0 else "") + format_bytes(abs(size), binary=use.kind in _BINARY)


def per_second(rate: float, unit: str = " tokens/s") -> str:
    """ "3.86 tokens/s", "1,204 tokens/s"."""
    return f"{rate:,.0f}{unit}" if rate >= 100 else f"{format_number(rate)}{unit}"


def origins(counts: Mapping[str, int]) -> str:
    """ "12 measured, 120 spec, 3 estimate"."""
    known = [name for name in _ORIGINS if name in counts]
    return ", ".join(f"{counts[name]} {name}" for name in (*known, *sorted(counts.keys() - set(known))))


def worked(result: SimulationResult) -> tuple[str, ...]:
    """How many operations were run and how many counted, and where there was nothing to count."""
    if not result.work:
        return ()
    operations, run = (sum(getattr(one, name) for one in result.work) for name in ("operations", "run"))
    first = f"all {operations:,} operations were run"
    if run < operations:
        first = f"{run:,} of {operations:,} operations were run; the others are copies to the picosecond"
    found = _reasons(result.work)
    reasons = [f"{group_name(names)}: {printable(why)}" for why, names in found]
    more = [f"and {len(found) - _MOST_REASONS} more like this"] if len(found) > _MOST_REASONS else []
    return (first, *_derived(result.particulars()), *reasons[:_MOST_REASONS], *more)


def _derived(derived: Mapping[str, Any]) -> tuple[str, ...]:
    """Which decode steps were not simulated."""
    steps, simulated, estimated = (
        derived.get(f"decode_steps{which}", 0) for which in ("", "_simulated", "_estimated")
    )
    if steps == simulated:
        return ()
    followed = steps - simulated - estimated
    parts = [f"{followed:,} of {steps:,} decode steps follow exactly from the {simulated:,} simulated"]
    if estimated:
        off = percent(derived["decode_bound"])
        parts.append(f"{estimated:,} are interpolated, each off by at most {off}")
    return ("; ".join(parts),)


def _reasons(work: Iterable[PassWork]) -> list[tuple[str, list[str]]]:
    """Why something was run although it may look alike, and in which passes."""
    reasons: dict[str, list[str]] = {}
    for one in work:
        ranks = [f"every rank by itself ({one.how.not_folded})"] if one.how.not_folded else []
        for why in (*ranks, *one.how.not_jumped):
            reasons.setdefault(why, []).append(one.name)
    return list(reasons.items())


def group_name(names: Sequence[str]) -> str:
    """One name, or the first and how many are like it."""
    first = printable(names[0])
    return first if len(names) == 1 else f"{first} and {len(names) - 1} alike"


class LinkGroup(NamedTuple):
    """Links that carried the same in the same time, such as those of the GPUs of one machine."""

    names: tuple[str, ...]
    use: LinkUse
    """Of each of them."""


def carried(use: LinkUse) -> str:
    """What crossed a link: bytes, or of cores their time."""
    return format_bytes(use.size) if use.unit == "B" else f"{format_seconds(use.size / 1e9)} of a core"


def capacity(use: LinkUse) -> str:
    """What a link carries at most: a rate, or cores."""
    return format_rate(use.capacity) if use.unit == "B" else plural(round(use.capacity / 1e9), "core")


def group_links(links: Iterable[LinkUse]) -> tuple[LinkGroup, ...]:
    """Put links together that differ by no more than about a thousandth, in the order given."""
    groups: dict[tuple[str, ...], list[LinkUse]] = {}
    for use in links:
        numbers = (use.size, use.busy_s, use.saturated_s, use.capacity)
        groups.setdefault((use.unit, *(f"{number:.3e}" for number in numbers)), []).append(use)
    return tuple(LinkGroup(tuple(use.link for use in uses), uses[0]) for uses in groups.values())


def group_bounds(step: PassResult) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Bounds [s], largest first, those together that differ by no more than about a thousandth."""
    groups: dict[str, list[str]] = {}
    for name in sorted(step.bounds, key=lambda name: (-step.bounds[name], name)):
        groups.setdefault(f"{step.bounds[name]:.3e}", []).append(name)
    return tuple((tuple(names), step.bounds[names[0]]) for names in groups.values())
