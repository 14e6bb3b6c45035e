"""Sections about sensitivity, and changes that would make a run faster or cheaper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice

from simoffload.planning.advise import WORTH, Advice, Search, ServiceLevel, SimulatedPurchase, Tried
from simoffload.planning.bandwidth import NO_STORAGE, StorageCurve
from simoffload.planning.confidence import confidence
from simoffload.planning.explanation import Explanation, Sensitivity
from simoffload.report import charts
from simoffload.report.document import Chart, Datum, Entry, ReportSection, ReportTable, byte_rate
from simoffload.report.formatting import (
    NameFirst,
    largest,
    limited_by,
    minus,
    per_second,
    percent,
    span,
    uncapitalized,
)
from simoffload.report.presentation import BRACKETS, presentation, ranged
from simoffload.report.sections.background import COMMAND, commands, settings
from simoffload.report.sections.costs import money
from simoffload.results import SimulationResult
from simoffload.units import format_number, format_seconds, plural

GAINS = "Changes that help"
PURCHASES = "Verdict on purchases"
SENSITIVITY = "Sensitivity to inputs"
STORAGE = "Storage bandwidth and throughput"
TOP = 10
"""Number of inputs that are listed."""
_MOST = 12
"""Number of changes that are listed at once."""
_FEW = 5
"""Number of changes that are listed with a result."""
_CLEAR = 1.02
"""Gain from which a verdict mentions a setting (our choice, the same as for faster storage)."""
_DELAYED = 1.25
"""Time to first token over that without a change from which a change is said to delay it; our choice."""
_MOST_BARS = 15
"""Number of gains that are drawn."""
_MOST_REASONS = 3
"""Number of reasons for refusals that are given."""
_FOR_MONEY, _FOR_SPEED, _FOR_SPACE = (4, 5, 6), (1, 5, 6), (2, 4, 6)
"""Columns of the tables of changes that are shown on a page only, by the subject of the table."""


# -- explanations --------------------------------------------------------------------------------


def explained(explanation: Explanation) -> tuple[ReportSection, ...]:
    """Return the sections that explain a result: storage bandwidth, the tier of the key-value cache, and
    sensitivity to inputs."""
    curve, found = explanation.storage, []
    if explanation.prefix is not None:
        found.append(ReportSection("Load or compute the prefix", explanation.prefix.sentences))
    if explanation.cache is not None:
        found.append(ReportSection("Tier of the key-value cache", explanation.cache.sentences))
    bandwidth = () if found and curve is None else (_bandwidth(curve),)
    return (*bandwidth, *found, _sensitivity(explanation.sensitivity))


def _bandwidth(curve: StorageCurve | None) -> ReportSection:
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
        for point in curve.points
    )
    chart = Chart("throughput over the rate of the storage", partial(charts.bandwidth, curve))
    return ReportSection(STORAGE, curve.sentences, (ReportTable("", head, rows, (0, 1, 2)),), charts=(chart,))


def _sensitivity(found: Sensitivity) -> ReportSection:
    time = found.result.compared_s or 0.0
    compared = uncapitalized(presentation(found.result).compared)
    effect = len(found.rows)
    shown = f" ({TOP} shown)" if effect > TOP else ""
    text = (
        f"how the {compared} changes if one input is {percent(found.change)} lower or higher: "
        f"{plural(effect, 'input')} {'has' if effect == 1 else 'have'} an effect{shown}, "
        f"{found.without_effect} have none, {found.left_out} are unused"
    )

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


# -- advice --------------------------------------------------------------------------------------


def advice_verdict(advice: Advice) -> str:
    """Return the verdict of advice: the bottleneck, and the changes with the largest gains."""
    result = advice.result
    if not result.fits:
        return f"Without changes, {'; '.join(result.advice)}. {_what_fits(advice)}"
    limit = limited_by(result.step) if result.step is not None else ""
    gains = [f"largest gain: {_with_gain(one, result)}" for one in advice.helping[:1]]
    if advice.helping and not advice.helping[0].change.same_work:
        same = [one for one in advice.helping if one.change.same_work]
        gains += [f"with the same answers: {_with_gain(one, result)}" for one in same[:1]]
    gains += _as_asked(advice)
    gains += [f"largest gain per cost: {_with_gain(one, result)}" for one in advice.by_cost[:1]]
    settings_found = [
        one for one in advice.helping if one.change.kind == "setting" and (one.gain or _CLEAR) >= _CLEAR
    ]
    gains += [f"best setting: {_with_gain(one, result)}" for one in settings_found[:1]]
    helps = "; ".join(gains) or "no change that was tried helps"
    return f"{_took(result)}; bottleneck: {result.bottleneck}{limit}; {helps}; {BRACKETS}."


def _as_asked(advice: Advice) -> list[str]:
    """Return the largest gain with the GPUs that were asked for, where the largest of all needs more."""
    asked, result = advice.scenario.scenario.strategy.gpus, advice.result
    if not advice.helping or advice.helping[0].scenario.scenario.strategy.gpus <= asked:
        return []
    same = (one for one in advice.helping if one.scenario.scenario.strategy.gpus == asked)
    return [f"on {plural(asked, 'GPU')}: {_with_gain(one, result)}" for one in islice(same, 1)]


def _what_fits(advice: Advice) -> str:
    """Return the fastest change that makes the scenario fit, and the cheapest of those with a known price."""
    if not advice.helping:
        tried = _first([one.description for one in advice.impossible])
        return f"No change that was tried makes it fit. Tried: {tried}."
    helping = [one for one in advice.helping if one.change.same_work] or advice.helping
    fastest = helping[0]
    cheapest = min(helping, key=lambda one: math.inf if one.extra is None else one.extra)
    text = f"Fastest change that makes it fit: {_with_times(fastest)}"
    text += "" if cheapest is fastest else f"; cheapest: {_with_times(cheapest)}"
    first = advice.helping[0]
    return f"{text}." if first is fastest else f"{text}; faster, but not the same work: {_with_times(first)}."


def _with_times(one: Tried) -> str:
    """Describe a change with the times of a token where it has two."""
    values = one.result.metrics()
    named = [(name, values.get(f"{name.lower()}_s")) for name in ("TPOT", "TTFT")]
    times = ", ".join(f"{name} {format_seconds(value)}" for name, value in named if value)
    return f"{one.change.description} ({times})" if times else one.change.description


def _took(result: SimulationResult) -> str:
    """Return the time as a sentence: "A step takes 1.2 s [1 to 1.5]", "TPOT is 1.2 s [1 to 1.5]"."""
    what, time = presentation(result).step, ranged(result, result.step_by)
    first = f", TTFT {ranged(result, 'ttft_s')}" if what == "TPOT" else ""
    return f"{what} is {time}{first}" if what.isupper() else f"A {what} takes {time}"


def _with_gain(one: Tried, before: SimulationResult | None = None) -> str:
    """Describe a change with its gain, and with the time to first token where that suffers."""
    return f"{one.change.description} ({_times(one)}{_delayed(one, before)})"


def _delayed(one: Tried, before: SimulationResult | None) -> str:
    """Return the time to first token with a change, if it is much longer than ``before`` for the same
    work."""
    now, then = (None if each is None else each.metrics().get("ttft_s") for each in (one.result, before))
    if now is None or then is None or now < _DELAYED * then:
        return ""
    return f", but TTFT {format_seconds(now)} instead of {format_seconds(then)}"


def _described(one: Tried, advice: Advice) -> str:
    """Describe a change, with the range of the numbers that were tried for the same key."""
    tried = advice.range_tried(one.change)
    return one.change.description + (f" (tried {tried[0]:,} to {tried[1]:,})" if tried else "")


def _times(one: Tried) -> str:
    """Return the gain of a change with its interval: "1.5× [1.3 to 1.7]"."""
    if one.gain is None or one.gain_interval is None:
        return "fits"
    return f"{format_number(one.gain)}× [{span(*map(format_number, one.gain_interval))}]"


def _first(texts: Sequence[str]) -> str:
    shown = "; ".join(texts[:_MOST])
    return f"{shown}; and {len(texts) - _MOST} more" if len(texts) > _MOST else shown


def advised(advice: Advice, curve: StorageCurve | None) -> tuple[ReportSection, ...]:
    """Return gains and costs of changes, changes that do not help, settings to copy, and the storage
    bandwidth."""
    currency, fits = advice.economics.costs.currency, advice.result.fits
    helping, by_cost = advice.decisions(advice.helping), advice.decisions(advice.by_cost)
    fewer = len(helping) - _MOST
    notes = (
        *([f"and {plural(fewer, 'smaller gain')}"] if fewer > 0 else []),
        "gain = time per unit of work without the change / with it; each change is simulated alone",
        BRACKETS,
        "cost: nothing = no purchase needed; parts that are no longer used are not subtracted",
        f"per 1,000 {currency} = (gain - 1) / cost x 1000",
    )
    best = _table(helping[:_MOST], advice)._replace(page_columns=_FOR_MONEY if fits else _FOR_SPACE)
    timed = [one for one in helping if one.gain is not None][:_MOST_BARS]
    drawn = (Chart("gain of each change", partial(charts.gains, timed)),) if timed else ()
    sections = [ReportSection(GAINS, tables=(best,), notes=notes, charts=drawn, notes_on_terminal=True)]
    if helping[_MOST:]:
        more = _table(helping[_MOST:], advice)._replace(folded="Smaller gains")
        sections.append(ReportSection("Smaller gains", tables=(more,), page_only=True))
    if by_cost:
        paid = _table(by_cost[:_MOST], advice)._replace(page_columns=_FOR_SPEED)
        sections.append(ReportSection("Largest gain per cost", tables=(paid,)))
    unclear = [f"{_described(one, advice)} ({_times(one)})" for one in advice.decisions(advice.uncertain)]
    if unclear:
        text = f"{_first(unclear)}: the 80 % interval of each gain contains 1"
        sections.append(ReportSection("Gains within the prediction error", (NameFirst(text),)))
    every = advice.decisions(advice.tried)
    useless = [f"{_described(one, advice)} ({_times(one)})" for one in every if (one.gain or WORTH) < WORTH]
    if useless:
        sections.append(ReportSection("Changes that do not help", (NameFirst(_first(useless)),)))
    if advice.impossible:
        rows = tuple((one.description, one.barred) for one in advice.impossible)
        table = ReportTable("", ("change", "reason"), rows, (), folded=plural(len(rows), "change"))
        sections.append(ReportSection("Changes that are not possible", tables=(table,), page_only=True))
    sections += _settings(advice)
    if curve is not None or (fits and not _uses_storage(advice)):
        sections.append(_bandwidth(curve))
    return tuple(sections)


def next_steps_section(advice: Advice) -> ReportSection:
    """List the few changes that gain most."""
    table = _table(advice.decisions(advice.helping)[:_FEW], advice)
    text = "simoffload advise lists every change that was tried, and writes each as a scenario"
    return ReportSection("Next steps", (NameFirst(text),), (table,) if table.rows else ())


def _uses_storage(advice: Advice) -> bool:
    targets = advice.scenario.machine.topology.targets
    return any(use.tier in targets for use in advice.result.capacity)


def _table(found: Sequence[Tried], advice: Advice) -> ReportTable:
    currency = advice.economics.costs.currency
    rows: list[tuple[Entry, ...]] = []
    for one in found:
        gain, step = one.gain_per_cost, one.result.step
        rows.append(
            (
                Datum(_described(one, advice), name=one.change.key),
                one.change.kind,
                "" if one.gain is None else Datum(_times(one), one.gain, ends=one.gain_interval or ()),
                _cost(one, currency),
                "" if gain is None else Datum(f"{'+' if gain > 0 else ''}{format_number(gain)}", gain),
                _step(one.result),
                largest(step) + limited_by(step) if step is not None else "",
                _first_tokens(one.result),
            )
        )
    step_name = presentation(advice.result).step
    head = ("change", "kind", "gain", "cost", f"per 1,000 {currency}", step_name, "new bottleneck", "TTFT")
    table = ReportTable("", head, tuple(rows), (2, 3, 4, 5, 7))
    return table if any(row[-1] for row in rows) else table.without_last_column()


def _first_tokens(result: SimulationResult) -> Entry:
    """Return the time to first token of a result that is compared by another time."""
    first = result.metrics().get("ttft_s")
    if first is None or presentation(result).step == "TTFT":
        return ""
    return Datum(format_seconds(first), first, "s", ends=confidence(result).interval("ttft_s"))


def _step(result: SimulationResult) -> Entry:
    """Return the time of a step with its interval."""
    metric = result.step_by
    return Datum(ranged(result, metric), result.step_time_s, "s", ends=confidence(result).interval(metric))


def _cost(one: Tried, currency: str) -> Entry:
    if one.extra is None:
        return "unknown"
    return money(one.extra, currency) if one.extra else Datum("nothing", 0.0, currency)


def _settings(advice: Advice) -> tuple[ReportSection, ...]:
    """Show what to type for the largest gain of another program or form of the weights, and with the same
    answers, and the complete ds_config of the setting that gains most."""
    programs = [one for one in advice.helping if _types(one)]
    same = [one for one in advice.helping if one.change.same_work and _places(one)]
    single = [one for one in advice.helping if one.change.kind == "setting"]
    shown = [(COMMAND, commands, one) for one in programs[:1]]
    shown += [
        (f"{COMMAND} for the same answers", commands, one) for one in same[:1] if one not in programs[:1]
    ]
    shown += [("Settings to copy", settings, one) for one in single[:1]]
    found = (
        show(one.result.provenance, f"with {_with_gain(one)}", title=title) for title, show, one in shown
    )
    return tuple(chain.from_iterable(found)) or commands(advice.result.provenance, "without changes")


def _types(one: Tried) -> bool:
    """Return whether a change is another program or form of the weights."""
    return one.change.sets_program and one.change.kind != "setting"


def _places(one: Tried) -> bool:
    """Return whether a change places the weights elsewhere, if only under another program."""
    return one.change.kind == "placement" or _types(one)


# -- search --------------------------------------------------------------------------------------


def searched(
    search: Search, *, budget: float | None, service: Sequence[ServiceLevel]
) -> tuple[ReportSection, ...]:
    """Return the section about a search for purchases: what was tried, the best purchase, the Pareto
    front."""
    limits = [f"at most {budget:,.0f} {search.currency}"] if budget is not None else []
    limits += [level.text for level in service]
    how = "all simulated" if search.method == "grid" else "searched by Optuna's NSGA-II"
    looked = f"{search.combinations:,} combinations of storage, drives, memory and batch, {how}"
    duplicates = f", {search.duplicates} are equal to others" if search.duplicates else ""
    counts = f"{len(search.points)} simulated, {search.too_large} do not fit, {search.over_budget} exceed the"
    texts = [
        f"{search.already}{looked}; {', '.join(limits)}" if limits else looked,
        f"{counts} budget, {search.refused} are refused by DeepSpeed or the machine{duplicates}{search.left}",
    ]
    texts += [
        f"refused {number} times: {why}" for why, number in list(search.refusals.items())[:_MOST_REASONS]
    ]
    if search.missing:
        text = "combinations with it meet no budget and are not in the table"
        texts.append(f"no price is known for {', '.join(search.missing)}: {text}")
    rows = tuple(_point(point, search) for point in search.front)
    step = presentation(search.points[0].result).step if search.points else "step"
    head = ("purchase", "units/s", step, "cost/1M tokens", "configuration")
    table = ReportTable("No other purchase is both cheaper and faster", head, rows, (0, 1, 2, 3), keys=1)
    drawn = (Chart("throughput over purchase", partial(charts.front, search)),) if rows else ()
    title = "Purchases worth considering"
    return (ReportSection(title, tuple(texts), (table,) if rows else (), charts=drawn),)


def purchase_verdict(search: Search, *, budget: float | None, service: Sequence[ServiceLevel]) -> str:
    """Return a sentence about the best purchase, or about the one that is closest to the limits."""
    best = search.best
    if best is None and search.nearest is not None:
        near = search.nearest
        what = ", ".join(near.description) or "no change"
        levels = " and ".join(level.text for level in service)
        within = f" within {budget:,.0f} {search.currency}" if budget is not None else ""
        none = f"nothing {f'meets {levels}' if levels else 'is possible'}{within}"
        return f"{none}; nearest: {what}, {_took(near.result)}"
    if best is None:
        if search.points:
            return "no price per unit of work is known: give a price list of your own (--costs)"
        return "no combination is possible within the budget"
    what = {"throughput": "fastest", "cost": "cheapest per unit of work"}[search.objective]
    unit = f" {best.result.unit}s/s"
    low, high = confidence(best.result).interval(best.result.unit_by)
    rate = per_second(best.rate, unit)
    rate += f" [{span(per_second(1 / high, unit), per_second(1 / low, unit), value=rate)}]"
    price = f"{best.purchase:,.0f} {search.currency}" if math.isfinite(best.purchase) else "an unknown price"
    return f"{what}: {', '.join(best.description) or 'no change'}; {rate} for {price}; {BRACKETS}"


def _point(point: SimulatedPurchase, search: Search) -> tuple[Entry, ...]:
    return (
        money(point.economics.purchase, search.currency),
        Datum(per_second(point.rate, ""), point.rate, "1/s"),
        _step(point.result),
        money(point.economics.metrics()["cost_per_million_tokens"], search.currency),
        ", ".join(point.description) or "no change",
    )
