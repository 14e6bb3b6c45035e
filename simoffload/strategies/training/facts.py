"""What a training step is made of, as every mode of training gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simoffload.strategies.actions import Tensor
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.training.swap import SubGroup
from simoffload.strategies.training.timing import TrainingTiming
from simoffload.strategies.training.walk import Parameters

__all__ = ["Places", "StepFacts", "Update"]


class Places(NamedTuple):
    """Where things are, and how many share them."""

    ranks: int
    weights: str
    """Tier of the 16-bit parameters."""
    optimizer: str
    """Tier of the optimizer's states."""
    threads: int
    """Of one rank's optimizer on the CPU."""


class Update(NamedTuple):
    """Where a sub-group's state lies, and where its updated parameters go."""

    group: SubGroup
    on_gpu: bool
    """The optimizer runs on the GPU."""
    swapped: bool
    """States and gradients are on storage."""
    params: str
    """hbm, dram or nvme: the place of its 16-bit parameters."""


class StepFacts(NamedTuple):
    """Settings, tensors and durations of one run."""

    settings: TrainingSettings
    timing: TrainingTiming
    places: Places
    tensors: tuple[Tensor, ...]
    """All of the model."""
    everything: Callable[[], Parameters]
    """All tensors, and the modules that need them."""
    updates: tuple[Update, ...]
    dtype_bytes: int
    accumulation: int
    """Micro-steps of a step (``gradient_accumulation_steps``)."""

    @property
    def parameters(self) -> Parameters:
        """All tensors, and the modules that need them."""
        return self.everything()

    @property
    def processes(self) -> int:
        """Ranks on one host."""
        return self.timing.machine.ranks_per_node(self.places.ranks)

    @property
    def version(self) -> tuple[int, ...]:
        """DeepSpeed's."""
        return self.settings.params.version

    @property
    def cpu_numel(self) -> int:
        """[elements] of one rank's partition that are updated on the CPU."""
        return sum(update.group.numel for update in self.updates if not update.on_gpu)
