"""GPU times of FlexGen's slots, with kernels that store tensors in 4 bits and write them in full again.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/pytorch_backend.py`` (``mha``, ``mha_gen``, ``mlp``,
``opt_output_embed``) and ``compression.py``. PyTorch vectorizes only those kernels for 4 bits whose operands
have the same layout. The others compute an address for each element, which takes longer than the memory on an
H100, and as long if all is in the L2 cache (docs/measurements/gpu.md, FlexGen's 4 bits). Their time is
therefore stated in additions of a bias in place, whose rate is an accelerator's ``strided_rate``.
"""

from __future__ import annotations

from typing import NamedTuple

from simoffload.hardware import Accelerator, Machine
from simoffload.models import ModelShape, Module, ModuleCost, Sequences
from simoffload.strategies.passes.timing import PassTimings, Timing, picoseconds
from simoffload.strategies.programs.flexgen_layout import BlockCache, BlockSlot, BlockSlots

_SCORE_BYTES = 12
"""[B] moved for each score: product written, masked and softmax (each read and written), times values
(read), all in 16 bit."""
_BIAS_BYTES = 4
"""[B] that the addition of a bias in place reads and writes for each element in 16 bit."""


class Kernel(NamedTuple):
    """A Kernel is an operation of PyTorch on a tensor, with its work per element of that tensor in full
    width."""

    traffic: float
    """HBM traffic [B], counted."""
    additions: float = 0.0
    """Its time on an H100 as a number of additions of a bias; 0 if it is vectorized."""


Kernels = tuple[Kernel, ...]

_SHIFT_AND_MASK: Kernels = (Kernel(1.0), Kernel(1.0))
"""Of packed bytes, each read and written."""

EXPAND_WEIGHT: Kernels = (
    *_SHIFT_AND_MASK,
    Kernel(1.5, 0.511),  # cast to even rows
    Kernel(1.5, 0.511),  # cast to odd rows
    Kernel(4.0, 1.472),  # divide by the scale
    Kernel(4.0, 1.104),  # add the minimum
)
"""``decompress`` of weights, whose groups are along rows."""

EXPAND_CACHE: Kernels = (
    *_SHIFT_AND_MASK,
    Kernel(2.5, 0.607),  # cast to even elements: all sectors are written
    Kernel(2.5, 0.607),  # cast to odd elements
    Kernel(4.0, 1.163),
    Kernel(4.0, 0.983),
)
"""``decompress`` of keys or values, whose groups are along the innermost dimension."""

_CLAMP_AND_ROUND: Kernels = (Kernel(4.0), Kernel(4.0))
_SMALL: Kernels = (Kernel(0.0),) * 4
"""Range of each group, its quotient, and scales and minima in one tensor; and one for the tensor's copy."""

SQUEEZE_KEYS: Kernels = (
    Kernel(2.0, 9.456),  # minimum
    Kernel(2.0, 9.456),  # maximum
    Kernel(4.0, 1.538),  # subtract the minimum
    Kernel(4.0, 1.534),  # multiply by the scale
    *_CLAMP_AND_ROUND,
    Kernel(3.0, 0.891),  # cast to bytes
    Kernel(1.0, 0.381),  # shift every other
    Kernel(1.5, 0.438),  # or with the others
    Kernel(1.0, 1.647),  # in the order of the cache
    *_SMALL,
)
"""``compress`` of the keys of a prompt, which are transposed."""

SQUEEZE_VALUES: Kernels = (
    Kernel(2.0, 2.411),
    Kernel(2.0, 2.409),
    Kernel(4.0, 1.039),
    Kernel(4.0, 1.176),
    *_CLAMP_AND_ROUND,
    Kernel(3.0, 0.891),
    Kernel(1.0, 0.380),
    Kernel(1.5, 0.428),
    Kernel(1.0, 0.402),
    *_SMALL,
)
"""The same of values, and of the keys of a new token."""

PAD: Kernels = (Kernel(4.0),)
"""Copy of keys or values whose heads are filled up to whole groups (``torch.cat``), or no longer are
(``contiguous``)."""


def kernels_s(kernels: Kernels, numel: int, gpu: Accelerator) -> float:
    """Return the time [s] of kernels on a tensor of ``numel`` elements, one after the other: each takes the
    longer of the times of its traffic and its addresses."""
    addition = _BIAS_BYTES / gpu.strided_rate.value if gpu.strided_rate else 0.0
    return sum(
        max(one.traffic / gpu.hbm_rate, one.additions * addition) * numel + gpu.kernel_latency_s
        for one in kernels
    )


def is_prefill(batch: tuple[Sequences, ...]) -> bool:
    """Return whether there is no cache yet."""
    return all(one.new_tokens == one.context for one in batch)


class SlotTiming(Timing):
    """A SlotTiming is the timing of one GPU batch in slots, and in their modules: FlexGen's attention, whose
    speed was not measured, is in place of transformers'."""

    _cached = False

    def __init__(
        self,
        machine: Machine,
        model: ModelShape,
        batch: tuple[Sequences, ...],
        block: tuple[BlockSlots, BlockCache],
    ) -> None:
        super().__init__(machine=machine, model=model, batch=batch, zero3=False)
        slots, self._kept = block
        self._slots = {slot.module: slot for slot, _ in slots.kinds}

    def compute(self, module: Module) -> int:
        """Return the GPU time [ps] of a slot or of a module."""
        if module not in self._slots:
            return super().compute(module)
        if module not in self._seen:
            self._seen[module] = self._slot(self._slots[module])
        return self._seen[module]

    def _slot(self, slot: BlockSlot) -> int:
        """Return the GPU time [ps] of a slot, with weights and cache that are compressed or expanded."""
        cache, batch = self._kept, self._batch
        options = cache.options
        work = [(EXPAND_WEIGHT, one.numel) for one in slot.expanded]
        if slot.attends and options.compress_cache:
            new = sum(one.number * one.new_tokens for one in batch) * cache.width
            prefill, padded = is_prefill(batch), cache.padded(new)
            work += [(SQUEEZE_KEYS if prefill else SQUEEZE_VALUES, padded), (SQUEEZE_VALUES, padded)]
            work += [(PAD, new)] * 2 if padded > new else []
            if not prefill and not options.cpu_attention:
                # What is on the GPU is expanded with the room for all tokens.
                least = cache.length if options.cache.place == "gpu" else 0
                held = [one._replace(context=max(one.context, least)) for one in batch]
                cached = sum(cache.parts(held))
                padded = cache.padded(cached)
                work += [(EXPAND_CACHE, padded)] * 2
                work += [(PAD, cached)] * 2 if padded > cached else []
        seconds = sum(kernels_s(kernels, numel, self.machine.accelerator) for kernels, numel in work)
        return sum(map(self.compute, slot.modules)) + picoseconds(seconds)

    def cost(self, module: Module) -> ModuleCost:
        """Return FLOP and HBM bytes of one call of ``module``; attention computes all scores and masks them,
        and does not copy the cache."""
        if module.kind != "attention":
            return super().cost(module)
        total = ModuleCost(0.0, 0.0)
        for one in self._batch:
            total = ModuleCost(*map(sum, zip(total, self._attention(one), strict=True)))
        return total

    def _attention(self, one: Sequences) -> ModuleCost:
        model, (number, new, context) = self._model, one
        hidden, size = model.hidden_size, model.dtype_bytes
        tokens = number * new
        # Queries are scaled; queries, keys, values and the result are copied to other layouts.
        copied = 10 * tokens * hidden * size
        number = number if new == context else self._kept.attended_on_gpu(number)
        scores = number * model.num_attention_heads * new * context
        read = 2 * number * (new + context) * hidden * size
        return ModuleCost(4.0 * scores * model.head_dim, float(copied + read + _SCORE_BYTES * scores))

    def _attention_s(self, module: Module, cost: ModuleCost, *, backward: bool) -> float | None:  # noqa: ARG002
        return None


class SlotTimings(PassTimings):
    """SlotTimings are the durations of slots and modules in any pass."""

    def __init__(self, machine: Machine, model: ModelShape, slots: BlockSlots, cache: BlockCache) -> None:
        super().__init__(machine=machine, model=model, modules=slots.modules, zero3=False)
        self._block = slots, cache

    def timing(self, batch: tuple[Sequences, ...]) -> SlotTiming:
        """Return the timing of one GPU batch."""
        return SlotTiming(self._machine, self._model, batch, self._block)
