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
    for name in weight_formats(evaluator.scenario, evaluator.strategy):
        edit = evaluator.model("quantization", name)
        description = f"weights stored as {name} {ANSWERS_CHANGE}"
        yield Change(
            "precision", description, (edit,), key=f"format-{name}", quality=quality_of_weights(name)
        )


def together(evaluator: Evaluator) -> Iterator[Change]:
    """Yield strategies by which one GPU, or several together, hold the weights, with the model unchanged and
    with fewer bits, as far as it fits."""
    scenario, strategy, work = evaluator.scenario, evaluator.strategy, evaluator.workload
    if work.kind != "inference":
        return
    for kind in strategy_for(work.kind):
        other = strategy_of(kind)
        assert other is not None
        for name in ("", *weight_formats(scenario, other)):
            stored = (evaluator.model("quantization", name),) if name else ()
            model = quantized(scenario.model, QUANTIZATIONS[name]) if name else scenario.model
            edits = baseline(other, scenario, model)
            for section in (one.value for one in edits if one.path == ("strategy",)):
                served = other.model_validate(section)
                if served == strategy and not name:
                    continue
                where = f"divided among {served.gpus} GPUs" if served.gpus > 1 else "in the HBM of one GPU"
                description = f"weights {where} ({kind})"
                description += f", stored as {name} {ANSWERS_CHANGE}" if name else ""
                key = f"{kind}-{name}" if name else kind
                quality = quality_of_weights(name) if name else ""
                yield Change("placement", description, (*stored, *edits), key=key, quality=quality)


def baseline(other: type[Strategy], scenario: LoadedScenario, model: ModelShape) -> tuple[Edit, ...]:
    """Return the edits by which another strategy does the work of a scenario without offloading; none if it
    does not."""
    strategy, work, machine = scenario.scenario.strategy, scenario.scenario.workload, scenario.machine
    offers = chain.from_iterable(other.instead(strategy, model, work, machine, strategy.gpus))
    changes = (change for one in offers if one.purpose == "baseline" for change in one.changes)
    return next((change.edits for change in changes), ())


def weight_formats(scenario: LoadedScenario, strategy: Strategy | type[Strategy]) -> tuple[str, ...]:
    """Return the names of formats that may replace the data type of the weights."""
    unchanged = scenario.scenario.workload.kind != "inference" or scenario.model.quantization is not None
    return () if unchanged else strategy.traits.formats
