"""Contents of a checkpoint (parts, writers, files), and the CPU time per byte of saving it.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from simoffload.errors import InputError
from simoffload.models import SINGLE, ModelShape
from simoffload.results import StateDevice
from simoffload.strategies.memory import KEPT_BY_MALLOC
from simoffload.strategies.training.state import Partitions, Weight, weights_of
from simoffload.workload import Checkpointing, Optimizer

DIRTY_LIMIT = 0.20
"""Fraction of host memory that may be dirty before writers wait (vm.dirty_ratio, default in
mm/page-writeback.c)."""
DIRTY_BACKGROUND = 0.10
"""Fraction of host memory that is dirty when the kernel begins to write (vm.dirty_background_ratio, its
default)."""


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
    """A CheckpointPart is data that one or several ranks write at the same time, each the same number of
    bytes."""

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
    """Return the parts at stages 0 to 2, where every rank has all weights, and at stage 0 all optimizer
    states."""
    name = "mp_rank_00_model_states.pt"
    tensors = weights_of(model)
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
        tensors += tuple(weight for weight in tensors if not weight.trainable)
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
    """Return the ranks that each write a piece of the data that all ranks have
    (``DataParallelWriterFactory``)."""
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


def written_bytes(parts: Sequence[CheckpointPart]) -> int:
    """Return the bytes [B] that all ranks write for one checkpoint; if several write the same file, each
    counts."""
    return sum(part.size * len(part.writers) for part in parts)
