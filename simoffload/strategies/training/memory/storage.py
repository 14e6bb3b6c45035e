"""What training keeps on storage, all ranks together.

Files: deepspeed/runtime/swap_tensor (0.19.8). A file for every parameter partition of at least
``max(1 MiB, aio.block_size)``, three for every sub-group (master weights and both moments), one for every
gradient partition of at least that size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simoffload.models.shape import SINGLE
from simoffload.results.capacity import MemoryTerm
from simoffload.strategies.training.memory.case import Case

__all__ = ["storage_terms"]

_STATES = 3


def storage_terms(case: Case, *, started: bool) -> tuple[MemoryTerm, ...]:
    """Before the first step (``started`` = False) neither moments nor gradients are there."""
    return tuple(_terms(case, started=started))


def _terms(case: Case, *, started: bool) -> Iterator[MemoryTerm]:
    if case.stage == 3 and case.weights_on_storage:
        # Partitions that max_in_cpu keeps in memory leave their files behind.
        sizes = Counter(case.parameter_partitions())
        size = sum(count * case.aligned(one) for one, count in sizes.items() if case.swapped(one))
        yield MemoryTerm(case.weights_tier, "parameters", case.ranks * size)
    groups = case.swapped_groups
    states = sum(case.aligned(SINGLE * group.numel) for group in groups)
    if not states:
        return
    name = "master weights and moments" if started else "master weights"
    count = _STATES if started else 1
    yield MemoryTerm(case.optimizer_tier, name, case.ranks * count * states)
    if started:
        smallest = case.settings.params.min_swap_bytes
        pieces = Counter(SINGLE * tensor.slice_numel for group in groups for tensor in group.tensors)
        size = sum(count * case.aligned(piece) for piece, count in pieces.items() if piece >= smallest)
        yield MemoryTerm(case.optimizer_tier, "gradients", case.ranks * size)
