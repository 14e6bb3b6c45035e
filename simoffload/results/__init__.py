"""Results of a simulation: timelines, metrics, capacity, provenance."""

from simoffload.extending import at, works
from simoffload.results.attribution import Group, cause_of, cause_text
from simoffload.results.capacity import (
    ADDED,
    CacheBlocks,
    Change,
    Estimate,
    Facts,
    HeldKind,
    MemoryStage,
    MemoryTerm,
    ProgramChoice,
    ProgramRate,
    Remedies,
    TierUse,
    peak_uses,
    tier_uses,
)
from simoffload.results.extrapolate import differ_beyond_kernels, makespan_for_longer_context
from simoffload.results.inference import InferenceResult
from simoffload.results.metrics import (
    Metric,
    MetricAttribute,
    Passes,
    WithMetrics,
    all_passes,
    by_name,
    declared_in,
    interval_columns,
    metric,
    registered,
    with_intervals,
)
from simoffload.results.passes import LinkUse, PassResult, Share, Time, aggregate, summarize_pass
from simoffload.results.result import (
    ADAPTERS,
    FLEXGEN_4BIT,
    FROZEN_NF4,
    HALVED,
    STATES_8BIT,
    ResultProvenance,
    SimulationResult,
    attributed,
    quality_of_cache,
    quality_of_weights,
)
from simoffload.results.timeline import How, Interval, Order, PassWork, SkippedPeriods, Timeline, Track
from simoffload.results.training import (
    CachedWrites,
    StorageRequests,
    StorageTraffic,
    TimedPhase,
    TrainingResult,
    cache_warnings,
)

__all__ = [
    "ADAPTERS",
    "ADDED",
    "FLEXGEN_4BIT",
    "FROZEN_NF4",
    "HALVED",
    "STATES_8BIT",
    "CacheBlocks",
    "CachedWrites",
    "Change",
    "Estimate",
    "Facts",
    "Group",
    "HeldKind",
    "How",
    "InferenceResult",
    "Interval",
    "LinkUse",
    "MemoryStage",
    "MemoryTerm",
    "Metric",
    "MetricAttribute",
    "Order",
    "PassResult",
    "PassWork",
    "Passes",
    "ProgramChoice",
    "ProgramRate",
    "Remedies",
    "ResultProvenance",
    "Share",
    "SimulationResult",
    "SkippedPeriods",
    "StorageRequests",
    "StorageTraffic",
    "TierUse",
    "Time",
    "TimedPhase",
    "Timeline",
    "Track",
    "TrainingResult",
    "WithMetrics",
    "aggregate",
    "all_passes",
    "attributed",
    "by_name",
    "cache_warnings",
    "cause_of",
    "cause_text",
    "declared_in",
    "declared_metrics",
    "differ_beyond_kernels",
    "interval_columns",
    "kinds_of_results",
    "makespan_for_longer_context",
    "metric",
    "peak_uses",
    "quality_of_cache",
    "quality_of_weights",
    "registered",
    "summarize_pass",
    "tier_uses",
    "with_intervals",
]


def kinds_of_results() -> tuple[type[SimulationResult], ...]:
    """Return the classes of results, of which each has one kind of workload, with those of extensions."""
    return InferenceResult, TrainingResult, *(at(one.result) for one in works().values())


def declared_metrics() -> dict[str, Metric]:
    """Return the metrics of all kinds of results by name; of those of one name the first."""
    return {name: one for kind in reversed(kinds_of_results()) for name, one in kind.declared.items()}
