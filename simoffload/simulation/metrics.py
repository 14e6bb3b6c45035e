"""What is measured of each kind of workload: the phases of a plan become the metrics of a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from simoffload.errors import InputError, Problem, WorkLimitError
from simoffload.results.capacity import peak_uses, tier_uses
from simoffload.results.checkpoint import CheckpointResult, Checkpoints
from simoffload.results.endurance import lifetime_warnings
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TimedPhase, TrainingResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import common, identity, memory_stages
from simoffload.simulation.checkpoint import checkpoint_facts, checkpoint_lifetimes, checkpoint_times
from simoffload.simulation.runner import Runner
from simoffload.simulation.training_overheads import around_training
from simoffload.simulation.write_cache import steps_with_caches
from simoffload.strategies.base import Phase, PhaseSeries, Plan
from simoffload.units import format_bytes, format_number, format_seconds

__all__ = ["Measures", "measures_of", "refused"]

R = TypeVar("R", bound=SimulationResult)
_PICO = 1e-12


class Measures(ABC, Generic[R]):
    """Makes the result of a scenario from its plan, before and after the phases are carried out."""

    def __init__(self, scenario: LoadedScenario) -> None:
        self.scenario = scenario

    @abstractmethod
    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> R:
        """The result with what results of all kinds share, and the sizes of the work."""

    @abstractmethod
    def capacity(self, plan: Plan) -> R:
        """The result without times."""

    @abstractmethod
    def timed(self, plan: Plan, result: R, runner: Runner) -> R:
        """Add the times of all phases to what fits. Raises SimulationError if the engine cannot finish."""


def measures_of(scenario: LoadedScenario) -> Measures[SimulationResult]:
    """Those of the scenario's kind of workload."""
    return _MEASURES[scenario.scenario.workload.kind](scenario)


def refused(scenario: LoadedScenario, error: InputError | WorkLimitError) -> SimulationResult:
    """The result of a scenario that has none: it says why, and has neither sizes nor times.

    DeepSpeed or its strategy refuses it, or planning and simulating it takes more than its limits allow.
    """
    weights, optimizer = scenario.places
    messages: tuple[str, ...] = (str(error),)
    if isinstance(error, InputError):
        messages = tuple(dict.fromkeys(_problem_text(scenario, one) for one in error.problems))
    fields = {
        **identity(scenario, target=weights),
        "capacity": (),
        "advice": (),
        "warnings": scenario.warnings,
        "refused": messages,
    }
    return measures_of(scenario).empty(fields, optimizer=optimizer)


def _problem_text(scenario: LoadedScenario, problem: Problem) -> str:
    """A problem by its key; where it is in another file than the scenario's, with its place."""
    if problem.path in scenario.document.origins.values():
        return str(problem)
    return f"{problem.key}: {problem.message}" if problem.key else problem.message


class _OfInference(Measures[InferenceResult]):
    """Prefill and decode steps."""

    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> InferenceResult:  # noqa: ARG002
        workload: Any = self.scenario.scenario.workload
        return InferenceResult(
            **common,
            batch_size=workload.batch_size,
            prompt_length=workload.prompt_length,
            output_length=workload.output_length,
        )

    def capacity(self, plan: Plan) -> InferenceResult:
        result = self.empty(common(self.scenario, plan))
        bound = plan.facts.spread_bound
        if bound is None or not result.fits:
            return result
        warnings = (*result.warnings, _gathered(result.ranks, bound))
        return replace(result, spread_bound_tokens_per_s=bound, warnings=warnings)

    def timed(self, plan: Plan, result: InferenceResult, runner: Runner) -> InferenceResult:
        passes = [one for one in plan.phases if isinstance(one, Phase)]
        (series,) = (one for one in plan.phases if isinstance(one, PhaseSeries))
        found = dict(zip((one.kind for one in passes), runner.phases(passes), strict=True))
        decoding = runner.series(series)
        result = replace(
            result,
            first_pass=found.get("first pass"),
            prefill=found["prefill"],
            decode=tuple(one.result for one in decoding.simulated),
            decode_total_s=decoding.total * _PICO,
            decode_bound=decoding.bound,
            decode_estimated=decoding.estimated,
            timelines=runner.timelines,
            work=tuple(runner.work),
        )
        return replace(result, warnings=(*result.warnings, *_whole_copies_fit(plan, result, runner)))


class _OfTraining(Measures[TrainingResult]):
    """The phases of one step of the steady state."""

    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> TrainingResult:
        workload: Any = self.scenario.scenario.workload
        return TrainingResult(
            **common,
            optimizer_target=optimizer,
            batch_size=workload.batch_size,
            sequence_length=workload.sequence_length,
            gradient_accumulation_steps=workload.gradient_accumulation_steps,
        )

    def capacity(self, plan: Plan) -> TrainingResult:
        scenario, facts = self.scenario, plan.facts
        fields, stages = common(scenario, plan), memory_stages(scenario, plan)
        tiers, saved = scenario.machine.tiers, plan.saved
        if saved is not None:
            fields["warnings"] += saved.notes
        return replace(
            self.empty(fields, optimizer=plan.optimizer_target),
            forward_flops=facts.forward_flops,
            backward_flops=facts.backward_flops,
            recomputed_flops=facts.recomputed_flops,
            traffic=facts.traffic,
            estimates=facts.estimates,
            requests=facts.requests,
            memory_stages=tuple((stage.name, tier_uses(stage.terms, tiers)) for stage in stages),
            dataset=scenario.scenario.dataset,
            checkpoint=checkpoint_facts(saved) if saved is not None else None,
        )

    def timed(self, plan: Plan, result: TrainingResult, runner: Runner) -> TrainingResult:
        def step(used: Plan) -> TrainingResult:
            runner.restart()
            phases = [one for one in used.phases if isinstance(one, Phase)]
            found = zip(phases, runner.phases(phases), strict=True)
            return replace(
                result, phases=tuple(TimedPhase(one.kind, one.repeat, each) for one, each in found)
            )

        workload: Any = self.scenario.scenario.workload
        steady = workload.write_caches == "steady"
        timed = steps_with_caches(plan, result, step, steady=steady)
        timed = around_training(self.scenario, plan, timed, runner)
        return replace(timed, timelines=runner.timelines, work=tuple(runner.work))


class _OfCheckpoints(Measures[CheckpointResult]):
    """Saving one, restoring from it, and what both mean for a run."""

    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> CheckpointResult:  # noqa: ARG002
        workload: Any = self.scenario.scenario.workload
        nothing = Checkpoints(
            tier=common["target"],
            contents=workload.contents,
            writer=workload.writer.type,
            mode=workload.mode,
            keep=workload.keep,
            size=0,
            written_by_host=(),
            parts=(),
        )
        return CheckpointResult(**common, checkpoint=nothing)

    def capacity(self, plan: Plan) -> CheckpointResult:
        assert plan.saved is not None
        return CheckpointResult(**common(self.scenario, plan), checkpoint=checkpoint_facts(plan.saved))

    def timed(self, plan: Plan, result: CheckpointResult, runner: Runner) -> CheckpointResult:
        assert plan.saved is not None
        found, warnings = checkpoint_times(plan.saved, runner)
        drive_lifetime = checkpoint_lifetimes(plan.saved, found)
        return replace(
            result,
            checkpoint=found,
            drive_lifetime=drive_lifetime,
            warnings=(*result.warnings, *warnings, *lifetime_warnings(drive_lifetime)),
            timelines=runner.timelines,
            work=tuple(runner.work),
        )


_MEASURES: Mapping[str, type[Measures[Any]]] = {
    "inference": _OfInference,
    "training": _OfTraining,
    "checkpoint": _OfCheckpoints,
}


def _gathered(ranks: int, bound: float) -> str:
    """What weights in HBM are under ZeRO-3, lest they are taken for a model that is served from HBM."""
    most = f"{bound:,.0f}" if bound >= 100 else f"{bound:.3g}"
    return (
        f"weights in HBM under ZeRO-3: each of {ranks} GPUs gathers every layer over the links between GPUs "
        "for every token, which is not tensor parallelism; weights spread over the GPUs and not gathered "
        f"could give up to {most} tokens/s in decode by their bytes alone (a bound, no prediction)"
    )


def _whole_copies_fit(plan: Plan, result: InferenceResult, runner: Runner) -> tuple[str, ...]:
    """Warn when weights are offloaded although a whole copy fits in each GPU."""
    copies = plan.whole_copies
    if copies is None or not all(use.fits for use in peak_uses(copies.memory_stages, plan.machine.tiers)):
        return ()
    assert result.step is not None
    kind = "decode" if result.decode else "prefill"
    phase = next(one for one in copies.phases if one.kind == kind)
    fast = runner.time_s(phase.step(1) if isinstance(phase, PhaseSeries) else phase)
    size, times = format_bytes(plan.model.weight_bytes), result.step.time_s / fast
    text = f"offloading hurts here: a copy of the weights ({size}) fits on every GPU; without ZeRO"
    return (f"{text} a pass takes {format_seconds(fast)}, {format_number(times)} times less",)
