"""The parts of a training step and how each is written down: the plain step, which modes build on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from simoffload.errors import InputError
from simoffload.strategies.plan import StepPart
from simoffload.strategies.training.facts import StepFacts
from simoffload.strategies.training.optimizer import OptimizerStep
from simoffload.strategies.training.writer import GradientHooks, MicroStepWriter

__all__ = ["OPTIMIZER", "PartWriter", "Step", "micro_steps", "refused"]

OPTIMIZER = "optimizer"

PartWriter = Callable[[MicroStepWriter, StepPart], None]


def micro_steps(accumulation: int, *, cycle: int) -> tuple[StepPart, ...]:
    """Forward and backward passes of a step of ``accumulation`` micro-steps, of which every ``cycle``-th is
    followed by an update."""
    cycles = Fraction(accumulation, cycle)
    forward = StepPart("forward", "forward", Fraction(accumulation))
    if cycle == 1:
        return forward, StepPart("backward", "backward", cycles, boundary=True)
    first = StepPart("backward", "backward, first micro-step", cycles)
    middle = StepPart("backward", "backward, middle micro-steps", cycles * (cycle - 2), micro_step=1)
    last = StepPart("backward", "backward, last micro-step", cycles, micro_step=cycle - 1, boundary=True)
    return (forward, first, last) if cycle == 2 else (forward, first, middle, last)


class Step:
    """Gradients of all micro-steps are added up, then everything is updated."""

    def __init__(self, facts: StepFacts) -> None:
        self.facts = facts

    @property
    def cycle(self) -> int:
        """Micro-steps from update to update."""
        return self.facts.accumulation

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """One step of the steady state, in order."""
        return (*micro_steps(self.facts.accumulation, cycle=self.cycle), StepPart("optimizer", OPTIMIZER))

    @property
    def writers(self) -> Mapping[str, PartWriter]:
        """How the parts that are no walk through the model are written, by their titles."""
        return {OPTIMIZER: self._optimizer}

    def hooks(self) -> GradientHooks:
        """What happens to gradients besides, for one backward pass."""
        return GradientHooks()

    def check(self) -> None:
        """Raise InputError for what DeepSpeed stops at."""

    def _optimizer(self, out: MicroStepWriter, _part: StepPart) -> None:
        OptimizerStep(out, self.facts).write()


def refused(key: str, message: str) -> InputError:
    """A setting that DeepSpeed stops at, or that is not modelled; ``key`` is within zero_optimization."""
    return InputError.at(f"strategy.ds_config.zero_optimization.{key}", message)
