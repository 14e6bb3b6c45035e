"""How plans of inference and of training come to their phases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from typing import ClassVar, Literal, NamedTuple, Protocol

from simoffload.models import Module, Sequences
from simoffload.schedule import Schedule
from simoffload.strategies.base import Earlier, Phase, PhaseKind, PhaseSeries, Plan
from simoffload.strategies.timing import PassTimings
from simoffload.workload import Inference

__all__ = ["ForwardPass", "InferencePlan", "StepPart", "step_phases"]


class ForwardPass(NamedTuple):
    """One pass through the model."""

    name: str
    batch: tuple[Sequences, ...]
    """What each replica feeds in."""
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


class _Step(Protocol):
    """What writes the parts of a training step."""

    def schedule(self, part: StepPart, /) -> Schedule:
        """The operations of one part."""


class InferencePlan(Plan):
    """A plan whose phases are forward passes: it says which modules keep the GPU busy, and writes a pass."""

    workload: Inference
    traced: ClassVar[bool] = False
    """Whether the first pass after loading differs from later ones."""

    @property
    @abstractmethod
    def modules(self) -> Sequence[Module]:
        """All that keep the GPU busy, in the order of their calls; layers that are alike once."""

    @abstractmethod
    def schedule(self, forward: ForwardPass) -> Schedule:
        """The operations of one pass."""

    def durations(self, forward: ForwardPass) -> tuple[int, ...]:
        """[ps] that the GPU is busy with each of the modules: passes of one kind differ in nothing else."""
        return self.timings.durations(forward.batch)

    @cached_property
    def timings(self) -> PassTimings:
        """Durations of the modules."""
        return PassTimings(machine=self.machine, model=self.model, modules=self.modules)

    def step(self, batch: Sequence[Sequences], *, name: str = "step") -> Phase:
        """The pass of any mixture of sequences, each with new tokens and a context of its own.

        Prefills and decode steps are this for sequences that are equally far; a batch to which sequences are
        added while others are under way is this, too.
        """
        return self._phase(ForwardPass(name, tuple(batch)), "decode")

    @property
    def phases(self) -> tuple[Phase | PhaseSeries, ...]:
        """A first pass where it differs, prefill, decode steps."""
        prompt, steps = self.workload.prompt_length, self.workload.decode_steps

        def decode(number: int) -> ForwardPass:
            return self.forward(f"decode {number}", 1, prompt + number)

        first = self.forward("first pass", prompt, prompt, first=True)
        return (
            *([self._phase(first, "first pass")] if self.traced else []),
            self._phase(self.forward("prefill", prompt, prompt), "prefill"),
            PhaseSeries(
                "decode",
                steps,
                lambda number: self._phase(decode(number), "decode"),
                lambda number: self.durations(decode(number)),
            ),
        )

    def forward(self, name: str, new_tokens: int, context: int, *, first: bool = False) -> ForwardPass:
        """A pass of the workload's batch, whose sequences are equally far."""
        return ForwardPass(name, (Sequences(self.workload.batch_size, new_tokens, context),), first)

    def _phase(self, one: ForwardPass, kind: PhaseKind) -> Phase:
        tokens, context = (max(values) for values in list(zip(*one.batch, strict=True))[1:])
        return Phase(one.name, kind, lambda _: self.schedule(one), tokens, context)


def step_phases(step: _Step, parts: tuple[StepPart, ...], *, length: int) -> tuple[Phase, ...]:
    """The phases of a training step of ``length`` tokens a sequence, one for each of its parts."""
    others = tuple(part.title for part in parts if not part.awaits_update)
    return tuple(
        Phase(
            part.title,
            part.phase,
            partial(_scheduled, step, part),
            new_tokens=length,
            context=length,
            repeat=part.times,
            depends_on=others if part.awaits_update else (),
            ends_with="host" if part.leaves_update else None,
        )
        for part in parts
    )


def _scheduled(step: _Step, part: StepPart, earlier: Mapping[str, Earlier]) -> Schedule:
    """A part that waits for an update learns how long the others take and what they left unfinished."""
    elapsed = sum(float(one.repeat / part.times) * one.time_s for one in earlier.values())
    unfinished = sum(one.unfinished_s for one in earlier.values())
    return step.schedule(part._replace(elapsed_s=elapsed, unfinished_s=unfinished))
