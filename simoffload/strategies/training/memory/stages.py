"""Does a training run fit: what every tier holds while it starts, in a micro-step, and in the optimizer.

Files on storage: deepspeed/runtime/swap_tensor (0.19.8). One for every parameter partition of at least
``max(1 MiB, aio.block_size)``, three for every sub-group (master weights and both moments), one for every
gradient partition of at least that size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simoffload.hardware import Machine
from simoffload.models.shape import SINGLE
from simoffload.results.capacity import MemoryTerm, Moment
from simoffload.strategies.training.memory.gpu import gpu_initialisation, gpu_micro_step, gpu_optimizer_step
from simoffload.strategies.training.memory.host import (
    host_initialisation,
    host_micro_step,
    host_optimizer_step,
)
from simoffload.strategies.training.memory.states import TrainingMemory
from simoffload.strategies.training.state import TrainingState
from simoffload.strategies.training.walk import Peak
from simoffload.workload import Training

__all__ = ["INITIALISATION", "MICRO_STEP", "OPTIMIZER_STEP", "training_moments"]

INITIALISATION = "initialisation"
MICRO_STEP = "forward and backward"
OPTIMIZER_STEP = "optimizer step"
_STATES = 3


def training_moments(
    state: TrainingState, workload: Training, machine: Machine, *, peak: Peak | None = None
) -> tuple[Moment, ...]:
    """Account for all memory of a run, at three stages.

    ``peak`` is what a walk through a micro-step of stage 3 gathers at most; by default there is a bound from
    ``stage3_max_live_parameters`` and ``stage3_max_reuse_distance``, of one call from the prefetch bucket and
    the largest module.
    """
    memory = TrainingMemory(state, workload, machine, peak)
    begun, steady = tuple(_storage(memory, started=False)), tuple(_storage(memory, started=True))
    return (
        Moment(
            INITIALISATION, (*gpu_initialisation(memory), *host_initialisation(memory), *begun), once=True
        ),
        Moment(MICRO_STEP, (*gpu_micro_step(memory), *host_micro_step(memory), *steady)),
        Moment(OPTIMIZER_STEP, (*gpu_optimizer_step(memory), *host_optimizer_step(memory), *steady)),
    )


def _storage(memory: TrainingMemory, *, started: bool) -> Iterator[MemoryTerm]:
    """All ranks together; before the first step (``started`` = False) there are neither moments nor
    gradients."""
    state, places = memory.state, memory.state.places
    if state.weights_on == "nvme":
        # Partitions that max_in_cpu keeps in memory leave their files behind.
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
