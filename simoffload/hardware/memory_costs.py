"""Rates of what a host and a GPU's driver do besides copying: new memory, the page cache, and checksums.

A rate is the bytes over the time that is added to that of the copy itself.
"""

from __future__ import annotations

from simoffload.documents import Frozen
from simoffload.hardware.quantities import Sourced
from simoffload.units import BytesPerSecond, Seconds


class NewMemory(Frozen):
    """Rates of pageable memory that is new: the kernel maps and clears its pages one by one, and takes them
    back.

    PyTorch frees the memory of a tensor after its use, and glibc returns large blocks to the kernel at once.
    """

    from_gpu: Sourced[BytesPerSecond]
    """Rate of the pages of memory into which one thread copies from a GPU."""
    from_page_cache: Sourced[BytesPerSecond]
    """Rate of the pages of memory into which ``torch.load`` copies from the page cache."""
    huge_pages: Sourced[BytesPerSecond]
    """Rate of the pages of memory for which NumPy requests huge pages."""
    cast: Sourced[BytesPerSecond]
    """Rate of the pages of the result of a cast, of each thread."""
    released: Sourced[BytesPerSecond]
    """Rate at which memory is given back, by any number of threads."""
    page_thread: Sourced[BytesPerSecond]
    """Rate at which one thread of PyTorch's loops obtains pages for new tensors."""
    page_limit: Sourced[BytesPerSecond]
    """Largest rate at which all threads of one process together obtain pages."""


class PageCache(Frozen):
    """Rates of the page cache, for finding and entering pages."""

    write: Sourced[BytesPerSecond]
    """Rate of ``write`` into the page cache."""
    copy_file: Sourced[BytesPerSecond]
    """Rate of ``shutil.copyfile`` within the page cache."""


class GpuAllocation(Frozen):
    """What the driver takes to allocate and release a block of GPU memory (cudaMalloc and cudaFree): a time,
    and the bytes over a rate."""

    allocate: Sourced[Seconds]
    """Time of allocating a block."""
    allocate_rate: Sourced[BytesPerSecond]
    """Rate of allocating the bytes of blocks."""
    release: Sourced[Seconds]
    """Time of releasing a block."""
    release_rate: Sourced[BytesPerSecond]
    """Rate of releasing the bytes of blocks."""
