"""Sections about changes that would make a run faster or cheaper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from simoffload.planning.advise import WORTH, Advice, EvaluatedChange, Objective
from simoffload.planning.bandwidth import NO_STORAGE, BandwidthPoint, StorageCurve
from simoffload.planning.confidence import confidence
from simoffload.planning.evaluator import Evaluation
from simoffload.planning.explanation import Explanation, Sensitivity
from simoffload.planning.service_levels import ServiceLevel, judged
from simoffload.report import charts
from simoffload.report.document import (
    Chart,
    Datum,
    Entry,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
    byte_rate,
)
from simoffload.report.formatting import NameFirst, largest, limited_by, minus, span, uncapitalized
from simoffload.report.presentation import BRACKETS, in_words, presentation, ranged, speed_text
from simoffload.report.sections.background import COMMAND, commands, settings
from simoffload.report.sections.costs import money
from simoffload.results import InferenceResult, Metric, SimulationResult
from simoffload.units import format_number, format_seconds, percent, plural

# -- sections that explain a result ----------------------------------------------------------------
# Storage bandwidth, the tier of the key-value cache, sensitivity.


SENSITIVITY = "Sensitivity to inputs"
STORAGE = "Storage bandwidth and throughput"
TOP = 10
"""Number of inputs that are listed."""


def explained(explanation: Explanation) -> tuple[ReportSection, ...]:
    """Return the sections that explain a result: storage bandwidth, the tier of the key-value cache, and
    sensitivity to inputs."""
    curve, found = explanation.storage, []
    if explanation.prefix is not None:
        found.append(ReportSection("Load or compute the prefix", explanation.prefix.sentences))
    if explanation.cache is not None:
        found.append(ReportSection("Tier of the key-value cache", explanation.cache.sentences))
    shown = () if found and curve is None else (bandwidth(curve),)
    if explanation.stopped:
        shown = (ReportSection(STORAGE, (f"left out: {explanation.stopped}",)),)
    return (*shown, *found, _sensitivity(explanation.sensitivity))


def bandwidth(curve: StorageCurve | None) -> ReportSection:
    """Return the throughput by rate of the storage; None if no storage is in use."""
    if curve is None:
        return ReportSection(STORAGE, (NO_STORAGE,))
    head = ("storage", f"{curve.unit}s/s", "upper bound", "")
    marks = {curve.own.rate: ["this platform"]}
    if curve.capped:
        marks.setdefault(curve.points[-1].rate, []).append("limit of ports and connections")
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (
            byte_rate(point.rate),
            Datum(f"{format_number(point.throughput)}", point.throughput, "1/s"),
            Datum(f"{format_number(point.bound)}", point.bound, "1/s"),
            ", ".join(marks.get(point.rate, ())),
        )
        for point in _told_apart(curve)
    )
    chart = Chart("throughput over the rate of the storage", partial(charts.bandwidth, curve))
    return ReportSection(STORAGE, curve.sentences, (ReportTable("", head, rows, (0, 1, 2)),), charts=(chart,))


def _told_apart(curve: StorageCurve) -> Iterator[BandwidthPoint]:
    """Yield the points of a curve, of equal ones in a row the first and the last, and this platform."""
    shown = [(format_number(one.throughput), format_number(one.bound)) for one in curve.points]
    for at, one in enumerate(curve.points):
        same = set(shown[max(0, at - 1) : at + 2]) == {shown[at]}
        if not same or one.rate == curve.own.rate or at in (0, len(shown) - 1):
            yield one


def _sensitivity(found: Sensitivity) -> ReportSection:
    time = found.result.compared_s or 0.0
    compared = uncapitalized(found.result.declared[found.result.compared_by].title)
    effect = len(found.rows)
    shown = f" ({TOP} shown)" if effect > TOP else ""
    text = (
        f"how the {compared} changes if one input is {percent(found.change)} lower or higher: "
        f"{plural(effect, 'input')} {'has' if effect == 1 else 'have'} an effect{shown}, "
        f"{found.without_effect} have none, {found.left_out} are unused"
    )
    if found.stopped:
        text += f"; not complete, {found.untried} were not tried: {found.stopped}"

    def change(end: float | None) -> str:
        return minus(f"{end / time - 1:+.1%}".replace("%", " %")) if end else ""

    rows = tuple(
        (
            row.number.key,
            change(row.low),
            change(row.high),
            minus(f"{row.elasticity:+.2f}"),
            row.number.origin,
            row.number.profile,
        )
        for row in found.rows[:TOP]
    )
    head = ("input", "lower", "higher", "elasticity", "origin", "profile")
    label = "change of the time with each input lower and higher"
    drawn = (Chart(label, partial(charts.tornado, found, most=TOP)),) if rows else ()
    return ReportSection(SENSITIVITY, (text,), (ReportTable("", head, rows, (1, 2, 3)),), charts=drawn)


# -- how reports describe changes ------------------------------------------------------------------
# What they gain, what they take, and what is known of their answers.


_DELAYED = 1.25
"""Time to first token over that without a change from which a change is said to delay it; our choice."""


_SIMILAR = 1.1
"""Ratio of times up to which other answers are about as fast: less than the error of most predictions."""


def by_answers(found: Sequence[EvaluatedChange]) -> tuple[list[EvaluatedChange], list[EvaluatedChange]]:
    """Return the changes that keep the answers, and the others: of those that are about as fast as the first
    one the one with the most bits comes first."""
    same = [one for one in found if one.change.same_work]
    others = [one for one in found if not one.change.same_work]
    if others:
        similar = [one for one in others if _slower(one, others[0]) <= _SIMILAR]
        first = max(similar, key=lambda one: one.scenario.model.weight_bytes)
        others.remove(first)
        others.insert(0, first)
    return same, others


def _slower(one: EvaluatedChange, other: EvaluatedChange) -> float:
    """Return how many times as long a change takes as another one, by their gains where they have some."""
    if one.gain and other.gain:
        return other.gain / one.gain
    mine, its = one.result.compared_s, other.result.compared_s
    return mine / its if mine and its else math.inf if one is not other else 1.0


def with_times(one: EvaluatedChange) -> str:
    """Describe a change with how fast it is, with the time to the first token of several, and with what is
    known of its answers."""
    times, first = compared_text(one.result, short=True), one.result.metrics().get("ttft_s")
    if first is not None and one.result.compared_metric.name != "ttft_s":
        times += f", TTFT {format_seconds(first)}"
    return in_brackets(one.change.description, times, one.change.quality)


def compared_text(result: SimulationResult, *, short: bool = False) -> str:
    """Return the compared metric of a result: "40 tokens/s [25 to 65]", "step 1.2 s [1 to 1.5]"; of inference
    without the interval if it is ``short``."""
    metric, value = result.compared_metric, result.value_of(result.compared_metric.name)
    if value is None:
        return ""
    alone = short and isinstance(result, InferenceResult)
    text = metric.text(value) if alone else ranged(result, metric.name)
    return text if metric.unit.name == "1/s" else f"{_column(result)} {text}"


def _column(result: SimulationResult) -> str:
    """Return the name of the compared metric for the heading of a column."""
    metric = result.compared_metric
    if metric.name in ("tokens_per_s", "ttft_s") or result.asked:
        return metric.column or metric.label
    return presentation(result).step


def in_brackets(text: str, *facts: str) -> str:
    """Return a text followed by those facts in brackets that are not empty."""
    found = "; ".join(filter(None, facts))
    return f"{text} ({found})" if found else text


def took(result: SimulationResult) -> str:
    """Return how fast it is: "A step takes 1.2 s [1 to 1.5]", of inference "40 tokens/s (25 to 65)"."""
    if isinstance(result, InferenceResult) or result.asked:
        return speed_text(result)
    what = "training step" if result.kind == "training" else presentation(result).step
    return f"A {what} takes {in_words(result, result.step_by)}"


def took_first(result: SimulationResult) -> str:
    """Return the time to the first token where :func:`took` is about the others, to follow it; else ""."""
    several = isinstance(result, InferenceResult) and result.compared_metric.name != "ttft_s"
    return f", TTFT {in_words(result, 'ttft_s')}" if several else ""


def objective_text(one: Evaluation, objective: Objective) -> str:
    """Return the value of the objective, to precede others: "TPOT 2 ms, "; "" for throughput and cost."""
    if objective.is_latency:
        return f"{compared_text(one.result, short=True).partition(' [')[0]}, "
    value = objective.value(one.result, one.economics)
    if objective.metric is None or value is None:
        return ""
    currency = f" {one.economics.costs.currency}" if objective.metric.unit.name == "currency" else ""
    return f"{objective.metric.label} {objective.metric.text(value)}{currency.rstrip()}, "


def with_gain(one: EvaluatedChange, advice: Advice) -> str:
    """Describe a change with its gain, with the time that it leaves where that is the objective, with what it
    costs, and with the time to first token where that suffers."""
    time = objective_text(one, advice.objective) if one.gain is not None else ""
    cost = f" for {one.extra:,.0f} {one.economics.costs.currency}".rstrip() if one.extra else ""
    gain = f"{time}{gain_text(one)}{cost}{_delayed(one, advice.result)}"
    return in_brackets(one.change.description, gain, one.change.quality)


def with_throughput(one: EvaluatedChange, advice: Advice) -> str:
    """Describe a change with what it gains in throughput, and the time that it takes for that."""
    by = advice.result.latency_by
    now, then = (format_seconds(each.metrics()[by] or 0.0) for each in (one.result, advice.result))
    name = _latency(advice.result)
    cost = f"{name} {now} instead of {then}" if now != then else f"{name} {now} as before"
    gain = f"{format_number(one.throughput or 0.0)}× the throughput, {cost}"
    return in_brackets(one.change.description, gain, one.change.quality)


def _delayed(one: EvaluatedChange, before: SimulationResult) -> str:
    """Return the time to first token with a change, if it is much longer than ``before`` for the same
    work."""
    now, then = (each.metrics().get("ttft_s") for each in (one.result, before))
    if now is None or then is None or now < _DELAYED * then:
        return ""
    return f", but TTFT {format_seconds(now)} instead of {format_seconds(then)}"


def prompt(found: Sequence[EvaluatedChange], advice: Advice) -> list[EvaluatedChange]:
    """Return changes from the first that does not delay the first token, if what it gains is within the
    interval of the largest gain; otherwise all of them."""
    for at, one in enumerate(found):
        if one.gain is None or one.gain < (found[0].gain_interval or (0.0,))[0]:
            break
        if not _delayed(one, advice.result):
            return list(found[at:])
    return list(found)


def described(one: EvaluatedChange, advice: Advice) -> str:
    """Describe a change, with the range of the numbers that were tried for the same key."""
    tried = advice.range_tried(one.change)
    return one.change.description + (f" (tried {tried[0]:,} to {tried[1]:,})" if tried else "")


def gain_text(one: EvaluatedChange) -> str:
    """Return the gain of a change with its interval: "1.5× [1.3 to 1.7]"."""
    if one.gain is None or one.gain_interval is None:
        return "fits"
    return f"{format_number(one.gain)}× [{span(*map(format_number, one.gain_interval))}]"


# -- sections about changes that would make a run faster or cheaper --------------------------------


GAINS = "Changes that help"
LARGER = "Larger batches: more throughput, but no sequence gets its tokens sooner"
_SOONER = "Settings: the first token sooner, further ones as before"
_MOST = 12
"""Number of changes that are listed at once."""
_FEW = 5
"""Number of changes that are listed with a result."""
_CLEAR = 1.02
"""Gain from which a verdict mentions a setting (our choice, the same as for faster storage)."""
_MOST_BARS = 8
"""Number of gains of a chart: our choice."""
_FOR_MONEY, _FOR_SPEED, _FOR_SPACE = (4, 5, 6), (1, 5, 6), (2, 4, 6)
"""Columns of the tables of changes that are shown on a page only, by the subject of the table."""


# -- advice --------------------------------------------------------------------------------------


def advice_verdict(advice: Advice, service: Sequence[ServiceLevel] = ()) -> Verdict:
    """Return the verdict of advice: the bottleneck of the work, or of the metric whose limit in ``service``
    is missed, and the changes with the largest gains, those that keep the answers first."""
    result = advice.result
    end = [VerdictPart(f". Not complete: {advice.extent}", 2)] if advice.stopped else []
    if not result.fits:
        lacking = VerdictPart(f"Without changes, {'; '.join(result.advice)}. ", 3)
        return Verdict.of(lacking, *_what_fits(advice), *end)
    missed = judged(result, service) if result.step is not None and not result.asked else result
    limit = limited_by(missed.step) if missed.step is not None else ""
    same, other = by_answers(advice.helping)
    of = f" of {_ranked(advice.objective)}" if not advice.objective.is_latency else ""
    clear = [one for one in same if one.change.kind == "setting" and (one.gain or _CLEAR) >= _CLEAR]
    paid = [one for one in advice.by_cost if one.change.same_work]
    named = (
        (f"largest gain{of}", same),
        ("with a first token no later", prompt(same, advice)),
        *_as_asked(advice, same),
        ("with other answers", other),
        ("largest gain per cost", paid),
        ("best setting", clear),
    )
    gains, seen = [] if same else [(_nothing_helps(advice, other), "")], list[EvaluatedChange]()
    for title, found in named:
        if found and found[0] not in seen:
            seen.append(found[0])
            what = found[0].change.description
            gains.append((f"{title}: {what}", with_gain(found[0], advice).removeprefix(what)))
    gains += [(f"more throughput: {with_throughput(one, advice)}", "") for one in advice.larger_batches[:1]]
    return Verdict.of(
        took(result),
        VerdictPart(took_first(result), 5),
        VerdictPart("" if missed is result else _missed(missed), 1),
        VerdictPart(f"; bottleneck: {missed.bottleneck}", 1),
        VerdictPart(limit, 4),
        *(
            VerdictPart(text, 3 if at else 0)
            for at, (what, gain) in enumerate(gains)
            for text in ((f"; {what}", gain) if not at else (f"; {what}{gain}",))
        ),
        VerdictPart(f"; {BRACKETS}", 6),
        *end,
    )


def _missed(result: SimulationResult) -> str:
    """Return the metric whose limit is missed, if it is not the one that comes first."""
    metric = result.compared_metric
    named = result.asked in ("", "tokens_per_s", "ttft_s")  # the verdict has them
    return "" if named else f"; {metric.column or metric.label} {ranged(result, metric.name)}"


def _nothing_helps(advice: Advice, other: Sequence[EvaluatedChange]) -> str:
    """Return that no change with the same answers helps, in which respect."""
    objective = advice.objective
    what = f"improves the {objective.metric.label}" if objective.metric else "helps"
    what = "makes it faster" if objective.is_latency else what
    what = what if advice.result.fits else "makes it fit"
    return f"no change that {'keeps the answers' if other else 'was tried'} {what}"


def _as_asked(advice: Advice, same: Sequence[EvaluatedChange]) -> list[tuple[str, list[EvaluatedChange]]]:
    """Return the largest gain with the GPUs that were asked for, where the largest of all needs more."""
    asked = advice.scenario.scenario.strategy.gpus
    if not same or same[0].scenario.scenario.strategy.gpus <= asked:
        return []
    found = [one for one in same if one.scenario.scenario.strategy.gpus == asked]
    return [(f"on {plural(asked, 'GPU')}", found)]


def _what_fits(advice: Advice) -> Iterator[VerdictPart]:
    """Yield the first change that makes the scenario fit, and the cheapest of those with a known price; then
    those with other answers."""
    if not advice.helping:
        tried = _first([one.description for one in advice.impossible]) or "none"
        yield VerdictPart("No change that was tried makes it fit", 0)
        yield VerdictPart(f". Tried: {tried}")
        return
    same, other = by_answers(advice.helping)
    objective = advice.objective
    first = "Fastest change" if objective.is_latency else f"Change with the {best_by(objective)}"
    texts = []
    if same:
        cheapest = min(same, key=lambda one: math.inf if one.extra is None else one.extra)
        texts.append(f"{first} that makes it fit: {with_times(same[0])}")
        texts += [f"cheapest: {with_times(cheapest)}"] if cheapest is not same[0] else []
    if other:
        what = "with other answers" if same else f"{first} that makes it fit, with other answers"
        texts.append(f"{what}: {with_times(other[0])}")
    for at, text in enumerate(texts):
        yield VerdictPart(f"; {text}" if at else text, at)


def _first(texts: Sequence[str]) -> str:
    shown = "; ".join(texts[:_MOST])
    return f"{shown}; and {len(texts) - _MOST} more" if len(texts) > _MOST else shown


def advised(advice: Advice, curve: StorageCurve | None) -> tuple[ReportSection, ...]:
    """Return gains and costs of changes, changes that do not help, settings to copy, and the storage
    bandwidth."""
    fits = advice.result.fits
    by_cost = advice.decisions(advice.by_cost)
    sections = [*_gains(advice)]
    if len(by_cost) > 1:  # a single one is among the changes that help
        paid = _table(by_cost[:_MOST], advice)._replace(page_columns=_FOR_SPEED)
        sections.append(ReportSection("Largest gain per cost", tables=(paid,)))
    sections += _of_another_time(
        advice, LARGER, "throughput gain", advice.larger_batches, lambda one: one.throughput or 0.0
    )
    sections += _of_another_time(
        advice, _SOONER, "TTFT gain", advice.sooner, lambda one: one.first_token_gain(advice.result)
    )
    unclear = advice.decisions(advice.uncertain)
    if unclear:
        text = f"the 80 % interval of {'its' if len(unclear) == 1 else 'each'} gain contains 1"
        sections.append(_tried("Gains within the prediction error", unclear, advice, text))
    named = (*advice.larger_batches, *advice.sooner)
    rest = [one for one in advice.tried if one not in named and (one.gain or WORTH) < WORTH]
    useless = advice.decisions(rest)
    if useless:
        sections.append(_tried("Changes that do not help", useless, advice))
    for title, left in (("are not possible", advice.impossible), ("were not tried", advice.untried)):
        rows = tuple((one.description, one.barred) for one in left)
        table = ReportTable("", ("change", "reason"), rows, (), folded=plural(len(rows), "change"))
        if left:
            sections.append(ReportSection(f"Changes that {title}", tables=(table,), page_only=True))
    sections += _settings(advice)
    if curve is not None or (fits and not _uses_storage(advice)):
        sections.append(bandwidth(curve))
    return tuple(sections)


def _tried(title: str, found: Sequence[EvaluatedChange], advice: Advice, *texts: str) -> ReportSection:
    """Return a table of changes with their gains, each simulated alone."""
    rows = tuple(
        (described(one, advice), Datum(gain_text(one), one.gain, ends=one.gain_interval or ()))
        for one in found[:_MOST]
    )
    more = (f"and {plural(len(found) - _MOST, 'more change')}",) if len(found) > _MOST else ()
    table = ReportTable("", ("change, alone", _gain(advice)), rows, (1,))
    return ReportSection(title, texts, (table,), more)


def _gains(advice: Advice) -> Iterator[ReportSection]:
    """Yield the changes that help: those that keep the answers, then the others, with what is known of their
    answers."""
    currency = advice.economics.costs.currency
    decided = [advice.decisions(found) for found in by_answers(advice.helping)]
    fewer = sum(max(0, len(found) - _MOST) for found in decided)
    time = _latency(advice.result) if advice.objective.is_latency else "time per unit of work"
    ratio = f"{time} without the change / with it"
    if (metric := advice.objective.metric) is not None:
        sides = ("with the change", "without it") if metric.larger else ("without the change", "with it")
        ratio = f"{metric.label} {' / '.join(sides)}"
    bought = any(one.extra and one.gain is not None for each in decided for one in each)
    notes = (
        *([f"and {plural(fewer, 'smaller gain')}"] if fewer > 0 else []),
        f"{_gain(advice)} = {ratio}; each change is simulated alone",
        BRACKETS,
        "cost: nothing = no purchase needed; parts that are no longer used are not subtracted",
        *([f"prices of {advice.price_dates}"] if bought else []),
        *([f"per 1,000 {currency} = ({_gain(advice)} - 1) / cost x 1000"] if bought else []),
    )
    columns = _FOR_MONEY if advice.result.fits else _FOR_SPACE
    drawn = tuple(_drawn(decided, advice))
    best = tuple(
        one._replace(page_columns=columns) for one in _tables([each[:_MOST] for each in decided], advice)
    )
    none = () if best else (_nothing_helps(advice, ()),)
    yield ReportSection(GAINS, none, best, notes if best else (), charts=drawn, notes_on_terminal=True)
    more = _tables([each[_MOST:] for each in decided], advice)
    if more:
        folded = tuple(one._replace(folded="Smaller gains") for one in more)
        yield ReportSection("Smaller gains", tables=folded, page_only=True)


def _drawn(decided: Sequence[Sequence[EvaluatedChange]], advice: Advice) -> Iterator[Chart]:
    """Yield a chart of the changes that keep the answers, and one of the others, whose gains have axes of
    their own; the largest gain is on top."""
    for part, which in zip(decided, ("", ", with other answers"), strict=True):
        timed = sorted((one for one in part if one.gain is not None), key=lambda one: -(one.gain or 0.0))
        label = f"{_gain(advice)} of each change{which}"
        drawn = partial(charts.gains, timed[:_MOST_BARS], axis=_axis(advice))
        if timed:
            yield Chart(label, drawn, f"{_gain(advice)[:1].upper()}{_gain(advice)[1:]}{which}")


def _gain(advice: Advice) -> str:
    """Return the name of the gain."""
    return "gain" if advice.objective.is_latency or advice.objective.metric else "throughput gain"


def _latency(result: SimulationResult) -> str:
    """Return the name of the time of a request, an update or a checkpoint."""
    named = result.latency_by != result.step_by
    return result.declared[result.latency_by].label if named else presentation(result).step


def _axis(advice: Advice) -> str:
    """Return the name of what the gain is of."""
    if advice.objective.is_latency:
        return f"speed (1 / {_latency(advice.result)})"
    metric = advice.objective.metric
    return f"1 / {metric.label}" if metric and not metric.larger else _ranked(advice.objective)


def _tables(found: Sequence[Sequence[EvaluatedChange]], advice: Advice) -> tuple[ReportTable, ...]:
    """Return a table for each part of changes that has any: those that keep the answers, and the others."""
    captions = ("", "With other answers")
    tables = (
        _table(part, advice)._replace(caption=caption)
        for part, caption in zip(found, captions, strict=True)
        if part
    )
    return tuple(tables)


def _of_another_time(
    advice: Advice,
    title: str,
    gain: str,
    found: Sequence[EvaluatedChange],
    gains: Callable[[EvaluatedChange], float],
) -> Iterator[ReportSection]:
    """Yield the changes that gain what the objective does not count."""
    decided = advice.decisions(found)
    if not decided:
        return
    head = ("change", gain, _column(advice.result), "TTFT")
    rows = tuple(
        (
            Datum(in_brackets(described(one, advice), one.change.quality), name=one.change.key),
            Datum(f"{format_number(gains(one))}×", gains(one)),
            _step(one.result),
            _first_tokens(one.result),
        )
        for one in decided[:_MOST]
    )
    table = ReportTable("", head, rows, (1, 2, 3))
    shown = table if any(row[-1] for row in rows) else table.without_last_column()
    yield ReportSection(title, tables=(shown,))


def next_steps_section(advice: Advice) -> ReportSection:
    """List the few changes that gain most."""
    found = by_answers(advice.decisions(advice.helping)[:_FEW])
    text = "simoffload advise lists every change that was tried, and writes each as a scenario"
    text += f"; not complete: {advice.extent}" if advice.stopped else ""
    return ReportSection("Next steps", (NameFirst(text),), _tables(found, advice))


def _uses_storage(advice: Advice) -> bool:
    targets = advice.scenario.machine.targets
    return any(use.tier in targets for use in advice.result.capacity)


def _table(found: Sequence[EvaluatedChange], advice: Advice) -> ReportTable:
    currency = advice.economics.costs.currency
    rows: list[tuple[Entry, ...]] = []
    for one in found:
        per_cost, step = one.gain_per_cost, one.result.step
        rows.append(
            (
                Datum(described(one, advice), name=one.change.key),
                one.change.kind,
                "" if one.gain is None else Datum(gain_text(one), one.gain, ends=one.gain_interval or ()),
                _cost(one, currency),
                ""
                if per_cost is None
                else Datum(f"{'+' if per_cost > 0 else ''}{format_number(per_cost)}", per_cost),
                _step(one.result),
                largest(step) + limited_by(step) if step is not None else "",
                _first_tokens(one.result),
            )
        )
    compared = _column(advice.result)
    head = ("change", "kind", _gain(advice), "cost", f"per 1,000 {currency}", compared, "new bottleneck")
    table = ReportTable("", (*head, "TTFT"), tuple(rows), (2, 3, 4, 5, 7)).without_empty_columns()
    qualities = [one.change.quality for one in found]
    if not any(qualities):
        return table
    rated = tuple((*row, one) for row, one in zip(table.rows, qualities, strict=True))
    return table._replace(head=(*table.head, "quality"), rows=rated)


def _first_tokens(result: SimulationResult) -> Entry:
    """Return the time to first token of a result that is compared by another time."""
    first = result.metrics().get("ttft_s")
    if first is None or result.compared_metric.name == "ttft_s":
        return ""
    return Datum(format_seconds(first), first, "s", ends=confidence(result).interval("ttft_s"))


def _step(result: SimulationResult) -> Entry:
    """Return the compared metric with its interval."""
    return datum(result, result.compared_metric)


def datum(result: SimulationResult, metric: Metric) -> Entry:
    """Return a metric with its interval."""
    shown = ranged(result, metric.name, short=True)
    ends = confidence(result).interval(metric.name) if metric.name in result.composed else ()
    return Datum(shown, result.value_of(metric.name), metric.unit.name, ends=ends)


def _cost(one: EvaluatedChange, currency: str) -> Entry:
    if one.extra is None:
        return "unknown"
    return money(one.extra, currency) if one.extra else Datum("nothing", 0.0, currency)


def _settings(advice: Advice) -> tuple[ReportSection, ...]:
    """Show what to type for the best change of setting, place or program that keeps the answers, and for the
    best with other answers, and the complete ds_config of the setting that gains most; where the scenario
    does not fit, for the first changes of any kind that make it fit."""
    fits = advice.result.fits
    same, other = (
        [one for one in prompt(found, advice) if one.result.provenance.exports]
        for found in by_answers(advice.helping)
    )
    typed = [[one for one in part if not fits or one.change.sets_program] for part in (same, other)]
    shown = [
        (title, commands, one)
        for title, part in zip((COMMAND, f"{COMMAND} for other answers"), typed, strict=True)
        for one in part[:1]
    ]
    single = [one for one in advice.helping if one.change.kind == "setting"]
    named = [one for _, _, one in shown]
    shown += [("Settings to copy", settings, one) for one in single[:1] if one not in named]
    found = tuple(
        chain.from_iterable(
            show(one.result.provenance, f"with {with_gain(one, advice)}", title=title)
            for title, show, one in shown
        )
    )
    if fits and not typed[0]:
        return (*_unchanged_command(advice, same), *found)
    return found


def _unchanged_command(advice: Advice, same: Sequence[EvaluatedChange]) -> tuple[ReportSection, ...]:
    """Show what to type where no change of what is typed helps: with the first purchase that does, or as it
    is."""
    if same:
        return commands(same[0].result.provenance, f"with {with_gain(same[0], advice)}")
    return commands(advice.result.provenance, f"as it is: {_nothing_helps(advice, ())}")


def _ranked(objective: Objective) -> str:
    """Return the name of what changes are ranked by."""
    return objective.metric.label if objective.metric else "throughput"


def best_by(objective: Objective) -> str:
    """Return what the best change by an objective has."""
    lowest = objective.metric is not None and not objective.metric.larger
    return f"{'lowest' if lowest else 'highest'} {_ranked(objective)}"
