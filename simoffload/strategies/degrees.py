"""The numbers of parts and replicas among which the GPUs of a strategy are divided."""

from __future__ import annotations

from typing import NamedTuple


class Degrees(NamedTuple):
    """Degrees are the numbers of parts and of replicas among which the GPUs are divided."""

    tensor: int
    """Number of GPUs that share each layer."""
    pipeline: int
    """Number of stages, each with a part of the layers."""
    data: int
    """Number of replicas of the model."""

    @property
    def ranks(self) -> int:
        """Number of processes, each with one GPU."""
        return self.tensor * self.pipeline * self.data

    def gpu(self, stage: int, rank: int) -> int:
        """Return the GPU of a rank of a stage; the ranks of a replica are on neighbouring GPUs (vLLM 0.33,
        distributed/parallel_state.py)."""
        replica, part = divmod(rank, self.tensor)
        return (replica * self.pipeline + stage) * self.tensor + part
