"""Changes of how weights are served: stored with fewer bits, or from the HBM of several GPUs together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from simoffload.documents import Edit
from simoffload.models import ModelShape
from simoffload.models.quantization import QUANTIZATIONS, quantized
from simoffload.planning.evaluator import Evaluator
from simoffload.results import Change, quality_of_weights
from simoffload.scenario import LoadedScenario
from simoffload.strategies import Strategy, strategy_for, strategy_of

ANSWERS_CHANGE = "(answers change)"
"""Fewer bits for each weight are another model, whose answers differ."""


def formats(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the formats with fewer bits in which the strategy's program loads weights, for inference with a
    model that is not quantized."""
    unchanged = Change("precision", "", key="format")
    for name in weight_formats(evaluator.scenario, evaluator.strategy):
        change = in_format(evaluator, unchanged, name)
        yield change._replace(description=f"weights {change.description}")


def together(evaluator: Evaluator) -> Iterator[Change]:
    """Yield strategies by which one GPU, or several together, hold the weights, with the model unchanged and
    with fewer bits, as far as it fits."""
    return (change for kind, name in in_gpus(evaluator) if (change := held_by_gpus(evaluator, kind, name)))


def in_gpus(evaluator: Evaluator) -> Iterator[tuple[str, str]]:
    """Yield the kinds of strategies of inference, each with the formats in which it may hold the weights; ""
    for the scenario's own."""
    for kind in strategy_for("inference") if evaluator.workload.kind == "inference" else ():
        yield from ((kind, name) for name in ("", *weight_formats(evaluator.scenario, class_of(kind))))


def held_by_gpus(evaluator: Evaluator, kind: str, name: str) -> Change | None:
    """Return the change to a strategy by which GPUs hold the weights in a format; None if they cannot, or do
    so already."""
    other, scenario = class_of(kind), evaluator.scenario
    edits = baseline(other, scenario, stored_as(scenario, name))
    section = next((one.value for one in edits if one.path == ("strategy",)), None)
    if section is None:
        return None
    served = other.model_validate(section)
    if served == evaluator.strategy and not name:
        return None
    where = f"divided among {served.gpus} GPUs" if served.gpus > 1 else "in the HBM of one GPU"
    change = Change("placement", f"weights {where} ({kind})", edits, key=kind)
    return in_format(evaluator, change, name) if name else change


def in_format(evaluator: Evaluator, change: Change, name: str) -> Change:
    """Return a change with the weights stored in a format with fewer bits."""
    return change._replace(
        description=", ".join(filter(None, (change.description, f"stored as {name} {ANSWERS_CHANGE}"))),
        edits=(evaluator.model("quantization", name), *change.edits),
        key="-".join(filter(None, (change.key, name))),
        quality=quality_of_weights(name),
    )


def baseline(other: type[Strategy], scenario: LoadedScenario, model: ModelShape) -> tuple[Edit, ...]:
    """Return the edits by which another strategy does the work of a scenario without offloading; none if it
    does not."""
    strategy, work, machine = scenario.scenario.strategy, scenario.scenario.workload, scenario.machine
    offers = chain.from_iterable(other.instead(strategy, model, work, machine, strategy.gpus))
    changes = (change for one in offers if one.purpose == "baseline" for change in one.changes)
    return next((change.edits for change in changes), ())


def class_of(kind: str) -> type[Strategy]:
    """Return the strategy of a registered kind."""
    strategy = strategy_of(kind)
    assert strategy is not None
    return strategy


def stored_as(scenario: LoadedScenario, name: str) -> ModelShape:
    """Return the model with its weights in a format; "" stands for its own."""
    return quantized(scenario.model, QUANTIZATIONS[name]) if name else scenario.model


def weight_formats(scenario: LoadedScenario, strategy: Strategy | type[Strategy]) -> tuple[str, ...]:
    """Return the names of formats that may replace the data type of the weights."""
    unchanged = scenario.scenario.workload.kind != "inference" or scenario.model.quantization is not None
    return () if unchanged else strategy.traits.formats
