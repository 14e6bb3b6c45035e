"""Changes of how weights are served: stored with fewer bits, or from the HBM of several GPUs together."""

from __future__ import annotations

from collections.abc import Iterator

from simoffload.models.quantization import QUANTIZATIONS, quantized
from simoffload.planning.evaluator import Evaluator
from simoffload.results import Change
from simoffload.scenario import LoadedScenario
from simoffload.strategies import Strategy, strategy_for, strategy_of


def formats(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the formats with fewer bits in which the strategy's program loads weights, for inference with a
    model that is not quantized."""
    for name in _formats(evaluator.scenario, evaluator.strategy):
        edit = evaluator.model("quantization", name)
        yield Change("precision", f"weights stored as {name}", (edit,), key=f"format-{name}")


def other_ways(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield ``formats`` and ``together``, as options of ``advise``."""
    evaluator = Evaluator(scenario)
    yield from (one._replace(kind="workload") for one in formats(evaluator))
    yield from together(evaluator)


def together(evaluator: Evaluator) -> Iterator[Change]:
    """Yield strategies by which the GPUs of the machine hold the weights together, with the model unchanged
    and with fewer bits, as far as it fits."""
    scenario, strategy, work = evaluator.scenario, evaluator.strategy, evaluator.workload
    if work.kind != "inference" or strategy.gpus == scenario.machine.gpus == 1:
        return
    for kind in strategy_for(work.kind):
        other = strategy_of(kind)
        assert other is not None
        for name in ("", *_formats(scenario, other)):
            stored = (evaluator.model("quantization", name),) if name else ()
            model = quantized(scenario.model, QUANTIZATIONS[name]) if name else scenario.model
            edits = other.baseline(strategy, model, work, scenario.machine)
            for section in (one.value for one in edits if one.path == ("strategy",)):
                gpus = other.model_validate(section).gpus
                description = f"weights divided among {gpus} GPUs ({kind})"
                description += f", stored as {name}" if name else ""
                key = f"{kind}-{name}" if name else kind
                yield Change("placement", description, (*stored, *edits), key=key)


def _formats(scenario: LoadedScenario, strategy: Strategy | type[Strategy]) -> tuple[str, ...]:
    """Return the names of formats that may replace the data type of the weights."""
    unchanged = scenario.scenario.workload.kind != "inference" or scenario.model.quantization is not None
    return () if unchanged else strategy.formats
