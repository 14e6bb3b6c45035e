"""Schedules of saving and restoring a checkpoint: operations of host thread, copy engine and storage.

Each function writes one method of bringing bytes to storage; ``save_phases`` combines them. All ranks are
assumed to finish a part before the next one begins. ZeRO's ranks do not wait for each other, so if few ranks
write to a saturated filesystem the predicted sum is a little too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple, TypeVar

from simoffload.hardware import Curve, Machine, Path, Resource
from simoffload.models import ModelShape, Module
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, Dependency, Hops, OpKind, Schedule
from simoffload.strategies.base import Phase, PhaseKind
from simoffload.strategies.checkpoint.bytes import (
    DIRTY_BACKGROUND,
    DIRTY_LIMIT,
    CheckpointPart,
    fresh_share,
)
from simoffload.strategies.passes.streams import HOST, RankRoute, StreamWriter
from simoffload.strategies.passes.timing import copy_cause, picoseconds
from simoffload.workload import Checkpointing, Writer

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
        one = min(each or size, size)
        in_flight = None if outstanding is None else min(outstanding, one)
        route, fixed = self.file(
            self.group.tier, one, block=min(block, one), in_flight=in_flight, written=True, gds=gds
        )
        cause, times = Cause("write", self.group.tier), -(-size // one)
        self._add(IO, cause, route, size, times * fixed, after)

    def read(self, size: int, *, tier: str) -> None:
        """Read from a tier into the page cache; the kernel's read-ahead determines the bytes in flight."""
        path, _ = self.way((tier, False, False), lambda gpu: self.machine.storage_read(tier, gpu))
        ahead = self.read_ahead(tier, path)
        route, fixed = self.file(tier, size, block=ahead, in_flight=ahead)
        self._add(READ, Cause("read", tier), route, size, fixed)

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
        route = self.builder.route(cause=cause, hops=hops, cap=rate)
        self._add(stream, cause, route, size, picoseconds(fixed_s), after, together=together, kind=kind)

    def _add(
        self,
        stream: int,
        cause: Cause,
        route: int,
        size: int,
        fixed: int,
        after: tuple[Dependency, ...] = (),
        *,
        together: bool = False,
        kind: OpKind | None = None,
    ) -> None:
        self.add(
            kind or _KINDS[stream],
            stream,
            fixed=fixed,
            size=size,
            route=route,
            label=cause_text(cause),
            after=after,
            collective=together,
        )


# -- phases ----------------------------------------------------------------------------------------

_BLOCK, _MOST_BLOCKS = 64 * 2**20, 100
"""[B] of the blocks into which tensors and files are cut if the writer has no buffer, and the largest number
of blocks (our choice)."""
_MOST_PORTIONS = 200
"""Largest number of portions per rank (our choice): with more, the start of a pipeline changes by less than 1
% of the whole."""
_FLUSHED_AT_CLOSE = frozenset({"nfs", "pfs"})
"""Kinds of storage whose clients write everything before a file is closed: an NFS client flushes at close
(nfs(5), close-to-open consistency); a Lustre client sends an RPC as soon as it is full, and keeps little
dirty data (osc max_dirty_mb; from memory, unverified)."""
_SENT_AT_ONCE = 0, 2
"""[blocks] that are dirty when a Lustre client begins to send, and when its writers wait."""


_T = TypeVar("_T")


def _phase(
    name: str,
    group: RankGroup,
    blocks: Iterable[_T],
    write: Callable[[PhaseWriter, _T], None],
    *,
    kind: PhaseKind = "save",
    background: bool = False,
) -> Phase:
    """Return a phase for which ``write`` writes one block after the other when the schedule is requested."""

    def schedule(_earlier: object) -> Schedule:
        out = PhaseWriter(name, group)
        for block in blocks:
            out.builder.segment(name)
            write(out, block)
        return out.build()

    return Phase(name, kind, schedule, background=background)


def _tensors(part: CheckpointPart) -> list[int]:
    """Return the sizes of the blocks [B] into which a part is cut if the writer has no buffer."""
    return blocks(part.size, _BLOCK, most=_MOST_BLOCKS)


def save_phases(
    parts: Sequence[CheckpointPart], model: ModelShape, workload: Checkpointing, group: RankGroup
) -> tuple[Phase, ...]:
    """Return all phases from the call of save until the checkpoint is stored, in order.

    ``group`` has all ranks.
    """
    before: list[Phase] = []
    if workload.contents == "consolidated" and workload.stage == 3:
        before.append(_phase("gather weights", group, _modules(model), partial(_gathered, model.dtype_bytes)))
    if workload.mode == "snapshot":
        before += [
            _phase(f"snapshot of {part.name}", group, _tensors(part), partial(_snapshot, part, workload))
            for part in parts
        ]
        parts = tuple(part._replace(device="dram") for part in parts)
        workload = workload.model_copy(update={"fsync": True})  # FileSystemWriter's sync_files
    writing = [
        phase for part in parts for phase in _part_phases(part, workload, group._replace(ranks=part.writers))
    ]
    if workload.mode != "blocking":
        writing = [replace(phase, background=True) for phase in writing]
    return (*before, *writing)


def _part_phases(part: CheckpointPart, workload: Checkpointing, group: RankGroup) -> list[Phase]:
    name = f"save {part.name}"
    if part.device == "nvme" or workload.writer.type != "fast":
        return _buffered_phases(name, part, workload, group)
    write = _direct if workload.writer.is_direct else _through_python
    portions = blocks(part.size, workload.writer.portion, most=_MOST_PORTIONS)
    return [_phase(name, group, portions, partial(write, part, workload))]


# -- FastPersist ---------------------------------------------------------------------------------


def _direct(part: CheckpointPart, workload: Checkpointing, phase: PhaseWriter, size: int) -> None:
    """Fill one half of the buffer while the other is written (FastFileWriter, Double_IO_Buffer).

    A half is filled again when it has been written, and written when it is full and the other half has been
    written. The copy therefore waits for the last write but one, or with a single buffer for the last write.
    """
    writer, call = workload.writer, phase.costs.blocking_copy_call.value
    free = phase.earlier(IO, 1 if writer.io_buffer_double else 0)
    if writer.use_gds:
        filled = 2 * size / phase.machine.accelerator.hbm_rate
        phase.work(-(-size // writer.portion) * call + filled, label="fill", after=free)
    elif part.device == "hbm":
        phase.from_gpu(size, pinned=True, each=writer.portion, call_s=call, after=free)
    else:
        phase.in_host("to-io-buffer", size, after=free)
    _from_buffer(phase, writer, size, after=phase.so_far(HOST, COPY))


def _through_python(part: CheckpointPart, workload: Checkpointing, phase: PhaseWriter, size: int) -> None:
    """Write as the fast writer does with an unmodified PyTorch: every tensor is copied into a NumPy array and
    from there into the buffer (FastFileWriter.write, bytes_to_tensor), by one thread in sequence."""
    writer = workload.writer
    back = 1 if writer.io_buffer_double else 0
    _to_host(phase, part, size)
    _checksum(phase, workload, size)
    phase.work(
        size / phase.new_memory.huge_pages.value, label="new pages", kind="pages", after=phase.so_far(COPY)
    )
    phase.in_host("to-array", size)
    phase.in_host("to-io-buffer", size, after=phase.earlier(IO, back))
    _from_buffer(phase, writer, size, after=phase.so_far(HOST))


def _from_buffer(phase: PhaseWriter, writer: Writer, size: int, *, after: tuple[Dependency, ...]) -> None:
    """Write the content of the buffer with the aio library, one portion at a time."""
    phase.write(
        size,
        each=writer.portion,
        outstanding=writer.block_size * writer.queue_depth * writer.intra_op_parallelism,
        block=writer.block_size,
        gds=writer.use_gds,
        after=after,
    )


# -- buffered writes -----------------------------------------------------------------------------


def _buffered_phases(
    name: str, part: CheckpointPart, workload: Checkpointing, group: RankGroup
) -> list[Phase]:
    """Write through the page cache, as ``torch.save`` does to a file, or as swap files are copied.

    The call returns when all data is in the page cache, unless writers must flush or the data exceeds the
    limit of dirty memory; the rest is written in the background while training continues. The rest is taken
    as large as the limit, although fast drives will have written some of it.
    """
    kind = group.machine.tiers[group.tier].kind
    sizes = _tensors(part)
    begin, limit = _SENT_AT_ONCE if kind == "pfs" else _dirty_lags(group, sizes[0])
    through = workload.fsync or kind in _FLUSHED_AT_CLOSE
    flushed = len(sizes) if through else max(0, len(sizes) - limit)
    steps = range(max(len(sizes), begin + flushed))
    write = partial(_buffered, part, workload, sizes, (begin, limit, flushed))
    phases = [_phase(name, group, steps, write)]
    if left := sizes[flushed:]:  # the kernel writes the dirty pages
        phases.append(
            _phase(f"write back {part.name}", group, left, lambda out, size: out.write(size), background=True)
        )
    return phases


def _dirty_lags(group: RankGroup, block: int) -> tuple[int, int]:
    """Return the blocks of each writer that are dirty when the kernel begins to write, and when writers
    wait."""
    memory = group.machine.tiers["dram"].capacity - group.machine.host.reserved_bytes
    share = memory / group.per_node
    limit = max(2, int(DIRTY_LIMIT * share) // block)
    return min(limit - 1, int(DIRTY_BACKGROUND * share) // block), limit


def _buffered(
    part: CheckpointPart,
    workload: Checkpointing,
    sizes: list[int],
    lags: tuple[int, int, int],
    phase: PhaseWriter,
    index: int,
) -> None:
    """Copy block after block into the page cache, from which the kernel writes them to storage.

    ``lags`` [blocks] are the numbers of dirty blocks at which the kernel begins to write and at which the
    thread waits, and the number of blocks that are written in this phase.
    """
    begin, limit, flushed = lags
    if index < len(sizes):
        size = sizes[index]
        wait = phase.earlier(IO, limit - 1 - begin) if index >= limit else ()
        if part.device == "nvme":
            phase.read(size, tier=phase.group.swap)
            copying = size / phase.page_cache.copy_file.value
            phase.work(copying, label="page cache", kind="cached", after=(*wait, *phase.so_far(READ)))
            phase.in_host("file-to-file", size)
        else:
            _to_host(phase, part, size)
            _checksum(phase, workload, size)
            entering = size / phase.page_cache.write.value
            phase.work(entering, label="page cache", kind="cached", after=(*wait, *phase.so_far(COPY)))
            phase.in_host("to-page-cache", size)
    if begin <= index < begin + flushed:
        phase.write(sizes[index - begin], after=phase.so_far(HOST))


def _to_host(phase: PhaseWriter, part: CheckpointPart, size: int) -> None:
    """Copy to host memory: the thread maps new pages, waits for the copy, and continues with the data."""
    if part.device == "hbm":
        phase.work(size * part.fresh / phase.new_memory.from_gpu.value, label="new pages", kind="pages")
        phase.from_gpu(size, pinned=False, after=phase.so_far(HOST))


def _checksum(phase: PhaseWriter, workload: Checkpointing, size: int) -> None:
    if workload.writer.checkpoint_serialization:
        rate = phase.machine.host.checksum_rate.value
        phase.work(size / rate, label="crc32", kind="checksum", after=phase.so_far(COPY))


# -- before anything is written ------------------------------------------------------------------


def _snapshot(part: CheckpointPart, workload: Checkpointing, phase: PhaseWriter, size: int) -> None:
    """Copy everything into host memory while training waits (``async_save``, BlockingAsyncStager)."""
    if part.device == "hbm":
        if not workload.pin_memory:
            pages = size * part.fresh / phase.new_memory.from_gpu.value
            phase.work(pages, label="new pages", kind="pages", after=phase.so_far(COPY))
        phase.from_gpu(size, pinned=workload.pin_memory, after=phase.so_far(HOST))
    else:
        if not workload.pin_memory:
            phase.work(
                size * part.fresh / phase.new_memory.from_page_cache.value, label="new pages", kind="pages"
            )
        phase.in_host("to-snapshot", size)


def _modules(model: ModelShape) -> list[Sequence[Module]]:
    """Return the sets of modules that are gathered together: those before the layers, each layer, those
    after."""
    groups = (model.modules_before, *model.layers, model.modules_after)
    return [modules for modules in groups if any(not one.tied for each in modules for one in each.parameters)]


def _gathered(dtype_bytes: int, phase: PhaseWriter, modules: Sequence[Module]) -> None:
    """Gather parameters from all ranks, copy them on rank 0 and broadcast them, module by module.

    (GatheredParameters with ``modifier_rank=0``, ``_zero3_consolidated_16bit_state_dict``.)
    """
    ranks, costs = phase.ranks, phase.costs
    tensors = [one.numel * dtype_bytes for module in modules for one in module.parameters if not one.tied]
    size, calls = sum(tensors), sum(bool(module.parameters) for module in modules)
    if ranks > 1:
        received = -(-size * (ranks - 1) // ranks)
        call = calls * (costs.fetch_call.value + costs.collective_call.value)
        phase.collective("all-gather", received, call_s=call, after=phase.so_far(COPY))
    new_pages = size * fresh_share(tensors) / phase.new_memory.from_gpu.value
    phase.work(new_pages, label="new pages", kind="pages", after=phase.so_far(COPY, COMM))
    phase.from_first_gpu(size, after=phase.so_far(HOST, COMM))
    if ranks > 1:
        phase.collective("broadcast", size, after=phase.so_far(COPY))


# -- restoring -----------------------------------------------------------------------------------


def restore_phases(
    parts: Sequence[CheckpointPart], workload: Checkpointing, group: RankGroup
) -> tuple[Phase, ...]:
    """Return all phases from the call of load until training can continue, in order; ``group`` has all ranks.

    ``load_checkpoint`` of deepspeedai/DeepSpeed@edaa7221 reads each file into host memory (``torch.load``);
    ``load_state_dict`` then copies tensor by tensor. Below stage 3 every rank reads the whole file of the
    weights (at stage 0, of all states); ranks of a host find it in the page cache when one of them has read
    it.
    """
    phases = []
    for part in parts:
        if part.device == "nvme":
            back = group._replace(tier=group.swap, swap=group.tier)
            flushed = workload.model_copy(update={"fsync": True})
            copied = _buffered_phases(f"copy back {part.name}", part, flushed, back)[0]
            phases.append(replace(copied, kind="restore"))
            continue
        sharded = len(part.writers) == len(group.ranks) and not part.same_file and not _split(workload)
        size = part.size if sharded else part.size * (1 if part.same_file else len(part.writers))
        consolidated = workload.contents == "consolidated"
        full_part = part._replace(size=size, device="hbm" if consolidated else part.device)
        sharers = 1 if sharded else group.per_node
        sizes, load = _tensors(full_part), partial(_loaded, full_part, sharers)
        phases.append(_phase(f"read {part.name}", group, sizes, load, kind="restore"))
        phases.append(_phase(f"place {part.name}", group, sizes, partial(_placed, full_part), kind="restore"))
    return tuple(phases)


def _split(workload: Checkpointing) -> bool:
    """Return the pieces of one state that all ranks hold."""
    return workload.contents == "zero" and workload.stage == 0


def _loaded(part: CheckpointPart, sharers: int, phase: PhaseWriter, size: int) -> None:
    """Read from storage to the page cache and copy to new memory; ``sharers`` ranks of a host read a file
    together."""
    phase.read(-(-size // sharers), tier=phase.group.tier)
    pages = size * part.fresh / phase.new_memory.from_page_cache.value
    phase.work(pages, label="new pages", kind="pages", after=phase.so_far(READ))
    phase.in_host("from-page-cache", size)


def _placed(part: CheckpointPart, phase: PhaseWriter, size: int) -> None:
    """Copy from pageable memory to the GPU, or to the optimizer's own tensors in host memory."""
    if part.device == "hbm":
        phase.to_gpu(size, pinned=False, after=phase.so_far(HOST, COPY))
    else:
        phase.in_host("to-optimizer", size)
