"""Sections about costs: hardware, energy and cost per token, of one result and of several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from simoffload.hardware import DeviceKind
from simoffload.planning.costs import Bill
from simoffload.planning.economics import (
    COST_METRICS,
    FIRST,
    SECOND,
    BreakEven,
    Costed,
    CostVerdict,
    Economics,
    verdicts,
)
from simoffload.report.document import Datum, Entry, ReportSection, ReportTable, count
from simoffload.report.formatting import NameFirst, joined
from simoffload.results import InferenceResult, SimulationResult, TrainingResult
from simoffload.units import format_number, format_watts, per_second, percent, plural

COSTS = "Cost and energy"
_MOST_BREAK_EVENS = 3
_PRICED: Mapping[DeviceKind, str] = {
    "accelerator": "one GPU",
    "drive": "one drive",
    "host": "one host",
    "nfs": "the file server",
    "nic": "one network adapter",
    "nvmeof": "the NVMe-oF server",
    "pfs": "the filesystem",
    "platform": "one machine",
    "remote": "the other host",
}
"""Descriptions of devices that have a price, by the kind of their profiles."""
_BY_SIZE = {"flash per TB": "a TB of flash", "memory per GB": "a GB of memory"}
"""Descriptions of prices by the name of the price."""
_ALWAYS_BUSY = 0.995
"""Share of the time from which a GPU is called busy all the time."""


def money(value: float | None, currency: str) -> Entry:
    """Return a cell for an amount, such as "221,000 USD" or "5.7 USD"; empty for None."""
    return "" if value is None else Datum(_amount(value, currency), value, currency)


def _digits(value: float) -> str:
    """Return a number with three significant digits, or with all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{format_number(value)}"


def _amount(value: float, currency: str) -> str:
    return f"{_digits(value)} {currency}".rstrip()


def _watts(value: float | None) -> Entry:
    return "" if value is None else Datum(format_watts(value), value, "W")


def _joules(value: float | None) -> Entry:
    return "" if value is None else Datum(f"{_digits(value)} J", value, "J")


# -- one result --------------------------------------------------------------------------------


def costs(result: SimulationResult, one: Economics) -> tuple[ReportSection, ...]:
    """Return the costs of one result; a terminal does not show the lines of the bill and of the power."""
    lines = ReportSection(COSTS, tuple(_sentences(result, one)))
    details = ReportSection(
        "Bill, power and prices",
        tables=tuple(
            table._replace(folded="Every price and power")
            for table in (_metrics(one), _bill(one), _power(one), _figures(one))
        ),
        notes=("Prices and powers come from price lists; a list of your own replaces them: --costs FILE.",),
        page_only=True,
    )
    return lines, details


def _sentences(result: SimulationResult, one: Economics) -> list[str]:
    found, currency, years = one.at_least(), one.costs.currency, one.costs.assumption("lifetime").value
    lines, mark = [], "≥ " if one.bill.missing else ""
    if found["purchase"] is None:
        lines.append("no price is known for this machine")
    else:
        sum_ = f"{mark}{_amount(found['purchase'], currency)}"
        text = f"machine and storage cost {sum_}{_parts(one.bill, currency)}"
        if found["purchase_per_h"] is not None:
            lifetime = "1 year" if years == 1 else f"{years:g} years"
            text += f", which is {mark}{_amount(found['purchase_per_h'], currency)} per hour over {lifetime}"
        lines.append(text)
    for worn in one.replacements:
        per_h = "an unknown amount" if worn.per_h is None else f"{_amount(worn.per_h, currency)} per hour"
        lines.append(f"drives of {worn.tier} wear out before that: replacements cost {per_h}")
    if found["power_w"] is not None and found["electricity_per_h"] is not None:
        least = "≥ " if one.energy and one.energy.missing else ""
        electricity = f"{least}{_amount(found['electricity_per_h'], currency)}"
        watts = f"{least}{format_watts(found['power_w'])}"
        power = f"mean power during this work is {watts} ({_waiting(one)}do not use it to size the power"
        lines.append(f"{power} supply); with a PUE of {_pue(one)}, electricity costs {electricity} per hour")
    lines += _per_work(result, one, found)
    return [*lines, *_price_notes([one]), *one.warnings]


def _pue(one: Economics) -> str:
    """Return the PUE, with the place that was assumed where the platform does not state it."""
    assumed = {None: " (a rack is assumed, as the platform states no setting)", "desk": " (on a desk)"}
    return f"{one.pue.value:g}{assumed.get(one.setting, '')}"


def _parts(bill: Bill, currency: str) -> str:
    """Return the prices of the machine and of each storage tier; "" if only one has a price."""
    prices = {tier or "machine": _amount(price, currency) for tier, price in bill.by_tier.items() if price}
    return f" ({', '.join(f'{name} {price}' for name, price in prices.items())})" if len(prices) > 1 else ""


def _waiting(one: Economics) -> str:
    """Return how much of the time GPUs are busy, if they also wait."""
    draws = one.energy.draws if one.energy else ()
    busy = [draw.busy for draw in draws if draw.key.startswith("accelerator/")]
    return f"GPUs are busy {percent(busy[0])} of the time; " if busy and busy[0] < _ALWAYS_BUSY else ""


def _price_notes(found: Sequence[Economics]) -> list[str]:
    """Return sentences about shared storage that is counted in full, and about estimated prices."""
    currency = found[0].costs.currency
    shared = dict.fromkeys(pair for one in found for pair in one.bill.shared.items())
    lines: list[str] = []
    for tier, price in shared:
        full = f"its full price ({_amount(price, currency)})"
        lines.append(NameFirst(f"{tier} is counted at {full}, as if no other machine used it"))
    prices = dict.fromkeys(price for one in found for price in one.prices)
    number = sum(price.origin == "estimate" for price in prices)
    dates = f", of {found[0].price_dates(found)}" if found[0].price_dates(found) else ""
    if number:
        are, them = ("is an estimate", "it") if number == 1 else ("are estimates", "them")
        lines.append(f"{number} of {plural(len(prices), 'price')}{dates}, {are}; replace {them} with --costs")
    elif dates:
        lines.append(f"prices{dates.removeprefix(',')}")
    return lines


def _per_work(result: SimulationResult, one: Economics, found: Mapping[str, float | None]) -> list[str]:
    """Return the costs of a million tokens, and of a step or a checkpoint."""
    currency, lines = one.costs.currency, []
    tokens = "a million output tokens" if isinstance(result, InferenceResult) else "a million tokens"
    million, kwh = found["cost_per_million_tokens"], found["kwh_per_million_tokens"]
    mark, least = ("≥ " if missing else "" for missing in (one.missing, one.energy and one.energy.missing))
    if million is not None and kwh is not None:
        amounts = f"{mark}{_amount(million, currency)} and take {least}{_digits(kwh)} kWh (PUE included)"
        lines.append(f"{tokens} cost {amounts}")
    prompts = found["cost_per_million_prompt_tokens"]
    if prompts is not None and isinstance(result, InferenceResult) and result.step is result.prefill:
        lines.append(f"a million prompt tokens cost {mark}{_amount(prompts, currency)} (time of the prefill)")
    lines += _spread(result, one, found)
    rented = found["rent_per_million_tokens"] if not one.no_rent else None
    if rented is not None and one.rent is not None:
        hour = f"{_amount(one.rent.value, currency)} for {one.rent.what}"
        lines.append(f"on rented hardware, {tokens} cost {_amount(rented, currency)} ({hour})")
    elif million is not None and (one.rent or one.spot):
        lines.append(f"no cost on rented hardware: {one.no_rent}")
    run = found["cost_per_run"]
    if run is not None and found["energy_per_run_j"] is not None:
        kwh_text = f"{least}{_digits(found['energy_per_run_j'] * one.pue.value / 3.6e6)} kWh (PUE included)"
        lines.append(f"{_one_run(result)} costs {mark}{_amount(run, currency)} and takes {kwh_text}")
    return lines


def _one_run(result: SimulationResult) -> str:
    """Return the unit of work, such as "one generation (all 128 sequences, 100 tokens each)" or "one training
    step"."""
    if not isinstance(result, InferenceResult):
        return "one training step" if isinstance(result, TrainingResult) else f"one {result.unit}"
    sequences, tokens = result.batch_size * result.replicas, result.output_length
    all_ = f"all {sequences:,} sequences" if sequences > 1 else "one sequence"
    return f"one generation ({all_}, {plural(tokens, 'token')}{' each' if sequences > 1 else ''})"


def _spread(result: SimulationResult, one: Economics, found: Mapping[str, float | None]) -> list[str]:
    """Return the lower bound of the cost of tokens if weights in HBM were not gathered for every token."""
    if not isinstance(result, InferenceResult):
        return []
    bound = result.spread_bound_tokens_per_s
    if bound is None or found["cost_per_h"] is None:
        return []
    least = _amount(found["cost_per_h"] / 3600 / bound * 1e6, one.costs.currency)
    gathers = f"{result.gathers or 'the strategy'} gathers every layer on every GPU for every token"
    cost = f"a million output tokens would cost at least {least} (upper bound: {per_second(bound)})"
    return [f"{gathers}; without gathering, {cost}"]


def _metrics(one: Economics) -> ReportTable:
    rows: list[tuple[Entry, ...]] = []
    for name, value in one.metrics().items():
        if value is None:
            continue
        metric = COST_METRICS[name]
        unit = one.costs.currency if metric.unit.name == "currency" else metric.unit.name
        rows.append(
            (
                name,
                Datum(f"{format_number(value, digits=4)} {unit}".rstrip(), value, unit),
                f"{name} = {metric.formula}",
            )
        )
    return ReportTable("Costs and energy", ("metric", "value", "formula"), tuple(rows), (1,))


def _bill(one: Economics) -> ReportTable:
    currency = one.costs.currency
    rows: list[tuple[Entry, ...]] = []
    for item in one.bill.items:
        each = item.price.value * item.units if item.price else None
        total = "included in the machine" if item.covered else money(item.total, currency)
        price = "" if item.covered else money(each, currency)
        rows.append(
            (item.description, count(item.number), price, total if item.covered or item.price else "unknown")
        )
    total = "unknown" if one.bill.known is None else money(one.bill.known, currency)
    rows.append(("total", "", "", _marked(total, one.bill.missing)))
    return ReportTable("Bill of materials", ("part", "count", "each", "total"), tuple(rows), (1, 2, 3))


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
    head = ("device", "count", "idle, each", "active, each", "busy", "total")
    return ReportTable("Power by device", head, rows, (1, 2, 3, 4, 5))


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
    return ReportTable("Sources of prices", head, rows, (1,), folded="Sources of prices")


# -- several -----------------------------------------------------------------------------------


def costs_compared(found: Sequence[Costed]) -> tuple[ReportSection, ...]:
    """Return a table of costs and, for each model and kind of work, the break-even prices between the
    cheapest result and the next one."""
    rows = tuple(_compared(one, [other for other in found if other.work == one.work]) for one in found)
    head = (
        *("result", "purchase", "cost/1M", "work per price", "worn out", "power"),
        *("J/token excl. PUE", "kWh/1M incl. PUE", "rented/1M"),
    )
    shown = ReportTable("", head, rows, (1, 2, 3, 5, 6, 7, 8)).without_empty_columns()
    if len(shown.head) == 1:
        return ()
    idle = {one.economics.idle for one in found}
    common = set.intersection(*(set(one.economics.slips) for one in found))  # those of all results
    about: dict[str, list[str]] = {}
    for one in found:
        for text in one.economics.warnings:
            if text in common or text not in one.economics.slips:
                about.setdefault(text, []).append(one.label)
    warnings = (
        NameFirst(f"{'; '.join(labels)}: {text}") if text in idle and len(idle) > 1 else text
        for text, labels in about.items()
    )
    by_label = {one.label: one for one in found}
    lines = [text for one in verdicts(found) for text in _verdict(one, by_label)]
    for one in found:
        more = _spread(one.result, one.economics, one.economics.at_least())
        lines += [NameFirst(f"{one.label}: {text}") for text in more]
    lines += _price_notes([one.economics for one in found])
    lines += _not_rented(found)
    return (
        ReportSection(
            COSTS, (*lines, *warnings), (shown,), tuple(_legend(found, shown.head)), notes_on_terminal=True
        ),
    )


def _legend(found: Sequence[Costed], columns: Sequence[str]) -> Iterator[str]:
    """Explain the columns of the table."""
    tokens, share = _tokens(found), found[0].economics.costs.assumption("utilization").value
    used = "is never idle" if share == 1 else f"works {percent(share)} of the time"
    formula = COST_METRICS["cost_per_million_tokens"].formula
    yield f"cost/1M, kWh/1M: for a million {tokens} on a machine that {used}; cost = {formula}"
    pues: dict[str, list[str]] = {}
    for one in found:
        pues.setdefault(_pue(one.economics), []).append(one.label)
    pue = "; ".join(text if len(pues) == 1 else f"{', '.join(who)}: {text}" for text, who in pues.items())
    yield f"power: mean during this work; power and J/token exclude the PUE ({pue}), cost and kWh include it"
    if "work per price" in columns:
        yield f"work per price is relative to the best one: {COST_METRICS['return_per_purchase'].formula}"
    if any(_lifetimes(one.result) for one in found):
        yield "worn out: time until the rated endurance of the drives is used up in continuous operation"


def _compared(one: Costed, peers: Sequence[Costed]) -> tuple[Entry, ...]:
    metrics, currency = one.economics.at_least(), one.economics.costs.currency
    prices, powers = one.economics.bill.missing, one.economics.energy and one.economics.energy.missing
    best = max((other.economics.metrics()["return_per_purchase"] or 0.0 for other in peers), default=0.0)
    mine = metrics["return_per_purchase"]
    kwh = metrics["kwh_per_million_tokens"]
    return (
        one.label,
        _marked(money(metrics["purchase"], currency), prices),
        per_million(one.economics),
        "" if mine is None or len(peers) == 1 else Datum(f"{format_number(mine / best)}×", mine),
        _lifetimes(one.result),
        _marked(_watts(metrics["power_w"]), powers),
        _marked(_joules(metrics["energy_per_token_j"]), powers),
        _marked("" if kwh is None else Datum(_digits(kwh), kwh, "kWh"), powers),
        money(one.economics.metrics()["rent_per_million_tokens"], currency),
    )


def per_million(one: Economics) -> Entry:
    """Return a cell for the cost of a million tokens; empty where it is not known."""
    cost = money(one.at_least()["cost_per_million_tokens"], one.costs.currency)
    return _marked(cost, one.missing)


def _marked(cell: Entry, missing: Sequence[str] | None) -> Entry:
    """Mark a sum in which a price or a power is missing, so that the actual value is larger."""
    return cell if not missing or isinstance(cell, str) else cell._replace(text=f"≥ {cell.text}")


def _not_rented(found: Sequence[Costed]) -> Iterator[str]:
    """Return why results have no cost on rented hardware, where a rent of some kind is known."""
    reasons: dict[str, list[str]] = {}
    for one in found:
        mine = one.economics
        if mine.no_rent and (mine.rent or mine.spot) and mine.metrics()["energy_per_token_j"] is not None:
            reasons.setdefault(mine.no_rent, []).append(one.label)
    for reason, labels in reasons.items():
        yield NameFirst(f"{joined(labels)}: no cost on rented hardware, as {reason}")


def _lifetimes(result: SimulationResult) -> str:
    """Return the lifetimes of the drives to which steps, checkpoints or blocks of a cache are written."""
    return ", ".join(f"{one.tier}: {one.lasts}" for one in result.drive_lifetime if one.lasts)


def _verdict(one: CostVerdict, found: Mapping[str, Costed]) -> list[str]:
    """Return which result has the lowest cost per unit of work, and which prices would change that."""
    ratio, unit = format_number(one.ratio), found[one.cheapest].result.unit
    if ratio == "1":
        return [NameFirst(f"{one.cheapest} and {one.next} cost the same per {unit}")]
    line = f"{one.cheapest} has the lowest cost per {unit}; {one.next} costs {ratio} times as much"
    if one.tie:
        line += f"; a tie, because the 80 % interval of the ratio is ±{percent(one.margin)}"
    if one.same_bill:
        return [NameFirst(line)]
    if not one.break_even_points:
        return [NameFirst(line), "no change of a single price reverses that"]
    bills = found[one.cheapest].economics.bill, found[one.next].economics.bill
    turns = [
        point
        for point in _distinct(one.break_even_points, *bills)
        if _rounded(point.at) != _rounded(point.now)
    ]
    prices = [_break_even(point, one, found) for point in turns[:_MOST_BREAK_EVENS]]
    then = f"{one.next} would cost less per {unit} than {one.cheapest} {', or '.join(prices)}"
    return [NameFirst(line), *([NameFirst(then)] if prices else [])]


def _distinct(points: Sequence[BreakEven], first: Bill, second: Bill) -> list[BreakEven]:
    """Return the break-even prices without those that state the same fact as another one.

    The whole purchase of a result and a part that only this result buys do. Of the cheaper result, which
    would have to cost more, the purchase is kept; of the other, which would have to cost less, the part.
    """
    of_first = {one.what for one in points if first.paid(one.what) and not second.paid(one.what)}
    of_second = any(second.paid(one.what) and not first.paid(one.what) for one in points)
    left_out = of_first | ({SECOND} if of_second else set())
    return [one for one in points if one.what not in left_out]


def _break_even(point: BreakEven, one: CostVerdict, found: Mapping[str, Costed]) -> str:
    """Return a condition, such as "if the filesystem (pfs/x) cost less than 99,800 USD (now 500,000 USD)"."""
    kind, slash, _ = point.what.partition("/")
    described = {str(device): text for device, text in _PRICED.items()} | _BY_SIZE
    priced = described.get(kind, kind) + (f" ({point.what})" if slash else "")
    totals = {FIRST: f"all hardware of {one.cheapest}", SECOND: f"all hardware of {one.next}"}
    currency = found[one.cheapest].economics.costs.currency
    than = "less than" if point.first_cheaper_above else "more than"
    at, now = _amount(_rounded(point.at), currency), _amount(point.now, currency)
    return f"if {totals.get(point.what, priced)} cost {than} {at} (now {now})"


def _rounded(value: float) -> float:
    """Return a price with three significant digits; no price is known better."""
    return float(f"{value:.3g}")


def _tokens(found: Iterable[Costed]) -> str:
    """Return the kind of tokens that results count."""
    kinds = {one.result.kind for one in found if one.result.tokens}
    names = {"inference": "output tokens", "training": "trained tokens"}
    return names[kinds.pop()] if len(kinds) == 1 else "tokens"
