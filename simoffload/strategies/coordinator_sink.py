"""What a coordinator walks through, what it asks of the machine, and when its walk repeats itself.

A walk is decided by the coordinator's state and by what lies ahead in its queue. If, when a layer begins, the
state is the same as when an earlier one began, told relative to each, and nothing behind the layers has
mattered until then, what lies between them comes again and again until a look ahead would reach the end of
the layers. So a model of fewer layers, left out in whole periods, is walked through in its place: with as
many layers as it takes to find the period, to look ahead, and to come to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from simoffload.strategies.ds_config import OffloadSettings

__all__ = ["CoordinatorSink", "Layers", "Period", "State", "Tensor", "cut_tensors", "period_of"]

State = tuple[object, ...]
"""Everything that decides what follows."""


class Tensor(NamedTuple):
    """One parameter tensor of the model and where its slices live."""

    name: str
    numel: int
    slice_numel: int
    """[elements] of one rank's partition, padded to a whole number."""
    on_nvme: bool
    persistent: bool


def cut_tensors(
    numels: Iterable[tuple[str, int]], settings: OffloadSettings, *, ranks: int, dtype_bytes: int
) -> Iterator[Tensor]:
    """Tensors by name and size [elements], in the model's order, as ZeRO-3 cuts them among ``ranks``."""
    persistent = 0
    for name, numel in numels:
        slice_numel = -(-numel // ranks)
        stays = (
            numel <= settings.param_persistence_threshold
            and persistent + numel <= settings.model_persistence_threshold
        )
        persistent += numel if stays else 0
        on_nvme = settings.device == "nvme" and slice_numel * dtype_bytes >= settings.min_swap_bytes
        yield Tensor(name, numel, slice_numel, on_nvme, stays)


class Layers(NamedTuple):
    """Where a walk goes through layers that are alike, and how many of them it leaves out."""

    first_step: int
    steps: int
    """Modules of a layer."""
    first_tensor: int
    tensors: tuple[Tensor, ...]
    """Of a layer."""
    walked: int
    """Layers that are walked through."""
    left_out: int = 0
    """Layers more that the model has."""
    again: bool = False
    """Backward comes to them once more: how far it is to what comes behind them must not matter."""

    @property
    def tail_tensor(self) -> int:
        """Index of the first tensor after the layers."""
        return self.first_tensor + self.walked * len(self.tensors)

    @property
    def tail_step(self) -> int:
        """The first step after the layers."""
        return self.first_step + self.walked * self.steps


class CoordinatorSink(Protocol):
    """What the coordinator asks of the machine, in the order in which DeepSpeed's host thread asks it."""

    def enter(self, step: int, /) -> None:
        """The pre-forward hook of module ``step`` begins."""

    def read(self, tensors: Sequence[Tensor], /) -> None:
        """Submit asynchronous reads from storage into swap buffers."""

    def wait_reads(self) -> None:
        """The host waits for every read of its handle."""

    def gather(self, tensors: Sequence[Tensor], /, *, prefetch: bool) -> int:
        """Bring partitions to the GPU and all-gather them; returns a handle."""

    def wait(self, handle: int, /) -> None:
        """Wait for a gather (the first wait on its handle only)."""

    def throttle(self, event: int, /) -> None:
        """The host waits for the ``event``-th fetch event of this pass."""

    def fetch_event(self) -> None:
        """A fetch event is recorded on the all-gather stream."""

    def compute(self, step: int, /) -> None:
        """The module's kernels are launched."""

    def release(self, count: int, /) -> None:
        """The post-forward hook has let ``count`` parameters go."""


class NullSink:
    """Actions that do nothing, to walk a pass for its peaks."""

    def enter(self, _step: int, /) -> None: ...
    def read(self, _tensors: Sequence[Tensor], /) -> None: ...
    def wait_reads(self) -> None: ...
    def gather(self, _tensors: Sequence[Tensor], /, **_how: bool) -> int:
        return 0

    def wait(self, _handle: int, /) -> None: ...
    def throttle(self, _event: int, /) -> None: ...
    def fetch_event(self) -> None: ...
    def compute(self, _step: int, /) -> None: ...
    def release(self, _count: int, /) -> None: ...


class Period(NamedTuple):
    """A state that comes again: at which layer first, and after how many."""

    first: int
    layers: int


def period_of(states: Iterable[State | None]) -> Period | None:
    """The first of ``states`` that was met before; None if none is, or once there is no state."""
    met: dict[State, int] = {}
    for layer, state in enumerate(states):
        if state is None:
            return None
        if state in met:
            return Period(met[state], layer - met[state])
        met[state] = layer
    return None
