"""What is known of a run before its simulation."""

from __future__ import annotations

from dataclasses import dataclass

from simoffload.results import CacheBlocks, Estimate, StorageRequests, StorageTraffic


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts are the properties of a run that are known before its simulation."""

    spread_bound: float | None = None
    """Upper bound of the decode throughput [tokens/s]; None unless GPUs gather weights from HBM
    (``spread_bound``)."""
    forward_flops: float = 0.0
    """Forward passes of one step on one GPU [FLOP]."""
    backward_flops: float = 0.0
    """Backward passes of one step on one GPU, without recomputation [FLOP]."""
    recomputed_flops: float = 0.0
    """Recomputation by checkpointing in one step on one GPU [FLOP]."""
    traffic: tuple[StorageTraffic, ...] = ()
    """Bytes that one step moves to and from storage."""
    requests: tuple[StorageRequests, ...] = ()
    """Full-size requests to storage up to the end of the first step; () if there are none."""
    estimates: tuple[Estimate, ...] = ()
    """Memory estimates by published rules of thumb; () if none applies to the strategy."""
    cache_blocks: CacheBlocks | None = None
    """Blocks of a paged cache for which a GPU has memory; None without one."""
    chunks: int = 1
    """Number of parts in which a prefill is computed, one after the other."""
    weight_moves: int = 0
    """How often a prefill moves weights outside HBM to the GPU; 0: none are there, or this is not counted."""
    hypothetical: str = ""
    """What the plan does that no program does, as a clause; "" for the plan of a program."""
