"""How plans of inference and of training come to their phases, and what a training step computes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property, partial
from typing import ClassVar, Literal, NamedTuple

from simoffload.hardware import Machine
from simoffload.models import ModelShape, Module
from simoffload.models.cost import training_backward_flops, training_forward_flops
from simoffload.schedule import Schedule
from simoffload.strategies.base import Earlier, Facts, Phase, PhaseSeries, Plan
from simoffload.strategies.timing import PassTimings
from simoffload.strategies.training.trace import MicroStep, micro_step
from simoffload.workload import Inference, Training

__all__ = ["ForwardPass", "PassWork", "StepPart", "StepWork"]


class ForwardPass(NamedTuple):
    """One pass through the model."""

    name: str
    new_tokens: int
    """Tokens that each sequence feeds in: the prompt at prefill, 1 at a decode step."""
    context: int
    """Tokens that the last new token attends to, itself included."""
    first: bool = False
    """The very first pass after loading, in which DeepSpeed records its trace and prefetches nothing."""


class StepPart(NamedTuple):
    """A part of a training step between two moments at which the host waits for everything."""

    phase: Literal["forward", "backward", "optimizer"]
    title: str
    """Its name in reports, unique within the step."""
    times: Fraction = Fraction(1)
    """Times in one step."""
    micro_step: int = 0
    """0 = gradients are stored, later ones are added to what is there."""
    boundary: bool = False
    """The last micro-step of a step, whose gradients go to the optimizer."""
    leaves_update: bool = False
    """It ends with its host thread, although an update on the CPU may go on."""
    awaits_update: bool = False
    """It waits for an update on the CPU that began in an earlier part; for that one needs to know:"""
    elapsed_s: float = 0.0
    """[s] of all other parts between two occurrences of this one; filled in once they are simulated."""
    unfinished_s: float = 0.0
    """[s] that the update goes on after the part that left it; filled in once that one is simulated."""


class PassWork(Plan):
    """What plans of inference have in common: their passes, and how long modules take in each."""

    model: ModelShape
    workload: Inference
    machine: Machine
    traced: ClassVar[bool] = False
    """The first pass after loading differs from later ones."""

    @property
    @abstractmethod
    def modules(self) -> tuple[Module, ...]:
        """Every module that may launch kernels."""

    @abstractmethod
    def schedule(self, forward: ForwardPass, /) -> Schedule:
        """The operations of one forward pass."""

    @property
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """Prefill and decode steps, and where it differs a first pass."""
        prompt = self.workload.prompt_length

        def phase(kind: Literal["first pass", "prefill", "decode"], one: ForwardPass) -> Phase:
            return Phase(one.name, kind, lambda _: self.schedule(one), one.new_tokens, one.context)

        def step(number: int) -> ForwardPass:
            return ForwardPass(f"decode {number}", 1, prompt + number)

        before = ForwardPass("first pass", prompt, prompt, first=True)
        return (
            *([phase("first pass", before)] if self.traced else []),
            phase("prefill", ForwardPass("prefill", prompt, prompt)),
            PhaseSeries(
                "decode",
                self.workload.decode_steps,
                lambda number: phase("decode", step(number)),
                lambda number: self.durations(step(number)),
            ),
        )

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """[ps] that the GPU is busy with each of the modules: all that tells passes of one kind apart."""
        return self.timings.durations(new_tokens=forward.new_tokens, context=forward.context)

    @cached_property
    def timings(self) -> PassTimings:
        """Durations, pass by pass."""
        return PassTimings(
            machine=self.machine, model=self.model, batch=self.workload.batch_size, modules=self.modules
        )


class StepWork(Plan):
    """What plans of training have in common: the order of a micro-step's work, and its FLOP."""

    model: ModelShape
    workload: Training

    @property
    @abstractmethod
    def parts(self) -> tuple[StepPart, ...]:
        """One step of the steady state, in order."""

    @abstractmethod
    def schedule(self, part: StepPart, /) -> Schedule:
        """The operations of one part."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One step of the steady state."""
        length = self.workload.sequence_length
        others = tuple(part.title for part in self.parts if not part.awaits_update)
        return tuple(
            Phase(
                part.title,
                part.phase,
                partial(self._after, part),
                new_tokens=length,
                context=length,
                repeat=part.times,
                depends_on=others if part.awaits_update else (),
                ends_with="host" if part.leaves_update else None,
            )
            for part in self.parts
        )

    def _after(self, part: StepPart, earlier: Mapping[str, Earlier]) -> Schedule:
        """A part that waits for an update learns how long the others take and what they left unfinished."""
        elapsed = sum(float(one.repeat / part.times) * one.time_s for one in earlier.values())
        unfinished = sum(one.unfinished_s for one in earlier.values())
        return self.schedule(part._replace(elapsed_s=elapsed, unfinished_s=unfinished))

    @property
    def facts(self) -> Facts:
        """FLOP."""
        return Facts(
            forward_flops=self.forward_flops,
            backward_flops=self.backward_flops,
            recomputed_flops=self.recomputed_flops,
        )

    @cached_property
    def trace(self) -> MicroStep:
        """Every hook, kernel and gradient of a micro-step."""
        work = self.workload
        return micro_step(self.model, checkpointing=work.gradient_checkpointing, reentrant=work.use_reentrant)

    @property
    def forward_flops(self) -> float:
        """[FLOP] of the forward passes of one step on one GPU."""
        return self.workload.gradient_accumulation_steps * sum(self._flops)

    @property
    def backward_flops(self) -> float:
        """[FLOP] of the backward passes of one step on one GPU, without recomputation."""
        work = self.workload
        once = training_backward_flops(self.model, batch=work.batch_size, length=work.sequence_length)
        return work.gradient_accumulation_steps * once

    @property
    def recomputed_flops(self) -> float:
        """[FLOP] that checkpointing computes again in one step on one GPU."""
        again = self._flops[0] if self.workload.gradient_checkpointing else 0.0
        return self.workload.gradient_accumulation_steps * again

    @property
    def _flops(self) -> tuple[float, float]:
        work = self.workload
        return training_forward_flops(self.model, batch=work.batch_size, length=work.sequence_length)
