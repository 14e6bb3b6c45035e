"""Ways of offloading: each turns a model, a workload and a machine into memory needs and schedules."""

from typing import Annotated

from pydantic import Field

from simoffload.strategies.checkpoint.plan import CheckpointPlan
from simoffload.strategies.checkpoint.strategy import CheckpointStorage
from simoffload.strategies.plan import AnyPlan, ForwardPass, Plan, StepPart, TrainingPlan
from simoffload.strategies.resident import Resident
from simoffload.strategies.training.fsdp import Fsdp
from simoffload.strategies.training.zero_training import ZeroTraining
from simoffload.strategies.zero_inference import ZeroInference

__all__ = [
    "AnyPlan",
    "CheckpointPlan",
    "CheckpointStorage",
    "ForwardPass",
    "Fsdp",
    "Plan",
    "Resident",
    "StepPart",
    "Strategy",
    "TrainingPlan",
    "ZeroInference",
    "ZeroTraining",
]

Strategy = Annotated[
    ZeroInference | Resident | ZeroTraining | Fsdp | CheckpointStorage, Field(discriminator="kind")
]
