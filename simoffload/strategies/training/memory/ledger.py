"""A list of host allocations of one rank, which knows what page-locking adds to them."""

from __future__ import annotations

from collections.abc import Iterable

from simoffload.results.capacity import MemoryTerm
from simoffload.strategies.memory import pinned_rounding

__all__ = ["Ledger", "rounded"]


def rounded(size: int) -> int:
    """[B] that PyTorch page-locks for an allocation of ``size``: a power of two."""
    return size + pinned_rounding([size])


class Ledger:
    """Allocations in the memory of a host on which ``ranks`` processes make the same ones."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._terms: list[MemoryTerm] = []
        self._rounding = 0

    def add(
        self,
        name: str,
        sizes: int | Iterable[int],
        *,
        pinned: bool = False,
        remedy: str = "",
        once: bool = False,
    ) -> None:
        """Allocations that PyTorch makes, page-locked or not [B]."""
        found = [sizes] if isinstance(sizes, int) else list(sizes)
        if pinned:
            self._rounding += pinned_rounding(found)
        self._put(name, sum(found), pinned, remedy, once=once)

    def add_locked(self, name: str, size: int, *, remedy: str = "") -> None:
        """An allocation that DeepSpeed page-locks itself (swap buffers since 0.19.4): nothing is rounded."""
        self._put(name, size, True, remedy)

    def once(self, term: MemoryTerm) -> None:
        """Something that is there once on a host."""
        self._terms.append(term)

    def terms(self) -> tuple[MemoryTerm, ...]:
        """What the host holds, with what rounding adds."""
        rounding = MemoryTerm(
            "dram",
            "rounding of pinned allocations",
            self._rounding * self._ranks,
            pinned=True,
            remedy="unset pin_memory, or change sub_group_size so that buffers are just below a power of two",
        )
        return (*self._terms, *([rounding] if self._rounding else []))

    def _put(self, name: str, size: int, pinned: bool, remedy: str, *, once: bool = False) -> None:
        if size:
            term = MemoryTerm("dram", name, size * self._ranks, pinned=pinned, remedy=remedy, once=once)
            self._terms.append(term)
