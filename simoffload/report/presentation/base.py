"""What reports say about a result, whatever kind of work it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from simoffload.report.document import Entry
from simoffload.report.formatting import percent, plural
from simoffload.results.inference import InferenceResult
from simoffload.results.passes import PassResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult

__all__ = ["Metric", "Presentation", "Shown", "TierAssignment", "batch_of", "metrics_of", "weights_of"]

Shown = Mapping[str, tuple[str, Callable[[float], str]]]
"""What metrics are called, by their keys, and how their values are written."""


class Metric(NamedTuple):
    """A metric as a reader sees it."""

    key: str
    description: str
    value: str
    share: str = ""
    """Of the step, for what is a part of it."""


def weights_of(result: SimulationResult) -> str:
    """Where the weights are: a tier, or "resident" for a whole copy in each GPU without ZeRO."""
    if result.refused:
        return result.target
    strategy = result.provenance.scenario.get("strategy")
    kind = strategy.get("kind") if isinstance(strategy, Mapping) else None
    return "resident" if kind == "resident" else result.target


def batch_of(result: InferenceResult | TrainingResult) -> str:
    """ "batch 2 × 8 GPUs", or "batch 2 on 8 GPUs" for a batch that they share."""
    gpus = plural(result.gpus, "GPU")
    if result.replicas == result.gpus:
        return f"batch {result.batch_size} × {gpus}"
    each = f" × {plural(result.replicas, 'replica')}" if result.replicas > 1 else ""
    return f"batch {result.batch_size}{each} on {gpus}"


def metrics_of(
    values: Mapping[str, float | None],
    shown: Shown,
    *,
    parts: Collection[str] = (),
    total: float | None = None,
) -> tuple[Metric, ...]:
    """All of ``shown`` that have a value; ``parts`` with their shares of ``total``, if that is known."""
    return tuple(
        Metric(key, description, show(value), percent(value / total) if total and key in parts else "")
        for key, (description, show) in shown.items()
        if (value := values.get(key)) is not None
    )


class TierAssignment(NamedTuple):
    """Something that can be offloaded, and the tier that holds it."""

    what: str
    tier: str


class Presentation(NamedTuple):
    """How a report presents one result."""

    kind: str
    """ "inference", "prefill" (inference of one token), "training", "checkpoint"."""
    verb: str
    """What the model does on the platform."""
    work: tuple[str, ...]
    """The work, in a few words each."""
    took: str
    """What took how long; empty where there are no times."""
    step: str
    """What ``SimulationResult.step_time_s`` is: "TPOT", "TTFT", "step", "checkpoint"."""
    compared: str
    """What ``SimulationResult.compared_s`` is, as it begins a sentence."""
    places: tuple[TierAssignment, ...]
    """The weights first."""
    labels: tuple[str, ...]
    """Names that may tell it from others, the shortest first."""
    exact: str
    """The name that says most."""
    metrics: tuple[Metric, ...]
    """All that have a value, in the order of reading."""
    cells: Mapping[str, Entry]
    """Heads and cells of a row of a comparison, the same heads for all results of a kind."""
    legend: str
    """What else the columns of a comparison are."""
    formulas: tuple[str, ...]
    """Metrics that are explained under a comparison."""
    shown: PassResult | None
    """The pass whose operations are drawn."""
    unit_name: str
    """What ``SimulationResult.step`` is: a "pass", or a "step" or "checkpoint" of several."""
    parts: str = "layers"
    """What the blocks of that pass are."""
    note: str = ""
    """What else must be known about the metrics."""
    how: str = ""
    """What else must be known about the places."""

    @property
    def called(self) -> str:
        """What a sentence calls ``SimulationResult.step``; empty if its own name does."""
        return "" if self.unit_name == "pass" else f"the {self.unit_name}"
