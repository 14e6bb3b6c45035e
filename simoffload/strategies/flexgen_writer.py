"""Passes under FlexGen: a block of GPU batches goes through one slot after the other.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/flex_opt.py`` (``generation_loop_normal``,
``generation_loop_overlap_single_batch``, ``generation_loop_overlap_multi_batch``) and ``pytorch_backend.py``
(``general_copy``, ``copy_worker_func``, ``mha_gen``).

For each slot and GPU batch the host thread begins the copy of the next slot's weights (only with the first
batch), of the next cache, and of the last and the next hidden states; it launches the kernels, stores the
cache of the batch before, and then waits for the whole GPU and all copy threads. So a slot takes as long as
the slowest of them, and weights that take longer than one GPU batch delay it although the link is free during
the others. Hidden states are copied on the stream of the kernels.

Attention on the CPU runs in the host thread, and so does the cast of keys and values to single precision
before it. ``flexgen_copies`` states how bytes are moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from simoffload.models import Module
from simoffload.schedule import Schedule
from simoffload.strategies.cpu_attention import ONE_QUERY
from simoffload.strategies.flexgen_copies import (
    COMPUTE,
    COPY_CALL,
    LOAD_CACHE,
    LOAD_WEIGHT,
    STORE_CACHE,
    CopyJob,
    CopyWriter,
)
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.streams import HOST
from simoffload.strategies.timing import picoseconds

if TYPE_CHECKING:
    from simoffload.strategies.flexgen_layout import BlockSlot, Home
    from simoffload.strategies.flexgen_plan import FlexGenPlan

_SINGLE = 4
"""[B] of a number in single precision, in which the CPU attends."""
_CPU_EXPANDED = 23
"""[B] moved for each element that ``decompress`` writes in single precision on the CPU: two shifts or masks
of packed bytes (1 each), two copies of the halves into the result (2.5 each), a division and an addition in
place (8 each)."""
_CPU_CUT = 8
"""[B] moved for each element that is copied without the padding of its head (``contiguous``)."""


class _Operations(NamedTuple):
    """_Operations are PyTorch operations per call, counted in FlexGen's code."""

    prefill: int
    decode: int


_OPERATIONS = {
    "input embedding": _Operations(10, 10),
    "attention": _Operations(36, 35),
    "MLP": _Operations(5, 5),
    "layer": _Operations(41, 40),
    "output embedding": _Operations(5, 5),
}
_EXPAND_CALL, _SQUEEZE_CALL, _MASK_CALL = 14, 18, 3
"""Numbers of PyTorch operations that write a tensor in full, that compress one, and that extend a mask."""


class FlexGenWriter(CopyWriter):
    """A FlexGenWriter writes one pass of a block: the prefill, or a decode step."""

    def __init__(self, plan: FlexGenPlan, forward: ForwardPass) -> None:
        super().__init__(plan, name=forward.name)
        self._plan, self._options = plan, plan.options
        self._batch = plan.of_gpu_batch(forward.batch)
        self._prefill = plan.is_prefill(self._batch)
        self._count = plan.options.gpu_batches
        slots = plan.slots
        self._order = (slots.first, *slots.layer * slots.layers, slots.last)
        timing = plan.timings.timing(self._batch)
        self._times: Mapping[Module, int] = {one: timing.compute(one) for one in plan.modules}
        self._gpu_times = {slot: plan.compute_ps(slot, self._times, self._batch) for slot, _ in slots.kinds}
        tokens = sum(one.number * one.new_tokens for one in self._batch)
        self._new = tokens * plan.model.hidden_size
        self._hidden = self._new * plan.model.dtype_bytes
        overlap = plan.options.overlap
        self._weights = LOAD_WEIGHT if overlap else COMPUTE
        self._loads = LOAD_CACHE if overlap else COMPUTE
        self._stores = STORE_CACHE if overlap else COMPUTE

    def written(self) -> Schedule:
        """Return the schedule of the pass."""
        layers, width = self._plan.slots.layers, len(self._plan.slots.layer)
        self.builder.segment(self._order[0].name)
        self.calls(self._count * _MASK_CALL)
        self._slot(0)
        for layer in range(layers):
            if 1 < layer < layers - 1:  # as the second one
                self.builder.again()
                continue
            self.builder.segment("layer")
            for part in range(width):
                self._slot(1 + layer * width + part)
        self.builder.segment(self._order[-1].name)
        self._slot(len(self._order) - 1)
        self.synchronize()
        return self.build()

    def _slot(self, number: int) -> None:
        """Write a slot for all GPU batches of the block."""
        self.label = self._order[number].name
        if not self._options.overlap:
            self._one_by_one(number)
        elif self._count == 1:
            self._whole_block(number)
        else:
            for batch in range(self._count):
                self._overlapped(number, batch)
        self.flush()

    # -- the three loops ------------------------------------------------------------------------

    def _overlapped(self, number: int, batch: int) -> None:
        """Write a slot for one of several GPU batches (``generation_loop_overlap_multi_batch``)."""
        if batch == 0:
            self._load_weights(number + 1)
        before = number if batch else number - 1
        after = number if batch + 1 < self._count else number + 1
        self._load_cache(after)
        self._store_hidden(before)
        self._load_hidden(after)
        self._compute(number)
        self._store_cache(before)
        self.synchronize()

    def _whole_block(self, number: int) -> None:
        """Write a slot for a block of one GPU batch (``generation_loop_overlap_single_batch``)."""
        self._load_weights(number + 1)
        self._load_cache(number + 1)
        self._load_hidden(number)
        self._compute(number)
        self._store_cache(number - 1)
        self._store_hidden(number)
        self.synchronize()

    def _one_by_one(self, number: int) -> None:
        """Write a slot without overlap (``generation_loop_normal``): all on one stream, which the host awaits
        only where it reads the new tokens."""
        self._load_weights(number)
        for _ in range(self._count):
            self._load_cache(number)
            self._load_hidden(number)
            self._compute(number)
            self._store_hidden(number)
            if number == len(self._order) - 1:
                self.host_waits(COMPUTE)
            self._store_cache(number)

    # -- what they do ---------------------------------------------------------------------------

    def _load_weights(self, number: int) -> None:
        """Bring the weights of a slot to the GPU; after the last slot come those of the first."""
        slot = self._order[number % len(self._order)]
        pinned: list[int] = []
        for tensor in slot.loaded:
            if tensor.home == "cpu" and tensor.pinned:
                pinned += tensor.sizes
            elif tensor.home == "cpu":
                for size in tensor.sizes:
                    self.to_gpu(self._weights, size, "weights")
            else:
                self.calls(COPY_CALL * len(tensor.sizes))
                for size in tensor.sizes:
                    self.submit(CopyJob("weights", read=size, traffic=2 * size, to_gpu=size))
        if pinned:
            self.calls(COPY_CALL * len(pinned))
            self.copy(self._weights, pinned, to_device=True, label="weights")

    def _load_cache(self, number: int) -> None:
        """Bring the cache of a GPU batch to where attention is computed; a prefill has none."""
        if self._prefill or not self._order[number % len(self._order)].attends:
            return
        self.calls(2 * COPY_CALL)
        if self._options.cpu_attention:
            self._load_cache_for_cpu()
            return
        parts = self._plan.cache_parts(self._batch)
        if parts.gpu and parts.offloaded:
            size = 2 * self._stored(parts.gpu)
            duration = picoseconds(2 * size / self.machine.accelerator.hbm_rate)
            self.flush()
            self.add("copy", self._loads, fixed=duration, label="cache", after=self.so_far(HOST))
        for size in self._pair(parts.cpu):
            self.to_gpu(self._loads, size, "cache", cache="dram")
        for size in self._pair(parts.disk):
            self.submit(CopyJob("cache", read=size, traffic=2 * size, to_gpu=size, cache=self._disk))

    def _load_cache_for_cpu(self) -> None:
        """Cast keys and values to single precision in host memory, or only bring them there if they are
        compressed; what is on the GPU is attended to there if the cache is divided."""
        packed = self._options.compress_cache
        parts = self._plan.cache_parts(self._batch, less=0 if packed else 1)
        cast = 1 if packed else _SINGLE // self._plan.model.dtype_bytes
        if parts.gpu and not parts.offloaded:
            for size in self._pair(parts.gpu):
                self.submit(CopyJob("cache", from_gpu=size, traffic=(1 + cast) * size, cache="hbm"))
        if parts.cpu and not packed:
            for size in self._pair(parts.cpu):
                self.on_cpu("casting the cache", (1 + cast) * size, cache="dram")
        for size in self._pair(parts.disk):
            self.submit(CopyJob("cache", read=size, traffic=(1 + cast) * size, cache=self._disk))

    def _store_cache(self, number: int) -> None:
        """Store keys and values of the tokens that a slot has processed."""
        if number < 0 or not self._order[number].attends:
            return
        self.calls(2 * COPY_CALL)
        parts = self._plan.cache_parts(self._batch)
        share = self._new / sum(parts)
        gpu, cpu, disk = (round(share * one) for one in parts)
        if gpu and self._prefill:
            duration = picoseconds(2 * 2 * self._stored(gpu) / self.machine.accelerator.hbm_rate)
            self.flush()
            self.add("copy", self._stores, fixed=duration, label="cache", after=self.so_far(HOST))
        if cpu and self._prefill:
            for size in self._pair(cpu):
                self.submit(CopyJob("cache", from_gpu=size, traffic=2 * size, new=size, cache="dram"))
        elif cpu:
            self.flush()
            sizes = self._pair(cpu)
            self.copy(self._stores, sizes, to_device=False, label="cache", pinned=False, cache="dram")
            self.host_waits(self._stores)
        for size in self._pair(disk):
            self.submit(CopyJob("cache", from_gpu=size, traffic=2 * size, written=size, cache=self._disk))

    def _store_hidden(self, number: int) -> None:
        """Move the hidden states that a slot has computed to their home; the last slot yields tokens."""
        if 0 <= number < len(self._order) - 1:
            self._move_hidden(to_device=False)

    def _load_hidden(self, number: int) -> None:
        """Bring hidden states to the GPU for a slot; the first one gets tokens."""
        if 1 <= number < len(self._order):
            self._move_hidden(to_device=True)

    def _move_hidden(self, *, to_device: bool) -> None:
        home: Home = self._options.activations
        size = self._hidden
        if home == "gpu":
            return
        self.calls(COPY_CALL)
        if home == "cpu":
            self.copy(COMPUTE, [size], to_device=to_device, label="hidden states")
        elif to_device:
            self.submit(CopyJob("hidden states", read=size, traffic=2 * size, to_gpu=size))
        else:
            self.submit(CopyJob("hidden states", from_gpu=size, traffic=2 * size, written=size))

    def _compute(self, number: int) -> None:
        """Launch the kernels of a slot for one GPU batch."""
        slot = self._order[number]
        calls = _OPERATIONS[slot.name][not self._prefill] + _EXPAND_CALL * len(slot.expanded)
        if slot.attends and self._options.compress_cache:
            calls += 2 * (_SQUEEZE_CALL + (0 if self._prefill else _EXPAND_CALL))
        if slot.attends and self._options.cpu_attention and not self._prefill:
            self._attend_on_cpu(slot, calls)
        else:
            self._launch(self._gpu_times[slot], calls)

    def _attend_on_cpu(self, slot: BlockSlot, calls: int) -> None:
        """Compute attention in the host thread, between the projections on the GPU."""
        cut = next(n for n, one in enumerate(slot.modules) if one.name == "self_attn.out_proj")
        after = sum(self._times[one] for one in slot.modules[cut:])
        self._launch(self._gpu_times[slot] - after, calls // 2)
        self.host_waits(COMPUTE)
        vector = self._new * _SINGLE  # queries, new keys, new values; and the result
        self.copy(COMPUTE, [vector] * 3, to_device=False, label="queries", pinned=False)
        self.host_waits(COMPUTE)
        parts = self._plan.cache_parts(self._batch)
        elements = parts.offloaded or parts.gpu
        tier = self._disk if parts.disk else "dram" if parts.cpu else "hbm"
        self.flush()
        if self._options.compress_cache:
            padded = self._plan.padded(elements)
            copied = _CPU_CUT * elements if padded > elements else 0
            self.on_cpu("expanding the cache", 2 * (_CPU_EXPANDED * padded + copied), cache=tier)
        traffic = 2 * _SINGLE * elements
        route = self.loops(traffic, share=ONE_QUERY, kind="cpu-attention", cache=tier)
        self.add("cpu", HOST, size=traffic, route=route, label="attention")
        self.copy(COMPUTE, [vector], to_device=True, label="result of attention", pinned=False)
        self.host_waits(COMPUTE)
        self._launch(after, calls - calls // 2)

    def _launch(self, duration: int, calls: int) -> None:
        """Let the GPU work from the first of ``calls`` on, while the host launches the others."""
        self.calls(1)
        self.flush()
        self.add("compute", COMPUTE, fixed=duration, after=self.so_far(HOST))
        self.calls(calls - 1)

    def _stored(self, elements: int) -> int:
        return sum(self._pair(elements)) // 2

    def _pair(self, elements: int) -> list[int]:
        """Return the sizes [B] of the tensors that hold so many elements of keys, and as many of values."""
        return [*self._plan.cache_sizes(elements)] * 2 if elements else []
