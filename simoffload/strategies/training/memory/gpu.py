"""What one GPU holds at each stage of a training run.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage3.py, stage_1_and_2.py, partition_parameters.py and
runtime/comm/coalesced_collectives.py, read. Counted are tensors; PyTorch's allocator may hold more of
what it has freed, and gives it back before it fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simoffload.models.shape import SINGLE
from simoffload.results.capacity import MemoryTerm
from simoffload.strategies.training.memory.case import Case
from simoffload.strategies.training.memory.estimators import largest_module_numel
from simoffload.strategies.training.memory.states import moment_bytes
from simoffload.strategies.training.memory.weights import Weight

__all__ = ["Gathered", "gpu_initialisation", "gpu_micro_step", "gpu_optimizer_step"]

_DOUBLE = 8
"""[B] norms of gradients are summed in double precision, after a cast of the whole tensor."""
_NORM_CHUNK = 250_000_000
"""[elements] that stage 3 casts at a time (``_constant_buffered_norm2``)."""
_COPIES_ON_GPU = (0, 18, 3)
"""Stages 1 and 2 clone a rank's part before it goes to the host."""
_SELECTED = 4
"""16-bit tensors that ZenFlow keeps of the selected columns: two moments, a copy, the gradient."""

_BATCH = "lower batch_size or sequence_length"
_KEPT = f"{_BATCH}, or set gradient_checkpointing"
_CHECKPOINTS = "lower batch_size or sequence_length, or set activation_checkpointing.cpu_checkpointing"
_BUCKET = "lower reduce_bucket_size"
_FETCH = "lower stage3_max_live_parameters, stage3_max_reuse_distance or stage3_prefetch_bucket_size"
_OPTIMIZER = "set offload_optimizer.device, a higher stage, or more ranks"
_SUB_GROUP = "lower sub_group_size"


class Gathered:
    """Parameters that stage 3 has brought together on the GPU."""

    def __init__(self, case: Case, *, peak: int | None, reducing: int | None, batch: int | None) -> None:
        self._case = case
        params, whole = case.settings.params, sum(weight.numel for weight in case.weights)
        ahead = params.prefetch_bucket_size + largest_module_numel(case.model)
        kept = max(params.max_live_parameters, params.max_reuse_distance)
        self._peak = min(whole, kept + ahead) if peak is None else peak
        self._reducing = self._peak if reducing is None else reducing
        self._batch = min(whole, ahead) if batch is None else batch

    def terms(self, *, reducing: bool) -> Iterator[MemoryTerm]:
        """A single rank whose parameters stay on the GPU gathers nothing."""
        case = self._case
        direct = case.settings.params.copies_directly(case.ranks)
        if case.stage < 3 or (direct and case.weights_kind == "hbm"):
            return
        name = "gathered parameters" if reducing else "gathered parameters, peak"
        yield _term(name, (self._reducing if reducing else self._peak) * case.size, _FETCH)
        if not direct:
            yield _term("all-gather buffer", self._batch * case.size, _FETCH)


def gpu_initialisation(case: Case) -> tuple[MemoryTerm, ...]:
    """While DeepSpeed starts: stage 3 partitions each parameter as it is made; moments come with the
    first step."""
    return (
        *_states(case, moments=False),
        *_swap_pool(case),
        *(_start_of_stage_3(case) if case.stage == 3 else _start_below_stage_3(case)),
        _context(case),
    )


def gpu_micro_step(case: Case, gathered: Gathered) -> tuple[MemoryTerm, ...]:
    """The worst of four moments: the loss; the gradient of the output layer; a layer's backward pass while
    gradients are reduced; the gradient of the embedding."""
    worst = max(_instants(case, gathered), key=lambda terms: sum(term.size for term in terms))
    return (
        *_states(case, moments=True),
        *_swap_pool(case),
        *_buckets(case),
        *worst,
        _context(case),
    )


def gpu_optimizer_step(case: Case) -> tuple[MemoryTerm, ...]:
    """Between two micro-steps; only stage 3 keeps its bucket."""
    return (
        *_states(case, moments=True),
        *_swap_pool(case),
        *(_buckets(case) if case.stage == 3 else ()),
        *_update(case),
        _context(case),
    )


# -- parts ----------------------------------------------------------------------------------------


def _states(case: Case, *, moments: bool) -> Iterator[MemoryTerm]:
    states, settings = case.states, case.settings
    if case.stage < 3 or case.weights_kind == "hbm":
        name = "parameters" if case.stage < 3 else "parameter partition"
        yield _term(name, states.parameters, "set stage 3, or offload_param.device")
    if case.weight_bits is not None:
        frozen = [one.numel for one in case.weights if one.quantizable and not one.trainable]
        yield _term("a matrix in 16 bit, made for its use", case.size * max(frozen, default=0), "")
    if not case.offloads_optimizer:
        # Below stage 3 gradients are allocated in the first backward pass.
        present = moments or case.stage == 3
        yield _term("gradients", states.gradients if present else 0, _OPTIMIZER)
        yield _term("master weights", states.master, _OPTIMIZER)
        yield _term("optimizer moments", states.moments if moments else 0, _OPTIMIZER)
    elif case.gpu_groups:
        numel = sum(group.numel for group in case.gpu_groups)
        adam = moment_bytes("adam", (), numel=numel, flat=True) if moments else 0
        size = 2 * SINGLE * numel + adam
        yield _term("optimizer states and gradients (ratio)", size, "raise offload_optimizer.ratio")
    if case.stage in (1, 2) and case.offloads_optimizer:
        yield _term("gradient on its way to the host", case.largest * case.size, "")
    if settings.zenflow is not None and moments:
        columns = settings.zenflow.topk_ratio * (case.part if case.stage == 3 else case.trained_numel)
        copies = 1 if settings.zenflow.offload else _SELECTED
        size = int(copies * columns) * case.size
        yield _term("selected columns (ZenFlow)", size, "lower zenflow.topk_ratio or set zenflow.offload")


def _buckets(case: Case) -> Iterator[MemoryTerm]:
    """``contiguous_gradients``: gradients are collected in a buffer of ``reduce_bucket_size``."""
    settings = case.settings
    if case.stage in (1, 2):
        # Stage 1 reduces what was accumulated, in its type.
        size = settings.gradient_bytes if case.stage == 1 else case.size
        count = 2 if settings.overlap_comm else 1
        more = " or unset overlap_comm" if count > 1 else ""
        yield _term("reduce buckets", count * settings.reduce_bucket_size * size, f"{_BUCKET}{more}")
    elif case.stage == 3:
        yield _term("reduce bucket", settings.reduce_bucket_size * case.size, _BUCKET)


def _instants(case: Case, gathered: Gathered) -> Iterator[tuple[MemoryTerm, ...]]:
    acts, checkpoints = case.activations, case.workload.gradient_checkpointing
    fewer = _BATCH if checkpoints else _KEPT
    name = "checkpoints" if checkpoints else "activations of the other layers"
    kept = _term(name, acts.kept, _CHECKPOINTS if checkpoints else fewer)
    loss = _term("logits and loss", acts.loss, fewer)
    yield *gathered.terms(reducing=False), kept, loss

    head = _largest(one for one in case.trained if one.place == "after")
    logits = case.workload.tokens * case.model.vocab_size * case.size
    gradient = _term("gradient of the logits", logits, fewer)
    yield *gathered.terms(reducing=False), kept, gradient, *_reduction(case, head, full=False)

    # A bucket that is reduced amid the layers may hold what came before them.
    inside = _largest(
        one
        for one in case.trained
        if one.place == "layer" or (one.place == "after" and one.numel <= case.bucket)
    )
    layer = _term("activations of one layer", acts.layer, fewer)
    yield *gathered.terms(reducing=True), kept, layer, *_reduction(case, inside, full=True)

    embedding = _largest(one for one in case.trained if one.place == "before")
    yield *gathered.terms(reducing=True), *_reduction(case, embedding, full=True)


def _largest(weights: Iterable[Weight]) -> int:
    return max((one.numel for one in weights), default=0)


def _reduction(case: Case, largest: int, *, full: bool) -> Iterator[MemoryTerm]:
    """A new gradient, the bucket (``full`` = it is reduced now) put together once more, and the norm of its
    largest part.

    Stage 3 interleaves the bucket's tensors for its reduce-scatter even on one rank; stages 0 to 2 flatten
    them where they belong to several ranks. What is larger than the bucket goes alone, without a copy.
    """
    alone = largest > case.bucket
    yield _term("largest gradient", largest * case.size, "")
    if not full and not alone:
        return
    if not alone and (case.stage == 3 or case.ranks > 1):
        yield _term("gradients being reduced", min(case.bucket, case.trained_numel) * case.size, _BUCKET)
    if case.offloads_optimizer:
        part = case.part_of(largest)
        chunk = min(part, _NORM_CHUNK) if case.stage == 3 else part
        yield _term("gradient's norm and cast", SINGLE * part + _DOUBLE * chunk, "")


def _update(case: Case) -> Iterator[MemoryTerm]:
    """Gradients are flattened and cast for the optimizer: all at once, in stage 3 by sub-group."""
    gradient = case.settings.gradient_bytes
    norm = 0 if case.offloads_optimizer else _DOUBLE * case.part_of(case.largest)
    numel = max((group.numel for group in case.gpu_groups), default=0)
    if case.offloads_optimizer:
        copies = SINGLE * numel  # of PyTorch's AdamW, which updates them
    else:
        copies = (gradient + SINGLE) * numel if gradient < SINGLE else 0
    remedy = _SUB_GROUP if case.stage == 3 else _OPTIMIZER
    yield _term("gradients in single precision", max(norm, copies), remedy)


def _start_of_stage_3(case: Case) -> Iterator[MemoryTerm]:
    """``zero.Init``, then the buffers that are made before the first pass."""
    yield _term("largest parameter, being made", case.size * max(one.numel for one in case.weights), "")
    yield from _buckets(case)
    if not case.offloads_optimizer:
        size = SINGLE * case.largest_group
        yield _term("gradient buffer of a sub-group, and a second copy of its master", 2 * size, _SUB_GROUP)


def _start_below_stage_3(case: Case) -> Iterator[MemoryTerm]:
    """The whole model, flattened into a second copy where there is room (since DeepSpeed 0.19.0)."""
    if case.stage and not case.flattens_on_host:
        name = "second copy of the parameters, while they are flattened"
        yield _term(name, case.size * case.trained_numel, "")
    if case.stage and not case.offloads_optimizer:
        yield _term("gradient buffer", SINGLE * case.part, _OPTIMIZER)
    elif case.stage and case.settings.params.version >= _COPIES_ON_GPU:
        yield _term("own part of the parameters, copied", case.size * case.part, "")


def _swap_pool(case: Case) -> Iterator[MemoryTerm]:
    """GPUDirect Storage reads parameters into the GPU's memory."""
    params = case.settings.params
    if case.stage == 3 and case.weights_on_storage and params.use_gds:
        size = params.buffer_count * case.aligned(params.buffer_size * case.size)
        yield _term("swap buffers", size, "lower offload_param.buffer_count or buffer_size")


def _context(case: Case) -> MemoryTerm:
    return _term("CUDA context, NCCL and workspace", case.machine.accelerator.reserved_bytes, "")


def _term(name: str, size: int, remedy: str) -> MemoryTerm:
    return MemoryTerm("hbm", name, size, remedy=remedy)
