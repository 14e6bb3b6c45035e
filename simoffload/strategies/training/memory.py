"""Memory that a training run needs on each tier at start-up, in a micro-step and in the optimizer step.

The states of each optimizer were read in DeepSpeed 0.19.8 (``DeepSpeedCPUAdam``), PyTorch (SGD), bitsandbytes
and transformers (Adafactor). What they are kept in was read in DeepSpeed 0.19.8,
deepspeed/runtime/zero/stage3.py (``_create_param_groups_fp16_flat_cpu_memory``, ``_create_fp32_partitions``,
``_setup_for_real_optimizer``, ``initialize_optimizer_states``), stage_1_and_2.py (``__init__``,
``initialize_optimizer_states``, ``async_accumulate_grad_in_cpu_via_gpu``), partition_parameters.py,
runtime/comm/coalesced_collectives.py, swap_tensor/, zenflow/, superoffload/. On the GPU only tensors are
counted; PyTorch's allocator may keep more memory that was freed, and returns it before an allocation fails.

Page-locked memory that PyTorch frees stays page-locked in its cache
(aten/src/ATen/core/CachingHostAllocator.h). Files on storage: one for every parameter partition of at least
``max(1 MiB, aio.block_size)``, three for every sub-group (master weights and both moments), and one for every
gradient partition of at least that size.

The module also has published estimates for comparison: DeepSpeed's estimators of model states and a rule of
thumb, none of which counts activations, buckets, pinned memory or swap buffers. Source:
``estimate_zero2_model_states_mem_needs`` (deepspeed/runtime/zero/stage_1_and_2.py) and
``estimate_zero3_model_states_mem_needs`` (stage3.py), identical at 0.18.3 and 0.19.8. At 0.9.1 ZeRO-2 without
offload was 4P + 16P/G.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from simoffload.hardware import Machine
from simoffload.models import SINGLE, ModelShape, Repeated
from simoffload.results import Estimate, HeldKind
from simoffload.strategies.base import INITIALISATION, ROUNDING, Held, pinned_block
from simoffload.strategies.ds_config import BITSANDBYTES, OptimizerKind
from simoffload.strategies.memory import activations_of, held_quantized, system_memory
from simoffload.strategies.training.state import (
    PAGED,
    Partitions,
    TorchTraining,
    TrainingState,
    Update,
    Weight,
    moments,
    paged,
)
from simoffload.workload import Training

if TYPE_CHECKING:
    from simoffload.strategies.training.micro_step import ReplayPeaks

_FLATTENS_ON_GPU = (0, 19, 0)
_ALL_REDUCE_BUCKET = 500_000_000
"""[elements] that stage 0 reduces at a time (``allreduce_bucket_size``, deepspeed/runtime/engine.py)."""
_DOUBLE = 8
"""[B] per element of gradient norms, computed in double precision from a cast of the whole tensor."""
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
MICRO_STEP = "forward and backward"
OPTIMIZER_STEP = "optimizer step"
OVERFLOW_CHECK = "overflow check"
_STATES = 3
_BUFFERS = "lower offload_param.buffer_count or buffer_size"
_NVME = "put the optimizer on storage, or use more hosts; unset offload_optimizer.pin_memory"
_HOSTS = "set dtype to bfloat16, or use more hosts"
_PINNED = "unset offload_param.pin_memory"
_GRADIENT_PIN_SETTING = (0, 10, 1)
"""Version from which stages 1 and 2 pin gradients only if ``pin_memory`` is set; before, they always do."""
_MASTER_PINNED, _MASTER_PIN_SETTING = (0, 14, 1), (0, 18, 3)
"""Versions in which stages 1 and 2 changed the pinning of master weights. Before the first they are not
pinned, from the first they are always pinned, and from the second ``pin_memory`` decides."""
_COPY_IN_16_BIT = (0, 17, 0)
"""Version from which stages 1 and 2 cast updated parameters into a separate buffer."""
_CACHED = "page-locked memory that PyTorch keeps after start-up"


class StateBytes(NamedTuple):
    """StateBytes are the sizes of one rank's states [B]."""

    parameters: int
    gradients: int
    master: int
    moments: int

    @property
    def total(self) -> int:
        """Total size of all four states [B]."""
        return sum(self)


def moment_bytes(kind: OptimizerKind, weights: Repeated[Weight], *, numel: int, flat: bool) -> int:
    """Return the size of the optimizer moments of ``numel`` elements [B].

    Adam keeps two values in single precision per element, SGD one (momentum), and 8-bit Adam two bytes, with
    two scales per block of 256. Adafactor keeps only sums over rows and columns of a matrix, but one value
    per element of the flat partitions (``flat``) that ZeRO gives the optimizer.
    """
    if kind in BITSANDBYTES:
        numels = _tensors(weights, numel=numel, flat=flat)
        return numels.total(lambda one: moments(one, bits=BITSANDBYTES[kind]))
    if kind == "adafactor" and not flat:
        return SINGLE * weights.total(lambda weight: weight.sums if weight.trainable else 0)
    return SINGLE * numel * (2 if kind == "adam" else 1)


def _tensors(weights: Repeated[Weight], *, numel: int, flat: bool) -> Repeated[int]:
    """Return the sizes of the tensors that the optimizer gets [elements]: one of ``numel`` if it is flat."""
    if flat:
        return Repeated.once([numel])
    return weights.where(lambda weight: weight.trainable).map(lambda weight: weight.numel)


def state_bytes(
    partitions: Partitions,
    *,
    kind: OptimizerKind,
    dtype_bytes: int,
    gradient_bytes: int,
) -> StateBytes:
    """Return the size of the states of one rank [B] on all tiers.

    Stage 1 divides master weights and moments among the ranks, stage 2 also gradients, stage 3 also
    parameters. A model in single precision has no master weights in stages 0 and 3
    (``_create_fp32_partitions`` aliases them).
    """
    stage, part = partitions.stage, partitions.part
    aliased = dtype_bytes == SINGLE and stage in (0, 3)
    return StateBytes(
        parameters=_parameters(partitions, dtype_bytes).total(int),
        gradients=gradient_bytes * (part if stage >= 2 else partitions.trained_numel),
        master=0 if aliased else SINGLE * part,
        moments=moment_bytes(kind, partitions.weights, numel=part, flat=stage > 0),
    )


def _parameters(partitions: Partitions, dtype_bytes: int, *, frozen: bool = False) -> Repeated[int]:
    """Return the size that one rank keeps of every tensor, or of those that are ``frozen`` [B], without
    scales of quantized ones."""

    def size(weight: Weight) -> int:
        numel = partitions.slice_numel(weight.numel) if partitions.stage == 3 else weight.numel
        return numel * dtype_bytes

    weights = partitions.weights
    return (weights.where(lambda weight: not weight.trainable) if frozen else weights).map(size)


def _largest(weights: Repeated[Weight]) -> int:
    return max([one.numel for one in weights.distinct], default=0)


def _term(name: str, size: int, remedy: str = "", kind: HeldKind = "working") -> Held:
    return Held("hbm", name, size, remedy=remedy, kind=kind)


class _Ledger:
    """A _Ledger adds up allocations in the memory of a host on which all processes make the same ones."""

    def __init__(self, memory: TrainingMemory) -> None:
        self._ranks = memory.per_host
        self._terms = [system_memory(memory.machine)]
        self.kind: HeldKind = "working"
        """What is being added at present."""
        self._rounding = 0

    def add(
        self,
        name: str,
        sizes: int | Repeated[int],
        *,
        pinned: bool = False,
        locked: bool = False,
        remedy: str = "",
        once: bool = False,
    ) -> None:
        """Add allocations of every rank [B]; those of PyTorch (``pinned``, not ``locked``) are rounded."""
        found = Repeated.once([sizes]) if isinstance(sizes, int) else sizes
        if pinned:
            self._rounding += found.total(lambda size: pinned_block(size) - size)
        if size := found.total(int) * self._ranks:
            held = Held("dram", name, size, pinned or locked, remedy, once, kind=self.kind)
            self._terms.append(held)

    def terms(self) -> tuple[Held, ...]:
        """Return the memory terms of the host, including those for rounding."""
        rounding = Held(
            "dram",
            ROUNDING,
            self._rounding * self._ranks,
            pinned=True,
            remedy="unset pin_memory, or change sub_group_size so that buffers are just below a power of two",
        )
        return (*self._terms, *([rounding] if self._rounding else []))


class TrainingMemory:
    """TrainingMemory computes the memory that a run needs from its state, its workload and the machine."""

    def __init__(
        self,
        state: TrainingState,
        workload: Training,
        machine: Machine,
        peak: ReplayPeaks | None,
        torch: TorchTraining | None = None,
    ) -> None:
        """``peak`` has the parameters that a replayed micro-step of stage 3 gathers. Without it an upper
        bound is used: from ``stage3_max_live_parameters`` and ``stage3_max_reuse_distance`` for all gathered
        parameters, from the prefetch bucket and the largest module for a single call. ``torch``: how PyTorch
        alone trains."""
        self.state, self.workload, self.machine, self.peak = state, workload, machine, peak
        self.torch = torch
        self.settings, self.partitions = state.settings, state.partitions
        self.stage, self.ranks = self.settings.stage, state.places.ranks
        self.per_host = machine.ranks_per_node(self.ranks)
        """Number of ranks on one host."""
        self.size = state.model.dtype_bytes
        """Size of a parameter's element [B]."""
        cpu_checkpointing = self.settings.cpu_checkpointing
        self.activations = activations_of(state.model, workload, cpu_checkpointing=cpu_checkpointing)
        self.states = state_bytes(
            self.partitions,
            kind=self.settings.optimizer,
            dtype_bytes=self.size,
            gradient_bytes=self.settings.gradient_bytes,
        )
        if torch is not None:
            trained, element = self.partitions.trained_numel, torch.element
            frozen = _parameters(self.partitions, self.size, frozen=True).total(int)
            self.states = StateBytes(frozen + element * trained, element * trained, 0, 2 * element * trained)
        self.parameter_sizes = _parameters(self.partitions, self.size)
        """Size that one rank keeps of every tensor [B]."""
        self.largest = _largest(self.partitions.trained)
        """Size of the largest tensor with a gradient [elements]."""
        self.bucket = self.settings.reduce_bucket_size if self.stage else _ALL_REDUCE_BUCKET
        """Size of a bucket of gradients that are reduced together [elements]."""

    @cached_property
    def paged(self) -> int:
        """[B] of one rank's moments that may be paged out of its GPU; none unless the optimizer is there."""
        cut, kind = self.partitions, self.settings.optimizer
        if self.state.offloads_optimizer or not kind.startswith("paged"):
            return 0
        numels = _tensors(cut.weights, numel=cut.part, flat=self.stage > 0)
        return numels.total(lambda one: paged(one, bits=BITSANDBYTES[kind]))

    def part_of(self, numel: int) -> int:
        """Return the elements that a rank keeps of a gradient of ``numel``; below stage 3 it may be all."""
        cut = self.partitions
        return cut.slice_numel(numel) if self.stage == 3 else min(numel, cut.part)

    @property
    def columns(self) -> int:
        """Number of elements from which ZenFlow selects columns [elements]."""
        return self.partitions.part if self.stage == 3 else self.partitions.trained_numel

    @property
    def overflow_check(self) -> int:
        """[B] of one rank's new memory in ``has_overflow``: magnitudes of all gradients, and 1 B for each."""
        return (self.settings.gradient_bytes + 1) * self.partitions.part

    # -- copies and buffers ---------------------------------------------------------------------

    @property
    def flattens_on_host(self) -> bool:
        """Whether stages 1 and 2 make their flat copy of the parameters in host memory: if the GPU has no
        room for it, and always before DeepSpeed 0.19.0."""
        capacity = self.machine.tiers["hbm"].capacity - self.machine.accelerator.reserved_bytes
        room = capacity >= self.states.parameters + self.size * self.partitions.trained_numel
        return self.stage in (1, 2) and (not room or self.settings.params.version < _FLATTENS_ON_GPU)

    def aligned(self, size: int) -> int:
        """Size of a file or swap buffer, padded for every aio thread [B]."""
        return self.settings.params.aligned(size)

    @property
    def parameter_buffers(self) -> int:
        """Size of the swap buffers of parameters [B]."""
        params = self.settings.params
        return params.buffer_count * self.aligned(params.buffer_size * self.size)

    @property
    def largest_update(self) -> int:
        """[B] of the updated parameters of the largest sub-group, each padded to the size of its file."""

        def padded(group: Update) -> int:
            return group.tensors.total(lambda tensor: self.aligned(tensor.slice_numel * self.size))

        return max(map(padded, self.state.updates.distinct), default=0)

    def held(self) -> Iterator[Held]:
        """Yield what tiers hold at three stages of a run, at stage 3 in float16 also in the search for
        overflow."""
        start = self._start_of_stage_3() if self.stage == 3 else self._start_below_stage_3()
        worst = max(self._instants(), key=lambda terms: sum(term.size for term in terms))
        appear = self.torch is not None and self.workload.gradient_accumulation_steps == 1
        if appear:
            # Gradients come into being as activations are released (``set_to_none``).
            beside = sum(term.size for term in worst)
            left = max(0, self.states.gradients - beside)
            worst = (*worst, _term("gradients beyond the activations", left, _KEPT, "optimizer"))
        if self.torch is not None and self.torch.casts:
            worst = (*worst, _term("weights cast by autocast", self.size * self.partitions.trained_numel))
        check = _term("temporary copies in the overflow check", self.overflow_check, _OPTIMIZER)
        checking = self._on_gpu(*(() if self.state.offloads_optimizer else (check,)))
        # Only stage 3 keeps its bucket in the optimizer step.
        updating = self._on_gpu(*self._update(), buckets=self.stage == 3)
        found = {
            INITIALISATION: (
                *self._on_gpu(*start, moments=False, buckets=False),
                *self._host_initialisation(),
            ),
            MICRO_STEP: (*self._on_gpu(*worst, gradients=not appear), *self._in_host(MICRO_STEP)),
            OVERFLOW_CHECK: (*checking, *self._in_host(OVERFLOW_CHECK)) if self.state.checks_overflow else (),
            OPTIMIZER_STEP: (*updating, *self._in_host(OPTIMIZER_STEP)),
        }
        for stage, terms in found.items():
            stored = self._storage(started=stage != INITIALISATION) if terms else ()
            for one in (*terms, *stored):
                yield one._replace(stage=stage)

    # -- on the GPU -----------------------------------------------------------------------------

    def _on_gpu(
        self, *instant: Held, moments: bool = True, buckets: bool = True, gradients: bool = True
    ) -> tuple[Held, ...]:
        """Return the need of an instant, with what there always is; ``moments`` exist from the first step."""
        pools = []
        if (
            self.state.weights_on == "nvme" and self.settings.params.use_gds
        ):  # into which GDS reads parameters
            pools.append(_term("swap buffers", self.parameter_buffers, _BUFFERS, "staging"))
        return (
            *self._gpu_states(moments=moments, gradients=gradients),
            *pools,
            *(self._buckets() if buckets else ()),
            *instant,
            _term("CUDA context, NCCL and workspace", self.machine.accelerator.reserved_bytes),
        )

    def _gpu_states(self, *, moments: bool, gradients: bool) -> Iterator[Held]:
        states, settings = self.states, self.settings
        if self.stage < 3 or self.state.weights_on == "none":
            name = "parameters" if self.stage < 3 else "parameter partition"
            yield _term(name, states.parameters, "set stage 3, or offload_param.device", "weights")
        yield from held_quantized(self.state.model, self.workload)
        if not self.state.offloads_optimizer:
            # Below stage 3 gradients are allocated in the first backward pass.
            present = gradients and (moments or self.stage == 3)
            yield _term("gradients", states.gradients if present else 0, _OPTIMIZER, "optimizer")
            yield _term("master weights", states.master, _OPTIMIZER, "optimizer")
            size, pages = (states.moments - self.paged, self.paged) if moments else (0, 0)
            yield _term("optimizer moments", size, _OPTIMIZER, "optimizer")
            yield _term(PAGED, pages, _OPTIMIZER, "optimizer")
        elif self.state.on_gpu:
            numel = self.state.on_gpu.total(lambda group: group.numel)
            adam = moment_bytes("adam", Repeated(), numel=numel, flat=True) if moments else 0
            size = 2 * SINGLE * numel + adam
            remedy = "raise offload_optimizer.ratio"
            yield _term("optimizer states and gradients (ratio)", size, remedy, "optimizer")
        if self.stage in (1, 2) and self.state.offloads_optimizer:
            yield _term("gradient on its way to the host", self.largest * self.size)
        if settings.zenflow is not None and moments:
            columns = settings.zenflow.topk_ratio * self.columns
            copies = 1 if settings.zenflow.offload else _SELECTED
            size = int(copies * columns) * self.size
            yield _term("selected columns (ZenFlow)", size, "lower zenflow.topk_ratio or set zenflow.offload")

    def _buckets(self) -> Iterator[Held]:
        """Return the buckets in which gradients are collected (``contiguous_gradients``)."""
        settings = self.settings
        if self.torch is not None and self.ranks > 1:  # of all gradients, which are no views of them
            yield _term("buckets of DDP", self.states.gradients)
        if self.stage in (1, 2):
            # Stage 1 reduces what was accumulated, in its type.
            size = settings.gradient_bytes if self.stage == 1 else self.size
            count = 2 if settings.overlap_comm else 1
            more = " or unset overlap_comm" if count > 1 else ""
            yield _term("reduce buckets", count * settings.reduce_bucket_size * size, f"{_BUCKET}{more}")
        elif self.stage == 3:
            yield _term("reduce bucket", settings.reduce_bucket_size * self.size, _BUCKET)

    def _instants(self) -> Iterator[tuple[Held, ...]]:
        acts, checkpoints = self.activations, self.workload.gradient_checkpointing
        fewer = _BATCH if checkpoints else _KEPT
        name = "checkpoints" if checkpoints else "activations of the other layers"
        kept = _term(name, acts.kept, _CHECKPOINTS if checkpoints else fewer)
        loss = _term("logits and loss", acts.loss, fewer)
        yield *self._gathered(reducing=False), kept, loss

        head = _largest(self.partitions.trained.where(lambda one: one.place == "after"))
        logits = self.workload.tokens * self.state.model.vocab_size * self.size
        gradient = _term("gradient of the logits", logits, fewer)
        yield *self._gathered(reducing=False), kept, gradient, *self._reduction(head, full=False)

        # A bucket that is reduced amid the layers may hold what came before them.
        inside = _largest(
            self.partitions.trained.where(
                lambda one: one.place == "layer" or (one.place == "after" and one.numel <= self.bucket)
            )
        )
        layer = _term("activations of one layer", acts.layer, fewer)
        yield *self._gathered(reducing=True), kept, layer, *self._reduction(inside, full=True)

        embedding = _largest(self.partitions.trained.where(lambda one: one.place == "before"))
        yield *self._gathered(reducing=True), *self._reduction(embedding, full=True)

    def _gathered(self, *, reducing: bool) -> Iterator[Held]:
        """Return the gathered parameters of stage 3; a single rank with parameters on the GPU gathers
        nothing."""
        params, peak = self.settings.params, self.peak
        direct = params.copies_directly(self.ranks)
        if self.stage < 3 or (direct and self.state.weights_on == "none"):
            return
        if peak is not None:
            held, batch = peak.while_reducing if reducing else peak.gathered, peak.largest
        else:
            total = self.partitions.weights.total(lambda weight: weight.numel)
            batch = params.stage3_prefetch_bucket_size + largest_module_numel(self.state.model)
            kept = max(params.stage3_max_live_parameters, params.stage3_max_reuse_distance)
            held, batch = min(total, kept + batch), min(total, batch)
        name = "gathered parameters" if reducing else "gathered parameters, peak"
        yield _term(name, held * self.size, _FETCH, "staging")
        if not direct:
            yield _term("all-gather buffer", batch * self.size, _FETCH, "staging")

    def _reduction(self, largest: int, *, full: bool) -> Iterator[Held]:
        """Return the need of reducing gradients: a new gradient, a copy of the bucket if it is ``full``, and
        the norm of its largest part.

        Stage 3 interleaves the tensors of a bucket for its reduce-scatter, even on one rank; stages 0 to 2
        flatten those that belong to several ranks. A gradient larger than the bucket is reduced alone and
        without a copy.
        """
        alone = largest > self.bucket
        yield _term("largest gradient", largest * self.size)
        if not full and not alone:
            return
        if not alone and (self.stage == 3 or self.ranks > 1):
            reduced = min(self.bucket, self.partitions.trained_numel)
            yield _term("gradients being reduced", reduced * self.size, _BUCKET)
        if self.state.offloads_optimizer:
            part = self.part_of(largest)
            chunk = min(part, _NORM_CHUNK) if self.stage == 3 else part
            yield _term("gradient's norm and cast", SINGLE * part + _DOUBLE * chunk)

    def _update(self) -> Iterator[Held]:
        """Return the need of flattening and casting gradients: by sub-group in stage 3, else all."""
        if self.torch is not None:
            yield _term("temporaries of AdamW", self.torch.temporaries * self.partitions.trained_numel)
            return
        gradient = self.settings.gradient_bytes
        norm = 0 if self.state.offloads_optimizer else _DOUBLE * self.part_of(self.largest)
        numel = max((group.numel for group in self.state.on_gpu.distinct), default=0)
        if self.state.offloads_optimizer:
            copies = SINGLE * numel  # of PyTorch's AdamW, which updates them
        else:
            copies = (gradient + SINGLE) * numel if gradient < SINGLE else 0
        remedy = _SUB_GROUP if self.stage == 3 else _OPTIMIZER
        yield _term("gradients in single precision", max(norm, copies), remedy)

    def _start_of_stage_3(self) -> Iterator[Held]:
        """Return the need of ``zero.Init``, and of the buffers that are made before the first pass."""
        yield _term("largest parameter, being made", self.size * _largest(self.partitions.weights))
        yield from self._buckets()
        if not self.state.offloads_optimizer:
            size = SINGLE * self.state.largest_group
            yield _term(
                "gradient buffer of a sub-group, and a second copy of its master", 2 * size, _SUB_GROUP
            )

    def _start_below_stage_3(self) -> Iterator[Held]:
        """Return the need of the model and, since DeepSpeed 0.19.0, of a second, flat copy if there is
        room."""
        if self.stage and not self.flattens_on_host:
            name = "second copy of the parameters, while they are flattened"
            yield _term(name, self.size * self.partitions.trained_numel)
        if self.stage and not self.state.offloads_optimizer:
            yield _term("gradient buffer", SINGLE * self.partitions.part, _OPTIMIZER)
        elif self.stage and self.settings.params.version >= _COPIES_ON_GPU:
            yield _term("own part of the parameters, copied", self.size * self.partitions.part)

    # -- on storage and in host memory ----------------------------------------------------------

    def _storage(self, *, started: bool) -> Iterator[Held]:
        """Return the storage that all ranks need; before it is ``started``, without moments and gradients."""
        state, places = self.state, self.state.places
        if state.weights_on == "nvme":
            # Files of partitions that max_in_cpu keeps in memory are not removed.
            size = self.parameter_sizes.where(state.swapped).total(self.aligned)
            yield Held(places.weights, "parameters", places.ranks * size, kind="weights")
        if state.settings.optimizer_device != "nvme":
            return
        states = state.on_storage.total(lambda group: self.aligned(SINGLE * group.numel))
        name = "master weights and moments" if started else "master weights"
        count = _STATES if started else 1
        yield Held(places.optimizer, name, places.ranks * count * states, kind="optimizer")
        if started:
            smallest = state.settings.params.min_swap_bytes
            pieces = state.stored.map(lambda tensor: SINGLE * tensor.slice_numel)
            size = pieces.where(lambda piece: piece >= smallest).total(self.aligned)
            yield Held(places.optimizer, "gradients", places.ranks * size, kind="optimizer")

    def _host_initialisation(self) -> tuple[Held, ...]:
        """Return the host memory at the end of start-up, or, below stage 3, while every process holds the
        whole model.

        Stage 3 is assumed to make the model under ``zero.Init``. Reading a checkpoint meanwhile is not
        counted.
        """
        ledger = self._state_ledger(moments=False)
        self._transient(ledger)
        if self.stage == 3:
            return ledger.terms()
        before = _Ledger(self)
        copies = 2 if self.flattens_on_host else 1
        before.add(
            "whole model in every process",
            copies * self.states.parameters,
            remedy="set stage 3 with zero.Init",
        )
        return max(before.terms(), ledger.terms(), key=lambda terms: sum(term.size for term in terms))

    def _in_host(self, stage: str) -> tuple[Held, ...]:
        """Return the host memory at a later stage; in the first optimizer step moments are not yet on
        storage."""
        ledger, state = self._state_ledger(), self.state
        if stage == MICRO_STEP:
            fewer = f"{_BATCH}, or unset cpu_checkpointing"
            ledger.add("checkpoints", self.activations.on_host, remedy=fewer)
        elif stage == OPTIMIZER_STEP:
            updated = [group.numel for group in (*state.in_memory.distinct, *state.on_storage.distinct)]
            if self.stage == 3 and state.weights_on == "none" and updated:
                # A copy between devices and types casts at its source (aten/src/ATen/native/cuda/Copy.cu).
                ledger.add("a sub-group cast to 16 bit", self.size * max(updated), remedy=_SUB_GROUP)
            swapped = 2 * SINGLE * max((group.numel for group in state.on_storage.distinct), default=0)
            ledger.add("moments of a sub-group, first step", swapped, remedy=_SUB_GROUP, once=True)
        elif state.offloads_optimizer:
            ledger.add("temporary copies in the overflow check", self.overflow_check, remedy=_HOSTS)
        return ledger.terms()

    def _state_ledger(self, *, moments: bool = True) -> _Ledger:
        """Return the host memory of the states at every stage; ``moments`` exist from the first step."""
        ledger = _Ledger(self)
        ledger.kind = "weights"
        self._weights(ledger)
        ledger.kind = "optimizer"
        if self.state.offloads_optimizer:
            self._optimizer(ledger, moments=moments)
        ledger.kind = "working"
        return ledger

    def _weights(self, ledger: _Ledger) -> None:
        if self.state.weights_on == "none":
            return
        params, sizes = self.settings.params, self.parameter_sizes
        if self.state.weights_on == "cpu":
            element = self.size
            trained = self.partitions.slices.map(lambda numel: numel * element)
            frozen = _parameters(self.partitions, element, frozen=True)
            ledger.add("parameters that are not trained", frozen, pinned=params.pin_memory, remedy=_PINNED)
            # One flat buffer, which is always pinned, replaces the partitions.
            ledger.add("parameters", trained.total(int), pinned=True)
            if params.pin_memory:
                ledger.add(_CACHED, trained.total(pinned_block), locked=True, remedy=_PINNED)
            return
        small = sizes.where(lambda size: not self.state.swapped(size))
        ledger.add("parameters too small to swap", small, pinned=params.pin_memory)
        pins = params.swap_buffers_pinned  # PyTorch did, DeepSpeed does since 0.19.4
        if not params.use_gds:
            size = self.parameter_buffers
            ledger.add("swap buffers of parameters", size, pinned=pins, locked=True, remedy=_BUFFERS)
        kept = min(params.max_in_cpu, self.partitions.part) * self.size
        ledger.add("parameters kept in memory", kept, pinned=True, remedy="lower offload_param.max_in_cpu")
        size = self.largest_update
        ledger.add("swap buffer of updated parameters", size, pinned=pins, locked=True, remedy=_SUB_GROUP)

    def _optimizer(self, ledger: _Ledger, *, moments: bool) -> None:
        groups = self.state.in_memory.map(lambda group: group.numel)
        if self.stage == 3:
            self._states_in_memory(ledger, groups, pinned_master=False, moments=moments)
            gradients = self.settings.gradient_bytes * self.partitions.part
            ledger.add("accumulated gradients", gradients, pinned=self.settings.pin_memory, remedy=_NVME)
        else:
            self._states_in_memory(ledger, groups, pinned_master=self._pins_master(), moments=moments)
            self._buffers_below_stage_3(ledger, accumulates=moments)
        if self.state.on_storage:
            largest = self.aligned(SINGLE * self.state.largest_group)
            pool = self.settings.buffer_count * largest
            pins = self.settings.params.swap_buffers_pinned
            remedy = "lower offload_optimizer.buffer_count or sub_group_size"
            ledger.add("swap buffers of the optimizer", pool, pinned=pins, locked=True, remedy=remedy)

    def _states_in_memory(
        self, ledger: _Ledger, groups: Repeated[int], *, pinned_master: bool, moments: bool
    ) -> None:
        """Add the states in single precision, and the copies of ZenFlow and SuperOffload."""
        settings, numel = self.settings, groups.total(int)
        single = groups.map(lambda group: SINGLE * group)
        overlapped = settings.zenflow is not None and settings.zenflow.overlap_step
        ledger.add("master weights", single, pinned=pinned_master, remedy=_NVME)
        if overlapped or settings.super_offload:
            self._shared_gradients(ledger, single, twice=overlapped)
        else:
            ledger.add("gradients in single precision", single, pinned=self._pins_gradients(), remedy=_NVME)
        if not moments:
            return
        size = moment_bytes("adam", Repeated(), numel=numel, flat=True)
        if overlapped:
            unset = "unset zenflow.overlap_step"
            ledger.add("optimizer moments, twice (ZenFlow)", 2 * size, remedy=unset)
            ledger.add("master weights as last updated (ZenFlow)", single.total(int), remedy=unset)
        else:
            ledger.add("optimizer moments", size, remedy=_NVME)
        if settings.zenflow is not None and settings.zenflow.offload:
            selected = int(3 * settings.zenflow.topk_ratio * self.columns) * self.size
            ledger.add("moments and copy of selected columns (ZenFlow)", selected)

    def _pins_gradients(self) -> bool:
        if self.stage < 3 and self.settings.params.version < _GRADIENT_PIN_SETTING:
            return True
        return self.settings.pin_memory

    def _pins_master(self) -> bool:
        version = self.settings.params.version
        return version >= _MASTER_PINNED and (version < _MASTER_PIN_SETTING or self.settings.pin_memory)

    def _shared_gradients(self, ledger: _Ledger, single: Repeated[int], *, twice: bool) -> None:
        """Add gradients in memory shared with another process; their page-locked original stays."""
        if twice:
            ledger.add(
                "gradients in single precision, two sets (ZenFlow)", 2 * single.total(int), remedy=_NVME
            )
        else:
            ledger.add("gradients in single precision", single.total(int), remedy=_NVME)
            # The other process has a buffer of its own.
            buffer = max(single.distinct, default=0)
            pinned = self.settings.pin_memory
            ledger.add("gradient buffer of the CPU Adam process", buffer, pinned=pinned, remedy=_SUB_GROUP)
        if self.settings.pin_memory:
            ledger.add(
                _CACHED, single.total(pinned_block), locked=True, remedy="unset offload_optimizer.pin_memory"
            )

    def _buffers_below_stage_3(self, ledger: _Ledger, *, accumulates: bool) -> None:
        """Add the updated partition in 16 bit, one gradient, and accumulated gradients."""
        pinned = self._pins_gradients()
        if self.settings.params.version >= _COPY_IN_16_BIT:
            size = self.size * self.partitions.part
            ledger.add("updated parameters in 16 bit", size, pinned=self.settings.pin_memory)
        ledger.add("gradient buffer", self.size * self.largest, pinned=pinned)
        if accumulates and self.workload.gradient_accumulation_steps > 1:
            # One buffer for every tensor of the partition, each of the tensor's full size.
            sizes = self.partitions.trained.map(lambda weight: self.size * weight.numel)
            held = sizes.total(pinned_block if pinned else int) // self.ranks
            ledger.add(
                "accumulated gradients", held, locked=True, remedy="lower gradient_accumulation_steps to 1"
            )

    def _transient(self, ledger: _Ledger) -> None:
        """Largest temporary allocation during start-up."""
        found: dict[str, int] = {}
        if self.stage == 3 and self.state.weights_on == "none":
            found["parameters, moved to make them contiguous"] = self.states.parameters
        if self.stage == 3 and self.state.offloads_optimizer:
            found["sub-group cast to single precision"] = SINGLE * self.state.largest_group
        if self.state.offloads_optimizer and self._pins_gradients():
            size = self.settings.gradient_bytes if self.stage == 3 else SINGLE
            found["gradient buffer before it is page-locked"] = size * self.partitions.part
        if found:
            name = max(found, key=lambda one: found[one])
            ledger.add(name, found[name], remedy=_SUB_GROUP if "sub-group" in name else "")


# -- published estimates ---------------------------------------------------------------------------

_BUFFER_FACTOR = 1.5
"""Default of ``additional_buffer_factor`` of both estimators."""
_ZERO_3 = "DeepSpeed's estimate for ZeRO-3"


def zero2_estimate(
    total_params: int, *, num_gpus_per_node: int = 1, num_nodes: int = 1, cpu_offload: bool = True
) -> Estimate:
    """Return what ``estimate_zero2_model_states_mem_needs`` returns, to the byte."""
    total_gpus, factor = num_nodes * num_gpus_per_node, _BUFFER_FACTOR
    if cpu_offload:
        host = total_params * max(4 * total_gpus, 16) * factor
        gpu = 2 * total_params
        formula = f"GPU 2P; host P x max(4G, 16) x {factor}"
    else:
        host = total_params * 4 * num_gpus_per_node * factor
        gpu = 2 * total_params + int(18 * total_params / total_gpus)
        formula = f"GPU 2P + 18P/G; host 4P x g x {factor}"
    return Estimate("DeepSpeed's estimate for ZeRO-2", int(host), int(gpu), None, formula)


def zero3_estimate(
    total_params: int,
    largest_layer_params: int,
    *,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
) -> Estimate:
    """Return what ``estimate_zero3_model_states_mem_needs`` returns under ``zero.Init``, to the byte.

    ``largest_layer_params`` is the size of the largest module without its children, as ``model_to_params``
    finds it (:func:`largest_module_numel`).
    """
    total_gpus, factor, largest = num_nodes * num_gpus_per_node, _BUFFER_FACTOR, 4 * largest_layer_params
    if not cpu_offload:
        gpu = largest + int(18 * total_params / total_gpus)
        host = largest * num_gpus_per_node * factor
        return Estimate(_ZERO_3, int(host), int(gpu), None, f"GPU 4L + 18P/G; host 4L x g x {factor}")
    states = 18 if cpu_offload_params else 16
    gpu = largest if cpu_offload_params else largest + int(2 * total_params / total_gpus)
    host = total_params * states * (1 / num_nodes) * factor
    on_gpu = "4L" if cpu_offload_params else "4L + 2P/G"
    return Estimate(_ZERO_3, int(host), int(gpu), None, f"GPU {on_gpu}; host {states}P/n x {factor}")


def white_paper_rule(model: ModelShape) -> Estimate:
    """Return 240 x layers x hidden^2 [B]: 12 h^2 parameters per layer, 20 B for each.

    Source: Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857, equations 1 and 2, repeated in DDN's white
    paper "Large Language Models". The rule ignores embeddings and activations; layers with a gated
    feed-forward network or grouped queries do not have 12 h^2 parameters.
    """
    total = 240 * model.num_hidden_layers * model.hidden_size**2
    return Estimate("white paper's rule", None, None, total, "240 x layers x hidden^2 over all tiers")


def estimates_for(
    model: ModelShape, *, stage: int, ranks: int, nodes: int, offload_optimizer: bool, offload_params: bool
) -> tuple[Estimate, ...]:
    """Return published estimates for a run: DeepSpeed's estimator for its stage (from 1), and the rule of
    thumb.

    DeepSpeed's estimators do not know storage; states there count as in host memory. None of them knows
    frozen weights; with adapters they are labelled as estimates for full training.
    """
    total, hosts = model.num_parameters, {"num_gpus_per_node": -(-ranks // nodes), "num_nodes": nodes}
    found = [white_paper_rule(model)]
    if stage in (1, 2):
        found.insert(0, zero2_estimate(total, **hosts, cpu_offload=offload_optimizer))
    elif stage == 3:
        rule = zero3_estimate(
            total,
            largest_module_numel(model),
            **hosts,
            cpu_offload=offload_optimizer,
            cpu_offload_params=offload_params,
        )
        found.insert(0, rule)
    if model.all_trainable:
        return tuple(found)
    return tuple(one._replace(name=f"{one.name}, if all weights were trained") for one in found)


def largest_module_numel(model: ModelShape) -> int:
    """Return the number of elements of the module that owns the most, without its children."""
    return max(module.num_parameters for module in model.distinct_modules)
