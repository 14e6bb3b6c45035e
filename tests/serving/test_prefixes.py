"""The prefix cache as a tree equals the block pool of vLLM block by block."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from simoffload.extensions.serving.prefixes import RadixCache
from simoffload.extensions.serving.scheduler import PrefixCache, ReplicaState, Runs
from simoffload.strategies import ONE_GROUP, CacheGroups
from tests.serving.streams import Stream, poisson, replay
from validation.block_pool import BlockPool


def _texts(draw: np.random.Generator, number: int) -> list[Runs]:
    """Return prompts of which many begin alike: with texts, parts of texts, and what others generated."""
    found: list[Runs] = []
    for row in range(number):
        kind = draw.integers(5)
        if kind == 0:
            found.append(None)
            continue
        if kind == 1 and row and (other := found[int(draw.integers(row))]):
            keep = other[: int(draw.integers(1, len(other) + 1))]
            cut = (keep[-1][0], int(draw.integers(1, keep[-1][1] + 1)))
            found.append((*keep[:-1], cut, (1000 + row, int(draw.integers(1, 40)))))
            continue
        if kind == 2 and row and (other := found[before := int(draw.integers(row))]):
            found.append((*other, (-1 - before, int(draw.integers(1, 30))), (1000 + row, 7)))
            continue
        parts = draw.integers(1, 5)
        found.append(tuple((int(draw.integers(1, 4)), int(draw.integers(1, 50))) for _ in range(parts)))
    return found


GROUPS = [(1, 0, 1), (1, 1, 48), (1, 2, 16), (2, 1, 64), (0, 1, 32)]
"""Numbers of groups with full attention and with a window, and its tokens."""


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_random_operations_equal_those_block_by_block(
    seed: int, size: int, groups: tuple[int, int, int]
) -> None:
    draw = np.random.default_rng(seed)
    texts = _texts(draw, 150)
    tree, pool = RadixCache(size), BlockPool(size)
    both: tuple[PrefixCache, PrefixCache] = tree, pool
    for cache in both:
        cache.attend(*groups)
    number, sliding, window = groups[0] + groups[1], groups[1], groups[2]
    running: dict[int, int] = {}
    passed: dict[int, int] = {}
    gone: set[int] = set()  # whose blocks no text leads to
    capacity = number * (int(draw.integers(5, 400)) // size + 1)
    evicted = found_late = 0

    def same(name: str, *arguments: object, **options: object) -> object:
        one, other = (getattr(cache, name)(*arguments, **options) for cache in both)
        assert one == other, name
        return one

    for row, runs in enumerate(texts):
        length = sum(tokens for _, tokens in runs or ((0, 30),)) + int(draw.integers(0, 20))
        hit: Any = same("match", row, runs, length)
        found: int = hit[0]
        if found:
            same("pin", row, runs, found)
        running[row] = found
        passed[row] = max(0, found - window + 1) // size if sliding else 0
        found_late += passed[row] > 0
        for _ in range(int(draw.integers(0, 6))):
            one = int(draw.choice(list(running)))
            action = draw.integers(4)
            if action == 0:
                ended = bool(one % 2)
                running[one] += int(draw.integers(0, 50))
                same("release", one, texts[one], running.pop(one), passed=passed[one], ended=ended)
                if ended and texts[one] is None:
                    gone.add(one)
            elif action == 1 and sliding:
                left = max(0, running[one] - window) // size
                if left > passed[one]:
                    same("drop", one, texts[one], passed[one], left)
                    passed[one] = left
            else:
                running[one] += int(draw.integers(0, 50))
                same("insert", one, texts[one], running[one])
            if not running:
                break
        before = tree.unused
        same("evict", capacity)
        evicted += before > tree.unused
        assert tree.unused == pool.unused
        ask = int(draw.integers(row + 1))
        if ask not in running and ask not in gone:
            same("match", ask, texts[ask], 3000)
            tree._own.pop(ask, None)
        if row == 100:
            tree = pickle.loads(pickle.dumps(tree))
            both = tree, pool
    assert evicted > 3
    assert found_late or not sliding or window > 30


@pytest.mark.parametrize(
    ("blocks", "groups"),
    [(80, ONE_GROUP), (200, ONE_GROUP), (1000, ONE_GROUP), (200, CacheGroups(full=1, sliding=1, window=96))],
)
def test_a_stream_is_served_the_same(blocks: int, groups: CacheGroups) -> None:
    requests = poisson(200, 3.0, prompt=(1, 300))
    draw = np.random.default_rng(1)
    texts = [
        None if one is None else tuple((key, 5 * tokens) for key, tokens in one) for one in _texts(draw, 200)
    ]
    prompt = np.array([sum(t for _, t in one or ((0, 100),)) for one in texts])
    keep = prompt < 80 * 16 - 300
    runs = [one for one, here in zip(texts, keep, strict=True) if here]
    stream = Stream(requests.arrival[keep], prompt[keep], requests.output[keep], runs)

    def watch(state: ReplicaState) -> None:
        assert state.cache is not None
        assert 0 <= state.cache.unused <= state.free <= blocks

    options = {"blocks": blocks, "groups": groups, "budget": 256, "max_seqs": 24, "watch": watch}
    served = [
        replay(stream, cache=cache, async_scheduling=True, **options)  # type: ignore[arg-type]
        for cache in (RadixCache(), BlockPool())
    ]
    for name in ("first", "finished", "cached", "preemptions"):
        np.testing.assert_array_equal(getattr(served[0], name), getattr(served[1], name))
    assert served[0].cached.any()
