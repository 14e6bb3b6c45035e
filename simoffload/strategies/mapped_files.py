"""Copies of tensors in mapped files.

Accelerate and FlexGen both map a file anew (``np.memmap``) whenever they need it, and let PyTorch copy it
with all its threads: ``load_offloaded_weight`` in accelerate/utils/offload.py, ``copy_worker_func`` in
flexllmgen/pytorch_backend.py. The kernel reads pages that the cache does not hold at page faults, and reads
ahead while the threads copy. The slowest of three determines the time: the drive with the read-aheads that
are in flight, the threads that copy, and what one file was measured to give on the host (``mapped_read``).
Measurements: docs/measurements/mapped-files.md.
"""

from __future__ import annotations

from functools import partial

from simoffload.hardware import Host
from simoffload.schedule import Cause
from simoffload.strategies.streams import StreamWriter
from simoffload.strategies.timing import picoseconds

_FAULTING = 8
"""Number of threads up to which page faults of one process become faster in total (Papagiannis et al.,
Optimizing Memory-mapped I/O for Fast Storage Devices, USENIX ATC 2020: Linux does not scale beyond)."""


def loops_rate(host: Host, *, traffic: int, new: int = 0, share: float = 1.0) -> int:
    """Return the rate [B/s] of PyTorch's loops over ``traffic`` [B] on all cores, of which ``new`` [B] are in
    pages that were never touched; a core has ``share`` of the rate of element-by-element loops."""
    cpu = host.cpu_optimizer
    memory = cpu.limit.value / cpu.numa_nodes.value
    return host.fsdp_costs.adamw_rate(share * cpu.cores.value, traffic=traffic, new=new, share=memory)


def mapped_read(
    writer: StreamWriter, tier: str, size: int, *, traffic: int, cache: str = ""
) -> tuple[int, int]:
    """Return route and latency [ps] of copying ``size`` [B] of a mapped file that is not in the page cache to
    memory that is in use, by loops that move ``traffic`` [B].

    ``cache`` is the tier of the key-value cache if it is keys and values.
    """
    key = "mapped file", tier, size, traffic, cache
    if key in writer.known:
        return writer.known[key]
    host = writer.machine.host
    path, hops = writer.way((tier, False), partial(writer.machine.storage_read, tier))
    block = writer.read_ahead(tier, path)
    ahead = min(_FAULTING, host.cpu_optimizer.cores.value) * block
    rate = path.file_rate(size, outstanding=min(size, ahead), block=block)
    rate = min(rate, loops_rate(host, traffic=traffic) * size // traffic)
    if host.mapped_read is not None:
        rate = min(rate, host.mapped_read.value)
    links = [int(writer.capacity(writer.machine.resources[link]) / each) for link, each in path.hops]
    rate = min([rate, *links])  # a drive that is faster than its slot hides no less of the copying
    route = writer.builder.route(cause=Cause("read", tier).of_cache(cache), hops=hops, cap=rate)
    writer.known[key] = route, picoseconds(path.latency)
    return writer.known[key]
