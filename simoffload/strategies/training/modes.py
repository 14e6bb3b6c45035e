"""Which mode of training a configuration asks for, and what the user should know of it."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.strategies.ds_config.sections import ZeroSection
from simoffload.strategies.ds_config.training import TrainingSettings, ZenFlow
from simoffload.strategies.training.facts import StepFacts
from simoffload.strategies.training.step import Step
from simoffload.strategies.training.super_offload import SuperOffloadStep
from simoffload.strategies.training.zenflow import ZenFlowStep
from simoffload.workload import Training

__all__ = ["interval_warnings", "mode_warnings", "step_of"]


def step_of(facts: StepFacts) -> Step:
    """The step as its mode has it."""
    if facts.settings.zenflow is not None:
        return ZenFlowStep(facts)
    return SuperOffloadStep(facts) if facts.settings.super_offload else Step(facts)


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
