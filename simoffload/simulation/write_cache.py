"""How much of what a run writes finds room in the write caches of its drives, and how fast the rest is.

A drive empties its cache into the rest of its flash while it neither reads nor writes, at the rate at which
it writes there: nothing faster is known of it, and no maker says more. Every byte of a steady state takes
that time once, in the step that writes it or between two writes. With W [B] written and R read in a step of
T [s], K of W into the cache, the rates w into it, a after it and r of reading,

    R / r + W / a + K / w <= T,   K <= W,   K <= capacity.

The largest such K is what the cache is worth. T itself depends on it, and is simulated for each K tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from simoffload.hardware import Machine, Target
from simoffload.results import CachedWrites, StorageTraffic, TrainingResult, cache_warnings
from simoffload.strategies import Plan
from simoffload.strategies.checkpoint.plan import CheckpointPlan

_MOST_TRIALS = 6
_CLOSE = 0.001
"""Tolerance, relative to the step, of the time left for emptying a drive's cache."""

Simulate = Callable[[Plan], TrainingResult]


class _Cache(NamedTuple):
    """A _Cache is the write caches of a tier, and the load of a step on its drives."""

    tier: str
    target: Target
    read: int
    """Bytes that a step reads [B]."""
    written: int
    """[B]"""

    @property
    def most(self) -> int:
        """Capacity of the empty caches for the writes of a step [B]."""
        return min(self.written, self.target.write_cache)

    def spare_s(self, filled: Fraction, time_s: float) -> float:
        """Return the time [s] of a step that its drives have left once ``filled`` of ``most`` is emptied
        from caches."""
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


class _Trial(NamedTuple):
    """A _Trial is a step simulated with a given cache use."""

    filled: Fraction
    """Fraction of the writes that an empty cache would take that the cache takes."""
    result: TrainingResult
    spare_s: float
    """Time per step that the busiest drives have left [s]; negative if they cannot empty their caches."""


def steps_with_caches(
    plan: Plan, found: TrainingResult, simulate: Simulate, *, steady: bool
) -> TrainingResult:
    """Simulate a step with the write caches of its drives as they are after many steps, or else empty.

    ``found`` is the result without times.
    """
    caches = _of_step(plan.machine, found.traffic, found.ranks)
    if not caches:
        return simulate(plan)

    def at(filled: Fraction) -> _Trial:
        shares = {one.tier: filled * one.most / one.written for one in caches}
        used = plan
        if any(share < 1 for share in shares.values()):
            used = plan.on(plan.machine.with_cached_writes(shares))
        result = simulate(used)
        assert result.step_s is not None
        return _Trial(filled, result, min(one.spare_s(filled, result.step_s) for one in caches))

    best = at(Fraction(1))
    if steady and best.spare_s < 0:
        best = _balanced(at, best)
    uses = tuple(one.use(best.filled, "step") for one in caches)
    warnings = (*best.result.warnings, *cache_warnings(uses))
    return replace(best.result, write_caches=uses, warnings=warnings)


def _balanced(at: Callable[[Fraction], _Trial], high: _Trial) -> _Trial:
    """Return the step in which drives empty their caches just as fast as it fills them (regula falsi).

    ``high`` fills them faster than they are emptied; nothing in them is always possible.
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
        target = machine.topology.targets[one.tier]
        if target.sustained is None or not one.written:
            continue
        # Every host has its own local drives.
        part = Fraction(machine.ranks_per_node(ranks), ranks) if target.drives else Fraction(1)
        found.append(_Cache(one.tier, target, round(one.read * part), round(one.written * part)))
    return found


def checkpoint_with_caches(
    plan: CheckpointPlan, steps: tuple[CachedWrites, ...] = ()
) -> tuple[CheckpointPlan, tuple[CachedWrites, ...]]:
    """Return the plan of a checkpoint with the rates at which its bytes are written, and what finds room in
    the caches.

    It is a burst: its drives' caches are empty before it, or emptied since the one before as far as the time
    between allows. ``steps`` are what a training run's own steps leave of them: nothing, where they cannot
    empty the caches themselves. Runs that write to the same drives at the same moment share the caches.
    """
    target = plan.machine.topology.targets[plan.tier]
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
