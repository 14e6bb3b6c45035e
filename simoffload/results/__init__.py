"""Results of a simulation: timelines, metrics, capacity, provenance."""

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
    Remedies,
    TierUse,
    peak_uses,
    tier_uses,
)
from simoffload.results.checkpoint import (
    CheckpointPhase,
    CheckpointResult,
    Checkpoints,
    Outlook,
    SavedPart,
    StateDevice,
    outlook,
    run_mtbf,
)
from simoffload.results.endurance import (
    CachedWrites,
    TierLifetime,
    cache_warnings,
    duration,
    lifetime_warnings,
    tier_lifetime,
)
from simoffload.results.extrapolate import differ_beyond_kernels, makespan_for_longer_context
from simoffload.results.inference import InferenceResult
from simoffload.results.metrics import (
    Metric,
    MetricAttribute,
    WithMetrics,
    by_name,
    declared_in,
    interval_columns,
    metric,
    registered,
    with_intervals,
)
from simoffload.results.passes import LinkUse, PassResult, Share, Time, summarize_pass
from simoffload.results.result import (
    ADAPTERS,
    FLEXGEN_4BIT,
    FROZEN_NF4,
    HALVED,
    STATES_8BIT,
    ResultProvenance,
    SimulationResult,
    quality_of_cache,
    quality_of_weights,
)
from simoffload.results.timeline import How, Interval, Order, PassWork, SkippedPeriods, Timeline, Track
from simoffload.results.training import (
    DataLoading,
    Epoch,
    Limit,
    StorageRequests,
    StorageTraffic,
    TimedPhase,
    TrainingResult,
    data_loading_sentences,
)

__all__ = [
    "ADAPTERS",
    "ADDED",
    "FLEXGEN_4BIT",
    "FROZEN_NF4",
    "HALVED",
    "KINDS",
    "STATES_8BIT",
    "CacheBlocks",
    "CachedWrites",
    "Change",
    "CheckpointPhase",
    "CheckpointResult",
    "Checkpoints",
    "DataLoading",
    "Epoch",
    "Estimate",
    "Facts",
    "Group",
    "HeldKind",
    "How",
    "InferenceResult",
    "Interval",
    "Limit",
    "LinkUse",
    "MemoryStage",
    "MemoryTerm",
    "Metric",
    "MetricAttribute",
    "Order",
    "Outlook",
    "PassResult",
    "PassWork",
    "Remedies",
    "ResultProvenance",
    "SavedPart",
    "Share",
    "SimulationResult",
    "SkippedPeriods",
    "StateDevice",
    "StorageRequests",
    "StorageTraffic",
    "TierLifetime",
    "TierUse",
    "Time",
    "TimedPhase",
    "Timeline",
    "Track",
    "TrainingResult",
    "WithMetrics",
    "by_name",
    "cache_warnings",
    "cause_of",
    "cause_text",
    "data_loading_sentences",
    "declared_in",
    "declared_metrics",
    "differ_beyond_kernels",
    "duration",
    "interval_columns",
    "lifetime_warnings",
    "makespan_for_longer_context",
    "metric",
    "outlook",
    "peak_uses",
    "quality_of_cache",
    "quality_of_weights",
    "registered",
    "run_mtbf",
    "summarize_pass",
    "tier_lifetime",
    "tier_uses",
    "with_intervals",
]

KINDS = (InferenceResult, TrainingResult, CheckpointResult)
"""Classes of results, of which each has one kind of workload."""


def declared_metrics() -> dict[str, Metric]:
    """Return the metrics of all kinds of results by name; of those of one name the first."""
    return {name: one for kind in reversed(KINDS) for name, one in kind.declared.items()}
