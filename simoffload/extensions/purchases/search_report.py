"""What a search for purchases found, as a report tells it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from simoffload.extensions.purchases.search import Search, SimulatedPurchase
from simoffload.planning.confidence import confidence
from simoffload.planning.service_levels import ServiceLevel, judged
from simoffload.report import plotting as draw
from simoffload.report.charts import HEIGHT
from simoffload.report.document import (
    Chart,
    Datum,
    Entry,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.formatting import span
from simoffload.report.presentation import BRACKETS, presentation
from simoffload.report.sections.advice import best_by, compared_text, datum, objective_text, took
from simoffload.report.sections.costs import money
from simoffload.units import per_second

PURCHASES = "Verdict on purchases"
_MOST_REASONS = 3
"""Number of reasons for refusals that are given."""


def search_document(
    search: Search,
    *,
    budget: float | None = None,
    service: Sequence[ServiceLevel] = (),
    owned: float | None = None,
) -> ReportDocument:
    """Build the document of a search for purchases; ``owned`` is the price of the present machine."""
    answer = purchase_verdict(search, budget=budget, service=service, owned=owned)
    return ReportDocument((PURCHASES,), None, (answer,), (), searched(search, budget=budget, service=service))


def searched(
    search: Search, *, budget: float | None, service: Sequence[ServiceLevel]
) -> tuple[ReportSection, ...]:
    """Return the section about a search for purchases: what became of every combination, the best purchase,
    the Pareto front."""
    limits = [f"at most {one}" for one in [_money(search, budget)] if one]
    limits += [level.text for level in service]
    looked = f"{search.combinations:,} combinations of storage, drives, memory, program, format and batch"
    outcomes = ", ".join(f"{number:,} {text}" for text, number in search.outcomes.items())
    looked = f"{search.already}{looked}; {', '.join(limits)}" if limits else looked
    stopped = [f"the search is not complete: {search.stopped}"] if search.stopped else []
    texts = [looked, outcomes, *stopped, *search.limits]
    texts += [
        f"refused {number} times: {why}" for why, number in list(search.refusals.items())[:_MOST_REASONS]
    ]
    if search.missing:
        text = "combinations with it meet no budget and are not in the table"
        texts.append(f"no price is known for {', '.join(search.missing)}: {text}")
    tables = tuple(_front(search))
    drawn = Chart(f"{speed_axis(search)} over purchase", partial(front, search))
    title, prices = (
        "Purchases worth considering",
        {one.price for one in search.points if math.isfinite(one.price)},
    )
    return (ReportSection(title, tuple(texts), tables, charts=(drawn,) if len(prices) > 1 else ()),)


def _front(search: Search) -> Iterator[ReportTable]:
    """Yield the tables of the front: with the same answers, and with others."""
    captions = ("No other purchase is both cheaper and faster", "With other answers")
    for rank, caption in enumerate(captions):
        found = [one for one in search.front if one.rank == rank]
        rows = tuple((*_point(one, search), *([one.quality] * rank)) for one in found)
        step = presentation(search.points[0].result).step if found else ""
        prices = ("purchase",) if search.extra is None else ("bought", "whole machine")
        head = (*prices, "units/s", step, "cost/1M tokens", "configuration", *(["quality"] * rank))
        if rows:
            yield ReportTable(caption, head, rows, tuple(range(len(prices) + 3)), keys=1)


def _money(search: Search, budget: float | None) -> str:
    """Return what may be spent; empty if that is not limited."""
    if search.extra is not None:
        return f"{search.extra:,.0f} {search.currency} beyond the present machine"
    return "" if budget is None else f"{budget:,.0f} {search.currency} for a whole machine"


_BEST = {"latency": "shortest time", "cost": "cheapest per unit of work"}
"""What is said of the best purchase by other objectives."""


def purchase_verdict(
    search: Search,
    *,
    budget: float | None,
    service: Sequence[ServiceLevel],
    owned: float | None = None,
) -> Verdict:
    """Return a sentence about the best purchase, or about the one that is closest to the limits; ``owned`` is
    the price of the present machine."""
    best, limit = search.best, _money(search, budget)
    if best is None and search.nearest is not None:
        near = search.nearest
        what = ", ".join(near.description) or "no change"
        levels = " and ".join(level.text for level in service)
        within = f" within {limit}" if limit else ""
        none = f"nothing {f'meets {levels}' if levels else 'is possible'}{within}"
        return Verdict.of(none, VerdictPart(f"; nearest: {what}, {took(judged(near.result, service))}"))
    if best is None:
        if search.points:
            return Verdict.of("no price per unit of work is known: give a price list of your own (--costs)")
        none = f"no combination is possible{' within the budget' if limit else ''}"
        if budget is None or owned is None or owned <= budget:
            return Verdict.of(none)
        costs = f"the present machine alone costs {owned:,.0f} {search.currency}"
        beyond = VerdictPart(f"; --budget +{budget:.0f} is beyond it")
        return Verdict.of(f"{none}, which is for a whole machine: {costs}", beyond)
    other = search.other
    return Verdict.of(
        f"{_BEST.get(search.objective.name) or best_by(search.objective)}: {_bought(best, search)}",
        *([] if other is None else [VerdictPart(f"; with other answers: {_bought(other, search)}")]),
        VerdictPart(f"; {BRACKETS}", 2),
    )


def _bought(one: SimulatedPurchase, search: Search) -> str:
    """Return a purchase with its speed and price."""
    unit = f" {one.result.unit}s/s"
    low, high = confidence(one.result).interval(one.result.unit_by)
    rate = per_second(one.rate, unit)
    rate += f" [{span(per_second(1 / high, unit), per_second(1 / low, unit), value=rate)}]"
    price = f"for {one.price:,.0f} {search.currency}" if math.isfinite(one.price) else "for an unknown price"
    price = "without a purchase" if one.bought == 0 else price
    time = objective_text(one, search.objective)
    if search.objective.is_latency:
        time = "" if one.result.compared_metric.name == "tokens_per_s" else f"{compared_text(one.result)}, "
    return f"{', '.join(one.description) or 'no change'}; {time}{rate} {price}"


def _point(point: SimulatedPurchase, search: Search) -> tuple[Entry, ...]:
    bought = () if point.bought is None else (money(point.bought, search.currency),)
    return (
        *bought,
        money(point.economics.purchase, search.currency),
        Datum(per_second(point.rate, ""), point.rate, "1/s"),
        datum(point.result, point.result.step_metric),
        money(point.economics.metrics()["cost_per_million_tokens"], search.currency),
        ", ".join(point.description) or "no change",
    )


def speed_axis(search: Search) -> str:
    """Return the name of what a search compares with the purchase."""
    if (metric := search.objective.metric) is not None:
        return metric.label if metric.larger else f"1 / {metric.label}"
    latency = search.objective.is_latency
    return "requests or steps per second" if latency else "throughput [units of work per second]"


def front(search: Search) -> draw.Properties:
    """Draw all simulated purchases, and the Pareto front as a line."""
    known = [point for point in search.points if math.isfinite(point.price)]
    best = [search.best] if search.best in known else []
    on_front = set(map(id, search.front))
    rest = [point for point in known if id(point) not in on_front]
    same, other = ([one for one in search.front if one.rank == rank] for rank in (0, 1))
    data = [
        _marks("others", rest, draw.GREY, "circle-open", mode="markers+text"),
        _marks("none cheaper is faster", same, draw.BLUE, "circle", mode="lines+markers+text"),
        _marks("with other answers", other, draw.GREEN, "circle", mode="lines+markers+text"),
        _marks("best", best, draw.VERMILION, "diamond", mode="markers+text", size=13),
    ]
    return draw.figure(
        data,
        HEIGHT,
        showlegend=False,
        xaxis=draw.axis(
            f"{'purchase' if search.extra is None else 'bought'} [{draw.plain(search.currency)}]"
        ),
        yaxis=draw.axis(speed_axis(search), rangemode="tozero"),
    )


def _marks(
    name: str,
    found: Sequence[SimulatedPurchase],
    color: str,
    symbol: str,
    *,
    size: int = 8,
    mode: str,
) -> draw.Properties:
    return draw.points(
        name,
        x=[point.price for point in found],
        y=[point.speed for point in found],
        hover=[draw.plain(", ".join(point.description) or "no change") for point in found],
        mode=mode,
        marker={"color": color, "symbol": symbol, "size": size},
        **draw.at_one(name, len(found), 0),
    )
