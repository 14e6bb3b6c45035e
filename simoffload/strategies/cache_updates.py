"""Updates of an offloaded key-value cache: what each layer moves, and in which order.

Reference: transformers 5.23.0, ``Cache.update`` of ``cache_utils.py``. When layer l adds keys and values,

1. the compute stream waits for the prefetch stream, so that the cache of layer l is there;
2. the prefetch stream waits for the compute stream, and then copies the cache of the next offloaded layer to
   the GPU; the last layer does so for the first one of the next pass;
3. the compute stream joins the cached and the new tokens (dynamic: ``torch.cat``; static: in place);
4. the compute stream copies the whole result to host memory, before the kernels of attention.

Both copies are of pinned memory, and nothing blocks the host thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simoffload.models import Layer, ModelShape, Sequences
from simoffload.strategies.kv_cache import KvCache


class LayerUpdate(NamedTuple):
    """A LayerUpdate is what one layer moves when it adds keys and values to an offloaded cache."""

    fetched: tuple[int, ...]
    """Sizes [B] of the tensors of the next offloaded layer that are copied to the GPU; () if there are none.
    """
    joined: int
    """Size [B] of the traffic within HBM that joins cached and new tokens."""
    stored: tuple[int, ...]
    """Sizes [B] of the tensors that are copied to host memory."""


def layer_updates(
    cache: KvCache, part: ModelShape, batch: Sequence[Sequences], *, length: int
) -> tuple[LayerUpdate | None, ...]:
    """Return the update of each layer of ``part`` in a pass; None for a layer whose cache stays in HBM.

    ``length`` is the number of tokens for which a static cache has room.
    """
    layers = part.layers
    if not cache.offloaded:
        return (None,) * len(layers)
    moved = [number for number, layer in enumerate(layers) if not (cache.static and _window(layer))]
    found: list[LayerUpdate | None] = [None] * len(layers)
    for number, following in zip(moved, (*moved[1:], *moved[:1]), strict=True):
        again = following <= number  # the first layer, which this pass has updated already
        before = [one.context if again else one.context - one.new_tokens for one in batch]
        found[number] = LayerUpdate(
            tensor_sizes(cache, part, layers[following], batch, before, length=length),
            _joined(cache, part, layers[number], batch),
            tensor_sizes(cache, part, layers[number], batch, [one.context for one in batch], length=length),
        )
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
    window, tokens = _window(layer), 0
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
    window, tokens = _window(layer), 0
    for number, new_tokens, context in batch:
        held = context if window is None else min(context, window - 1 + new_tokens)
        tokens += number * (new_tokens if cache.static else held)
    return 2 * tokens * part.cache_width * part.dtype_bytes


def _window(layer: Layer) -> int | None:
    return next((one.window for one in layer if one.kind == "attention"), None)
