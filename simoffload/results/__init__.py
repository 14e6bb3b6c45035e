"""Results of a simulation: timelines, metrics, capacity, provenance.

The kinds of results are imported when they are first used: a scenario of inference needs no checkpoints.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from simoffload.results.attribution import Group
from simoffload.results.capacity import (
    Change,
    Estimate,
    MemoryStage,
    MemoryTerm,
    Remedies,
    TierUse,
    peak_uses,
    tier_uses,
)
from simoffload.results.passes import LinkUse, PassResult, Time, summarize_pass
from simoffload.results.result import ResultProvenance, SimulationResult
from simoffload.results.timeline import How, Interval, PassWork, Repeat, SkippedPeriods, Timeline, Track
from simoffload.results.values import by_name

if TYPE_CHECKING:
    from simoffload.results.checkpoint import (
        CheckpointPhase,
        CheckpointResult,
        Checkpoints,
        Outlook,
        SavedPart,
        outlook,
        run_mtbf,
    )
    from simoffload.results.data_loading import DataLoading, Epoch, Limit, data_loading_sentences
    from simoffload.results.endurance import (
        CachedWrites,
        TierLifetime,
        cache_warnings,
        duration,
        lifetime_warnings,
        tier_lifetime,
    )
    from simoffload.results.extrapolate import makespan_for_longer_context
    from simoffload.results.inference import InferenceResult
    from simoffload.results.training import StorageRequests, StorageTraffic, TimedPhase, TrainingResult

__all__ = [
    "CachedWrites",
    "Change",
    "CheckpointPhase",
    "CheckpointResult",
    "Checkpoints",
    "DataLoading",
    "Epoch",
    "Estimate",
    "Group",
    "How",
    "InferenceResult",
    "Interval",
    "Limit",
    "LinkUse",
    "MemoryStage",
    "MemoryTerm",
    "Outlook",
    "PassResult",
    "PassWork",
    "Remedies",
    "Repeat",
    "ResultProvenance",
    "SavedPart",
    "SimulationResult",
    "SkippedPeriods",
    "StorageRequests",
    "StorageTraffic",
    "TierLifetime",
    "TierUse",
    "Time",
    "TimedPhase",
    "Timeline",
    "Track",
    "TrainingResult",
    "by_name",
    "cache_warnings",
    "data_loading_sentences",
    "duration",
    "lifetime_warnings",
    "makespan_for_longer_context",
    "outlook",
    "peak_uses",
    "run_mtbf",
    "summarize_pass",
    "tier_lifetime",
    "tier_uses",
]

_LATE = {
    "CachedWrites": "endurance",
    "CheckpointPhase": "checkpoint",
    "CheckpointResult": "checkpoint",
    "Checkpoints": "checkpoint",
    "DataLoading": "data_loading",
    "Epoch": "data_loading",
    "InferenceResult": "inference",
    "Limit": "data_loading",
    "Outlook": "checkpoint",
    "SavedPart": "checkpoint",
    "StorageRequests": "training",
    "StorageTraffic": "training",
    "TierLifetime": "endurance",
    "TimedPhase": "training",
    "TrainingResult": "training",
    "cache_warnings": "endurance",
    "data_loading_sentences": "data_loading",
    "duration": "endurance",
    "lifetime_warnings": "endurance",
    "makespan_for_longer_context": "extrapolate",
    "outlook": "checkpoint",
    "run_mtbf": "checkpoint",
    "tier_lifetime": "endurance",
}
"""Names and their modules, imported at first use."""


def __getattr__(name: str) -> object:
    """Import a name at its first use (PEP 562). Raises AttributeError for a name that the package lacks."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    globals()[name] = value
    return value
