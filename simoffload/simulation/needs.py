"""What every tier must hold, without the rest of a result: for whoever asks about many scenarios."""

from __future__ import annotations

from simoffload.results.capacity import TierUse, peak_uses
from simoffload.scenario import LoadedScenario
from simoffload.simulation.around_training import with_sections
from simoffload.workload import Training

__all__ = ["tier_needs"]


def tier_needs(scenario: LoadedScenario) -> tuple[TierUse, ...]:
    """The ``capacity`` of what ``fit`` answers. Raises InputError for what DeepSpeed would refuse."""
    if isinstance(scenario.scenario.workload, Training):
        plan = scenario.training_plan()
        moments = with_sections(scenario, plan.moments, scenario.plan_checkpoints(plan))
    else:
        moments = scenario.plan().moments
    return peak_uses(moments, scenario.machine.tiers)
