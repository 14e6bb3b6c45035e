"""Checkpoints in host memory (``activation_checkpointing.cpu_checkpointing``).

Sources: deepspeed/runtime/activation_checkpointing/checkpointing.py and, since DeepSpeed 0.19.6,
offload_activations.py (``_ActivationOffloadEngine``). There, a side stream copies into page-locked memory
and back: a layer's input leaves the GPU once the next layer's forward pass has been launched, the last one
not at all, and the one before it is still at hand when backward asks for it. Earlier versions copy to
pageable memory before a layer begins, and back before it is computed again, and wait each time.
Left out: mask and position ids, and page-locking anew once more than 64 layers have used up the pool.
"""

from __future__ import annotations

from simoffload.strategies.forward import COMPUTE
from simoffload.strategies.training.writer import ACTIVATIONS, MicroStepWriter

__all__ = ["ActivationOffload"]

_SIDE_STREAM = (0, 19, 6)
"""DeepSpeed's version with the side stream (commit 858e91e)."""


class ActivationOffload:
    """Copies of layers' inputs of ``size`` [B] each."""

    def __init__(self, *, size: int, layers: int, version: tuple[int, ...]) -> None:
        self._size = size
        self._layers = layers
        self._side_stream = version >= _SIDE_STREAM

    def enter(self, out: MicroStepWriter, layer: int) -> None:
        """Forward comes to a layer."""
        if not self._side_stream:
            out.move([self._size], to_device=False, pinned=False, stream=COMPUTE)
        elif layer >= 2:
            self._offload(out)

    def leave(self, out: MicroStepWriter) -> None:
        """Forward has left the last layer."""
        if self._side_stream and self._layers >= 2:
            self._offload(out)

    def restore(self, out: MicroStepWriter, layer: int) -> None:
        """A layer is about to be computed again."""
        if not self._side_stream:
            out.move([self._size], to_device=True, pinned=False, stream=COMPUTE)
        elif layer < self._layers - 2:
            out.spend(out.costs.copy_call.value)
            out.move([self._size], to_device=True, pinned=True, stream=ACTIVATIONS)
            after = (*out.host_so_far(), *out.so_far(ACTIVATIONS))
            out.add("compute", COMPUTE, label="checkpoint", after=after)

    def _offload(self, out: MicroStepWriter) -> None:
        """The copy runs behind all kernels launched so far."""
        out.spend(out.costs.copy_call.value)
        out.move([self._size], to_device=False, pinned=True, stream=ACTIVATIONS, behind=COMPUTE)
