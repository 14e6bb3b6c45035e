"""Options that cost nothing: settings of the strategy and the size of the work."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.documents import Edit
from simoffload.planning.advise.options import Option
from simoffload.scenario import LoadedScenario
from simoffload.workload import Checkpointing, Training

__all__ = ["settings", "workloads"]


def settings(scenario: LoadedScenario, *, storage: bool, direct: bool) -> Iterator[Option]:
    """Those of the strategy, one at a time; ``storage`` and ``direct`` as ``Strategy.settings`` says."""
    for one in scenario.scenario.strategy.settings(scenario.model, storage=storage, direct=direct):
        yield Option(one.key, one.words, "setting", one.edits)


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
        words = f"batch {batch}{each} instead of {work.batch_size}"
        yield Option(f"batch-{batch}", words, "workload", (Edit.at("workload.batch_size", batch), *free))
    if isinstance(work, Training):
        steps = 2 * work.gradient_accumulation_steps
        words = f"gradients accumulated over {steps} micro-steps instead of {steps // 2}"
        changed = Edit.at("workload.gradient_accumulation_steps", steps)
        yield Option(f"accumulate-{steps}", words, "workload", (changed, *free))
