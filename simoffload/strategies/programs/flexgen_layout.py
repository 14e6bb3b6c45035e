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

from simoffload.models import ModelShape, Module, Sequences
from simoffload.strategies.homes import HBM, Home

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
