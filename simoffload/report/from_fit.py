"""The report documents of the number of machines needed, and of the largest work that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simoffload.planning.reach import BestBatch
from simoffload.planning.sizing import Largest, LargestValue, MachineCount, MachinesNeeded, MachinesRun
from simoffload.report.document import (
    Datum,
    Entry,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.formatting import NameFirst, largest, place
from simoffload.report.presentation import cells, in_words, presentation, ranged
from simoffload.report.sections.costs import per_million
from simoffload.units import format_bytes, format_number, plural

_NONE = "–"
_RULES = (
    "by rule = machines whose HBM holds the weights alone (training: 240 x layers x hidden size^2 bytes)",
    "hbm = without offload: weights and optimizer partitioned over all GPUs, all memory counted",
    f"other columns = with offload to that tier; {_NONE} = refused, or fits on no number of machines",
)
_RUN_RULES = (
    "weights on: also gradients and optimizer states of training; time = of a token, a step of training",
    "days/1B = for a billion tokens of all sequences; cost/1M = for a million",
    "price and power = of all these machines with the storage in use",
)
_LIMITS = (
    "each limit holds with all other settings unchanged",
    "context = prompt and output, or the sequence length of training",
    f"layers = layers of the same width; {_NONE} = not even 1 fits",
)

_BEST = (
    "best batch = the batch with the highest throughput among those that fit",
    "fits = the largest batch that fits; all other settings are unchanged",
)


_MOST_SENTENCES = 3
"""Number of scenarios that have a sentence at the beginning; all have a row."""


def machines_document(found: Sequence[MachinesNeeded], *, stopped: Sequence[str] = ()) -> ReportDocument:
    """Return a table for each platform, with a row for each scenario and a column for each tier; ``stopped``
    has the reasons why other scenarios have no row."""
    platforms = dict.fromkeys(one.platform for one in found)
    sections = [_machines([one for one in found if one.platform == platform]) for platform in platforms]
    warnings = (*_warnings(found), *stopped)
    answers = tuple(Verdict.of(f"{one.model} {_fewest(one)}", *_fastest(one)) for one in found)
    return ReportDocument(
        ("Number of machines needed",),
        None,
        (),
        warnings,
        tuple(sections),
        summary=answers[:_MOST_SENTENCES],
        facts=_work(found),
    )


def _work(found: Sequence[MachinesNeeded]) -> tuple[str, ...]:
    """Return the work that was simulated, and what brackets mean."""
    timed = [run.result for _, _, run in _timed(found) if run.result is not None]
    if not timed:
        return ()
    works = {presentation(one).work[1:] for one in timed}
    work = works.pop() if len(works) == 1 else ()
    batch = getattr(timed[0], "batch_size", None)
    each = () if batch is None or len(found) > 1 else (f"batch {batch} on each GPU",)
    return (timed[0].dtype, *each, *work, "in brackets: 80 % interval")


def _fewest(one: MachinesNeeded) -> str:
    """Return the smallest number of machines, where the work is then held, how fast that is and what it
    costs; of several places the fastest."""
    known = [count for count in one.counts if count.machines is not None]
    if not known:
        return f"fits on no number of machines of {one.platform}"
    fewest = min(known, key=lambda count: (count.machines, -_rate(count)))
    where = f"with its weights {place(fewest.tier)}"
    needs = f"needs {plural(fewest.machines or 0, 'machine')} of {one.platform} {where}"
    given = _given(fewest)
    return f"{needs}: {given}" if given else needs


def _fastest(one: MachinesNeeded) -> Iterator[VerdictPart]:
    """Yield how fast the work is on more machines, where that is faster."""
    known = [count for count in one.counts if count.machines is not None and _rate(count)]
    if not known:
        return
    fewest = min(known, key=lambda count: (count.machines, -_rate(count)))
    best = max(known, key=_rate)
    if best is not fewest:
        times = format_number(_rate(best) / _rate(fewest), digits=2)
        more = f"{plural(best.machines or 0, 'machine')} with them {place(best.tier)}"
        yield VerdictPart(f"; {more}: {times} times as fast, {_given(best)}")


def _rate(count: MachineCount) -> float:
    """Return the tokens per second on these machines; 0 if they are not known."""
    result = None if count.run is None else count.run.result
    return 0.0 if result is None else result.metrics().get("tokens_per_s") or 0.0


def _given(count: MachineCount) -> str:
    """Return how fast the work is on these machines, with the interval, and what they cost."""
    result = None if count.run is None else count.run.result
    if result is None or count.run is None:
        return ""
    shown = in_words(result, "tokens_per_s" if result.kind == "inference" else result.step_by)
    cost = count.run.economics
    price = None if cost is None else cost.at_least()["purchase"]
    if price is None or cost is None:
        return shown
    return f"{shown} for {'at least ' if cost.missing else ''}{price:,.0f} {cost.costs.currency}".rstrip()


def _warnings(found: Sequence[MachinesNeeded] | Sequence[Largest]) -> tuple[str, ...]:
    """Return the warnings of all scenarios, each once."""
    return tuple(dict.fromkeys(text for one in found for text in one.warnings))


def _machines(found: Sequence[MachinesNeeded]) -> ReportSection:
    counts = [{count.tier: count.machines for count in one.counts} for one in found]
    tiers = dict.fromkeys(tier for each in counts for tier in each)
    rows = [
        (one.model, one.work, _count(one.by_rule), *(_count(each.get(tier)) for tier in tiers))
        for one, each in zip(found, counts, strict=True)
    ]
    head = ("model", "work", "by rule", *tiers)
    first = found[0]
    gathers = [
        f"without offload, {what} gathers every layer on every GPU for every pass"
        for what in dict.fromkeys(one.gathers for one in found if one.gathers)
    ]
    hbm = format_bytes(first.hbm, binary=True)
    return ReportSection(
        f"{first.platform}, {plural(first.gpus, 'GPU')} with {hbm} of HBM in total",
        tuple(
            NameFirst(f"{one.name}, {count.tier}: {count.why}")
            for one in found
            for count in one.counts
            if count.why
        )
        + tuple(
            NameFirst(
                f"{one.name}, hbm: fewer machines hold the weights with other answers: {_in_formats(one)}"
            )
            for one in found
            if one.formats
        )
        + tuple(
            NameFirst(f"{name}: {why}")
            for name, why in dict.fromkeys((one.name, run.why) for one, _, run in _timed(found) if run.why)
        ),
        (ReportTable("", head, tuple(rows), tuple(range(2, len(head))), keys=2), *_runs(found)),
        (*_RULES[:2], *gathers, *_RULES[2:], *(_RUN_RULES if any(_timed(found)) else ())),
        notes_on_terminal=True,
    )


def _timed(found: Sequence[MachinesNeeded]) -> Iterator[tuple[MachinesNeeded, MachineCount, MachinesRun]]:
    """Yield the counts whose work was simulated."""
    for one in found:
        yield from ((one, count, count.run) for count in one.counts if count.run is not None)


def _runs(found: Sequence[MachinesNeeded]) -> Iterator[ReportTable]:
    """Yield the table of the work on each number of machines: its time, price, power and days."""
    timed = [(one, count, run) for one, count, run in _timed(found) if run.result is not None]
    if not timed:
        return
    rows = []
    for one, count, run in timed:
        result, cost = run.result, run.economics
        assert result is not None
        assert cost is not None
        least = "≥ " if cost.missing else ""
        known, rate = cost.at_least(), result.metrics()["tokens_per_s"] or 0.0
        power = known["power_w"]
        rows.append(
            (
                one.model,
                one.work,
                count.tier,
                Datum(f"{count.machines:,}", count.machines),
                Datum(ranged(result, result.step_by), result.step_time_s, "s"),
                Datum(format_number(rate), rate, "1/s"),
                "" if run.days is None else Datum(format_number(run.days), run.days, "d"),
                per_million(cost),
                Datum(f"{least}{known['purchase'] or 0.0:,.0f}", known["purchase"]),
                "" if power is None else Datum(f"{least}{format_number(power / 1000)} kW", power, "W"),
            )
        )
    currency = timed[0][2].economics
    assert currency is not None
    head = (
        "model",
        "work",
        "weights on",
        "machines",
        "time",
        "tokens/s",
        "days/1B",
        "cost/1M",
        currency.costs.currency,
        "power",
    )
    yield ReportTable("With these machines", head, tuple(rows), tuple(range(3, len(head))), keys=3)


def _in_formats(one: MachinesNeeded) -> str:
    """Return the formats with which fewer machines are enough: "1 machine in fp8 (vllm)"."""
    texts = (f"{plural(each.machines, 'machine')} in {each.format} ({each.program})" for each in one.formats)
    return ", ".join(texts)


def _count(machines: int | None) -> Entry:
    return _NONE if machines is None else Datum(f"{machines:,}", machines)


def largest_document(found: Sequence[Largest], *, stopped: Sequence[str] = ()) -> ReportDocument:
    """Return a table with a row for each scenario; ``stopped`` has the reasons why other scenarios have
    none."""
    head = ("model", "weights", "batch per GPU", "context", "layers", "parameters")
    rows = tuple(
        (
            one.model,
            one.target,
            *map(_limit, (one.batch, one.context, one.layers)),
            _parameters(one.parameters),
        )
        for one in found
    )
    made_for = (
        f"{one.model} is designed for a context of at most {one.made_for:,} tokens"
        for one in found
        if one.made_for is not None and one.context.most is not None and one.context.most > one.made_for
    )
    table = ReportTable("", head, rows, (2, 3, 4, 5), keys=2)
    section = ReportSection("Current → largest", tables=(table,), notes=_LIMITS, notes_on_terminal=True)
    warnings = (*_warnings(found), *made_for, *stopped)
    answers = tuple(
        Verdict.of(
            f"{one.model} on {one.platform} with its weights {place(one.target)}: at most batch "
            f"{_most(one.batch)} per GPU instead of {one.batch.now:,}, or a context of {_most(one.context)} "
            f"tokens instead of {one.context.now:,}"
        )
        for one in found
    )
    title = ("Largest batch, context and model that fit",)
    facts = ("each with the others as they are", *dict.fromkeys(one.dtype for one in found if one.dtype))
    return ReportDocument(
        title, None, (), warnings, (section,), summary=answers[:_MOST_SENTENCES], facts=facts
    )


def best_batch_document(found: Sequence[BestBatch], *, stopped: Sequence[str] = ()) -> ReportDocument:
    """Return a table with a row for each scenario and placement; ``stopped`` has the reasons why others have
    none."""
    levels = tuple(dict.fromkeys(one.text for each in found for one in each.service))
    timed = [one.best.result for one in found if one.best is not None and one.best.result is not None]
    heads = tuple(dict.fromkeys(head for result in timed for head in cells(result)))
    rows = tuple(tuple(_best(one, heads)) for one in found)
    head = ("model", "weights", "best batch", "fits", *heads, "bottleneck")
    numbers = tuple(range(2, 4 + len(heads)))
    keeps = (f"with {' and '.join(levels)}",) if levels else ()
    table = ReportTable("", head, rows, numbers, keys=2).without_empty_columns()
    missing = tuple(
        NameFirst(f"{one.model}, {one.target}: no batch that fits keeps it; nearest: {_missed(one)}")
        for one in found
        if one.nearest is not None
    )
    section = ReportSection(
        "Current → highest throughput", (*keeps, *missing), (table,), _BEST, notes_on_terminal=True
    )
    answers = tuple(
        Verdict.of(
            f"{one.model} on {one.target}: batch {one.best.value} gives "
            f"{ranged(one.best.result, 'tokens_per_s')}"
        )
        for one in found
        if one.best is not None and one.best.result is not None
    )
    return ReportDocument(
        ("Best batch",), None, (), tuple(stopped), (section,), summary=answers[:_MOST_SENTENCES]
    )


def _best(one: BestBatch, heads: Sequence[str]) -> Iterator[Entry]:
    """Return the cells of a row: the best batch, the largest one that fits, what it gives and what binds."""
    result = None if one.best is None else one.best.result
    yield from (one.model, one.target)
    yield f"{one.batch.now:,} → {_NONE if one.best is None else one.best.value}"
    yield _NONE if one.batch.most is None else f"{one.batch.most:,}"
    own = {} if result is None else cells(result)
    yield from (own.get(head, "") for head in heads)
    if result is not None and result.step is not None:
        yield largest(result.step)
    else:
        yield "does not fit" if one.batch.most is None else "missed"


def _missed(one: BestBatch) -> str:
    """Return what the batch gives that misses the service levels least."""
    assert one.nearest is not None
    result = one.nearest.result
    if result is None:
        return f"{one.nearest.why} with {one.nearest.value}"
    values = (f"{level.name} {ranged(result, level.metric.name, short=True)}" for level in one.service)
    return f"{', '.join(values)} with {one.nearest.value}"


def _limit(one: LargestValue) -> str:
    """Return a limit as text: "16 → 57", or "16 → ≥1,000,000" if a scenario cannot have more."""
    return f"{one.now:,} → {_most(one)}"


def _most(one: LargestValue) -> str:
    if one.most is None:
        return _NONE
    return f"{'≥' if one.most == one.reaches else ''}{one.most:,}"


def _parameters(count: int | None) -> str:
    if count is None:
        return _NONE
    units = ((10**12, "T"), (10**9, "B"), (10**6, "M"))
    size, letter = next((one for one in units if float(f"{count / one[0]:.3g}") >= 1), units[-1])
    return f"{format_number(count / size)}{letter}"
