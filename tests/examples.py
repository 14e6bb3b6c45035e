"""How many examples random tests draw: few by default, many where new ones are looked for."""

from __future__ import annotations

import os

EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
FEW = 25
"""Examples of a test that does not say how many."""
_MORE = 40


def some(count: int) -> int:
    """The number of examples of a test that draws ``count`` by default: many times more to explore."""
    return count * _MORE if EXPLORES else count
