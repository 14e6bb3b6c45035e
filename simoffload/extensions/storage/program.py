"""Checkpoints of training: their contents, how they are written, and the time that they cost a run.

File names, writers and layouts: deepspeedai/DeepSpeed@edaa7221 (0.19.6), runtime/engine.py
(``_get_ckpt_name``, ``_get_zero_ckpt_name``, ``save_checkpoint``, ``save_16bit_model``),
runtime/zero/stage3.py (``_rigid_state_dict``) and runtime/model_checkpointing.

The CPU times per byte, in addition to copying, are ``new_memory``, ``page_cache`` and ``checksum`` of a
host's profile, each mechanism measured alone. A complete ``torch.save`` from the GPU was measured on the same
machine, and is the test (tests/strategies/checkpoint/data/torch-save-h200.json). The copy runs at the host's
``memcpy_rate`` (6.84 GB/s on such a machine) or at the rate of the path from the GPU.

Three mechanisms make saving slow. A tensor that comes from the GPU is copied to new memory, whose pages the
kernel maps and clears one by one (PyTorch frees the memory after each tensor, and glibc immediately returns
blocks above 32 MiB to the kernel: mallopt(3), M_MMAP_THRESHOLD). The zip format needs a CRC-32 of all bytes
(torch.serialization.set_crc32_options). The page cache needs one more copy. A maintainer of PyTorch measured
1.4 GB/s into new memory of an A100's host, and 12.6 GB/s into pinned memory (pytorch/pytorch#138018).

All ranks are assumed to finish a part before the next one begins. ZeRO's ranks do not wait for each other, so
if few ranks write to a saturated filesystem the predicted sum is a little too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from simoffload.documents import Edit
from simoffload.errors import InputError, Problem
from simoffload.extensions.storage.result import Outlook, StateDevice, outlook, run_mtbf
from simoffload.hardware import Curve, Machine, Path, Resource, Sourced, in_hbm
from simoffload.models import SINGLE, ModelShape, Module
from simoffload.results import Change, cause_text
from simoffload.schedule import Cause, CauseKind, Dependency, OpKind, Schedule
from simoffload.strategies.base import (
    EvidenceBasis,
    Held,
    Phase,
    PhaseKind,
    Placement,
    Placements,
    Plan,
    StorageTier,
    Strategy,
    Tunable,
    Tunables,
    pinned_rounding,
)
from simoffload.strategies.ds_config import DeepSpeedConfig, OptimizerKind, section_warnings
from simoffload.strategies.memory import KEPT_BY_MALLOC, system_memory
from simoffload.strategies.passes.pass_writer import HOST, StreamWriter
from simoffload.strategies.passes.timing import copy_cause, picoseconds
from simoffload.strategies.training.state import Partitions, Weight, weights_of
from simoffload.units import format_seconds, plural
from simoffload.workload import Checkpointing, Optimizer, TrainingCheckpoints, Writer

if TYPE_CHECKING:
    from simoffload.strategies.programs.zero_training import ZeroTrainingPlan

DIRTY_LIMIT = 0.20
"""Fraction of host memory that may be dirty before writers wait (vm.dirty_ratio, its default)."""
DIRTY_BACKGROUND = 0.10
"""Fraction of host memory that is dirty when the kernel begins to write (vm.dirty_background_ratio)."""


def fresh_share(sizes: Iterable[int]) -> float:
    """Return the fraction of the bytes of tensors of ``sizes`` [B] that are copied to new memory."""
    total = fresh = 0
    for size in sizes:
        total += size
        fresh += size if size > KEPT_BY_MALLOC else 0
    return fresh / total if total else 0.0


_STATES: dict[Optimizer, int] = {"adam": 2 * SINGLE, "momentum": SINGLE, "sgd": 0, "adam_8bit": 2}
_SOCKETS = 2  # SOCKETS_PER_MACHINE of DeepSpeed's model_checkpointing/utils.py, for any machine
_WEIGHTS, _FROZEN, _OPTIMIZER = "weights", "frozen weights", "optimizer states"


class CheckpointPart(NamedTuple):
    """A CheckpointPart is data of which one or several ranks write as many bytes each at the same time."""

    name: str
    size: int
    """Size that each writer writes [B]."""
    writers: tuple[int, ...]
    """Ranks that write the part simultaneously."""
    device: StateDevice
    """Memory from which the bytes are written."""
    fresh: float
    """Fraction of the bytes that are in tensors above 32 MiB, for which the host maps new memory."""
    largest: int
    """Size of the largest tensor [B]."""
    pattern: str
    """File name, with ``{rank}`` and, for a part that is split, ``{index}``."""
    same_file: bool = False
    """Whether all writers write the same bytes to one file."""

    @property
    def on_gpu(self) -> bool:
        """Whether the bytes are in the memory of the GPUs."""
        return in_hbm(self.device)


class File(NamedTuple):
    """One file of a checkpoint."""

    name: str
    """Path of the file below the checkpoint's folder."""
    rank: int
    """Rank that writes the file."""
    size: int
    """Size of the file [B]."""


def optimizer_bytes(optimizer: Optimizer) -> int:
    """[B] per parameter of fp32 master weights and optimizer states."""
    return SINGLE + _STATES[optimizer]


def checkpoint_parts(
    model: ModelShape, workload: Checkpointing, *, ranks: int, nodes: int
) -> tuple[CheckpointPart, ...]:
    """Return the parts of a checkpoint in the order in which they are written.

    Raises InputError for writers that DeepSpeed cannot assign.
    """
    everyone = tuple(range(ranks))
    if workload.contents == "consolidated":
        device: StateDevice = "dram" if workload.stage == 3 else "hbm"
        return (_weights(model, weights_of(model), 1, (0,), device, "pytorch_model.bin"),)
    if workload.contents in {"model_only", "sharded"}:
        name = "__{rank}_0.distcp"
        weights = _weights(model, weights_of(model), ranks, everyone, "hbm", name)
        if workload.contents == "model_only":
            return (weights,)
        return _joined(weights, _optimizer(model, workload, ranks, everyone, name))
    if workload.stage == 3:
        states = _optimizer(model, workload, ranks, everyone, _optimizer_name(model, workload))
        frozen = [weight for weight in weights_of(model) if not weight.trainable]
        if not frozen:
            return (states,)
        # Each rank's slices of them, which the optimizer does not have (_get_zero_frozen_param_attributes).
        name = "zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
        return _weights(model, frozen, ranks, everyone, "hbm", name)._replace(name=_FROZEN), states
    return _replicated(model, workload, ranks, nodes)


def _replicated(
    model: ModelShape, workload: Checkpointing, ranks: int, nodes: int
) -> tuple[CheckpointPart, ...]:
    """Return the parts at stages 0 to 2, where every rank has all weights, at stage 0 all states."""
    name = "mp_rank_00_model_states.pt"
    tensors: Sequence[Weight] = weights_of(model)
    if workload.stage == 0:
        writers = _writers(workload, ranks, nodes)
        if workload.writer.type == "fast":
            name += f"-{{index}}.{len(writers)}"
        weights = _weights(model, tensors, len(writers), writers, "hbm", name)
        return _joined(weights, _optimizer(model, workload, len(writers), writers, name))
    # With a writer section DataParallelWriterFactory.create_config makes every rank a writer of the whole.
    everyone = tuple(range(ranks))
    alone = workload.writer.type == "torch_save"
    if workload.writer.type == "fast":
        name += "-0.1"
    if workload.stage == 2:  # copies of the frozen parameters (frozen_param_fragments)
        tensors = (*tensors, *(weight for weight in tensors if not weight.trainable))
    weights = _weights(model, tensors, 1, (0,) if alone else everyone, "hbm", name)
    shards = _optimizer(model, workload, ranks, everyone, _optimizer_name(model, workload))
    return weights._replace(same_file=not alone and ranks > 1), shards


def _joined(weights: CheckpointPart, states: CheckpointPart) -> tuple[CheckpointPart, ...]:
    """Combine both parts into one file, unless they are in different memories."""
    if states.device != weights.device:
        return weights, states
    size = weights.size + states.size
    return (
        weights._replace(
            name=f"{weights.name} and {states.name}",
            size=size,
            fresh=(weights.fresh * weights.size + states.fresh * states.size) / size,
            largest=max(weights.largest, states.largest),
        ),
    )


def _writers(workload: Checkpointing, ranks: int, nodes: int) -> tuple[int, ...]:
    """Return the ranks that each write a piece of common data (``DataParallelWriterFactory``)."""
    unit = workload.writer.data_parallel
    if unit == "none":
        return (0,)
    if unit == "replica":
        return tuple(range(ranks))
    count = nodes if unit == "machine" or ranks == nodes else nodes * _SOCKETS
    if ranks < count:
        message = f"DeepSpeed divides {ranks} ranks by {count} sockets; use data_parallel: machine or replica"
        raise InputError.at("workload.writer.data_parallel", message)
    return tuple(range(0, ranks, ranks // count))[:count]


def _weights(
    model: ModelShape,
    weights: Sequence[Weight],
    pieces: int,
    writers: tuple[int, ...],
    device: StateDevice,
    pattern: str,
) -> CheckpointPart:
    sizes = [-(-weight.numel // pieces) * model.dtype_bytes for weight in weights]
    return CheckpointPart(_WEIGHTS, sum(sizes), writers, device, fresh_share(sizes), max(sizes), pattern)


def _optimizer(
    model: ModelShape, workload: Checkpointing, pieces: int, writers: tuple[int, ...], name: str
) -> CheckpointPart:
    numel, tensors = _optimizer_numel(model, workload, pieces)
    devices: dict[str, StateDevice] = {"none": "hbm", "cpu": "dram", "nvme": "nvme"}
    return CheckpointPart(
        _OPTIMIZER,
        numel * optimizer_bytes(workload.optimizer),
        writers,
        devices[workload.offload_optimizer],
        fresh_share(SINGLE * one for one in tensors),
        SINGLE * max(tensors),
        name,
    )


def _optimizer_numel(model: ModelShape, workload: Checkpointing, pieces: int) -> tuple[int, list[int]]:
    """Return the trained elements of each writer, and the sizes of the tensors of one optimizer state.

    DeepSpeed keeps flat groups in single precision. Below stage 3 all parameters are in one sequence, which
    is cut into equal aligned pieces; at stage 3 each tensor has its own partition, in groups of
    ``sub_group_size``. torch.distributed.checkpoint has a shard of each tensor.
    """
    weights = weights_of(model)
    if workload.contents != "zero":
        shards = [-(-weight.numel // pieces) for weight in weights if weight.trainable]
        return sum(shards), shards
    ranks = pieces if workload.stage else 1
    partitions = Partitions(weights, workload.stage, ranks, workload.sub_group_size)
    if workload.stage == 0:
        numel = -(-partitions.part // pieces)
        return numel, [numel]
    return partitions.part, list(partitions.group_numels)


def _optimizer_name(model: ModelShape, workload: Checkpointing) -> str:
    if workload.offload_optimizer == "nvme":
        return "offloaded_tensors/rank{rank}"
    prefix = "bf16_" if model.dtype == "bfloat16" else ""
    suffix = "-0.1" if workload.writer.type == "fast" and workload.stage < 3 else ""
    return f"{prefix}zero_pp_rank_{{rank}}_mp_rank_00_optim_states.pt{suffix}"


def checkpoint_files(parts: Sequence[CheckpointPart]) -> Iterator[File]:
    """Yield every file of significant size: not ``latest``, nor the names and shapes of ZeRO-3."""
    for part in parts:
        for index, rank in enumerate(part.writers[:1] if part.same_file else part.writers):
            yield File(part.pattern.format(rank=rank, index=index), rank, part.size)


def checkpoint_bytes(parts: Sequence[CheckpointPart]) -> int:
    """[B] on storage of one checkpoint, padding included."""
    return sum(one.size for one in checkpoint_files(parts))


# -- operations ------------------------------------------------------------------------------------

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


class PhaseWriter(StreamWriter):
    """A PhaseWriter writes how the ranks of a group save or restore a part, block by block."""

    def __init__(self, name: str, group: RankGroup, part: CheckpointPart, workload: Checkpointing) -> None:
        super().__init__(name=name, gpus=group.ranks, streams=STREAMS, machine=group.machine)
        self._group, self._part, self._workload, self._writer = group, part, workload, workload.writer
        self._new_memory = group.machine.host.fresh_memory
        self._page_cache = group.machine.host.cached_files

    def capacity(self, resource: Resource) -> int:
        """Return the ranks' capacity [B/s]: identical runs get equal parts of a filesystem."""
        shared = resource.kind == "server"
        return max(1, resource.capacity // self._group.jobs) if shared else resource.capacity

    def earlier(self, stream: int, back: int) -> tuple[Dependency, ...]:
        """Return the dependency on the operation ``back`` before a stream's last one, if there is one."""
        return (Dependency(stream, back),) if self.builder.written[stream] > back else ()

    # -- one operation --------------------------------------------------------------------------

    def _work(
        self, seconds: float, *, label: str, kind: OpKind = "hook", after: tuple[Dependency, ...] = ()
    ) -> None:
        """Occupy the host thread for ``seconds`` [s], unless that is zero."""
        if seconds or after:
            self.add(kind, HOST, fixed=picoseconds(seconds), label=label, after=after)

    def _new_pages(self, size: float, rate: Sourced[int], *behind: int) -> None:
        """Map new memory for ``size`` [B], behind all work so far on some streams."""
        self._work(size / rate.value, label="new pages", kind="pages", after=self.so_far(*behind))

    def _transfer(
        self,
        stream: int,
        cause: Cause,
        path: Callable[[int], Path],
        size: int,
        *,
        each: int | None = None,
        call_s: float = 0.0,
        after: tuple[Dependency, ...] = (),
        kind: OpKind | None = None,
        alone: bool = False,
    ) -> None:
        """Transfer ``size`` [B] in pieces of ``each`` [B], with ``call_s`` [s] per call, on the ``path`` of
        each GPU; only on that of the first one if it is ``alone``."""
        first, hops = self.way((cause, alone), path)
        if alone:
            hops = (hops[0], *(() for _ in hops[1:]))
        one = min(each or size, size)
        fixed = picoseconds(-(-size // one) * (call_s + first.latency))
        route = self.builder.route(cause=cause, hops=hops, cap=first.curve.rate(one))
        self._move(stream, cause, route, size, fixed, after, kind=kind)

    def _move(
        self,
        stream: int,
        cause: Cause,
        route: int,
        size: int,
        fixed: int,
        after: tuple[Dependency, ...] = (),
        *,
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
            collective=stream == COMM,
        )

    def _copy(
        self,
        size: int,
        *,
        pinned: bool = False,
        each: int | None = None,
        call_s: float = 0.0,
        after: tuple[Dependency, ...],
        alone: bool = False,
    ) -> None:
        """Copy from the GPU to host memory."""
        cause = copy_cause(to_device=False, pinned=pinned)
        path = partial(self.machine.device_to_host, pinned=pinned)
        self._transfer(COPY, cause, path, size, each=each, call_s=call_s, after=after, alone=alone)

    def _in_host(self, kind: CauseKind, size: int, *, after: tuple[Dependency, ...] = ()) -> None:
        """Copy within host memory with one thread."""
        machine, rate = self.machine, Curve.flat(self.machine.host.memcpy_rate.value)

        def path(rank: int) -> Path:
            memory = machine.topology.memories[rank // machine.gpus_per_node]
            return Path("host memory", ((memory, _COPIED),), 0.0, rate)

        self._transfer(HOST, Cause(kind), path, size, after=after)

    def _collective(
        self, kind: CauseKind, size: int, *, call_s: float = 0.0, after: tuple[Dependency, ...]
    ) -> None:
        """Receive ``size`` [B] on every rank from all others."""
        path = partial(self.machine.gather, ranks=self.ranks)
        self._transfer(COMM, Cause(kind), path, size, call_s=call_s, after=after)

    def _read(self, size: int, tier: str) -> None:
        """Read from a tier into the page cache; the kernel's read-ahead determines the bytes in flight."""
        path, _ = self.way((tier, False, False), partial(self.machine.storage_read, tier))
        ahead = self.read_ahead(tier, path)
        route, fixed = self.file(tier, size, block=ahead, in_flight=ahead)
        self._move(READ, Cause("read", tier), route, size, fixed)

    def _write(self, size: int, *, direct: bool, after: tuple[Dependency, ...]) -> None:
        """Write to the tier: ``direct`` from the buffer with the aio library, one portion at a time, else by
        the kernel's writeback, with as many bytes in flight as the device can use."""
        one, block, in_flight = size, 0, None
        if direct:
            writer, one = self._writer, min(self._writer.portion, size)
            block = min(writer.block_size, one)
            in_flight = min(writer.block_size * writer.queue_depth * writer.intra_op_parallelism, one)
        gds = direct and self._writer.use_gds
        tier = self._group.tier
        route, fixed = self.file(tier, one, block=block, in_flight=in_flight, written=True, gds=gds)
        self._move(IO, Cause("write", tier), route, size, -(-size // one) * fixed, after)

    # -- saving a block -------------------------------------------------------------------------

    def direct(self, size: int) -> None:
        """Fill one half of the buffer while the other is written (FastFileWriter, Double_IO_Buffer).

        A half is filled again when it has been written, and written when it is full and the other half has
        been written. The copy therefore waits for the last write but one, or with a single buffer for the
        last write.
        """
        writer, call = self._writer, self.costs.blocking_copy_call.value
        free = self._free
        if writer.use_gds:
            filled = 2 * size / self.machine.accelerator.hbm_rate
            self._work(-(-size // writer.portion) * call + filled, label="fill", after=free)
        elif self._part.on_gpu:
            self._copy(size, pinned=True, each=writer.portion, call_s=call, after=free)
        else:
            self._in_host("to-io-buffer", size, after=free)
        self._write(size, direct=True, after=self.so_far(HOST, COPY))

    @property
    def _free(self) -> tuple[Dependency, ...]:
        """Dependency on the write after which the buffer, or one half of it, is free."""
        return self.earlier(IO, 1 if self._writer.io_buffer_double else 0)

    def through_python(self, size: int) -> None:
        """Write as the fast writer does with an unmodified PyTorch: every tensor is copied into a NumPy array
        and from there into the buffer (FastFileWriter.write, bytes_to_tensor), by one thread in sequence."""
        self._to_host(size)
        self._new_pages(size, self._new_memory.huge_pages, COPY)
        self._in_host("to-array", size)
        self._in_host("to-io-buffer", size, after=self._free)
        self._write(size, direct=True, after=self.so_far(HOST))

    def _to_host(self, size: int) -> None:
        """Copy to new pages of host memory, wait for that, and compute the zip format's checksum."""
        if self._part.on_gpu:
            self._new_pages(size * self._part.fresh, self._new_memory.from_gpu)
            self._copy(size, after=self.so_far(HOST))
        if self._writer.checkpoint_serialization:
            rate = self.machine.host.checksum_rate.value
            self._work(size / rate, label="crc32", kind="checksum", after=self.so_far(COPY))

    def to_page_cache(self, size: int, wait: tuple[Dependency, ...]) -> None:
        """Copy a block into the page cache, for which the thread may have to ``wait``."""
        swapped = self._part.device == "nvme"
        if swapped:
            self._read(size, self._group.swap)
        else:
            self._to_host(size)
        kind: CauseKind = "file-to-file" if swapped else "to-page-cache"
        rate = self._page_cache.copy_file if swapped else self._page_cache.write
        after = (*wait, *self.so_far(READ if swapped else COPY))
        self._work(size / rate.value, label="page cache", kind="cached", after=after)
        self._in_host(kind, size)

    def write_back(self, size: int) -> None:
        """Let the kernel write dirty pages, behind all work so far of the thread."""
        self._write(size, direct=False, after=self.so_far(HOST))

    def snapshot(self, size: int) -> None:
        """Copy into host memory while training waits (``async_save``, BlockingAsyncStager)."""
        pinned, fresh = self._workload.pin_memory, size * self._part.fresh
        if self._part.on_gpu:
            if not pinned:
                self._new_pages(fresh, self._new_memory.from_gpu, COPY)
            self._copy(size, pinned=pinned, after=self.so_far(HOST))
        else:
            if not pinned:
                self._new_pages(fresh, self._new_memory.from_page_cache)
            self._in_host("to-snapshot", size)

    def consolidate(self, modules: Sequence[Module], *, dtype_bytes: int) -> None:
        """Gather parameters from all ranks, copy them on rank 0 and broadcast them, module by module.

        (GatheredParameters with ``modifier_rank=0``, ``_zero3_consolidated_16bit_state_dict``.)
        """
        ranks, costs = self.ranks, self.costs
        parameters = [one for module in modules for one in module.parameters if not one.tied]
        tensors = [one.numel * dtype_bytes for one in parameters]
        size, calls = sum(tensors), sum(bool(module.parameters) for module in modules)
        if ranks > 1:
            received = -(-size * (ranks - 1) // ranks)
            call = calls * (costs.fetch_call.value + costs.collective_call.value)
            self._collective("all-gather", received, call_s=call, after=self.so_far(COPY))
        self._new_pages(size * fresh_share(tensors), self._new_memory.from_gpu, COPY, COMM)
        self._copy(size, after=self.so_far(HOST, COMM), alone=True)
        if ranks > 1:
            self._collective("broadcast", size, after=self.so_far(COPY))

    # -- restoring a block ----------------------------------------------------------------------

    def load(self, size: int, sharers: int) -> None:
        """Read through the page cache to new memory; ``sharers`` ranks of a host read a file together."""
        self._read(-(-size // sharers), self._group.tier)
        self._new_pages(size * self._part.fresh, self._new_memory.from_page_cache, READ)
        self._in_host("from-page-cache", size)

    def place(self, size: int) -> None:
        """Copy from pageable memory to the GPU, or to the optimizer's own tensors in host memory."""
        if self._part.on_gpu:
            cause, path = copy_cause(to_device=True, pinned=False), self.machine.host_to_device
            after = self.so_far(HOST, COPY)
            self._transfer(COPY, cause, partial(path, pinned=False), size, after=after, kind="copy")
        else:
            self._in_host("to-optimizer", size)


# -- phases ----------------------------------------------------------------------------------------

_BLOCK, _MOST_BLOCKS = 64 * 2**20, 100
"""[B] of the blocks into which tensors and files are cut without a buffer, and their number (our choice)."""
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


def blocks(size: int, block: int = _BLOCK, *, most: int = _MOST_BLOCKS) -> list[int]:
    """Cut ``size`` [B] into blocks of ``block`` [B] and a rest; into ``most`` larger ones if fewer."""
    times = max(1, -(-size // (block * most)))
    full_blocks, rest = divmod(size, block * times)
    return [block * times] * full_blocks + ([rest] if rest else [])


class _PartPhases(NamedTuple):
    """Phases of a part of a checkpoint, which the ranks of a group save or restore."""

    group: RankGroup
    part: CheckpointPart
    workload: Checkpointing

    def phase(
        self,
        name: str,
        blocks: Iterable[_T],
        write: Callable[[PhaseWriter, _T], None],
        *,
        kind: PhaseKind = "save",
        background: bool = False,
    ) -> Phase:
        """Return a phase whose schedule ``write`` writes, one block after the other."""

        def schedule(_earlier: object) -> Schedule:
            out = PhaseWriter(name, *self)
            for block in blocks:
                out.builder.segment(name)
                write(out, block)
            return out.build()

        return Phase(name, kind, schedule, background=background)

    def saved(self) -> list[Phase]:
        """Return the phases that bring the part to storage."""
        name, writer = f"save {self.part.name}", self.workload.writer
        if self.part.device == "nvme" or writer.type != "fast":
            return self.buffered(name)
        write = PhaseWriter.direct if writer.is_direct else PhaseWriter.through_python
        return [self.phase(name, blocks(self.part.size, writer.portion, most=_MOST_PORTIONS), write)]

    def buffered(self, name: str) -> list[Phase]:
        """Write through the page cache, as ``torch.save`` does to a file, or as swap files are copied.

        The call returns when all data is in the page cache, unless writers must flush or the data exceeds the
        limit of dirty memory; the rest is written in the background while training continues. The rest is
        taken as large as the limit, although fast drives will have written some of it.
        """
        kind = self.group.machine.tiers[self.group.tier].kind
        sizes = blocks(self.part.size)
        begin, limit = _SENT_AT_ONCE if kind == "pfs" else _dirty_lags(self.group, sizes[0])
        through = self.workload.fsync or kind in _FLUSHED_AT_CLOSE
        flushed = len(sizes) if through else max(0, len(sizes) - limit)

        def write(out: PhaseWriter, index: int) -> None:
            if index < len(sizes):
                wait = out.earlier(IO, limit - 1 - begin) if index >= limit else ()
                out.to_page_cache(sizes[index], wait)
            if begin <= index < begin + flushed:
                out.write_back(sizes[index - begin])

        phases = [self.phase(name, range(max(len(sizes), begin + flushed)), write)]
        if left := sizes[flushed:]:  # the kernel writes the dirty pages
            title = f"write back {self.part.name}"
            phases.append(self.phase(title, left, PhaseWriter.write_back, background=True))
        return phases

    def restored(self) -> list[Phase]:
        """Return the phases that bring the part back; ``group`` has all ranks."""
        group, part, workload = self
        if part.device == "nvme":
            back = group._replace(tier=group.swap, swap=group.tier)
            flushed = workload.model_copy(update={"fsync": True})
            copied = _PartPhases(back, part, flushed).buffered(f"copy back {part.name}")[0]
            return [replace(copied, kind="restore")]
        pieces = workload.contents == "zero" and workload.stage == 0  # of one state that all ranks hold
        sharded = len(part.writers) == len(group.ranks) and not part.same_file and not pieces
        size = part.size if sharded or part.same_file else part.size * len(part.writers)
        device = "hbm" if workload.contents == "consolidated" else part.device
        full = self._replace(part=part._replace(size=size, device=device))
        load = partial(PhaseWriter.load, sharers=1 if sharded else group.per_node)
        return [
            full.phase(f"read {part.name}", blocks(size), load, kind="restore"),
            full.phase(f"place {part.name}", blocks(size), PhaseWriter.place, kind="restore"),
        ]


def _modules(model: ModelShape) -> list[Sequence[Module]]:
    """Return the modules that are gathered together: before the layers, of each layer, and after them."""
    groups = (model.modules_before, *model.layers, model.modules_after)
    return [modules for modules in groups if any(not one.tied for each in modules for one in each.parameters)]


def _dirty_lags(group: RankGroup, block: int) -> tuple[int, int]:
    """Return the dirty blocks of a writer at which the kernel begins to write, and writers wait."""
    memory = group.machine.tiers["dram"].capacity - group.machine.host.reserved_bytes
    share = memory / group.per_node
    limit = max(2, int(DIRTY_LIMIT * share) // block)
    return min(limit - 1, int(DIRTY_BACKGROUND * share) // block), limit


_COMMIT_TIMEOUT = 300.0
"""[s] that a decoupled checkpoint may take in DeepSpeed (DEFAULT_CHECKPOINT_TIMEOUT_SECONDS)."""
_BUFFER = "lower writer.io_buffer_size"
_HOSTS = "use hosts with more"


@dataclass(frozen=True)
class CheckpointPlan(Plan):
    """A CheckpointPlan describes the checkpoints of one run; build it with :func:`plan_checkpoint`."""

    model: ModelShape
    workload: Checkpointing
    machine: Machine
    ranks: int
    tier: str
    """Tier to which checkpoints are written."""
    swap: str = ""
    """Tier of the optimizer's swap files with ``offload_optimizer: nvme``."""

    @property
    def basis(self) -> EvidenceBasis:
        """Also rates of new pages, of checksums, and of the page cache, through which most writers write."""
        host = self.machine.host
        costs = host.fresh_memory.from_gpu, host.checksum_rate, host.cached_files.write
        return super().basis._replace(cpu_costs=costs)

    @property
    def saved(self) -> CheckpointPlan:  # type: ignore[override]  # of other plans it is a field
        """Checkpoint plan of the run: this plan."""
        return self

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of saving, then those of restoring."""
        return (*self.save(), *self.restore())

    def after(self, *, step_time: float, update_time: float) -> CheckpointPlan:
        """Return the plan for a run with steps of ``step_time`` [s], with ``update_time`` [s] at the end."""
        known = {"step_time": step_time, "update_time": update_time}
        return replace(self, workload=self.workload.model_copy(update=known))

    @property
    def nodes(self) -> int:
        """Number of hosts that take part in saving."""
        return self.machine.nodes_of(self.ranks)

    @property
    def group(self) -> RankGroup:
        """Group of all ranks, with the tier that receives their bytes."""
        return RankGroup(self.machine, tuple(range(self.ranks)), self.tier, self.swap, self.workload.jobs)

    @cached_property
    def parts(self) -> tuple[CheckpointPart, ...]:
        """Parts of the checkpoint in the order of writing."""
        return checkpoint_parts(self.model, self.workload, ranks=self.ranks, nodes=self.nodes)

    @property
    def size(self) -> int:
        """Size of one checkpoint on storage [B]."""
        return checkpoint_bytes(self.parts)

    @property
    def written_by_host(self) -> tuple[int, ...]:
        """Bytes that the ranks of each host write for one checkpoint [B]."""
        by_host = [0] * self.nodes
        for part in self.parts:
            for rank in part.writers:
                by_host[rank // self.machine.gpus_per_node] += part.size
        return tuple(by_host)

    @property
    def _gathers(self) -> bool:
        """Whether the weights are gathered on rank 0."""
        return self.workload.contents == "consolidated" and self.workload.stage == 3

    def save(self) -> tuple[Phase, ...]:
        """Phases of saving one checkpoint until it is stored, in sequence."""
        group, parts, workload = self.group, self.parts, self.workload
        before: list[Phase] = []
        if self._gathers:
            gathering = _PartPhases(group, parts[0], workload)
            write = partial(PhaseWriter.consolidate, dtype_bytes=self.model.dtype_bytes)
            before.append(gathering.phase("gather weights", _modules(self.model), write))
        if workload.mode == "snapshot":
            for part in parts:
                staged, name = _PartPhases(group, part, workload), f"snapshot of {part.name}"
                before.append(staged.phase(name, blocks(part.size), PhaseWriter.snapshot))
            parts = tuple(part._replace(device="dram") for part in parts)
            workload = workload.model_copy(update={"fsync": True})  # FileSystemWriter's sync_files
        by_part = (_PartPhases(group._replace(ranks=part.writers), part, workload) for part in parts)
        writing = [phase for one in by_part for phase in one.saved()]
        if workload.mode != "blocking":
            writing = [replace(phase, background=True) for phase in writing]
        return (*before, *writing)

    def restore(self) -> tuple[Phase, ...]:
        """Phases from the call of load until training can continue; the other runs are assumed to train.

        ``load_checkpoint`` of deepspeedai/DeepSpeed@edaa7221 reads each file into host memory
        (``torch.load``); ``load_state_dict`` then copies tensor by tensor. Below stage 3 every rank reads the
        whole file of the weights (at stage 0, of all states); ranks of a host find it in the page cache when
        one of them has read it.
        """
        group = self.group._replace(jobs=1)
        by_part = (_PartPhases(group, part, self.workload) for part in self.parts)
        return tuple(phase for one in by_part for phase in one.restored())

    def outlook(self, *, blocking_s: float, background_s: float, restore_s: float) -> Outlook:
        """Return the effect of blocking and background saving and of restoring [s] on the run."""
        workload = self.workload
        mtbf = workload.node_mtbf
        return outlook(
            blocking_s=blocking_s,
            background_s=background_s,
            restore_s=restore_s,
            overlap_s=workload.overlap_s,
            interval_s=workload.interval_s,
            mtbf_s=None if mtbf is None else run_mtbf(node_mtbf_s=mtbf, nodes=self.nodes),
            restart_s=workload.restart_time,
        )

    # -- memory ---------------------------------------------------------------------------------

    @property
    def held(self) -> tuple[Held, ...]:
        """What tiers hold while a checkpoint is saved, in addition to training, and all checkpoints that are
        kept."""
        workload, keep = self.workload, self.workload.keep
        name, fewer = ("saved checkpoints", f"lower keep: {keep}") if keep > 1 else ("saved checkpoint", "")
        terms = [
            Held(self.tier, name, self.size * keep, remedy=fewer, kind="checkpoints"),
            system_memory(self.machine, remedy=_HOSTS),
        ]
        if self.swap:  # files of the run
            terms.append(Held(self.swap, "swap files", 0, kind="optimizer"))
        if workload.mode == "snapshot":
            size, pinned = sum(part.size for part in self.parts) * self.group.per_node, workload.pin_memory
            terms.append(Held("dram", "snapshot", size, pinned=pinned, remedy="mode: blocking"))
        terms += self._in_writers()
        if self._gathers:
            size = self.model.weight_bytes
            terms.append(Held("dram", "weights gathered on rank 0", size, remedy="contents: zero"))
        return tuple(terms)

    def _in_writers(self) -> Iterator[Held]:
        """Yield the buffers of the writers, for the part with the most writers on a host, and of pages that
        are not yet written to storage; others can be reclaimed."""
        writer, writing = self.workload.writer, [self._writing(part) for part in self.parts]
        fast, crowded = writer.type == "fast", max(writing)
        if fast and writer.use_gds:
            yield Held("hbm", "I/O buffer", writer.io_buffer_size, remedy=_BUFFER)
            return
        if fast:
            each = writer.io_buffer_size + pinned_rounding([writer.io_buffer_size])
            yield Held("dram", "I/O buffers", each * crowded, pinned=True, remedy=_BUFFER)
        if not writer.is_direct and self.workload.mode != "snapshot":
            # A copy from the GPU, and a NumPy array.
            largest = max((part.largest for part in self.parts if part.on_gpu), default=0)
            size = largest * (2 if fast else 1) * crowded
            yield Held("dram", "tensors on their way from the GPU", size, remedy=_HOSTS)
        if not fast:
            host = self.machine.tiers["dram"].capacity - self.machine.host.reserved_bytes
            most = max(part.size * count for part, count in zip(self.parts, writing, strict=True))
            size = min(most, int(DIRTY_LIMIT * host))
            yield Held("dram", "page cache not yet written", size, remedy=_HOSTS)

    def _writing(self, part: CheckpointPart) -> int:
        """Return the largest number of ranks of one host that write a part."""
        return self.group._replace(ranks=part.writers).per_node

    # -- what to know before --------------------------------------------------------------------

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]  # of other plans it is a field
        """Warnings about ineffective options, checkpoints that cannot be restored, and missing inputs."""
        hidden = "mode: decoupled hides what fits before the next optimizer step; give step_time"
        missing = self.workload.mode == "decoupled" and self.workload.step_time is None
        return (*self.notes, *([hidden] if missing else []))

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the checkpoint itself, independent of the run."""
        return (*self._about_writer(), *self._about_contents())

    def _about_writer(self) -> list[str]:
        writer, stage = self.workload.writer, self.workload.stage
        notes = [*(self.machine.gpudirect_warnings("workload.writer.use_gds") if writer.use_gds else ())]
        written = any(part.device != "nvme" for part in self.parts)  # swap files are copied
        if writer.type == "fast" and not writer.is_direct and written:
            missing = []
            if not writer.patched_torch:
                missing.append("patched_torch: true (torch/serialization.py of DeepSpeedExamples)")
            if writer.checkpoint_serialization:
                missing.append("checkpoint_serialization: false")
            notes.append(
                f"the fast writer gets its bytes from PyTorch through Python, slower than torch.save; it "
                f"needs {' and '.join(missing)}"
            )
        if writer.type == "fast" and self.workload.contents == "zero" and stage < 3:
            notes.append(
                "below stage 3 the fast writer adds its number to file names (…pt-0.1), under which "
                "load_checkpoint does not look for them"
            )
        if writer.type != "torch_save" and stage in {1, 2} and self.ranks > 1:
            notes.append(
                f"with a writer section at stage {stage} every rank writes all weights to the same file, "
                f"{self.ranks} times as much as needed"
            )
        if writer.data_parallel != "none" and stage == 3:
            notes.append("writer.data_parallel has no effect at stage 3: every rank writes its own part")
        if writer.is_direct and self.workload.fsync:
            notes.append("fsync has no effect on the fast writer, which always flushes")
        return notes

    def _about_contents(self) -> list[str]:
        notes = []
        workload = self.workload
        insures = workload.interval is not None or workload.interval_steps or workload.node_mtbf is not None
        if workload.contents in {"consolidated", "model_only"} and insures:
            notes.append(
                f"contents: {self.workload.contents} has no optimizer states; training cannot resume from it"
            )
        if self.machine.tiers[self.tier].row.local and self.nodes > 1:
            notes.append(
                f"{self.tier} is in each node: a node that is lost takes its part of the checkpoint with it"
            )
        if self.machine.tiers[self.tier].row.local and self.workload.jobs > 1:
            notes.append(f"jobs has no effect on {self.tier}, which other jobs cannot reach")
        return notes

    def commit_warning(self, outlook: Outlook) -> str:
        """Return a warning if DeepSpeed would stop waiting for a decoupled checkpoint; otherwise ""."""
        if self.workload.mode != "decoupled" or outlook.stall_s <= _COMMIT_TIMEOUT:
            return ""
        wait = format_seconds(outlook.stall_s)
        return f"DeepSpeed would stop here: the commit waits {wait}, and gives up after 300 s"


def plan_checkpoint(
    model: ModelShape,
    workload: Checkpointing,
    machine: Machine,
    *,
    ranks: int,
    tier: str,
    swap: str | None = None,
) -> CheckpointPlan:
    """Check that the machine has what the checkpoint needs, and plan it.

    ``swap`` is the tier of the optimizer's swap files, by default the first tier with local drives. Raises
    InputError for ranks or tiers that the machine does not have, and for writers that DeepSpeed cannot
    assign.
    """
    if not 1 <= ranks <= machine.gpus:
        raise InputError.at(
            "strategy.ranks", f"{ranks} ranks, but the platform has {plural(machine.gpus, 'GPU')}"
        )
    tier = _storage(machine, tier, "strategy.tier")
    if workload.offload_optimizer == "nvme":
        local = [name for name, one in machine.tiers.items() if one.row.local and one.row.has_files]
        if swap is None and not local:
            raise InputError.at(
                "workload.offload_optimizer", "nvme, but the platform has no tier of local drives"
            )
        swap = _storage(machine, swap or local[0], "strategy.swap")
    plan = CheckpointPlan(model, workload, machine, ranks, tier, swap or "")
    _ = plan.warnings  # a GPU that lacks what the writer needs
    _ = plan.parts  # writers that cannot be
    return plan


def _storage(machine: Machine, tier: str, key: str) -> str:
    storage = [name for name, one in machine.tiers.items() if one.row.has_files]
    if tier not in storage:
        has = ", ".join(storage) or "none"
        raise InputError.at(key, f'no storage tier "{tier}" on platform "{machine.platform}" (has: {has})')
    return tier


class CheckpointStorage(Strategy):
    """CheckpointStorage is the strategy for checkpoints that are simulated without training."""

    serves: ClassVar = frozenset({"checkpoint"})

    kind: Literal["checkpoint"] = "checkpoint"
    tier: StorageTier
    """Storage tier to which checkpoints are written."""
    swap: StorageTier | None = None
    """Tier of the optimizer's swap files with ``offload_optimizer: nvme``; by default the first tier with
    local drives."""

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield each tier of storage."""
        storage = [tier for tier in machine.tiers.values() if tier.row.has_files]
        has = ", ".join(one.name for one in storage) or "none"
        yield Placements(
            now=lambda: Placement(self.tier),
            possible=tuple(Placement(tier.name) for tier in storage),
            edits=lambda other: (Edit.at("strategy.tier", other.weights),),
            refusal=f"checkpoints go to storage with files (has: {has})",
            no_copies="checkpoints go to storage",  # they would be lost with the GPU
            storage=True,
        )
        for tier in sorted(storage, key=lambda one: one.capacity) if plan is not None else ():
            edit = Edit.at("strategy.tier", tier.name)
            yield Tunable("tier", [Change("tier", f"checkpoints on {tier.name}", (edit,))])

    def plan(self, model: ModelShape, workload: Checkpointing, machine: Machine) -> CheckpointPlan:
        """Apply the strategy. Raises InputError for missing hardware and for what DeepSpeed cannot do."""
        return plan_checkpoint(model, workload, machine, ranks=self.ranks, tier=self.tier, swap=self.swap)


_OPTIMIZERS: dict[OptimizerKind, Optimizer] = {
    "adam": "adam",
    "sgd": "momentum",
    "adam8bit": "adam_8bit",
    "paged_adam": "adam",
    "paged_adam8bit": "adam_8bit",
    # On ZeRO's flat partitions Adafactor keeps one element each (strategies/training/memory.py).
    "adafactor": "momentum",
}


def plan_of_training(options: TrainingCheckpoints, plan: ZeroTrainingPlan) -> CheckpointPlan:
    """Plan the checkpoints of a training run, before the time of its step is known.

    ``interval_steps`` has an effect only once this time is known (``CheckpointPlan.after``). Raises
    InputError, with keys below ``checkpoint``, for options that contradict each other or the run.
    """
    workload = _workload(options, plan)
    try:
        workload.writer.check()
        workload.check()
        found = plan_checkpoint(
            plan.model,
            workload,
            plan.machine,
            ranks=plan.places.ranks,
            tier=options.tier,
            swap=plan.places.optimizer if workload.offload_optimizer == "nvme" else None,
        )
        every = {"interval_steps": options.interval_steps}
        return replace(found, workload=workload.model_copy(update=every))
    except ValueError as error:
        raise InputError.at("checkpoint", str(error)) from None
    except InputError as error:
        raise InputError(_below_checkpoint(one) for one in error.problems) from None


def _below_checkpoint(problem: Problem) -> Problem:
    """Convert the key of an error in a scenario with only checkpoints to one of ``checkpoint``."""
    for room in ("workload.", "strategy."):
        if problem.key.startswith(room):
            return problem._replace(key=f"checkpoint.{problem.key.removeprefix(room)}")
    return problem


def _workload(options: TrainingCheckpoints, plan: ZeroTrainingPlan) -> Checkpointing:
    """Return the workload with the scenario's values, which take precedence over ds_config."""
    settings, section = plan.settings, plan.config.checkpoint
    given = {name: getattr(options, name) for name in type(options).model_fields if name != "tier"}
    decoupled = section is not None and section.writer is not None and section.writer.decoupled
    if decoupled and "mode" not in options.model_fields_set:
        given["mode"] = "decoupled"
    return Checkpointing.model_construct(
        **given
        | {
            "writer": _writer(options.writer, plan),
            "interval_steps": None,
            "stage": settings.stage,
            "optimizer": _OPTIMIZERS[settings.optimizer],
            "offload_optimizer": settings.optimizer_device,
            "sub_group_size": settings.sub_group_size,
        }
    )


def _writer(written: Writer, plan: ZeroTrainingPlan) -> Writer:
    """Return the writer of ds_config (``checkpoint.writer``, ``aio``), with the scenario's additions."""
    aio, section = plan.settings.params, plan.config.checkpoint
    values: dict[str, Any] = {
        "block_size": aio.block_size,
        "queue_depth": aio.queue_depth,
        "intra_op_parallelism": aio.threads,
    }
    if section is not None:
        values["checkpoint_serialization"] = section.checkpoint_serialization
        if section.writer is not None:
            values |= {
                "type": section.writer.type,
                "io_buffer_size": section.writer.io_buffer_size,
                "io_buffer_double": section.writer.io_buffer_double,
                "data_parallel": section.writer.data_parallel or "none",
            }
    values |= {name: getattr(written, name) for name in written.model_fields_set}
    made = Writer().model_copy(update=values)
    if aio.use_gds and made.is_direct and "use_gds" not in written.model_fields_set:
        return made.model_copy(update={"use_gds": True})
    return made


def config_warnings(config: DeepSpeedConfig) -> tuple[str, ...]:
    """Return warnings about keys of ``checkpoint`` that are unknown to DeepSpeed or not modelled."""
    section = config.checkpoint
    if section is None:
        return ()
    more = section_warnings(section.writer, "checkpoint.writer.") if section.writer is not None else []
    return (*section_warnings(section, "checkpoint."), *more)
