"""Splits: how a strategy divides the weights between the GPUs and a larger memory, by one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


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
