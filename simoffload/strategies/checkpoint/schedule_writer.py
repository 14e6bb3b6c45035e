"""Writer of the operations of a checkpoint phase: its streams, and the routes of its bytes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from simoffload.hardware import Curve, Machine, Path, Resource
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, Dependency, Hops, OpKind
from simoffload.strategies.streams import HOST, RankRoute, StreamWriter
from simoffload.strategies.timing import copy_cause, picoseconds

STREAMS = ("host", "copy", "comm", "io", "read")
_, COPY, COMM, IO, READ = range(5)

_KINDS: tuple[OpKind, ...] = ("stage", "stage", "gather", "write", "read")
"""Kinds of transfers, by stream."""

_COPIED = Fraction(2)
"""[B] of host memory traffic per copied byte: it is read once and written once."""


class RankGroup(NamedTuple):
    """A RankGroup is a set of ranks that do the same at the same time, and the tier of their data."""

    machine: Machine
    ranks: tuple[int, ...]
    """Ranks of the group; rank i uses GPU i. The first one determines the rate of a single transfer."""
    tier: str
    """Tier to which or from which the checkpoint is transferred."""
    swap: str = ""
    """Tier of the optimizer's swap files; "" if there are none."""
    jobs: int = 1
    """Number of identical runs that use the same filesystem at the same time."""

    @property
    def per_node(self) -> int:
        """Largest number of ranks on one node."""
        return max(Counter(rank // self.machine.gpus_per_node for rank in self.ranks).values())


def blocks(size: int, block: int, *, most: int) -> list[int]:
    """Cut ``size`` [B] into blocks of ``block`` [B] and a remainder; into ``most`` larger ones if that is
    fewer."""
    times = max(1, -(-size // (block * most)))
    full_blocks, rest = divmod(size, block * times)
    return [block * times] * full_blocks + ([rest] if rest else [])


class PhaseWriter(StreamWriter):
    """A PhaseWriter writes the operations of one phase, which are the same for every rank of the group."""

    def __init__(self, name: str, group: RankGroup) -> None:
        super().__init__(name=name, gpus=group.ranks, streams=STREAMS, machine=group.machine)
        self.group = group
        self.new_memory, self.page_cache = group.machine.host.fresh_memory, group.machine.host.cached_files

    def capacity(self, resource: Resource) -> int:
        """Return the capacity that the ranks may use [B/s]: identical runs get equal parts of a
        filesystem."""
        shared = resource.kind == "server"
        return max(1, resource.capacity // self.group.jobs) if shared else resource.capacity

    def earlier(self, stream: int, back: int) -> tuple[Dependency, ...]:
        """Return the dependency on the operation ``back`` before the last one of a stream; none if there is
        no such one."""
        return (Dependency(stream, back),) if self.builder.written[stream] > back else ()

    def work(
        self, seconds: float, *, label: str, kind: OpKind = "hook", after: tuple[Dependency, ...] = ()
    ) -> None:
        """Occupy the host thread for ``seconds`` [s], unless that is zero."""
        if seconds or after:
            self.add(kind, HOST, fixed=picoseconds(seconds), label=label, after=after)

    def from_gpu(
        self,
        size: int,
        *,
        pinned: bool,
        each: int | None = None,
        call_s: float = 0.0,
        after: tuple[Dependency, ...] = (),
    ) -> None:
        """Copy from the GPU to host memory in pieces of ``each`` [B], with ``call_s`` [s] per call."""
        path, hops = self.way(
            ("from GPU", pinned), lambda gpu: self.machine.device_to_host(gpu, pinned=pinned)
        )
        cause = copy_cause(to_device=False, pinned=pinned)
        one = min(each or size, size)
        fixed = -(-size // one) * (call_s + path.latency)
        self._transfer(COPY, cause, hops, size, path.curve.rate(one), fixed, after)

    def to_gpu(self, size: int, *, pinned: bool, after: tuple[Dependency, ...] = ()) -> None:
        """Copy ``size`` [B] to the GPU."""
        path, hops = self.way(("to GPU", pinned), lambda gpu: self.machine.host_to_device(gpu, pinned=pinned))
        cause = copy_cause(to_device=True, pinned=pinned)
        rate, latency = path.curve.rate(size), path.latency
        self._transfer(COPY, cause, hops, size, rate, latency, after, kind="copy")

    def in_host(self, kind: CauseKind, size: int, *, after: tuple[Dependency, ...] = ()) -> None:
        """Copy within host memory with one thread."""
        machine, rate = self.machine, self.machine.host.memcpy_rate.value

        def way(rank: int) -> Path:
            memory = machine.topology.memories[rank // machine.gpus_per_node]
            return Path("host memory", ((memory, _COPIED),), 0.0, Curve.flat(rate))

        _, hops = self.way(("host",), way)
        self._transfer(HOST, Cause(kind), hops, size, rate, 0.0, after)

    def write(
        self,
        size: int,
        *,
        each: int | None = None,
        outstanding: int | None = None,
        block: int = 0,
        gds: bool = False,
        after: tuple[Dependency, ...] = (),
    ) -> None:
        """Write to the tier in operations of ``each`` [B], one after the other.

        Either ``outstanding`` [B] are in flight in requests of ``block`` [B], or as many as the device can
        use (the kernel's writeback).
        """
        tier = self.group.tier
        path, hops = self.way(
            ("write", tier, gds), lambda gpu: self.machine.storage_write(tier, gpu, gds=gds)
        )
        one = min(each or size, size)
        rate = path.curve.rate(one)
        if outstanding is not None:
            rate = path.file_rate(one, outstanding=min(outstanding, one), block=min(block, one))
        fixed = -(-size // one) * path.latency
        self._transfer(IO, Cause("write", tier), hops, size, rate, fixed, after)

    def read(self, size: int, *, tier: str) -> None:
        """Read from a tier into the page cache; the kernel's read-ahead determines the bytes in flight."""
        path, hops = self.way(("read", tier), lambda gpu: self.machine.storage_read(tier, gpu))
        ahead = self.read_ahead(tier, path)
        rate = path.file_rate(size, outstanding=ahead, block=ahead)
        self._transfer(READ, Cause("read", tier), hops, size, rate, path.latency)

    def collective(
        self, kind: CauseKind, size: int, *, call_s: float = 0.0, after: tuple[Dependency, ...] = ()
    ) -> None:
        """Receive ``size`` [B] on every rank from all others."""
        path, hops = self.way(("gather",), lambda gpu: self.machine.gather(gpu, self.ranks))
        rate, latency = path.curve.rate(size), path.latency
        self._transfer(COMM, Cause(kind), hops, size, rate, call_s + latency, after, together=True)

    def from_first_gpu(self, size: int, *, after: tuple[Dependency, ...] = ()) -> None:
        """Copy from the first rank's GPU to pageable memory while all other ranks wait."""
        path = self.machine.device_to_host(self.gpus[0], pinned=False)
        way: RankRoute = path, (path.hops, *(() for _ in self.gpus[1:]))
        rate, cause = path.curve.rate(size), copy_cause(to_device=False, pinned=False)
        _, hops = self._routes.setdefault(("first",), way)
        self._transfer(COPY, cause, hops, size, rate, path.latency, after)

    def _transfer(
        self,
        stream: int,
        cause: Cause,
        hops: tuple[Hops, ...],
        size: int,
        rate: int,
        fixed_s: float,
        after: tuple[Dependency, ...] = (),
        *,
        together: bool = False,
        kind: OpKind | None = None,
    ) -> None:
        self.add(
            kind or _KINDS[stream],
            stream,
            fixed=picoseconds(fixed_s),
            size=size,
            route=self.builder.route(cause=cause, hops=hops, cap=rate),
            label=cause_text(cause),
            after=after,
            collective=together,
        )
