"""Streams of operations of one rank, written as its host thread issues them; the base of
the driver and of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from simoffload.hardware import Host, Machine, Path, Resource
from simoffload.schedule import (
    Cause,
    CauseKind,
    Dependency,
    Device,
    Hops,
    Op,
    OpKind,
    Program,
    Purpose,
    Schedule,
    ScheduleBuilder,
)
from simoffload.strategies.passes.timing import copy_cause, effective_rate, picoseconds
from simoffload.workload import READ_AHEAD

HOST = 0
_LUSTRE_READ_AHEAD = 64 * 2**20

REQUEST = 1 << 20
"""Size [B] of the largest request to a file by what no program has: our choice."""
DEPTH = 64
"""Number of such requests in flight of each GPU, in each direction: our choice; enough for the full rate of
the shipped drives and filesystems."""

RankRoute = tuple[Path, tuple[Hops, ...]]
"""Path of the first rank, which determines the rate of a single transfer, and the hops of all ranks."""
Routes = dict[tuple[object, ...], RankRoute]
"""Cache of routes. Writers for the same ranks of a machine may share it, because finding the routes of a
thousand ranks again would take most of the time."""


class StreamWriter:
    """A StreamWriter writes the streams of a rank; the first is the host thread, whose work is added up until
    another operation depends on it."""

    def __init__(
        self,
        *,
        name: str,
        gpus: Sequence[int],
        streams: Sequence[str],
        machine: Machine,
        routes: Routes | None = None,
        devices: Sequence[Device] = (),
        programs: Sequence[Program] = (),
    ) -> None:
        self.machine = machine
        self.costs = machine.host.deepspeed
        self.builder = ScheduleBuilder(
            name=name, ranks=len(gpus), streams=streams, devices=devices, programs=programs
        )
        self.label = name
        self.gpus = gpus
        self.first = 0
        """Number of the first stream of the program that is written; methods count streams from it."""
        self.ranks = len(gpus)
        self._pending = 0
        self._awaited: list[tuple[int, int]] = []
        self._latest = [Dependency(stream) for stream in range(len(streams))]
        self.known: dict[tuple[object, ...], tuple[int, int]] = {}
        """Route and latency [ps] of transfers that were asked for, by what they are."""
        self._routes: Routes = {} if routes is None else routes

    def build(self) -> Schedule:
        """Return the finished schedule over the machine's resources."""
        self.flush()
        return self.builder.build([(one.name, self.capacity(one)) for one in self.machine.resources])

    def capacity(self, resource: Resource) -> int:
        """Return the capacity of a resource that the ranks may use [B/s]."""
        return resource.capacity

    def way(
        self, key: tuple[object, ...], path: Callable[[int], Path], *, of_host: bool = False
    ) -> RankRoute:
        """Return the routes of all ranks, cached by ``key``; ``path`` returns the path of one rank's GPU,
        which is that of all GPUs of its host if it is the path ``of_host`` memory."""
        key = (self.first, *key)
        if key not in self._routes:
            each = self.machine.gpus_per_node if of_host else 1
            paths = {number: path(number * each) for number in {gpu // each for gpu in self.gpus}}
            own = [paths[gpu // each] for gpu in self.gpus]
            self._routes[key] = own[0], self.of_all([path.hops for path in own])
        return self._routes[key]

    def of_all(self, hops: Sequence[Hops]) -> tuple[Hops, ...]:
        """Return the hops of all ranks from those of the ranks of the program that is written."""
        return tuple(hops)

    def transfers(self, cause: Cause, path: Callable[[int], Path], sizes: Sequence[int]) -> tuple[int, int]:
        """Return route and latency [ps] of several transfers in sequence, each at the rate for its own size.

        ``path`` returns the path of each rank; all routes with the same ``cause`` must be equal.
        """
        key = self.first, cause, tuple(sizes)
        if key not in self.known:
            first, hops = self.way((cause,), path)
            route = self.builder.route(cause=cause, hops=hops, cap=effective_rate(first, sizes))
            self.known[key] = route, picoseconds(first.latency * len(sizes))
        return self.known[key]

    def copies(
        self,
        sizes: Sequence[int],
        *,
        to_device: bool,
        pinned: bool,
        cache: str = "",
        gpu: int | None = None,
    ) -> tuple[int, int]:
        """Return route and latency [ps] of copies between the GPU and host memory, one after the other.

        ``cache`` is the tier of the key-value cache if they are of keys and values; ``gpu`` is the GPU of a
        process that drives several, whose links may differ: by default its main one.
        """
        machine = self.machine
        reach = partial(machine.host_to_device if to_device else machine.device_to_host, pinned=pinned)
        cause = copy_cause(to_device=to_device, pinned=pinned)
        if gpu is None or (path := reach(gpu)).hops == reach(self.gpus[0]).hops:
            return self.transfers(cause.of_cache(cache), reach, sizes)
        return self.transfers(cause._replace(gpus=(gpu,)).of_cache(cache), lambda _: path, sizes)

    def copy(
        self,
        sizes: Sequence[int],
        stream: int,
        *,
        to_device: bool,
        pinned: bool,
        behind: tuple[int, ...] = (),
    ) -> int:
        """Write copies between the GPU and host memory, one after the other; return their number on the
        stream.

        They begin when all work written so far on the host and on the streams ``behind`` is done.
        """
        self.flush()
        route, latency = self.copies(sizes, to_device=to_device, pinned=pinned)
        after = self.so_far(HOST, *behind)
        return self.add("copy", stream, fixed=latency, size=sum(sizes), route=route, after=after)

    def file(
        self,
        tier: str,
        size: int,
        *,
        block: int,
        in_flight: int | None,
        written: bool = False,
        gds: bool = False,
        most: int | None = None,
        cache: str = "",
        purpose: Purpose = "",
    ) -> tuple[int, int]:
        """Return route and latency [ps] of reading, or writing, ``size`` [B] on a tier, in requests of
        ``block`` [B] of which ``in_flight`` [B] are under way at a time, by default as many as the device can
        use; at most at ``most`` [B/s].

        The rate on storage is that measured for a transfer of this size, at most what Little's law leaves:
        the bytes in flight over the latency of a request. ``gds``: directly to, or from, the GPU's memory.
        ``cache`` is the tier of the key-value cache if it is keys and values that move; ``purpose`` says
        what else it is, such as page faults.
        """
        key = "file", self.first, tier, size, block, in_flight, written, gds, most, cache, purpose
        if key not in self.known:
            reach = self.machine.storage_write if written else self.machine.storage_read
            path, hops = self.way((tier, written, gds), partial(reach, tier, gds=gds), of_host=not gds)
            rate = path.curve.rate(size)
            if in_flight is not None and self.machine.tiers[tier].is_storage:
                rate = path.file_rate(size, outstanding=in_flight, block=block)
            cause = Cause("write" if written else "read", tier).of_cache(cache)
            cause = cause._replace(purpose=purpose) if purpose else cause
            route = self.builder.route(cause=cause, hops=hops, cap=rate if most is None else min(rate, most))
            self.known[key] = route, picoseconds(path.latency)
        return self.known[key]

    def received(self, kind: CauseKind, size: int) -> tuple[int, int]:
        """Return route and latency [ps] of ``size`` [B] that every rank receives from the others' GPUs."""
        return self.transfers(Cause(kind), partial(self.machine.gather, ranks=self.ranks), [size])

    def cpu_work(self, cause: Cause, rate: int) -> int:
        """Return the route of work on host memory at ``rate`` [B/s]."""
        _, hops = self.way((cause, rate), lambda rank: self.machine.cpu_work(rank, rate))
        return self.builder.route(cause=cause, hops=hops, cap=rate)

    def read_ahead(self, tier: str, path: Path) -> int:
        """Return the size [B] that Linux reads ahead of one reader of a file through the page cache.

        It is two stripes on an array (``disk_update_readahead``), 64 MiB of a file for a Lustre client (llite
        max_read_ahead_per_file_mb; from memory, unverified), and ``read_ahead_kb`` otherwise.
        """
        if self.machine.tiers[tier].kind == "pfs":
            return _LUSTRE_READ_AHEAD
        return max(READ_AHEAD, 2 * path.chunk * path.width)

    def spend(self, seconds: float) -> None:
        """Add ``seconds`` [s] of work to the host thread."""
        self._pending += picoseconds(seconds)

    def cool(self, seconds: float) -> None:
        """Add the time that the host thread loses to cold CPU caches after waiting for a transfer of
        ``seconds`` [s]."""
        self.spend(min(self.costs.cold_limit.value, self.costs.cold_share.value * seconds))

    def transfer_s(self, route: int, fixed: int, size: int) -> float:
        """Return the time [s] of a transfer alone."""
        return fixed * 1e-12 + size / self.builder.cap(route)

    def host_waits(self, stream: int, ordinal: int | None = None) -> None:
        """Let the next work of the host start only after an operation of a stream; by default its last one so
        far."""
        if self._pending:
            self.flush()
        last = self.count(stream) - 1 if ordinal is None else ordinal
        if last >= 0 and (stream, last) not in self._awaited:
            self._awaited.append((stream, last))

    def flush(self) -> None:
        """Write the work of the host thread that was added up so far as one operation, so that others can
        depend on it."""
        if self._pending or self._awaited:
            fixed, self._pending, after = self._pending, 0, tuple[Dependency, ...]()
            if self._awaited:
                after = tuple([self.after(stream, ordinal) for stream, ordinal in self._awaited])
                self._awaited = []
            self.add("hook", HOST, fixed=fixed, after=after)

    def add(
        self,
        kind: OpKind,
        stream: int,
        *,
        fixed: int = 0,
        size: int = 0,
        route: int = -1,
        label: str | None = None,
        after: tuple[Dependency, ...] = (),
        collective: bool = False,
    ) -> int:
        """Append an operation; return its number on its stream."""
        at = self.first + stream
        return self.builder.add(Op(kind, label or self.label, at, fixed, size, route, after, collective))

    def count(self, stream: int) -> int:
        """Return the number of operations that were written on a stream so far."""
        return self.builder.written[self.first + stream]

    def after(self, stream: int, ordinal: int) -> Dependency:
        """Return the dependency on the operation of a stream with the number that ``add`` returned."""
        return self.builder.after(self.first + stream, ordinal)

    def exchange(
        self,
        kind: OpKind,
        cause: CauseKind,
        stream: int,
        size: int,
        *,
        behind: tuple[int, ...],
        calls: int = 1,
    ) -> int:
        """Let every rank receive ``size`` [B] from the other ranks' GPUs in ``calls`` calls; return the
        number of the operation.

        It begins when all work written so far on the host and on the streams ``behind`` is done.
        """
        route, latency = self.received(cause, size)
        self.flush()
        fixed, after = latency * calls, self.so_far(HOST, *behind)
        return self.add(kind, stream, fixed=fixed, size=size, route=route, after=after, collective=True)

    def so_far(self, *streams: int) -> tuple[Dependency, ...]:
        """Return dependencies on all work written so far on some streams."""
        first, written, latest = self.first, self.builder.written, self._latest
        return tuple([latest[first + one] for one in streams if written[first + one]])


# --------------------------------------------------------------------------------------------------
# Copies of tensors in mapped files.
#
# Accelerate and FlexGen both map a file anew (``np.memmap``) whenever they need it, and let PyTorch copy it
# with all its threads: ``load_offloaded_weight`` in accelerate/utils/offload.py, ``copy_worker_func`` in
# flexllmgen/pytorch_backend.py. The kernel reads pages that the cache does not hold at page faults, and reads
# ahead while the threads copy. The slowest of three determines the time: the drive with the read-aheads that
# are in flight, the threads that copy, and what one file was measured to give on the host (``mapped_read``).
# Measurements: docs/measurements/mapped-files.md.


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
    out: StreamWriter,
    tier: str,
    size: int,
    *,
    traffic: int,
    cache: str = "",
    most: float | None = None,
    purpose: Purpose = "",
) -> tuple[int, int]:
    """Return route and latency [ps] of copying ``size`` [B] of a mapped file that is not in the page cache to
    memory that is in use, by loops that move ``traffic`` [B]; at most at ``most`` [B/s].

    ``cache`` is the tier of the key-value cache if it is keys and values; ``purpose`` says what else it is.
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
    in_flight, limit = min(size, ahead), int(min(*limits, inf if most is None else most))
    return out.file(tier, size, block=block, in_flight=in_flight, most=limit, cache=cache, purpose=purpose)
