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
from simoffload.strategies.streams import StreamWriter

_FAULTING = 8
"""Number of threads up to which page faults of one process become faster in total (Papagiannis et al.,
Optimizing Memory-mapped I/O for Fast Storage Devices, USENIX ATC 2020: Linux does not scale beyond)."""


def loops_rate(host: Host, *, traffic: int, new: int = 0, share: float = 1.0) -> int:
    """Return the rate [B/s] of PyTorch's loops over ``traffic`` [B] on all cores, of which ``new`` [B] are in
    pages that were never touched; a core has ``share`` of the rate of element-by-element loops."""
    cpu = host.cpu_optimizer
    memory = cpu.limit.value / cpu.numa_nodes.value
    return host.fsdp_costs.adamw_rate(share * cpu.cores.value, traffic=traffic, new=new, share=memory)


def mapped_read(out: StreamWriter, tier: str, size: int, *, traffic: int, cache: str = "") -> tuple[int, int]:
    """Return route and latency [ps] of copying ``size`` [B] of a mapped file that is not in the page cache to
    memory that is in use, by loops that move ``traffic`` [B].

    ``cache`` is the tier of the key-value cache if it is keys and values.
    """
    host, resources = out.machine.host, out.machine.resources
    path, _ = out.way((tier, False, False), partial(out.machine.storage_read, tier))
    block = out.read_ahead(tier, path)
    ahead = min(_FAULTING, host.cpu_optimizer.cores.value) * block
    # A drive that is faster than its slot hides no less of the copying.
    limits = [out.capacity(resources[link]) * each.denominator // each.numerator for link, each in path.hops]
    limits.append(loops_rate(host, traffic=traffic) * size // traffic)
    if host.mapped_read is not None:
        limits.append(host.mapped_read.value)
    in_flight, most = min(size, ahead), min(limits)
    return out.file(tier, size, block=block, in_flight=in_flight, most=int(most), cache=cache)
