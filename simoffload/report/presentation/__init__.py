"""What reports say differently of inference, training and checkpoints, one file for each."""

from __future__ import annotations

from simoffload.report.presentation.base import Metric, Presentation, TierAssignment
from simoffload.report.presentation.checkpoint import checkpoint
from simoffload.report.presentation.inference import inference
from simoffload.report.presentation.training import training
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["Metric", "Presentation", "TierAssignment", "presentation"]


def presentation(result: SimulationResult) -> Presentation:
    """How a report presents a result. Raises TypeError for a kind of work that has none."""
    if isinstance(result, InferenceResult):
        return inference(result)
    if isinstance(result, TrainingResult):
        return training(result)
    if isinstance(result, CheckpointResult):
        return checkpoint(result)
    raise TypeError(f"{type(result).__name__} is a kind of result that no report knows")
