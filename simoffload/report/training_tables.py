"""The parts of a training step as tables, for terminal and page."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.report.formatting import percent
from simoffload.results.capacity import TierUse
from simoffload.results.training import TimedPhase, TrainingResult
from simoffload.units import format_bytes

__all__ = [
    "MomentNeeds",
    "PhaseShares",
    "causes_by_phase",
    "estimates",
    "moments",
    "phase_names",
    "several",
    "times",
]


class MomentNeeds(NamedTuple):
    """What every tier holds at one stage of the run."""

    name: str
    uses: tuple[TierUse, ...]
    """The same tiers at every moment, in the machine's order."""


class PhaseShares(NamedTuple):
    """Where the time on one cause falls."""

    cause: str
    exposed_s: tuple[float, ...]
    """[s] of one step in each of the phases of ``phase_names``."""

    def told(self, names: tuple[str, ...]) -> str:
        """ "backward 67 %, forward 33 %"; the name alone where it is one phase; empty where nothing."""
        total = sum(self.exposed_s)
        parts = sorted(zip(self.exposed_s, names, strict=True), key=lambda part: -part[0])
        return ", ".join(
            name if exposed == total else f"{name} {percent(exposed / total)}"
            for exposed, name in parts
            if exposed
        )


def moments(result: TrainingResult) -> tuple[MomentNeeds, ...]:
    """Every stage with every tier that holds something at any of them."""
    known = {use.tier: use for use in result.capacity}
    for _, uses in result.moments:
        known |= {use.tier: use for use in uses if use.tier not in known}
    told = []
    for name, uses in result.moments:
        held = {use.tier: use for use in uses}
        empty = {tier: use._replace(needed=0, terms=()) for tier, use in known.items()}
        told.append(MomentNeeds(name, tuple(held.get(tier, empty[tier]) for tier in known)))
    return tuple(told)


def estimates(result: TrainingResult) -> tuple[tuple[str, str, str], ...]:
    """(whose, how much, formula) of what others' rules say of the memory."""
    rows = []
    for one in result.estimates:
        sizes = ((one.per_gpu, "per GPU"), (one.per_host, "per host"), (one.total, "in all"))
        told = ", ".join(f"{format_bytes(size, binary=True)} {scope}" for size, scope in sizes if size)
        rows.append((one.name, told, one.formula))
    return tuple(rows)


def phase_names(result: TrainingResult) -> tuple[str, ...]:
    """Forward, backward, optimizer: each once, in order."""
    return tuple(dict.fromkeys(phase.name for phase in result.phases))


def several(result: TrainingResult) -> bool:
    """Whether a phase was simulated in several forms or happens more than once in a step."""
    return len(result.phases) > len(phase_names(result)) or any(phase.times != 1 for phase in result.phases)


def times(phase: TimedPhase) -> str:
    """ "3 ×", "1/4 ×"."""
    return f"{phase.times} ×"


def causes_by_phase(result: TrainingResult) -> tuple[PhaseShares, ...]:
    """For every cause of the whole step, in its order, the exposed time by phase."""
    names = phase_names(result)
    exposed: dict[str, dict[str, float]] = {}
    for phase in result.phases:
        for share in phase.result.shares:
            mine = exposed.setdefault(share.cause, dict.fromkeys(names, 0.0))
            mine[phase.name] += float(phase.times) * share.exposed_s
    causes = [share.cause for share in result.step.shares] if result.step else []
    return tuple(PhaseShares(cause, tuple(exposed[cause].values())) for cause in causes)
