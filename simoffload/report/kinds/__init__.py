"""How results are told, one file for each kind of work."""

from __future__ import annotations

from simoffload.report.kinds.checkpoint import checkpoint
from simoffload.report.kinds.inference import inference
from simoffload.report.kinds.training import training
from simoffload.report.kinds.words import Cell, Metric, Place, Words
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["Cell", "Metric", "Place", "Words", "words"]


def words(result: SimulationResult) -> Words:
    """The words for a result. Raises TypeError for a kind of work that has none."""
    if isinstance(result, InferenceResult):
        return inference(result)
    if isinstance(result, TrainingResult):
        return training(result)
    if isinstance(result, CheckpointResult):
        return checkpoint(result)
    raise TypeError(f"{type(result).__name__} is a kind of result that no report knows")
