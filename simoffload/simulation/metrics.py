"""Metrics of each kind of workload, computed from the phases of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Any, Generic, TypeVar

from simoffload.errors import InputError, PlacementError, Problem, WorkLimitError
from simoffload.extending import at, works
from simoffload.results import InferenceResult, SimulationResult, TrainingResult, aggregate, peak_uses
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import common, identity, not_simulated
from simoffload.simulation.runner import Runner
from simoffload.strategies import Phase, PhaseSeries, Plan
from simoffload.strategies.base import RESIDENT, WHOLE_COPIES, memory_stages, traffic
from simoffload.units import format_bytes, format_number, format_seconds

R = TypeVar("R", bound=SimulationResult)
Steps = TypeVar("Steps", InferenceResult, TrainingResult)
_PICO = 1e-12


class Measures(ABC, Generic[R]):
    """Measures compute the result of a scenario from its plan, before and after the phases are simulated."""

    def __init__(self, scenario: LoadedScenario) -> None:
        self.scenario = scenario

    @abstractmethod
    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> R:
        """Return the result with the fields that all kinds share, and the sizes of the work."""

    @abstractmethod
    def capacity(self, plan: Plan) -> R:
        """Return the result without times."""

    @abstractmethod
    def timed(self, plan: Plan, result: R, runner: Runner) -> R:
        """Add the times of all phases to a result that fits. Raises SimulationError if the engine cannot
        finish."""


def measures_of(scenario: LoadedScenario) -> Measures[SimulationResult]:
    """Return the measures of the scenario's kind of workload."""
    return _measures(scenario.scenario.workload.kind)(scenario)


def _measures(kind: str) -> type[Measures[Any]]:
    """Return the measures of a kind of workload; their module is imported only when needed."""
    if kind == "training":
        from simoffload.simulation.training import TrainingMeasures

        return TrainingMeasures
    if kind == "inference":
        return _InferenceMeasures
    found: type[Measures[Any]] = at(works()[kind].measures)
    return found


def with_additions(scenario: LoadedScenario, plan: Plan, result: Steps, runner: Runner) -> Steps:
    """Add what extensions add to a run with these times. Raises SimulationError."""
    for add in scenario.additions("timed", writes=any(one.written for one in result.traffic)):
        result = add(scenario, plan, result, runner)
    return result


def refused(scenario: LoadedScenario, error: InputError | WorkLimitError) -> SimulationResult:
    """Return the result of a refused scenario: it has the reason, and neither sizes nor times.

    A scenario is refused if DeepSpeed or its strategy refuses it, or if planning and simulating it exceeds
    its limits.
    """
    weights, optimizer = scenario.places
    messages: tuple[str, ...] = (str(error),)
    if isinstance(error, InputError):
        messages = tuple(dict.fromkeys(map(_problem_text, error.problems)))
    fields = {
        **identity(scenario, target=weights),
        "capacity": (),
        "advice": (),
        "warnings": (*scenario.warnings, *not_simulated(scenario)),
        "refused": messages,
    }
    if isinstance(error, PlacementError):  # named by its target, which may be a strategy such as "resident"
        fields["placement_name"] = "" if weights in scenario.machine.tiers else weights
        fields["placement_words"] = WHOLE_COPIES if weights == RESIDENT else ""
    return measures_of(scenario).empty(fields, optimizer=optimizer)


def _problem_text(problem: Problem) -> str:
    """Return the text of a problem with its key."""
    return f"{problem.key}: {problem.message}" if problem.key else problem.message


class _InferenceMeasures(Measures[InferenceResult]):
    """_InferenceMeasures compute the result of prefill and decode steps."""

    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> InferenceResult:  # noqa: ARG002
        workload: Any = self.scenario.scenario.workload
        return InferenceResult(
            **common,
            batch_size=workload.batch_size,
            prompt_length=workload.prompt_length,
            output_length=workload.output_length,
            context=workload.context if workload.room > workload.max_context else None,
            mean_tokens=workload.speculation and workload.tokens_per_step,
            decode_steps=workload.decode_steps,
        )

    def capacity(self, plan: Plan) -> InferenceResult:
        facts = plan.facts
        result = replace(
            self.empty(common(self.scenario, plan)),
            prefill_chunks=facts.chunks,
            prefill_weight_moves=facts.weight_moves,
            cache_blocks=facts.cache_blocks,
            gathers=self.scenario.scenario.strategy.traits.gathers,
            rates_prompts=self.scenario.scenario.strategy.traits.rates_prompts,
            first_pass_why=facts.first_pass,
        )
        bound = facts.spread_bound
        if bound is None or not result.fits:
            return result
        warnings = (*result.warnings, _gathered(result.ranks, bound, result.gathers or "the strategy"))
        return replace(result, spread_bound=bound, warnings=warnings)

    def timed(self, plan: Plan, result: InferenceResult, runner: Runner) -> InferenceResult:
        self.scenario.check_passes()
        passes = [one for one in plan.phases if isinstance(one, Phase)]
        (series,) = (one for one in plan.phases if isinstance(one, PhaseSeries) and one.kind == "decode")
        if not runner.complete:
            passes = [one for one in passes if one.kind in {"allocation", "prefill", "draft prefill"}]
        results = runner.phases(passes)
        found = dict(zip((one.kind for one in passes), results, strict=True))
        decoding, waits = runner.series(series), found.get("allocation")
        drafts = [
            (runner.series(one), one.times)
            for one in plan.phases
            if isinstance(one, PhaseSeries) and one.kind == "draft"
        ]
        draft_total = sum(times * one.total for one, times in drafts)
        first = [(one.simulated[0].result, Fraction(times)) for one, times in drafts]
        result = replace(
            result,
            first_pass=found.get("first pass"),
            prefill=found.get("prefill"),
            load=found.get("load"),
            store=found.get("store"),
            decode=tuple(one.result for one in decoding.simulated),
            allocation=waits,
            draft_prefill=found.get("draft prefill"),
            draft=aggregate("draft", first) if first else None,
            draft_total_s=draft_total * _PICO,
            decode_total_s=(decoding.total + draft_total + (waits.time_ps if waits else 0)) * _PICO,
            decode_bound=max([decoding.bound, *(one.bound for one, _ in drafts)]),
            decode_estimated=decoding.estimated,
            timelines=runner.timelines,
            work=tuple(runner.work),
        )
        if not runner.complete:
            return result
        method = self.scenario.scenario.strategy.traits.method or "offload"
        result = with_additions(self.scenario, plan, replace(result, traffic=traffic(plan)), runner)
        warnings = (*_too_many_blocks(result), *_whole_copies_fit(plan, result, runner, method))
        return replace(result, warnings=(*result.warnings, *warnings))


def _too_many_blocks(result: InferenceResult) -> tuple[str, ...]:
    """Return a warning if new blocks are produced faster than they can be stored, the time of the next
    prefill included."""
    backlog, next_s = result.kv_backlog_s, result.ttft_s if result.decode else 0.0
    if not backlog or next_s is None or backlog <= next_s:
        return ()
    (tier,) = {one.tier for one in result.traffic}
    longer = f", longer than the next prefill ({format_seconds(next_s)})" if next_s else ""
    text = f"stores go on for {format_seconds(backlog)} after each generation{longer}, so that ever more wait"
    remedy = "lower batch_size, use a faster tier, or set strategy.kv_cache.connector.store to false"
    return (f"new blocks are produced faster than {tier} takes them: {text}; {remedy}",)


def _gathered(ranks: int, bound: float, method: str) -> str:
    """Return a warning about weights in HBM that are gathered, which may be mistaken for a resident
    model."""
    most = f"{bound:,.0f}" if bound >= 100 else f"{bound:.3g}"
    each = f"each of {ranks} GPUs gathers every layer over the links between GPUs for every token"
    return (
        f"weights in HBM under {method}: {each}, which is not tensor parallelism; weights spread over the "
        f"GPUs and not gathered could give up to {most} tokens/s in decode by their bytes alone (a bound, "
        "not a prediction)"
    )


def _whole_copies_fit(plan: Plan, result: InferenceResult, runner: Runner, method: str) -> tuple[str, ...]:
    """Return a warning if weights are offloaded although a full copy fits into each GPU."""
    if plan.model.weight_bytes > plan.machine.tiers["hbm"].capacity:
        return ()
    from simoffload.strategies.programs.transformers import whole_copies

    copies = whole_copies(plan)
    if copies is None or not all(use.fits for use in peak_uses(memory_stages(copies), plan.machine.tiers)):
        return ()
    assert result.token_pass is not None
    kind = "decode" if result.decode else "prefill"
    phase = next(one for one in copies.phases if one.kind == kind)
    fast = runner.timeline(phase.step(1) if isinstance(phase, PhaseSeries) else phase).makespan * 1e-12
    size, times = format_bytes(plan.model.weight_bytes), result.token_pass.time_s / fast
    text = (
        f"offloading is not needed here: a copy of the weights ({size}) fits on every GPU; without {method}"
    )
    return (f"{text} a pass takes {format_seconds(fast)}, {format_number(times)} times as fast",)
