"""Workloads: generate tokens, train, or save and restore checkpoints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simoffload.workload.dataset import Dataset
from simoffload.workload.inference import Inference
from simoffload.workload.training import Checkpointing, Training, TrainingCheckpoints, Writer

__all__ = [
    "Checkpointing",
    "Computation",
    "Dataset",
    "Inference",
    "Training",
    "TrainingCheckpoints",
    "Workload",
    "Writer",
]

Computation = Annotated[Inference | Training, Field(discriminator="kind")]
"""A workload that runs a model on GPUs."""
Workload = Annotated[Inference | Training | Checkpointing, Field(discriminator="kind")]
