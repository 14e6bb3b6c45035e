"""How FlexGen moves bytes: streams of copies, pinning on the way, and copy threads.

Reference: FMInference/FlexLLMGen@004ffef, ``flexllmgen/pytorch_backend.py`` (``general_copy``,
``copy_worker_func``) and ``flex_opt.py`` (``sync``).

Memory that is not pinned is copied to a pinned tensor by the host thread itself before its copy to the GPU
begins. What goes from the GPU to such memory in a prefill, and all that is read from or written to disk, is
given to four copy threads, each with a pinned buffer as relay. Pages of the cache are touched for the first
time in the prefill, so that the operating system clears them then. Files are mapped (``np.memmap``); if the
page cache does not hold them, writes are taken to be as fast as the drive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from simoffload.schedule import Cause, CauseKind, OpKind
from simoffload.strategies.mapped_files import loops_rate, mapped_read
from simoffload.strategies.streams import HOST, StreamWriter
from simoffload.strategies.timing import picoseconds

if TYPE_CHECKING:
    from simoffload.strategies.flexgen_plan import FlexGenPlan

_THREADS = 4
_STREAMS = (
    "host",
    "compute",
    "load weights",
    "load cache",
    "store cache",
    *(f"copy thread {one}" for one in range(_THREADS)),
)
COMPUTE, LOAD_WEIGHT, LOAD_CACHE, STORE_CACHE, _FIRST_THREAD = range(1, 6)
COPY_CALL = 2
"""Number of PyTorch operations of a copy: the new tensor, and the copy itself."""
_SYNC_CALL = 2
"""Number of waits at the end of a slot: for the queue of the copy threads, and for the GPU."""


class CopyJob(NamedTuple):
    """A CopyJob is a copy that a copy thread does step by step; 0 stands for a step that it does not have."""

    label: str
    read: int = 0
    """Size [B] that it reads from a file."""
    from_gpu: int = 0
    traffic: int = 0
    """Memory traffic of the CPU [B]."""
    new: int = 0
    """Size of memory that is touched for the first time [B]."""
    to_gpu: int = 0
    written: int = 0
    cache: str = ""
    """Tier of the cache, if it is keys and values that are copied."""


class CopyWriter(StreamWriter):
    """A CopyWriter writes the copies of FlexGen, and its work in host memory."""

    def __init__(self, plan: FlexGenPlan, *, name: str) -> None:
        super().__init__(name=name, gpus=(0,), streams=_STREAMS, machine=plan.machine)
        host = plan.machine.host
        self._disk, self._files_cached = plan.options.disk, plan.cached
        self._operation = host.eager_costs.operation.value
        self._next_thread = 0

    def synchronize(self) -> None:
        """Let the host wait for all streams and copy threads."""
        for stream in range(1, len(_STREAMS)):
            self.host_waits(stream)
        self.calls(_SYNC_CALL)
        self._next_thread = 0

    def calls(self, number: int) -> None:
        """Let the host thread call so many PyTorch operations."""
        self.spend(number * self._operation)

    def copy(
        self,
        stream: int,
        sizes: Sequence[int],
        *,
        to_device: bool,
        label: str,
        pinned: bool = True,
        cache: str = "",
    ) -> None:
        """Begin copies of ``sizes`` [B] between host memory and the GPU, one after the other on a stream;
        ``cache`` as in ``copies``."""
        route, latency = self.copies(sizes, to_device=to_device, pinned=pinned, cache=cache)
        self.flush()
        after = self.so_far(HOST)
        self.add("copy", stream, fixed=latency, size=sum(sizes), route=route, label=label, after=after)

    def to_gpu(self, stream: int, size: int, label: str, *, cache: str = "") -> None:
        """Copy pageable memory to a pinned tensor in the host thread, and that to the GPU."""
        self.calls(COPY_CALL + 1)
        self.on_cpu(f"pinning {label}", 2 * size, cache=cache)
        self.copy(stream, [size], to_device=True, label=label, cache=cache)

    def on_cpu(self, label: str, traffic: int, *, cache: str = "") -> None:
        """Let the host thread, and the other threads of PyTorch's loops, work on host memory."""
        self.flush()
        self.add("cpu", HOST, size=traffic, route=self.loops(traffic, cache=cache), label=label)

    def loops(
        self, traffic: int, *, new: int = 0, share: float = 1.0, kind: CauseKind = "tensor-loops", cache: str
    ) -> int:
        """Return the route of PyTorch's loops over ``traffic`` [B] on all cores (``loops_rate``)."""
        rate = loops_rate(self.machine.host, traffic=traffic, new=new, share=share)
        return self.cpu_work(Cause(kind).of_cache(cache), rate)

    def submit(self, job: CopyJob) -> None:
        """Give a job to the next copy thread."""
        self.flush()
        thread = _FIRST_THREAD + self._next_thread
        self._next_thread = (self._next_thread + 1) % _THREADS
        begun = False

        def step(kind: OpKind, size: int, route: int, latency: int = 0) -> None:
            nonlocal begun
            after = () if begun else self.so_far(HOST)
            self.add(kind, thread, fixed=latency, size=size, route=route, label=job.label, after=after)
            begun = True

        stored = not self._files_cached
        link = partial(self.copies, pinned=True, cache=job.cache)
        if job.from_gpu:
            step("copy", job.from_gpu, *link([job.from_gpu], to_device=False))
        if job.read and stored:  # which copies to the buffer
            traffic = job.traffic
            step("read", job.read, *mapped_read(self, self._disk, job.read, traffic=traffic, cache=job.cache))
        else:
            step("cpu", job.traffic, self.loops(job.traffic, new=job.new, cache=job.cache))
        if job.to_gpu:
            step("copy", job.to_gpu, *link([job.to_gpu], to_device=True))
        if job.written and stored:
            step("write", job.written, *self._written(job))

    def _written(self, job: CopyJob) -> tuple[int, int]:
        """Return route and latency [ps] of copying to a mapped file."""
        tier = self._disk
        path, hops = self.way((tier, True), partial(self.machine.storage_write, tier))
        rate, cause = path.curve.rate(job.written), Cause("write", tier).of_cache(job.cache)
        return self.builder.route(cause=cause, hops=hops, cap=rate), picoseconds(path.latency)
