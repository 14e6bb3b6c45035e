"""How ZeRO cuts a model's tensors up among the ranks."""

from __future__ import annotations

from simoffload.strategies.coordinator import Tensor
from simoffload.strategies.ds_config import OffloadSettings

__all__ = ["flat_part", "partitioned_tensor"]

_FLAT_ALIGNMENT = 2
"""[elements] to which ZeRO-1 and 2 pad one rank's part (``nccl_start_alignment_factor``,
deepspeed/runtime/zero/stage_1_and_2.py)."""


def flat_part(numel: int, ranks: int) -> int:
    """[elements] of one rank's part of all parameters in a row, as ZeRO-1 and 2 cut them."""
    return -(-numel // (_FLAT_ALIGNMENT * ranks)) * _FLAT_ALIGNMENT


def partitioned_tensor(
    name: str, numel: int, *, persistent: int, settings: OffloadSettings, ranks: int, dtype_bytes: int
) -> Tensor:
    """A tensor as ZeRO-3 cuts it; ``persistent`` [elements] of those before it stay on the GPU."""
    slice_numel = -(-numel // ranks)
    stays = (
        numel <= settings.param_persistence_threshold
        and persistent + numel <= settings.model_persistence_threshold
    )
    on_nvme = settings.device == "nvme" and slice_numel * dtype_bytes >= settings.min_swap_bytes
    return Tensor(name, numel, slice_numel, on_nvme, stays)
