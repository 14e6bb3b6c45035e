"""Time of pageable memory that is new: the kernel maps and clears its pages one by one, and takes them back.

PyTorch frees the memory of a tensor after its use, and glibc returns large blocks to the kernel at once. The
constants were measured on one machine (an H200 in a virtual machine of 16 vCPU, Xeon of the Emerald Rapids
generation, Linux 6.18 with huge pages on request, PyTorch 2.11, 2026-11-21; medians of two to five runs).
Other hosts are assumed to be equal.
"""

from __future__ import annotations

FRESH_FROM_GPU_S = (0.1293 - 0.0133) / 2**28
"""[s/B] by which a copy from the GPU takes longer if the pageable memory is new, because the kernel must map
and clear its pages (256 MiB: 129.3 ms into new memory, 13.3 ms into existing memory; 1.8 us per page of 4
KiB)."""
FRESH_CAST_S = (0.3078 - 0.1446) / 2**29
"""[s/B] of one thread by which a cast takes longer if its result is in new pageable memory (512 MiB in
bfloat16: 307.8 ms into new memory, 144.6 ms into existing memory; 4, 8 and 16 threads: 0.34, 0.24 and 0.31 ns
x threads)."""
FREED_S = 0.0546 / 2**31
"""[s/B] for releasing pageable memory (2 GiB in 54.6 ms, 512 MiB in 13.3 ms, for any number of threads)."""
KEPT_BY_MALLOC = 32 * 2**20
"""[B] Largest block of freed memory that malloc keeps and uses again: mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX
on 64 bits."""
