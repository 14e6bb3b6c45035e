"""What every strategy answers: memory by tier, and the schedule of any forward pass."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from simoffload.results.capacity import MemoryTerm
from simoffload.schedule import Schedule

__all__ = ["ForwardPass", "Plan"]


class ForwardPass(NamedTuple):
    """One pass through the model."""

    name: str
    new_tokens: int
    """Tokens that each sequence feeds in: the prompt at prefill, 1 at a decode step."""
    context: int
    """Tokens that the last new token attends to, itself included."""
    first: bool = False
    """The very first pass after loading, in which DeepSpeed records its trace and prefetches nothing."""


class Plan(Protocol):
    """A strategy applied to a model, a workload and a machine."""

    @property
    def target(self) -> str:
        """Tier that holds the weights."""

    @property
    def traced(self) -> bool:
        """Whether the first pass after loading differs from later ones."""

    @property
    def memory(self) -> tuple[MemoryTerm, ...]:
        """What each tier must hold at its peak."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before the run."""

    @property
    def extrapolations(self) -> tuple[str, ...]:
        """What lies outside of the range in which the machine was measured."""

    def schedule(self, forward: ForwardPass) -> Schedule:
        """The operations of one forward pass."""
