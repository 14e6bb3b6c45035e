"""Questions that take more than one simulation."""

from __future__ import annotations

from simoffload.planning.compare import Comparison, compare, compare_fit, compare_scenarios, on_targets

__all__ = ["Comparison", "compare", "compare_fit", "compare_scenarios", "on_targets"]
