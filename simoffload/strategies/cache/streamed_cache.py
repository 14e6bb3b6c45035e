"""A streamed key-value cache: on any tier but the GPU, read layer by layer, and written once.

No program has it. It is what FlexGen does with its cache (``hooks.slots``), for every model and strategy
and without the waits between FlexGen's slots:

* In each pass, the keys and values that a layer has of earlier tokens are read from the tier, those of the
  next layer during the computation of the present one. From host memory they cross the link; from storage,
  and from the memory of another host, they first come into one of two pinned buffers. There is room for two
  layers on the GPU: a layer takes the place of the one before the present one, as soon as the new keys and
  values of that have left the GPU.
* Attention reads keys and values as they are stored, and decodes them in the kernel, as vLLM's kernels do
  with a cache in 8 bit. Nothing is joined or copied within HBM.
* Behind a layer's attention, keys and values of new tokens only are copied to host memory, and then written
  to the tier, in whole pages. Copies, reads and writes have a stream each. A pass ends with its last write,
  so that the next pass reads what this one has written.

A tier holds one tensor of keys and one of values for each layer and GPU, in which the new tokens of all
sequences are next to each other, so that each pass writes one piece of each. Of a layer with a sliding window
it keeps one token less than the window, as the next token sees itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from simoffload.hardware import Machine
from simoffload.models import Layer, ModelShape, Sequences
from simoffload.strategies.cache.cache_updates import LayerUpdate, tensor_sizes
from simoffload.strategies.cache.kv_cache import KvCache
from simoffload.strategies.held import Held, Traffic
from simoffload.strategies.memory import cache_term, pinned_rounding, prompt_in_layer
from simoffload.workload import Inference

PAGE = 4096
"""[B] of which files are read and written whole numbers, as Linux requires without the page cache (O_DIRECT:
the logical block size of the drive, 4 KiB on most)."""

Parts = Sequence[tuple[ModelShape, int]]
"""Parts of a model that GPUs have, each with the number of GPUs that have it."""


class StreamedUpdate(NamedTuple):
    """A StreamedUpdate is what one layer moves in a pass."""

    first: bool
    """Whether the layer is the first one of a pass."""
    own: tuple[int, ...] | None
    """Sizes [B] of the layer's tensors before the pass; None unless it is the first one of a pass that
    loads."""
    following: tuple[int, ...] | None
    """Sizes [B] of those of the next layer; None for the last one, and in a pass that loads nothing."""
    stored: tuple[int, ...]
    """Sizes [B] of keys and values of the new tokens."""

    @property
    def size(self) -> int:
        """Size [B] of all that is copied over the link."""
        return sum(self.own or ()) + sum(self.following or ()) + sum(self.stored)


CacheUpdate = LayerUpdate | StreamedUpdate
"""What one layer moves when its cache is updated."""


def on_tier(sizes: Sequence[int], *, paged: bool) -> int:
    """Return what tensors, or pieces of them, take on their tier [B]: whole pages, if it has such."""
    return sum(-(-size // PAGE) * PAGE if paged else size for size in sizes)


# -- bytes ---------------------------------------------------------------------------------------


def streamed_updates(
    cache: KvCache, part: ModelShape, batch: Sequence[Sequences]
) -> tuple[StreamedUpdate, ...]:
    """Return what each layer of ``part`` moves in a pass."""
    loads = any(one.new_tokens < one.context for one in batch)

    def sizes(*, past: bool) -> tuple[tuple[int, ...], ...]:
        return part.by_layer(lambda layer: _tensors(cache, part, layer, batch, past=past))

    before, new = sizes(past=True), sizes(past=False)
    return tuple(
        StreamedUpdate(
            first=not number,
            own=before[0] if loads and not number else None,
            following=before[number + 1] if loads and number + 1 < len(before) else None,
            stored=stored,
        )
        for number, stored in enumerate(new)
    )


def _tensors(
    cache: KvCache, part: ModelShape, layer: Layer, batch: Sequence[Sequences], *, past: bool
) -> tuple[int, ...]:
    """Return the sizes [B] of a layer's tensors as they are stored: of the tokens before the new ones, if
    ``past``, or of the new ones."""
    tokens = [one.context - one.new_tokens if past else one.new_tokens for one in batch]
    sizes = tensor_sizes(cache, part, layer, batch, tokens, length=0)
    element = cache.element_bytes(part.dtype_bytes) / part.dtype_bytes
    return tuple(ceil(size * element) for size in sizes)


def streamed_traffic(
    cache: KvCache, parts: Parts, batches: Sequence[Sequence[Sequences]], machine: Machine
) -> tuple[int, int]:
    """Return the bytes that all GPUs read from the tier and write to it when they process ``batches``, each
    of which writes pieces of its own."""
    paged = machine.tiers[cache.tier].is_storage
    kinds = [(part, layer, gpus * count) for part, gpus in parts for layer, count in part.kinds]
    read, written = (
        sum(
            times * on_tier(_tensors(cache, part, layer, batch, past=past), paged=paged)
            for part, layer, times in kinds
            for batch in batches
        )
        for past in (True, False)
    )
    return read, written


# -- memory --------------------------------------------------------------------------------------


def streamed_memory(
    cache: KvCache,
    part: ModelShape,
    workload: Inference,
    machine: Machine,
    *,
    copies: int,
    parts: Parts,
    traffic: Traffic,
) -> tuple[Held, ...]:
    """Return the memory of the cache: of one GPU with ``part`` of the model, of a host with ``copies`` such
    parts, and of a tier for the ``parts`` of all GPUs.

    A prompt's keys and values are whole, and in the model's type, until those that are kept are encoded.
    """
    layers = _kept(cache, part, workload)
    most = max((sum(one) + sum(other) for one, other in pairwise(layers)), default=sum(layers[0]))
    found = [cache_term("hbm", most, name="key-value cache of two layers", kind="staging")]
    if (prompt := prompt_in_layer(part, workload)) > max(map(sum, layers)):
        name = "keys and values of a prompt in a layer"
        found.append(cache_term("hbm", prompt, name=name, kind="working"))
    if cache.tier == "dram":
        pinned = [size for one in layers for size in one]
        found.append(cache_term("dram", copies * sum(pinned), pinned=True))
    else:
        paged = machine.tiers[cache.tier].is_storage
        stored = sum(
            gpus * on_tier(one, paged=paged) for own, gpus in parts for one in _kept(cache, own, workload)
        )
        found.append(cache_term(cache.tier, stored)._replace(traffic=traffic))
        pinned = list(_buffers(cache, part, workload))
        name, size = "buffers of the cache", copies * sum(pinned)
        found.append(cache_term("dram", size, name=name, pinned=True, kind="staging"))
    rounding = copies * pinned_rounding(pinned)
    return (*found, Held("dram", "rounding of pinned allocations", rounding, pinned=True))


def _kept(cache: KvCache, part: ModelShape, workload: Inference) -> tuple[tuple[int, ...], ...]:
    """Return the sizes [B] of the tensors of each layer at the longest context."""
    batch = (Sequences(workload.batch_size, workload.max_context, workload.max_context),)
    return part.by_layer(lambda layer: _tensors(cache, part, layer, batch, past=False))


def _buffers(cache: KvCache, part: ModelShape, workload: Inference) -> Iterator[int]:
    """Yield the sizes [B] of the pinned buffers of a GPU, two in each direction: for a layer at the longest
    context, if there are decode steps, and for a layer of the prompt."""
    prompt = workload.model_copy(update={"output_length": 1})
    for work in (workload, prompt) if workload.decode_steps else (prompt,):
        yield from max(_kept(cache, part, work), key=sum) * 2
