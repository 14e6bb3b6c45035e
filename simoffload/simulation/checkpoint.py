"""Checkpoints: saving one, restoring from it, and what both mean for a run."""

from __future__ import annotations

from dataclasses import replace

from simoffload.results.checkpoint import CheckpointPhase, Checkpoints, SavedPart
from simoffload.results.endurance import TierLifetime, tier_lifetime
from simoffload.results.write_cache import CachedWrites, cache_warnings
from simoffload.simulation.runner import Runner
from simoffload.simulation.write_cache import checkpoint_with_caches
from simoffload.strategies.checkpoint.bytes import CheckpointPart
from simoffload.strategies.checkpoint.plan import CheckpointPlan

__all__ = ["checkpoint_facts", "checkpoint_lifetimes", "checkpoint_times"]


def checkpoint_facts(plan: CheckpointPlan) -> Checkpoints:
    """What a checkpoint consists of."""
    workload = plan.workload
    return Checkpoints(
        tier=plan.tier,
        contents=workload.contents,
        writer=workload.writer.type,
        mode=workload.mode,
        keep=workload.keep,
        size=plan.size,
        written_by_host=plan.written_by_host,
        parts=tuple(_part(part) for part in plan.parts),
    )


def _part(part: CheckpointPart) -> SavedPart:
    files = 1 if part.same_file else len(part.writers)
    return SavedPart(part.name, part.size, len(part.writers), part.device, files)


def checkpoint_times(
    plan: CheckpointPlan, runner: Runner, steps: tuple[CachedWrites, ...] = ()
) -> tuple[Checkpoints, tuple[str, ...]]:
    """Simulate saving and restoring, with what a run's ``steps`` leave of write caches; and warnings.

    Raises SimulationError if the engine cannot finish.
    """
    plan, caches = checkpoint_with_caches(plan, steps)
    phases = plan.phases
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


def checkpoint_lifetimes(plan: CheckpointPlan, found: Checkpoints) -> tuple[TierLifetime, ...]:
    """Of the drives, where it is known how often a checkpoint is saved."""
    outlook = found.outlook
    if outlook is None or outlook.interval_s is None:
        return ()
    every = outlook.interval_s + outlook.stall_s
    worn = tier_lifetime(plan.machine, plan.tier, found.written_by_host, time_s=every, unit="checkpoint")
    return (worn,) if worn is not None else ()
