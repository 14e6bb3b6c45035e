"""Ways of offloading: each turns a model, a workload and a machine into memory needs and schedules."""

from typing import Annotated

from pydantic import Field

from simoffload.strategies.plan import ForwardPass, Plan
from simoffload.strategies.resident import Resident
from simoffload.strategies.zero_inference import ZeroInference

__all__ = ["ForwardPass", "Plan", "Resident", "Strategy", "ZeroInference"]

Strategy = Annotated[ZeroInference | Resident, Field(discriminator="kind")]
