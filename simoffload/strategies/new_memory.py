"""Which pageable memory is new, so that its pages are mapped and cleared (``new_memory`` of a host)."""

from __future__ import annotations

KEPT_BY_MALLOC = 32 * 2**20
"""[B] Largest block of freed memory that malloc keeps and uses again: mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX
on 64 bits."""
