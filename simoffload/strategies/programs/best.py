"""The strategy that is no program yet: the fastest of those that people use, which planning chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.strategies.base import AnyTier, Placement, Placements, Plan, Strategy, Tunables


class Best(Strategy):
    """Best stands for the fastest of the programs that people use for the model, the machine and the work.

    Keys of programs beside its own limit the choice to programs that have them.
    """

    model_config = ConfigDict(extra="allow")

    serves: ClassVar = frozenset({"inference", "training"})

    kind: Literal["best"] = "best"
    among: tuple[str, ...] = ()
    """Kinds of the programs to choose from; by default all that people use for the model and the machine."""
    sequences: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Number of sequences of a batch in all; by default ``batch_size`` on each GPU."""
    uses: AnyTier | None = None
    """Tier that must hold some of the states."""
    weights: AnyTier | None = None
    """Tier that holds the weights, as far as they are offloaded; only programs that can use it count."""
    optimizer: AnyTier | None = None
    """Tier that holds the optimizer of training; only programs that can use it count."""

    @property
    def replicas(self) -> int:
        """Number by which ``batch_size`` counts: one for each GPU, unless all sequences are stated."""
        return self.ranks if self.sequences is None else 1

    def plan(self, model: ModelShape, workload: Any, machine: Machine) -> Plan:  # noqa: ARG002
        """Raise InputError, as nothing was chosen."""
        text = (
            "best is a choice among programs, which simulate, question and all commands make; name one here"
        )
        raise InputError.at("strategy.kind", text)

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:  # noqa: ARG002
        """Yield every tier as the place of the states."""
        tiers = tuple(machine.tiers)

        def pairs() -> Iterator[Placement]:
            yield from (Placement(tier) for tier in tiers)
            yield from (Placement(one, other) for one in tiers for other in tiers)

        def edits(other: Placement) -> tuple[Edit, ...]:
            named = {"weights": other.weights, "optimizer": other.optimizer}
            return tuple(Edit.at(f"strategy.{key}", tier) for key, tier in named.items() if tier)

        yield Placements(
            now=lambda: Placement(self.weights or "hbm", self.optimizer),
            possible=tuple(pairs()),
            edits=edits,
            kept=self.model_extra or {},
        )


def choice_in(strategy: Strategy) -> Best:
    """Return a strategy of kind best, with its type."""
    assert isinstance(strategy, Best)
    return strategy
