"""This module compares errors and intervals on held-out runs by the profile that predicts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import median
from typing import NamedTuple

from simoffload.planning.errors import ErrorTable
from simoffload.units import plural
from simoffload_calibrate.compare import ComparedRun, Errors, errors
from validation.measured import MeasuredRun, Observed, Profile, counted

ByProfile = Mapping[Profile, Sequence[MeasuredRun]]


class Work(NamedTuple):
    """A kind of time: passes of some groups of runs."""

    title: str
    passes: tuple[str, ...]
    groups: tuple[str, ...] = ("zero",)
    offloaded_cache: bool = False
    """Whether only runs with a key-value cache outside HBM count."""

    def runs(self, runs: Iterable[MeasuredRun]) -> list[ComparedRun]:
        """Select the held-out runs of these groups."""
        held = [one for one in runs if not self.offloaded_cache or one.compared.run.offloads_cache]
        return [one for group in self.groups for one in counted(held, part="holdout", group=group)]

    def errors(self, runs: Iterable[MeasuredRun], *, ranks: int | None = None) -> Errors | None:
        """Return the errors of these times on held-out runs, by default with any number of GPUs."""
        held = (one for one in self.runs(runs) if ranks in (None, one.run.ranks))
        return errors(held, *self.passes)


DECODE = Work("decode step", ("decode",))
PREFILL = Work("prefill", ("prefill",))
STEP = Work("training step", ("step",))
FSDP = Work("training step, FSDP", ("step",), ("fsdp",))
ACCELERATE = Work("decode step, Accelerate", ("decode",), ("accelerate",))
CACHE = Work("decode step, offloaded cache", ("decode",), ("zero", "accelerate"), offloaded_cache=True)
DIVIDED = Work("decode step, tensor parallelism", ("decode",), ("tensor_parallel",))
ALL = Work("all times", ("decode", "prefill", "step"), ("zero", "fsdp", "accelerate", "tensor_parallel"))
_SHORT = (DECODE, PREFILL, STEP, FSDP, ACCELERATE, CACHE, DIVIDED)
_TITLES: dict[Profile, str] = {
    "own": "measured on the same machine",
    "same kind": "measured on another machine of the kind",
    "shipped": "shipped",
    "DGX": "shipped, a DGX for a virtual machine with one GPU",
}
_WITH: dict[Profile, str] = {
    "own": "with the profile that was measured on the same machine",
    "same kind": "with that of another machine of the kind",
    "shipped": "with a shipped one",
    "DGX": "with that of a DGX for a virtual machine with one GPU",
}


class Limit(NamedTuple):
    """Bounds of one quantity over the held-out runs."""

    profile: Profile
    work: Work
    quantity: str
    """mean error, worst error, inside or half-width."""
    high: float
    low: float = -inf

    def value(self, runs: Sequence[MeasuredRun]) -> float | None:
        """Return the quantity, without its sign; None without such runs."""
        found = self.work.errors(runs)
        if found is None:
            return None
        share = None if found.inside is None else found.inside / found.runs
        quantities = {
            "mean error": found.mean,
            "worst error": abs(found.worst),
            "inside": share,
            "half-width": found.half_width,
        }
        return quantities[self.quantity]


WORST_DECODE = 0.20
LIMITS = (
    Limit("own", DECODE, "mean error", 0.07),
    Limit("own", DECODE, "worst error", WORST_DECODE),
    Limit("own", PREFILL, "mean error", 0.08),
    Limit("own", STEP, "mean error", 0.10),
    Limit("own", STEP, "worst error", 0.25),
    *(Limit("own", work, "mean error", 0.12) for work in (ACCELERATE, CACHE, DIVIDED)),
    *(Limit("own", work, "worst error", 0.25) for work in (ACCELERATE, CACHE, DIVIDED)),
    Limit("own", ALL, "inside", 0.95, 0.65),
    Limit("own", ALL, "half-width", 0.15),
    Limit("shipped", ALL, "inside", 0.95, 0.65),
    Limit("shipped", ALL, "half-width", 0.35),
)


def table(head: str, rows: Iterable[Sequence[str]], *, right: int) -> str:
    """Write one table; columns from number ``right`` on are aligned to the right."""
    columns = len(head.split(" | "))
    rule = " | ".join("---" if number < right else "---:" for number in range(columns))
    lines = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


def accuracy_table(by_profile: ByProfile) -> str:
    """Write errors and intervals by profile: of each kind of time, and by number of GPUs."""
    rows = []
    for work in (*_SHORT, ALL):
        ranks = {one.run.ranks for runs in by_profile.values() for one in work.runs(runs) if one.passes}
        counts: list[int | None] = [None] if work is ALL else [None, *sorted(ranks)]
        for number in counts:
            found = {profile: work.errors(runs, ranks=number) for profile, runs in by_profile.items()}
            if any(found.values()):
                title = work.title if number is None else f"{work.title}, {plural(number, 'GPU')}"
                rows.append((title, *(_cell(one) for one in found.values())))
    titles = " | ".join(_TITLES[profile] for profile in by_profile)
    return table(f"time | {titles}", rows, right=4)


def short_table(by_profile: ByProfile) -> str:
    """Write mean and worst errors, and the share of times inside the interval, a row for each profile."""
    works = (DECODE, PREFILL, STEP)
    rows = []
    for profile, runs in by_profile.items():
        every = ALL.errors(runs)
        inside = "" if every is None or every.inside is None else f"{every.inside / every.runs * 100:.0f} %"
        rows.append((_TITLES[profile], *(_short_cell(work.errors(runs)) for work in works), inside))
    titles = " | ".join(work.title for work in works)
    return table(f"profile of the machine | {titles} | inside the 80 % interval", rows, right=5)


def summed(times: Iterable[tuple[float, bool]]) -> Errors | None:
    """Return the errors of times: of each its ratio to the predicted one, and whether it is inside."""
    pairs = [(1 / ratio - 1, inside) for ratio, inside in times]
    if not pairs:
        return None
    errors = [error for error, _ in pairs]
    mean = sum(map(abs, errors)) / len(errors)
    return Errors(len(errors), mean, max(errors, key=abs), sum(inside for _, inside in pairs))


SUMMED = {
    "DeepSpeed, weights in host memory or on drives: a token": DECODE,
    "the same: the prompt": PREFILL,
    "DeepSpeed: a training step": STEP,
    "PyTorch FSDP: a training step": FSDP,
    "Accelerate: a token": ACCELERATE,
    "transformers on two GPUs: a token": DIVIDED,
}
"""Rows of the summary that the runs of ``by_profile`` have."""


def summary_table(rows: Iterable[tuple[str, Errors | None, Errors | None, str]]) -> str:
    """Write what most readers ask, a row for each program: its errors with a shipped profile and with one
    measured on the machine, and the page of its runs."""
    cells = (
        (title, _summary_cell(shipped), _summary_cell(own), f"[runs](validation/{page}.md)")
        for title, shipped, own, page in rows
    )
    head = "program and time | with a shipped profile | with one measured on the machine | details"
    return table(head, cells, right=4)


def _summary_cell(found: Errors | None) -> str:
    if found is None:
        return ""
    return f"{_short_cell(found)}; {found.inside} of {found.runs} inside"


def coverage(by_profile: ByProfile) -> str:
    """Return in words how many measured times were inside their interval, by kind of profile."""
    shares, alone, misses = [], [], {}
    for profile, runs in by_profile.items():
        found, one = ALL.errors(runs), ALL.errors(runs, ranks=1)
        if found and found.inside is not None:
            share = f"{found.inside / found.runs:.0%}".replace("%", " %")
            shares.append(f"{share} {_WITH[profile]} ({found.inside} of {found.runs})")
            misses[profile] = found.runs - found.inside
        if one and one.inside is not None:
            alone.append(f"{one.inside / one.runs:.0%}".replace("%", " %"))
    fast = sum(
        passed.inside is False and (passed.error or 0.0) < 0
        for run in ALL.runs(by_profile["shipped"])
        for name in ALL.passes
        if (passed := run.find(name)) is not None
    )
    return (
        "80 % of measured times are expected inside the 80 % interval, which is made without the errors of "
        f"the machine itself. Of all held-out times, inside were {_listed(shares)}; of those on one GPU "
        f"{_listed(alone)}. With a shipped profile, {fast} of the {misses['shipped']} others were predicted "
        "too fast."
    )


def _listed(texts: Sequence[str]) -> str:
    return " and ".join((", ".join(texts[:-1]), texts[-1])) if len(texts) > 1 else "".join(texts)


def _cell(found: Errors | None) -> str:
    if found is None:
        return ""
    text = f"{found.runs} · {found.mean:.1%} · {found.worst:+.1%}"
    if found.inside is None or found.half_width is None:
        return text
    return f"{text} · {found.inside / found.runs:.0%} · ±{found.half_width:.0%}"


def _short_cell(found: Errors | None) -> str:
    if found is None:
        return "no such runs"
    worst = f"{found.worst * 100:+.0f} %".replace("-", "−")
    return f"{found.mean * 100:.1f} %, worst {worst}"


def class_table(known: ErrorTable, times: Iterable[Observed]) -> str:
    """Write the classes of comparable runs: their errors, intervals, and how many held-out times are inside
    those without the errors of their machine."""
    classes: dict[tuple[str, ...], list[Observed]] = {}
    for one in times:
        classes.setdefault(one.compared[:3], []).append(one)
    rows = []
    for (program, limit, evidence), found in sorted(classes.items()):
        row = known.of(found[0].compared._replace(unlike=0))
        ends = f"{row.low:.2f} to {row.high:.2f}" if row.program == program else "(all programs)"
        held = [one for one in found if one.held_out]
        factors = [known.factors(one.compared, without=one.machine) for one in held]
        inside = [low <= one.ratio <= high for one, (low, high) in zip(held, factors, strict=True)]
        wide = f"{median(high / low for low, high in factors):.2f}" if factors else ""
        share = f"{sum(inside)} of {len(inside)}"
        if len(inside) >= _MANY:
            share += f" ({sum(inside) / len(inside):.0%})"
        machines = len({one.machine for one in found})
        errors = f"{sum(abs(1 / one.ratio - 1) for one in found) / len(found):.1%}"
        about = (str(len(found)), str(machines), errors, ends, wide, share)
        rows.append((program, limit, evidence, *about))
    head = "program | limit | numbers | times | machines | mean error | P10 to P90 | wide | inside"
    return table(head, rows, right=4)


_MANY = 10
"""Held-out times of a class from which on their share inside is a figure."""


def limit_table(by_profile: ByProfile) -> str:
    """Write the limits of held-out runs with the values that they are compared with."""
    rows = []
    for limit in LIMITS:
        value = limit.value(by_profile.get(limit.profile, ()))
        if value is None:
            continue
        bounds = f"{limit.low:.0%} to {limit.high:.0%}" if limit.low > 0 else f"at most {limit.high:.0%}"
        met = "met" if limit.low <= value <= limit.high else "**not met**"
        rows.append((_TITLES[limit.profile], limit.work.title, limit.quantity, bounds, f"{value:.2%}", met))
    return table("profile | times | quantity | limit | value | met", rows, right=4)


def held_out(runs: Sequence[MeasuredRun]) -> str:
    """Return a sentence: how many runs on how many machines and days were held out."""
    held = [run for run in runs if run.part == "holdout"]
    machines = {run.machine for run in held}
    seen = machines & {run.machine for run in runs if run.part == "fit"}
    days = sorted({run.date for run in held})
    gpus = " and ".join(
        f"{plural(len(names), 'machine')} with {gpu}"
        for gpu in ("H100", "H200")
        if (names := {name for name in machines if name.startswith(gpu.lower())})
    )
    return (
        f"{plural(len(held), 'held-out run')} on {gpus}, measured on {plural(len(days), 'day')} "
        f"({', '.join(days)}); other runs of {len(seen)} of these machines were used during development"
    )
