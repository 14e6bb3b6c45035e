"""Formatting of numbers, names and sentences for reports, and grouping of the values of a result.

All renderers, tables and charts use these functions; none is for a single kind of report.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from simoffload.errors import printable
from simoffload.hardware import in_dram, in_hbm
from simoffload.results import (
    LinkUse,
    PassResult,
    PassWork,
    SimulationResult,
    TierUse,
    TimedPhase,
    TrainingResult,
)
from simoffload.schedule import Cause
from simoffload.units import format_bytes, format_rate, format_seconds, percent, plural

_ORIGINS = ("measured", "spec", "estimate")
_MOST_REASONS = 3
_IDENTIFIER = re.compile(r"[\w-]*[_\d]")
_GAP = "  "


# -- text ----------------------------------------------------------------------------------------


class NameFirst(str):
    """A NameFirst is a sentence that begins with a name, such as that of a tier, which keeps its lower-case
    letter."""

    __slots__ = ()


def sentence(text: str) -> str:
    """Return text with a capital letter and a full stop; a name or an identifier at its beginning is not
    changed."""
    if not (isinstance(text, NameFirst) or _IDENTIFIER.match(text)):
        text = f"{text[:1].upper()}{text[1:]}"
    return f"{text}{'' if text.endswith('.') else '.'}"


def joined(names: Sequence[str]) -> str:
    """Return names in a row; those that consist of several parts are further apart."""
    return ("; " if any(", " in one for one in names) else ", ").join(names)


def uncapitalized(text: str) -> str:
    """Return text as a continuation of a sentence: "time per token" for "Time per token"."""
    return text[:1].lower() + text[1:]


def place(target: str, uses: Sequence[TierUse] = ()) -> str:
    """Return the place of the weights as text: "in HBM", "in DRAM", "on raid"; of other tiers ``uses``
    know which are memory."""
    if in_hbm(target) or in_dram(target):
        return f"in {target.upper()}"
    memory = any(use.row.is_memory for use in uses if use.tier == target)
    return f"{'in' if memory else 'on'} {printable(target)}"


def columns(rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Align cells in columns that are two spaces apart, those of the columns in ``right`` to the right.

    Every line is as wide as the table. Control characters are escaped, because cells may come from files.
    """
    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


# -- numbers -------------------------------------------------------------------------------------


def at_most(fraction: float) -> str:
    """Return the limit of a fraction: "of at most 1.2 %", or "below 0.1 %"."""
    return "below 0.1 %" if fraction < 0.001 else f"of at most {percent(ceil(1000 * fraction) / 1000)}"


def span(low: str, high: str, *, value: str = "") -> str:
    """Return two formatted numbers as an interval: "1.98 to 3.15 s", "944 ms to 1.07 s".

    Next to a ``value`` in the same unit they have none: "1.98 to 3.15".
    """
    number, _, unit = low.partition(" ")
    last, _, other = high.partition(" ")
    if unit != other:
        return f"{low} to {high}"
    return f"{number} to {last if value.partition(' ')[2] == unit else high}"


def minus(text: str) -> str:
    """Write a number with the sign U+2212 instead of a hyphen."""
    return text.replace("-", "−")


def counted(size: int, use: TierUse) -> str:
    """Return a size on a tier in the unit that is usual for this tier; negative if it is missing."""
    return ("−" if size < 0 else "") + format_bytes(abs(size), binary=use.row.is_memory)


def origins(counts: Mapping[str, int]) -> str:
    """Return the number of inputs by origin, such as "12 measured, 120 spec, 3 estimate"."""
    known = [name for name in _ORIGINS if name in counts]
    return ", ".join(f"{counts[name]} {name}" for name in (*known, *sorted(counts.keys() - set(known))))


# -- passes --------------------------------------------------------------------------------------


def bottleneck(one: PassResult, called: str = "") -> str:
    """Return the bottleneck of a pass, such as "raid read, 81 % of decode 1, limited by nvme"; ``called``
    replaces the name of the pass."""
    share = one.bottleneck
    part = f"{printable(share.cause_text)}, {percent(share.exposed_s / one.time_s)}"
    limit = f", limited by {printable(share.limit)}" if share.limit else ""
    return f"{part} of {called or printable(one.name)}{limit}"


def largest(one: PassResult) -> str:
    """Return the bottleneck of a pass with its share, such as "raid read 81 %"."""
    return f"{printable(one.bottleneck.cause_text)} {percent(one.bottleneck.exposed_s / one.time_s)}"


def limited_by(one: PassResult) -> str:
    """Return the limit of the bottleneck, such as ", limited by ib0 in"; "" if nothing else limits it."""
    share = one.bottleneck
    return f", limited by {printable(share.limit)}" if share.limit not in {"", share.cause_text} else ""


def bound(one: PassResult, called: str = "") -> str:
    """Return the share of the bound, such as "74 %: decode 1 takes 2 s; it would take 1.48 s if the busiest
    link (raid) never waited"; ``called`` replaces the name of the pass."""
    name = printable(one.bound_by)
    busiest = (
        f"the busiest link ({name})"
        if one.bound_by in {use.link for use in one.links}
        else f"the {name.removesuffix(' compute')}"
    )
    takes = f"{called or printable(one.name)} takes {format_seconds(one.time_s)}"
    least = f"it would take {format_seconds(one.bound_s)} if {busiest} never waited"
    return f"{percent(one.bound_s / one.time_s)}: {takes}; {least}"


def group_bounds(step: PassResult) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Return the bounds [s], the largest first; those that differ by up to about a thousandth are one
    entry."""
    groups: dict[str, list[str]] = {}
    for name in sorted(step.bounds, key=lambda name: (-step.bounds[name], name)):
        groups.setdefault(f"{step.bounds[name]:.3e}", []).append(name)
    return tuple((tuple(names), step.bounds[names[0]]) for names in groups.values())


def group_links(links: Iterable[LinkUse]) -> tuple[tuple[tuple[str, ...], LinkUse], ...]:
    """Return names of links with their use; those that differ by up to about a thousandth are one entry."""
    groups: dict[tuple[str, ...], list[LinkUse]] = {}
    for use in links:
        numbers = (use.size, use.busy_s, use.saturated_s, use.capacity)
        groups.setdefault((use.unit, *(f"{number:.3e}" for number in numbers)), []).append(use)
    return tuple((tuple(use.link for use in uses), uses[0]) for uses in groups.values())


def group_name(names: Sequence[str]) -> str:
    """Return a name for several equal values: the only one, or the first one with the number of others."""
    first = printable(names[0])
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more like it"


def carried(use: LinkUse) -> str:
    """Return the load of a link as text: bytes, or the time of cores."""
    return format_bytes(use.size) if use.unit == "B" else f"{format_seconds(use.size / 1e9)} of a core"


def capacity(use: LinkUse) -> str:
    """Return the capacity of a link as text: a rate, or a number of cores."""
    return format_rate(use.capacity) if use.unit == "B" else plural(round(use.capacity / 1e9), "core")


# -- training ------------------------------------------------------------------------------------


def stage_needs(result: TrainingResult) -> tuple[tuple[str, tuple[TierUse, ...]], ...]:
    """Return the needs of each tier at each stage, for tiers that hold something at any stage."""
    known = {use.tier: use for use in result.capacity}
    for _, uses in result.memory_stages:
        known |= {use.tier: use for use in uses if use.tier not in known}
    empty = {tier: use._replace(needed=0, terms=()) for tier, use in known.items()}
    return tuple(
        (name, tuple((empty | {use.tier: use for use in uses}).values()))
        for name, uses in result.memory_stages
    )


def phase_names(result: TrainingResult) -> tuple[str, ...]:
    """Forward, backward, optimizer: each once, in order."""
    return tuple(dict.fromkeys(phase.name for phase in result.phases))


def times(phase: TimedPhase) -> str:
    """Return how often a phase occurs in a step: "3 ×", "1/4 ×"."""
    return f"{phase.times} ×"


def causes_by_phase(result: TrainingResult) -> dict[Cause, tuple[float, ...]]:
    """Return, for every cause of the step in order, its exposed time [s] in each of ``phase_names``."""
    names = phase_names(result)
    exposed: dict[Cause, dict[str, float]] = {}
    for phase in result.phases:
        for share in phase.result.shares:
            by_phase = exposed.setdefault(share.cause, dict.fromkeys(names, 0.0))
            by_phase[phase.name] += float(phase.times) * share.exposed_s
    causes = [share.cause for share in result.step.shares] if result.step else []
    return {cause: tuple(exposed[cause].values()) for cause in causes}


# -- simulation ----------------------------------------------------------------------------------


def simulated_work(result: SimulationResult) -> str:
    """Return sentences about the number of simulated operations, and why others could not be skipped."""
    if not result.work:
        return ""
    operations, run = (sum(getattr(one, name) for one in result.work) for name in ("operations", "run"))
    first = f"all {operations:,} operations were simulated"
    if run < operations:
        first = f"{run:,} of {operations:,} operations were simulated, the rest are exact repetitions"
    found = _reasons(result.work)
    reasons = [f"{group_name(names)}: {printable(why)}" for why, names in found]
    more = [f"and {len(found) - _MOST_REASONS} more reasons"] if len(found) > _MOST_REASONS else []
    parts = (first, *_extrapolated(result.particulars()))
    return "; ".join((*parts, *reasons[:_MOST_REASONS], *more))


def _extrapolated(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence about the decode steps that were not simulated."""
    steps, simulated, estimated = (
        values.get(f"decode_steps{which}", 0) for which in ("", "_simulated", "_estimated")
    )
    if steps == simulated:
        return ()
    exact = steps - simulated - estimated
    verb, them = ("was", "it") if simulated == 1 else ("were", "them")
    follows = "follows" if exact == 1 else "follow"
    text = f"{simulated:,} of {steps:,} decode steps {verb} simulated"
    others = f"the other {exact:,}" if not estimated else f"{exact:,} more"
    parts = [f"{text}, {others} {follows} from {them} exactly" if exact else text]
    if estimated:
        are = "is" if estimated == 1 else "are"
        parts.append(
            f"{estimated:,} {are} interpolated, each with an error {at_most(values['decode_bound'])}"
        )
    return tuple(parts)


def _reasons(work: Iterable[PassWork]) -> list[tuple[str, list[str]]]:
    """Return sentences about repetition that was simulated: why, and in which passes."""
    reasons: dict[str, list[str]] = {}
    for one in work:
        ranks = [f"ranks simulated separately ({one.how.separate_ranks})"] if one.how.separate_ranks else []
        for why in (*ranks, *one.how.not_steady):
            reasons.setdefault(why, []).append(one.name)
    return list(reasons.items())
