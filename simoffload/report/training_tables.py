"""The stages of memory use and the phases of a step of training."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.results.capacity import TierUse
from simoffload.results.training import TimedPhase, TrainingResult

__all__ = [
    "PhaseShares",
    "StageNeeds",
    "causes_by_phase",
    "phase_names",
    "several",
    "stage_needs",
    "times",
]


class StageNeeds(NamedTuple):
    """What every tier holds at one stage of the run."""

    name: str
    uses: tuple[TierUse, ...]
    """The same tiers at every moment, in the machine's order."""


class PhaseShares(NamedTuple):
    """Where the time on one cause falls."""

    cause: str
    exposed_s: tuple[float, ...]
    """[s] of one step in each of the phases of ``phase_names``."""


def stage_needs(result: TrainingResult) -> tuple[StageNeeds, ...]:
    """Every stage with every tier that holds something at any of them."""
    known = {use.tier: use for use in result.capacity}
    for _, uses in result.memory_stages:
        known |= {use.tier: use for use in uses if use.tier not in known}
    needs = []
    for name, uses in result.memory_stages:
        held = {use.tier: use for use in uses}
        empty = {tier: use._replace(needed=0, terms=()) for tier, use in known.items()}
        needs.append(StageNeeds(name, tuple(held.get(tier, empty[tier]) for tier in known)))
    return tuple(needs)


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
