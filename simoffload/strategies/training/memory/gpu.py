"""Memory of one GPU at each stage of a training run.

Only tensors are counted; PyTorch's allocator may keep more memory that was freed, and returns it before an
allocation fails. Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage3.py, stage_1_and_2.py,
partition_parameters.py and runtime/comm/coalesced_collectives.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simoffload.models import SINGLE
from simoffload.results import MemoryTerm
from simoffload.strategies.training.bitsandbytes import PAGED
from simoffload.strategies.training.memory.states import TrainingMemory, largest_module_numel, moment_bytes
from simoffload.strategies.training.state import Weight

_DOUBLE = 8
"""[B] per element of gradient norms, which are computed in double precision from a cast of the whole
tensor."""
_NORM_CHUNK = 250_000_000
"""[elements] that stage 3 casts at a time (``_constant_buffered_norm2``)."""
_COPIES_ON_GPU = (0, 18, 3)
"""Version from which stages 1 and 2 copy a rank's gradients on the GPU before they go to the host."""
_SELECTED = 4
"""Number of 16-bit tensors that ZenFlow keeps for the selected columns: two moments, a copy, the gradient."""

_BATCH = "lower batch_size or sequence_length"
_KEPT = f"{_BATCH}, or set gradient_checkpointing"
_CHECKPOINTS = "lower batch_size or sequence_length, or set activation_checkpointing.cpu_checkpointing"
_BUCKET = "lower reduce_bucket_size"
_FETCH = "lower stage3_max_live_parameters, stage3_max_reuse_distance or stage3_prefetch_bucket_size"
_OPTIMIZER = "set offload_optimizer.device, a higher stage, or more ranks"
_SUB_GROUP = "lower sub_group_size"


def gpu_initialisation(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the need at start-up: stage 3 partitions each parameter when it is made; moments do not exist
    yet."""
    return (
        *_states(memory, moments=False),
        *_swap_pool(memory),
        *(_start_of_stage_3(memory) if memory.stage == 3 else _start_below_stage_3(memory)),
        _context(memory),
    )


def gpu_micro_step(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the need of a micro-step, the largest of four: during the loss, the gradient of the output
    layer, the backward pass of a layer while gradients are reduced, and the gradient of the embedding."""
    worst = max(_instants(memory), key=lambda terms: sum(term.size for term in terms))
    return (
        *_states(memory, moments=True),
        *_swap_pool(memory),
        *_buckets(memory),
        *worst,
        _context(memory),
    )


def gpu_optimizer_step(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the need of the optimizer step, in which only stage 3 keeps its bucket."""
    return (
        *_states(memory, moments=True),
        *_swap_pool(memory),
        *(_buckets(memory) if memory.stage == 3 else ()),
        *_update(memory),
        _context(memory),
    )


def gpu_overflow_check(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the need of the search for overflow, which is in host memory if the optimizer is offloaded."""
    check = _term("temporary copies in the overflow check", memory.overflow_check, _OPTIMIZER)
    return (
        *_states(memory, moments=True),
        *_swap_pool(memory),
        *_buckets(memory),
        *(() if memory.state.offloads_optimizer else (check,)),
        _context(memory),
    )


# -- parts ----------------------------------------------------------------------------------------


def _states(memory: TrainingMemory, *, moments: bool) -> Iterator[MemoryTerm]:
    states, settings = memory.states, memory.settings
    if memory.stage < 3 or memory.state.weights_on == "hbm":
        name = "parameters" if memory.stage < 3 else "parameter partition"
        yield _term(name, states.parameters, "set stage 3, or offload_param.device")
    if memory.state.weight_bits is not None:
        frozen = [one.numel for one in memory.partitions.weights if one.quantizable and not one.trainable]
        yield _term("a matrix in 16 bit, made for its use", memory.size * max(frozen, default=0), "")
    if not memory.state.offloads_optimizer:
        # Below stage 3 gradients are allocated in the first backward pass.
        present = moments or memory.stage == 3
        yield _term("gradients", states.gradients if present else 0, _OPTIMIZER)
        yield _term("master weights", states.master, _OPTIMIZER)
        yield _term("optimizer moments", states.moments - memory.paged if moments else 0, _OPTIMIZER)
        yield _term(PAGED, memory.paged if moments else 0, _OPTIMIZER)
    elif memory.state.on_gpu:
        numel = sum(group.numel for group in memory.state.on_gpu)
        adam = moment_bytes("adam", (), numel=numel, flat=True) if moments else 0
        size = 2 * SINGLE * numel + adam
        yield _term("optimizer states and gradients (ratio)", size, "raise offload_optimizer.ratio")
    if memory.stage in (1, 2) and memory.state.offloads_optimizer:
        yield _term("gradient on its way to the host", memory.largest * memory.size, "")
    if settings.zenflow is not None and moments:
        columns = settings.zenflow.topk_ratio * (
            memory.partitions.part if memory.stage == 3 else memory.partitions.trained_numel
        )
        copies = 1 if settings.zenflow.offload else _SELECTED
        size = int(copies * columns) * memory.size
        yield _term("selected columns (ZenFlow)", size, "lower zenflow.topk_ratio or set zenflow.offload")


def _buckets(memory: TrainingMemory) -> Iterator[MemoryTerm]:
    """Return the buckets of ``reduce_bucket_size`` in which gradients are collected
    (``contiguous_gradients``)."""
    settings = memory.settings
    if memory.stage in (1, 2):
        # Stage 1 reduces what was accumulated, in its type.
        size = settings.gradient_bytes if memory.stage == 1 else memory.size
        count = 2 if settings.overlap_comm else 1
        more = " or unset overlap_comm" if count > 1 else ""
        yield _term("reduce buckets", count * settings.reduce_bucket_size * size, f"{_BUCKET}{more}")
    elif memory.stage == 3:
        yield _term("reduce bucket", settings.reduce_bucket_size * memory.size, _BUCKET)


def _instants(memory: TrainingMemory) -> Iterator[tuple[MemoryTerm, ...]]:
    acts, checkpoints = memory.activations, memory.workload.gradient_checkpointing
    fewer = _BATCH if checkpoints else _KEPT
    name = "checkpoints" if checkpoints else "activations of the other layers"
    kept = _term(name, acts.kept, _CHECKPOINTS if checkpoints else fewer)
    loss = _term("logits and loss", acts.loss, fewer)
    yield *_gathered(memory, reducing=False), kept, loss

    head = _largest(one for one in memory.partitions.trained if one.place == "after")
    logits = memory.workload.tokens * memory.state.model.vocab_size * memory.size
    gradient = _term("gradient of the logits", logits, fewer)
    yield *_gathered(memory, reducing=False), kept, gradient, *_reduction(memory, head, full=False)

    # A bucket that is reduced amid the layers may hold what came before them.
    inside = _largest(
        one
        for one in memory.partitions.trained
        if one.place == "layer" or (one.place == "after" and one.numel <= memory.bucket)
    )
    layer = _term("activations of one layer", acts.layer, fewer)
    yield *_gathered(memory, reducing=True), kept, layer, *_reduction(memory, inside, full=True)

    embedding = _largest(one for one in memory.partitions.trained if one.place == "before")
    yield *_gathered(memory, reducing=True), *_reduction(memory, embedding, full=True)


def _gathered(memory: TrainingMemory, *, reducing: bool) -> Iterator[MemoryTerm]:
    """Return the gathered parameters of stage 3; a single rank with parameters on the GPU gathers nothing."""
    params, peak = memory.settings.params, memory.peak
    direct = params.copies_directly(memory.ranks)
    if memory.stage < 3 or (direct and memory.state.weights_on == "hbm"):
        return
    if peak is not None:
        held, batch = peak.while_reducing if reducing else peak.gathered, peak.largest
    else:
        total = sum(weight.numel for weight in memory.partitions.weights)
        batch = params.prefetch_bucket_size + largest_module_numel(memory.state.model)
        kept = max(params.max_live_parameters, params.max_reuse_distance)
        held, batch = min(total, kept + batch), min(total, batch)
    name = "gathered parameters" if reducing else "gathered parameters, peak"
    yield _term(name, held * memory.size, _FETCH)
    if not direct:
        yield _term("all-gather buffer", batch * memory.size, _FETCH)


def _largest(weights: Iterable[Weight]) -> int:
    return max((one.numel for one in weights), default=0)


def _reduction(memory: TrainingMemory, largest: int, *, full: bool) -> Iterator[MemoryTerm]:
    """Return the need of reducing gradients: a new gradient, a copy of the bucket if it is ``full``, and the
    norm of its largest part.

    Stage 3 interleaves the tensors of a bucket for its reduce-scatter, even on one rank; stages 0 to 2
    flatten those that belong to several ranks. A gradient larger than the bucket is reduced alone and without
    a copy.
    """
    alone = largest > memory.bucket
    yield _term("largest gradient", largest * memory.size, "")
    if not full and not alone:
        return
    if not alone and (memory.stage == 3 or memory.ranks > 1):
        yield _term(
            "gradients being reduced",
            min(memory.bucket, memory.partitions.trained_numel) * memory.size,
            _BUCKET,
        )
    if memory.state.offloads_optimizer:
        part = memory.part_of(largest)
        chunk = min(part, _NORM_CHUNK) if memory.stage == 3 else part
        yield _term("gradient's norm and cast", SINGLE * part + _DOUBLE * chunk, "")


def _update(memory: TrainingMemory) -> Iterator[MemoryTerm]:
    """Return the need of flattening and casting gradients for the optimizer: by sub-group in stage 3, else
    all."""
    gradient = memory.settings.gradient_bytes
    norm = 0 if memory.state.offloads_optimizer else _DOUBLE * memory.part_of(memory.largest)
    numel = max((group.numel for group in memory.state.on_gpu), default=0)
    if memory.state.offloads_optimizer:
        copies = SINGLE * numel  # of PyTorch's AdamW, which updates them
    else:
        copies = (gradient + SINGLE) * numel if gradient < SINGLE else 0
    remedy = _SUB_GROUP if memory.stage == 3 else _OPTIMIZER
    yield _term("gradients in single precision", max(norm, copies), remedy)


def _start_of_stage_3(memory: TrainingMemory) -> Iterator[MemoryTerm]:
    """Return the need of ``zero.Init``, and of the buffers that are made before the first pass."""
    yield _term(
        "largest parameter, being made", memory.size * max(one.numel for one in memory.partitions.weights), ""
    )
    yield from _buckets(memory)
    if not memory.state.offloads_optimizer:
        size = SINGLE * memory.state.largest_group
        yield _term("gradient buffer of a sub-group, and a second copy of its master", 2 * size, _SUB_GROUP)


def _start_below_stage_3(memory: TrainingMemory) -> Iterator[MemoryTerm]:
    """Return the need of the model and of a second, flat copy if there is room for it (since DeepSpeed
    0.19.0)."""
    if memory.stage and not memory.flattens_on_host:
        name = "second copy of the parameters, while they are flattened"
        yield _term(name, memory.size * memory.partitions.trained_numel, "")
    if memory.stage and not memory.state.offloads_optimizer:
        yield _term("gradient buffer", SINGLE * memory.partitions.part, _OPTIMIZER)
    elif memory.stage and memory.settings.params.version >= _COPIES_ON_GPU:
        yield _term("own part of the parameters, copied", memory.size * memory.partitions.part, "")


def _swap_pool(memory: TrainingMemory) -> Iterator[MemoryTerm]:
    """Return the swap buffers in GPU memory into which GPUDirect Storage reads parameters."""
    if memory.state.weights_on == "nvme" and memory.settings.params.use_gds:
        yield _term(
            "swap buffers", memory.parameter_buffers, "lower offload_param.buffer_count or buffer_size"
        )


def _context(memory: TrainingMemory) -> MemoryTerm:
    return _term("CUDA context, NCCL and workspace", memory.machine.accelerator.reserved_bytes, "")


def _term(name: str, size: int, remedy: str) -> MemoryTerm:
    return MemoryTerm("hbm", name, size, remedy=remedy)
