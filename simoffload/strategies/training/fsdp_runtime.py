"""FSDP's runtime, replayed: which unit is brought to the GPU, freed and reduced when.

The decisions of its hooks depend on the order of units and on the settings, not on time. Source:
torch/distributed/fsdp/_runtime_utils.py, _flat_param.py and _limiter_utils.py of PyTorch 2.13
(``FullyShardedDataParallel``); the tests compare with real runs.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

Prefetch = Literal["pre", "post", "none"]
ROOT = -1
"""Number of the unit that owns all tensors outside the layers; the unit of a layer has the layer's number."""
_IN_FLIGHT = 2  # _max_num_inflight_all_gathers, hard-coded in PyTorch


class FsdpOptions(NamedTuple):
    """FsdpOptions are FSDP's settings, resolved for one run."""

    cpu_offload: bool
    backward_prefetch: Prefetch
    limit_all_gathers: bool
    reshard_after_forward: bool
    element: int
    """Size of an element in the type in which parameters are gathered and used [B]."""
    shard_element: int
    """Size of an element of a shard and its gradient [B]."""


class FsdpSink:
    """An FsdpSink receives FSDP's operations in the order of the host thread; this base ignores them."""

    def unshard(self, unit: int, /) -> None:
        """Copy the shard to the GPU and cast it."""

    def limit(self, event: int, /) -> None:
        """Let the host wait until the memory of an earlier :meth:`free` is available; ``event`` is its return
        value."""

    def gather(self, unit: int, /) -> None:
        """All-gather the shards that were copied."""

    def need(self, unit: int, /) -> None:
        """Let the kernels wait for the unit."""

    def free(self, _unit: int, /) -> int:
        """Free memory when all kernels launched so far are done; return an identifier of this point."""
        return -1

    def reduce(self, unit: int, /) -> None:
        """Reduce the unit's gradients, and keep them in the memory of the optimizer."""


class FsdpRuntime:
    """FsdpRuntime is the state of FSDP on one rank; before ``begin`` it makes no calls."""

    def __init__(self, *, layers: int, options: FsdpOptions, sharded: bool) -> None:
        self._layers = layers
        self._options = options
        self._sharded = sharded
        self._unsharded: set[int] = set()
        self._prefetched: set[int] = set()
        self._free_events: deque[int | None] = deque()
        self._sink = FsdpSink()

    def begin(self, sink: FsdpSink) -> None:
        """Begin to send calls to a sink; all earlier calls count as finished."""
        self._sink = sink
        self._free_events = deque([None] * len(self._free_events))

    def micro_step(self, *, boundary: bool) -> None:
        """Run all hooks of forward and backward."""
        self.forward()
        self.pre_backward(ROOT)
        for layer in reversed(range(self._layers)):
            self.pre_backward(layer)
            self.post_backward(layer, boundary=boundary)
        self.post_backward(ROOT, boundary=boundary)

    def forward(self) -> None:
        """Run all hooks of a forward pass."""
        self.pre_forward(ROOT)
        for layer in range(self._layers):
            self.pre_forward(layer)
            self.post_forward(layer)

    # -- hooks ----------------------------------------------------------------------------------

    def pre_forward(self, unit: int) -> None:
        """Run the hook before a unit in forward."""
        self._unshard(unit)
        self._sink.need(unit)

    def post_forward(self, unit: int) -> None:
        """Run the hook after a unit in forward; the root stays gathered for backward."""
        if unit != ROOT and self._options.reshard_after_forward:
            self._reshard(unit)

    def pre_backward(self, unit: int) -> None:
        """Run the hook before gradients of a unit are computed."""
        if unit in self._prefetched:
            self._prefetched.discard(unit)
        else:
            self._unshard(unit)
        self._sink.need(unit)
        if self._options.backward_prefetch == "pre":
            self._prefetch(unit)

    def post_backward(self, unit: int, *, boundary: bool) -> None:
        """Handle the complete gradients of a unit; within ``no_sync`` (``boundary`` is false) they stay
        unsharded."""
        if boundary or self._options.reshard_after_forward:
            self._reshard(unit)
        if self._options.backward_prefetch == "post" and unit != ROOT:
            self._prefetch(unit)
        if boundary:
            self._sink.reduce(unit)

    # -- what they have in common ---------------------------------------------------------------

    def _prefetch(self, unit: int) -> None:
        following = self._layers - 1 if unit == ROOT else unit - 1
        if following >= 0:
            self._unshard(following)
            self._prefetched.add(following)

    def _unshard(self, unit: int) -> None:
        # With offloading a shard is copied again even if the unit is whole (pre_unshard).
        unsharded = self._sharded and unit in self._unsharded
        if self._options.cpu_offload or not unsharded:
            self._sink.unshard(unit)
        if self._options.limit_all_gathers and len(self._free_events) >= _IN_FLIGHT:
            event = self._free_events.popleft()
            if event is not None:
                self._sink.limit(event)
        if self._sharded and not unsharded:
            self._sink.gather(unit)
        self._unsharded.add(unit)

    def _reshard(self, unit: int) -> None:
        self._unsharded.discard(unit)
        if self._sharded:
            point = self._sink.free(unit)
            if self._options.limit_all_gathers:
                self._free_events.append(point)
