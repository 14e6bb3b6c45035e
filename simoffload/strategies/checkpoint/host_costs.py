"""What one CPU thread spends on the bytes of a checkpoint beyond copying them.

Measured on one machine (an H200 in a virtual machine of 16 vCPU, Xeon of the Emerald Rapids generation, Linux
6.18 with huge pages on request, ext4, PyTorch 2.11, 2026-11-21; medians of two to five runs), each mechanism
by itself: what ``torch.save`` takes from the GPU as a whole was measured there, too, and serves as the test
(tests/strategies/checkpoint/data/torch-save-h200.json). Other hosts are taken to be alike. The copy itself
goes at the host's ``memcpy_rate`` (6.84 GB/s on such a machine) or over the path from the GPU.

Why it is so slow: a tensor that comes from the GPU goes to fresh memory, whose pages the kernel maps and
clears one by one (PyTorch frees the memory after each tensor, and glibc gives blocks above 32 MiB back to the
kernel at once: mallopt(3), M_MMAP_THRESHOLD); the zip format has a CRC-32 over everything
(torch.serialization.set_crc32_options); the page cache is a copy more. A maintainer of PyTorch saw 1.4 GB/s
into fresh memory of an A100's host against 12.6 GB/s into pinned memory (pytorch/pytorch#138018).
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "CRC32_S",
    "DIRTY_BACKGROUND",
    "DIRTY_LIMIT",
    "FILE_COPY_S",
    "FREED_S",
    "FRESH_CAST_S",
    "FRESH_COPY_S",
    "FRESH_FROM_GPU_S",
    "FRESH_READ_S",
    "KEPT_BY_MALLOC",
    "PAGE_CACHE_S",
    "fresh_share",
]

FRESH_FROM_GPU_S = (0.1293 - 0.0133) / 2**28
"""[s/B] more for a copy from the GPU into fresh pageable memory than into pages already there (256 MiB:
129.3 against 13.3 ms, that is 1.8 us for each page of 4 KiB)."""
FRESH_CAST_S = (0.3078 - 0.1446) / 2**29
"""[s/B] of one thread more for a cast into fresh pageable memory than into pages already there (512 MiB in
bfloat16: 307.8 against 144.6 ms; with 4, 8 and 16 threads together 0.34, 0.24 and 0.31 ns x threads)."""
FREED_S = 0.0546 / 2**31
"""[s/B] for giving pageable memory back (2 GiB in 54.6 ms, 512 MiB in 13.3 ms, whatever the threads)."""
FRESH_READ_S = 1.370 / 3.2e9 - 1 / 6.84e9
"""[s/B] of ``torch.load`` from the page cache into fresh memory beyond the copy (3.2 GB in 1.37 s)."""
FRESH_COPY_S = (0.0588 - 0.0187) / 2**28
"""[s/B] more for a copy into fresh memory by NumPy, which asks for huge pages, than into pages already there
(256 MiB: 58.8 against 18.7 ms)."""
PAGE_CACHE_S = 0.604 / 3.2e9 - 1 / 6.84e9
"""[s/B] of ``write`` into the page cache beyond the copy: pages are found and entered (3.2 GB in 0.604 s)."""
CRC32_S = (1.267 - 0.604) / 3.2e9
"""[s/B] of the zip format's checksum (3.2 GB in 1.267 s with it, 0.604 s without)."""

FILE_COPY_S = 0.755 / 3.2e9 - 1 / 6.84e9
"""[s/B] of ``shutil.copyfile`` from page cache to page cache beyond the copy (3.2 GB in 0.755 s)."""

KEPT_BY_MALLOC = 32 * 2**20
"""[B] up to which freed memory is used again: mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX on 64 bits."""

DIRTY_LIMIT = 0.20
"""Of host memory: with so much not yet written to storage, writers wait (vm.dirty_ratio, default in
mm/page-writeback.c)."""
DIRTY_BACKGROUND = 0.10
"""Of host memory: from here on the kernel writes to storage (vm.dirty_background_ratio, default there)."""


def fresh_share(sizes: Iterable[int]) -> float:
    """Fraction of the bytes of tensors of ``sizes`` [B] that go to fresh memory."""
    total = fresh = 0
    for size in sizes:
        total += size
        fresh += size if size > KEPT_BY_MALLOC else 0
    return fresh / total if total else 0.0
