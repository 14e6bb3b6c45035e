"""Writing a phase of a checkpoint down: streams of a rank, blocks, and the routes that its bytes take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from simoffload.hardware import Machine, Path
from simoffload.hardware.quantities import Curve
from simoffload.schedule import Dependency, Op, Schedule
from simoffload.schedule.builder import Hops, ScheduleBuilder
from simoffload.strategies.timing import copy_name, picoseconds
from simoffload.workload.dataset import READ_AHEAD

__all__ = ["COMM", "COPY", "HOST", "IO", "READ", "STREAMS", "PhaseWriter", "RankGroup", "blocks"]

STREAMS = ("host", "copy", "comm", "io", "read")
HOST, COPY, COMM, IO, READ = range(5)

_KINDS = ("stage", "stage", "gather", "write", "read")  # of transfers, by stream
_WORK = {"new pages": "pages", "page cache": "cached", "crc32": "checksum"}
"""Kinds of work of the host thread, by label; else "hook"."""
_LUSTRE_READ_AHEAD = 64 * 2**20

_COPIED = Fraction(2)
"""Bytes of host memory traffic per byte that a thread copies: read once and written once."""


class RankGroup(NamedTuple):
    """Ranks that do the same at the same time, and where their bytes go."""

    machine: Machine
    ranks: tuple[int, ...]
    """Rank i is GPU i; the first one's transfers set what a single transfer reaches."""
    tier: str
    """Where the checkpoint goes or comes from."""
    swap: str = ""
    """Tier of the optimizer's swap files, where it has any."""
    jobs: int = 1
    """Equal runs on the same filesystem at the same moment."""

    @property
    def per_node(self) -> int:
        """Most ranks on one node."""
        return max(Counter(rank // self.machine.gpus_per_node for rank in self.ranks).values())


def blocks(size: int, block: int, *, most: int) -> list[int]:
    """Cut ``size`` [B] into blocks of ``block`` [B] and a remainder, or into ``most`` larger ones."""
    times = max(1, -(-size // (block * most)))
    full_blocks, rest = divmod(size, block * times)
    return [block * times] * full_blocks + ([rest] if rest else [])


_Way = tuple[Path, tuple[Hops, ...]]
"""The path of the first rank, which sets what a single transfer reaches, and the hops of all."""


class PhaseWriter:
    """Operations of one phase; the same for every rank of the group."""

    def __init__(self, name: str, group: RankGroup) -> None:
        self.group = group
        self._name = name
        self._builder = ScheduleBuilder(name=name, ranks=len(group.ranks), streams=STREAMS)
        self._builder.segment(name)
        # Every block takes the same ways: with a thousand ranks finding them anew costs most of the time.
        self._routes: dict[tuple[object, ...], _Way] = {}

    def finish(self) -> Schedule:
        """Close the phase. Other runs take their share of a filesystem: as much as this one."""
        jobs = self.group.jobs
        return self._builder.build(
            [
                (one.name, max(1, one.capacity // jobs) if one.kind == "server" else one.capacity)
                for one in self.group.machine.resources
            ]
        )

    def segment(self) -> None:
        """Begin a part that may turn out to repeat."""
        self._builder.segment(self._name)

    def so_far(self, *streams: int) -> tuple[Dependency, ...]:
        """Wait for the last operation of each stream that has one."""
        return tuple(Dependency(stream) for stream in streams if self._builder.written[stream])

    def earlier(self, stream: int, back: int) -> tuple[Dependency, ...]:
        """Wait for the operation ``back`` before the last one of a stream, where there is one."""
        return (Dependency(stream, back),) if self._builder.written[stream] > back else ()

    def work(self, seconds: float, *, label: str, after: tuple[Dependency, ...] = ()) -> None:
        """Keep the host thread busy, if it is for any time at all."""
        if seconds or after:
            self._builder.add(Op(_WORK.get(label, "hook"), label, HOST, picoseconds(seconds), after=after))

    def from_gpu(
        self,
        size: int,
        *,
        pinned: bool,
        each: int | None = None,
        call_s: float = 0.0,
        after: tuple[Dependency, ...] = (),
    ) -> None:
        """Copy to host memory, ``each`` [B] at a time with ``call_s`` [s] for every call."""
        machine = self.group.machine
        path, hops = self._way("from GPU", lambda rank: machine.device_to_host(rank, pinned=pinned), pinned)
        name = copy_name(to_device=False, pinned=pinned)
        one = min(each or size, size)
        fixed = -(-size // one) * (call_s + path.latency)
        self._transfer(COPY, name, hops, size, path.curve.rate(one), fixed, after)

    def to_gpu(self, size: int, *, pinned: bool, after: tuple[Dependency, ...] = ()) -> None:
        """Copy to the GPU."""
        machine = self.group.machine
        path, hops = self._way("to GPU", lambda rank: machine.host_to_device(rank, pinned=pinned), pinned)
        name = copy_name(to_device=True, pinned=pinned)
        rate, latency = path.curve.rate(size), path.latency
        self._transfer(COPY, name, hops, size, rate, latency, after, kind="copy")

    def in_host(self, name: str, size: int, *, after: tuple[Dependency, ...] = ()) -> None:
        """Copy within host memory, by one thread."""
        machine = self.group.machine
        rate = machine.host.memcpy_rate.value

        def way(rank: int) -> Path:
            memory = machine.topology.memories[rank // machine.gpus_per_node]
            return Path("host memory", ((memory, _COPIED),), 0.0, Curve.flat(rate))

        _, hops = self._way("host", way)
        self._transfer(HOST, name, hops, size, rate, 0.0, after)

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
        """Write to the tier, ``each`` [B] at a time, one after the other: with ``outstanding`` [B] in flight
        in requests of ``block`` [B], or with as much as it takes (the kernel's writeback)."""
        machine, tier = self.group.machine, self.group.tier
        path, hops = self._way("write", lambda rank: machine.storage_write(tier, rank, gds=gds), tier, gds)
        one = min(each or size, size)
        rate = path.curve.rate(one)
        if outstanding is not None:
            rate = min(rate, path.outstanding_rate(min(outstanding, one), block=min(block, one)))
        fixed = -(-size // one) * path.latency
        self._transfer(IO, f"{tier} write", hops, size, rate, fixed, after)

    def read(self, size: int, *, tier: str) -> None:
        """Read from a tier into the page cache; the kernel has so much in flight as it reads ahead.

        On an array these are two stripes (disk_update_readahead of Linux), for a Lustre client 64 MiB of a
        file (llite max_read_ahead_per_file_mb; from memory, unverified), else read_ahead_kb.
        """
        machine = self.group.machine
        path, hops = self._way("read", lambda rank: machine.storage_read(tier, rank), tier)
        ahead = max(READ_AHEAD, 2 * path.chunk * path.width)
        if machine.tiers[tier].kind == "pfs":
            ahead = _LUSTRE_READ_AHEAD
        rate = min(path.curve.rate(size), path.outstanding_rate(ahead, block=ahead))
        self._transfer(READ, f"{tier} read", hops, size, rate, path.latency)

    def collective(
        self, name: str, size: int, *, call_s: float = 0.0, after: tuple[Dependency, ...] = ()
    ) -> None:
        """Receive ``size`` [B] on every rank, together with all others."""
        machine, ranks = self.group.machine, len(self.group.ranks)
        path, hops = self._way("gather", lambda rank: machine.gather(rank, ranks))
        rate, latency = path.curve.rate(size), path.latency
        self._transfer(COMM, name, hops, size, rate, call_s + latency, after, together=True)

    def from_first_gpu(self, size: int, *, after: tuple[Dependency, ...] = ()) -> None:
        """Copy from the first rank's GPU to pageable memory, for which all others wait."""
        path = self.group.machine.device_to_host(self.group.ranks[0], pinned=False)
        none: Hops = ()
        way: _Way = path, (path.hops, *(none for _ in self.group.ranks[1:]))
        rate, name = path.curve.rate(size), copy_name(to_device=False, pinned=False)
        _, hops = self._routes.setdefault(("first",), way)
        self._transfer(COPY, name, hops, size, rate, path.latency, after)

    def _way(self, what: str, path: Callable[[int], Path], *how: object) -> _Way:
        """The ways of all ranks, found once for each ``what`` and ``how``."""
        key = (what, *how)
        if key not in self._routes:
            paths = [path(rank) for rank in self.group.ranks]
            self._routes[key] = paths[0], tuple(one.hops for one in paths)
        return self._routes[key]

    def _transfer(
        self,
        stream: int,
        name: str,
        hops: tuple[Hops, ...],
        size: int,
        rate: int,
        fixed_s: float,
        after: tuple[Dependency, ...] = (),
        *,
        together: bool = False,
        kind: str = "",
    ) -> None:
        route, after_s = self._builder.route(name=name, hops=hops, cap=rate), picoseconds(fixed_s)
        self._builder.add(Op(kind or _KINDS[stream], name, stream, after_s, size, route, after, together))
