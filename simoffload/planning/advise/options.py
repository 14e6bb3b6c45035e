"""What could be changed about a scenario: each option is a scenario of its own."""

from __future__ import annotations

from typing import Literal, NamedTuple

from simoffload.documents import Edit
from simoffload.scenario import LoadedScenario
from simoffload.strategies.zero import gathered
from simoffload.workload import Inference

__all__ = ["Kind", "Option", "gathered_words"]

Kind = Literal["hardware", "placement", "workload", "setting"]
"""What is changed: something to buy, where things lie, what is asked for, or how DeepSpeed is set."""


class Option(NamedTuple):
    """A change that may pay."""

    key: str
    """A short name, unique among the options of a scenario; its file is called after it."""
    words: str
    kind: Kind
    edits: tuple[Edit, ...]
    priced: bool = True
    """Whether a bill shows what it costs."""
    same_work: bool = True
    """Whether the same comes out of it, as it does not where adapters are trained in place of a model."""
    barred: str = ""
    """Why it cannot be, where that is known before it is tried."""


def gathered_words(scenario: LoadedScenario, tier: str, *, ranks: int) -> str:
    """What must be added to "weights on hbm", lest it is taken for a model that is served from HBM."""
    return gathered(tier, ranks=ranks) if isinstance(scenario.scenario.workload, Inference) else ""
