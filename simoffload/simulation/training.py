"""Metrics of training: the step, and what is added to a run beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simoffload.results import TimedPhase, TrainingResult, tier_uses
from simoffload.simulation.capacity import common, memory_stages
from simoffload.simulation.metrics import Measures, with_additions
from simoffload.simulation.runner import Runner
from simoffload.simulation.write_caches import steps_with_caches
from simoffload.strategies import Phase, Plan
from simoffload.strategies.base import optimizer_target, traffic


class TrainingMeasures(Measures[TrainingResult]):
    """TrainingMeasures compute the metrics of a scenario of training."""

    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> TrainingResult:
        """Return a result with neither sizes nor times."""
        workload: Any = self.scenario.scenario.workload
        return TrainingResult(
            **common,
            optimizer_target=optimizer,
            batch_size=workload.batch_size,
            sequence_length=workload.sequence_length,
            gradient_accumulation_steps=workload.gradient_accumulation_steps,
        )

    def capacity(self, plan: Plan) -> TrainingResult:
        """Add memory, traffic, FLOP, and the sizes of additions, without times."""
        scenario, facts = self.scenario, plan.facts
        fields, stages = common(scenario, plan), memory_stages(scenario, plan)
        tiers = scenario.machine.tiers
        result = replace(
            self.empty(fields, optimizer=optimizer_target(plan)),
            forward_flops=facts.forward_flops,
            backward_flops=facts.backward_flops,
            recomputed_flops=facts.recomputed_flops,
            traffic=traffic(plan),
            estimates=facts.estimates,
            requests=facts.requests,
            memory_stages=tuple((stage.name, tier_uses(stage.terms, tiers)) for stage in stages),
            dataset=scenario.scenario.dataset,
        )
        for add in scenario.additions("sized"):
            result = add(scenario, plan, result)
        return result

    def timed(self, plan: Plan, result: TrainingResult, runner: Runner) -> TrainingResult:
        """Add the times of the step and of additions. Raises SimulationError."""

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
        if not runner.complete:
            return timed
        timed = with_additions(self.scenario, plan, timed, runner)
        return replace(timed, timelines=runner.timelines, work=tuple(runner.work))
