"""Which mode of training a configuration asks for, and what the user should know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simoffload.strategies.ds_config.sections import ZeroSection
from simoffload.strategies.ds_config.training import TrainingSettings, ZenFlow
from simoffload.strategies.training.state import Update
from simoffload.strategies.training.step import Step
from simoffload.strategies.training.super_offload import SuperOffloadStep
from simoffload.strategies.training.zenflow import ZenFlowStep
from simoffload.workload import Training

if TYPE_CHECKING:
    from simoffload.strategies.training.plan import ZeroTrainingPlan

__all__ = ["interval_warnings", "mode_warnings", "share_warnings", "step_of"]

_SAME_SHARE = 0.005
"""Shares that are told with the same whole percent."""


def step_of(plan: ZeroTrainingPlan) -> Step:
    """The step as its mode has it."""
    if plan.settings.zenflow is not None:
        return ZenFlowStep(plan)
    return SuperOffloadStep(plan) if plan.settings.super_offload else Step(plan)


def mode_warnings(settings: TrainingSettings, workload: Training) -> Iterator[str]:
    """What of a mode is not in one step of the steady state, or depends on the training program."""
    if settings.zenflow is not None:
        yield from _zenflow(settings.zenflow, workload.gradient_accumulation_steps)
    if settings.super_offload and settings.gradient_clipping:
        yield "gradient_clipping keeps SuperOffload from updating during backward: the step comes afterwards"
    if settings.cpu_checkpointing and workload.gradient_checkpointing:
        yield (
            "ds_config activation_checkpointing.cpu_checkpointing: only DeepSpeed's own checkpoint function "
            "(deepspeed.checkpointing.checkpoint) reads it; Hugging Face's gradient checkpointing does not"
        )
    elif settings.cpu_checkpointing:
        yield (
            "ds_config activation_checkpointing.cpu_checkpointing: without the workload's "
            "gradient_checkpointing there are no checkpoints to offload"
        )


def interval_warnings(said: ZeroSection, settings: TrainingSettings) -> Iterator[str]:
    """How often ZenFlow updates where the gradients decide it."""
    if said.zenflow is not None and settings.zenflow is not None and said.zenflow.update_interval == "auto":
        yield (
            'zenflow.update_interval "auto" depends on the gradients; '
            f"{settings.zenflow.update_interval} micro-steps are assumed"
        )


def share_warnings(settings: TrainingSettings, updates: Sequence[Update]) -> Iterator[str]:
    """What Twin-Flow's ``ratio`` comes to: whole sub-groups go to the CPU, the last ones
    (stage3.py, ``_create_fp32_partitions``)."""
    asked, groups = settings.ratio, len(updates)
    said = f"ds_config offload_optimizer.ratio {asked:g}"
    if asked == 1.0:
        return
    if settings.optimizer_device == "none":
        yield f"{said}: without an offloaded optimizer it does nothing"
        return
    on_storage = sum(update.on_gpu and update.swapped for update in updates)
    if on_storage:
        yield (
            f"{said}: states on storage stay there and are updated on the CPU, those of {on_storage} of "
            f"{groups} sub-group(s) by PyTorch's slower Adam"
        )
        return
    on_cpu = [update.group.numel for update in updates if not update.on_gpu]
    share = sum(on_cpu) / max(1, sum(update.group.numel for update in updates))
    if abs(share - asked) >= _SAME_SHARE:
        yield (
            f"{said} of {groups} sub-group(s) puts {len(on_cpu)} on the CPU, {share:.0%} of the parameters; "
            "a smaller sub_group_size comes nearer"
        )


def _zenflow(zenflow: ZenFlow, accumulation: int) -> Iterator[str]:
    interval = zenflow.update_interval
    if accumulation != interval:
        yield (
            f"ZenFlow updates on the CPU every {interval} micro-steps (update_interval) in the place of "
            f"gradient_accumulation_steps; a step here is {accumulation} micro-step(s) all the same"
        )
    if zenflow.full_warm_up_rounds:
        yield (
            f"ZenFlow's first {zenflow.full_warm_up_rounds} micro-steps (full_warm_up_rounds) update "
            "everything and take longer; the result is a later step"
        )
    if zenflow.select_interval % interval:
        yield (
            f"zenflow.select_interval {zenflow.select_interval} is no multiple of update_interval "
            f"{interval}: DeepSpeed updates at each selection, too, which is left out"
        )
