"""The content of a scenario file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from simoffload.models import ModelSpec
from simoffload.strategies import Strategy
from simoffload.workload import Dataset, TrainingCheckpoints, Workload

__all__ = ["EngineOptions", "Scenario"]


class EngineOptions(BaseModel):
    """How the simulation is carried out, not what is simulated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Literal["on", "off"] = "on"
    """"on": decode steps between a few simulated ones are interpolated; "off": every step is simulated."""
    max_events: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Stop a pass with an error after so many clock events."""


class Scenario(BaseModel):
    """The content of a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: Annotated[str, Field(max_length=4000)] = ""
    model: ModelSpec
    platform: Annotated[str, Field(min_length=1)]
    """Id of a shipped platform or the path of a platform file, relative to the scenario."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=8192)] = 1
    workload: Workload
    strategy: Strategy
    checkpoint: TrainingCheckpoints | None = None
    """Checkpoints that a training run saves."""
    dataset: Dataset | None = None
    """What a training run reads."""
    engine: EngineOptions = EngineOptions()
