"""How reports describe changes: what they gain, what they take, and what is known of their answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simoffload.planning.advise import Advice, Objective, SimulatedPurchase, Tried
from simoffload.report.formatting import span
from simoffload.report.presentation import presentation, ranged
from simoffload.results import SimulationResult
from simoffload.units import format_number, format_seconds

_DELAYED = 1.25
"""Time to first token over that without a change from which a change is said to delay it; our choice."""


_SIMILAR = 1.1
"""Ratio of times up to which other answers are about as fast: less than the error of most predictions."""


def by_answers(found: Sequence[Tried]) -> tuple[list[Tried], list[Tried]]:
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


def _slower(one: Tried, other: Tried) -> float:
    """Return how many times as long a change takes as another one, by their gains where they have some."""
    if one.gain and other.gain:
        return other.gain / one.gain
    mine, its = one.result.compared_s, other.result.compared_s
    return mine / its if mine and its else math.inf if one is not other else 1.0


def with_times(one: Tried) -> str:
    """Describe a change with the times of a token where it has two, or else of a step, and what is known of
    its answers."""
    values = one.result.metrics()
    named = [(name, values.get(f"{name.lower()}_s")) for name in ("TPOT", "TTFT")]
    times = ", ".join(f"{name} {format_seconds(value)}" for name, value in named if value)
    if not times and one.result.step_time_s is not None:
        times = f"{presentation(one.result).step} {ranged(one.result, one.result.step_by)}"
    return in_brackets(one.change.description, times, one.change.quality)


def in_brackets(text: str, *facts: str) -> str:
    """Return a text followed by those facts in brackets that are not empty."""
    found = "; ".join(filter(None, facts))
    return f"{text} ({found})" if found else text


def took(result: SimulationResult) -> str:
    """Return the time as a sentence: "A step takes 1.2 s [1 to 1.5]", "TPOT is 1.2 s [1 to 1.5]"."""
    what, time = presentation(result).step, ranged(result, result.step_by)
    return f"{what} is {time}" if what.isupper() else f"A {what} takes {time}"


def took_first(result: SimulationResult) -> str:
    """Return the time to the first token where :func:`took` is about the others, to follow it; else ""."""
    return f", TTFT {ranged(result, 'ttft_s')}" if presentation(result).step == "TPOT" else ""


def objective_text(one: Tried | SimulatedPurchase, objective: Objective) -> str:
    """Return the value of the objective, to precede others: "TPOT 2 ms, "; "" for throughput and cost."""
    if objective.is_latency:
        return f"{presentation(one.result).step} {format_seconds(one.result.step_time_s or 0.0)}, "
    value = objective.value(one.result, one.economics)
    if objective.metric is None or value is None:
        return ""
    currency = f" {one.economics.costs.currency}" if objective.metric.unit.name == "currency" else ""
    return f"{objective.metric.label} {objective.metric.text(value)}{currency.rstrip()}, "


def with_gain(one: Tried, advice: Advice) -> str:
    """Describe a change with its gain, with the time that it leaves where that is the objective, and with the
    time to first token where that suffers."""
    time = objective_text(one, advice.objective) if one.gain is not None else ""
    return in_brackets(
        one.change.description, f"{time}{gain_text(one)}{_delayed(one, advice.result)}", one.change.quality
    )


def with_throughput(one: Tried, advice: Advice) -> str:
    """Describe a change with what it gains in throughput, and the time that it takes for that."""
    now, then = (format_seconds(each.step_time_s or 0.0) for each in (one.result, advice.result))
    step = presentation(one.result).step
    cost = f"{step} {now} instead of {then}" if now != then else f"{step} {now} as before"
    gain = f"{format_number(one.throughput or 0.0)}× the throughput, {cost}"
    return in_brackets(one.change.description, gain, one.change.quality)


def _delayed(one: Tried, before: SimulationResult) -> str:
    """Return the time to first token with a change, if it is much longer than ``before`` for the same
    work."""
    now, then = (each.metrics().get("ttft_s") for each in (one.result, before))
    if now is None or then is None or now < _DELAYED * then:
        return ""
    return f", but TTFT {format_seconds(now)} instead of {format_seconds(then)}"


def prompt(found: Sequence[Tried], advice: Advice) -> list[Tried]:
    """Return changes from the first that does not delay the first token, if what it gains is within the
    interval of the largest gain; otherwise all of them."""
    for at, one in enumerate(found):
        if one.gain is None or one.gain < (found[0].gain_interval or (0.0,))[0]:
            break
        if not _delayed(one, advice.result):
            return list(found[at:])
    return list(found)


def described(one: Tried, advice: Advice) -> str:
    """Describe a change, with the range of the numbers that were tried for the same key."""
    tried = advice.range_tried(one.change)
    return one.change.description + (f" (tried {tried[0]:,} to {tried[1]:,})" if tried else "")


def gain_text(one: Tried) -> str:
    """Return the gain of a change with its interval: "1.5× [1.3 to 1.7]"."""
    if one.gain is None or one.gain_interval is None:
        return "fits"
    return f"{format_number(one.gain)}× [{span(*map(format_number, one.gain_interval))}]"
