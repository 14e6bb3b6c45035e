"""What a coordinator asks of the machine, and the tensors that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from simoffload.strategies.ds_config import OffloadSettings

__all__ = ["Actions", "Tensor"]


class Tensor(NamedTuple):
    """One parameter tensor of the model and where its slices live."""

    name: str
    numel: int
    slice_numel: int
    """[elements] of one rank's partition, padded to a whole number."""
    on_nvme: bool
    persistent: bool

    @classmethod
    def cut(
        cls,
        name: str,
        numel: int,
        settings: OffloadSettings,
        *,
        persistent: int,
        ranks: int,
        dtype_bytes: int,
    ) -> Tensor:
        """A tensor as ZeRO-3 cuts it; ``persistent`` [elements] of those before it stay on the GPU."""
        slice_numel = -(-numel // ranks)
        stays = (
            numel <= settings.param_persistence_threshold
            and persistent + numel <= settings.model_persistence_threshold
        )
        on_nvme = settings.device == "nvme" and slice_numel * dtype_bytes >= settings.min_swap_bytes
        return cls(name, numel, slice_numel, on_nvme, stays)


class Actions(Protocol):
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


class Idle:
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
