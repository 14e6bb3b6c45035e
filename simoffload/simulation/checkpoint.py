"""Checkpoint metrics: times of saving and restoring, and their effect on a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from simoffload.hardware import Machine, Target
from simoffload.results import (
    CachedWrites,
    CheckpointPhase,
    CheckpointResult,
    Checkpoints,
    SavedPart,
    StorageTraffic,
    TierLifetime,
    TrainingResult,
    cache_warnings,
    lifetime_warnings,
    tier_lifetime,
)
from simoffload.simulation.capacity import common
from simoffload.simulation.metrics import Measures
from simoffload.simulation.runner import Runner
from simoffload.strategies import Plan
from simoffload.strategies.programs.checkpoint import CheckpointPart, CheckpointPlan

# -- how many bytes of a run its drives' write caches can take, and the write rate of the rest -----
# A drive empties its cache into the rest of its flash while it neither reads nor writes. The rate is
# assumed to be its write rate with a full cache, because manufacturers publish no other. In a long run
# every byte takes this time once, either when it is written or later, when the drive is idle. With W [B]
# written and R [B] read in a step of T [s], K of W written into the cache, and the rates w into the cache,
# a with a full cache and r of reads,
#
# R / r + W / a + K / w <= T, K <= W, K <= capacity.
#
# The largest such K is the number of bytes that the cache can take. T depends on K, and is simulated for
# each K that is tried.


_MOST_TRIALS = 6
_CLOSE = 0.001
"""Tolerance of the idle time that drives have to empty their caches, relative to the step."""

Simulate = Callable[[Plan], TrainingResult]


class _Cache(NamedTuple):
    """A _Cache is the write caches of a tier, with the load of a step on its drives."""

    tier: str
    target: Target
    read: int
    """Bytes that a step reads [B]."""
    written: int
    """Bytes that a step writes [B]."""

    @property
    def most(self) -> int:
        """Bytes of a step that empty caches could take [B]."""
        return min(self.written, self.target.write_cache)

    def spare_s(self, filled: Fraction, time_s: float) -> float:
        """Return the idle time [s] of the drives in a step after they have emptied the fraction ``filled`` of
        ``most``."""
        sustained, target = self.target.sustained, self.target
        assert sustained is not None
        cached = float(filled) * self.most
        busy = self.read / target.read.rate + self.written / sustained.rate + cached / target.write.rate
        return time_s - busy

    def use(self, filled: Fraction, unit: str) -> CachedWrites:
        """Return the use of the caches for the result."""
        target, cached = self.target, filled * self.most
        assert target.sustained is not None
        return CachedWrites(
            tier=self.tier,
            unit=unit,
            written=self.written,
            cached=round(cached),
            capacity=target.write_cache,
            rate=target.partly_cached(cached / self.written).write.rate,
            cache_rate=target.write.rate,
            rate_after=target.sustained.rate,
        )


class _FilledStep(NamedTuple):
    """A _FilledStep is a step that was simulated with a given use of the caches."""

    filled: Fraction
    """Fraction of the bytes in ``most`` that is written into the caches."""
    result: TrainingResult
    spare_s: float
    """Idle time of the busiest drives per step [s]; negative if they cannot empty their caches."""


def steps_with_caches(
    plan: Plan, found: TrainingResult, simulate: Simulate, *, steady: bool
) -> TrainingResult:
    """Simulate a step with write caches in the state of a long run, or empty; ``found`` is the result without
    times."""
    caches = _of_step(plan.machine, found.traffic, found.ranks)
    if not caches:
        return simulate(plan)

    def at(filled: Fraction) -> _FilledStep:
        shares = {one.tier: filled * one.most / one.written for one in caches}
        used = plan
        if any(share < 1 for share in shares.values()):
            machine = plan.machine.with_cached_writes(shares)
            used = replace(plan, machine=machine)  # type: ignore[type-var]  # all plans are dataclasses
        result = simulate(used)
        assert result.step_s is not None
        return _FilledStep(filled, result, min(one.spare_s(filled, result.step_s) for one in caches))

    best = at(Fraction(1))
    if steady and best.spare_s < 0:
        best = _balanced(at, best)
    uses = tuple(one.use(best.filled, "step") for one in caches)
    warnings = (*best.result.warnings, *cache_warnings(uses))
    return replace(best.result, write_caches=uses, warnings=warnings)


def _balanced(at: Callable[[Fraction], _FilledStep], high: _FilledStep) -> _FilledStep:
    """Return the step in which drives empty their caches as fast as the step fills them (regula falsi).

    ``high`` is a trial that fills them faster than they are emptied; a trial that does not use them is
    possible.
    """
    low = at(Fraction(0))
    for _ in range(_MOST_TRIALS):
        close = _CLOSE * (low.result.step_s or 0.0)
        if low.spare_s <= close:
            break
        part = low.spare_s / (low.spare_s - high.spare_s)
        filled = low.filled + (high.filled - low.filled) * Fraction(part).limit_denominator(10**6)
        trial = at(filled)
        if trial.spare_s < -close:
            high = trial
        else:
            low = trial
    return low


def _of_step(machine: Machine, traffic: tuple[StorageTraffic, ...], ranks: int) -> list[_Cache]:
    found = []
    for one in traffic:
        target = machine.targets[one.tier]
        if target.sustained is None or not one.written:
            continue
        # Every host has its own local drives.
        part = Fraction(machine.ranks_per_node(ranks), ranks) if target.drives else Fraction(1)
        found.append(_Cache(one.tier, target, round(one.read * part), round(one.written * part)))
    return found


def checkpoint_with_caches(
    plan: CheckpointPlan, steps: tuple[CachedWrites, ...] = ()
) -> tuple[CheckpointPlan, tuple[CachedWrites, ...]]:
    """Return the plan of a checkpoint with its write rates, and the part of its bytes that the caches take.

    A checkpoint is a burst: the caches are empty before it, or as empty as the time since the last one
    allows. ``steps`` state how much of them the steps of a training run use; if the drives cannot empty the
    caches between steps, nothing is left. Runs that write to the same drives at the same time share the
    caches.
    """
    target = plan.machine.targets[plan.tier]
    if target.sustained is None:
        return plan, ()
    jobs = 1 if target.drives else plan.workload.jobs
    by_host = plan.written_by_host
    written = jobs * (max(by_host) if target.drives else sum(by_host))
    room = target.write_cache
    for one in steps:
        if one.tier == plan.tier:
            room = 0 if one.exceeded else room - one.cached
    if plan.workload.interval_s is not None:
        room = min(room, int(plan.workload.interval_s * target.sustained.rate))
    cache = _Cache(plan.tier, target, 0, written)
    filled = Fraction(min(room, cache.most), cache.most)
    machine = plan.machine.with_cached_writes({plan.tier: filled * cache.most / written})
    return replace(plan, machine=machine), (cache.use(filled, "checkpoint"),)


# -- checkpoint metrics ----------------------------------------------------------------------------


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
