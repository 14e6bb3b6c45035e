"""The content of a scenario file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from simoffload.documents import Frozen
from simoffload.hardware.equipment import Parts
from simoffload.limits import DEFAULT_MEMORY, LEAST_MEMORY, Limits
from simoffload.models import ModelSpec
from simoffload.strategies import AnyStrategy
from simoffload.units import PositiveBytes, Seconds, format_bytes
from simoffload.workload import Dataset, TrainingCheckpoints, Workload

__all__ = ["EngineOptions", "Scenario"]


Shortcut = Literal["on", "off", "verify"]
"""``verify``: with and without it, and any difference is an error."""


def _enough(memory: int) -> int:
    if memory < LEAST_MEMORY:
        least = format_bytes(LEAST_MEMORY, binary=True)
        raise PydanticCustomError("greater_than_equal", "at least {ge}", {"ge": least})
    return memory


class EngineOptions(Frozen):
    """How the simulation is carried out, not what is simulated."""

    fold: Shortcut = "on"
    """Ranks that are alike are simulated as one."""
    jump: Shortcut = "on"
    """Periods of a steady state are counted instead of being simulated one by one."""
    tokens: Shortcut = "on"
    """Of the decode steps a few are simulated; those after them follow as far as that is certain."""
    max_events: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Refuse a pass of more operations on all ranks, those that are counted and not run included."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    """Stop with an error when reading, planning, simulating and reporting a scenario have taken so long; on
    the command line importing libraries counts, too."""
    memory: Annotated[PositiveBytes, AfterValidator(_enough)] = DEFAULT_MEMORY
    """Stop with an error when they have taken so much memory of the machine that simoffload runs on, at least
    256 MiB; on the command line the whole process counts."""

    @property
    def limits(self) -> Limits:
        """The limits among the options."""
        return Limits(self.timeout, self.memory, self.max_events)


class Scenario(Frozen):
    """The content of a scenario file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """What reports call it."""
    description: Annotated[str, Field(max_length=4000)] = ""
    """What it stands for, and what its source leaves open."""
    model: ModelSpec
    """The model, by name, by config or by sizes."""
    platform: Annotated[str, Field(min_length=1)]
    """Id of a shipped platform or the path of a platform file, relative to the scenario."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=8192)] = 1
    """Equal hosts of that platform."""
    equipment: Parts = Parts()
    """What is added to the platform, or put in the place of its own."""
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Numbers in place of those of the platform's profiles, by ``id`` or ``kind/id``."""
    workload: Workload
    """What is done."""
    strategy: AnyStrategy
    """What is offloaded, and how."""
    checkpoint: TrainingCheckpoints | None = None
    """Checkpoints that a training run saves."""
    dataset: Dataset | None = None
    """What a training run reads."""
    engine: EngineOptions = EngineOptions()
    """Shortcuts and limits of the simulation."""
