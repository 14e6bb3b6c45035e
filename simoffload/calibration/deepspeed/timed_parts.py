"""How long the parts of DeepSpeed's backward pass and optimizer step keep the host thread.

The methods are DeepSpeed's own, wrapped on the instance while a step is recorded; those that a version lacks
are left out. Nothing waits for the GPU between them, so a part is as long as the host thread is in it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["BACKWARD", "OPTIMIZER", "Parts", "timed_parts"]

_PRIVATE = "_DeepSpeedZeroOptimizer_Stage3"
"""Prefix of the names that Python mangles (class of deepspeed/runtime/zero/stage3.py)."""
BACKWARD = (
    "reduce_ready_partitions_and_remove_grads",
    "__add_grad_to_ipg_bucket",
    "__reduce_and_partition_ipg_grads",
    "__avg_scatter_contiguous_grads",
    "__avg_scatter_grads",
    "partition_grads",
    "_offload_grad_partition_at_boundary",
    "_swap_out_offload_fp32_gradients",
    "independent_gradient_partition_epilogue",
)
"""Methods of the ZeRO-3 optimizer that run during the backward pass."""
OPTIMIZER = (
    "step",
    "_pre_step",
    "_partition_all_parameters",
    "_overflow_check_and_loss_scale_update",
    "_get_norm_groups",
    "_prepare_fp32_grad_for_sub_group",
    "_optimizer_states_and_gradient_swap_in",
    "unscale_and_clip_grads",
    "_optimizer_step",
    "_reassign_or_swap_out_partitioned_parameters",
    "_optimizer_states_and_gradient_swap_out",
    "_post_step",
)
"""Methods of the ZeRO-3 optimizer that run during its step."""

Parts = dict[str, dict[str, float]]
"""By name: "count", and "seconds" in all calls together, the parts within a part included."""


@contextlib.contextmanager
def timed_parts(subject: object, names: Sequence[str]) -> Iterator[Parts]:
    """Time methods of ``subject`` while the context lasts; those that were called stand in the result."""
    parts: Parts = {}
    wrapped: list[str] = []
    try:
        for name in names:
            attribute = f"{_PRIVATE}{name}" if name.startswith("__") else name
            method = getattr(subject, attribute, None)
            if callable(method) and attribute not in vars(subject):
                setattr(subject, attribute, _timed(method, name.strip("_"), parts))
                wrapped.append(attribute)
        yield parts
    finally:
        for attribute in wrapped:
            delattr(subject, attribute)


def _timed(method: Callable[..., Any], name: str, parts: Parts) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            row = parts.setdefault(name, {"count": 0, "seconds": 0.0})
            row["count"] += 1
            row["seconds"] += time.perf_counter() - begin

    return call
