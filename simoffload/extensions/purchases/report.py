"""The report document of a model on several machines."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.errors import printable
from simoffload.extensions.purchases.machines import FIRST, PROMPTS, SPEED, MachineOffer, Machines
from simoffload.planning.confidence import confidence
from simoffload.report.document import (
    Datum,
    Entry,
    Listing,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.formatting import NameFirst, span
from simoffload.report.presentation import ranged
from simoffload.units import format_number

_RULES = (
    "machines: all GPUs, their own memory and drives; the same work on each, with the fastest program",
    "format: where the GPUs do not hold the named one, one with fewer bits, whose answers differ",
    "tokens/s of the whole request, with its 80 % interval; price of the machine with its drives",
)


def which_machine_document(found: Machines, *, command: str = "") -> ReportDocument:
    """Return a table with a row for each machine, the fastest first, and the verdict."""
    rows = tuple(tuple(_row(one, found.currency)) for one in found.answered)
    head = ("machine", "program", "format", "tokens/s", "prompt/s", "TTFT", found.currency, "power", "per 1M")
    table = ReportTable("", head, rows, tuple(range(3, len(head))), keys=1).without_empty_columns()
    missing = tuple(NameFirst(f"{one.platform}: {printable(one.why)}") for one in found.offers if one.why)
    verdict = _verdict(found)
    title = (printable(found.model), *_work(found))
    background = (
        (ReportSection("Command", listings=(Listing("", command),), page_only=True),) if command else ()
    )
    bills = [one.economics for one in found.answered if one.economics is not None]
    dated = tuple(f"prices of {dates}" for one in bills[:1] if (dates := one.price_dates(bills)))
    rules = (*_RULES, *dated)
    section = ReportSection("Machines", missing, (table,) if rows else (), rules, notes_on_terminal=True)
    warnings = (*_left_out(found), *(text for one in bills[:1] for text in one.old_prices(bills)))
    return ReportDocument(title, None, (verdict,), warnings, (section,), background, summary=(verdict,))


def _work(found: Machines) -> Iterator[str]:
    """Yield the work that is the same on all machines."""
    for one in found.answered[:1]:
        assert one.result is not None
        work = one.result.workload
        if one.result.kind == "inference":
            sequences = one.result.replicas * work["batch_size"]
            yield f"batch {sequences} in all"
            yield f"{work['prompt_length']:,} tokens in, {work['output_length']:,} out"


def _row(one: MachineOffer, currency: str) -> Iterator[Entry]:
    result, cost = one.result, one.economics
    assert result is not None
    assert cost is not None
    speed, first, prompts = (one.value(name) for name in (SPEED, FIRST, PROMPTS))
    yield from (one.platform, one.program, one.format)
    ends = confidence(result).interval(SPEED)
    text = format_number(speed or 0.0)
    interval = span(*map(format_number, ends), value=text)
    yield Datum(f"{text} [{interval}]", speed, "1/s", ends=ends)
    yield "" if prompts is None else Datum(format_number(prompts), prompts, "1/s")
    yield "" if first is None else Datum(ranged(result, FIRST, short=True), first, "s")
    known, least = cost.at_least(), "≥ " if cost.missing else ""
    power, each = (known[key] for key in ("power_w", "cost_per_million_tokens"))
    yield "unknown" if one.price is None else Datum(f"{one.price:,.0f}", one.price, currency)
    yield "" if power is None else Datum(f"{least}{format_number(power)} W", power, "W")
    yield "" if each is None else Datum(f"{least}{format_number(each)}", each, currency)


def _verdict(found: Machines) -> Verdict:
    """Return which machine is fastest, which are as fast, and which gives the most for its price."""
    if not found.answered:
        within = f" within {found.budget:,.0f} {found.currency}" if found.budget is not None else ""
        if found.stopped:
            why = next(one.why for one in found.offers if one.stopped)
            return Verdict.of(f"not known which machine{within} runs {printable(found.model)}: {why}")
        return Verdict.of(f"no machine{within} runs {printable(found.model)}")
    best, value = found.answered[0], found.best_value
    assert best.result is not None
    form = f" in {best.format}" if best.format else ""
    parts = [VerdictPart(f" with {best.program}{form}"), VerdictPart(_price(best, found.currency), 2)]
    if ties := [one.platform for one in found.as_fast]:
        parts.append(VerdictPart(f"; as fast within the uncertainty: {', '.join(ties)}"))
    if value is not None and value is not best:
        rate = f"{format_number(value.value(SPEED) or 0.0)} tokens/s{_price(value, found.currency)}"
        parts.append(VerdictPart(f"; most for its price: {value.platform}, {rate}"))
    return Verdict.of(f"{best.platform} is fastest: {ranged(best.result, SPEED)}", *parts)


def _price(one: MachineOffer, currency: str) -> str:
    return f" for {one.price:,.0f} {currency}" if one.price else ""


def _left_out(found: Machines) -> Iterator[str]:
    """Yield what a budget leaves out."""
    if found.budget is None:
        return
    amount = f"{found.budget:,.0f} {found.currency}"
    yield f"the budget of {amount} is for a whole machine; {found.dearer} of those with a price cost more"
    if found.unpriced:
        yield f"without a known price, and left out: {', '.join(found.unpriced)} (--costs gives prices)"
