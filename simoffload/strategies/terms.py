"""Terms in which strategies describe themselves: settings with other values, how the weights are divided
between the GPUs and a larger memory, and the real runs that are like theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SERVED = "vllm"
"""Group of the real runs of vLLM, all on one GPU, with which compiled serving is compared."""


class Tunable(NamedTuple):
    """A Tunable is a setting with other values that may need less memory."""

    word: str
    """Name by which the remedies of a :class:`MemoryTerm` refer to the setting."""
    path: tuple[str, ...]
    """Path of the setting in a scenario."""
    now: float | bool
    values: tuple[Sequence[float], ...]
    """Other values in each direction, the nearest first: from one on, they need little enough of what is too
    small."""


class Split(NamedTuple):
    """A Split is a strategy for each number of parts of the weights that are on GPUs; more need more HBM, and
    less of all other tiers."""

    most: int
    """Largest number, with which all weights are on GPUs; 0 if the number has no choice."""
    section: Callable[[int], dict[str, Any]]
    """Function from the number to the section ``strategy`` of a scenario."""
    description: Callable[[int], str]
    """Function from the number to a description."""
    key: str = ""
    """Short name that tells it from other splits of the same strategy and GPUs."""
