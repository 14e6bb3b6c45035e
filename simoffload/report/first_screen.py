"""The first screen: what a person asked, in at most 25 lines of a terminal, and where the rest is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from simoffload.errors import printable
from simoffload.planning.answers import Answer
from simoffload.report.formatting import bottleneck, counted, span
from simoffload.report.presentation import presentation, speed_text
from simoffload.report.sections.performance import program_rate, without_limit
from simoffload.scenario import LoadedScenario
from simoffload.units import format_bytes, format_number, format_seconds, percent, plural

if TYPE_CHECKING:
    from simoffload.planning.advise import EvaluatedChange

MOST_LINES = 25
_MOST_WARNINGS = 3
_MOST_CAUSES, _MOST_CHANGES = 4, 3
_BAR = 12
"""Length [characters] of the bar of a full tier."""
_LEAST_SHARE = 0.01
_LONGEST_COMMAND = 400
_ELSEWHERE = ("beyond the calibrated range",)
"""Beginnings of warnings that a line of its own says in short."""


class Line(NamedTuple):
    """A Line of the screen begins with a label, or continues the paragraph before."""

    label: str
    text: str
    style: str = ""


def first_screen(
    scenario: LoadedScenario, result: Answer, following: Sequence[EvaluatedChange] = ()
) -> tuple[Line, ...]:
    """Return the lines of the answer about one scenario: how fast, what limits it, how sure that is, which
    programs were compared, what to change next (``following``) and what to type."""
    lines = (*_answer(scenario, result, following), *_warnings(result, following), _more(result))
    return tuple(one for one in lines if one.text)


def opening_lines(scenario: LoadedScenario, result: Answer) -> Iterator[Line]:
    """Yield the first lines: what was simulated, how fast it is, what limits it or why it does not run."""
    yield Line("", _asked(scenario, result), "bold")
    yield Line("", ", ".join(presentation(result).work))
    if result.refused:
        yield Line("refused", printable(result.refused[0]), "red")
    elif not result.fits:
        yield Line("does not fit", "; ".join(map(printable, result.advice)), "red")
    elif result.step is not None:
        yield Line("", _values(result), "green")
        yield Line("limited by", bottleneck(result.step, presentation(result).called))
    else:
        yield Line("fits", "only memory was computed", "green")


def _answer(scenario: LoadedScenario, result: Answer, following: Sequence[EvaluatedChange]) -> Iterator[Line]:
    yield from opening_lines(scenario, result)
    if result.refused:
        return
    if not result.fits:
        yield from _fitting(result)
    elif result.step is not None:
        yield Line("how sure", _sure(result))
    if scenario.choice is not None:
        others = [*map(program_rate, scenario.choice.programs[1:3])]
        others += [f"{one}: not tried, beyond a limit" for one in scenario.choice.untried]
        yield Line("others", " · ".join(others))
        yield Line("faster", without_limit(scenario.choice))
    yield Line("next", next_texts(following))
    yield Line("type", _typed(result) if result.fits else "")
    yield Line("memory", _memory(result))
    if result.step is not None:
        yield Line("time", _causes(result))


def _asked(scenario: LoadedScenario, result: Answer) -> str:
    """Return what was simulated: "gpt-oss-120b, mxfp4 on 1 NVIDIA GeForce RTX 4090 (rtx-4090-desktop, 64
    GiB), llama.cpp, the fastest of 4 programs"."""
    machine, strategy = scenario.machine, scenario.scenario.strategy
    memory = format_bytes(machine.host.memory_capacity.value, binary=True)
    gpu = f"{result.gpus} × {machine.accelerator.name}" if strategy.description.on_gpus else machine.host.cpu
    program = strategy.traits.title or strategy.kind
    text = f"{result.model}, {result.dtype} on {gpu} ({result.platform}, {memory}), {program}"
    choice = scenario.choice
    if choice is not None and len(choice.programs) > 1 and not choice.among:
        text += f", the fastest of {len(choice.programs)} programs (--program names another)"
    return printable(text)


def _values(result: Answer) -> str:
    parts = [speed_text(result)]
    rate, ttft = map(result.metrics().get, ("tokens_per_s", "ttft_s"))
    if rate is not None and result.kind == "training":
        parts.append(f"{format_number(rate)} tokens/s")
    if ttft is not None and result.compared_metric.name != "ttft_s":
        parts.append(f"first token after {format_seconds(ttft)}")
    costs = result.costs
    value = costs.at_least().get("cost_per_million_tokens") if costs is not None else None
    if costs is not None and value is not None:
        least = "at least " if costs.missing else ""
        amount = f"{value:,.0f}" if value >= 100 else format_number(value)
        parts.append(f"{least}{amount} {costs.costs.currency or 'units'} per million tokens")
    return " · ".join(parts)


def _sure(result: Answer) -> str:
    sure = result.confidence
    beyond = "; beyond the measured range" if sure.extrapolates else ""
    if sure.unlike:
        return f"brackets are 80 % intervals; no real run {printable(sure.unlike)}{beyond}"
    was = "was" if sure.runs == 1 else "were"
    off = f"{sure.source}, {was} {percent(sure.relative_error)} off in the mean"
    return f"brackets are 80 % intervals; {off}{beyond}"


def _fitting(result: Answer) -> Iterator[Line]:
    changes = result.remedies.changes if result.remedies is not None else ()
    for number, one in enumerate(islice(changes, _MOST_CHANGES)):
        typed = " ".join(f"--set '{each}'" for each in one.assignments)
        yield Line("" if number else "it fits with", f"{one.description}: {typed}")


def next_texts(following: Sequence[EvaluatedChange]) -> str:
    """Return what to change next, with what each change gains and costs, on a line."""
    return " · ".join(_change(one) for one in following[:_MOST_CHANGES])


def _change(one: EvaluatedChange) -> str:
    gain = "fits"
    if one.gain is not None:
        two = partial(format_number, digits=2)
        ends = f" ({span(*map(two, one.gain_interval))})" if one.gain_interval else ""
        gain = f"{two(one.gain)} times as fast{ends}"
    cost = f", +{one.extra:,.0f} {one.economics.costs.currency}".rstrip() if one.extra else ""
    dated = f" (price of {one.price_dates})" if one.extra and one.price_dates else ""
    return printable(f"{one.change.description}: {gain}{cost}{dated}")


def _typed(result: Answer) -> str:
    """Return the command that runs it, or the file that configures it."""
    exports = result.provenance.exports
    scripts = {name: one for name, one in exports.items() if name.endswith(".sh") and isinstance(one, str)}
    for name, script in scripts.items():
        lines = [" ".join(line.split()) for line in script.replace("\\\n", " ").splitlines() if line]
        command = " && ".join(line for line in lines if not line.startswith("#"))
        remarks = " ".join(line.strip("# ") for line in lines if line.startswith("#"))
        text = f"{command} ({remarks})" if remarks else command
        return printable(text if len(text) <= _LONGEST_COMMAND else f"{name} (--explain prints it)")
    return printable(f"{', '.join(exports)} (--explain prints it)") if exports else ""


def _memory(result: Answer) -> str:
    tiers = []
    for use in result.capacity:
        share = use.needed / use.capacity if use.capacity else 0.0
        bar = "█" * min(_BAR, round(_BAR * share)) or "▏"
        needed, capacity = counted(use.needed, use), counted(use.capacity, use)
        number, _, unit = needed.partition(" ")
        needed = number if capacity.endswith(unit) else needed
        tiers.append(f"{printable(use.tier)} {needed} of {capacity} {use.scope} {bar}")
    return "   ".join(tiers)


def _causes(result: Answer) -> str:
    step = result.step
    assert step is not None
    shares = [
        (one.exposed_s / step.time_s, printable(one.cause_text))
        for one in sorted(step.shares, key=lambda one: -one.exposed_s)
    ]
    listed = [f"{text} {percent(share)}" for share, text in shares if share >= _LEAST_SHARE]
    called = presentation(result).called.removeprefix("the ") or printable(step.name)
    return f"{called}, {format_seconds(step.time_s)}: {' · '.join(listed[:_MOST_CAUSES])}"


def _warnings(result: Answer, following: Sequence[EvaluatedChange]) -> Iterator[Line]:
    own, bought = result.costs, [one.economics for one in following if one.extra]
    prices = () if own is None else (*own.slips, *own.old_prices(bought))
    warnings = [*(one for one in result.all_warnings if not one.startswith(_ELSEWHERE)), *prices]
    for text in warnings[:_MOST_WARNINGS]:
        yield Line("warning", printable(text), "yellow")
    if len(warnings) > _MOST_WARNINGS:
        yield Line("", f"{plural(len(warnings) - _MOST_WARNINGS, 'more warning')}: --explain")


def _more(result: Answer) -> Line:
    if result.refused:
        return Line("", "")
    text = "--explain: formulas, links, every number with its origin, more changes; --output-dir DIR: a page"
    return Line("more", text, "dim")
