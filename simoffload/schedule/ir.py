"""The schedule: the operations of every process, and the links that all processes share.

A schedule is a list of blocks; a block is a list of operations and a repeat count. An operation runs on one
stream of a rank, which is a process; operations of one stream run one after the other in the order in which
they are written. An operation starts when its stream is free and its dependencies are done; it then lasts
``fixed`` picoseconds and after that moves ``size`` bytes over its route, sharing links with all other flows.

Ranks that run the same operations, each over its own route, are a program (ZeRO pads its partitions to equal
size). Most schedules have one program; the stages of a pipeline, or hosts for prefill and hosts for decoding,
are several, each with ranks and streams of its own. Blocks are written for all programs in one order: a
micro-batch that passes through two stages is one iteration of one block.

Dependencies count back along a stream in that order, so that a layer is written identically at any position:
identical layers become one block with a repeat count, and a dependency may refer to an operation of an
earlier block. As they only count back, no schedule has a cycle, however its programs and ranks wait for each
other.

Work of a CPU on memory is a transfer, too: it crosses the DRAM with the bytes that it touches and the cores
with the time that they take for each byte, and its cap is the processing rate of its own cores. The capacity
of cores is their work per second, 10^9 ns each.

The engine runs a schedule as the segments that the operations of each stream form (``compile_streams``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

# -- what the time of an operation goes to, as a value ---------------------------------------------
# A route carries it, results add up times by it.
#
# Nothing reads the text of a cause: whatever depends on a cause asks for its fields. ``results.cause_text``
# makes the text.


CauseKind = Literal[
    "host-thread",
    "update-wait",
    "gpu-compute",
    "gpu-optimizer",
    "gpu-gradients",
    "gathered-copies",
    "in-place",
    "host-to-gpu",
    "gpu-to-host",
    "gpu-to-gpu",
    "stage-to-stage",
    "all-gather",
    "all-reduce",
    "gradient-reduction",
    "broadcast",
    "column-broadcast",
    "read",
    "write",
    "mapped-copies",
    "host-copies",
    "new-pages",
    "new-pinned-memory",
    "page-cache-entry",
    "crc32",
    "cpu-work",
    "cpu-adam",
    "cpu-adamw",
    "cpu-casts",
    "cpu-overflow-check",
    "cpu-attention",
    "cpu-products",
    "cache-stores",
    "tensor-loops",
    "to-io-buffer",
    "to-array",
    "to-snapshot",
    "to-optimizer",
    "to-page-cache",
    "from-page-cache",
    "file-to-file",
    "own",
]
"""Kinds of causes: of the host thread, of the GPU, of transfers, of storage, of the CPU, of checkpoints.
``own`` is any other, which has a name. Every table by kind has an entry for each."""

Purpose = Literal["", "key-value cache", "page faults", "page faults of experts"]
"""Data that a transfer moves, where reports tell it apart; "" = anything else."""

HostMemory = Literal["pinned", "pageable", "never written"]
"""Host memory of a copy to or from a GPU; pageable memory that was never written has no pages yet."""


class Cause(NamedTuple):
    """A Cause is what time goes to: a kind of work or of transfer, and what tells it from others."""

    kind: CauseKind
    tier: str = ""
    """Tier that is read or written, or that holds the key-value cache; "" = none."""
    purpose: Purpose = ""
    memory: HostMemory = "pinned"
    gpus: tuple[int, ...] = ()
    """Numbers of the GPUs of one process between which it moves, or of the one that is not its main GPU."""
    name: str = ""
    """Name of a cause of kind ``own``."""

    @classmethod
    def own(cls, name: str) -> Cause:
        """Return a cause of another kind, with a name of its own."""
        return cls("own", name=name)

    @property
    def moves_cache(self) -> bool:
        """Whether it is a transfer of keys and values, or work of the CPU on them."""
        return self.purpose == "key-value cache"

    def of_cache(self, tier: str) -> Cause:
        """Return this cause for keys and values of a cache on a tier; unchanged for "", which is no cache."""
        return self._replace(tier=tier, purpose="key-value cache") if tier else self


# -- the schedule ----------------------------------------------------------------------------------


LinkUnit = Literal["B", "core-ns"]

OpKind = Literal[
    "hook",
    "launch",
    "wait",
    "pages",
    "pin",
    "cached",
    "checksum",
    "cpu",
    "copy",
    "stage",
    "read",
    "write",
    "gather",
    "all-reduce",
    "send",
    "compute",
    "concat",
    "reduce",
    "update",
]
"""What an operation is: work of the host thread and the CPUs; a transfer between the GPU and host memory, of
a file, or between GPUs; or work of the GPU. Every table by kind has an entry for each."""


class Link(NamedTuple):
    """A capacity that concurrent flows share: a cable direction, a DRAM, a drive, a server, a CPU's cores."""

    name: str
    capacity: int
    """Limit [B/s] of the summed ``coefficient x rate`` of the flows that cross it."""
    scale: int = 1
    """Factor by which ``capacity`` and all coefficients on this link are multiplied, to keep them
    integers."""
    unit: LinkUnit = "B"
    """Unit of the load: bytes, or for the cores of a CPU the nanoseconds that each of them works."""


class Route(NamedTuple):
    """The links that a transfer crosses on each rank, and the highest rate of a single transfer."""

    cause: Cause
    """What the time of its transfers goes to."""
    hops: tuple[tuple[tuple[int, int], ...], ...]
    """For each rank the pairs (index into ``Schedule.links``, integer coefficient)."""
    cap: int
    """Highest rate [B/s] of one transfer alone, from size, queue depth, block and latency."""
    weight: int = 1
    """Share of a saturated link relative to other flows: outstanding bytes in any common unit."""


class Dependency(NamedTuple):
    """An operation that must be done before another may start."""

    stream: int
    """Index of its stream in ``Schedule.streams``."""
    back: int = 0
    """0 = the last operation written on ``stream`` before this one, 1 = the one before that, … A count beyond
    the first operation of the schedule is not a dependency. In a block that repeats the count applies anew in
    each iteration: a stage waits for what another did with the same micro-batch."""
    peers: int = -1
    """Index into ``Schedule.peers`` of the ranks whose operation it is; -1 = the same rank."""


Peers = tuple[tuple[int, ...], ...]
"""For each rank of the schedule the ranks for whose operations it waits; () = it does not wait."""


class Op(NamedTuple):
    """One operation on one stream of every rank of a program."""

    kind: OpKind
    label: str
    """The module or tensor for which it runs, shown in the timeline."""
    stream: int
    """Index of its stream in ``Schedule.streams``."""
    fixed: int = 0
    """Duration [ps] before (or instead of) a transfer."""
    size: int = 0
    """Bytes [B] moved over the route; 0 = no transfer."""
    route: int = -1
    """Index of its route in ``Schedule.routes``; -1 = no transfer."""
    after: tuple[Dependency, ...] = ()
    collective: bool = False
    """Whether it starts only when it is ready on every rank of the program (an all-gather)."""


class Block(NamedTuple):
    """Operations that are repeated; iteration i+1 follows iteration i in every stream's order.

    Streams do not wait for each other between iterations or blocks unless a dependency says so. Blocks with
    the same operations share one tuple of them, by which they are recognized.
    """

    name: str
    ops: tuple[Op, ...]
    repeat: int = 1


class Device(NamedTuple):
    """The device within its process on which a stream runs."""

    kind: Literal["GPU", "CPU", "host thread"]
    number: int = 0
    """Number of the GPU of the process, or of the socket of its CPUs, from 0; 0 for the host thread."""

    def __str__(self) -> str:
        return self.kind if self.kind == "host thread" else f"{self.kind} {self.number}"


class Program(NamedTuple):
    """Ranks that run the same operations on streams of their own."""

    name: str
    ranks: range
    """The ranks of the program; programs divide the ranks of the schedule in order."""
    streams: range
    """Indices into ``Schedule.streams``; programs divide the streams in order."""


class Schedule(NamedTuple):
    """One pass (a prefill, a decode step) of all ranks."""

    name: str
    ranks: int
    """Number of processes of all programs."""
    streams: tuple[str, ...]
    links: tuple[Link, ...]
    routes: tuple[Route, ...]
    blocks: tuple[Block, ...]
    distinct: tuple[int, ...] = ()
    """A number for each rank, where ranks differ in something that their routes do not show (a turn in a
    queue, a seed of noise); only ranks with equal numbers may be identical. () = no such differences."""
    devices: tuple[Device, ...] = ()
    """The device of each stream; () = the host thread for a stream called host, GPU 0 for all others."""
    programs: tuple[Program, ...] = ()
    """The programs; () = a single one with all ranks and streams."""
    peers: tuple[Peers, ...] = ()
    """The ranks for which each rank waits, for dependencies on other ranks."""

    @property
    def operations(self) -> int:
        """The number of operations of all ranks, each as often as it is repeated; every one has one end, an
        event."""
        if not self.programs:
            return self.ranks * sum([len(block.ops) * block.repeat for block in self.blocks])
        ranks = [len(program.ranks) for program in self.owners]
        return sum([times * sum([ranks[op.stream] for op in ops]) for ops, times in self.contents])

    @property
    def contents(self) -> list[tuple[tuple[Op, ...], int]]:
        """The distinct contents of blocks, and how often each is run in total."""
        times: dict[int, int] = {}
        contents = {id(block.ops): block.ops for block in self.blocks}
        for block in self.blocks:
            times[id(block.ops)] = times.get(id(block.ops), 0) + block.repeat
        return [(ops, times[number]) for number, ops in contents.items()]

    @property
    def parts(self) -> tuple[Program, ...]:
        """The programs, also where there is only one."""
        return self.programs or (Program(self.name, range(self.ranks), range(len(self.streams))),)

    @property
    def owners(self) -> tuple[Program, ...]:
        """The program of each stream."""
        return tuple([program for program in self.parts for _ in program.streams])

    @property
    def processes(self) -> int:
        """The number of processes of all programs; a rank is one."""
        return self.ranks

    @property
    def gpus(self) -> int:
        """The number of GPUs of all processes on which streams run."""
        return sum([len(part.ranks) * self.gpus_of(part) for part in self.parts])

    def gpus_of(self, program: Program) -> int:
        """Return the number of GPUs of one process of a program on which streams run."""
        return len({on for on in map(self.device_of, program.streams) if on.kind == "GPU"})

    @property
    def labels(self) -> tuple[str, ...]:
        """A unique name for each stream: with its device and its program where they are given."""
        labels = self.streams
        if self.devices:
            pairs = zip(labels, self.devices, strict=True)
            labels = tuple([name if on.kind == "host thread" else f"{on} {name}" for name, on in pairs])
        if self.programs:
            labels = tuple([f"{own.name}: {name}" for name, own in zip(labels, self.owners, strict=True)])
        return labels

    def reordered(self, order: Sequence[int]) -> Schedule:
        """Return the same schedule with its streams in another order, given by their present indices."""
        if list(order) == list(range(len(order))):
            return self
        number = {old: new for new, old in enumerate(order)}
        renumbered: dict[tuple[Dependency, ...], tuple[Dependency, ...]] = {}

        def renumbered_op(op: Op) -> Op:
            kind, label, stream, fixed, size, route, after, collective = op
            if after not in renumbered:
                renumbered[after] = tuple([one._replace(stream=number[one.stream]) for one in after])
            return Op(kind, label, number[stream], fixed, size, route, renumbered[after], collective)

        return self._replace(
            streams=tuple([self.streams[one] for one in order]),
            devices=tuple([self.devices[one] for one in order if self.devices]),
            blocks=self.with_operations(renumbered_op),
        )

    def with_operations(self, changed: Callable[[Op], Op]) -> tuple[Block, ...]:
        """Return the blocks with their operations changed."""
        contents = {id(ops): tuple(map(changed, ops)) for ops, _ in self.contents}
        return tuple([block._replace(ops=contents[id(block.ops)]) for block in self.blocks])

    def device_of(self, stream: int) -> Device:
        """Return the device on which a stream runs."""
        if self.devices:
            return self.devices[stream]
        return Device("host thread") if self.streams[stream] == "host" else Device("GPU")

    def rank_label(self, rank: int) -> str:
        """Return the name of a process: its number, and its program where there are several."""
        program = next((part.name for part in self.programs if rank in part.ranks), "")
        return f"rank {rank} ({program})" if program else f"rank {rank}"


Need = tuple[int, int, int]
"""(stream, per_iteration, offset): that stream of the same rank must have completed ``offset + iteration *
per_iteration`` operations."""

PeerNeed = tuple[int, Need]
"""An index into ``Schedule.peers``, and the operations that the stream of all these ranks must have
completed."""


class CompiledOp(NamedTuple):
    """An operation with all its properties that do not depend on rank or iteration."""

    op: Op
    block: int
    position: int
    """Index of the operation in ``Block.ops``."""
    first: int
    """Its number on its stream, from 0, in the block's first iteration."""
    per_iteration: int
    """Number of operations of its block on its stream."""
    needs: tuple[Need, ...]
    peer_needs: tuple[PeerNeed, ...]

    def iteration(self, ordinal: int) -> int:
        """Return the iteration in which it is number ``ordinal`` of its stream."""
        return (ordinal - self.first) // self.per_iteration


class CompiledSchedule:
    """A CompiledSchedule compiles the blocks of a schedule one by one, when the engine reaches them."""

    def __init__(self, schedule: Schedule) -> None:
        self.blocks = schedule.blocks
        self._few = sum([len(block.ops) for block in schedule.blocks]) <= _FEW
        numbers: dict[int, int] = {}
        self.parts = [numbers.setdefault(id(block.ops), len(numbers)) for block in schedule.blocks]
        """For every block the number of its operations, which is that of all blocks with the same ones."""
        self.counts: list[tuple[int, ...]] = []
        """Number of operations of each stream in one iteration, by number of operations."""
        for ops, _ in schedule.contents:
            counts = [0] * len(schedule.streams)
            for op in ops:
                counts[op.stream] += 1
            self.counts.append(tuple(counts))
        self.written: list[tuple[int, ...]] = []
        """Number of operations of each stream before every block."""
        written = (0,) * len(schedule.streams)
        for block, part in zip(schedule.blocks, self.parts, strict=True):
            self.written.append(written)
            pairs = zip(written, self.counts[part], strict=True)
            written = tuple([count + block.repeat * more for count, more in pairs])
        self.starts = [0]
        """Number of the first iteration of every block among those of all blocks, and that after the last."""
        self.totals = [0] * len(self.counts)
        """Number of iterations of all blocks with the same operations, by number of operations."""
        for block, part in zip(schedule.blocks, self.parts, strict=True):
            self.starts.append(self.starts[-1] + block.repeat)
            self.totals[part] += block.repeat
        self._steps: dict[int, list[CompiledOp]] = {}
        self._by_stream: dict[int, dict[int, list[CompiledOp]]] = {}

    def on_stream(self, block: int, stream: int) -> list[CompiledOp]:
        """Return the compiled operations of a block on one stream."""
        if block not in self._by_stream:
            own = self._by_stream[block] = {}
            for step in self.steps(block):
                own.setdefault(step.op.stream, []).append(step)
        return self._by_stream[block][stream]

    def steps(self, block: int) -> list[CompiledOp]:
        """Return the compiled operations of a block."""
        if block not in self._steps:
            ops, made = self.blocks[block].ops, CompiledOp._make
            shape = tuple([(op.stream, op.after) for op in ops])
            places = (_places if self._few else _places.__wrapped__)(
                shape, self.written[block], self.counts[self.parts[block]]
            )
            self._steps[block] = [
                made((op, block, position, *place))
                for position, (op, place) in enumerate(zip(ops, places, strict=True))
            ]
        return self._steps[block]


_Place = tuple[int, int, tuple[Need, ...], tuple[PeerNeed, ...]]
"""The last four fields of a compiled operation."""

_FEW = 10_000
"""Number of operations of the largest schedule whose positions are cached."""


@lru_cache(maxsize=256)
def _places(
    shape: tuple[tuple[int, tuple[Dependency, ...]], ...],
    written: tuple[int, ...],
    per_iteration: tuple[int, ...],
) -> tuple[_Place, ...]:
    """Return the position of every operation of a block, given by stream and dependencies; passes of one
    program differ in durations only."""
    before = list(written)
    own: list[_Place] = []
    for stream, after in shape:
        needs = _needs_of(stream, after, before, per_iteration) if after else ((), ())
        own.append((before[stream], per_iteration[stream], *needs))
        before[stream] += 1
    return tuple(own)


def _needs_of(
    own: int, after: tuple[Dependency, ...], before: Sequence[int], per_iteration: Sequence[int]
) -> tuple[tuple[Need, ...], tuple[PeerNeed, ...]]:
    """Convert dependencies that count back into counts from the start: on the same rank, and on its peers.

    ``before`` holds for iteration 0.
    """
    if len(after) == 1 and after[0].peers < 0:
        stream, back, _ = after[0]
        return () if stream == own else ((stream, per_iteration[stream], before[stream] - back),), ()
    nearest: dict[tuple[int, int], int] = {}
    for stream, back, peers in after:
        if stream != own or peers >= 0:  # a stream keeps its own order anyway
            nearest[peers, stream] = min(back, nearest.get((peers, stream), back))
    needs: list[Need] = []
    peer_needs: list[PeerNeed] = []
    for (peers, stream), back in nearest.items():
        need = stream, per_iteration[stream], before[stream] - back
        if peers < 0:
            needs.append(need)
        else:
            peer_needs.append((peers, need))
    return tuple(needs), tuple(peer_needs)
