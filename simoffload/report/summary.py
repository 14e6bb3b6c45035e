"""The sentence with which a report begins, for a reader who has ten seconds.

It has at most five numbers beside intervals: the value, the advantage over the next one or the share of the
bottleneck, the cost, and of training its rate and the life of drives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simoffload.errors import printable
from simoffload.planning.answers import Answer
from simoffload.planning.confidence import margin
from simoffload.report.comparison import ComparisonRow, Group, apart
from simoffload.report.document import Verdict, VerdictPart
from simoffload.report.formatting import counted, span
from simoffload.report.presentation import presentation, speed_text
from simoffload.report.sections.performance import program_rate
from simoffload.results import (
    ADDED,
    InferenceResult,
    Metric,
    PassResult,
    SimulationResult,
    TrainingResult,
)
from simoffload.units import format_bytes, format_number, format_seconds, percent, plural

_NAMED = 2
"""Number of results that a sentence names; of more it gives the number."""
_LASTING = 1.0
"""[years] below which a verdict says how long drives last: our choice."""
_SIMILAR_COST = 0.05
"""Relative difference of costs up to which they are called the same."""


def result_summary(result: Answer) -> Verdict:
    """Return the answer of one result: how fast it is and how sure that is, what takes the time, the cost."""
    wording, name = presentation(result), printable(result.model.partition(" (")[0])
    where = f"on {printable(result.platform)}"
    if result.refused:
        return Verdict.of(f"{name} is refused {where}: {printable(result.refused[0])}")
    if not result.fits:
        return Verdict.of(f"{name} does not fit {where}: {_lacking(result)}", *_fits_with(result))
    step = result.step
    if step is None:
        use = min(result.capacity, key=lambda use: use.headroom / use.capacity)
        free = f"{counted(use.headroom, use)} of {printable(use.tier)} free {use.scope}"
        return Verdict.of(f"{name} fits {where} with {wording.placed}: {free}", *_rated(result))
    value = _value(result, result.compared_metric)
    return Verdict.of(
        f"{name} {wording.verb}",
        VerdictPart(f" with {wording.placed}", 4),
        VerdictPart(f": {value}", 0),
        *_trained(result),
        VerdictPart(f"; {_bottleneck(result, step)}", 2),
        *_cost(result, "; ", rank=0),
        *_consequences(result),
    )


def group_summary(group: Group, *, titled: bool = False) -> Verdict:
    """Return the answer of a comparison: the fastest, how sure that is, what is as fast, the cost.

    The model is named if the group is ``titled``.
    """
    title = f"{group.title}: " if titled else ""
    timed = [row for row in group.judged if group.value(row) is not None]
    if not timed:
        return Verdict.of(f"{title}{_untimed(group)}")
    best, out = timed[0], [row for row in group.rows if not row.result.fits]
    name = f"{best.label} ({ADDED})" if best.added else best.label
    value = _value(best.result, group.measure, alone=len(timed) == 1)
    others = [VerdictPart(f"; {_listed(out)} {_not(out)}", 2)] if out else []
    otherwise = list(_otherwise(group))
    priced = group.measure.unit.name != "currency"  # else the first number is the cost
    cost = list(_cost(best.result, " for ", rank=2 if otherwise else 0)) if priced else []
    ties = [row for row in timed[1:] if row.label in group.leading]
    if ties:
        verb = "gives" if group.measure.larger else "takes"
        tied = VerdictPart(f"; {_tied(best, ties, as_good='fast' if group.is_speed else 'good')}")
        return Verdict.of(f"{title}{name} {verb} {value}", *cost, tied, *otherwise, *others)
    if len(timed) > 1:
        slower = timed[1]
        verb = "takes" if group.is_speed else "has"
        ratio = f"{group.behind(slower)}{_ratio_ends(group, best, slower)}"
        behind = VerdictPart(f", {slower.label} {verb} {ratio}", 1)
        against = list(_costs_against(best, timed[1:])) if priced else []
        first = f"{title}{name} {group.best}: {value}"
        return Verdict.of(first, behind, *(against or cost), *otherwise, *others)
    only = f"only {name} fits" if out else name
    return Verdict.of(f"{title}{only}: {value}", *cost)


def _ratio_ends(group: Group, best: ComparisonRow, slower: ComparisonRow) -> str:
    """Return the 80 % interval of the ratio of two values, in brackets; "" without one."""
    one, other = group.value(best), group.value(slower)
    if not one or not other or group.measure.name not in slower.result.composed:
        return ""
    ratio = max(one, other) / min(one, other)
    within = 1 + margin(best.result, slower.result)
    return f" ({span(format_number(ratio / within), format_number(ratio * within))})"


def _costs_against(best: ComparisonRow, others: Sequence[ComparisonRow]) -> Iterator[VerdictPart]:
    """Yield that another one costs less than the fastest, to buy and for its tokens."""
    mine = _prices(best.result)
    costs = best.result.costs
    if mine is None or costs is None:
        return
    prices = [(row, found) for row in others if (found := _prices(row.result)) is not None]
    cheaper = [(row, found) for row, found in prices if found.purchase < mine.purchase]
    if not cheaper:
        return
    row, found = min(cheaper, key=lambda one: one[1].purchase)
    currency, least = costs.costs.currency, "at least " if costs.missing else ""
    who = ", but costs" if row is others[0] else f"; {row.label} costs"
    text = f"{who} {_money(found.purchase)} to buy instead of {least}{_money(mine.purchase)}"
    yield VerdictPart(f"{text} {currency}".rstrip(), 1, tabled=True)


class _Prices(NamedTuple):
    """What a machine costs, and a million tokens on it; None where it is unknown."""

    purchase: float
    tokens: float | None


def _prices(result: Answer) -> _Prices | None:
    found = None if result.costs is None else result.costs.at_least()["purchase"]
    return None if found is None else _Prices(found, _per_million(result))


def _money(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else format_number(value)


_CLEAR = 1.1
"""Ratio from which two digits tell it."""


def summaries(found: Sequence[Group]) -> tuple[Verdict, ...]:
    """Return the answers of a comparison: one for all models of which each has one row, else one for each
    model and kind of work."""
    rows = [(group, row) for group in found for row in group.rows]
    timed = [(value, group) for group, row in rows if (value := group.value(row)) is not None]
    if len(rows) > len(found) or len({group.kind for group in found}) > 1 or len(timed) < _NAMED:
        return tuple(group_summary(group, titled=len(found) > 1) for group in found)
    timed.sort(key=lambda pair: pair[0], reverse=timed[0][1].measure.larger)
    best, first = timed[0]
    text = f"{first.title} {first.best}: {_value(first.rows[0].result, first.measure)}"
    ratios = [max(value, best) / min(value, best) for value, _ in timed]
    times = [
        f"{group.title.replace(', ', ' ')} {format_number(ratio, digits=2 if ratio >= _CLEAR else 3)}×"
        for (_, group), ratio in zip(timed, ratios, strict=True)
    ]
    text += f"; {', '.join(times[1:])} as long"
    out = [group.title for group, row in rows if group.value(row) is None]
    lacking = [VerdictPart(f"; {', '.join(out)} {'does' if len(out) == 1 else 'do'} not fit")] if out else []
    return (Verdict.of(text, *lacking),)


def _trained(result: Answer) -> Iterator[VerdictPart]:
    """Yield the tokens per second of training."""
    rate = result.metrics().get("tokens_per_s")
    if isinstance(result, TrainingResult) and rate and result.compared_metric.name != "tokens_per_s":
        yield VerdictPart(f", {format_number(rate)} tokens/s", 1)


def _program(result: Answer) -> Iterator[str]:
    """Yield the program that was chosen, and the next one with its rate."""
    if result.choice is not None:
        first, *others = result.choice.programs
        fastest = (
            f", fastest of {len(others) + 1} programs; next: {program_rate(others[0])}" if others else ""
        )
        yield f"{first.title}{fastest}"


def _rated(result: Answer) -> Iterator[VerdictPart]:
    """Yield how fast the program is that was chosen, where only memory is asked for."""
    first = result.choice.programs[0] if result.choice is not None else None
    if first is not None and first.tokens_per_s:
        rate = f"{format_number(first.tokens_per_s)} tokens/s with {first.title}"
        slow = f", {format_seconds(1 / first.tokens_per_s)} a token" if first.tokens_per_s < 1 else ""
        yield VerdictPart(f"; {rate}{slow}")


def _consequences(result: Answer) -> Iterator[VerdictPart]:
    """Yield what the work does beside its own time: drives that are soon worn out, stalls of checkpoints,
    GPUs that wait for data."""
    for one in result.drive_lifetime:
        years = one.drive_lifetime.years
        if years is not None and years < _LASTING:
            yield VerdictPart(f"; drives of {printable(one.tier)} wear out in {one.lasts}", 0)
    if isinstance(result, TrainingResult):
        saved, loaded = result.checkpoint, result.data_loading
        if saved is not None and saved.outlook is not None and saved.outlook.share is not None:
            yield VerdictPart(f"; checkpoints stall it for {percent(saved.outlook.share)} of the time", 3)
        if loaded is not None:
            yield VerdictPart(f"; GPUs wait for data {percent(loaded.cold.starvation)} of the time", 3)


def _bottleneck(result: Answer, step: PassResult) -> str:
    """Return what takes most of the pass that is named, and which part of a request that is, if it is the
    prefill of several tokens."""
    share = percent(step.bottleneck.exposed_s / step.time_s)
    limit = step.bottleneck.limit
    of_memory = any(use.row.is_host and use.tier == limit for use in result.capacity)
    memory = ", limited by the bandwidth of host memory" if of_memory else ""
    text = f"{printable(step.bottleneck.cause_text)} takes {share}{memory}"
    if not isinstance(result, InferenceResult) or step is not result.prefill or not result.decode:
        return text
    return f"{text} of the prefill, which is {percent(step.time_s / (result.e2e_s or 1.0))} of the time"


def _otherwise(group: Group) -> Iterator[VerdictPart]:
    """Yield the clause about another metric that orders the rows otherwise."""
    found = group.otherwise()
    if found is not None:
        metric, best, worst = found
        least, most = (metric.text(one.result.value_of(metric.name) or 0.0) for one in (best, worst))
        yield VerdictPart(f"; {best.label} has the shortest {metric.column} ({least} instead of {most})", 1)


def _value(result: Answer, measure: Metric, *, alone: bool = True) -> str:
    """Return a value with its interval: "40 tokens/s (25 to 65)", "9.81 s per step (9.1 s to 10.9 s)"."""
    if isinstance(result, InferenceResult) and measure == result.compared_metric:
        return speed_text(result, alone=alone)
    if measure.name not in result.composed:
        return f"{result.written(measure)}{measure.each}"
    value = result.metrics()[measure.name] or 0.0
    ends = span(*map(measure.text, result.confidence.interval(measure.name)))
    return f"{measure.text(value)}{measure.each} ({ends})"


def _of_prompts(result: Answer) -> bool:
    """Return whether the work is to read prompts: one token follows each."""
    return isinstance(result, InferenceResult) and result.output_length == 1


def _per_million(result: Answer) -> float | None:
    """Return the cost of a million tokens, of prompts alone that of prompt tokens; None if it is unknown."""
    costs, of = result.costs, "prompt_tokens" if _of_prompts(result) else "tokens"
    return None if costs is None else costs.at_least()[f"cost_per_million_{of}"]


def _cost(result: Answer, before: str, *, rank: int) -> Iterator[VerdictPart]:
    """Yield the cost of a million tokens, if it is known."""
    cost, costs = _per_million(result), result.costs
    if cost is not None and costs is not None:
        least = "at least " if costs.missing else ""
        text = f"{before}{least}{_money(cost)} {costs.costs.currency}".rstrip()
        tokens = "prompt tokens" if _of_prompts(result) else "tokens"
        yield VerdictPart(f"{text} per million {tokens}", rank, tabled=True)


def _tied(best: ComparisonRow, ties: Sequence[ComparisonRow], *, as_good: str) -> str:
    """Return what is as fast as the fastest, and whether it costs more: "raid is as fast within the
    uncertainty and costs more"."""
    verb, plural = ("is", "costs") if len(ties) == 1 else ("are", "cost")
    prices = [_per_million(row.result) for row in (best, *ties)]
    text = f"{_names(ties)} {verb} as {as_good} within the uncertainty"
    if not prices[0] or None in prices:
        return text
    ratios = [(price or 0.0) / prices[0] - 1 for price in prices[1:]]
    if all(abs(ratio) <= _SIMILAR_COST for ratio in ratios):
        return f"{text} and {plural} as much"
    if len(ties) == 1 and abs(ratios[0]) > _SIMILAR_COST:
        times = f"but costs {format_number(ratios[0] + 1, digits=2)} times as much"
        return f"{text} {times if ratios[0] > 0 else f'and costs {percent(-ratios[0])} less'}"
    if all(ratio > _SIMILAR_COST for ratio in ratios):
        return f"{text} but {plural} more"
    return f"{text} but {plural} less" if all(ratio < -_SIMILAR_COST for ratio in ratios) else text


def _names(rows: Sequence[ComparisonRow]) -> str:
    if len(rows) > _NAMED:
        return f"{len(rows)} others"
    return " and ".join(row.label for row in rows)


def _untimed(group: Group) -> str:
    """Return which rows fit where no times were computed, or that nothing does."""
    fitting = [row for row in group.rows if row.result.fits]
    if len(fitting) == len(group.rows):
        return f"{_listed(group.rows)} {'fits' if len(fitting) == 1 else 'fit'}"
    if fitting:
        others = [row for row in group.rows if row not in fitting]
        return (
            f"{_listed(fitting)} {'fits' if len(fitting) == 1 else 'fit'}, {_listed(others)} {_not(others)}"
        )
    if all(row.result.refused for row in group.rows):
        return f"every answer is refused: {printable(group.rows[0].result.refused[0])}"
    return "; ".join(f"{row.label} {_why(row.result)}" for row in group.rows)


def _listed(rows: Sequence[ComparisonRow]) -> str:
    if len(rows) <= _NAMED + 1:
        *first, last = (row.label for row in rows)
        return f"{', '.join(first)} and {last}" if first else last
    return f"{rows[0].label} and {len(rows) - 1} others"


def _not(rows: Sequence[ComparisonRow]) -> str:
    """Return the verb for rows that do not fit."""
    refused = [row for row in rows if row.result.refused]
    if len(refused) == len(rows):
        return "is refused" if len(rows) == 1 else "are refused"
    return "does not fit" if len(rows) == 1 else "do not fit"


def _why(result: Answer) -> str:
    return "is refused" if result.refused else f"does not fit ({_lacking(result)})"


def _lacking(result: Answer) -> str:
    """Return what the tightest tier lacks: "hbm lacks 4 GB per GPU"."""
    use = min(result.capacity, key=lambda use: use.headroom)
    return f"{printable(use.tier)} lacks {counted(-use.headroom, use).removeprefix('−')} {use.scope}"


def _fits_with(result: Answer) -> Iterator[VerdictPart]:
    """Yield the smallest change with which it fits, if one is known."""
    found = result.remedies
    if found is not None and found.changes:
        yield VerdictPart(f"; it fits with this change: {found.changes[0].description}")


def facts(results: Sequence[SimulationResult]) -> tuple[str, ...]:
    """Return what stands in small type below the sentence: what brackets mean, and dates of prices."""
    answers = tuple(map(Answer.of, results))
    found = [*_parts(results), *(_program(answers[0]) if len(results) == 1 else ()), *_tuned(results)]
    if any(result.step is not None for result in results):
        found.append("in brackets: 80 % interval")
    if any(answer.step is not None and answer.confidence.unlike for answer in answers):
        found.append("no comparable real runs" if len(results) == 1 else "some without comparable real runs")
    prices = [costs for answer in answers if (costs := answer.costs) is not None and costs.prices]
    if prices:
        names = dict.fromkeys(
            printable(name.rpartition("/")[2]) for one in prices for name, _ in one.costs.sources
        )
        latest = max(price.date for one in prices for price in one.prices)
        found.append(f"prices: {', '.join(names)}, of {latest}")
    if len(results) > 1:
        found += _tokens_cost(answers)
    elif estimates := results[0].provenance.origins.get("estimate"):
        inputs = sum(results[0].provenance.origins.values())
        found.append(f"{estimates:,} of {plural(inputs, 'input')} estimated")
    return tuple(found)


def _tokens_cost(results: Sequence[Answer]) -> Iterator[str]:
    """Yield what a million tokens cost with each of a few offers."""
    offers = [one for one in results if one.label and not one.superseded]
    known = [(one.label, cost, one.costs) for one in offers if (cost := _per_million(one)) is not None]
    if 1 < len(known) <= _NAMED + 1 and known[0][2] is not None:
        texts = (f"{printable(label)} {_money(cost)}" for label, cost, _ in known)
        yield f"{known[0][2].costs.currency} per million tokens: {', '.join(texts)}"


def _parts(results: Sequence[SimulationResult]) -> Iterator[str]:
    """Yield the memory of the machine, and the drives where something is on them: what a name of a machine
    does not say, and what options change."""
    first = results[0]
    sizes = {use.capacity for one in results for use in one.capacity if use.row.is_host}
    if len(sizes) == 1:
        yield f"{format_bytes(sizes.pop(), binary=True)} of host memory"
    drives = [tuple(name for kind, name, _ in one.provenance.profiles if kind == "drive") for one in results]
    in_use = any(not use.row.is_memory for use in first.capacity)
    if in_use and len(set(drives)) == 1 and drives[0]:
        yield f"drives: {', '.join(map(printable, dict.fromkeys(drives[0])))}"


def _tuned(results: Sequence[SimulationResult]) -> Iterator[str]:
    """Yield the settings that were found for offers."""
    for one in results:
        if one.settings:
            yield f"{printable(one.label or one.name)} with {one.settings}"
    if any(one.superseded for one in results):
        yield "as configured: without these settings"


def common_name(names: Sequence[str]) -> str:
    """Return the name of a report about scenarios with these names."""
    begins, rests = apart(list(dict.fromkeys(map(printable, names))))
    first, *others = rests
    if len(others) > _NAMED:
        text = f"{first} and {len(others)} others"
    else:
        *before, last = rests
        text = f"{', '.join(before)} and {last}" if before else last
    return f"{begins}: {text}" if begins else text
