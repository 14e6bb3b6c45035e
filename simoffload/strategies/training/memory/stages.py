"""Memory that a training run needs on each tier at start-up, in a micro-step and in the optimizer step.

This module counts host memory and storage, ``gpu`` the memory of the GPU. Source: DeepSpeed 0.19.8,
deepspeed/runtime/zero/stage3.py (``_create_param_groups_fp16_flat_cpu_memory``, ``_create_fp32_partitions``,
``_setup_for_real_optimizer``, ``initialize_optimizer_states``), stage_1_and_2.py (``__init__``,
``initialize_optimizer_states``, ``async_accumulate_grad_in_cpu_via_gpu``), swap_tensor/, zenflow/,
superoffload/.

Page-locked memory that PyTorch frees stays page-locked in its cache
(aten/src/ATen/core/CachingHostAllocator.h). Files on storage: one for every parameter partition of at least
``max(1 MiB, aio.block_size)``, three for every sub-group (master weights and both moments), and one for every
gradient partition of at least that size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from simoffload.hardware import Machine
from simoffload.models import SINGLE
from simoffload.results import MemoryStage, MemoryTerm
from simoffload.strategies.memory import pinned_rounding, system_memory
from simoffload.strategies.training.memory.gpu import (
    gpu_initialisation,
    gpu_micro_step,
    gpu_optimizer_step,
    gpu_overflow_check,
)
from simoffload.strategies.training.memory.states import TrainingMemory, moment_bytes
from simoffload.strategies.training.micro_step import ReplayPeaks
from simoffload.strategies.training.state import TrainingState
from simoffload.workload import Training

INITIALISATION = "initialisation"
MICRO_STEP = "forward and backward"
OPTIMIZER_STEP = "optimizer step"
OVERFLOW_CHECK = "overflow check"
_STATES = 3


def training_stages(
    state: TrainingState, workload: Training, machine: Machine, *, peak: ReplayPeaks | None = None
) -> tuple[MemoryStage, ...]:
    """Return the memory of a run at three stages, at stage 3 in float16 also in the search for overflow.

    ``peak`` has the parameters that a replayed micro-step of stage 3 gathers. Without it an upper bound is
    used: from ``stage3_max_live_parameters`` and ``stage3_max_reuse_distance`` for all gathered parameters,
    from the prefetch bucket and the largest module for a single call.
    """
    memory = TrainingMemory(state, workload, machine, peak)
    begun, steady = tuple(_storage(memory, started=False)), tuple(_storage(memory, started=True))
    check = MemoryStage(OVERFLOW_CHECK, (*gpu_overflow_check(memory), *_host_overflow_check(memory), *steady))
    return (
        MemoryStage(
            INITIALISATION, (*gpu_initialisation(memory), *_host_initialisation(memory), *begun), once=True
        ),
        MemoryStage(MICRO_STEP, (*gpu_micro_step(memory), *_host_micro_step(memory), *steady)),
        *([check] if state.checks_overflow else []),
        MemoryStage(OPTIMIZER_STEP, (*gpu_optimizer_step(memory), *_host_optimizer_step(memory), *steady)),
    )


def _storage(memory: TrainingMemory, *, started: bool) -> Iterator[MemoryTerm]:
    """Return the storage that all ranks need; at start-up (not ``started``) moments and gradients do not
    exist."""
    state, places = memory.state, memory.state.places
    if state.weights_on == "nvme":
        # Files of partitions that max_in_cpu keeps in memory are not removed.
        sizes = Counter(memory.parameter_sizes)
        size = sum(count * memory.aligned(one) for one, count in sizes.items() if state.swapped(one))
        yield MemoryTerm(places.weights, "parameters", places.ranks * size)
    states = sum(memory.aligned(SINGLE * group.numel) for group in state.on_storage)
    if not states:
        return
    name = "master weights and moments" if started else "master weights"
    count = _STATES if started else 1
    yield MemoryTerm(places.optimizer, name, places.ranks * count * states)
    if started:
        smallest = state.settings.params.min_swap_bytes
        pieces = Counter(
            SINGLE * tensor.slice_numel for group in state.on_storage for tensor in group.tensors
        )
        size = sum(count * memory.aligned(piece) for piece, count in pieces.items() if piece >= smallest)
        yield MemoryTerm(places.optimizer, "gradients", places.ranks * size)


_BUFFERS = "lower offload_param.buffer_count or buffer_size"
_OPTIMIZER_BUFFERS = "lower offload_optimizer.buffer_count or sub_group_size"
_NVME = "put the optimizer on storage, or use more hosts; unset offload_optimizer.pin_memory"
_HOSTS = "set dtype to bfloat16, or use more hosts"
_PINNED = "unset offload_param.pin_memory"
_SUB_GROUP = "lower sub_group_size"
_GRADIENT_PIN_SETTING = (0, 10, 1)
"""Version from which stages 1 and 2 pin gradients only if ``pin_memory`` is set; before, they always do."""
_MASTER_PINNED, _MASTER_PIN_SETTING = (0, 14, 1), (0, 18, 3)
"""Versions in which stages 1 and 2 changed the pinning of master weights. Before the first they are not
pinned, from the first they are always pinned, and from the second ``pin_memory`` decides."""
_COPY_IN_16_BIT = (0, 17, 0)
"""Version from which stages 1 and 2 cast updated parameters into a separate buffer."""
_CACHED = "page-locked memory that PyTorch keeps after start-up"


def _host_initialisation(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the host memory at the end of start-up, or, below stage 3, while every process holds the whole
    model.

    Stage 3 is assumed to make the model under ``zero.Init``. Reading a checkpoint meanwhile is not counted.
    """
    ledger = _states(memory, moments=False)
    _transient(memory, ledger)
    if memory.stage == 3:
        return ledger.terms()
    before = _ledger(memory)
    copies = 2 if memory.flattens_on_host else 1
    before.add(
        "whole model in every process", copies * memory.states.parameters, remedy="set stage 3 with zero.Init"
    )
    return max(before.terms(), ledger.terms(), key=lambda terms: sum(term.size for term in terms))


def _host_micro_step(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the host memory in forward and backward of a later step."""
    ledger = _states(memory, moments=True)
    ledger.add(
        "checkpoints",
        memory.activations.on_host,
        remedy="lower batch_size or sequence_length, or unset cpu_checkpointing",
    )
    return ledger.terms()


def _host_optimizer_step(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the host memory in the optimizer step: states, casts, and in the first step moments that are not
    yet on storage."""
    ledger = _states(memory, moments=True)
    updated = [group.numel for group in (*memory.state.in_memory, *memory.state.on_storage)]
    if memory.stage == 3 and memory.state.weights_on == "hbm" and updated:
        # A copy between devices and types casts at its source (PyTorch, aten/src/ATen/native/cuda/Copy.cu).
        ledger.add("a sub-group cast to 16 bit", memory.size * max(updated), remedy=_SUB_GROUP)
    swapped = max((group.numel for group in memory.state.on_storage), default=0)
    ledger.add("moments of a sub-group, first step", 2 * SINGLE * swapped, remedy=_SUB_GROUP, once=True)
    return ledger.terms()


def _host_overflow_check(memory: TrainingMemory) -> tuple[MemoryTerm, ...]:
    """Return the host memory in the search for overflow, before any sub-group is updated."""
    ledger = _states(memory, moments=True)
    if memory.state.offloads_optimizer:
        ledger.add("temporary copies in the overflow check", memory.overflow_check, remedy=_HOSTS)
    return ledger.terms()


def _states(memory: TrainingMemory, *, moments: bool) -> _Ledger:
    """Return the host memory of the states, which is needed at every stage; ``moments`` exist from the first
    step."""
    ledger = _ledger(memory)
    _weights(memory, ledger)
    _optimizer(memory, ledger, moments=moments)
    return ledger


def _ledger(memory: TrainingMemory) -> _Ledger:
    ledger = _Ledger(memory.per_host)
    ledger.once(system_memory(memory.machine))
    return ledger


# -- parameters -----------------------------------------------------------------------------------


def _weights(memory: TrainingMemory, ledger: _Ledger) -> None:
    if memory.state.weights_on == "hbm":
        return
    params, sizes = memory.settings.params, memory.parameter_sizes
    if memory.state.weights_on == "dram":
        element = memory.size
        trained = [numel * element for numel in memory.partitions.slices]
        frozen = [
            size
            for size, weight in zip(sizes, memory.partitions.weights, strict=True)
            if not weight.trainable
        ]
        ledger.add("parameters that are not trained", frozen, pinned=params.pin_memory, remedy=_PINNED)
        # One flat buffer, which is always pinned, replaces the partitions.
        ledger.add("parameters", sum(trained), pinned=True)
        if params.pin_memory:
            ledger.add_locked(_CACHED, _rounded(trained), remedy=_PINNED)
        return
    staying = {size for size in set(sizes) if not memory.state.swapped(size)}
    small = [size for size in sizes if size in staying]
    ledger.add("parameters too small to swap", small, pinned=params.pin_memory)
    add = _locking(memory, ledger)
    if not params.use_gds:
        add("swap buffers of parameters", memory.parameter_buffers, _BUFFERS)
    kept = min(params.max_in_cpu, memory.partitions.part) * memory.size
    ledger.add("parameters kept in memory", kept, pinned=True, remedy="lower offload_param.max_in_cpu")
    add("swap buffer of updated parameters", memory.largest_update, _SUB_GROUP)


def _locking(memory: TrainingMemory, ledger: _Ledger) -> Callable[[str, int, str], None]:
    """Return the method that adds swap buffers: page-locked by PyTorch before DeepSpeed 0.19.4, by DeepSpeed
    since."""
    if memory.settings.params.swap_buffers_pinned:
        return lambda name, size, remedy: ledger.add(name, size, pinned=True, remedy=remedy)
    return lambda name, size, remedy: ledger.add_locked(name, size, remedy=remedy)


# -- optimizer ------------------------------------------------------------------------------------


def _optimizer(memory: TrainingMemory, ledger: _Ledger, *, moments: bool) -> None:
    if not memory.state.offloads_optimizer:
        return
    groups = [group.numel for group in memory.state.in_memory]
    if memory.stage == 3:
        _states_in_memory(memory, ledger, groups, pinned_master=False, moments=moments)
        gradients = memory.settings.gradient_bytes * memory.partitions.part
        ledger.add("accumulated gradients", gradients, pinned=memory.settings.pin_memory, remedy=_NVME)
    else:
        _states_in_memory(memory, ledger, groups, pinned_master=_pins_master(memory), moments=moments)
        _buffers_below_stage_3(memory, ledger, accumulates=moments)
    if memory.state.on_storage:
        largest = memory.aligned(SINGLE * memory.state.largest_group)
        pool = memory.settings.buffer_count * largest
        _locking(memory, ledger)("swap buffers of the optimizer", pool, _OPTIMIZER_BUFFERS)


def _states_in_memory(
    memory: TrainingMemory, ledger: _Ledger, groups: list[int], *, pinned_master: bool, moments: bool
) -> None:
    """Add master weights, gradients and moments in single precision, and the copies of ZenFlow and
    SuperOffload."""
    settings, numel = memory.settings, sum(groups)
    single = [SINGLE * group for group in groups]
    overlapped = settings.zenflow is not None and settings.zenflow.overlap_step
    ledger.add("master weights", single, pinned=pinned_master, remedy=_NVME)
    if overlapped or settings.super_offload:
        _shared_gradients(memory, ledger, single, twice=overlapped)
    else:
        ledger.add("gradients in single precision", single, pinned=_pins_gradients(memory), remedy=_NVME)
    if not moments:
        return
    size = moment_bytes("adam", (), numel=numel, flat=True)
    if overlapped:
        unset = "unset zenflow.overlap_step"
        ledger.add("optimizer moments, twice (ZenFlow)", 2 * size, remedy=unset)
        ledger.add("master weights as last updated (ZenFlow)", sum(single), remedy=unset)
    else:
        ledger.add("optimizer moments", size, remedy=_NVME)
    if settings.zenflow is not None and settings.zenflow.offload:
        columns = memory.partitions.part if memory.stage == 3 else memory.partitions.trained_numel
        selected = int(3 * settings.zenflow.topk_ratio * columns) * memory.size
        ledger.add("moments and copy of selected columns (ZenFlow)", selected)


def _pins_gradients(memory: TrainingMemory) -> bool:
    if memory.stage < 3 and memory.settings.params.version < _GRADIENT_PIN_SETTING:
        return True
    return memory.settings.pin_memory


def _pins_master(memory: TrainingMemory) -> bool:
    version = memory.settings.params.version
    return version >= _MASTER_PINNED and (version < _MASTER_PIN_SETTING or memory.settings.pin_memory)


def _shared_gradients(memory: TrainingMemory, ledger: _Ledger, single: list[int], *, twice: bool) -> None:
    """Add gradients in memory that is shared with another process; their page-locked original stays
    allocated."""
    if twice:
        ledger.add("gradients in single precision, two sets (ZenFlow)", 2 * sum(single), remedy=_NVME)
    else:
        ledger.add("gradients in single precision", sum(single), remedy=_NVME)
        # The other process has a buffer of its own.
        buffer = max(single, default=0)
        pinned = memory.settings.pin_memory
        ledger.add("gradient buffer of the CPU Adam process", buffer, pinned=pinned, remedy=_SUB_GROUP)
    if memory.settings.pin_memory:
        ledger.add_locked(_CACHED, _rounded(single), remedy="unset offload_optimizer.pin_memory")


def _buffers_below_stage_3(memory: TrainingMemory, ledger: _Ledger, *, accumulates: bool) -> None:
    """Add the updated partition in 16 bit, one gradient, and with accumulation all gradients of the
    partition."""
    pinned = _pins_gradients(memory)
    if memory.settings.params.version >= _COPY_IN_16_BIT:
        size = memory.size * memory.partitions.part
        ledger.add("updated parameters in 16 bit", size, pinned=memory.settings.pin_memory)
    ledger.add("gradient buffer", memory.size * memory.largest, pinned=pinned)
    if accumulates and memory.workload.gradient_accumulation_steps > 1:
        # One buffer for every tensor of the partition, each of the tensor's full size.
        sizes = [memory.size * weight.numel for weight in memory.partitions.trained]
        held = (_rounded(sizes) if pinned else sum(sizes)) // memory.ranks
        ledger.add_locked("accumulated gradients", held, remedy="lower gradient_accumulation_steps to 1")


# -- start-up -------------------------------------------------------------------------------------


def _transient(memory: TrainingMemory, ledger: _Ledger) -> None:
    """Largest temporary allocation during start-up."""
    found: dict[str, int] = {}
    if memory.stage == 3 and memory.state.weights_on == "hbm":
        found["parameters, moved to make them contiguous"] = memory.states.parameters
    if memory.stage == 3 and memory.state.offloads_optimizer:
        found["sub-group cast to single precision"] = SINGLE * memory.state.largest_group
    if memory.state.offloads_optimizer and _pins_gradients(memory):
        size = memory.settings.gradient_bytes if memory.stage == 3 else SINGLE
        found["gradient buffer before it is page-locked"] = size * memory.partitions.part
    if found:
        name = max(found, key=lambda one: found[one])
        ledger.add(name, found[name], remedy=_SUB_GROUP if "sub-group" in name else "")


# -- allocations ----------------------------------------------------------------------------------


def _rounded(sizes: Sequence[int]) -> int:
    """Return the size that PyTorch page-locks for allocations of ``sizes`` [B], each rounded to a power of
    two."""
    return sum(sizes) + pinned_rounding(sizes)


class _Ledger:
    """A _Ledger adds up allocations in the memory of a host on which ``ranks`` processes make the same
    ones."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._terms: list[MemoryTerm] = []
        self._rounding = 0

    def add(
        self,
        name: str,
        sizes: int | Iterable[int],
        *,
        pinned: bool = False,
        remedy: str = "",
        once: bool = False,
    ) -> None:
        """Add allocations of every rank by PyTorch, page-locked or not [B]."""
        found = [sizes] if isinstance(sizes, int) else list(sizes)
        if pinned:
            self._rounding += pinned_rounding(found)
        self._put(name, sum(found), pinned, remedy, once=once)

    def add_locked(self, name: str, size: int, *, remedy: str = "") -> None:
        """Add swap buffers that DeepSpeed page-locks (since 0.19.4), whose sizes are not rounded."""
        self._put(name, size, True, remedy)

    def once(self, term: MemoryTerm) -> None:
        """Add an allocation that exists once per host."""
        self._terms.append(term)

    def terms(self) -> tuple[MemoryTerm, ...]:
        """Return the memory terms of the host, including those for rounding."""
        rounding = MemoryTerm(
            "dram",
            "rounding of pinned allocations",
            self._rounding * self._ranks,
            pinned=True,
            remedy="unset pin_memory, or change sub_group_size so that buffers are just below a power of two",
        )
        return (*self._terms, *([rounding] if self._rounding else []))

    def _put(self, name: str, size: int, pinned: bool, remedy: str, *, once: bool = False) -> None:
        if size:
            term = MemoryTerm("dram", name, size * self._ranks, pinned=pinned, remedy=remedy, once=once)
            self._terms.append(term)
