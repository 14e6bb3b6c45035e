"""Sections about memory: the need of each tier, and changes that would make the scenario fit."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from simoffload.report import charts
from simoffload.report.document import Chart, Datum, Entry, Listing, ReportSection, ReportTable, held
from simoffload.report.formatting import NameFirst, counted, stage_needs
from simoffload.results import (
    CacheBlocks,
    Change,
    InferenceResult,
    Remedies,
    SimulationResult,
    TierUse,
    TrainingResult,
)
from simoffload.units import format_bytes

if TYPE_CHECKING:
    from simoffload.planning.answers import Answer
    from simoffload.planning.sizing import LargestValue

CAPACITY = "Capacity"
CHANGES = "Changes that make it fit"
CACHES = "Placements of the key-value cache"
_CACHE_NOTES = (
    "largest batch: sequences with these lengths; longest context: prompt and output with this batch",
    "* all that the model or a scenario can have; – not even 1; as it is: with this batch and these lengths",
)
_UNITS = (
    "GiB, TiB: powers of 1024, as GPU and memory tools show them. GB, TB: powers of 1000, as storage "
    "is sold. Pinned: page-locked host memory."
)


def capacity(result: SimulationResult) -> ReportSection:
    """Return every tier with the parts of its memory."""
    tables = [_peaks(result.capacity)]
    sentences: list[str] = [] if result.fits else [NameFirst(one) for one in result.advice]
    if isinstance(result, InferenceResult) and result.cache_blocks is not None:
        sentences.append(_blocks(result.cache_blocks, result.replicas))
    chart = Chart("what each tier must hold", partial(charts.capacity, result.capacity))
    if isinstance(result, TrainingResult):
        tables += [*_memory_stages(result), *_estimates(result)]
        if len(result.memory_stages) > 1:
            label = "what each tier must hold at each stage of the run"
            chart = Chart(label, partial(charts.memory, result))
    return ReportSection(CAPACITY, tuple(sentences), tuple(tables), (_UNITS,), charts=(chart,))


def _blocks(cache: CacheBlocks, replicas: int) -> str:
    """Return the number of blocks and tokens of a paged cache on each GPU, which serves one replica."""
    tokens = f"{cache.number:,} blocks of {cache.size} tokens"
    if cache.groups > 1:
        tokens += f" in one of {cache.groups} groups of layers"
    tokens += f", {cache.tokens:,} tokens in all sequences"
    if replicas > 1:
        tokens += f" of one replica, {cache.tokens * replicas:,} in those of all {replicas}"
    if cache.stated:
        return f"key-value cache of each GPU: {tokens}, as stated (kv_blocks)"
    return f"room for the key-value cache of each GPU at {cache.utilization:g} of its memory: {tokens}"


def _peaks(uses: Iterable[TierUse]) -> ReportTable:
    rows: list[tuple[Entry, ...]] = []
    refused: list[int] = []
    for use in uses:
        if not use.fits:
            refused.append(len(rows))
        sizes = (held(size, use) for size in (use.needed, use.capacity, use.headroom))
        answer = "fits" if use.fits else "does not fit"
        rows.append((use.tier, "total", *sizes, use.scope, answer, use.stage))
        for term in use.terms:
            name = f"{term.name}, pinned" if term.pinned else term.name
            rows.append((use.tier, name, held(term.size, use), *[""] * 5))
    head: tuple[str, ...] = ("tier", "part", "needed", "capacity", "free", "scope", "", "peak stage")
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return ReportTable("", head, tuple(rows), (2, 3, 4), keys=2, refused=tuple(refused), grouped=True)


def _memory_stages(result: TrainingResult) -> tuple[ReportTable, ...]:
    """Return the memory of each tier at each stage; nothing if there is only one stage."""
    found = stage_needs(result)
    if len(found) < 2:
        return ()
    head = ("stage", *(f"{use.tier} {use.scope}" for use in found[0][1]))
    rows: list[tuple[Entry, ...]] = [(name, *map(_at_a_stage, uses)) for name, uses in found]
    fits = [all(use.fits for use in uses) for _, uses in found]
    if any(use.passing for use in result.capacity):
        rows.append(("from the second step on", *(held(use.steady, use) for use in result.capacity)))
        fits.append(all(use.steady <= use.capacity for use in result.capacity))
    refused = tuple(number for number, fit in enumerate(fits) if not fit)
    numbers = tuple(range(1, len(head)))
    return (ReportTable("Memory needed at each stage", head, tuple(rows), numbers, refused=refused),)


def _at_a_stage(use: TierUse) -> Datum:
    cell = held(use.needed, use)
    return cell if use.fits else cell._replace(text=f"{cell.text} (does not fit)")


def _estimates(result: TrainingResult) -> tuple[ReportTable, ...]:
    """Return published rules of thumb for the memory; nothing if there are none."""
    rows = []
    for one in result.estimates:
        sizes = ((one.per_gpu, "per GPU"), (one.per_host, "per host"), (one.total, "in total"))
        text = ", ".join(f"{format_bytes(size, binary=True)} {scope}" for size, scope in sizes if size)
        rows.append((one.name, text, one.formula))
    head = ("rule", "memory", "formula")
    return (ReportTable("Published rules of thumb", head, tuple(rows), ()),) if rows else ()


_TOO_LONG = "too long: it fits, but the context is longer than the one that the model was made for"


def caches_section(result: Answer) -> ReportSection:
    """Return the largest batch and the longest context of each placement of the key-value cache."""
    rows = tuple(
        (
            Datum(f"{one.placement}{'' if one.change.edits else ' (now)'}", name=one.placement),
            _most(one.batch),
            " and ".join(one.full),
            _most(one.context),
            "; ".join(f"{use.tier} lacks {counted(-use.headroom, use)} {use.scope}" for use in one.lacking)
            or _fits(one.context),
            " ".join(one.change.assignments).replace("strategy.", ""),
        )
        for one in result.caches
    )
    head = (
        "key-value cache",
        "largest batch",
        "limited by",
        "longest context",
        "as it is",
        "--set strategy.…",
    )
    refused = tuple(number for number, one in enumerate(result.caches) if not one.fits)
    table = ReportTable("", head, rows, (1, 3), refused=refused)
    notes = (*_CACHE_NOTES, *[_TOO_LONG] * any(row[4] == "too long" for row in rows))
    return ReportSection(CACHES, tables=(table,), notes=notes, notes_on_terminal=True)


def _fits(context: LargestValue) -> str:
    return "too long" if context.now > context.reaches else "fits"


def _most(one: LargestValue) -> Entry:
    """Return a limit, marked if memory is not what limits it."""
    if one.most is None:
        return "–"
    return Datum(f"{one.most:,}{'*' if one.most == one.reaches else ''}", one.most)


def remedies_section(remedies: Remedies) -> ReportSection:
    """Return each change with the memory that is then free and its options; or the changes that were
    tried."""
    stopped = (f"the search is not complete: {remedies.stopped}",) if remedies.stopped else ()
    if remedies.changes:
        listings = tuple(map(_change, remedies.changes))
        return ReportSection(CHANGES, ("each of these changes makes it fit", *stopped), listings=listings)
    text = "no change that was tried makes it fit"
    text += "" if stopped else ", neither alone nor in combinations of two or three"
    tried = f"; tried: {'; '.join(remedies.tried)}" if remedies.tried else ""
    return ReportSection(CHANGES, (text + tried, *stopped))


def _change(change: Change) -> Listing:
    use = change.tightest
    scope = "in total" if use.scope == "in all" else use.scope
    free = f"{counted(use.headroom, use)} of {use.tier} free {scope}"
    options = " ".join(f"--set {shlex.quote(one)}" for one in change.assignments)
    quality = f"; quality: {change.quality}" if change.quality else ""
    return Listing(f"{change.description}: {free}{quality}", options)
