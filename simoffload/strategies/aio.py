"""Units in which DeepSpeed's asynchronous I/O reads and writes files."""

from __future__ import annotations

__all__ = ["aio_unit", "round_up"]

_ALIGNED = 1024
"""[B] to which each aio thread's part of a file is padded (``AIO_ALIGNED_BYTES``, swap_tensor/utils.py)."""


def aio_unit(threads: int) -> int:
    """[B] of which every file and swap buffer is a multiple, with so many aio threads."""
    return _ALIGNED * threads


def round_up(size: int, unit: int) -> int:
    """[B] of the least number of whole units that hold ``size``."""
    return -(-size // unit) * unit
