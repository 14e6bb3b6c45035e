"""What changes and purchases are ranked by: throughput, latency or cost."""

from __future__ import annotations

from typing import Literal, get_args

from simoffload.documents import suggest
from simoffload.errors import InputError, shortened
from simoffload.results import SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.workload import Checkpointing, Inference

Objective = Literal["throughput", "latency", "cost"]
"""The most work per time, the shortest time of a step (of a token, an update, a checkpoint), or, among
purchases, the least money per unit of work."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def objective_of(scenario: LoadedScenario, asked: str | None) -> Objective:
    """Return the objective that is asked for; by default latency where one sequence at a time is generated
    (``batch_size`` 1), otherwise throughput.

    Raises InputError for an unknown one.
    """
    if asked is None:
        return "latency" if one_at_a_time(scenario) else "throughput"
    for known in OBJECTIVES:
        if asked == known:
            return known
    given = shortened(str(asked))
    text = f"is not one of {', '.join(OBJECTIVES)}{suggest(given, OBJECTIVES)}"
    raise InputError.at(given, text, path="objective")


def one_at_a_time(scenario: LoadedScenario) -> bool:
    """Return whether one sequence at a time is generated."""
    work = scenario.scenario.workload
    return isinstance(work, Inference) and work.batch_size == 1


def sequences_at_once(scenario: LoadedScenario) -> int:
    """Return the number of sequences that all replicas process together; 0 for checkpoints."""
    work = scenario.scenario.workload
    return 0 if isinstance(work, Checkpointing) else work.batch_size * scenario.scenario.strategy.replicas


def ranking_time(result: SimulationResult, objective: Objective) -> float | None:
    """Return the time [s] by which an objective ranks results: of a step, or per unit of all work that is
    done in parallel; None if it does not fit."""
    return result.step_time_s if objective == "latency" else result.unit_s
