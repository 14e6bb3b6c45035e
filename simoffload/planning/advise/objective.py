"""What changes and purchases are ranked by: throughput, latency, cost, or any metric."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simoffload.documents import suggest
from simoffload.errors import InputError, shortened
from simoffload.planning.costs import COST_METRICS, Economics
from simoffload.planning.service_levels import limited_metrics, short_name
from simoffload.results import KINDS, Metric, SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.workload import Checkpointing, Inference

_NAMED = ("throughput", "latency", "cost")
"""The most work per time, the shortest time of a step (of a token, an update, a checkpoint), or, among
purchases, the least money per unit of work."""
_MOST = 1e6
"""The largest gain that is given: that of a time that vanishes."""


@dataclass(frozen=True)
class Objective:
    """An Objective is what changes and purchases are ranked by."""

    name: str
    """The name of the metric, or "throughput", "latency" or "cost"."""
    metric: Metric | None = None

    def to_dict(self) -> str:
        """Return its name as a plain value."""
        return self.name

    @property
    def is_latency(self) -> bool:
        """Whether it is the time of a step of one sequence."""
        return self.name == "latency"

    @property
    def is_of_costs(self) -> bool:
        """Whether it is a metric of costs, of which no simulation of a part says what the whole has."""
        return self.name in COST_METRICS and self.metric is COST_METRICS[self.name]

    def by(self, result: SimulationResult) -> str:
        """Return the name of the metric that it is of a result."""
        if self.metric is not None:
            return self.metric.name
        return result.step_by if self.is_latency else result.unit_by

    def value(self, result: SimulationResult, cost: Economics | None) -> float | None:
        """Return its value of a result that costs so much; None without one, or if it does not fit."""
        if not result.fits:
            return None
        if not self.is_of_costs:
            return result.metrics().get(self.by(result))
        return cost.metrics().get(self.name) if cost is not None else None

    def ranking(self, result: SimulationResult, cost: Economics | None = None) -> float | None:
        """Return the number by which a result is ranked, the smallest first; None without a value.

        It is the value, or 1 / value of a metric whose larger values are better.
        """
        value = self.value(result, cost)
        if value is None or self.metric is None or not self.metric.larger:
            return value
        return 1 / value if value else math.inf

    def speed(self, result: SimulationResult, cost: Economics | None = None) -> float:
        """Return 1 / ``ranking``: the largest is the best; zero without a value."""
        number = self.ranking(result, cost)
        if number is None:
            return 0.0
        return 1 / number if number else math.inf

    def bound(self, least: SimulationResult, *, times: float = 1) -> float:
        """Return the largest ``speed`` of results that take no less time than ``least`` per step, with up to
        so many ``times`` as many sequences."""
        if self.is_of_costs:
            return math.inf
        return self.speed(least) * (times if self.grows_with_batch(least) else 1)

    def grows_with_batch(self, result: SimulationResult) -> bool:
        """Return whether a larger batch may be better without being faster."""
        if self.metric is None or self.metric.name == result.unit_by:
            return not self.is_latency
        return self.metric.unit.name != "s"

    def gain(self, before: float | None, after: float | None) -> float | None:
        """Return how many times better a ranking has become, at most a million; None without one before, and
        0 without one after."""
        if before is None:
            return None
        return 0.0 if after is None else before / max(after, before / _MOST)


def objective_of(scenario: LoadedScenario, asked: str | None) -> Objective:
    """Return the objective that is asked for, a metric of which a direction is better among them; by default
    latency where one sequence at a time is generated (``batch_size`` 1), otherwise throughput.

    Raises InputError for an unknown one.
    """
    if asked is None:
        asked = "latency" if one_at_a_time(scenario) else "throughput"
    if asked in _NAMED:
        return Objective(asked)
    kind = next(one for one in KINDS if one.kind == scenario.scenario.workload.kind)
    metrics = limited_metrics((*kind.declared.values(), *COST_METRICS.values()))
    for name, metric in metrics.items():
        if asked in (name, metric.name):
            return Objective(metric.name, metric)
    given, known = shortened(str(asked)), (*_NAMED, *metrics)
    raise InputError.at(given, f"is not one of {', '.join(known)}{suggest(given, known)}", path="--objective")


def check_improvable(objective: Objective, result: SimulationResult, cost: Economics) -> None:
    """Raise InputError if a scenario that fits has no value of a metric, or one that no factor improves."""
    number, metric = objective.ranking(result, cost), objective.metric
    if metric is not None and result.fits and (not number or math.isinf(number)):
        value = objective.value(result, cost)
        has = "has no value" if value is None else f"is {metric.text(value)}"
        text = f"{has} in this scenario, which no change improves by a factor; name another objective"
        raise InputError.at(short_name(metric), text, path="--objective")


def one_at_a_time(scenario: LoadedScenario) -> bool:
    """Return whether one sequence at a time is generated."""
    work = scenario.scenario.workload
    return isinstance(work, Inference) and work.batch_size == 1


def sequences_at_once(scenario: LoadedScenario) -> int:
    """Return the number of sequences that all replicas process together; 0 for checkpoints."""
    work = scenario.scenario.workload
    return 0 if isinstance(work, Checkpointing) else work.batch_size * scenario.scenario.strategy.replicas
