"""What PyTorch's FSDP and AdamW cost on the host, measured on one machine and scaled to others."""

from __future__ import annotations

import datetime

from simoffload.documents import Frozen
from simoffload.hardware.quantities import Count, Sourced
from simoffload.units import BytesPerSecond, Seconds

__all__ = ["FsdpCosts", "scaled_costs"]


class FsdpCosts(Frozen):
    """What the Python thread spends under FSDP, per event, and how fast AdamW runs on the CPU.

    ``n`` threads reach 1 / sqrt(1 / (n x thread)^2 + 1 / limit^2), as in ``CpuOptimizer``.
    """

    ranks: Sourced[Count]
    """Most ranks of one host with which these were measured, here or where they are scaled from."""
    operation: Sourced[Seconds]
    """A PyTorch operation of forward that autograd records; calls of modules take as many times more than in
    ``deepspeed``."""
    forward_hook: Sourced[Seconds]
    """A unit in forward: the hooks before and after it, beyond what they call."""
    backward_hook: Sourced[Seconds]
    """A unit in backward: the hooks before and after it, and its part of the one at the end."""
    unshard: Sourced[Seconds]
    """A unit whose shard is brought and cast."""
    copy_call: Sourced[Seconds]
    """Added with offloading for every shard or gradient that is copied."""
    gather: Sourced[Seconds]
    """Added on several ranks: the call of an all-gather."""
    view: Sourced[Seconds]
    """Added in forward for every parameter of a unit, which becomes a view of what was gathered."""
    reshard: Sourced[Seconds]
    """A unit that is let go."""
    reduce: Sourced[Seconds]
    """A unit whose gradients are reduced."""
    backward_call: Sourced[Seconds]
    """Backward of a module that launches kernels."""
    checkpoint: Sourced[Seconds]
    """A layer that keeps only its input, in forward."""
    recompute: Sourced[Seconds]
    """The same layer in backward, beyond the launches of its forward pass."""
    step_call: Sourced[Seconds]
    """A step of the optimizer."""
    adam_thread: Sourced[BytesPerSecond]
    """Bytes that one thread of AdamW reads and writes in tensors that are there, in the limit of few."""
    adam_limit: Sourced[BytesPerSecond]
    """All threads of one process, in the limit of many."""
    page_thread: Sourced[BytesPerSecond]
    """Bytes of AdamW's new tensors whose pages one thread gets from the operating system, which clears each
    when it is touched; by what that takes beyond writing them."""
    page_limit: Sourced[BytesPerSecond]
    """All threads of one process, in the limit of many."""

    def adamw_rate(self, threads: int, *, traffic: int, new: int, share: float) -> int:
        """[B/s] at which AdamW moves ``traffic`` bytes of a parameter, ``new`` of them in new tensors.

        ``share`` [B/s] is what the host's memory leaves to each of the processes that run it.
        """
        loops = _reached(threads * self.adam_thread.value, min(self.adam_limit.value, share))
        pages = _reached(threads * self.page_thread.value, self.page_limit.value)
        return int(traffic / (traffic / loops + new / pages))


def _reached(threads_rate: float, limit: float) -> float:
    return float((threads_rate**-2 + limit**-2) ** -0.5)


_REFERENCE_RANKS = 2
_REFERENCE = {
    "operation": 19.46e-6,
    "forward_hook": 210.5e-6,
    "backward_hook": 281.9e-6,
    "unshard": 267e-6,
    "copy_call": 37.65e-6,
    "gather": 109.5e-6,
    "view": 20.2e-6,
    "reshard": 121.7e-6,
    "reduce": 245.6e-6,
    "backward_call": 124e-6,
    "checkpoint": 629.2e-6,
    "recompute": 1244e-6,
    "step_call": 1136e-6,
}
"""[s] on a host with two H200 GPUs (Xeon, 32 cores; PyTorch 2.11, transformers 5.17):
validation/measured/fit/h200-2x-l."""
_REFERENCE_PAGES = {"page_thread": 1.734e9, "page_limit": 13.16e9}
"""[B/s] there."""
_OPERATION_S = 14.25e-6
"""[s] of a PyTorch operation in inference that stands for that host in its profile."""


def scaled_costs(*, operation_s: float, loops_thread: float, loops_limit: float) -> FsdpCosts:
    """Costs of a host on which FSDP was not measured.

    Times of the Python thread go with its time for an operation of PyTorch in inference; loops over tensors
    run at the host's own rates, and new pages come as fast as where they were measured.
    """
    slower = operation_s / _OPERATION_S
    times = {key: f"{value * slower * 1e6:.4f} us" for key, value in _REFERENCE.items()}
    rates = {"adam_thread": loops_thread, "adam_limit": loops_limit, **_REFERENCE_PAGES}
    values: dict[str, str | int] = {"ranks": _REFERENCE_RANKS, **times}
    values |= {key: f"{value / 1e9:.4f} GB/s" for key, value in rates.items()}
    about = {
        "origin": "estimate",
        "source": "PyTorch 2.11 on a host with two H200 GPUs (docs/measurements/fsdp.md), scaled",
        "date": datetime.date(2026, 11, 22),
    }
    return FsdpCosts.model_validate({key: {"value": value, **about} for key, value in values.items()})
