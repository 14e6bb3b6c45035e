"""Steps whose drives have write caches: how many of their bytes the caches take, and the rate of the rest.

A drive empties its cache into the rest of its flash while it neither reads nor writes. The rate is
assumed to be its write rate with a full cache, because manufacturers publish no other. In a long run
every byte takes this time once, either when it is written or later, when the drive is idle. With W [B]
written and R [B] read in a step of T [s], K of W written into the cache, and the rates w into the cache,
a with a full cache and r of reads,

R / r + W / a + K / w <= T, K <= W, K <= capacity.

The largest such K is the number of bytes that the cache can take. T depends on K, and is simulated for
each K that is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from simoffload.hardware import Machine, Target
from simoffload.results import CachedWrites, StorageTraffic, TrainingResult, cache_warnings
from simoffload.strategies import Plan

_MOST_TRIALS = 6
_CLOSE = 0.001
"""Tolerance of the idle time that drives have to empty their caches, relative to the step."""

Simulate = Callable[[Plan], TrainingResult]


class CacheLoad(NamedTuple):
    """A CacheLoad is the write caches of a tier, with the load of a step on its drives."""

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


def _of_step(machine: Machine, traffic: tuple[StorageTraffic, ...], ranks: int) -> list[CacheLoad]:
    found = []
    for one in traffic:
        target = machine.targets[one.tier]
        if target.sustained is None or not one.written:
            continue
        # Every host has its own local drives.
        part = Fraction(machine.ranks_per_node(ranks), ranks) if target.drives else Fraction(1)
        found.append(CacheLoad(one.tier, target, round(one.read * part), round(one.written * part)))
    return found
