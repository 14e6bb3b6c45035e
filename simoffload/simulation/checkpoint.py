"""Checkpoint metrics: times of saving and restoring, and their effect on a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simoffload.results import (
    CachedWrites,
    CheckpointPhase,
    CheckpointResult,
    Checkpoints,
    SavedPart,
    TierLifetime,
    cache_warnings,
    lifetime_warnings,
    tier_lifetime,
)
from simoffload.simulation.capacity import common
from simoffload.simulation.metrics import Measures
from simoffload.simulation.runner import Runner
from simoffload.simulation.write_cache import checkpoint_with_caches
from simoffload.strategies import Plan
from simoffload.strategies.programs.checkpoint import CheckpointPart, CheckpointPlan


class CheckpointMeasures(Measures[CheckpointResult]):
    """CheckpointMeasures compute the metrics of a scenario with only checkpoints."""

    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> CheckpointResult:  # noqa: ARG002
        """Return a result without times and checkpoint."""
        settings = _settings(self.scenario.scenario.workload)
        nothing = Checkpoints(tier=common["target"], size=0, written_by_host=(), parts=(), **settings)
        return CheckpointResult(**common, checkpoint=nothing)

    def capacity(self, plan: Plan) -> CheckpointResult:
        """Return the checkpoint's sizes without times."""
        assert plan.saved is not None
        return CheckpointResult(**common(self.scenario, plan), checkpoint=checkpoint_facts(plan.saved))

    def timed(self, plan: Plan, result: CheckpointResult, runner: Runner) -> CheckpointResult:
        """Add the times of saving and restoring, and the lifetime of drives. Raises SimulationError."""
        assert plan.saved is not None
        found, warnings = checkpoint_times(plan.saved, runner)
        drive_lifetime = _tier_lifetimes(plan.saved, found)
        return replace(
            result,
            checkpoint=found,
            drive_lifetime=drive_lifetime,
            warnings=(*result.warnings, *warnings, *lifetime_warnings(drive_lifetime)),
            timelines=runner.timelines,
            work=tuple(runner.work),
        )


def checkpoint_facts(plan: CheckpointPlan) -> Checkpoints:
    """Return the sizes and properties of a checkpoint without times."""
    return Checkpoints(
        tier=plan.tier,
        size=plan.size,
        written_by_host=plan.written_by_host,
        parts=tuple(_part(part) for part in plan.parts),
        **_settings(plan.workload),
    )


def _settings(workload: Any) -> dict[str, Any]:
    """Return how a workload of checkpoints writes them."""
    return {
        "contents": workload.contents,
        "writer": workload.writer.type,
        "mode": workload.mode,
        "keep": workload.keep,
    }


def _part(part: CheckpointPart) -> SavedPart:
    files = 1 if part.same_file else len(part.writers)
    return SavedPart(part.name, part.size, len(part.writers), part.device, files)


def checkpoint_times(
    plan: CheckpointPlan, runner: Runner, steps: tuple[CachedWrites, ...] = ()
) -> tuple[Checkpoints, tuple[str, ...]]:
    """Simulate saving and restoring; return the times and warnings.

    ``steps`` state how much of the write caches a run's own steps use. Raises SimulationError if the engine
    cannot finish.
    """
    plan, caches = checkpoint_with_caches(plan, steps)
    phases = plan.phases if runner.scope == "all" else plan.save()
    found = list(zip(phases, runner.phases(phases), strict=True))
    saving = [(phase, one) for phase, one in found if phase.kind == "save"]
    restoring = tuple(one for phase, one in found if phase.kind == "restore")
    outlook = plan.outlook(
        blocking_s=sum((one.time_s for phase, one in saving if not phase.background), 0.0),
        background_s=sum((one.time_s for phase, one in saving if phase.background), 0.0),
        restore_s=sum((one.time_s for one in restoring), 0.0),
    )
    done = replace(
        checkpoint_facts(plan),
        saving=tuple(CheckpointPhase(one, phase.background) for phase, one in saving),
        restoring=restoring,
        write_caches=caches,
        outlook=outlook,
    )
    return done, (*filter(None, [plan.commit_warning(outlook)]), *cache_warnings(caches))


def _tier_lifetimes(plan: CheckpointPlan, found: Checkpoints) -> tuple[TierLifetime, ...]:
    """Return the lifetime of the drives, if the checkpoint interval is known."""
    outlook = found.outlook
    if outlook is None or outlook.interval_s is None:
        return ()
    every = outlook.interval_s + outlook.stall_s
    worn = tier_lifetime(plan.machine, plan.tier, found.written_by_host, time_s=every, unit="checkpoint")
    return (worn,) if worn is not None else ()
