"""DeepSpeed's parameter coordinator, replayed: which tensor is fetched, awaited and released when.

The decisions of ``PartitionedParameterCoordinator`` (deepspeed/runtime/zero/partitioned_param_coordinator.py,
read at 0.9.1 and 0.19.6) and of ``AsyncPartitionedParameterSwapper`` (runtime/swap_tensor/
partitioned_param_swapper.py) depend on the order of modules and on the settings, not on time. The replay
therefore makes the same sequence of calls as DeepSpeed; a :class:`CoordinatorSink` turns each call into
operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.strategies.ds_config import OffloadSettings

State = tuple[object, ...]
"""State of the coordinator, which determines all its further decisions."""


_ABSENT, _IN_FLIGHT, _AVAILABLE = range(3)
_FINISHED = -1
"""Handle of gathers that were finished when the sink began."""
_NAMED = 3
"""Number of tensors that an error message names."""
_MAX_FETCH_EVENTS = 2  # __max_ongoing_fetch_events, hard-coded in DeepSpeed
RECENT_EVENTS = 1 + _MAX_FETCH_EVENTS
"""Number of the most recent fetch events for which the host may still have to wait."""


class Tensor(NamedTuple):
    """A Tensor is one parameter tensor of the model, with the location of its partitions."""

    name: str
    numel: int
    slice_numel: int
    """[elements] of one rank's partition, padded to a whole number."""
    on_nvme: bool
    persistent: bool


def cut_tensors(
    numels: Iterable[tuple[str, int]], settings: OffloadSettings, *, ranks: int, dtype_bytes: int
) -> Iterator[Tensor]:
    """Partition tensors, given by name and size [elements] in the model's order, as ZeRO-3 does."""
    persistent = 0
    for name, numel in numels:
        slice_numel = -(-numel // ranks)
        stays = (
            numel <= settings.stage3_param_persistence_threshold
            and persistent + numel <= settings.stage3_model_persistence_threshold
        )
        persistent += numel if stays else 0
        on_nvme = settings.device == "nvme" and slice_numel * dtype_bytes >= settings.min_swap_bytes
        yield Tensor(name, numel, slice_numel, on_nvme, stays)


def check_buffer_size(tensors: Iterable[Tensor], settings: OffloadSettings) -> None:
    """Raise InputError if DeepSpeed would find the swap buffers too small at start-up."""
    stored = (tensor for tensor in tensors if tensor.on_nvme)
    largest = max(stored, key=lambda tensor: tensor.slice_numel, default=None)
    if largest is not None and largest.slice_numel > settings.buffer_size:
        raise InputError.at(
            "strategy.ds_config.zero_optimization.offload_param.buffer_size",
            f"DeepSpeed would stop here: More elements {largest.slice_numel} than buffer size "
            f"{settings.buffer_size} ({largest.name}); set buffer_size to at least {largest.slice_numel} "
            "elements",
        )


class Layers(NamedTuple):
    """Layers are the identical layers of a replayed trace, and how many are not replayed."""

    first_tensor: int
    """Index of the first tensor of the first layer."""
    tensors: tuple[Tensor, ...]
    """Tensors that one layer owns."""
    walked: int
    """Number of layers in the replayed trace."""
    left_out: int = 0
    """Number of further layers of the model that are not replayed."""
    last_hook: int = -1
    """Index of the last hook of a layer in a forward pass: reuse distances across it include the layers that
    are not replayed. -1 in training, where backward uses the layers again and no distance may extend across
    them."""

    @property
    def tail_tensor(self) -> int:
        """Index of the first tensor after the layers."""
        return self.first_tensor + self.walked * len(self.tensors)

    def left_out_numel(self, *, persistent: bool = False) -> int:
        """Return the size of the layers left out [elements], or only of their ``persistent`` tensors."""
        counted = (tensor.numel for tensor in self.tensors if tensor.persistent or not persistent)
        return self.left_out * sum(counted)


class CoordinatorSink:
    """A CoordinatorSink receives the coordinator's calls in their order; this base ignores them."""

    def read(self, tensors: Sequence[Tensor], /) -> None:
        """Submit asynchronous reads from storage into swap buffers."""

    def wait_reads(self) -> None:
        """Let the host wait for all reads of the aio handle."""

    def gather(self, _handle: int, _tensors: Sequence[Tensor], /, *, prefetch: bool) -> None:
        """Bring partitions to the GPU and all-gather them; ``wait`` gets the handle."""

    def wait(self, handle: int, /) -> None:
        """Wait for a gather; called once for each handle."""

    def throttle(self) -> None:
        """Let the host wait for the first of the last three fetch events (``RECENT_EVENTS``)."""

    def fetch_event(self) -> None:
        """Record a CUDA event on the all-gather stream: parameters of a module were fetched."""

    def release(self, count: int, /) -> None:
        """Note that the hook after a module has released ``count`` parameters."""


class Coordinator:
    """A Coordinator is the parameter coordinator of one rank during a forward pass, with or without backward.

    ``uses`` lists, for every hook before a module in the order in which the hooks fire, the indices into
    ``tensors`` of the module's parameters. ``warm`` means that the trace is recorded and the persistent
    parameters stay on the GPU; otherwise it is the first pass after loading. ``layers`` describes the
    identical layers, of which some may not be replayed; memory and reuse distances include those as well. The
    caller calls :meth:`fetch` and :meth:`release` for each hook in order.
    """

    def __init__(
        self,
        *,
        tensors: Sequence[Tensor],
        uses: Sequence[Sequence[int]],
        settings: OffloadSettings,
        ranks: int,
        warm: bool,
        sink: CoordinatorSink,
        layers: Layers | None = None,
    ) -> None:
        self._tensors = tensors
        self._uses = uses
        self._settings = settings
        self._direct = settings.copies_directly(ranks)
        self._warm = warm
        self._status = [_AVAILABLE if warm and tensor.persistent else _ABSENT for tensor in tensors]
        self._swapped_out = [tensor.on_nvme and not (warm and tensor.persistent) for tensor in tensors]
        self._live: set[int] = set()  # fetched and not yet released
        self._buffered: set[int] = set()  # in a swap buffer
        self._pending_reads: list[int] = []
        self._free_buffers = settings.buffer_count
        if warm and settings.stage3_prefetch_bucket_size > 0:
            # The first prefetching pass reads persistent tensors once more and keeps their buffers.
            self._free_buffers -= sum(tensor.on_nvme and tensor.persistent for tensor in tensors)
            if layers is not None:
                kept = sum(tensor.on_nvme and tensor.persistent for tensor in layers.tensors)
                self._free_buffers -= layers.left_out * kept
        self._queue = [(index, step) for step, used in enumerate(uses) for index in sorted(used)]
        numels = [sum(tensors[i].numel for i in used) for used in uses]
        if layers is not None and layers.last_hook >= 0:
            numels[layers.last_hook] += layers.left_out_numel()
        self._before = [0, *accumulate(numels)]
        self._entries = [0, *accumulate(map(len, uses))]
        self._last_use = dict(self._queue)
        self._looked = 0  # entries of the queue, including its end, on which decisions have depended
        self.on_gpu = sum(tensor.numel for tensor in tensors if warm and tensor.persistent)
        if layers is not None and warm:
            self.on_gpu += layers.left_out_numel(persistent=True)
        """[elements] of the parameters that are gathered on the GPU now."""
        self.peak_on_gpu = self.on_gpu
        """[elements] of the parameters that were gathered at the same time, at most."""
        self.largest_gather = 0
        """[elements] of the parameters that were gathered in one call, at most."""

        self._sink = sink
        self._head = 0
        self._fetched_for: dict[int, int] = {}
        self._registry: dict[int, int] = {}
        self._awaited: set[int] = set()
        self._gathers = 0
        self._events = 0
        self._n_available = 0
        self._step = 0

    def restart(self) -> None:
        """Begin another pass, for which all work so far is finished."""
        self._events = 0
        self._registry, self._awaited = dict.fromkeys(self._registry, _FINISHED), {_FINISHED}

    def handles(self) -> list[int]:
        """Return the handles of the gathers that have not been waited for."""
        return sorted(set(self._registry.values()))

    def looked_past(self, step: int) -> bool:
        """Return whether a decision depended on the queue's entries of ``step`` or later, or its end."""
        return self._looked > self._entries[step]

    @property
    def ahead(self) -> int:
        """Number of queue entries after the current step on which decisions have depended so far."""
        return self._looked - self._entries[self._step]

    def seen(self, place: Callable[[int], tuple[int, int]]) -> tuple[object, ...]:
        """Return the state that determines the next decisions, relative to the current step.

        ``place`` gives the position of a tensor relative to the current layer.
        """
        step = self._step
        handles = {handle: number for number, handle in enumerate(self.handles())}
        gathers = [
            (place(index), handles[handle], handle in self._awaited)
            for index, handle in self._registry.items()
        ]
        # Without a trace nothing is prefetched: neither the queue nor the persistent tensors affect
        # the decisions.
        live = self._live if self._warm else {i for i in self._live if not self._tensors[i].persistent}
        return (
            self._free_buffers,
            self._n_available if self._warm else 0,
            min(self._events, RECENT_EVENTS),
            self._head - self._entries[step] if self._warm else 0,
            tuple(sorted((place(index), self._status[index]) for index in live)),
            tuple(sorted(map(place, self._buffered))),
            tuple(map(place, self._pending_reads)),
            tuple(sorted(gathers)),
            tuple(sorted((place(i), use - step) for i, use in self._fetched_for.items() if use >= step)),
        )

    def fetch(self) -> None:
        """Perform the hook before the next module, in forward or backward.

        Raises InputError where DeepSpeed would stop with "Not enough buffers".
        """
        step, used = self._step, self._uses[self._step]
        self._fetch(used)
        if self._warm:
            self._discard(step, used)
            if self._settings.stage3_prefetch_bucket_size > 0:
                self._prefetch_gathers()
                self._prefetch_reads()
        self._step += 1

    def _fetch(self, used: Sequence[int]) -> None:
        missing = [index for index in used if self._status[index] == _ABSENT]
        if missing:
            self._gather(missing, prefetch=False)
        for index in used:
            if index not in self._registry:
                continue
            if self._events > _MAX_FETCH_EVENTS and not self._direct:
                # Without gathers every wait empties the stream, so no older event can be outstanding.
                self._sink.throttle()
            handle = self._registry.pop(index)
            if handle not in self._awaited:
                self._awaited.add(handle)
                self._sink.wait(handle)
            self._status[index] = _AVAILABLE
            self._sink.fetch_event()
            self._events += 1

    def _gather(self, indices: Sequence[int], *, prefetch: bool) -> None:
        self._bring_to_memory(indices)
        batch = [self._tensors[index] for index in sorted(indices)]
        handle, self._gathers = self._gathers, self._gathers + 1
        self._sink.gather(handle, batch, prefetch=prefetch)
        numel = sum(tensor.numel for tensor in batch)
        self._n_available += numel
        self.on_gpu += numel
        self.peak_on_gpu = max(self.peak_on_gpu, self.on_gpu)
        self.largest_gather = max(self.largest_gather, numel)
        for index in indices:
            self._status[index] = _IN_FLIGHT
            self._live.add(index)
            self._registry[index] = handle
            if self._tensors[index].persistent:
                self._return_buffer(index)

    def _bring_to_memory(self, indices: Sequence[int]) -> None:
        absent = [index for index in indices if self._swapped_out[index]]
        if absent:
            self._read(absent)
        if self._pending_reads and (absent or any(index in self._pending_reads for index in indices)):
            self._sink.wait_reads()
            self._pending_reads.clear()

    def _read(self, indices: Sequence[int]) -> None:
        if len(indices) > self._free_buffers:
            names = ", ".join(self._tensors[index].name for index in indices[:_NAMED])
            names += ", ..." if len(indices) > _NAMED else ""
            count = self._settings.buffer_count
            message = (
                f"DeepSpeed would stop here: Not enough buffers {max(0, self._free_buffers)} for swapping "
                f"{len(indices)} ({names}); raise offload_param.buffer_count (now {count}), or lower "
                "stage3_max_reuse_distance or stage3_param_persistence_threshold, which keep buffers"
            )
            key = "strategy.ds_config.zero_optimization.offload_param.buffer_count"
            raise InputError.at(key, message)
        self._free_buffers -= len(indices)
        for index in indices:
            self._swapped_out[index] = False
            self._buffered.add(index)
        self._pending_reads.extend(indices)
        self._sink.read([self._tensors[index] for index in indices])

    def _discard(self, step: int, used: Sequence[int]) -> None:
        """Remove the module's own tensors from the queue, unless an earlier prefetch has removed them."""
        expected = sum(1 for index in used if self._fetched_for.get(index, -1) < step)
        for index, use in self._queue[self._head : self._head + expected]:
            self._fetched_for[index] = use
        self._head += expected
        self._look(self._head - 1)

    def _prefetch_gathers(self) -> None:
        settings = self._settings
        limit = min(
            settings.stage3_max_live_parameters - self._n_available, settings.stage3_prefetch_bucket_size
        )
        batch: list[int] = []
        numel = 0
        while self._head < len(self._queue) and numel < limit:
            index, use = self._queue[self._head]
            if self._swapped_out[index]:
                break  # reads are handled by _prefetch_reads; continuing would change the order
            self._head += 1
            self._fetched_for[index] = max(self._fetched_for.get(index, -1), use)
            if self._status[index] == _ABSENT and index not in batch:
                batch.append(index)
                numel += self._tensors[index].numel
        self._look(self._head)
        if batch:
            self._gather(batch, prefetch=True)

    def _prefetch_reads(self) -> None:
        if self._settings.device != "nvme":
            return
        in_flight = sum(self._tensors[index].numel for index in self._registry)
        considered = 0
        batch: list[int] = []
        for position in range(self._head, len(self._queue)):
            index = self._queue[position][0]
            if considered > 2 * in_flight or len(batch) >= max(0, self._free_buffers):
                self._look(position)
                break
            if self._swapped_out[index] and index not in batch:
                batch.append(index)
            considered += self._tensors[index].numel
        else:
            self._look(len(self._queue))
        if batch:
            self._read(batch)

    def _look(self, position: int) -> None:
        """Note that a decision depended on an entry of the queue, or on its end."""
        self._looked = max(self._looked, position + 1)

    def release(self, used: Sequence[int]) -> None:
        """Perform the hook after a module whose parameters are the tensors ``used``."""
        released, next_step = 0, self._step
        for index in used:
            if self._status[index] != _AVAILABLE or (self._warm and self._keeps(index, next_step)):
                continue
            self._status[index] = _ABSENT
            self._live.discard(index)
            self._n_available -= self._tensors[index].numel
            self.on_gpu -= self._tensors[index].numel
            self._return_buffer(index)
            released += 1
        self._sink.release(released)

    def leave(self) -> None:
        """Perform the hook after the module whose parameters were fetched last."""
        self.release(self._uses[self._step - 1])

    def _keeps(self, index: int, next_step: int) -> bool:
        """Return whether a tensor stays gathered (``__params_to_release``): it is persistent, was prefetched
        for a later use, or is used again within the reuse distance."""
        if self._tensors[index].persistent or self._fetched_for.get(index, -1) > next_step:
            return True
        again = self._last_use[index]
        return (
            again >= next_step
            and self._before[again] - self._before[next_step] < self._settings.stage3_max_reuse_distance
        )

    def _return_buffer(self, index: int) -> None:
        if self._tensors[index].on_nvme and not self._swapped_out[index]:
            self._swapped_out[index] = True
            self._buffered.discard(index)
            self._free_buffers += 1
