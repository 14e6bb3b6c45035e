"""What changes to a scenario would bring, and what a search through a catalogue found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from simoffload.planning.advise import WORTH, Advice, Search, ServiceLevel, SimulatedPurchase, Tried
from simoffload.planning.bandwidth import StorageCurve
from simoffload.planning.confidence import margin
from simoffload.report import charts
from simoffload.report.document import Chart, Datum, Entry, ReportSection, ReportTable, seconds
from simoffload.report.formatting import held_back, largest, per_second, percent, plural
from simoffload.report.presentation import presentation
from simoffload.report.sections.background import settings
from simoffload.report.sections.costs import money
from simoffload.report.sections.explanation import bandwidth_section
from simoffload.results.result import SimulationResult
from simoffload.units import format_number, format_seconds

__all__ = ["GAINS", "advice_verdict", "advised", "next_steps_section", "purchase_verdict", "searched"]

GAINS = "What helps"
FRONT = "Purchases worth considering"
_MOST = 12
"""Changes that are told at once."""
_FEW = 5
"""Changes that are told beside a result."""
_FOR_MONEY, _FOR_SPEED, _FOR_SPACE = (4, 5, 6), (1, 5, 6), (2, 4, 6)
"""Columns of the tables of changes that a terminal has no room for beside the others."""
_MOST_BARS = 15
"""Gains that are drawn."""
_MOST_WHYS = 3
"""Reasons for refusals that are told."""
_KINDS = {"hardware": "buy", "placement": "move", "workload": "work", "setting": "set"}


def advice_verdict(advice: Advice) -> str:
    """The answer in a sentence."""
    result = advice.result
    if not result.fits:
        return f"As it is, {'; '.join(result.advice)}. {_what_fits(advice)}"
    held = held_back(result.step) if result.step is not None else ""
    now = f"{_took(result)}, most of it {result.bottleneck}{held}"
    texts = [f"most is gained with {_with_gain(one)}" for one in advice.helping[:1]]
    paid = [f"most for the money with {_with_gain(one)}" for one in advice.by_cost[:1]]
    free = [one for one in advice.helping if one.option.kind == "setting"][:1]
    set_ = [f"of the settings with {_with_gain(one)}" for one in free]
    return f"{now}: {', '.join([*texts, *paid, *set_]) or 'no change that was tried helps'}."


def _what_fits(advice: Advice) -> str:
    """The fastest change, and the cheapest of which the price is known."""
    if not advice.helping:
        texts = _first([one.option.description for one in advice.impossible])
        return f"No change that was tried makes it fit. Tried: {texts}."
    helping = [one for one in advice.helping if one.option.same_work] or advice.helping
    first = helping[0]
    cheap = min(helping, key=lambda one: math.inf if one.extra is None else one.extra)
    texts = f"It fits and is fastest with: {first.option.description}"
    return f"{texts}." if cheap is first else f"{texts}; at the least cost with: {cheap.option.description}."


def _took(result: SimulationResult) -> str:
    """ "A step takes 1.2 s", "TPOT is 1.2 s"."""
    what, time = presentation(result).step, format_seconds(result.step_time_s or 0.0)
    return f"{what} is {time}" if what.isupper() else f"A {what} takes {time}"


def _with_gain(one: Tried) -> str:
    return f"{one.option.description} ({_times(one.gain)})"


def _times(gain: float | None) -> str:
    return f"{format_number(gain)}×" if gain is not None else "fits"


def advised(advice: Advice, curve: StorageCurve | None) -> tuple[ReportSection, ...]:
    """Gains, what they cost, what changes nothing, settings to paste, and how fast storage must be."""
    currency = advice.economics.costs.currency
    helping = advice.helping
    table = _table(helping[:_MOST], currency, advice.result)
    notes = (
        "gain = time per unit of work as it is over that with the change, each simulated by itself",
        f"per 1000 {currency} = (gain - 1) / cost x 1000",
    )
    table = table._replace(page_columns=_FOR_MONEY if advice.result.fits else _FOR_SPACE)
    timed = [one for one in helping if one.gain is not None][:_MOST_BARS]
    drawn = (Chart("gain of each change", partial(charts.gains, timed)),) if timed else ()
    sections = [ReportSection(GAINS, _error_notes(advice), (table,), notes, charts=drawn)]
    if helping[_MOST:]:
        more = _table(helping[_MOST:], currency, advice.result)._replace(folded="Smaller gains")
        sections.append(ReportSection("Smaller gains", tables=(more,), page_only=True))
    if advice.by_cost:
        paid = _table(advice.by_cost[:_MOST], currency, advice.result)._replace(page_columns=_FOR_SPEED)
        sections.append(ReportSection("Most for the money", tables=(paid,)))
    texts = [
        f"{one.option.description} ({_times(one.gain)})"
        for one in advice.tried
        if (one.gain or WORTH) < WORTH
    ]
    if texts:
        sections.append(ReportSection("What does not help", (_first(texts),)))
    if advice.impossible:
        rows = tuple((one.option.description, one.why) for one in advice.impossible)
        table = ReportTable("", ("change", "why not"), rows, (), folded=plural(len(rows), "change"))
        sections.append(ReportSection("What is impossible", tables=(table,), page_only=True))
    sections += _settings(advice)
    if curve is not None or (advice.result.fits and not _stored(advice)):
        sections.append(bandwidth_section(curve))
    return tuple(sections)


def next_steps_section(advice: Advice) -> ReportSection:
    """The few changes that gain most; ``advise`` tells all of them."""
    table = _table(advice.helping[:_FEW], advice.economics.costs.currency, advice.result)
    texts = "simoffload advise tells all changes that were tried and writes them as scenarios"
    return ReportSection("What next", (texts,), (table,) if table.rows else ())


def _stored(advice: Advice) -> bool:
    """Whether anything lies on drives or servers."""
    targets = advice.scenario.machine.topology.targets
    return any(use.tier in targets for use in advice.result.capacity)


def _first(texts: Sequence[str]) -> str:
    shown = "; ".join(texts[:_MOST])
    return f"{shown}; and {len(texts) - _MOST} more" if len(texts) > _MOST else shown


def _error_notes(advice: Advice) -> tuple[str, ...]:
    timed = [one.result for one in advice.tried if one.gain is not None]
    if not timed or not advice.result.fits:
        return ()
    error = margin(advice.result, advice.result)
    texts = f"gains below {percent(error)} are within the error of predictions of real runs"
    return (f"{texts}; that of two like scenarios is mostly the same, so that it weighs less here",)


def _table(found: Sequence[Tried], currency: str, base: SimulationResult) -> ReportTable:
    rows: list[tuple[Entry, ...]] = []
    for one in found:
        gain = one.gain_per_cost
        rows.append(
            (
                Datum(one.option.description, name=one.option.key),
                _KINDS[one.option.kind],
                "" if one.gain is None else Datum(_times(one.gain), one.gain),
                _cost(one, currency),
                "" if gain is None else Datum(f"{'+' if gain > 0 else ''}{format_number(gain)}", gain),
                seconds(one.result.step_time_s),
                largest(one.result.step) + held_back(one.result.step) if one.result.step is not None else "",
            )
        )
    head = (
        "change",
        "",
        "gain",
        "cost",
        f"per 1000 {currency}",
        presentation(base).step,
        "then the bottleneck",
    )
    return ReportTable("", head, tuple(rows), (2, 3, 4, 5))


def _cost(one: Tried, currency: str) -> Entry:
    if one.extra is None:
        return "unknown"
    return money(one.extra, currency) if one.extra else Datum("nothing", 0.0, currency)


def _settings(advice: Advice) -> list[ReportSection]:
    """The complete ds_config of the settings that gain most."""
    best = [one for one in advice.helping if one.option.kind == "setting" and one.gain is not None][:1]
    found = (
        settings(one.result.provenance, f"with {_with_gain(one)}", title="Settings to paste") for one in best
    )
    return [section for sections in found for section in sections]


# -- search ------------------------------------------------------------------------------------


def searched(
    search: Search, *, budget: float | None, service: Sequence[ServiceLevel]
) -> tuple[ReportSection, ...]:
    """What was looked for, the best, and the front of purchase against throughput."""
    texts = [_search_sentence(search, budget, service), purchase_verdict(search)]
    duplicates = f", {search.duplicates} come to the same as others" if search.duplicates else ""
    texts.append(
        f"{len(search.points)} simulated, {search.too_large} do not fit, {search.over_budget} are beyond the "
        f"budget, {search.refused} are refused by DeepSpeed or the machine{duplicates}"
    )
    texts += [f"refused {number} times: {why}" for why, number in list(search.refusals.items())[:_MOST_WHYS]]
    if search.missing:
        text = "combinations with it are within no budget and not in the table"
        texts.append(f"no price is known of {', '.join(search.missing)}: {text}")
    rows = tuple(_point(point, search) for point in search.front)
    step = presentation(search.points[0].result).step if search.points else "step"
    head = ("purchase", "units/s", step, "of 1M tokens", "what")
    table = ReportTable("No other purchase is both cheaper and faster", head, rows, (0, 1, 2, 3), keys=1)
    drawn = (Chart("throughput over purchase", partial(charts.front, search)),) if rows else ()
    return (ReportSection(FRONT, tuple(texts), (table,) if rows else (), charts=drawn),)


def _search_sentence(search: Search, budget: float | None, service: Sequence[ServiceLevel]) -> str:
    limits = [f"at most {budget:,.0f} {search.currency}"] if budget is not None else []
    limits += [level.text for level in service]
    how = "all of them" if search.method == "grid" else "by Optuna's NSGA-II"
    texts = f"{search.combinations:,} combinations of storage, drives, memory and batch, {how}"
    return f"{texts}; {', '.join(limits)}" if limits else texts


def purchase_verdict(search: Search) -> str:
    """The best purchase, or how near the nearest comes."""
    best = search.best
    if best is None and search.nearest is not None:
        near = search.nearest
        what = ", ".join(near.description) or "as it is"
        return f"nothing keeps the budget and the service level; nearest: {what}, {_took(near.result)}"
    if best is None:
        if search.points:
            return "nothing has a price for its work: lay a list of your own over the shipped one (--costs)"
        return "nothing of it works within the budget"
    what = {"throughput": "fastest", "cost": "cheapest for its work"}[search.objective]
    rate = per_second(best.rate, f" {best.result.unit}s/s")
    price = f"{best.purchase:,.0f} {search.currency}" if math.isfinite(best.purchase) else "an unknown price"
    return f"{what}: {', '.join(best.description) or 'as it is'}; {rate} for {price}"


def _point(point: SimulatedPurchase, search: Search) -> tuple[Entry, ...]:
    found = point.economics.metrics()
    return (
        money(point.economics.purchase, search.currency),
        Datum(per_second(point.rate, ""), point.rate, "1/s"),
        seconds(point.result.step_time_s),
        money(found["cost_per_million_tokens"], search.currency),
        ", ".join(point.description) or "as it is",
    )
