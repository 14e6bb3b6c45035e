"""What attention pays for the way in which keys and values are kept.

Counted in transformers 5.23.0, ``cache_utils.py``, and for paged caches in vLLM 0.33.
"""

from __future__ import annotations

from typing import NamedTuple


class CacheForm(NamedTuple):
    """A CacheForm is the way in which keys and values are kept on the GPU, by default as in transformers'
    ``DynamicCache``, whose ``torch.cat`` reads and writes all of them in every pass."""

    room: int = 0
    """Number of tokens for which a cache of fixed size has room, and on all of which attention works
    (``StaticCache``); 0: the cache grows."""
    first: float = 0.0
    """Traffic [B] within HBM per element when a prompt is written to a quantized cache; 0: not quantized."""
    later: float = 0.0
    """Traffic [B] within HBM per element in every later pass, which decodes all of a quantized cache."""
    paged: float = 0.0
    """Size [B] of an element that kernels read from a paged cache, to which new tokens are written in place;
    0: that of the model's type."""
    offloaded: bool = False
    """Whether it leaves the GPU between passes (``offloading=True``)."""
    operations: int = 0
    """Number of PyTorch operations of an update beyond the two of ``torch.cat``."""

    @property
    def joins(self) -> bool:
        """Whether ``torch.cat`` also copies the prompt, as it joins it with an empty cache."""
        return not self.room and not self.first and not self.paged

    def slowly_joined(self, *, new_tokens: int, context: int, window: int | None) -> int:
        """Return the number of positions of each sequence that ``torch.cat`` copies element by element.

        It does so where keys and values are no contiguous tensor: those of a prompt, which are transposed,
        and those that a full sliding layer keeps, which are a view of the last ones
        (``DynamicSlidingWindowLayer.update``) unless copies to another device have made them contiguous.
        """
        if not self.joins:
            return 0
        if new_tokens == context:
            return context
        if window is None or self.offloaded or context - new_tokens < window:
            return 0
        return self.held(new_tokens=new_tokens, context=context, window=window)

    def positions(self, context: int) -> int:
        """Return the number of positions on which a pass works whose last token has ``context`` keys."""
        return max(self.room, context)

    def held(self, *, new_tokens: int, context: int, window: int | None) -> int:
        """Return the number of positions of which attention reads keys and values."""
        if not self.room:
            return context if window is None else min(context, window - 1 + new_tokens)
        if window is None:
            return self.positions(context)
        return new_tokens if new_tokens > window else min(window, self.positions(context))

    def seen(self, *, new_tokens: int, context: int, window: int | None, fused: bool) -> tuple[int, int]:
        """Return the keys on which attention works, summed over the new tokens of a sequence, and the
        positions that it reads.

        In a cache of fixed size it works on all positions, those that the mask hides included. Fused kernels
        (``sdpa``) get a prompt without the empty positions (integrations/sdpa_attention.py).
        """
        held = self.held(new_tokens=new_tokens, context=context, window=window)
        if not self.room:
            return attended_keys(new_tokens=new_tokens, context=context, window=window), held
        if fused and window is None and new_tokens == context:
            return attended_keys(new_tokens=new_tokens, context=context), context
        return new_tokens * held, held

    def append_bytes(
        self, *, new_tokens: int, context: int, window: int | None, width: int, size: int
    ) -> float:
        """Return the traffic [B] within HBM that adds the new tokens of one sequence to the cache.

        ``width`` is the number of elements of a token, ``size`` that of an element in the model's type [B]. A
        full sliding cache of fixed size is rolled and copied back.
        """
        if self.room:
            if window is None or context <= window:
                return 2 * new_tokens * width * size
            return (2 if new_tokens == context else 4) * min(window, self.room) * width * size
        if self.paged:
            return new_tokens * width * (size + self.paged)
        held = self.held(new_tokens=new_tokens, context=context, window=window)
        if self.first:
            return held * width * (self.first if new_tokens == context else self.later)
        return 2 * held * width * size


GROWING = CacheForm()


def attended_keys(*, new_tokens: int, context: int, window: int | None = None) -> int:
    """Return the number of keys to which ``new_tokens`` tokens attend, summed; the last one's context is
    ``context``.

    Each token attends to all before it and to itself, at most to ``window``.
    """
    growing = new_tokens
    if window is not None:
        growing = min(new_tokens, max(0, window - (context - new_tokens)))
    past = context - new_tokens
    pairs_total = growing * past + growing * (growing + 1) // 2
    return pairs_total + (new_tokens - growing) * (window or 0)


class CpuAttentionCode(NamedTuple):
    """What attention on the CPU does in DeepSpeed's fork of transformers (kvcache-offload-cpu).

    Counted in tjruwase/transformers@35515d7d, for one new token of each sequence.
    """

    single: bool
    """Whether the buffer of keys and values is in single precision (False: in the model's data type, and cast
    in every step)."""
    passes: int
    """How often scores are read or written in single precision."""
    returns_half: bool
    """Whether the CPU casts the result to the model's data type, before it is copied to the GPU."""
    biases: bool = False
    """Whether a bias of every score is copied to host memory (ALiBi), in single precision."""
    obstacle: str = ""
    """What of the model the fork's version of transformers does not load; "" if it loads the model."""
