"""Storage reads and writes of training: at start-up, in the first step, and in every later one.

Adam's moments do not exist before the first step, so that the first step reads only weights and gradients.
Source: DeepSpeed 0.18.3 and 0.19.6 (stage3.py ``_create_fp32_partitions``,
``create_reduce_and_remove_grad_hooks``, ``initialize_optimizer_states``, ``step``; swap_tensor/:
async_swapper.py for gradients, partitioned_optimizer_swapper.py, pipelined_optimizer_swapper.py,
optimizer_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.models import SINGLE
from simoffload.strategies.programs.zero_strategy import check_buffer_size
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.zero.coordinator import Tensor
from simoffload.units import plural

_PARAMS = "parameters"


class Transfer(NamedTuple):
    """A Transfer is a set of files of one kind that one rank reads or writes."""

    tier: str
    what: str
    written: bool
    sizes: tuple[int, ...]
    """Size of each file [B]."""
    times: int = 1
    """Number of times that all files are transferred."""

    @property
    def size(self) -> int:
        """Total size of the transfer [B]."""
        return self.times * sum(self.sizes)

    def full_requests(self, *, block: int, threads: int) -> int:
        """Return the number of requests of a whole ``block`` [B] for the files, with ``threads`` aio threads.

        Each thread takes an equal slice of a file; the remainder of a slice is a smaller request.
        """
        return self.times * sum(threads * ((size // threads) // block) for size in self.sizes)


class StorageStage(NamedTuple):
    """A StorageStage is a stage of the run with its transfers."""

    name: str
    transfers: tuple[Transfer, ...]


Passed = Sequence[tuple[Sequence[Tensor], int]]
"""Partitions that passes read, and the number of passes that read them."""


class RankFiles:
    """RankFiles are the files of one rank: states of sub-groups on storage, gradients, and parameters."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._aligned = state.settings.params.aligned
        self._states = tuple(self._aligned(group.numel * SINGLE) for group in state.on_storage)
        swapper = GradientSwapper.of(state)
        swapped = [tensor for group in state.on_storage for tensor in group.tensors]
        self._gradients = tuple(
            size for one in swapped if swapper is not None and (size := swapper.size(one))
        )
        self._params = self._sizes(tensor for tensor in state.trained if tensor.on_nvme)

    def until_first_step(self, passed: Passed) -> tuple[StorageStage, ...]:
        """Return the stages of start-up and the first step, in which the trace is recorded."""
        master, both = "master weights", "master weights and moments"
        start = (
            self._move_params(written=True),
            self._move_params(written=False),  # as the source of the master weights
            self._move_states(1, master, written=True),
            self._move_params(written=False),  # gathered once while gradient hooks are made
            self._move_states(1, master, written=False),
            self._move_states(1, master, written=True),
            self._move_params(written=True),
        )
        return (
            _stage("initialisation", start),
            _stage("first forward and backward", self._pass_through(passed)),
            _stage("first optimizer step", self._update(self._move_states(1, master, written=False), both)),
        )

    def steady(self, passed: Passed) -> tuple[StorageStage, ...]:
        """Return the storage transfers of any step after the first, stage by stage."""
        both = "master weights and moments"
        return (
            _stage("forward and backward", self._pass_through(passed)),
            _stage("optimizer step", self._update(self._move_states(3, both, written=False), both)),
        )

    def _update(self, read: Transfer, what: str) -> tuple[Transfer, ...]:
        """Return the transfers of an update: ``read`` states are read with the gradients, and all three are
        written."""
        states = self._move_states(3, what, written=True)
        return read, self._move_gradients(written=False), states, self._move_params(written=True)

    def _pass_through(self, passed: Passed) -> tuple[Transfer, ...]:
        tier = self._state.places.weights
        reads = (Transfer(tier, _PARAMS, False, self._sizes(tensors), times) for tensors, times in passed)
        return *reads, self._move_gradients(written=True)

    def _move_states(self, times: int, what: str, *, written: bool) -> Transfer:
        """Return the transfers of a number of states of every sub-group on storage."""
        return Transfer(self._state.places.optimizer, what, written, self._states, times)

    def _move_gradients(self, *, written: bool) -> Transfer:
        return Transfer(self._state.places.optimizer, "gradients", written, self._gradients)

    def _move_params(self, *, written: bool) -> Transfer:
        return Transfer(self._state.places.weights, _PARAMS, written, self._params)

    def _sizes(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        element = self._state.model.dtype_bytes
        numels = [tensor.slice_numel for tensor in tensors]
        aligned = {numel: self._aligned(numel * element) for numel in set(numels)}
        return tuple(aligned[numel] for numel in numels)


def _stage(name: str, transfers: Iterable[Transfer]) -> StorageStage:
    return StorageStage(name, tuple(one for one in transfers if one.sizes and one.times))


def sums_of(
    stages: Sequence[StorageStage],
    measure: Callable[[Transfer], int],
    by: Callable[[Transfer], str] = lambda one: one.tier,
) -> dict[str, tuple[int, int]]:
    """Sum the bytes read and the bytes written, by default for each tier."""
    sums: dict[str, tuple[int, int]] = {}
    for transfer in (one for stage in stages for one in stage.transfers):
        read, written = sums.get(by(transfer), (0, 0))
        size = measure(transfer)
        sums[by(transfer)] = (read, written + size) if transfer.written else (read + size, written)
    return sums


class GradientSink:
    """A GradientSink receives the operations of the gradient swapper; this base ignores them."""

    def to_swap_buffer(self, sizes: Sequence[int], /) -> None:
        """Copy gradients from the GPU into a buffer."""

    def write_file(self, size: int, /, *, tier: str, label: str) -> None:
        """Begin to write a buffer."""

    def wait_writes(self) -> None:
        """Wait until everything is written."""


class GradientSwapper:
    """GradientSwapper collects gradients in single precision in swap buffers, and writes the buffers to
    storage.

    Each buffer is as large as the largest sub-group. A buffer is written when the next gradient does not fit
    into it; if no buffer is free, the host waits for all writes. Partitions smaller than ``smallest`` [B]
    stay in host memory, and of others the remainder after whole units of ``alignment``
    (``_adjust_for_misaligned_lengths``).
    """

    @classmethod
    def of(cls, state: TrainingState) -> GradientSwapper | None:
        """Return the gradient swapper for the settings of a run; None if its gradients stay in memory."""
        if not state.on_storage:
            return None
        params = state.settings.params
        return cls(
            tier=state.places.optimizer,
            buffers=state.settings.buffer_count,
            buffer_numel=state.largest_group,
            alignment=params.alignment,
            smallest=params.min_swap_bytes,
        )

    def __init__(self, *, tier: str, buffers: int, buffer_numel: int, alignment: int, smallest: int) -> None:
        self._tier = tier
        self._buffers = buffers
        self._capacity = -(-buffer_numel * SINGLE // alignment) * alignment
        self._alignment = alignment
        self._smallest = smallest
        self._free = buffers
        self._filled: int | None = None

    @property
    def state(self) -> tuple[int | None, int]:
        """State that determines how the next gradients are handled."""
        return self._filled, self._free

    def size(self, tensor: Tensor) -> int:
        """Return the size of the tensor's gradient that goes to storage [B]."""
        aligned = tensor.slice_numel * SINGLE // self._alignment * self._alignment
        return aligned if aligned >= self._smallest else 0

    def insert(self, sink: GradientSink, tensors: Sequence[Tensor]) -> None:
        """Add the partitions of a reduced bucket to the swap buffers."""
        pending: list[int] = []
        for tensor in tensors:
            size = self.size(tensor)
            if not size:
                continue
            if self._filled is not None and self._filled + size > self._capacity:
                if pending:
                    sink.to_swap_buffer(pending)
                    pending = []
                self._submit(sink)
                if not self._free:
                    sink.wait_writes()
                    self._free = self._buffers
            if self._filled is None:
                self._free -= 1
                self._filled = 0
            self._filled += size
            pending.append(size)
        if pending:
            sink.to_swap_buffer(pending)

    def flush(self, sink: GradientSink) -> None:
        """Write the remaining gradients and wait for them (before the first sub-group of the optimizer
        step)."""
        self._submit(sink)
        sink.wait_writes()
        self._free = self._buffers

    def _submit(self, sink: GradientSink) -> None:
        if self._filled:
            sink.write_file(self._filled, tier=self._tier, label="gradients")
        self._filled = None


def check_buffers(state: TrainingState) -> None:
    """Raise InputError for swap buffers that DeepSpeed finds too small or too few at start-up."""
    settings, params, zero = state.settings, state.settings.params, "strategy.ds_config.zero_optimization"
    check_buffer_size(state.tensors, params)
    at_once = min(len(state.on_storage), 1 + settings.pipeline_read + settings.pipeline_write)
    if settings.buffer_count < 4 * at_once:
        text = (
            f"{settings.buffer_count} buffers; DeepSpeed needs {4 * at_once}, for master, moments "
            f"and gradient of {plural(at_once, 'sub-group')} at work, read ahead, "
            "written behind; it would stop"
        )
        raise InputError.at(f"{zero}.offload_optimizer.buffer_count", text)
