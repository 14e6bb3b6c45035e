"""DeepSpeed's parameter coordinator, replayed: which tensor is fetched, awaited, prefetched, released when.

The decisions of ``PartitionedParameterCoordinator`` (deepspeed/runtime/zero/partitioned_param_coordinator.py,
read at 0.9.1 and 0.19.6) and of ``AsyncPartitionedParameterSwapper`` (runtime/swap_tensor/
partitioned_param_swapper.py) depend on the order of modules and on the knobs, not on the clock. So one
walk over the modules yields the same sequence of calls that DeepSpeed makes; the caller turns each call
into operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from simoffload.errors import InputError
from simoffload.strategies.coordinator_sink import CoordinatorSink, Layers, Tensor
from simoffload.strategies.ds_config import OffloadSettings

__all__ = ["RECENT_EVENTS", "Coordinator"]

_ABSENT, _IN_FLIGHT, _AVAILABLE = range(3)
_MAX_FETCH_EVENTS = 2  # __max_ongoing_fetch_events, hard-coded in DeepSpeed
RECENT_EVENTS = 1 + _MAX_FETCH_EVENTS
"""Fetch events that the next ones may wait for."""


class Coordinator:
    """State of one rank's coordinator in one forward pass, or forward and backward.

    ``uses`` holds for every module, in the order of the hooks before forward and backward, the indices into
    ``tensors`` of the parameters that it owns. ``warm`` = after the passes in which the trace was
    recorded and the persistent parameters came to the GPU for good; otherwise the first pass after loading.
    ``layers`` says which modules are layers, of which some may be left out: memory and distances count them.
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
        self._live: set[int] = set()  # fetched since, and not yet released
        self._buffered: set[int] = set()  # read since into a swap buffer
        self._pending_reads: list[int] = []
        self._free_buffers = settings.buffer_count
        if warm and settings.prefetch_bucket_size > 0:
            # The first prefetching pass reads persistent tensors once more and keeps their buffers.
            self._free_buffers -= sum(tensor.on_nvme and tensor.persistent for tensor in tensors)
            if layers is not None:
                kept = sum(tensor.on_nvme and tensor.persistent for tensor in layers.tensors)
                self._free_buffers -= layers.left_out * kept
        self._queue = [(index, step) for step, used in enumerate(uses) for index in sorted(used)]
        numels = [sum(tensors[i].numel for i in used) for used in uses]
        if layers is not None and layers.left_out and not layers.again:
            numels[layers.tail_step - 1] += layers.left_out * sum(tensor.numel for tensor in layers.tensors)
        self._before = [0, *accumulate(numels)]
        self._entries = [0, *accumulate(map(len, uses))]
        self._last_use = dict(self._queue)
        self._layers = layers
        self._looked = 0  # entries of the queue that have mattered, its end included
        self.on_gpu = sum(tensor.numel for tensor in tensors if warm and tensor.persistent)
        if layers is not None and warm:
            kept = sum(tensor.numel for tensor in layers.tensors if tensor.persistent)
            self.on_gpu += layers.left_out * kept
        """[elements] that gathered parameters occupy now."""
        self.peak_on_gpu = self.on_gpu
        """[elements] most that gathered parameters occupied at once."""
        self.largest_gather = 0
        """[elements] largest batch that was gathered in one call."""

        self._sink = sink
        self._head = 0
        self._fetched_for: dict[int, int] = {}
        self._registry: dict[int, int] = {}
        self._awaited: set[int] = set()
        self._events = 0
        self._n_available = 0
        self._step = 0

    def run(self) -> None:
        """Walk a forward pass; InputError where DeepSpeed would stop with "Not enough buffers"."""
        while self._step < len(self._uses):
            self.go_on()

    def go_on(self) -> None:
        """Walk through the next module; raises what :meth:`run` raises."""
        step = self._step
        self._sink.enter(step)
        self.fetch()
        self._sink.compute(step)
        self.release(self._uses[step])

    def go_to_layer(self, layer: int) -> None:
        """Walk until ``layer``, or what follows the last, is about to begin; raises what ``run`` raises."""
        assert self._layers is not None
        while self._step < self._layers.first_step + layer * self._layers.steps:
            self.go_on()

    @property
    def reach(self) -> int:
        """Layers, from the first one, of which anything has mattered; more than there are after a look
        behind them."""
        layers, first, each = self._queued()
        if self._looked > first + layers.walked * each:
            return layers.walked + 1
        return -(-(self._looked - first) // each) if each else 0

    def handles(self) -> list[int]:
        """Gathers that are yet to be waited for."""
        return sorted(set(self._registry.values()))

    def state(self, layer: int) -> tuple[object, ...]:
        """Everything that decides what follows once ``layer`` is about to begin, told relative to it.

        It holds as long as nothing behind the layers has mattered (see ``reach``).
        """
        layers, _, _ = self._queued()
        begin = layers.first_tensor + layer * len(layers.tensors)
        return self.seen(lambda index: (0, index) if index < layers.first_tensor else (1, index - begin))

    def looked_past(self, step: int) -> bool:
        """Whether anything from ``step`` on, or that nothing comes there, has mattered."""
        return self._looked > self._entries[step]

    @property
    def ahead(self) -> int:
        """Entries of the queue from the next step on that have mattered."""
        return self._looked - self._entries[self._step]

    def seen(self, place: Callable[[int], tuple[int, int]]) -> tuple[object, ...]:
        """Everything that decides what follows, told relative to the next step, tensors by ``place``."""
        step = self._step
        handles = {handle: number for number, handle in enumerate(self.handles())}
        gathers = [
            (place(index), handles[handle], handle in self._awaited)
            for index, handle in self._registry.items()
        ]
        # Without a trace nothing is fetched ahead: neither the queue, nor what persists, nor how much it
        # is, decides anything.
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

    def _queued(self) -> tuple[Layers, int, int]:
        """The layers, and the entries of the queue before them and of each."""
        layers, entries = self._layers, self._entries
        assert layers is not None
        before = entries[layers.first_step]
        return layers, before, entries[layers.first_step + layers.steps] - before

    def fetch(self) -> None:
        """The hook before the next module, forward or backward; raises what :meth:`run` raises."""
        step, used = self._step, self._uses[self._step]
        self._fetch(used)
        if self._warm:
            self._discard(step, used)
            if self._settings.prefetch_bucket_size > 0:
                self._prefetch_gathers()
                self._prefetch_reads()
        self._step += 1

    def release(self, used: Sequence[int]) -> None:
        """The hook after a module that owns ``used``."""
        self._release(self._step, used)

    def _fetch(self, used: Sequence[int]) -> None:
        missing = [index for index in used if self._status[index] == _ABSENT]
        if missing:
            self._gather(missing, prefetch=False)
        for index in used:
            if index not in self._registry:
                continue
            if self._events > _MAX_FETCH_EVENTS and not self._direct:
                # Without gathers every wait drains the stream, so no older event can be outstanding.
                self._sink.throttle(self._events - 1 - _MAX_FETCH_EVENTS)
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
        handle = self._sink.gather(batch, prefetch=prefetch)
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
            names = ", ".join(self._tensors[index].name for index in indices)
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
        """Drop the module's own tensors from the queue unless an earlier prefetch popped them."""
        expected = sum(1 for index in used if self._fetched_for.get(index, -1) < step)
        for index, use in self._queue[self._head : self._head + expected]:
            self._fetched_for[index] = use
        self._head += expected
        self._look(self._head - 1)

    def _prefetch_gathers(self) -> None:
        settings = self._settings
        limit = min(settings.max_live_parameters - self._n_available, settings.prefetch_bucket_size)
        batch: list[int] = []
        numel = 0
        while self._head < len(self._queue) and numel < limit:
            index, use = self._queue[self._head]
            if self._swapped_out[index]:
                break  # reads are the business of _prefetch_reads; going on would break the order
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
        """Note that an entry of the queue, or its end, has mattered."""
        self._looked = max(self._looked, position + 1)

    def _release(self, next_step: int, used: Sequence[int]) -> None:
        released = 0
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

    def _keeps(self, index: int, next_step: int) -> bool:
        """Whether it is persistent, skipped by prefetch, or needed again within the reuse distance
        (``__params_to_release``)."""
        if self._tensors[index].persistent or self._fetched_for.get(index, -1) > next_step:
            return True
        again = self._last_use[index]
        return (
            again >= next_step
            and self._before[again] - self._before[next_step] < self._settings.max_reuse_distance
        )

    def _return_buffer(self, index: int) -> None:
        if self._tensors[index].on_nvme and not self._swapped_out[index]:
            self._swapped_out[index] = True
            self._buffered.discard(index)
            self._free_buffers += 1
