"""The largest batch, context and model that a platform holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.planning.fit.evaluator import Evaluator
from simoffload.scenario import LoadedScenario
from simoffload.workload import Checkpointing, Inference

__all__ = ["Largest", "Limit", "largest"]

_MOST_SEQUENCES, _MOST_TOKENS, _MOST_LAYERS = 1_000_000, 10_000_000, 100_000
"""As many as a scenario may have."""


class Limit(NamedTuple):
    """How large one quantity of a scenario can be, with all others as they are."""

    now: int
    most: int | None
    """None: not even 1 fits."""
    reaches: int
    """As much as a scenario may have: a ``most`` of that much is not the memory's."""
    edits: tuple[Edit, ...]
    """What makes it so large, as ``--set`` takes it."""


class Largest(NamedTuple):
    """What a platform holds, with the weights where the scenario has them."""

    name: str
    model: str
    platform: str
    target: str
    ranks: int
    batch: Limit
    """Sequences on each GPU."""
    context: Limit
    """[tokens] of each sequence: prompt and output, or the sequence that is trained on."""
    made_for: int | None
    """[tokens] for which the model was made; None where it has no such limit."""
    layers: Limit
    """Of the model's width."""
    parameters: int | None
    """[elements] of the model of so many layers."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; ``set`` is what ``--set`` takes."""
        limits = {"batch_size": self.batch, "context": self.context, "num_hidden_layers": self.layers}
        return {
            "name": self.name,
            "model": self.model,
            "platform": self.platform,
            "target": self.target,
            "ranks": self.ranks,
            **{
                name: {"now": one.now, "most": one.most, "set": [each.assignment for each in one.edits]}
                for name, one in limits.items()
            },
            "made_for": self.made_for,
            "parameters": self.parameters,
        }


def largest(scenario: LoadedScenario) -> Largest:
    """Find the largest batch, the longest context and the deepest model that fit.

    Each with the rest as it is; the context grows with the prompt, the model with ``num_hidden_layers``.
    Raises InputError for a scenario of checkpoints and for what DeepSpeed would refuse.
    """
    workload = scenario.scenario.workload
    if isinstance(workload, Checkpointing):
        text = "checkpoints have neither batch nor context"
        raise InputError([scenario.document.problem(("workload", "kind"), text)])
    plan = scenario.plan()
    target = f"{plan.target}+{plan.optimizer_target}" if plan.optimizer_target else plan.target
    evaluator = Evaluator(scenario)
    batch = _limit(evaluator, evaluator.batch, now=workload.batch_size, most=_MOST_SEQUENCES)
    key = "prompt_length" if isinstance(workload, Inference) else "sequence_length"
    length: int = getattr(workload, key)
    tokens = _limit(evaluator, lambda count: (Edit(("workload", key), count),), now=length, most=_MOST_TOKENS)
    layers = _limit(
        evaluator,
        lambda count: (evaluator.model("num_hidden_layers", count),),
        now=scenario.model.num_hidden_layers,
        most=_MOST_LAYERS,
    )
    deepest = None if layers.most is None else evaluator.changed_by(*layers.edits).scenario.model
    return Largest(
        name=scenario.name,
        model=scenario.model.name,
        platform=scenario.machine.platform,
        target=target,
        ranks=scenario.scenario.strategy.ranks,
        batch=batch,
        context=_split_tokens(tokens, workload.output_length if isinstance(workload, Inference) else 0),
        made_for=scenario.model.max_position_embeddings,
        layers=layers,
        parameters=None if deepest is None else deepest.num_parameters,
    )


def _limit(evaluator: Evaluator, change: Callable[[int], tuple[Edit, ...]], *, now: int, most: int) -> Limit:
    found = evaluator.largest(change, start=now, most=most)
    return Limit(now, found, most, () if found is None else change(found))


def _split_tokens(tokens: Limit, output: int) -> Limit:
    """Of prompt and output what was found for the prompt."""
    most = None if tokens.most is None else tokens.most + output
    return Limit(tokens.now + output, most, tokens.reaches + output, tokens.edits)
