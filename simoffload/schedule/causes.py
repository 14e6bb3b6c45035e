"""What the time of an operation goes to, as a value: a route carries it, results add up times by it.

Nothing reads the text of a cause: whatever depends on a cause asks for its fields. ``results.cause_text``
makes the text.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

CauseKind = Literal[
    "host-thread",
    "update-wait",
    "gpu-compute",
    "gpu-optimizer",
    "gpu-gradients",
    "gathered-copies",
    "in-place",
    "host-to-gpu",
    "gpu-to-host",
    "gpu-to-gpu",
    "stage-to-stage",
    "all-gather",
    "all-reduce",
    "gradient-reduction",
    "broadcast",
    "column-broadcast",
    "read",
    "write",
    "mapped-copies",
    "host-copies",
    "new-pages",
    "new-pinned-memory",
    "page-cache-entry",
    "crc32",
    "cpu-work",
    "cpu-adam",
    "cpu-adamw",
    "cpu-casts",
    "cpu-overflow-check",
    "cpu-attention",
    "cpu-products",
    "cache-stores",
    "tensor-loops",
    "to-io-buffer",
    "to-array",
    "to-snapshot",
    "to-optimizer",
    "to-page-cache",
    "from-page-cache",
    "file-to-file",
    "own",
]
"""Kinds of causes: of the host thread, of the GPU, of transfers, of storage, of the CPU, of checkpoints.
``own`` is any other, which has a name. Every table by kind has an entry for each."""

Purpose = Literal["", "key-value cache", "page faults", "page faults of experts"]
"""Data that a transfer moves, where reports tell it apart; "" = anything else."""

HostMemory = Literal["pinned", "pageable", "never written"]
"""Host memory of a copy to or from a GPU; pageable memory that was never written has no pages yet."""


class Cause(NamedTuple):
    """A Cause is what time goes to: a kind of work or of transfer, and what tells it from others."""

    kind: CauseKind
    tier: str = ""
    """Tier that is read or written, or that holds the key-value cache; "" = none."""
    purpose: Purpose = ""
    memory: HostMemory = "pinned"
    gpus: tuple[int, ...] = ()
    """Numbers of the GPUs of one process between which it moves, or of the one that is not its main GPU."""
    readings: int = 0
    """How often a product may read its weights in host memory, for ``in-place``; 0 = certainly once."""
    name: str = ""
    """Name of a cause of kind ``own``."""

    @classmethod
    def own(cls, name: str) -> Cause:
        """Return a cause of another kind, with a name of its own."""
        return cls("own", name=name)

    @property
    def moves_cache(self) -> bool:
        """Whether it is a transfer of keys and values, or work of the CPU on them."""
        return self.purpose == "key-value cache"

    def of_cache(self, tier: str) -> Cause:
        """Return this cause for keys and values of a cache on a tier; unchanged for "", which is no cache."""
        return self._replace(tier=tier, purpose="key-value cache") if tier else self
