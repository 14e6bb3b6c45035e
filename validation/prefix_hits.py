"""This module counts how many blocks of a trace an LRU prefix cache of a given size finds.

    python -m validation.prefix_hits conversation_trace.jsonl

``FAST25-release/traces/conversation_trace.jsonl`` of kvcache-ai/Mooncake@3b5a594 has 36.64 % with an
unlimited cache. Whole requests are served one after the other, and every block of a prompt counts as full,
as in hit rates of hashes.
"""

from __future__ import annotations

import sys
from time import perf_counter

from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.requests import Requests
from simoffload.extensions.serving.scheduler import PrefixCache
from simoffload.extensions.serving.traces import read_trace
from simoffload.scenario.streams import StreamOptions

_BLOCK = 512
"""Tokens of a hash of Mooncake."""
_TOKENS = (100_000, 1_000_000, 3_000_000, 10_000_000, 50_000_000, None)


def hit_rate(requests: Requests, size: int, *, blocks: int | None, cache: PrefixCache | None = None) -> float:
    """Return the share of blocks of ``size`` tokens that are found where so many blocks are kept."""
    cache = RadixCache(size) if cache is None else cache
    found = total = 0
    for row, runs in enumerate(requests.runs):
        length = -(-int(requests.prompt[row]) // _BLOCK) * _BLOCK
        *others, (key, _) = runs or ((-1 - row, 0),)
        text = (*others, (key, length - sum(tokens for _, tokens in others)))
        hit, _ = cache.match(row, text, length + 1)
        if hit:
            cache.pin(row, text, hit)
        cache.insert(row, text, length)
        cache.release(row, text, length, passed=0, ended=True)
        if blocks is not None:
            cache.evict(blocks)
        found += hit // size
        total += length // size
    return found / total


def main(path: str) -> None:
    """Write the hit rate for caches of several sizes."""
    requests = read_trace(StreamOptions.model_validate({"trace": {"file": path}})).requests
    for size in (_BLOCK, 16):
        for tokens in _TOKENS:
            begin = perf_counter()
            rate = hit_rate(requests, size, blocks=None if tokens is None else tokens // size)
            name = "unlimited" if tokens is None else f"{tokens / 1e6:g}M tokens"
            took = perf_counter() - begin
            sys.stdout.write(
                f"blocks of {size}, {name}: {rate:.2%} ({len(requests.prompt)} requests, {took:.2f} s)\n"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
