"""The sentences and numbers that terminal and page share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simoffload.errors import printable
from simoffload.results.capacity import TierUse
from simoffload.results.passes import LinkUse, PassResult
from simoffload.results.result import SimulationResult
from simoffload.units import format_bytes, format_seconds

__all__ = [
    "LIMITS",
    "LinkGroup",
    "alike",
    "bottleneck",
    "bound",
    "counted",
    "group_bounds",
    "group_links",
    "headline",
    "metric_rows",
    "milliseconds",
    "origins",
    "percent",
    "place",
    "plural",
    "step_time",
    "verdict",
]

LIMITS = (
    "The profiles hold data-sheet and published values and timings of single operations; nothing here has "
    "been calibrated against runs on the machine itself yet. Ratios between targets are safer than "
    "absolute times."
)
"""What must not be concluded."""

_ORIGINS = ("measured", "spec", "estimate")
_BINARY = {"hbm", "dram"}  # memory is sold and shown by its tools in powers of two, storage is not


def percent(fraction: float) -> str:
    """ "81 %"; one digit more below ten per cent, where it matters."""
    if 0 < fraction < 0.0005:
        return "<0.1 %"
    return f"{fraction * 100:.1f} %" if 0 < fraction < 0.0995 else f"{fraction * 100:.0f} %"


def milliseconds(seconds: float) -> str:
    """A time [s] as a bare number of milliseconds: comparable down a column."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plural(count: int, noun: str) -> str:
    """ "1 GPU", "8 GPUs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def place(target: str) -> str:
    """Where the weights are: "in HBM", "in DRAM", "on raid"."""
    return {"hbm": "in HBM", "dram": "in DRAM"}.get(target, f"on {printable(target)}")


def headline(result: SimulationResult) -> tuple[str, ...]:
    """Model and work in a few words each."""
    return (
        printable(result.model),
        printable(result.dtype),
        f"batch {result.batch_size} × {plural(result.ranks, 'GPU')}",
        f"{result.prompt_length} tokens in, {result.output_length} out",
        printable(result.platform),
    )


def step_time(result: SimulationResult) -> float | None:
    """Time per output token, or of the prefill when only one token is generated [s]."""
    return result.tpot_s or result.ttft_s


def verdict(result: SimulationResult) -> str:
    """The answer in one sentence."""
    model, where = (
        printable(result.model),
        f"on {printable(result.platform)} with its weights {place(result.target)}",
    )
    if not result.fits:
        return f"{model} does not fit {where}: {'; '.join(map(printable, result.advice))}."
    time, step = step_time(result), result.step
    if time is None or step is None or result.per_token_s is None:
        return f"{model} fits {where}."
    share = percent(step.bottleneck.exposed_s / step.time_s)
    return (
        f"{model} runs {where}: a step of {plural(result.batch_size * result.ranks, 'sequence')} takes "
        f"{format_seconds(time)}, {result.tokens_per_s:.3g} tokens/s in all; "
        f"largest part: {printable(step.bottleneck.cause)}, {share}."
    )


def bottleneck(one: PassResult) -> str:
    """ "raid read takes 81 % of decode 1, held back by nvme"."""
    share = one.bottleneck
    held = f", held back by {printable(share.limit)}" if share.limit else ""
    part = percent(share.exposed_s / one.time_s)
    return f"{printable(share.cause)} takes {part} of {printable(one.name)}{held}"


def bound(one: PassResult) -> str:
    """ "74 % of the speed of light (14.2 s, set by raid)"."""
    light = f"{format_seconds(one.bound_s)}, set by {printable(one.bound_by)}"
    return f"{percent(one.bound_s / one.time_s)} of the speed of light ({light})"


def counted(size: int, use: TierUse) -> str:
    """A size on a tier, negative for what is missing, in the unit that is usual there."""
    return ("−" if size < 0 else "") + format_bytes(abs(size), binary=use.kind in _BINARY)


def metric_rows(result: SimulationResult) -> tuple[tuple[str, str, str], ...]:
    """(key, words, value) of every metric that the result has, in the order of reading."""
    shown = {
        "ttft_s": ("time to first token", format_seconds),
        "first_pass_s": ("first pass after loading", format_seconds),
        "tpot_s": ("time per output token", format_seconds),
        "e2e_s": ("whole generation", format_seconds),
        "tokens_per_s": ("throughput", _per_second),
        "decode_tokens_per_s": ("throughput of decode", _per_second),
        "per_token_s": ("time per token", format_seconds),
    }
    metrics = result.metrics()
    return tuple(
        (key, words, show(value))
        for key, (words, show) in shown.items()
        if (value := metrics[key]) is not None
    )


def _per_second(rate: float) -> str:
    return f"{rate:,.0f} tokens/s" if rate >= 100 else f"{rate:.3g} tokens/s"


def origins(counts: Mapping[str, int]) -> str:
    """ "12 measured, 120 spec, 3 estimate"."""
    known = [name for name in _ORIGINS if name in counts]
    return ", ".join(f"{counts[name]} {name}" for name in (*known, *sorted(counts.keys() - set(known))))


def alike(names: Sequence[str]) -> str:
    """One name, or the first and how many are like it."""
    first = printable(names[0])
    return first if len(names) == 1 else f"{first} and {len(names) - 1} alike"


class LinkGroup(NamedTuple):
    """Links that carried the same in the same time, such as those of the GPUs of one machine."""

    names: tuple[str, ...]
    use: LinkUse
    """Of each of them."""


def group_links(links: Iterable[LinkUse]) -> tuple[LinkGroup, ...]:
    """Put links together that differ by no more than about a thousandth, in the order given."""
    groups: dict[tuple[str, ...], list[LinkUse]] = {}
    for use in links:
        numbers = (use.size, use.busy_s, use.saturated_s, use.capacity)
        groups.setdefault(tuple(f"{number:.3e}" for number in numbers), []).append(use)
    return tuple(LinkGroup(tuple(use.link for use in uses), uses[0]) for uses in groups.values())


def group_bounds(step: PassResult) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Bounds [s], largest first, those together that differ by no more than about a thousandth."""
    groups: dict[str, list[str]] = {}
    for name in sorted(step.bounds, key=lambda name: (-step.bounds[name], name)):
        groups.setdefault(f"{step.bounds[name]:.3e}", []).append(name)
    return tuple((tuple(names), step.bounds[names[0]]) for names in groups.values())
