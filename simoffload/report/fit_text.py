"""What would make it fit, how many machines, how large: as text for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from textwrap import wrap

from simoffload.errors import printable
from simoffload.planning.fit.largest import Largest, Limit
from simoffload.planning.fit.machines import MachinesNeeded
from simoffload.report.paper import MARGIN, Paper
from simoffload.report.phrases import counted, plural
from simoffload.results.capacity import Change, Remedies
from simoffload.units import format_bytes, format_number

__all__ = ["changes", "largest_text", "machines_text"]

_NONE = "–"
_RULE = (
    "rule = machines whose HBM holds the weights (training of all weights: 240 x layers x hidden^2 bytes) "
    "and nothing else; "
    "hbm = without offload, weights and optimizer divided among all GPUs (ZeRO-3 gathers every layer on "
    "every GPU for every pass), everything counted; the others = "
    f"with offload to that tier; {_NONE} = however many, it does not fit"
)
_LARGEST = (
    "each with the rest as it is; context = prompt and output, or the sequence that is trained on; "
    f"layers of the same width; {_NONE} = not even 1 fits"
)


def changes(paper: Paper, remedies: Remedies) -> list[str]:
    """Each change, what is then free on the fullest tier, and how to make it; or what was tried."""
    if not remedies.changes:
        tried = remedies.tried
        told = "nothing that was tried makes it fit, alone, in pairs or in threes"
        return paper.wrapped(printable(f"{told}; tried: {'; '.join(tried)}" if tried else told))
    lines = [paper.ink("each makes it fit", "dim")]
    for change in remedies.changes:
        lines += paper.wrapped(f"{printable(change.words)}: {_free(change)}")
        lines += [paper.ink(f"  {line}", "dim") for line in _options(change, paper.width - MARGIN - 2)]
    return lines


def _free(change: Change) -> str:
    use = change.tightest
    return f"{counted(use.headroom, use)} of {printable(use.tier)} left {use.scope}"


def _options(change: Change, room: int) -> list[str]:
    """On one line if there is room, else one below the other; not broken, since they are to be copied."""
    options = [f"--set {shlex.quote(printable(one))}" for one in change.assignments]
    whole = " ".join(options)
    return [whole] if len(whole) <= room else options


def machines_text(found: Sequence[MachinesNeeded], *, color: bool = False, width: int = 100) -> str:
    """One table for each platform: a row for each scenario, a column for each tier."""
    paper = Paper(color=color, width=width)
    for platform in dict.fromkeys(one.platform for one in found):
        mine = [one for one in found if one.platform == platform]
        if paper.lines:
            paper.lines.append("")
        hbm = format_bytes(mine[0].hbm, binary=True)
        title = (
            f"Machines needed: {printable(platform)}, {plural(mine[0].gpus, 'GPU')} with {hbm} of HBM in all"
        )
        paper.lines.append(paper.ink(title, "bold"))
        counts = [{count.tier: count.machines for count in one.counts} for one in mine]
        tiers = list(dict.fromkeys(tier for each in counts for tier in each))
        table = [["model", "work", "rule", *tiers]]
        for one, each in zip(mine, counts, strict=True):
            cells = (_count(each.get(tier)) for tier in tiers)
            table.append([one.model, one.work, f"{one.by_rule:,}", *cells])
        paper.lines += paper.headed(table, right=range(2, len(table[0])), keys=2, margin=0)
        paper.lines += (paper.ink(line, "dim") for line in wrap(_RULE, paper.width))
        for one in mine:
            for count in one.counts:
                if count.why:
                    paper.paragraph("Why not", f"{one.name}, {count.tier}: {printable(count.why)}")
    return str(paper)


def _count(machines: int | None) -> str:
    return _NONE if machines is None else f"{machines:,}"


def largest_text(found: Sequence[Largest], *, color: bool = False, width: int = 100) -> str:
    """A row for each scenario and place of its weights."""
    paper = Paper(color=color, width=width)
    table = [["model", "weights", "batch per GPU", "context", "layers", "parameters"]]
    for one in found:
        limits = map(_limit, (one.batch, one.context, one.layers))
        table.append([one.model, one.target, *limits, _parameters(one.parameters)])
    paper.lines += paper.headed(table, right=range(2, 6), keys=2, margin=0)
    paper.lines += (paper.ink(line, "dim") for line in wrap(_LARGEST, paper.width))
    for one in found:
        if one.made_for is not None and one.context.most is not None and one.context.most > one.made_for:
            text = f"{printable(one.model)} was made for a context of {one.made_for:,} tokens"
            paper.paragraph("Warning", text, "yellow")
    return str(paper)


def _limit(one: Limit) -> str:
    """ "16 → 57"; "16 → ≥1,000,000" where a scenario may not have more."""
    if one.most is None:
        return f"{one.now:,} → {_NONE}"
    return f"{one.now:,} → {'≥' if one.most == one.reaches else ''}{one.most:,}"


def _parameters(count: int | None) -> str:
    if count is None:
        return _NONE
    units = ((10**12, "T"), (10**9, "B"), (10**6, "M"))
    size, letter = next((one for one in units if float(f"{count / one[0]:.3g}") >= 1), units[-1])
    return f"{format_number(count / size)}{letter}"
