"""A micro-step's gradients and checkpoints, and the replay that writes forward and backward with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simoffload.strategies.coordinator import State, Tensor
from simoffload.strategies.forward import COMPUTE
from simoffload.strategies.replay import LayerStack, Replay
from simoffload.strategies.streams import HOST
from simoffload.strategies.trace import Event
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.training.writer import ACTIVATIONS, MicroStepWriter

__all__ = ["ActivationOffload", "Bucket", "MicroStepReplay"]


class Bucket:
    """Gradients that wait until there are ``size`` [elements] of them, which ``reduce`` then gets."""

    def __init__(
        self,
        size: int,
        reduce: Callable[[Sequence[Tensor]], None],
        *,
        gradient: Callable[..., None] | None = None,
    ) -> None:
        self._size = size
        self._reduce = reduce
        self._gradient = gradient
        self._held: list[Tensor] = []
        self._numel = 0

    def add(self, tensor: Tensor) -> None:
        """A gradient is complete (``reduce_independent_p_g_buckets_and_remove_grads``)."""
        if self._held and self._numel + tensor.numel > self._size:
            self.flush()
        if self._gradient is not None:
            self._gradient(tensor, contiguous=self._numel + tensor.numel <= self._size)
        self._held.append(tensor)
        self._numel += tensor.numel

    def add_all(self, tensors: Sequence[Tensor]) -> None:
        """Several gradients are complete, one after the other."""
        for tensor in tensors:
            self.add(tensor)

    @property
    def state(self) -> tuple[object, ...]:
        """What is held."""
        return tuple(self._held)

    def flush(self) -> None:
        """Reduce what is held."""
        if self._held:
            self._reduce(self._held)
        self._held, self._numel = [], 0


class MicroStepReplay(Replay):
    """One micro-step under the settings, whose trace is known."""

    _out: MicroStepWriter

    def __init__(self, stack: LayerStack, state: TrainingState, out: MicroStepWriter) -> None:
        super().__init__(stack, state.fetching, out)
        self._bucket = Bucket(state.settings.reduce_bucket_size, out.reduce, gradient=out.gradient)
        self._backward = False

    def backward(self) -> bool:
        """Write the backward pass; forward is gone through without writing.

        Return whether the layers that are left out of both are like those before them.
        """
        right = True
        if self._coordinator is not None:
            right = self._passes.go(self._hook, backward=False, skip=self._stack.forward)
        self._gate.on = self._backward = True
        right &= self._write(self._back, backward=True)
        self._bucket.flush()
        self._out.end_backward()
        return right

    def _state(self) -> State:
        """Return what decides how things are written down, and which gradients are reduced together."""
        return (*super()._state(), self._bucket.state)

    def _back(self, event: Event) -> None:
        self._happen(event)
        if self._out.reduces:
            self._bucket.add_all(self._stack.parameters.completed(event))

    def _happen(self, event: Event) -> None:
        super()._happen(event)
        if event.kind == "back":
            self._out.launch_backward(event.instance.module)
        elif event.kind == "checkpoint":
            self._out.checkpoint(event.instance.layer, again=self._backward)


_SIDE_STREAM = (0, 19, 6)
"""DeepSpeed's version with the side stream (commit 858e91e)."""


class ActivationOffload:
    """Copies of layers' inputs of ``size`` [B] each (``activation_checkpointing.cpu_checkpointing``).

    Sources: deepspeed/runtime/activation_checkpointing/checkpointing.py and, since DeepSpeed 0.19.6,
    offload_activations.py (``_ActivationOffloadEngine``). There, a side stream copies into page-locked
    memory and back: a layer's input leaves the GPU once the next layer's forward pass has been launched, the
    last one not at all, and the one before it is still at hand when backward asks for it. Earlier versions
    copy to pageable memory before a layer begins, and back before it is computed again, and wait each time.
    Left out: mask and position ids, and page-locking anew once more than 64 layers have used up the pool.
    """

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
            after = out.so_far(HOST, ACTIVATIONS)
            out.add("compute", COMPUTE, label="checkpoint", after=after)

    def _offload(self, out: MicroStepWriter) -> None:
        """The copy runs behind all kernels launched so far."""
        out.spend(out.costs.copy_call.value)
        out.move([self._size], to_device=False, pinned=True, stream=ACTIVATIONS, behind=COMPUTE)
