"""The content of a scenario file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from simoffload.documents import Frozen
from simoffload.hardware import Parts
from simoffload.limits import DEFAULT_MEMORY, LEAST_MEMORY, Limits
from simoffload.models import ModelSpec
from simoffload.scenario.streams import StreamOptions
from simoffload.strategies import AnyStrategy
from simoffload.units import PositiveBytes, Seconds, format_bytes
from simoffload.workload import Dataset, TrainingCheckpoints, Workload

RENAMED = {
    "engine.fold": "engine.rank_symmetry",
    "engine.jump": "engine.steady_state",
    "engine.tokens": "engine.decode_extrapolation",
}
"""Keys of scenarios that were renamed: old path, new path. The old ones are accepted for one release."""

Shortcut = Literal["on", "off", "verify"]
"""``verify`` simulates with and without the shortcut; any difference is an error."""


def _enough(memory: int) -> int:
    if memory < LEAST_MEMORY:
        least = format_bytes(LEAST_MEMORY, binary=True)
        raise PydanticCustomError("greater_than_equal", "at least {ge}", {"ge": least})
    return memory


class EngineOptions(Frozen):
    """Options of the simulator that do not change what is simulated."""

    rank_symmetry: Shortcut = "on"
    """Identical ranks are simulated as one."""
    steady_state: Shortcut = "on"
    """Repeated periods of a steady state are counted instead of simulated."""
    decode_extrapolation: Shortcut = "on"
    """A few decode steps are simulated; the others are extrapolated as far as the result is certain."""
    max_events: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Largest number of operations in a pass, summed over all ranks and including counted ones; a larger pass
    is refused."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    """Time limit for reading, planning, simulating and reporting a scenario, after which it stops with an
    error; on the command line it includes importing libraries."""
    memory: Annotated[PositiveBytes, AfterValidator(_enough)] = DEFAULT_MEMORY
    """Limit of the memory that simoffload itself uses for this, at least 256 MiB, beyond which it stops with
    an error; on the command line it includes the complete process."""

    @property
    def limits(self) -> Limits:
        """The limits of time, memory and operations among the options."""
        return Limits(self.timeout, self.memory, self.max_events)


class Scenario(Frozen):
    """The content of a scenario file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the scenario in reports."""
    description: Annotated[str, Field(max_length=4000)] = ""
    """What the scenario represents, and which of its values are assumptions."""
    model: ModelSpec
    """The model: a name, a `config.json` or its sizes."""
    platform: Annotated[str, Field(min_length=1)]
    """Id of a shipped platform, or path of a platform file relative to the scenario."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=8192)] = 1
    """Number of identical hosts of that platform."""
    equipment: Parts = Parts()
    """Devices that are added to the platform or replace its own."""
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Values that replace those of the platform's profiles, by ``id`` or ``kind/id``."""
    workload: Workload
    """The work: inference, training or checkpoints."""
    strategy: AnyStrategy
    """The offload strategy and its settings."""
    checkpoint: TrainingCheckpoints | None = None
    """Checkpoints that the training run saves."""
    dataset: Dataset | None = None
    """Training data that the run reads from storage."""
    stream: StreamOptions | None = None
    """Requests that arrive one after the other, for ``simoffload stream``; other commands ignore it."""
    engine: EngineOptions = EngineOptions()
    """Shortcuts and limits of the simulator."""
