"""Storage: reads and writes with DeepSpeed's aio and GPUDirect handles in a folder (child process only)."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from simoffload_calibrate.child import Job
from simoffload_calibrate.micro.benchmarks import SkippedError

_KIB, _MIB = 1 << 10, 1 << 20
_TENSOR = 128 * _MIB
_BUFFERS = 4
_SMALL = 4096
_REQUESTS = 200
_EACH = 0.3
"""[s] Time of one setting in one direction and round."""


class AioSettings(NamedTuple):
    """The settings of an aio handle of DeepSpeed."""

    block: int
    queue_depth: int
    threads: int


_DEFAULT = AioSettings(_MIB, 8, 1)


def _settings() -> list[AioSettings]:
    """Return the default, each setting varied alone, and the corners of all three."""
    settings = [_DEFAULT]
    settings += [_DEFAULT._replace(queue_depth=depth) for depth in (1, 4, 32, 128)]
    settings += [_DEFAULT._replace(threads=threads) for threads in (2, 4, 8)]
    settings += [_DEFAULT._replace(block=block) for block in (256 * _KIB, 8 * _MIB)]
    blocks, depths, threads = (256 * _KIB, 8 * _MIB), (1, 128), (1, 8)
    settings += [
        AioSettings(block, depth, count) for depth in depths for count in threads for block in blocks
    ]
    return list(dict.fromkeys(settings))


def measure_storage(job: Job) -> dict[str, Any]:
    """Measure reads and writes by block, queue depth and threads, single tensors, and requests of 4 KiB."""
    storage = job.data["storage"]
    folder = Path(storage["scratch"])
    operations = _load("AsyncIOBuilder")
    if operations is None:
        raise SkippedError("DeepSpeed's async_io cannot be loaded; it needs g++, ninja and libaio-dev")
    files = _write_files(operations, folder, storage["size"])
    results: dict[str, Any] = {
        "filesystem": storage.get("filesystem", ""),
        "filesystem_bytes": shutil.disk_usage(folder).total,
        "file_bytes": len(files) * _TENSOR,
        "requests": _requests(files[0]),
        "tensors": _tensors(operations, files),
    }
    return results | _sweep(job, operations, files)


def _load(builder: str) -> Any:
    """Load an operation of DeepSpeed, compiled if necessary; None if this machine does not support it."""
    from deepspeed.ops import op_builder

    operation = getattr(op_builder, builder)()
    try:
        if not operation.is_compatible(verbose=False):
            return None
        return operation.load(verbose=False)
    except Exception as error:
        if builder == "GDSBuilder":
            return None
        raise SkippedError(f"{builder} cannot be loaded: {type(error).__name__}: {error}") from None


@contextmanager
def _handle(
    operations: Any, settings: AioSettings, count: int, size: int = _TENSOR
) -> Iterator[tuple[Any, Any]]:
    """Create a handle in the way of DeepSpeed's swapper, and pinned buffers."""
    handle = operations.aio_handle(settings.block, settings.queue_depth, False, True, settings.threads)
    example = torch.empty(0, dtype=torch.uint8)
    buffers = [handle.new_cpu_locked_tensor(size, example) for _ in range(count)]
    try:
        yield handle, buffers
    finally:
        for buffer in buffers:
            handle.free_cpu_locked_tensor(buffer)


def _write_files(operations: Any, folder: Path, size: int) -> list[str]:
    count = max(1, size // _TENSOR)
    files = [str(folder / f"tensor{index}") for index in range(count)]
    if all(Path(file).is_file() and Path(file).stat().st_size == _TENSOR for file in files):
        return files  # written in an earlier round
    with _handle(operations, _DEFAULT, 1) as (handle, (buffer,)):
        buffer.random_()
        for file in files:
            if handle.sync_pwrite(buffer, file) != 1 or Path(file).stat().st_size != _TENSOR:
                raise SkippedError(
                    "a file cannot be written; the filesystem may not support direct I/O (O_DIRECT)"
                )
    return files


def _sweep(job: Job, operations: Any, files: list[str]) -> dict[str, Any]:
    points: list[dict[str, Any]] = []
    left_out: list[list[Any]] = []
    chosen = _settings()[: 5 if job.quick else None]
    # All reads come before any write, because a drive that is still busy with writes reads more slowly.
    for operation, settings in [(name, one) for name in ("read", "write") for one in chosen]:
        if not job.in_time():
            left_out.append([operation, *settings])
            continue
        with _handle(operations, settings, _BUFFERS) as (handle, buffers):
            transferred, seconds = _batches(handle, buffers, files, write=operation == "write")
        point = {"operation": operation, "bytes": transferred, "seconds": seconds}
        points.append({**settings._asdict(), **point})
    return {"sweep": points, "left_out": left_out}


def _batches(handle: Any, buffers: list[Any], files: list[str], *, write: bool) -> tuple[int, list[float]]:
    """Return the size of a batch of tensors [B] and the time of each batch [s], for about ``_EACH``."""
    submit = handle.async_pwrite if write else handle.async_pread
    size = min(len(buffers), len(files))
    times: list[float] = []
    while not times or sum(times) < _EACH:
        begin = time.perf_counter()
        for index, buffer in zip(range(size), buffers, strict=False):
            submit(buffer, files[(len(times) * size + index) % len(files)])
        handle.wait()
        times.append(time.perf_counter() - begin)
    return size * _TENSOR, times


def _tensors(operations: Any, files: list[str]) -> list[dict[str, Any]]:
    """Time single reads with DeepSpeed's default settings: the call, and the wait for the data."""
    rows = []
    for size in (2 * _MIB, 16 * _MIB, 128 * _MIB):
        with _handle(operations, _DEFAULT, 1, size) as (handle, (buffer,)):
            times: list[tuple[float, float]] = []
            stop = time.perf_counter() + 0.7
            for index in range(15):
                begin = time.perf_counter()
                handle.async_pread(buffer, files[index % len(files)])
                submitted = time.perf_counter()
                handle.wait()
                times.append((submitted - begin, time.perf_counter() - submitted))
                if time.perf_counter() > stop and index >= 2:
                    break
        rows.append(
            {
                "bytes": size,
                "submit_seconds": [submit for submit, _ in times],
                "wait_seconds": [wait for _, wait in times],
            }
        )
    return rows


def _requests(file: str) -> dict[str, Any]:
    """Time single requests of 4 KiB at random offsets, without a library."""
    buffer = mmap.mmap(-1, _SMALL)
    buffer.write(bytes(_SMALL))
    descriptor = os.open(file, os.O_RDWR | os.O_DIRECT)
    try:
        reads = _latencies(lambda at: os.preadv(descriptor, [buffer], at))
        writes = _latencies(lambda at: os.pwritev(descriptor, [buffer], at))
    finally:
        os.close(descriptor)
    return {
        "bytes": _SMALL,
        "count": _REQUESTS,
        "read_seconds": reads,
        "write_seconds": writes,
    }


def _latencies(call: Callable[[int], object]) -> list[float]:
    generator = random.Random(1)
    times = []
    for _ in range(_REQUESTS):
        at = generator.randrange(_TENSOR // _SMALL) * _SMALL
        begin = time.perf_counter()
        call(at)
        times.append(time.perf_counter() - begin)
    return times


def measure_gds(job: Job) -> dict[str, Any]:
    """Measure reads directly into GPU memory with GPUDirect Storage.

    DeepSpeed's operation ends the process on a filesystem that GPUDirect Storage does not support.
    """
    storage = job.data["storage"]
    gds, operations = _load("GDSBuilder"), _load("AsyncIOBuilder")
    if gds is None or operations is None:
        raise SkippedError("DeepSpeed's gds operation cannot be loaded; it needs cuFile")
    files = _write_files(operations, Path(storage["scratch"]), min(storage["size"], _BUFFERS * _TENSOR))
    points: list[dict[str, Any]] = []
    for settings in (_DEFAULT, _DEFAULT._replace(threads=8)):
        handle = gds.gds_handle(settings.block, settings.queue_depth, False, True, settings.threads)
        buffers = [torch.empty(_TENSOR, dtype=torch.uint8, device=job.device) for _ in range(_BUFFERS)]
        for buffer in buffers:
            handle.pin_device_tensor(buffer)
        transferred, taken = _batches(handle, buffers, files, write=False)
        points.append({**settings._asdict(), "operation": "read", "bytes": transferred, "seconds": taken})
        for buffer in buffers:
            handle.unpin_device_tensor(buffer)
    return {"sweep": points}
