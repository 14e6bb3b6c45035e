"""Reading the training data: what the GPUs need, what storage and loaders deliver, when the GPUs wait."""

from __future__ import annotations

from simoffload.simulation.data_loading.epochs import look_ahead_bytes, predict_data_loading, stored_bytes
from simoffload.simulation.data_loading.page_cache import random_hit_ratio, sequential_hit_ratio

__all__ = [
    "look_ahead_bytes",
    "predict_data_loading",
    "random_hit_ratio",
    "sequential_hit_ratio",
    "stored_bytes",
]
