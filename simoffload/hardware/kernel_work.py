"""What kernels of vLLM move and compute, by which tables of their speed are read and made.

The same functions serve a table's measured calls (``exchange.aiconfigurator``) and predictions.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

_TILE = 128
"""Queries, and keys, that a block of FlashAttention 3 takes at once (hopper/tile_size.h)."""
_PREFILL_CACHE = 8
"""Times that a prefill reads or writes a new key or value: it is read, written to its block, where it is not
joined with others, and read by attention (our choice, by rows of tables that make profiles: with 4 the share
of models with as many key-value heads as queries was 14 % lower, and that of few 12 % higher)."""
_DECODE_CACHE = 4
"""The same of the new token of a decode step, beside those that attention reads."""


class KernelWork(NamedTuple):
    """A KernelWork is what kernels move and compute, and where their speed is in a table."""

    rows: float
    outputs: float
    inputs: float
    traffic: float
    """Bytes that they read and write [B]."""
    flops: float
    kernels: int = 1
    apart: bool = False
    """Whether bytes and arithmetic are those of different kernels, whose times add up."""


class Attended(NamedTuple):
    """An Attended is sequences with as many new tokens and keys."""

    number: int
    new_tokens: int
    context: int
    """Keys of the last new token, itself included."""


class AttentionSizes(NamedTuple):
    """AttentionSizes are those of a layer's attention on a GPU."""

    heads: int
    shared: int
    """Heads of keys and values, which several query heads share."""
    width: int
    """Elements of each head, of which a query, a key and a value have as many."""
    window: int | None
    """Keys that a token attends to at most; None: all."""
    element: float
    """Size of an element [B]."""

    def held(self, context: int) -> int:
        """Return the keys that one token reads."""
        return context if self.window is None else min(self.window, context)


STORED_BYTES = {"float8": 1, "float4": 0.5 + 1 / 16}
"""Size [B] of an element that tensor cores multiply as it is stored, with its part of a scale of a group."""


def product_work(*, rows: int, outputs: int, inputs: int, weight: float, size: int) -> KernelWork:
    """Return the work of a product whose weights and inputs have ``weight`` [B] an element, and whose results
    have ``size``."""
    traffic = weight * inputs * (outputs + rows) + size * rows * outputs
    return KernelWork(rows, outputs, inputs, traffic, 2 * rows * outputs * inputs)


def decode_work(batch: Iterable[Attended], sizes: AttentionSizes, *, least_rows: int) -> KernelWork:
    """Return the work of attention of sequences with few new tokens each, mostly one: the write of keys and
    values, how contexts are split, attention, and the sum of the parts.

    By keys of a sequence, sequences x key-value heads, and the width of a head. The queries that share keys
    are rows of one product, of which tensor cores multiply ``least_rows`` at least.
    """
    groups = [(one.number, sizes.held(one.context), one.new_tokens) for one in batch]
    number, fed = sum(count for count, *_ in groups), sum(count * new for count, _, new in groups)
    read = sum(count * keys for count, keys, _ in groups)
    each, shared = sizes.width * sizes.element, sizes.shared
    traffic = each * (2 * read * shared + fed * (2 * sizes.heads + _DECODE_CACHE * shared))
    rows = sum(count * keys * max(new * sizes.heads / shared, least_rows) for count, keys, new in groups)
    flops = 4 * sizes.width * shared * rows
    return KernelWork(read / number, number * shared, sizes.width, traffic, flops, kernels=4, apart=True)


def prefill_work(batch: Iterable[Attended], sizes: AttentionSizes) -> KernelWork:
    """Return the work of attention of prompts: the write of keys and values, and attention by blocks.

    By keys of a token, blocks of queries, and the width of a head.
    """
    shared, seen, blocks, keys, held = sizes.shared, 0, 0, 0.0, 0
    for number, new, context in batch:
        seen += number * new
        blocks += number * shared * ceil(new * sizes.heads / shared / _TILE)
        all_keys = context - new / 2 + _TILE / 2
        keys += number * new * (all_keys if sizes.window is None else min(all_keys, sizes.window + _TILE))
        held += number * min(context - new, sizes.held(context))
    each = sizes.width * sizes.element
    traffic = each * (seen * (2 * sizes.heads + _PREFILL_CACHE * shared) + 2 * held * shared)
    flops = 4 * sizes.heads * sizes.width * keys
    return KernelWork(keys / seen, blocks, sizes.width, traffic, flops, kernels=4, apart=True)
