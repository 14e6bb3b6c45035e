"""What a training run does beside its steps: it reads data, saves checkpoints and wears drives out."""

from __future__ import annotations

from dataclasses import replace

from simoffload.results.data_loading import DataLoading, data_loading_sentences
from simoffload.results.endurance import TierLifetime, lifetime_warnings, tier_lifetime
from simoffload.results.training import TrainingResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import AHEAD
from simoffload.simulation.checkpoint import checkpoint_times
from simoffload.simulation.data_loading import predict_data_loading
from simoffload.simulation.runner import Runner
from simoffload.strategies import Plan
from simoffload.workload import Dataset

__all__ = ["around_training"]


def around_training(
    scenario: LoadedScenario, plan: Plan, result: TrainingResult, runner: Runner
) -> TrainingResult:
    """Add checkpoints, data and wear to a result that has times. Raises SimulationError."""
    result = _with_checkpoints(plan, result, runner)
    return _with_lifetimes(scenario, _with_reading(scenario, result))


def _with_checkpoints(plan: Plan, result: TrainingResult, runner: Runner) -> TrainingResult:
    """What checkpoints cost a run whose step is known."""
    step, update = result.step_s, result.optimizer_s
    if not step or update is None or plan.saved is None:
        return result
    checkpoints = plan.saved.after(step_time=step, update_time=min(update, step))
    found, warnings = checkpoint_times(checkpoints, runner, result.write_caches)
    return replace(result, checkpoint=found, warnings=(*result.warnings, *warnings))


def _with_reading(scenario: LoadedScenario, result: TrainingResult) -> TrainingResult:
    """Whether the data comes in time for a step that is known."""
    dataset, step = result.dataset, result.step
    if dataset is None or step is None or not result.step_s:
        return result
    machine = scenario.machine
    target = machine.topology.targets[dataset.tier]
    served = None
    if target.drive is not None and target.drive.random_read is not None:
        served = target.drive.random_read.value * (target.array.count if target.array else 1)
    data_loading = predict_data_loading(
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
        result,
        data_loading=data_loading,
        warnings=(*result.warnings, *_loading_warnings(dataset, data_loading)),
    )


def _pause(result: TrainingResult) -> float:
    """[s] at the end of a step in which no batch is taken."""
    step, update = result.step_s or 0.0, result.optimizer_s or 0.0
    return update if update < step else 0.0


def _free(result: TrainingResult) -> int | None:
    """[B] of each host's memory that training leaves to batches and page cache, at the fullest moment."""
    for use in result.capacity:
        if use.kind == "dram":
            ahead = sum(term.size for term in use.terms if term.name == AHEAD)
            return max(0, use.headroom + ahead)
    return None


def _loading_warnings(dataset: Dataset, data_loading: DataLoading) -> tuple[str, ...]:
    if data_loading.cold.limit == "gpu":
        return ()
    return (f"dataset: {'; '.join(data_loading_sentences(dataset, data_loading))}",)


def _with_lifetimes(scenario: LoadedScenario, result: TrainingResult) -> TrainingResult:
    """How fast drives wear out that steps or checkpoints write to.

    A step takes its share of the stalls; what GPUs wait for data is left out, and so are checkpoints whose
    interval is not known.
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
