"""All kinds of results, and their metrics by name."""

from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.metrics import Metric
from simoffload.results.training import TrainingResult

KINDS = (InferenceResult, TrainingResult, CheckpointResult)


def declared_metrics() -> dict[str, Metric]:
    """Return the metrics of all kinds of results by name; of those of one name the first."""
    return {name: one for kind in reversed(KINDS) for name, one in kind.declared.items()}
