"""Metrics of training: the step, and the other activities of a run (data loading, checkpoints, drive
wear)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simoffload.results import (
    DataLoading,
    TierLifetime,
    TimedPhase,
    TrainingResult,
    data_loading_sentences,
    lifetime_warnings,
    tier_lifetime,
    tier_uses,
)
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import AHEAD, common, memory_stages
from simoffload.simulation.checkpoint import checkpoint_facts, checkpoint_times, steps_with_caches
from simoffload.simulation.data_loading import predict_data_loading
from simoffload.simulation.metrics import Measures
from simoffload.simulation.runner import Runner
from simoffload.strategies import Phase, Plan
from simoffload.strategies.base import optimizer_target, traffic
from simoffload.workload import Dataset


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
        """Add memory, traffic, FLOP and checkpoints, without times."""
        scenario, facts = self.scenario, plan.facts
        fields, stages = common(scenario, plan), memory_stages(scenario, plan)
        tiers, saved = scenario.machine.tiers, plan.saved
        if saved is not None:
            fields["warnings"] += saved.notes
        return replace(
            self.empty(fields, optimizer=optimizer_target(plan)),
            forward_flops=facts.forward_flops,
            backward_flops=facts.backward_flops,
            recomputed_flops=facts.recomputed_flops,
            traffic=traffic(plan),
            estimates=facts.estimates,
            requests=facts.requests,
            memory_stages=tuple((stage.name, tier_uses(stage.terms, tiers)) for stage in stages),
            dataset=scenario.scenario.dataset,
            checkpoint=checkpoint_facts(saved) if saved is not None else None,
        )

    def timed(self, plan: Plan, result: TrainingResult, runner: Runner) -> TrainingResult:
        """Add the times of the step, data loading, checkpoints and drive lifetime. Raises SimulationError."""

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
        if runner.scope != "all":
            return timed
        timed = _around_steps(self.scenario, plan, timed, runner)
        return replace(timed, timelines=runner.timelines, work=tuple(runner.work))


def _around_steps(
    scenario: LoadedScenario, plan: Plan, result: TrainingResult, runner: Runner
) -> TrainingResult:
    """Add checkpoints, data loading and drive lifetime to a result with times. Raises SimulationError."""
    result = _with_checkpoints(plan, result, runner)
    return _with_lifetimes(scenario, _with_data_loading(scenario, result))


def _with_checkpoints(plan: Plan, result: TrainingResult, runner: Runner) -> TrainingResult:
    """Add the cost of checkpoints to a result whose step time is known."""
    step, update = result.step_s, result.optimizer_s
    if not step or update is None or plan.saved is None:
        return result
    checkpoints = plan.saved.after(step_time=step, update_time=min(update, step))
    found, warnings = checkpoint_times(checkpoints, runner, result.write_caches)
    return replace(result, checkpoint=found, warnings=(*result.warnings, *warnings))


def _with_data_loading(scenario: LoadedScenario, result: TrainingResult) -> TrainingResult:
    """Add the times of data loading to a result whose step time is known."""
    dataset, step = result.dataset, result.step
    if dataset is None or step is None or not result.step_s:
        return result
    machine = scenario.machine
    target = machine.targets[dataset.tier]
    served = None
    if target.drive is not None and target.drive.random_read is not None:
        served = target.drive.random_read.value * (target.array.count if target.array else 1)
    loading = predict_data_loading(
        dataset,
        machine,
        ranks=result.ranks,
        batch_size=result.batch_size,
        step_time=result.step_s,
        gradient_accumulation_steps=result.gradient_accumulation_steps,
        pause_time=_pause(result),
        free_host_memory=_free(result),
        cores=machine.host.cpu_optimizer.cores.value,
        requests_per_second=served,
        background={use.link: use.size / result.step_s for use in step.links},
    )
    return replace(
        result, data_loading=loading, warnings=(*result.warnings, *_loading_warnings(dataset, loading))
    )


def _pause(result: TrainingResult) -> float:
    """Return the time at the end of a step during which no batch is taken [s]."""
    step, update = result.step_s or 0.0, result.optimizer_s or 0.0
    return update if update < step else 0.0


def _free(result: TrainingResult) -> int | None:
    """Return the host memory [B] that training leaves for batches and page cache at its peak."""
    for use in result.capacity:
        if use.kind == "dram":
            ahead = sum(term.size for term in use.terms if term.name == AHEAD)
            return max(0, use.headroom + ahead)
    return None


def _loading_warnings(dataset: Dataset, loading: DataLoading) -> tuple[str, ...]:
    if loading.cold.limit == "gpu":
        return ()
    return (f"dataset: {'; '.join(data_loading_sentences(dataset, loading))}",)


def _with_lifetimes(scenario: LoadedScenario, result: TrainingResult) -> TrainingResult:
    """Add the lifetime of the drives to which steps or checkpoints write.

    A step includes its share of the stalls for checkpoints, but not the time for which GPUs wait for data.
    Checkpoints without a known interval are not counted.
    """
    step = result.step_s
    if not step:
        return result
    machine, per_host = scenario.machine, _ranks_by_host(scenario)
    by_tier: dict[str, list[float]] = {
        one.tier: [one.written * here / result.ranks for here in per_host] for one in result.traffic
    }
    checkpoint = result.checkpoint
    outlook = checkpoint.outlook if checkpoint else None
    if checkpoint is not None and outlook is not None and outlook.interval_s is not None:
        steps = max(1.0, outlook.interval_s / step)
        sums = by_tier.setdefault(checkpoint.tier, [0.0] * len(per_host))
        for host, size in enumerate(checkpoint.written_by_host):
            sums[host] += size / steps
        step += outlook.stall_s / steps
    worn = (tier_lifetime(machine, tier, sizes, time_s=step, unit="step") for tier, sizes in by_tier.items())
    found: tuple[TierLifetime, ...] = tuple(one for one in worn if one is not None)
    return replace(result, drive_lifetime=found, warnings=(*result.warnings, *lifetime_warnings(found)))


def _ranks_by_host(scenario: LoadedScenario) -> list[int]:
    ranks, here = scenario.scenario.strategy.ranks, scenario.machine.gpus_per_node
    return [min(here, ranks - first) for first in range(0, ranks, here)]
