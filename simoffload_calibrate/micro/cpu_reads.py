"""What the CPU reads: weights in memory, and pages of a mapped file (child process only)."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simoffload_calibrate.child import Job
from simoffload_calibrate.micro.host import thread_counts
from simoffload_calibrate.micro.plan import SkippedError

_READ, _READ_QUICK = 2 << 30, 256 << 20
"""[B] Memory that is read, several times what caches hold (320 MB on an Emerald Rapids)."""
_REPETITIONS = 3
_FAULTING_THREADS = (1, 4, 16)
_FAULT_REPETITIONS = 2
_WRITTEN = 16 << 20
"""[B] Size of a write of the mapped file."""
_PAGE = mmap.PAGESIZE
_LEFT = 0.01
"""Largest share of the pages of an evicted file that are in memory nevertheless."""


def measure_reads(job: Job) -> dict[str, Any]:
    """Measure sums of integers by 1, 2, 4, … threads: every byte is read once, and nothing is written.

    All threads write the numbers first, so that their pages are on all NUMA nodes.
    """
    size = _READ_QUICK if job.quick else _READ
    before = torch.get_num_threads()
    torch.set_num_threads(thread_counts()[-1])
    numbers = torch.ones(size // 8, dtype=torch.int64)
    reads = []
    try:
        for threads in thread_counts(*(1 << power for power in range(10))):
            torch.set_num_threads(threads)
            numbers[: size // 64].sum()  # starts the threads
            seconds = []
            for _ in range(_REPETITIONS):
                begin = time.perf_counter()
                numbers.sum()
                seconds.append(time.perf_counter() - begin)
            reads.append({"threads": threads, "bytes": size, "seconds": seconds})
    finally:
        torch.set_num_threads(before)
    return {"reads": reads}


def measure_page_faults(job: Job) -> dict[str, Any]:
    """Measure how fast threads touch every page of a mapped file that Linux has evicted, each thread its part
    from the beginning to the end.

    The file has a quarter of the size of the storage files and is removed again.
    """
    storage = job.data["storage"]
    file = Path(storage["scratch"]) / "mapped"
    size = storage["size"] // 4 // _PAGE * _PAGE
    reads: list[dict[str, Any]] = []
    try:
        _write(file, size)
        for threads in thread_counts(*_FAULTING_THREADS):
            if reads and not job.in_time():
                break
            seconds = [_fault(file, size, threads) for _ in range(_FAULT_REPETITIONS)]
            reads.append({"threads": threads, "bytes": size, "seconds": seconds})
    except OSError as error:
        raise SkippedError(f"a file cannot be written and mapped: {error.strerror}") from None
    finally:
        file.unlink(missing_ok=True)
    return {"filesystem": storage.get("filesystem", ""), "reads": reads}


def _write(file: Path, size: int) -> None:
    """Write bytes that no filesystem compresses, onto the drive."""
    part = os.urandom(min(size, _WRITTEN))
    with file.open("wb") as target:
        for at in range(0, size, len(part)):
            target.write(part[: size - at])
        os.fsync(target.fileno())


def _fault(file: Path, size: int, threads: int) -> float:
    """Evict a file and return the time [s] of touching its pages."""
    with file.open("rb") as source:
        os.posix_fadvise(source.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
        mapped = mmap.mmap(source.fileno(), size, prot=mmap.PROT_READ)
    pages = np.frombuffer(mapped, dtype=np.uint8).reshape(-1, _PAGE)
    if _in_memory(pages) > _LEFT:
        raise SkippedError(
            "Linux keeps the file in memory, as on tmpfs; name a folder on the drive with --storage"
        )
    parts = np.array_split(pages[:, 0], threads)
    with ThreadPoolExecutor(threads) as pool:
        begin = time.perf_counter()
        list(pool.map(np.max, parts))  # without the lock of the interpreter
        return time.perf_counter() - begin


def _in_memory(pages: np.ndarray[Any, np.dtype[np.uint8]]) -> float:
    """Return the share of mapped pages that are in memory."""
    found = np.zeros(len(pages), dtype=np.uint8)
    arguments = ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(pages.size)
    if ctypes.CDLL(None, use_errno=True).mincore(*arguments, ctypes.c_void_p(found.ctypes.data)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return float((found & 1).mean())
