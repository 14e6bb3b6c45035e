"""What the memory of one host holds at each stage of a training run.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage3.py (``_create_param_groups_fp16_flat_cpu_memory``,
``_create_fp32_partitions``, ``_setup_for_real_optimizer``, ``initialize_optimizer_states``), stage_1_and_2.py
(``__init__``, ``initialize_optimizer_states``, ``async_accumulate_grad_in_cpu_via_gpu``), swap_tensor/,
zenflow/, superoffload/. Page-locked memory that PyTorch frees stays page-locked in its cache
(aten/src/ATen/core/CachingHostAllocator.h).
"""

from __future__ import annotations

from collections.abc import Callable

from simoffload.models.shape import SINGLE
from simoffload.results.capacity import MemoryTerm
from simoffload.strategies.training.memory.case import Case
from simoffload.strategies.training.memory.ledger import Ledger, rounded
from simoffload.strategies.training.memory.states import moment_bytes

__all__ = ["host_initialisation", "host_micro_step", "host_optimizer_step"]

_BUFFERS = "lower offload_param.buffer_count or buffer_size"
_OPTIMIZER_BUFFERS = "lower offload_optimizer.buffer_count or sub_group_size"
_NVME = "put the optimizer on storage, or use more hosts; unset offload_optimizer.pin_memory"
_PINNED = "unset offload_param.pin_memory"
_SUB_GROUP = "lower sub_group_size"
_PIN_KNOB = (0, 10, 1)
"""Stages 1 and 2 pin gradients in any case before."""
_MASTER_PINNED, _MASTER_AS_TOLD = (0, 14, 1), (0, 18, 3)
"""Stages 1 and 2 pin master weights never before the first, as told from the second, always between them."""
_COPY_IN_16_BIT = (0, 17, 0)
"""Stages 1 and 2 cast updated parameters into a buffer of their own."""
_CACHED = "page-locked memory that PyTorch keeps after start-up"


def host_initialisation(case: Case) -> tuple[MemoryTerm, ...]:
    """At the end of DeepSpeed's start, or, below stage 3, while every process holds the whole model.

    Stage 3 is assumed to make the model under ``zero.Init``; a checkpoint read meanwhile is not counted.
    """
    ledger = _ledger(case)
    _weights(case, ledger)
    _optimizer(case, ledger, moments=False)
    _transient(case, ledger)
    if case.stage == 3:
        return ledger.terms()
    before = _ledger(case)
    copies = 2 if case.flattens_on_host else 1
    before.add(
        "whole model in every process", copies * case.states.parameters, remedy="set stage 3 with zero.Init"
    )
    return max(before.terms(), ledger.terms(), key=lambda terms: sum(term.size for term in terms))


def host_micro_step(case: Case) -> tuple[MemoryTerm, ...]:
    """Forward and backward of the steady state."""
    ledger = _ledger(case)
    _weights(case, ledger)
    _optimizer(case, ledger, moments=True)
    ledger.add(
        "checkpoints",
        case.activations.on_host,
        remedy="lower batch_size or sequence_length, or unset cpu_checkpointing",
    )
    return ledger.terms()


def host_optimizer_step(case: Case) -> tuple[MemoryTerm, ...]:
    """The step: beside the states, casts and, in the first step, moments that are not yet on storage."""
    ledger = _ledger(case)
    _weights(case, ledger)
    _optimizer(case, ledger, moments=True)
    updated = [group.numel for group in (*case.cpu_groups, *case.swapped_groups)]
    if case.stage == 3 and case.weights_kind == "hbm" and updated:
        # A copy between devices and types casts at its source (PyTorch, aten/src/ATen/native/cuda/Copy.cu).
        ledger.add("a sub-group cast to 16 bit", case.size * max(updated), remedy=_SUB_GROUP)
    swapped = max((group.numel for group in case.swapped_groups), default=0)
    ledger.add("moments of a sub-group, first step", 2 * SINGLE * swapped, remedy=_SUB_GROUP, once=True)
    return ledger.terms()


def _ledger(case: Case) -> Ledger:
    ledger = Ledger(case.per_host)
    reserved = case.machine.host.reserved_bytes
    ledger.once(MemoryTerm("dram", "operating system and processes", reserved))
    return ledger


# -- parameters -----------------------------------------------------------------------------------


def _weights(case: Case, ledger: Ledger) -> None:
    if case.stage < 3 or case.weights_kind == "hbm":
        return
    params, partitions = case.settings.params, case.parameter_partitions()
    trained = [tensor.slice_numel * case.size for tensor in case.slices]
    if case.weights_kind == "dram":
        frozen = [size for size, weight in zip(partitions, case.weights, strict=True) if not weight.trainable]
        ledger.add("parameters that are not trained", frozen, pinned=params.pin_memory, remedy=_PINNED)
        # One flat buffer, pinned whatever pin_memory says, takes the place of the partitions.
        ledger.add("parameters", sum(trained), pinned=True)
        if params.pin_memory:
            ledger.add_locked(_CACHED, sum(rounded(size) for size in trained), remedy=_PINNED)
        return
    stays = {size: not case.swapped(size) for size in set(partitions)}
    small = [size for size in partitions if stays[size]]
    ledger.add("parameters too small to swap", small, pinned=params.pin_memory)
    add = _locking(case, ledger)
    pool = params.buffer_count * case.aligned(params.buffer_size * case.size)
    if not params.use_gds:
        add("swap buffers of parameters", pool, _BUFFERS)
    kept = min(params.max_in_cpu, case.part) * case.size
    ledger.add("parameters kept in memory", kept, pinned=True, remedy="lower offload_param.max_in_cpu")
    add("swap buffer of updated parameters", case.largest_update, _SUB_GROUP)


def _locking(case: Case, ledger: Ledger) -> Callable[[str, int, str], None]:
    """Swap buffers: page-locked by PyTorch before DeepSpeed 0.19.4, by DeepSpeed since."""
    if case.settings.params.swap_buffers_pinned:
        return lambda name, size, remedy: ledger.add(name, size, pinned=True, remedy=remedy)
    return lambda name, size, remedy: ledger.add_locked(name, size, remedy=remedy)


# -- optimizer ------------------------------------------------------------------------------------


def _optimizer(case: Case, ledger: Ledger, *, moments: bool) -> None:
    if not case.offloads_optimizer:
        return
    groups = [group.numel for group in case.cpu_groups]
    if case.stage == 3:
        _states_in_memory(case, ledger, groups, pinned_master=False, moments=moments)
        gradients = case.settings.gradient_bytes * case.part
        ledger.add("accumulated gradients", gradients, pinned=case.settings.pin_memory, remedy=_NVME)
    else:
        _states_in_memory(case, ledger, groups, pinned_master=_pins_master(case), moments=moments)
        _buffers_below_stage_3(case, ledger, accumulates=moments)
    if case.swapped_groups:
        largest = case.aligned(SINGLE * case.largest_group)
        pool = case.settings.buffer_count * largest
        _locking(case, ledger)("swap buffers of the optimizer", pool, _OPTIMIZER_BUFFERS)


def _states_in_memory(
    case: Case, ledger: Ledger, groups: list[int], *, pinned_master: bool, moments: bool
) -> None:
    """Single precision: master weights, gradients, moments, and what ZenFlow and SuperOffload double."""
    settings, numel = case.settings, sum(groups)
    single = [SINGLE * group for group in groups]
    overlapped = settings.zenflow is not None and settings.zenflow.overlap_step
    ledger.add("master weights", single, pinned=pinned_master, remedy=_NVME)
    if overlapped or settings.super_offload:
        _shared_gradients(case, ledger, single, twice=overlapped)
    else:
        ledger.add("gradients in single precision", single, pinned=_pins_gradients(case), remedy=_NVME)
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
        columns = case.part if case.stage == 3 else case.trained_numel
        selected = int(3 * settings.zenflow.topk_ratio * columns) * case.size
        ledger.add("moments and copy of selected columns (ZenFlow)", selected)


def _pins_gradients(case: Case) -> bool:
    if case.stage < 3 and case.settings.params.version < _PIN_KNOB:
        return True
    return case.settings.pin_memory


def _pins_master(case: Case) -> bool:
    version = case.settings.params.version
    return version >= _MASTER_PINNED and (version < _MASTER_AS_TOLD or case.settings.pin_memory)


def _shared_gradients(case: Case, ledger: Ledger, single: list[int], *, twice: bool) -> None:
    """Gradients that another process reads move to shared memory; what was page-locked for them stays."""
    if twice:
        ledger.add("gradients in single precision, two sets (ZenFlow)", 2 * sum(single), remedy=_NVME)
    else:
        ledger.add("gradients in single precision", sum(single), remedy=_NVME)
        # The other process has a buffer of its own.
        buffer = max(single, default=0)
        pinned = case.settings.pin_memory
        ledger.add("gradient buffer of the CPU Adam process", buffer, pinned=pinned, remedy=_SUB_GROUP)
    if case.settings.pin_memory:
        ledger.add_locked(
            _CACHED, sum(rounded(size) for size in single), remedy="unset offload_optimizer.pin_memory"
        )


def _buffers_below_stage_3(case: Case, ledger: Ledger, *, accumulates: bool) -> None:
    """The updated partition in 16 bit, one gradient, and with accumulation all gradients of the partition."""
    pinned = _pins_gradients(case)
    if case.settings.params.version >= _COPY_IN_16_BIT:
        size = case.size * case.part
        ledger.add("updated parameters in 16 bit", size, pinned=case.settings.pin_memory)
    ledger.add("gradient buffer", case.size * case.largest, pinned=pinned)
    if accumulates and case.workload.gradient_accumulation_steps > 1:
        # One buffer for every tensor of the partition, each of the tensor's full size.
        sizes = [case.size * weight.numel for weight in case.trained]
        held = sum(rounded(size) if pinned else size for size in sizes) // case.ranks
        ledger.add_locked("accumulated gradients", held, remedy="lower gradient_accumulation_steps to 1")


# -- start-up -------------------------------------------------------------------------------------


def _transient(case: Case, ledger: Ledger) -> None:
    """The largest of what start-up allocates for a while."""
    found: dict[str, int] = {}
    if case.stage == 3 and case.weights_kind == "hbm":
        found["parameters, moved to make them contiguous"] = sum(case.parameter_partitions())
    if case.stage == 3 and case.offloads_optimizer:
        found["sub-group cast to single precision"] = SINGLE * case.largest_group
    if case.offloads_optimizer and _pins_gradients(case):
        size = case.settings.gradient_bytes if case.stage == 3 else SINGLE
        found["gradient buffer before it is page-locked"] = size * case.part
    if found:
        name = max(found, key=lambda one: found[one])
        ledger.add(name, found[name], remedy=_SUB_GROUP if "sub-group" in name else "")
