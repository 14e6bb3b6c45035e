"""Does a training run fit: what every tier holds while it starts, in a micro-step, and in the optimizer."""

from __future__ import annotations

from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results.capacity import Moment
from simoffload.strategies.ds_config.training import TrainingSettings
from simoffload.strategies.training.memory.case import Case
from simoffload.strategies.training.memory.gpu import (
    Gathered,
    gpu_initialisation,
    gpu_micro_step,
    gpu_optimizer_step,
)
from simoffload.strategies.training.memory.host import (
    host_initialisation,
    host_micro_step,
    host_optimizer_step,
)
from simoffload.strategies.training.memory.storage import storage_terms
from simoffload.workload import Training

__all__ = ["INITIALISATION", "MICRO_STEP", "OPTIMIZER_STEP", "training_moments"]

INITIALISATION = "initialisation"
MICRO_STEP = "forward and backward"
OPTIMIZER_STEP = "optimizer step"


def training_moments(
    model: ModelShape,
    workload: Training,
    settings: TrainingSettings,
    machine: Machine,
    *,
    ranks: int,
    weights_tier: str,
    optimizer_tier: str,
    gathered_elements: int | None = None,
    gathered_while_reducing: int | None = None,
    gather_batch: int | None = None,
    weight_bits: float | None = None,
) -> tuple[Moment, ...]:
    """Account for all memory of a run, at three stages.

    Parameters
    ----------
    weights_tier, optimizer_tier
        Tiers of ``machine`` that hold parameters and optimizer states; they count more than the devices in
        ``settings``. KeyError for a tier that it lacks.
    gathered_elements
        [elements] most that stage 3's gathered parameters occupy at once, from a walk through a micro-step;
        by default a bound from ``stage3_max_live_parameters`` and ``stage3_max_reuse_distance``.
    gathered_while_reducing
        [elements] most of the same while a bucket of gradients is reduced, by default as much.
    gather_batch
        [elements] most that is gathered in one call; by default the prefetch bucket and the largest module.
    weight_bits
        [bit] of an element of the frozen matrices (``models.lora.nf4_bits``); by default they are in the
        model's type.
    """
    case = Case(
        model=model,
        workload=workload,
        settings=settings,
        machine=machine,
        ranks=ranks,
        weights_tier=weights_tier,
        optimizer_tier=optimizer_tier,
        weight_bits=weight_bits,
    )
    gathered = Gathered(case, peak=gathered_elements, reducing=gathered_while_reducing, batch=gather_batch)
    begun, steady = storage_terms(case, started=False), storage_terms(case, started=True)
    return (
        Moment(INITIALISATION, (*gpu_initialisation(case), *host_initialisation(case), *begun), once=True),
        Moment(MICRO_STEP, (*gpu_micro_step(case, gathered), *host_micro_step(case), *steady)),
        Moment(OPTIMIZER_STEP, (*gpu_optimizer_step(case), *host_optimizer_step(case), *steady)),
    )
