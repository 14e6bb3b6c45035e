"""Updates of an offloaded key-value cache: what each layer moves; ``hooks.kv_cache`` states when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from simoffload.models import SINGLE, Layer, ModelShape, Sequences, window_of
from simoffload.strategies.cache.kv_cache import VLLM_BLOCK, KvCache
from simoffload.strategies.held import Held
from simoffload.strategies.memory import (
    cache_bytes,
    cache_term,
    pinned_block,
    pinned_rounding,
    prompt_in_layer,
)
from simoffload.workload import Inference


class LayerUpdate(NamedTuple):
    """A LayerUpdate is what one layer moves when it adds keys and values to an offloaded cache."""

    fetched: tuple[int, ...]
    """Sizes [B] of the tensors of the next offloaded layer that are copied to the GPU; () if there are none.
    """
    joined: int
    """Size [B] of the traffic within HBM that joins cached and new tokens."""
    stored: tuple[int, ...]
    """Sizes [B] of the tensors that are copied to host memory."""

    @property
    def size(self) -> int:
        """Size [B] of all that is copied."""
        return sum(self.fetched) + sum(self.stored)


def layer_updates(
    cache: KvCache, part: ModelShape, batch: Sequence[Sequences], *, length: int
) -> tuple[LayerUpdate | None, ...]:
    """Return the update of each layer of ``part`` in a pass; None for a layer whose cache stays in HBM.

    ``length`` is the number of tokens for which a static cache has room.
    """
    layers = part.layers
    if not cache.offloaded:
        return (None,) * len(layers)
    offloaded = [number for number, layer in enumerate(layers) if not (cache.static and window_of(layer))]

    def sizes(contexts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return part.by_layer(lambda layer: tensor_sizes(cache, part, layer, batch, contexts, length=length))

    own = sizes([one.context for one in batch])
    before = sizes([one.context - one.new_tokens for one in batch])
    joined = part.by_layer(lambda layer: _joined(cache, part, layer, batch))
    found: list[LayerUpdate | None] = [None] * len(layers)
    for number, following in zip(offloaded, (*offloaded[1:], *offloaded[:1]), strict=True):
        # The last one fetches the first layer, which this pass has updated already.
        fetched = (own if following <= number else before)[following]
        found[number] = LayerUpdate(fetched, joined[number], own[number])
    return tuple(found)


def tensor_sizes(
    cache: KvCache,
    part: ModelShape,
    layer: Layer,
    batch: Sequence[Sequences],
    contexts: Sequence[int],
    *,
    length: int,
) -> tuple[int, ...]:
    """Return the sizes [B] of the two tensors of a layer's cache with ``contexts`` tokens of each sequence.

    They are keys and values, or with latent attention the latent vectors and the rotated elements of keys.
    """
    window, tokens = window_of(layer), 0
    for one, context in zip(batch, contexts, strict=True):
        if not context:
            continue
        kept = max(length, context) if cache.static else context
        if window is not None:  # a growing cache keeps no token that the next one does not see
            kept = min(kept, window if cache.static else window - 1)
        tokens += one.number * kept
    return tuple(tokens * width * part.dtype_bytes for width in _widths(part)) if tokens else ()


def _widths(part: ModelShape) -> tuple[int, int]:
    """Return the elements of the two tensors of a layer for each token."""
    first = part.num_key_value_heads * part.head_dim
    if part.latent_width is not None:
        first = part.latent_rank or part.latent_width
    return first, part.cache_width - first


def _joined(cache: KvCache, part: ModelShape, layer: Layer, batch: Sequence[Sequences]) -> int:
    """Return the traffic [B] of ``torch.cat``, which reads and writes all of both tensors; in place only new
    tokens."""
    window, tokens = window_of(layer), 0
    for number, new_tokens, context in batch:
        held = context if window is None else min(context, window - 1 + new_tokens)
        tokens += number * (new_tokens if cache.static else held)
    return 2 * tokens * part.cache_width * part.dtype_bytes


CACHE_LABEL = "keys and values"
"""Label of copies of an offloaded cache."""


# -- memory --------------------------------------------------------------------------------------


def cache_memory(
    cache: KvCache, part: ModelShape, workload: Inference, *, copies: int, paged: bool
) -> tuple[Held, ...]:
    """Return the memory of the cache of one GPU that has ``part`` of the model, and with ``copies`` such
    parts on a host that of its host memory.

    ``paged``: in blocks as in vLLM, of which every sequence has whole ones.
    """
    if cache.offloaded:
        return _offloaded_memory(cache, part, workload, copies)
    if cache.static:
        return (cache_term("hbm", sum(map(sum, _tensors(cache, part, workload)))),)
    size = cache_bytes(part, workload, block=VLLM_BLOCK if paged else 0)
    if cache.format is None:
        return (cache_term("hbm", size),)
    if cache.residual:
        return _quantized_memory(cache, part, workload)
    stored = cache_term("hbm", round(size * cache.element_bytes(part.dtype_bytes) / part.dtype_bytes))
    if paged:
        return (stored,)
    first, second = (workload.batch_size * workload.max_context * width for width in _widths(part))
    # In single precision before and after the scale is multiplied (Fp8QuantizedLayer), values after keys.
    decoded = max(2 * SINGLE * first, part.dtype_bytes * first + 2 * SINGLE * second)
    return (stored, Held("hbm", _DECODED, decoded))


_DECODED = "decoded keys and values of a layer"


def _quantized_memory(cache: KvCache, part: ModelShape, workload: Inference) -> tuple[Held, ...]:
    """Return the memory of a cache whose last tokens are in the model's type, at its largest update.

    An update decodes all quantized tokens of a layer, and joins them with the others (``torch.cat``). The one
    that would make ``residual`` tokens of the others quantizes all, after which there are none
    (``QuantizedLayer.update``). The largest is the last such update, in its first layer, or the last update
    of all. What quantization itself needs is not counted.
    """
    prompt, steps, period = workload.prompt_length, workload.decode_steps, cache.residual
    token = part.kv_cache_bytes(batch=workload.batch_size, tokens=1)
    element = cache.element_bytes(part.dtype_bytes) / part.dtype_bytes
    found = []
    for step in (steps // period * period, steps):
        again = bool(step) and step % period == 0
        recent = period - 1 if again else step % period
        quantized = prompt + step - recent - again
        joined = (quantized + prompt + step) * bool(step)
        found.append((round(quantized * token * element), recent * token, joined * token // len(part.layers)))
    stored, recent, decoded = max(found, key=sum)
    terms = (("tokens that are not quantized yet", recent), (_DECODED, decoded))
    more = (Held("hbm", name, size) for name, size in terms if size)
    return (cache_term("hbm", stored), *more)


def _tensors(cache: KvCache, part: ModelShape, workload: Inference) -> tuple[tuple[int, ...], ...]:
    """Return the sizes [B] of the tensors of each layer at the longest context."""
    longest = workload.max_context
    batch = (Sequences(workload.batch_size, 1, longest),)
    return part.by_layer(lambda layer: tensor_sizes(cache, part, layer, batch, [longest], length=longest))


def _offloaded_memory(cache: KvCache, part: ModelShape, workload: Inference, copies: int) -> tuple[Held, ...]:
    """Return the layers on the GPU, which are the one in use, the next one and what ``torch.cat`` makes, and
    all in pinned memory.

    ``Tensor.to`` makes a new pinned tensor in every pass while that of the pass before is still being read,
    as the host thread is ahead of the GPU; PyTorch keeps blocks that have become too small.
    """
    sizes = _tensors(cache, part, workload)
    moves = [not (cache.static and window_of(layer)) for layer in part.layers]
    offloaded = [sum(one) for one, moving in zip(sizes, moves, strict=True) if moving]
    pairs = zip(offloaded, (*offloaded[1:], *offloaded[:1]), strict=True)
    most = max((one + following for one, following in pairs), default=0)
    two = "key-value cache of two layers"
    found = [cache_term("hbm", min(most, sum(offloaded)), name=two, kind="staging")]
    if kept := sum(map(sum, sizes)) - sum(offloaded):
        found.append(cache_term("hbm", kept, name="key-value cache of sliding layers"))
    if not cache.static:
        last = (Sequences(workload.batch_size, 1, workload.max_context),)
        joined = [_joined(cache, part, layer, last) // 2 for layer, _ in part.kinds]
        largest = max(*joined, prompt_in_layer(part, workload))
        found.append(Held("hbm", "joined keys and values of a layer", largest))
    final = [size for one, moving in zip(sizes, moves, strict=True) if moving for size in one]
    rounding = pinned_rounding(final)
    blocks = part.by_layer(lambda layer: _pinned_blocks(cache, part, layer, workload))
    pool = sum(one for one, moving in zip(blocks, moves, strict=True) if moving)
    return (
        *found,
        cache_term("dram", copies * sum(final), pinned=True),
        Held("dram", "rounding of pinned allocations", copies * rounding, pinned=True),
        Held("dram", "pinned blocks of earlier passes", copies * (pool - sum(final) - rounding), pinned=True),
    )


def _pinned_blocks(cache: KvCache, part: ModelShape, layer: Layer, workload: Inference) -> int:
    """Return the size [B] of the pinned blocks of a layer's tensors: of each power of two that a tensor has
    filled in some pass one block, or two if it has done so in several passes."""
    first, last = workload.prompt_length, workload.max_context
    found = 0
    for at in range(2):

        def block(context: int, at: int = at) -> int:
            batch = (Sequences(workload.batch_size, 1, context),)
            sizes = tensor_sizes(cache, part, layer, batch, [context], length=last)
            return pinned_block(sizes[at]) if sizes else 0

        context = first
        while context <= last:
            end = bisect_right(range(context, last + 1), block(context), key=block) + context
            found += block(context) * min(2, end - context)
            context = end
    return found
