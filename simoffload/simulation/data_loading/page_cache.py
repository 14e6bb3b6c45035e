"""Which part of an epoch is found in a page cache that drops what was not used for the longest time (LRU).

Linux's page cache is near to that, not the same: it keeps pages that it met twice in a second list, and so
saves a part of a dataset that is read in order. What is predicted here is the lower side.
"""

from __future__ import annotations

from math import log

__all__ = ["random_hit_ratio", "sequential_hit_ratio"]


def sequential_hit_ratio(cache: float, part: float) -> float:
    """Fraction of a later epoch found in ``cache`` [B] if ``part`` [B] are always read in the same order.

    All if they fit; else none: each page is dropped just before it is asked for again.
    """
    return 1.0 if part <= cache else 0.0


def random_hit_ratio(cached: float, *, share: float = 1.0, epoch: int = 2) -> float:
    """Fraction of an epoch found in the cache of a host that reads a new random part in every epoch.

    ``cached`` is the cache's size over the dataset's, ``share`` w the part of the dataset that the host
    reads in an epoch (its ranks over all ranks), ``epoch`` counts from 1, the cold one.

    An item that the host reads now, at the fraction y of its epoch, it last read k epochs ago, at x, with
    probability w (1 - w)^(k-1). Of the dataset the host has meanwhile not touched, large datasets assumed,

        (1 - w (1 - x)) (1 - w)^(k-1) (1 - w y)

    and LRU still has the item if that is at least 1 - cached. With x and y uniform, one host (w = 1) finds

        cached + (1 - cached) ln(1 - cached),

    less than ``cached``, which independent random reads (w -> 0, many epochs) find. Derived here.
    Raises ValueError for an epoch below 1 or a share outside of (0, 1].
    """
    if epoch < 1 or not 0 < share <= 1:
        raise ValueError(f"no epoch {epoch} of a host that reads {share} of the dataset")
    if cached >= 1:
        return 1 - (1 - share) ** (epoch - 1)
    hits, untouched, probability = 0.0, 1.0, share
    for _ in range(epoch - 1):
        level = (1 - max(0.0, cached)) / untouched
        if level >= 1:
            break
        hits += probability * _product_above(level, 1 - share)
        untouched *= 1 - share
        probability *= 1 - share
        if untouched <= 0 or probability < 1e-12:
            break
    return hits


def _product_above(level: float, low: float) -> float:
    """Probability that the product of two numbers, uniform in [low, 1], is at least ``level``."""
    if level <= low * low:
        return 1.0
    if level >= 1:
        return 0.0
    if level >= low:
        area = 1 - level + (level * log(level) if level > 0 else 0.0)
    else:
        knee = level / low  # below it the second factor is bounded by the level, above it by `low`
        area = knee - low - level * log(knee / low) + (1 - low) * (1 - knee)
    return area / (1 - low) ** 2
