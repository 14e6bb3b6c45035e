"""What FlexGen reads from its disk and writes to it in one generation.

Every position of the cache is written once, by the pass that computes it, and read by all later ones; weights
are read in every pass; hidden states on disk are written after every slot but the last one, and read before
every slot but the first one. What the page cache holds is not read from the drive, but the operating system
writes it there later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simoffload.results import StorageTraffic

if TYPE_CHECKING:
    from simoffload.strategies.flexgen_plan import FlexGenPlan


def disk_traffic(plan: FlexGenPlan) -> tuple[StorageTraffic, ...]:
    """Return the bytes that one generation of a block reads and writes on its disk; () without any."""
    if plan.options.disk not in plan.tiers:
        return ()
    work, slots = plan.workload, plan.slots
    prompt, steps = work.prompt_length, work.decode_steps
    number = slots.layers * len(slots.layer) + 2
    hidden = 0
    if plan.options.activations == "disk":
        positions = plan.gpu_batch_size * (prompt + steps)
        hidden = plan.options.gpu_batches * positions * plan.model.hidden_size * plan.model.dtype_bytes
    written = plan.cache_bytes(2, work.max_context) + (number - 1) * hidden
    read = 0
    if not plan.cached:
        less = 1 if plan.options.cpu_attention and not plan.options.compress_cache else 0
        contexts = range(prompt + 1 - less, prompt + steps + 1 - less)
        read = (1 + steps) * slots.weight_bytes("disk") + (number - 1) * hidden
        read += sum(plan.cache_bytes(2, context) for context in contexts)
    return (StorageTraffic(plan.options.disk, read, written),)
