"""What FlexGen keeps where: tensors, cache and hidden states on the GPU, in host memory and on disk.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/flex_opt.py`` (``init_weight_list``),
``pytorch_backend.py`` and ``compression.py``. Whole tensors are placed, by the middle of each in the
cumulated sizes of its layer, so that the shares asked for are met roughly. Attention and the feed-forward
network are layers of their own, and the embedding is kept twice, as it is also the output layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple

from simoffload.hardware import Accelerator, Machine
from simoffload.models import ModelShape, Module, ModuleCost, Sequences
from simoffload.strategies.homes import HBM, Home
from simoffload.strategies.passes.timing import PassTimings, Timing, picoseconds

Place = Literal["disk", "cpu", "gpu"]
"""FlexGen's name of a place; its disk is the storage tier of ``--offload-dir``."""

GROUP = 64
"""Number of elements that share a scale and a minimum."""
_SCALES = 2
"""Number of 16-bit numbers of a group: scale and minimum."""
_ELEMENT = 2
"""[B] of an element in float16, the only data type of FlexGen."""


class Shares(NamedTuple):
    """Shares are the percentages of states on the GPU and in host memory; the rest is on disk."""

    gpu: int
    cpu: int

    @property
    def disk(self) -> int:
        """Percentage of the states on disk."""
        return 100 - self.gpu - self.cpu

    @property
    def place(self) -> Place | None:
        """Where all of it is; None if it is divided."""
        percents: dict[Place, int] = {"gpu": self.gpu, "cpu": self.cpu, "disk": self.disk}
        return next((place for place, percent in percents.items() if percent == 100), None)


class FlexGenOptions(NamedTuple):
    """FlexGenOptions are the settings of FlexGen (``Policy``), with the tier that is its disk."""

    weights: Shares
    cache: Shares
    activations: Place
    disk: str
    """Storage tier; "" if nothing is on disk."""
    gpu_batches: int
    pin_weight: bool
    compress_weight: bool
    compress_cache: bool
    cpu_attention: bool
    overlap: bool
    sep_layer: bool
    page_cache: bool | None
    """Whether files on disk are in the page cache; None: if they fit in the memory that is free."""


def compressed_sizes(groups: int) -> tuple[int, int]:
    """Return the sizes [B] of packed values, and of scales and minima, of groups in 4 bits."""
    return groups * GROUP // 2, groups * _SCALES * _ELEMENT


class PlacedTensor(NamedTuple):
    """A PlacedTensor is a weight with its home."""

    name: str
    shape: tuple[int, ...]
    home: Home
    compressed: bool

    @property
    def numel(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes [B] of what is stored and moved: the tensor, or packed values and scales, each of which is a
        tensor; rows are rounded up to whole groups."""
        if not self.compressed:
            return (self.numel * _ELEMENT,)
        return compressed_sizes(-(-self.shape[0] // GROUP) * prod(self.shape[1:]))

    @property
    def size(self) -> int:
        """Size as it is stored [B]."""
        return sum(self.sizes)


class BlockSlot(NamedTuple):
    """A BlockSlot is one of FlexGen's layers: an embedding, attention, a feed-forward network, or (without
    ``sep_layer``) both."""

    name: str
    tensors: tuple[PlacedTensor, ...]
    modules: tuple[Module, ...]
    """Modules of the model that it computes."""
    attends: bool = False

    @property
    def module(self) -> Module:
        """The slot as one module, as which FlexGen calls it."""
        return Module(self.name, "container")

    @property
    def loaded(self) -> tuple[PlacedTensor, ...]:
        """Tensors that are brought to the GPU for each use."""
        return tuple(one for one in self.tensors if one.home.tier != HBM.tier)

    @property
    def loaded_bytes(self) -> int:
        """Size of these [B]."""
        return sum(one.size for one in self.loaded)

    @property
    def expanded(self) -> tuple[PlacedTensor, ...]:
        """Tensors that the GPU writes in full before their use."""
        return tuple(one for one in self.tensors if one.compressed)


class BlockSlots(NamedTuple):
    """BlockSlots are FlexGen's layers in the order of a pass."""

    first: BlockSlot
    layer: tuple[BlockSlot, ...]
    """BlockSlots of one layer of the model; all its layers are alike."""
    last: BlockSlot
    layers: int
    """Number of layers of the model."""

    @property
    def kinds(self) -> tuple[tuple[BlockSlot, int], ...]:
        """The slots that differ, each with its number."""
        return ((self.first, 1), *((one, self.layers) for one in self.layer), (self.last, 1))

    @property
    def modules(self) -> tuple[Module, ...]:
        """Modules of all slots; those of a layer are listed once."""
        return tuple(module for slot, _ in self.kinds for module in slot.modules)

    @property
    def tensors(self) -> tuple[tuple[PlacedTensor, int], ...]:
        """The tensors of all slots, each with its number."""
        return tuple((tensor, count) for slot, count in self.kinds for tensor in slot.tensors)

    def weight_bytes(self, tier: str) -> int:
        """Return the size of the weights on a tier [B]."""
        return sum(count * one.size for one, count in self.tensors if one.home.tier == tier)


def placed(specs: Sequence[tuple[str, tuple[int, ...]]], options: FlexGenOptions) -> tuple[PlacedTensor, ...]:
    """Return the tensors of a layer with their homes, as ``init_weight_list`` chooses them.

    The middle of each tensor in the cumulated number of elements decides: up to the share of the disk it is
    on disk, then in host memory, then on the GPU.
    """
    sizes = [prod(shape) for _, shape in specs]
    ends, total = list(accumulate(sizes)), sum(sizes)
    found = []
    for (name, shape), size, end in zip(specs, sizes, ends, strict=True):
        middle = 100 * (end - size / 2) / total
        disk = options.weights.disk
        matrix, home = len(shape) > 1, HBM
        if middle < disk:
            home = Home(options.disk, mapped=True)
        elif middle < disk + options.weights.cpu:  # vectors are always pinned
            home = Home("dram", pinned=options.pin_weight or not matrix)
        compressed = matrix and options.compress_weight
        found.append(PlacedTensor(name, shape, home, compressed))
    return tuple(found)


def slots_of(model: ModelShape, options: FlexGenOptions) -> BlockSlots:
    """Return the slots of a pass through an OPT model, with their tensors and modules."""
    hidden, wide, rows = model.hidden_size, model.intermediate_size, model.vocab_size
    positions = next(
        one.parameters[0].numel // hidden
        for one in model.modules_before
        if one.name.endswith("embed_positions")
    )
    norm = [("layer_norm.weight", (hidden,)), ("layer_norm.bias", (hidden,))]
    square = [
        part
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        for part in ((f"{name}.weight", (hidden, hidden)), (f"{name}.bias", (hidden,)))
    ]
    forward = [
        ("fc1.weight", (wide, hidden)),
        ("fc1.bias", (wide,)),
        ("fc2.weight", (hidden, wide)),
        ("fc2.bias", (hidden,)),
    ]
    (layer, _) = model.kinds[0]
    at = next(number for number, one in enumerate(layer) if one.name == "final_layer_norm")
    # The residuals of the two halves are in the first module, that of the layer itself.
    block, attention, network = layer[0], layer[1:at], layer[at:]
    half = block._replace(in_features=block.in_features // 2, out_features=block.out_features // 2)
    attend = BlockSlot("attention", placed([*square, *norm], options), (half, *attention), attends=True)
    feed = BlockSlot("MLP", placed([*forward, *norm], options), (half, *network))
    halves: tuple[BlockSlot, ...] = (attend, feed)
    if not options.sep_layer:
        halves = (
            BlockSlot("layer", attend.tensors + feed.tensors, attend.modules + feed.modules, attends=True),
        )
    tables = [("embed_tokens.weight", (rows, hidden)), ("embed_positions.weight", (positions, hidden))]
    head = [*norm, ("lm_head.weight", (rows, hidden))]
    # Logits of all positions are computed, not only those of the last one.
    after = tuple(one._replace(last_only=False) for one in model.modules_after)
    first = BlockSlot("input embedding", placed(tables, options), model.modules_before)
    return BlockSlots(
        first, halves, BlockSlot("output embedding", placed(head, options), after), model.num_hidden_layers
    )


class CacheParts(NamedTuple):
    """CacheParts are the elements of keys, and of values, of one layer and GPU batch, by their home."""

    gpu: int
    cpu: int
    disk: int

    @property
    def offloaded(self) -> int:
        """Elements that are not on the GPU."""
        return self.cpu + self.disk


class BlockCache(NamedTuple):
    """A BlockCache is the key-value cache of one layer and GPU batch."""

    options: FlexGenOptions
    width: int
    """Number of elements of the keys, or of the values, of a token."""
    head: int
    """Number of these of a head."""
    length: int
    """Most positions of a sequence."""

    def sequences(self, number: int) -> tuple[int, int, int]:
        """Return for ``number`` sequences those whose cache is on the GPU, in host memory and on disk.

        A divided cache is cut at whole sequences, rounded down; the last place gets the rest
        (``TorchMixedDevice.init_cache_one_gpu_batch``).
        """
        share = self.options.cache
        gpu = number * share.gpu // 100
        cpu = number - gpu if share.disk == 0 else number * share.cpu // 100
        return gpu, cpu, number - gpu - cpu

    def attended_on_gpu(self, number: int) -> int:
        """Return to how many sequences the GPU attends in a decode step: without attention on the CPU to all,
        otherwise to those whose cache it has, if others have it elsewhere."""
        if not self.options.cpu_attention:
            return number
        gpu, cpu, disk = self.sequences(number)
        return gpu if cpu + disk else 0

    def parts(self, batch: Sequence[Sequences], *, less: int = 0) -> CacheParts:
        """Return the elements of keys, or of values, without the last ``less`` positions."""
        parts = [0, 0, 0]
        for one in batch:
            each = (one.context - less) * self.width
            numbers = self.sequences(one.number)
            parts = [total + number * each for total, number in zip(parts, numbers, strict=True)]
        return CacheParts(*parts)

    def padded(self, elements: int) -> int:
        """Return the number of ``elements`` of keys, or of values, with what fills each head up to whole
        groups in 4 bits (``TorchCompressedDevice.allocate``, ``group_dim`` 2)."""
        if not self.options.compress_cache:
            return elements
        return elements * (-(-self.head // GROUP) * GROUP) // self.head

    def sizes(self, elements: int) -> tuple[int, ...]:
        """Return the sizes [B] of the tensors that hold ``elements`` of keys and as many of values."""
        if not elements:
            return ()
        if not self.options.compress_cache:
            return (elements * _ELEMENT,) * 2
        return compressed_sizes(self.padded(elements) // GROUP) * 2


# --------------------------------------------------------------------------------------------------
# GPU times of FlexGen's slots, with kernels that store tensors in 4 bits and write them in full again.
#
# Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/pytorch_backend.py`` (``mha``, ``mha_gen``, ``mlp``,
# ``opt_output_embed``) and ``compression.py``. PyTorch vectorizes only those kernels for 4 bits whose
# operands have the same layout. The others compute an address for each element, which takes longer than the
# memory on an H100, and as long if all is in the L2 cache (docs/measurements/gpu.md, FlexGen's 4 bits). Their
# time is therefore stated in additions of a bias in place, whose rate is an accelerator's ``strided_rate``.


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
