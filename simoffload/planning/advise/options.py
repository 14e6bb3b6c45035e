"""What could be changed about a scenario without a purchase; each option is a scenario of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from simoffload.documents import Edit
from simoffload.planning.fit import smallest_changes
from simoffload.scenario import LoadedScenario
from simoffload.strategies.placement import Placement
from simoffload.strategies.zero import gathered
from simoffload.workload import Checkpointing, Inference, Training

__all__ = ["Option", "placement_words", "remedies", "settings", "workloads"]

Kind = Literal["hardware", "placement", "workload", "setting"]
"""What is changed: something to buy, where things lie, what is asked for, or how DeepSpeed is set."""


_KINDS: Mapping[str, Kind] = {
    "tier": "placement",
    "stage": "setting",
    "setting": "setting",
    "batch": "workload",
    "context": "workload",
    "precision": "workload",
    "lora": "workload",
}
"""By the first kind of a change of ``fit``; the others are of the machine."""


class Option(NamedTuple):
    """A change that may pay."""

    key: str
    """A short name, unique among the options of a scenario; its file is called after it."""
    description: str
    kind: Kind
    edits: tuple[Edit, ...]
    priced: bool = True
    """Whether a bill shows what it costs."""
    same_work: bool = True
    """Whether the same comes out of it, as it does not where adapters are trained in place of a model."""
    barred: str = ""
    """Why it cannot be, where that is known before it is tried."""


def placement_words(scenario: LoadedScenario, placement: Placement, *, ranks: int) -> str:
    """ "weights on dram"; of HBM also what tells it from a model that is served from there."""
    work, (weights, optimizer) = scenario.scenario.workload, placement
    description = f"{'checkpoints' if isinstance(work, Checkpointing) else 'weights'} on {weights}"
    description += f", optimizer on {optimizer}" if optimizer else ""
    return description + (gathered(weights, ranks=ranks) if isinstance(work, Inference) else "")


def settings(scenario: LoadedScenario, *, storage: bool, direct: bool) -> Iterator[Option]:
    """Those of the strategy, one at a time; ``storage`` and ``direct`` as ``Strategy.settings`` says."""
    for one in scenario.scenario.strategy.settings(scenario.model, storage=storage, direct=direct):
        yield Option(one.key, one.description, "setting", one.edits)


def workloads(scenario: LoadedScenario) -> Iterator[Option]:
    """More work at a time."""
    work = scenario.scenario.workload
    if isinstance(work, Checkpointing):
        return
    strategy = scenario.scenario.strategy
    free = strategy.release_fixed_batch("batch_size", "gradient_accumulation_steps")
    each = " per GPU" if strategy.replicas == strategy.gpus else ""
    for factor in (2, 4, 8):
        batch = factor * work.batch_size
        description = f"batch {batch}{each} instead of {work.batch_size}"
        yield Option(
            f"batch-{batch}", description, "workload", (Edit.at("workload.batch_size", batch), *free)
        )
    if isinstance(work, Training):
        steps = 2 * work.gradient_accumulation_steps
        description = f"gradients accumulated over {steps} micro-steps instead of {steps // 2}"
        changed = Edit.at("workload.gradient_accumulation_steps", steps)
        yield Option(f"accumulate-{steps}", description, "workload", (changed, *free))


def remedies(scenario: LoadedScenario) -> Iterator[Option]:
    """What ``fit`` would change, of each kind the least; other places only where they are no options
    anyway."""
    alone = not scenario.scenario.strategy.uses_storage
    for number, one in enumerate(smallest_changes(scenario), start=1):
        if one.kind == "tier" and not alone:
            continue
        kind = _KINDS.get(one.kind.partition(" + ")[0], "hardware")
        # A server or a drive that is only called larger has no price of its own.
        priced = all(edit.path[-1] != "capacity" for edit in one.edits)
        same = not one.kind.startswith("lora")
        yield Option(f"fit-{number}", one.description, kind, one.edits, priced=priced, same_work=same)
