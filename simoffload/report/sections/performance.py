"""Sections about speed: metrics, phases of a step, its bottleneck, bounds and links, and confidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from simoffload.errors import printable
from simoffload.extending import additions, at
from simoffload.planning.confidence import confidence
from simoffload.report import charts
from simoffload.report.document import (
    INTERVAL,
    Chart,
    Datum,
    Entry,
    ReportSection,
    ReportTable,
    byte_count,
    fraction,
    group_cell,
    seconds,
)
from simoffload.report.formatting import (
    NameFirst,
    bottleneck,
    bound,
    capacity,
    carried,
    causes_by_phase,
    group_bounds,
    group_links,
    largest,
    phase_names,
    span,
    times,
    uncapitalized,
)
from simoffload.report.presentation import presentation
from simoffload.results import (
    InferenceResult,
    PassResult,
    ProgramChoice,
    ProgramRate,
    SimulationResult,
    TrainingResult,
)
from simoffload.schedule import Cause
from simoffload.units import format_bytes, format_number, format_seconds, percent, plural

PHASES = "Phases of a step"
CAUSES = "Where the time goes"
BOUND = "Share of the bound"
_EXPOSED = (
    "Exposed time is on the critical path; the exposed times add up to the total. Busy time beyond that is "
    "hidden (hatched in the chart): it overlaps with other work. Busy is while operations are "
    "under way, also while they wait for a link."
)
_NO_FASTER = (
    "No schedule is faster than its slowest resource: the bytes of each link over its bandwidth, and what "
    "the GPU and the host thread must do one after the other."
)
_BOTH_WAYS = " both ways"
_WEIGHTED = (
    "{}: what reads and writes share; a written byte counts as often as reading is faster than writing"
)
_MOST_BOUNDS = 5
"""Number of bounds that are drawn."""
_MOST_LINKS = 8
"""Number of links that a terminal shows."""


def speed(result: SimulationResult) -> ReportSection:
    """List all metrics that have a value, each with its formula."""
    wording, formulas, intervals = presentation(result), result.formulas(), confidence(result).intervals()
    shares = any(metric.is_part for metric in result.declared.values())
    rows: list[tuple[Entry, ...]] = []
    for metric, amount in result.valued():
        name, unit = metric.name, metric.unit.name
        value, ends = Datum(metric.text(amount), amount, unit), intervals.get(name)
        interval: Entry = ""
        if ends:
            interval = Datum(span(*map(metric.text, ends), value=value.text), unit=unit, ends=ends)
        share = percent(amount / (result.step_time_s or 1.0)) if metric.is_part else ""
        of_step = [share] if shares else []
        rows.append((Datum(metric.label, name=name), value, interval, *of_step, f"{name} = {formulas[name]}"))
    head = ("metric", "value", INTERVAL, *(["share"] if shares else []), "formula")
    table = ReportTable("", head, tuple(rows), tuple(range(1, len(head) - 1)))
    how = (wording.how,) if wording.how else ()
    notes = (wording.note,) if wording.note else ()
    return ReportSection("Speed", how, tables=(table,), notes=notes, leads=True)


def programs(choice: ProgramChoice) -> ReportSection:
    """List the programs from which that of the scenario was chosen, the fastest first."""
    rows = tuple(
        (
            one.title,
            printable(one.where) or "hbm",
            Datum(format_number(one.tokens_per_s or 0.0), one.tokens_per_s or 0.0, "1/s"),
        )
        for one in choice.programs
    )
    named = f"only those with {printable(choice.named)} count" if choice.named else ""
    without = (NameFirst(f"{without_limit(choice)} would be faster"),) if choice.without else ()
    table = ReportTable("", ("program", "weights", "tokens/s"), rows, (2,))
    return ReportSection("Programs", (*filter(None, (named,)), *without), tables=(table,))


def program_rate(one: ProgramRate) -> str:
    """Return a program with the tier of its weights and its rate: "vLLM from dram 8.5 tokens/s"."""
    rate = "" if one.tokens_per_s is None else f" {format_number(one.tokens_per_s)} tokens/s"
    where = f" from {printable(one.where)}" if one.where else ""
    return f"{one.title}{where}{rate}"


def without_limit(choice: ProgramChoice) -> str:
    """Return what would be faster without what limits the choice; "" if nothing would."""
    if choice.without is None:
        return ""
    return f"without {printable(choice.named)}: {program_rate(choice.without)}"


def phases(result: TrainingResult) -> ReportSection:
    """Return the phases of a step; a terminal shows them unless each phase occurs exactly once."""
    step = result.step_s or 0.0
    rows = tuple(
        (
            phase.result.name,
            Datum(times(phase), float(phase.times)),
            seconds(phase.result.time_s),
            seconds(phase.time_s),
            fraction(phase.time_s / step),
            largest(phase.result),
        )
        for phase in result.phases
    )
    head = ("phase", "count", "each", "total", "share", "bottleneck")
    once = len(result.phases) == len(phase_names(result)) and all(one.times == 1 for one in result.phases)
    chart = Chart("time of each phase", partial(charts.phases, result))
    table = ReportTable("", head, rows, (1, 2, 3, 4))
    return ReportSection(PHASES, tables=(table,), charts=(chart,), page_only=once)


def causes(result: SimulationResult, step: PassResult) -> ReportSection:
    """Return the causes of the step that represents the run, then those of all other simulated passes."""
    text = f"bottleneck: {bottleneck(step, presentation(result).called)}"
    texts = (*_passes(result), text)
    if isinstance(result, TrainingResult):
        table, *folded = _of_training(result, step)
    else:
        others = [one for one in result.passes if one is not step]
        table = _by_cause(step, _pass_caption(step))
        folded = [_by_cause(one, _pass_caption(one), "The other simulated passes") for one in others]
    chart = Chart("time by cause", partial(charts.causes, step))
    return ReportSection(CAUSES, texts, (table, _groups(step), *folded), (_EXPOSED,), charts=(chart,))


def _passes(result: SimulationResult) -> Iterator[str]:
    """Yield how a request's time is divided, if it has more than a prefill."""
    if isinstance(result, InferenceResult) and result.prefill and result.decode and result.e2e_s:
        prefill, decode = result.prefill.time_s, result.decode_total_s
        steps = plural(result.output_length - 1, "decode step")
        parts = ((prefill, "prefill"), (decode, steps))
        texts = (f"{what} {format_seconds(time)} ({percent(time / result.e2e_s)})" for time, what in parts)
        yield f"a request of {format_seconds(result.e2e_s)}: {', '.join(texts)}"


def _groups(step: PassResult) -> ReportTable:
    """Return the times of a step by group: the GPU, the host, transfers, storage, waiting."""
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (one.group, seconds(one.exposed_s), fraction(one.exposed_s / step.time_s), seconds(one.hidden_s))
        for one in step.groups
    )
    return ReportTable("Time by resource group", ("group", "exposed", "share", "hidden"), rows, (1, 2, 3))


def _pass_caption(one: PassResult) -> str:
    time = f"{one.name}: {format_seconds(one.time_s)}"
    if not one.new_tokens:
        return time
    tokens = "token" if one.new_tokens == 1 else "tokens"
    return f"{time}, {one.new_tokens} new {tokens} per sequence, context {one.context}"


def _of_training(result: TrainingResult, step: PassResult) -> tuple[ReportTable, ...]:
    caption = f"{step.name}: {format_seconds(step.time_s)}"
    table = _by_cause(step, caption, phases=phase_names(result), splits=causes_by_phase(result))
    parts = [
        (phase.result, f"{format_seconds(phase.result.time_s)} each, {times(phase)}")
        for phase in result.phases
    ]
    folded = "The phases one by one"
    return table, *(_by_cause(one, f"{one.name}: {text} in a step", folded) for one, text in parts)


def _by_cause(
    one: PassResult,
    caption: str,
    folded: str = "",
    *,
    phases: tuple[str, ...] = (),
    splits: Mapping[Cause, tuple[float, ...]] | None = None,
) -> ReportTable:
    """Return causes with their share of a pass; those of a step also with their time in each phase."""
    rows: list[tuple[Entry, ...]] = []
    for share in one.shares:
        parts = [seconds(part or None) for part in splits[share.cause]] if splits else []
        of_pass = fraction(share.exposed_s / one.time_s)
        rows.append(
            (share.cause_text, seconds(share.exposed_s), of_pass, *parts, seconds(share.busy_s), share.limit)
        )
    head = ("cause", "exposed", "share", *(f"in {name}" for name in phases), "busy", "limited by")
    return ReportTable(caption, head, tuple(rows), tuple(range(1, len(head) - 1)), folded=folded)


def bounds(result: SimulationResult, step: PassResult) -> ReportSection:
    """Return the shortest time that each resource allows."""
    rows = tuple(
        (group_cell(names), seconds(time), fraction(time / step.time_s)) for names, time in group_bounds(step)
    )
    head = ("resource", "minimum time", f"share of the {presentation(result).unit_name}")
    table = ReportTable("", head, rows, (1, 2), folded="All bounds")
    chart = Chart("bounds and simulated time", partial(charts.bounds, step, most=_MOST_BOUNDS))
    return ReportSection(
        BOUND, (bound(step, presentation(result).called),), (table,), (_NO_FASTER,), charts=(chart,)
    )


def links(result: SimulationResult, step: PassResult) -> ReportSection:
    """Return the bytes over each link, and the time for which it was used."""
    rows: list[tuple[Entry, ...]] = []
    for names, use in group_links(step.links):
        each = f"{carried(use)} each" if len(names) > 1 else carried(use)
        mean: Entry = ""
        if use.busy_s:
            rate = round(use.size / use.busy_s)
            mean = Datum(capacity(use._replace(capacity=rate)), rate, f"{use.unit}/s")
        rows.append(
            (
                group_cell(names),
                Datum(each, use.size, use.unit),
                Datum(capacity(use), use.capacity, f"{use.unit}/s"),
                mean,
                seconds(min(use.busy_s, step.time_s)),
                fraction(min(1.0, use.busy_s / step.time_s)),
                fraction(use.size / (use.capacity * step.time_s)),
                fraction(use.saturated_s / step.time_s),
            )
        )
    unit = presentation(result).unit_name
    share = f"in use, share of the {unit}"
    head = ("link", "carried", "capacity", "mean while in use", "in use", share, "load", "saturated")
    numbers = tuple(range(1, len(head)))
    table = ReportTable(step.name, head, tuple(rows), numbers, page_columns=(3, 4), most=_MOST_LINKS)
    note = (
        f"in use: share of the {unit} in which something is transferred; load = bytes carried / (capacity x "
        "time); saturated: share of the time at full capacity"
    )
    both = [use.link for use in step.links if use.link.endswith(_BOTH_WAYS)]
    notes = (note, _WEIGHTED.format(both[0])) if both else (note,)
    return ReportSection("Links", tables=(table,), notes=notes, notes_on_terminal=True)


def how_sure(result: SimulationResult) -> ReportSection:
    """Return the 80 % interval of the time of a step of a result with times, and the expected error."""
    sure = confidence(result)
    metric = result.declared[sure.measured]
    ends = span(*map(metric.text, sure.interval(metric.name)))
    interval = f"{INTERVAL} of the {uncapitalized(metric.title)}: {ends} ({sure.origin})"
    caution = (NameFirst(sure.caution),) if sure.caution else ()
    return ReportSection("Confidence", (interval, *caution, f"error on real runs: {sure.sentence}"))


def storage(result: TrainingResult) -> ReportSection:
    """List the bytes of one step, on all ranks and per parameter of the model; write caches and requests."""
    rows: list[tuple[Entry, ...]] = []
    for one in result.traffic:
        each = (size / result.parameters for size in (one.read, one.written))
        per_parameter = (Datum(f"{format_number(size)} B", size, "B") for size in each)
        rows.append((one.tier, byte_count(one.read), byte_count(one.written), *per_parameter))
    if not rows:
        return ReportSection("Storage", ("a step reads and writes nothing on storage",), page_only=True)
    head = ("tier", "read", "written", "read per parameter", "written per parameter")
    table = ReportTable("One step, all ranks", head, tuple(rows), (1, 2, 3, 4))
    # Writes that exceed a cache are among the warnings.
    caches = [NameFirst(one.sentence) for one in result.write_caches if not one.exceeded]
    requests = [
        f"by the end of the first step each rank reads {one.read:,} and writes {one.written:,} full requests "
        f"of {format_bytes(one.block, binary=True)} on {one.tier}"
        for one in result.requests
    ]
    return ReportSection("Storage", (*caches, *requests), (table,))


def added(result: SimulationResult) -> Iterator[ReportSection]:
    """Yield the sections of what extensions added to the run."""
    for name, one in additions().items() if result.added else ():
        if result.added.get(name) and one.shown:
            yield at(one.shown)(result)
