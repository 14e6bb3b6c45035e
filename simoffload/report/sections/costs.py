"""What an answer costs: hardware, energy, tokens; of one result, and of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simoffload.planning.costs import FORMULAS, BreakEven, Costed, CostVerdict, Economics, verdicts
from simoffload.planning.costs.break_even import FIRST, SECOND
from simoffload.report.document import Datum, Entry, ReportSection, ReportTable, count
from simoffload.report.formatting import per_second, percent
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.endurance import duration
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.units import format_number, format_watts

__all__ = ["COSTS", "costs", "costs_compared", "money"]

COSTS = "Cost and energy"
_MOST_BREAK_EVENS = 3


def money(value: float | None, currency: str) -> Entry:
    """ "221,000 USD", "5.7 USD"; empty for None."""
    return "" if value is None else Datum(_amount(value, currency), value, currency)


def _digits(value: float) -> str:
    """Three significant digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{format_number(value)}"


def _amount(value: float, currency: str) -> str:
    return f"{_digits(value)} {currency}".rstrip()


def _watts(value: float | None) -> Entry:
    return "" if value is None else Datum(format_watts(value), value, "W")


def _joules(value: float | None) -> Entry:
    return "" if value is None else Datum(f"{_digits(value)} J", value, "J")


# -- one result --------------------------------------------------------------------------------


def costs(result: SimulationResult, one: Economics) -> tuple[ReportSection, ...]:
    """What is told of one result; the lines of the bill and of the power are not for a terminal."""
    lines = ReportSection(COSTS, tuple(_sentences(result, one)))
    details = ReportSection(
        "Bill, power and prices",
        tables=(_metrics(one), _bill(one), _power(one), _figures(one)),
        notes=("Prices and powers come from lists, which a list of your own can change: --costs FILE.",),
        page_only=True,
    )
    return lines, details


def _sentences(result: SimulationResult, one: Economics) -> list[str]:
    found, currency, years = one.metrics(), one.costs.currency, one.costs.assumption("lifetime").value
    lines = []
    if found["purchase"] is None:
        lines.append("no prices are known of this machine")
    else:
        text = f"machine and storage cost {_amount(found['purchase'], currency)}"
        if found["purchase_per_h"] is not None:
            per_h, lasting = (
                _amount(found["purchase_per_h"], currency),
                "1 year" if years == 1 else f"{years:g} years",
            )
            text += f", {per_h} an hour over {lasting}"
        lines.append(text)
    for worn in one.replacements:
        text = f"drives of {worn.tier} wear out before they are written off"
        lines.append(f"{text}: {_amount(worn.per_h, currency)} an hour for new ones")
    if found["power_w"] is not None and found["electricity_per_h"] is not None:
        pue = one.costs.assumption("pue").value
        text = f"{format_watts(found['power_w'])} while it works; with a PUE of {pue:g}"
        lines.append(f"{text}, {_amount(found['electricity_per_h'], currency)} of electricity an hour")
    lines += _per_work(result, one, found)
    return lines + list(one.warnings)


def _per_work(result: SimulationResult, one: Economics, found: Mapping[str, float | None]) -> list[str]:
    """Of a million tokens, and of a step or a checkpoint."""
    currency, lines = one.costs.currency, []
    million, kwh = found["cost_per_million_tokens"], found["kwh_per_million_tokens"]
    if million is not None and kwh is not None:
        lines.append(f"a million tokens cost {_amount(million, currency)} and take {_digits(kwh)} kWh")
    lines += _spread(result, one, found)
    rented = found["rent_per_million_tokens"]
    if rented is not None and one.rent is not None:
        hour = f"{_amount(one.rent.value, currency)} for {one.rent.what}, without storage"
        lines.append(f"rented, a million tokens cost {_amount(rented, currency)} (at {hour})")
    run = found["cost_per_run"]
    if run is not None and found["energy_per_run_j"] is not None:
        joules = found["energy_per_run_j"]
        what = {"token": "generation"}.get(result.unit, result.unit)
        if result.workload.get("kind") == "training":
            what = "training step"
        lines.append(
            f"a {what} costs {_amount(run, currency)} and takes {_digits(joules / 3.6e6)} kWh without the PUE"
        )
    return lines


def _spread(result: SimulationResult, one: Economics, found: Mapping[str, float | None]) -> list[str]:
    """What tokens from weights in HBM could cost at least if ZeRO-3 did not gather them for every token."""
    bound = result.spread_bound_tokens_per_s if isinstance(result, InferenceResult) else None
    if bound is None or found["cost_per_h"] is None:
        return []
    least = _amount(found["cost_per_h"] / 3600 / bound * 1e6, one.costs.currency)
    gathers = "this is ZeRO-3, where every GPU gathers every layer for every token"
    spread = f"at the bound of {per_second(bound)}, of weights spread and not gathered"
    return [f"{gathers}; {spread}, a million tokens would cost at least {least}"]


def _metrics(one: Economics) -> ReportTable:
    units = {"_w": "W", "_j": "J", "kwh_per_million_tokens": "kWh", "return_per_purchase": ""}
    rows: list[tuple[Entry, ...]] = []
    for name, value in one.metrics().items():
        if value is None:
            continue
        unit = next((unit for end, unit in units.items() if name.endswith(end)), one.costs.currency)
        rows.append(
            (
                name,
                Datum(f"{format_number(value, digits=4)} {unit}".rstrip(), value, unit),
                f"{name} = {FORMULAS[name]}",
            )
        )
    return ReportTable("Costs and energy", ("metric", "value", "how it is computed"), tuple(rows), (1,))


def _bill(one: Economics) -> ReportTable:
    currency = one.costs.currency
    rows: list[tuple[Entry, ...]] = []
    for item in one.bill.items:
        each = item.price.value * item.units if item.price else None
        total = "comes with the machine" if item.covered else money(item.total, currency)
        price = "" if item.covered else money(each, currency)
        rows.append(
            (item.description, count(item.number), price, total if item.covered or item.price else "unknown")
        )
    rows.append(("sum", "", "", money(one.purchase, currency) if one.purchase is not None else "unknown"))
    return ReportTable("What has to be bought", ("part", "number", "each", "all"), tuple(rows), (1, 2, 3))


def _power(one: Economics) -> ReportTable:
    rows: tuple[tuple[Entry, ...], ...] = ()
    if one.energy is not None:
        rows = tuple(
            (
                draw.key,
                Datum(f"{format_number(draw.number)}", draw.number),
                _watts(draw.idle_w),
                _watts(draw.active_w),
                Datum(percent(draw.busy), draw.busy),
                _watts(draw.watts),
            )
            for draw in one.energy.draws
        )
    head = ("device", "number", "idle, each", "active, each", "busy", "all")
    return ReportTable("What draws power", head, rows, (1, 2, 3, 4, 5))


def _figures(one: Economics) -> ReportTable:
    rows = tuple(
        (
            figure.what,
            Datum(f"{format_number(figure.value, digits=6)}", figure.value),
            figure.origin,
            figure.source,
            str(figure.date),
        )
        for figure in one.figures
    )
    head = ("price or assumption", "value", "origin", "source", "date")
    return ReportTable("Where prices come from", head, rows, (1,), folded="Where prices come from")


# -- several -----------------------------------------------------------------------------------


def costs_compared(found: Sequence[Costed]) -> tuple[ReportSection, ...]:
    """One table, and of each model and kind of work the prices at which the cheapest and the next would
    cost the same."""
    rows = tuple(_compared(one, [other for other in found if other.work == one.work]) for one in found)
    head = ("result", "purchase", "cost/1M", "return", "worn out", "power", "J/token", "kWh/1M", "rented/1M")
    shown = ReportTable("", head, rows, (1, 2, 3, 5, 6, 7, 8)).without_empty_columns()
    if len(shown.head) == 1:
        return ()
    notes = [
        f"kWh and cost are for a million tokens; cost = {FORMULAS['cost_per_million_tokens']}",
        f"return is beside that of the best; return = {FORMULAS['return_per_purchase']}",
        "worn out: when the rating of the drives is used up, in work day and night",
    ]
    idle = {one.economics.idle for one in found}
    foreign = set.intersection(*(set(one.economics.slips) for one in found))  # to all of the machines
    about: dict[str, list[str]] = {}
    for one in found:
        for text in one.economics.warnings:
            if text in foreign or text not in one.economics.slips:
                about.setdefault(text, []).append(one.label)
    warnings = (
        f"{'; '.join(labels)}: {text}" if text in idle and len(idle) > 1 else text
        for text, labels in about.items()
    )
    currency = found[0].economics.costs.currency
    lines = [text for one in verdicts(found) for text in _verdict(one, currency)]
    for one in found:
        more = _spread(one.result, one.economics, one.economics.metrics())
        lines += [f"{one.label}: {text}" for text in more]
    return (ReportSection(COSTS, (*lines, *warnings), (shown,), tuple(notes)),)


def _compared(one: Costed, peers: Sequence[Costed]) -> tuple[Entry, ...]:
    metrics, currency = one.economics.metrics(), one.economics.costs.currency
    best = max((other.economics.metrics()["return_per_purchase"] or 0.0 for other in peers), default=0.0)
    mine = metrics["return_per_purchase"]
    kwh = metrics["kwh_per_million_tokens"]
    return (
        one.label,
        _at_least(one, money(metrics["purchase"], currency)),
        _at_least(one, money(metrics["cost_per_million_tokens"], currency)),
        "" if mine is None else Datum(f"{format_number(mine / best)}×", mine),
        _lifetimes(one.result),
        _watts(metrics["power_w"]),
        _joules(metrics["energy_per_token_j"]),
        "" if kwh is None else Datum(_digits(kwh), kwh, "kWh"),
        money(metrics["rent_per_million_tokens"], currency),
    )


def _at_least(one: Costed, cell: Entry) -> Entry:
    """A sum that lacks the price of something."""
    if not one.economics.bill.missing or isinstance(cell, str):
        return cell
    return cell._replace(text=f"≥ {cell.text}")


def _lifetimes(result: SimulationResult) -> str:
    """Of the drives that steps or checkpoints write to; inference writes nothing."""
    found = result.drive_lifetime if isinstance(result, TrainingResult | CheckpointResult) else ()
    return ", ".join(
        f"{one.tier}: {duration(one.drive_lifetime.years)}"
        for one in found
        if one.drive_lifetime.years is not None
    )


def _verdict(one: CostVerdict, currency: str) -> list[str]:
    """Which answer costs least for its work, and what would turn that round."""
    ratio = format_number(one.ratio)
    if ratio == "1":
        return [f"{one.cheapest} and {one.next} cost the same for their work"]
    lines = f"{one.cheapest} costs least for its work, {one.next} {ratio} times as much"
    if one.tie:
        lines += f"; a tie, as predictions of real runs are off by ±{percent(one.margin)}"
    if not one.break_even_points:
        return [lines, "no single price of either turns that round"]
    turns = [
        flip for flip in one.break_even_points if _amount(flip.at, currency) != _amount(flip.now, currency)
    ]
    return [
        lines,
        *(_break_even_sentence(flip, one.cheapest, one.next, currency) for flip in turns[:_MOST_BREAK_EVENS]),
    ]


def _break_even_sentence(flip: BreakEven, first: str, second: str, currency: str) -> str:
    what = {FIRST: f"everything bought for {first}", SECOND: f"everything bought for {second}"}.get(
        flip.what, flip.what
    )
    now, at = _amount(flip.now, currency), _amount(flip.at, currency)
    direction = "below" if flip.first_cheaper_above else "above"
    return f"{second} would cost less with {what} {direction} {at} (now {now})"
