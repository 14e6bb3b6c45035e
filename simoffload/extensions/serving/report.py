"""The report document of a stream of requests: latencies, rates, memory, and the load within limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simoffload.extensions.serving import charts
from simoffload.extensions.serving.answers import CONFIDENCE, ReplicatedMean, StreamMeasures
from simoffload.extensions.serving.streams import COVERED, RateTrial, StreamResult, counted, stated_rate
from simoffload.report.document import (
    Chart,
    Datum,
    Entry,
    Listing,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.formatting import span
from simoffload.report.sections.background import COMMAND
from simoffload.report.sections.costs import costs
from simoffload.results import Metric
from simoffload.scenario.streams import Closed, Fixed, Length, StreamLimits
from simoffload.units import format_number, format_seconds, percent, plural

_INTERVAL = f"{COVERED * 100:.0f} % interval"
_MEANINGS = (
    "TTFT, TPOT, ITL and E2EL as vllm bench serve defines them; ITL is over all tokens of all requests",
    f"{_INTERVAL}: where so many real streams are expected, as steps may be shorter or longer",
)
_LATENCIES = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p90_s", "tpot_p99_s")
"""Metrics of each load that was tried."""
_TRIALS = (
    f"by replications: where the mean over such streams lies, with a confidence of {CONFIDENCE * 100:.0f} %, "
    "if steps are as long as predicted; the interval of the largest load has errors of the steps, too"
)


def stream_document(found: StreamResult, *, command: str = "") -> ReportDocument:
    """Return the document of a stream; ``command`` is the one that asked."""
    sections = [*([_loads(found)] if found.trials else []), _metrics(found), *_costs(found), _memory(found)]
    if command:
        sections.append(ReportSection(COMMAND, listings=(Listing("", command),), page_only=True))
    answer = _verdict(found)
    return ReportDocument(
        _headline(found),
        None,
        (answer,),
        (*found.notes, *([f"not complete: {found.stopped}"] if found.stopped else [])),
        tuple(sections),
        (),
        name=found.scenario.name,
        summary=(answer,),
        facts=(*_requests(found), f"in brackets: {_INTERVAL}"),
    )


def _requests(found: StreamResult) -> Iterator[str]:
    """Yield the program, and how long prompts and answers are."""
    strategy = found.scenario.scenario.strategy
    yield strategy.traits.title or strategy.kind
    lengths = (("prompts", found.options.prompt), ("answers", found.options.output))
    for what, one in lengths:
        if one is not None:
            yield f"{what} of {_long(one)}"
    if found.options.trace is not None:
        yield f"requests of {found.options.trace.file}"


def _long(one: Length) -> str:
    """Return a length with the kind of its distribution: "1,032 tokens (median, lognormal)"."""
    if isinstance(one, Fixed):
        return f"{one.tokens:,} tokens"
    for name in ("median", "mean"):
        if (value := getattr(one, name, None)) is not None:
            return f"{format_number(value, digits=4)} tokens ({name}, {one.kind})"
    return f"{one.min:,} to {one.max:,} tokens ({one.kind})"


def _headline(found: StreamResult) -> tuple[str, ...]:
    """Model, data type, load and machine, in a few words each; the name of a scenario may be of another
    machine than the one that is simulated."""
    model, machine, load = found.scenario.model, found.scenario.machine, _stated(found)
    on_gpus = found.scenario.scenario.strategy.description.on_gpus
    gpus = f"{plural(found.gpus, 'GPU')} {machine.accelerator.id}" if on_gpus else machine.host.cpu
    return model.name, model.dtype, *([load] if load else []), gpus, machine.platform


def _stated(found: StreamResult) -> str:
    """Return the load that the scenario states; "" of one that is not one number."""
    arrivals = found.options.arrivals
    if isinstance(arrivals, Closed):
        return plural(arrivals.users, "user")
    rate = stated_rate(found.options)
    return _in_words(found, rate) if rate else ""


def _in_words(found: StreamResult, load: float) -> str:
    return counted(format_number(load), found.unit)


def _verdict(found: StreamResult) -> Verdict:
    if found.trials:
        return _best(found)
    values = found.estimates
    tokens = StreamMeasures.declared["output_tokens_per_s"].text(values["output_tokens_per_s"].value)
    return Verdict.of(
        f"p99 of TTFT {_text('ttft_p99_s', found)}, of TPOT {_text('tpot_p99_s', found)}",
        VerdictPart(f" at {_text('requests_per_s', found)}"),
        VerdictPart(f", {tokens} of output"),
    )


def _text(name: str, found: StreamResult) -> str:
    return StreamMeasures.declared[name].text(found.estimates[name].value)


def _best(found: StreamResult) -> Verdict:
    """Return the largest load within the limits, for a GPU where there are several."""
    limits, best = found.options.slo, found.best
    what = f"{_limits(limits)} for {percent(limits.attain)} of the requests"
    if best is None:
        least = found.trials[0]
        given = f"; with {_in_words(found, least.load)} {percent(least.attained.value)} keep them"
        return Verdict.of(f"no load that was tried keeps {what}", VerdictPart(given))
    ends = f" ({' to '.join(map(format_number, found.capacity))})" if found.capacity else ""
    load = f"{_in_words(found, best.load)}{ends} with {what}"
    each = f", {format_number(best.load / found.gpus)} for each of {plural(found.gpus, 'GPU')}"
    above = next((one for one in found.trials if one.load > best.load), None)
    beyond = f"; beyond, {above.binds} is missed first" if above is not None and above.binds else ""
    if above is None and not found.stopped:
        more = "num_prompts" if found.options.trace is None else "num_prompts or repeat"
        beyond = f"; so few requests allow no larger load, so raise {more}"
    parts = [VerdictPart(each if found.gpus > 1 else "", 1), VerdictPart(_cost(found), 1)]
    parts += [VerdictPart(_as_asked(found), 2), VerdictPart(beyond, 3 if above is not None else 1)]
    return Verdict.of(f"{'At least' if above is None else 'Up to'} {load}", *parts)


def _cost(found: StreamResult) -> str:
    """Return what output tokens cost at the largest load within the limits; "" where that is unknown."""
    value = found.priced().get("cost_per_million_tokens")
    if value is None or found.costs is None:
        return ""
    least = "at least " if found.costs.missing else ""
    currency = found.costs.costs.currency
    return f"; then {least}{format_number(value)} {currency}".rstrip() + " per million output tokens"


def _as_asked(found: StreamResult) -> str:
    """Return the share of requests within the limits at the load that the scenario states."""
    load, name = _stated(found), "attained"
    if not load or name not in found.estimates:
        return ""
    share, ends = (
        percent(found.estimates[name].value),
        _ends(StreamMeasures.declared[name], found.intervals.get(name)),
    )
    return f"; at {load}, {share}{f' ({ends})' if ends else ''} of the requests keep them"


def _limits(limits: StreamLimits) -> str:
    values = ((name, getattr(limits, name)) for name in ("ttft", "tpot", "e2el"))
    return " and ".join(f"{name} ≤ {format_seconds(one)}" for name, one in values if one is not None)


def _loads(found: StreamResult) -> ReportSection:
    head = (found.unit, "", "within limits", "by replications", "goodput", "missed first")
    rows = tuple(tuple(_load(one, found.options.slo)) for one in found.trials)
    missed = tuple(at for at, one in enumerate(found.trials) if not one.holds(found.options.slo))
    shares = Chart(f"requests within limits over {found.unit}", partial(charts.within_limits, found))
    goodput = Chart(f"goodput over {found.unit}", partial(charts.goodput, found))
    table = ReportTable("", head, rows, (0, 2, 3, 4), refused=missed)
    latencies = [StreamMeasures.declared[name] for name in _LATENCIES]
    percentiles = ReportTable(
        "",
        (found.unit, *(one.title for one in latencies)),
        tuple(
            (rows[at][0], *(_datum(each, one.metrics[each.name]) for each in latencies))
            for at, one in enumerate(found.trials)
        ),
        tuple(range(1 + len(latencies))),
        refused=missed,
    )
    return ReportSection(
        "Loads that were tried", (), (table, percentiles), (_TRIALS,), charts=(shares, goodput)
    )


def _load(one: RateTrial, limits: StreamLimits) -> Iterator[Entry]:
    yield Datum(format_number(one.load), one.load)
    yield "kept" if one.holds(limits) else "missed"
    yield Datum(percent(one.attained.value), one.attained.value)
    yield _ends(StreamMeasures.declared["attained"], one.attained[1:])
    goodput = StreamMeasures.declared["goodput_per_s"]
    yield Datum(goodput.short(one.goodput.value), one.goodput.value, goodput.unit.name)
    yield "" if one.holds(limits) else one.binds


def _metrics(found: StreamResult) -> ReportSection:
    declared, limited, ends = StreamMeasures.declared, found.options.slo.any, found.intervals
    shown = {name: one for name, one in declared.items() if limited or name not in _OF_LIMITS}
    rows = tuple(
        (one.title, _datum(one, found.estimates[name]), _ends(one, ends.get(name)))
        for name, one in shown.items()
    )
    head = ("metric", "value", _INTERVAL)
    number = plural(sum(one.number for one in found.measures), "request")
    cut = sum(one.skip for one in found.measures)
    text = f"{number} in {plural(len(found.measures), 'replication')}"
    text += f", after {cut} that are left out as warm-up" if cut else ""
    chart = Chart("running and waiting requests over time", partial(charts.requests_over_time, found))
    table = ReportTable("", head, rows, tuple(range(1, len(head))))
    load = _stated(found)
    heading = f"What requests meet at {load}" if load else "What requests meet"
    return ReportSection(heading, (text,), (table,), _MEANINGS, charts=(chart,), notes_on_terminal=True)


_OF_LIMITS = ("goodput_per_s", "attained")


def _datum(metric: Metric, one: ReplicatedMean) -> Entry:
    return Datum(metric.text(one.value), one.value, metric.unit.name) if one.value == one.value else ""


def _ends(metric: Metric, ends: tuple[float, float] | None) -> str:
    if ends is None or ends[0] != ends[0]:
        return ""
    return span(*map(metric.short, ends))


_COSTS = {
    "cost_per_million_tokens": "a million output tokens",
    "cost_per_million_tokens_within": "a million output tokens of requests within limits",
    "cost_per_request": "a request",
    "rent_per_million_tokens": "a million output tokens on rented hardware",
    "kwh_per_million_tokens": "energy of a million output tokens (PUE included)",
    "energy_per_token_j": "energy of an output token",
    "power_w": "mean power of the machine",
}
"""Costs of a stream, as people read them."""


def _costs(found: StreamResult) -> Iterator[ReportSection]:
    """Yield what tokens and requests cost, and the bill and the power behind it."""
    at = found.priced_at
    if at.passes is None or found.costs is None:
        return
    units = {"kwh_per_million_tokens": "kWh", "energy_per_token_j": "J", "power_w": "W"}
    least = "≥ " if found.costs.missing else ""
    rows = []
    for name, value in found.priced().items():
        if value is None or (name == "cost_per_million_tokens_within" and not found.options.slo.any):
            continue
        unit = units.get(name, found.costs.costs.currency)
        rows.append((_COSTS[name], Datum(f"{least}{format_number(value)} {unit}".rstrip(), value, unit)))
    _, details = costs(at.passes, found.costs)
    table = ReportTable("", ("", "cost or energy"), tuple(rows), (1,))
    load = "" if at.load is None else f" at {_in_words(found, at.load)}"
    yield ReportSection(f"Costs and energy{load}", found.costs.warnings, (table,))
    yield details


def _memory(found: StreamResult) -> ReportSection:
    limits = found.limits
    tokens, groups = f"{limits.cache_tokens:,} tokens in all", limits.groups
    if groups.number > 1:
        tokens = f"in one of {groups.number} groups of layers, {tokens}; a sequence "
        if groups.recurrent:
            tokens += f"has its states in a block of {plural(groups.sliding, 'group')} of recurrent layers"
        else:
            tokens += (
                f"takes no more blocks in {plural(groups.sliding, 'group')} after {groups.window:,} tokens"
            )
    sentences = [
        f"{limits.blocks:,} KV blocks of {limits.block_size} tokens, {tokens}",
        f"at most {limits.tokens:,} tokens and {limits.sequences:,} sequences in a step",
        f"{found.evaluations:,} steps were simulated, others interpolated with an error of {found.worst:.2%}",
    ]
    return ReportSection("Engine", tuple(sentences))
