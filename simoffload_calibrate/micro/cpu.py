"""What the CPU reads and multiplies: weights in memory, pages of a file, ggml (child process only)."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simoffload_calibrate.child import Job
from simoffload_calibrate.micro.benchmarks import SkippedError
from simoffload_calibrate.micro.host import thread_counts

# -- what the CPU reads ----------------------------------------------------------------------------
# Weights in memory, and pages of a mapped file.


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
        ahead = _read_ahead(file)
        for threads in thread_counts(*_FAULTING_THREADS):
            if reads and not job.in_time():
                break
            seconds = [_fault(file, size, threads) for _ in range(_FAULT_REPETITIONS)]
            reads.append({"threads": threads, "bytes": size, "seconds": seconds})
    except OSError as error:
        raise SkippedError(f"a file cannot be written and mapped: {error.strerror}") from None
    finally:
        file.unlink(missing_ok=True)
    return {"filesystem": storage.get("filesystem", ""), "read_ahead": ahead, "reads": reads}


def _read_ahead(file: Path) -> int:
    """Return the bytes that Linux reads around a missing page of a file; 0 if it does not say. A partition
    has what its drive has."""
    device = file.stat().st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    block = Path(f"/sys/dev/block/{numbers}").resolve()
    drive = block.parent if (block / "partition").exists() else block
    for path in (drive / "queue" / "read_ahead_kb", Path(f"/sys/class/bdi/{numbers}/read_ahead_kb")):
        with suppress(OSError, ValueError):
            return int(path.read_text()) << 10
    return 0


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


# -- products of ggml's CPU backend, called in the library of llama-cpp-python ---------------------


FORMATS = {"q4_k": 12, "q6_k": 14, "q8_0": 8, "mxfp4": 39}
"""Formats of weights, and their numbers in GGUF files (``ggml_type`` of ggml.h)."""
_WIDTH = 4096
"""Rows and columns of a matrix."""
_WEIGHTS = 1 << 30
"""[B] Weights of one format, more than caches hold, which a pass of one token reads once."""
_MATRICES = {8: 16, 32: 16, 512: 1}
"""Number of matrices that several tokens are multiplied with, by their number."""
_EXPERTS, _CHOSEN, _COLUMNS, _ROWS, _LAYERS = 128, 8, 2048, 768, 8
"""Experts of a layer, those that a token chooses, and the size of their matrices (Qwen3-30B-A3B), of which so
many layers exceed caches."""
_CHOICES = 30
"""Repetitions with other experts: each is short, and other threads of a host disturb some."""
_FLOATS, _INTEGERS = 0, 26
"""Numbers of types of 32 bits (``ggml_type``)."""
_MEETINGS, _SMALLEST = 512, 32
"""Products of as many rows and columns, which take as long as the meetings of the threads."""
_CHANGES, _CHAINS = 64, 40
"""Operations of a chain that changes between GPU and CPU after each, and how often it is computed."""
_THREADS = (1, 2, 4, 8, 16)
_NODES = 4096
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_INT, _LONG, _SIZE, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p


class _Parameters(ctypes.Structure):
    """Parameters of ``ggml_init``: size of its memory [B], the memory, whether tensors have none in it."""

    _fields_ = (("size", _SIZE), ("buffer", _POINTER), ("no_alloc", ctypes.c_bool))


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ggml_log_set": (None, _POINTER, _POINTER),
    "ggml_init": (_POINTER, _Parameters),
    "ggml_free": (None, _POINTER),
    "ggml_tensor_overhead": (_SIZE,),
    "ggml_graph_overhead_custom": (_SIZE, _SIZE, ctypes.c_bool),
    "ggml_new_graph_custom": (_POINTER, _POINTER, _SIZE, ctypes.c_bool),
    "ggml_new_tensor_2d": (_POINTER, _POINTER, _INT, _LONG, _LONG),
    "ggml_new_tensor_3d": (_POINTER, _POINTER, _INT, _LONG, _LONG, _LONG),
    "ggml_row_size": (_SIZE, _INT, _LONG),
    "ggml_mul_mat": (_POINTER, _POINTER, _POINTER, _POINTER),
    "ggml_mul_mat_id": (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    "ggml_build_forward_expand": (None, _POINTER, _POINTER),
    "ggml_quantize_chunk": (_SIZE, _INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER),
    "ggml_backend_alloc_ctx_tensors": (_POINTER, _POINTER, _POINTER),
    "ggml_backend_buffer_clear": (None, _POINTER, ctypes.c_uint8),
    "ggml_backend_buffer_free": (None, _POINTER),
    "ggml_backend_tensor_set": (None, _POINTER, _POINTER, _SIZE, _SIZE),
    "ggml_backend_cpu_init": (_POINTER,),
    "ggml_backend_cpu_set_n_threads": (None, _POINTER, _INT),
    "ggml_backend_graph_compute": (_INT, _POINTER, _POINTER),
    "ggml_backend_free": (None, _POINTER),
}
"""The functions of ggml that are called: what they return, and their arguments (ggml.h, ggml-alloc.h,
ggml-backend.h and ggml-cpu.h)."""
_SCHEDULED: dict[str, tuple[Any, ...]] = {
    "ggml_backend_cuda_init": (_POINTER, _INT),
    "ggml_scale": (_POINTER, _POINTER, _POINTER, ctypes.c_float),
    "ggml_set_input": (None, _POINTER),
    "ggml_set_output": (None, _POINTER),
    "ggml_backend_sched_new": (_POINTER, _POINTER, _POINTER, _INT, _SIZE, ctypes.c_bool, ctypes.c_bool),
    "ggml_backend_sched_set_tensor_backend": (None, _POINTER, _POINTER, _POINTER),
    "ggml_backend_sched_alloc_graph": (ctypes.c_bool, _POINTER, _POINTER),
    "ggml_backend_sched_graph_compute": (_INT, _POINTER, _POINTER),
    "ggml_backend_sched_free": (None, _POINTER),
}
"""The functions of ggml that are called where its library for CUDA is installed (ggml-cuda.h as well)."""


def measure_products(job: Job) -> dict[str, Any]:
    """Measure products of one token by 1 and more threads, of 8, 32 and 512 tokens by all, of one token with
    experts that are chosen anew each time, meetings of all threads, for which products are tiny, and, where
    ggml has CUDA, changes between the first GPU and the CPU. Matrices are in the CPU's plain buffer, which
    is not repacked.
    """
    with _Ggml(_library()) as ggml:
        rows: list[dict[str, Any]] = []
        for name, number in FORMATS.items():
            if rows and not job.in_time():
                break
            rows += _products(ggml, name, number)
        experts = [_experts(ggml, *one) for one in FORMATS.items() if job.in_time()]
        meetings, changes = _meetings(ggml), _changes(ggml) if job.in_time() else []
        return {"products": rows, "experts": experts, "meetings": meetings, "changes": changes}


def _library() -> list[Path]:
    """Return the files of ggml in llama-cpp-python, in the order in which they are loaded; the last is that
    of CUDA, if there is one."""
    spec = find_spec("llama_cpp")
    where = Path(spec.origin).parent / "lib" if spec and spec.origin else None
    if where is None:
        text = "ggml is not installed (pip install llama-cpp-python)"
        raise SkippedError(f"{text}; profiles import llama-bench gives the same numbers")
    names = ("base", "cpu", "cuda")
    found = [next(iter(sorted(where.glob(f"libggml-{name}.so*"))), None) for name in names]
    files = [one for one in found if one is not None]
    if not (found[0] and found[1]):
        text = f"{where} has no libggml-cpu.so of its own for this CPU"
        raise SkippedError(f"{text}; profiles import llama-bench gives the same numbers")
    return files


class _Ggml:
    """The CPU backend of ggml, and that of its first GPU, if it has one."""

    def __init__(self, files: Sequence[Path]) -> None:
        libraries: list[ctypes.CDLL] = []
        try:
            libraries += [ctypes.CDLL(str(one), mode=ctypes.RTLD_GLOBAL) for one in files[:2]]
            self._calls = {name: _function(libraries, name, of) for name, of in _FUNCTIONS.items()}
        except (OSError, AttributeError) as error:
            raise SkippedError(f"ggml cannot be loaded: {error}") from None
        self._quiet = _LOG(lambda *_: None)  # as long as ggml calls it
        self.call("log_set", ctypes.cast(self._quiet, _POINTER), None)
        self.cpu, self.gpu = self.call("backend_cpu_init"), None
        with suppress(OSError, AttributeError):  # without CUDA's own libraries it has the CPU alone
            libraries += [ctypes.CDLL(str(one), mode=ctypes.RTLD_GLOBAL) for one in files[2:]]
            self._calls |= {name: _function(libraries, name, of) for name, of in _SCHEDULED.items()}
            self.gpu = self.call("backend_cuda_init", 0)

    def __enter__(self) -> _Ggml:
        return self

    def __exit__(self, *_: object) -> None:
        for one in filter(None, (self.gpu, self.cpu)):
            self.call("backend_free", one)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of ggml by its name without "ggml_"."""
        return self._calls[f"ggml_{name}"](*arguments)

    def _room(self, nodes: int) -> int:
        """Return the memory [B] of a graph of so many nodes and of its tensors."""
        overhead = self.call("graph_overhead_custom", _NODES, False)
        return int(3 * nodes * self.call("tensor_overhead") + overhead)

    @contextmanager
    def graph(self, build: Callable[[Any], tuple[list[Any], Any]]) -> Iterator[tuple[Any, list[Any]]]:
        """Yield a graph of what ``build`` returns for a context, its results and its weights, in memory that
        is cleared."""
        context = self.call("init", _Parameters(self._room(_NODES), None, True))
        graph = self.call("new_graph_custom", context, _NODES, False)
        weights, results = build(context)
        for one in results:
            self.call("build_forward_expand", graph, one)
        buffer = self.call("backend_alloc_ctx_tensors", context, self.cpu)
        if not buffer:
            self.call("free", context)
            raise SkippedError("ggml has no memory for its weights")
        self.call("backend_buffer_clear", buffer, 0)
        try:
            yield graph, weights
        finally:
            self.call("backend_buffer_free", buffer)
            self.call("free", context)

    def seconds(
        self,
        graph: Any,
        threads: int,
        count: int,
        before: Callable[[], object] = lambda: None,
        repetitions: int = _REPETITIONS,
    ) -> list[float]:
        """Return the time of each of ``count`` nodes of a graph [s], by repetition; ``before`` is called
        before each."""
        self.call("backend_cpu_set_n_threads", self.cpu, threads)
        times = []
        for _ in range(repetitions + 1):
            before()
            begin = time.perf_counter()
            if self.call("backend_graph_compute", self.cpu, graph):
                raise SkippedError("ggml cannot compute products")
            times.append((time.perf_counter() - begin) / count)
        return times[1:]

    def in_turn(self, backends: Sequence[Any]) -> list[float]:
        """Return the time [s], by repetition, of a small operation on each of ``backends``, one after the
        other, in which ggml's scheduler copies the result of one to the next; none if it cannot."""
        context = self.call("init", _Parameters(self._room(len(backends)), None, True))
        graph = self.call("new_graph_custom", context, _NODES, False)
        both = (_POINTER * 2)(self.gpu, self.cpu)
        schedule = self.call("backend_sched_new", both, None, 2, _NODES, False, True)
        last = self.call("new_tensor_2d", context, _FLOATS, _COLUMNS, 1)
        self.call("set_input", last)
        self.call("backend_sched_set_tensor_backend", schedule, last, self.cpu)
        for one in backends:
            last = self.call("scale", context, last, 1.0001)
            self.call("backend_sched_set_tensor_backend", schedule, last, one)
        self.call("set_output", last)
        self.call("build_forward_expand", graph, last)
        times = []
        try:
            if not self.call("backend_sched_alloc_graph", schedule, graph):
                return []
            for _ in range(_CHAINS):
                begin = time.perf_counter()
                if self.call("backend_sched_graph_compute", schedule, graph):
                    return []
                times.append(time.perf_counter() - begin)
        finally:
            self.call("backend_sched_free", schedule)
            self.call("free", context)
        return times[_CHAINS // 4 :]


def _function(libraries: Sequence[ctypes.CDLL], name: str, types: tuple[Any, ...]) -> Any:
    """Return a function of the first library that has it. Raises AttributeError if none has it."""
    has = next((one for one in libraries if hasattr(one, name)), libraries[-1])
    function = getattr(has, name)
    function.restype, *function.argtypes = types
    return function


def _products(ggml: _Ggml, name: str, number: int) -> Iterator[dict[str, Any]]:
    """Yield rows of a format, by tokens and threads."""
    size = ggml.call("row_size", number, _WIDTH) * _WIDTH
    for tokens, count in {1: _WEIGHTS // size, **_MATRICES}.items():

        def build(context: Any, tokens: int = tokens, count: int = count) -> tuple[list[Any], Any]:
            states = ggml.call("new_tensor_2d", context, _FLOATS, _WIDTH, tokens)
            weights = [ggml.call("new_tensor_2d", context, number, _WIDTH, _WIDTH) for _ in range(count)]
            return weights, [ggml.call("mul_mat", context, one, states) for one in weights]

        with ggml.graph(build) as (graph, weights):
            block = _blocks(ggml, number, _WIDTH, _WIDTH)
            for one in weights:
                ggml.call("backend_tensor_set", one, block.ctypes.data, 0, size)
            for threads in thread_counts(*(_THREADS if tokens == 1 else ())):
                seconds = ggml.seconds(graph, threads, count)
                flops = 2 * _WIDTH * _WIDTH * tokens
                row = {"format": name, "tokens": tokens, "threads": threads, "bytes": size, "flops": flops}
                yield row | {"seconds": seconds}


def _experts(ggml: _Ggml, name: str, number: int) -> dict[str, Any]:
    """Return the time of products of one token with the experts that it chooses, by all threads."""
    random = np.random.default_rng(1)
    size = ggml.call("row_size", number, _COLUMNS) * _ROWS

    def build(context: Any) -> tuple[list[Any], Any]:
        states = ggml.call("new_tensor_3d", context, _FLOATS, _COLUMNS, 1, 1)
        each = range(_LAYERS)
        weights = [ggml.call("new_tensor_3d", context, number, _COLUMNS, _ROWS, _EXPERTS) for _ in each]
        chosen = [ggml.call("new_tensor_2d", context, _INTEGERS, _CHOSEN, 1) for _ in each]
        pairs = zip(weights, chosen, strict=True)
        return [*weights, *chosen], [ggml.call("mul_mat_id", context, one, states, ids) for one, ids in pairs]

    with ggml.graph(build) as (graph, tensors):
        block = _blocks(ggml, number, _COLUMNS, _ROWS)
        for one in tensors[:_LAYERS]:
            for expert in range(_EXPERTS):
                ggml.call("backend_tensor_set", one, block.ctypes.data, expert * size, size)

        def choose() -> None:
            for one in tensors[_LAYERS:]:
                ids = random.permutation(_EXPERTS)[:_CHOSEN].astype(np.int32)
                ggml.call("backend_tensor_set", one, ids.ctypes.data, 0, ids.nbytes)

        threads = thread_counts()[-1]
        seconds = ggml.seconds(graph, threads, _LAYERS, choose, _CHOICES)
        return {"format": name, "threads": threads, "bytes": _CHOSEN * size, "seconds": seconds}


def _blocks(ggml: _Ggml, number: int, columns: int, rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a matrix of normal numbers in a format."""
    few = 64
    values = np.random.default_rng(1).normal(0, 0.02, (few, columns)).astype(np.float32)
    part = np.zeros(ggml.call("row_size", number, columns) * few, dtype=np.uint8)
    ggml.call("quantize_chunk", number, values.ctypes.data, part.ctypes.data, 0, few, columns, None)
    return np.tile(part, rows // few)


def _meetings(ggml: _Ggml) -> list[dict[str, Any]]:
    """Return the time of a meeting of all threads, of which there are two in a product."""

    def build(context: Any) -> tuple[list[Any], Any]:
        weights = ggml.call("new_tensor_2d", context, _FLOATS, _SMALLEST, _SMALLEST)
        last = ggml.call("new_tensor_2d", context, _FLOATS, _SMALLEST, 1)
        for _ in range(_MEETINGS):
            last = ggml.call("mul_mat", context, weights, last)
        return [], [last]

    with ggml.graph(build) as (graph, _):
        return [
            {"threads": threads, "seconds": ggml.seconds(graph, threads, 2 * _MEETINGS)}
            for threads in thread_counts(*_THREADS)
        ]


def _changes(ggml: _Ggml) -> list[dict[str, Any]]:
    """Return the times of chains of small operations on the GPU, on the CPU, and on both in turn; none
    without a GPU."""
    if ggml.gpu is None:
        return []
    ggml.call("backend_cpu_set_n_threads", ggml.cpu, thread_counts()[-1])
    pairs = {"gpu": (ggml.gpu, ggml.gpu), "cpu": (ggml.cpu, ggml.cpu), "both": (ggml.gpu, ggml.cpu)}
    times = {where: ggml.in_turn([*pair] * (_CHANGES // 2)) for where, pair in pairs.items()}
    rows = [{"where": where, "operations": _CHANGES, "seconds": each} for where, each in times.items()]
    return rows if all(times.values()) else []
