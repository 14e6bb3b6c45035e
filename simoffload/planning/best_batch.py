"""The batch with the highest throughput among those that fit and keep service levels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from simoffload.errors import InputError
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.quantities import quantity_at
from simoffload.planning.reach import Trial, Trials
from simoffload.planning.service_levels import ServiceLevel, parse_service
from simoffload.planning.sizing import Limit, batch_limit
from simoffload.progress import Watcher, stage, watched_by
from simoffload.results import by_name
from simoffload.scenario import ScenarioSource, loaded
from simoffload.simulation import fit
from simoffload.strategies import held
from simoffload.workload import Checkpointing

_PATH = "workload.batch_size"
_EQUAL = 1.001
"""Ratio of throughputs up to which the smaller batch is the better one: our choice."""
_HALVINGS = 4
"""Steps of the search around a batch that is better than its neighbours: our choice."""


class BestBatch(NamedTuple):
    """A BestBatch is the batch of a placement with the highest throughput, all other settings unchanged."""

    name: str
    model: str
    platform: str
    target: str
    """Tiers of the weights, and of training of the optimizer."""
    service: tuple[ServiceLevel, ...]
    """Service levels that the batch keeps."""
    batch: Limit
    """Number of sequences on each GPU, and the largest one that fits."""
    best: Trial | None
    """Batch with the highest throughput; None if none fits and keeps the service levels."""
    nearest: Trial | None
    """Batch that misses the service levels least, where none keeps them; None if none fits."""
    stopped: str = ""
    """Limit that a batch reached, or that ended the search; empty if there was none."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "name model platform target batch_size=batch"),
            "slo": [one.text for one in self.service],
            "best": None if self.best is None else self.best.to_dict(),
            "nearest": None if self.nearest is None else self.nearest.to_dict(),
            **by_name(self, "stopped"),
        }


def best_batch(
    scenario: ScenarioSource,
    *,
    slo: str | Sequence[str] = (),
    progress: Watcher | None = None,
    evaluator: Evaluator | None = None,
) -> BestBatch:
    """Find the batch with the highest throughput that fits and keeps service levels such as ``tpot=1s``.

    Batches that double from one to the next are simulated up to the largest one that fits, then those around
    the best one; of equal ones the smallest counts. Raises InputError for a scenario of checkpoints, for what
    its program refuses, and for an unknown service level.
    """
    evaluator = evaluator or Evaluator(loaded(scenario))
    scenario, workload = evaluator.scenario, evaluator.workload
    if isinstance(workload, Checkpointing):
        raise InputError([scenario.document.problem(("workload", "kind"), "checkpoints have no batch")])
    kind = type(fit(scenario))
    texts = (slo,) if isinstance(slo, str) else slo
    service = tuple(parse_service(text, kind) for text in texts)
    limit, plan = batch_limit(evaluator, workload), evaluator.plan
    search = _Batches(evaluator, service, evaluator.strategy.sizes(workload.batch_size).unit)
    most = 2 * (limit.most or 0).bit_length() + 2 * _HALVINGS  # those that double, then those between them
    with watched_by(progress), stage(most):
        best, nearest = (None, None) if limit.most is None else search.up_to(limit.most, limit.now)
    return BestBatch(
        name=scenario.name,
        model=scenario.model.name,
        platform=scenario.machine.platform,
        target="+".join(filter(None, (held.target(plan), held.optimizer_target(plan)))),
        service=service,
        batch=limit,
        best=best,
        nearest=nearest,
        stopped=search.stopped,
    )


class _Batches(Trials):
    """_Batches are trials of batches, in steps of the parts of which one consists."""

    def __init__(self, evaluator: Evaluator, service: Sequence[ServiceLevel], unit: int) -> None:
        super().__init__(evaluator, quantity_at(evaluator, _PATH), service)
        self._unit = unit

    def up_to(self, most: int, now: int) -> tuple[Trial | None, Trial | None]:
        """Return the best batch, or where none keeps the service levels, the one that misses them least."""
        unit = self._unit if most >= self._unit else 1
        parts = [1 << power for power in range((most // unit).bit_length())]
        tried = sorted({*(unit * count for count in parts), most, *([now] if now <= most else [])})
        for _ in range(_HALVINGS):
            kept = [count for count in tried if self.at(count).kept]
            if not kept:
                break
            best = self._best(kept)
            at = tried.index(best)
            if at == len(tried) - 1:
                break
            above = tried[at + 1]
            if not self.at(above).kept:
                between = range(best // unit + 1, -(-above // unit))
                more = bisect_left(between, True, key=lambda count: not self.at(unit * count).kept)
                tried = sorted({*tried, *(unit * count for count in between[more - 1 : more] if more)})
                break
            beside = (self.between(best, other) for other in (tried[max(0, at - 1)], above))
            fresh = {one // unit * unit for one in beside if one is not None} - {*tried, 0}
            if not fresh:
                break
            tried = sorted({*tried, *fresh})
        kept = [count for count in tried if self.at(count).kept]
        if kept:
            return self.at(self._best(kept)), None
        answered = (one for one in map(self.at, tried) if one.status in {"", "missed"})
        return None, min(answered, key=lambda one: one.missed, default=None)

    def _best(self, counts: Sequence[int]) -> int:
        """Return the smallest count whose throughput is about the highest."""
        times = {count: self._unit_s(self.at(count)) for count in counts}
        least = min(times.values())
        return min(count for count, time in times.items() if time <= _EQUAL * least)

    @staticmethod
    def _unit_s(one: Trial) -> float:
        return (one.result.unit_s if one.result is not None else None) or inf
