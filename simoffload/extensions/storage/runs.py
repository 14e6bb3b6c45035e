"""Times of checkpoints, alone or of a training run, of data loading, and the lifetime of drives."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from simoffload.errors import InputError
from simoffload.extensions.storage.data_loading import (
    DataLoading,
    data_loading_sentences,
    look_ahead_bytes,
    predict_data_loading,
    stored_bytes,
)
from simoffload.extensions.storage.endurance import TierLifetime, lifetime_warnings, tier_lifetime
from simoffload.extensions.storage.program import (
    CheckpointPart,
    CheckpointPlan,
    config_warnings,
    plan_of_training,
)
from simoffload.extensions.storage.result import CheckpointPhase, CheckpointResult, Checkpoints, SavedPart
from simoffload.results import (
    CachedWrites,
    InferenceResult,
    MemoryStage,
    MemoryTerm,
    SimulationResult,
    StorageTraffic,
    TrainingResult,
    cache_warnings,
)
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import common
from simoffload.simulation.metrics import Measures
from simoffload.simulation.runner import Runner
from simoffload.simulation.write_caches import CacheLoad
from simoffload.strategies import Plan
from simoffload.workload import Dataset

T = TypeVar("T", bound=SimulationResult)
Stages = tuple[MemoryStage, ...]
Written = tuple[dict[str, list[float]], float, str]
"""The bytes [B] that each host writes to each tier in a time [s], and the name of what takes that time."""
_AHEAD = "batches made ahead"
"""Name of the memory for batches that loaders prefetch."""


def _with(result: T, name: str, value: Any, *warnings: str) -> T:
    """Return a result with what is added to it under a name, and its warnings."""
    return replace(result, added={**result.added, name: value}, warnings=(*result.warnings, *warnings))


# -- times of a checkpoint -------------------------------------------------------------------------


def checkpoint_with_caches(
    plan: CheckpointPlan, steps: tuple[CachedWrites, ...] = ()
) -> tuple[CheckpointPlan, tuple[CachedWrites, ...]]:
    """Return the plan of a checkpoint with its write rates, and the part of its bytes that the caches take.

    A checkpoint is a burst: the caches are empty before it, or as empty as the time since the last one
    allows. ``steps`` state how much of them the steps of a training run use; if the drives cannot empty the
    caches between steps, nothing is left. Runs that write to the same drives at the same time share the
    caches.
    """
    target = plan.machine.targets[plan.tier]
    if target.sustained is None:
        return plan, ()
    jobs = 1 if target.drives else plan.workload.jobs
    by_host = plan.written_by_host
    written = jobs * (max(by_host) if target.drives else sum(by_host))
    room = target.write_cache
    for one in steps:
        if one.tier == plan.tier:
            room = 0 if one.exceeded else room - one.cached
    if plan.workload.interval_s is not None:
        room = min(room, int(plan.workload.interval_s * target.sustained.rate))
    cache = CacheLoad(plan.tier, target, 0, written)
    filled = Fraction(min(room, cache.most), cache.most)
    machine = plan.machine.with_cached_writes({plan.tier: filled * cache.most / written})
    return replace(plan, machine=machine), (cache.use(filled, "checkpoint"),)


def checkpoint_facts(plan: CheckpointPlan) -> Checkpoints:
    """Return the sizes and properties of a checkpoint without times."""
    return Checkpoints(
        tier=plan.tier,
        size=plan.size,
        written_by_host=plan.written_by_host,
        parts=tuple(_part(part) for part in plan.parts),
        **_settings(plan.workload),
    )


def _settings(workload: Any) -> dict[str, Any]:
    """Return how a workload of checkpoints writes them."""
    return {
        "contents": workload.contents,
        "writer": workload.writer.type,
        "mode": workload.mode,
        "keep": workload.keep,
    }


def _part(part: CheckpointPart) -> SavedPart:
    files = 1 if part.same_file else len(part.writers)
    return SavedPart(part.name, part.size, len(part.writers), part.device, files)


def checkpoint_times(
    plan: CheckpointPlan, runner: Runner, steps: tuple[CachedWrites, ...] = ()
) -> tuple[Checkpoints, tuple[str, ...]]:
    """Simulate saving and restoring; return the times and warnings.

    ``steps`` state how much of the write caches a run's own steps use. Raises SimulationError if the engine
    cannot finish.
    """
    plan, caches = checkpoint_with_caches(plan, steps)
    phases = plan.phases if runner.complete else plan.save()
    found = list(zip(phases, runner.phases(phases), strict=True))
    saving = [(phase, one) for phase, one in found if phase.kind == "save"]
    restoring = tuple(one for phase, one in found if phase.kind == "restore")
    outlook = plan.outlook(
        blocking_s=sum((one.time_s for phase, one in saving if not phase.background), 0.0),
        background_s=sum((one.time_s for phase, one in saving if phase.background), 0.0),
        restore_s=sum((one.time_s for one in restoring), 0.0),
    )
    done = replace(
        checkpoint_facts(plan),
        saving=tuple(CheckpointPhase(one, phase.background) for phase, one in saving),
        restoring=restoring,
        write_caches=caches,
        outlook=outlook,
    )
    return done, (*filter(None, [plan.commit_warning(outlook)]), *cache_warnings(caches))


# -- checkpoints alone -----------------------------------------------------------------------------


class CheckpointMeasures(Measures[CheckpointResult]):
    """CheckpointMeasures compute the metrics of a scenario with only checkpoints."""

    def empty(self, common: dict[str, Any], *, optimizer: str = "") -> CheckpointResult:  # noqa: ARG002
        """Return a result without times and checkpoint."""
        settings = _settings(self.scenario.scenario.workload)
        nothing = Checkpoints(tier=common["target"], size=0, written_by_host=(), parts=(), **settings)
        return CheckpointResult(**common, added={"checkpoint": nothing})

    def capacity(self, plan: Plan) -> CheckpointResult:
        """Return the checkpoint's sizes without times."""
        facts = checkpoint_facts(_own(plan))
        return CheckpointResult(**common(self.scenario, plan), added={"checkpoint": facts})

    def timed(self, plan: Plan, result: CheckpointResult, runner: Runner) -> CheckpointResult:
        """Add the times of saving and restoring, and the lifetime of drives. Raises SimulationError."""
        found, warnings = checkpoint_times(_own(plan), runner)
        worn = _tier_lifetimes(_own(plan), found)
        return replace(
            result,
            added={"checkpoint": found, "drive_lifetime": worn},
            warnings=(*result.warnings, *warnings, *lifetime_warnings(worn)),
            timelines=runner.timelines,
            work=tuple(runner.work),
        )


def _own(plan: Plan) -> CheckpointPlan:
    assert isinstance(plan, CheckpointPlan)
    return plan


def _tier_lifetimes(plan: CheckpointPlan, found: Checkpoints) -> tuple[TierLifetime, ...]:
    """Return the lifetime of the drives, if the checkpoint interval is known."""
    outlook = found.outlook
    if outlook is None or outlook.interval_s is None:
        return ()
    every = outlook.interval_s + outlook.stall_s
    worn = tier_lifetime(plan.machine, plan.tier, found.written_by_host, time_s=every, unit="checkpoint")
    return (worn,) if worn is not None else ()


# -- checkpoints of a training run -------------------------------------------------------------------


def _saved(plan: Plan) -> CheckpointPlan:
    assert isinstance(plan.saved, CheckpointPlan)
    return plan.saved


def saving(scenario: LoadedScenario, plan: Plan) -> Plan:
    """Return the plan of a training run with the checkpoints that its scenario and ds_config specify.

    Raises InputError where they are not modelled, and for options that contradict each other or the run.
    """
    options = scenario.scenario.checkpoint
    assert options is not None
    if not plan.saves:
        text = f"checkpoints of {scenario.scenario.strategy.kind} are not modelled; remove this section"
        raise InputError([scenario.document.problem(("checkpoint",), text, at_key=True)])
    steps: Any = plan
    saved = plan_of_training(options, steps)
    found: Plan = replace(steps, saved=saved, warnings=(*plan.warnings, *config_warnings(steps.config)))
    vars(found).update({name: value for name, value in vars(plan).items() if name not in vars(found)})
    return found


def stages_of_saving(_scenario: LoadedScenario, plan: Plan, stages: Stages) -> Stages:
    """Return the stages of memory with the files at all of them, and that of saving a checkpoint, during
    which the memory of the optimizer step is still in use."""
    held = _saved(plan).held
    files = [one.term for one in held if one.kind == "checkpoints"]
    known = {(term.tier, term.name) for term in (*stages[-1].terms, *files)}
    more = [one.term for one in held if (one.tier, one.name) not in known]
    stages = (*stages, MemoryStage("checkpoint", (*stages[-1].terms, *more)))
    return tuple(stage._replace(terms=(*stage.terms, *files)) for stage in stages)


def size_of_checkpoints(_scenario: LoadedScenario, plan: Plan, result: TrainingResult) -> TrainingResult:
    """Add the sizes of checkpoints, and warnings about their options."""
    return _with(result, "checkpoint", checkpoint_facts(_saved(plan)), *_saved(plan).notes)


def times_of_checkpoints(
    _scenario: LoadedScenario, plan: Plan, result: TrainingResult, runner: Runner
) -> TrainingResult:
    """Add the cost of checkpoints to a result whose step time is known."""
    step, update = result.step_s, result.optimizer_s
    if not step or update is None:
        return result
    checkpoints = _saved(plan).after(step_time=step, update_time=min(update, step))
    found, warnings = checkpoint_times(checkpoints, runner, result.write_caches)
    return _with(result, "checkpoint", found, *warnings)


# -- data loading ----------------------------------------------------------------------------------


def stages_of_loading(scenario: LoadedScenario, _plan: Plan, stages: Stages) -> Stages:
    """Return the stages of memory with the data set and the batches that loaders prefetch."""
    dataset, machine = scenario.scenario.dataset, scenario.machine
    assert dataset is not None
    ranks, batch = scenario.scenario.strategy.ranks, getattr(scenario.scenario.workload, "batch_size", 1)
    stored = stored_bytes(dataset, machine, ranks=ranks)
    ahead = look_ahead_bytes(dataset, machine, ranks=ranks, batch_size=int(batch))
    terms = (
        MemoryTerm(dataset.tier, "dataset", stored, remedy="put the dataset elsewhere: dataset.tier"),
        MemoryTerm("dram", _AHEAD, ahead, remedy="lower dataset.prefetch_factor or workers"),
    )
    return tuple(stage._replace(terms=(*stage.terms, *terms)) for stage in stages)


def times_of_loading(
    scenario: LoadedScenario, _plan: Plan, result: TrainingResult, _runner: Runner
) -> TrainingResult:
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
    return _with(result, "data_loading", loading, *_loading_warnings(dataset, loading))


def _pause(result: TrainingResult) -> float:
    """Return the time at the end of a step during which no batch is taken [s]."""
    step, update = result.step_s or 0.0, result.optimizer_s or 0.0
    return update if update < step else 0.0


def _free(result: TrainingResult) -> int | None:
    """Return the host memory [B] that training leaves for batches and page cache at its peak."""
    for use in result.capacity:
        if use.row.is_host:
            ahead = sum(term.size for term in use.terms if term.name == _AHEAD)
            return max(0, use.headroom + ahead)
    return None


def _loading_warnings(dataset: Dataset, loading: DataLoading) -> tuple[str, ...]:
    if loading.cold.limit == "gpu":
        return ()
    return (f"dataset: {'; '.join(data_loading_sentences(dataset, loading))}",)


# -- drive lifetime --------------------------------------------------------------------------------


def lifetimes(
    scenario: LoadedScenario, _plan: Plan, result: InferenceResult | TrainingResult, _runner: Runner
) -> SimulationResult:
    """Add the lifetime of the drives to which steps, checkpoints or generations write."""
    by_tier, time, unit = (
        _by_generations(scenario, result)
        if isinstance(result, InferenceResult)
        else _by_steps(scenario, result)
    )
    worn = (
        tier_lifetime(scenario.machine, tier, sizes, time_s=time, unit=unit)
        for tier, sizes in by_tier.items()
        if time and tier in scenario.machine.targets
    )
    found = tuple(one for one in worn if one is not None)
    return _with(result, "drive_lifetime", found, *lifetime_warnings(found)) if found else result


def _by_generations(scenario: LoadedScenario, result: InferenceResult) -> Written:
    """Return what each host writes in a generation, if generations follow each other without a pause."""
    time = max(result.e2e_s or 0.0, result.kv_store_s or 0.0)
    return _by_tier(scenario, result.traffic, result.gpus), time, "generation"


def _by_steps(scenario: LoadedScenario, result: TrainingResult) -> Written:
    """Return what each host writes in a step.

    A step includes its share of the stalls for checkpoints, but not the time for which GPUs wait for data.
    Checkpoints without a known interval are not counted.
    """
    step, by_tier = result.step_s or 0.0, _by_tier(scenario, result.traffic, result.ranks)
    checkpoint = result.checkpoint
    outlook = checkpoint.outlook if checkpoint else None
    if step and outlook is not None and outlook.interval_s is not None:
        steps = max(1.0, outlook.interval_s / step)
        sums = by_tier.setdefault(checkpoint.tier, [0.0] * len(checkpoint.written_by_host))
        for host, size in enumerate(checkpoint.written_by_host):
            sums[host] += size / steps
        step += outlook.stall_s / steps
    return by_tier, step, "step"


def _by_tier(
    scenario: LoadedScenario, traffic: tuple[StorageTraffic, ...], gpus: int
) -> dict[str, list[float]]:
    """Return the bytes [B] that each host writes to each tier, divided by its GPUs."""
    here = scenario.machine.gpus_per_node
    hosts = [min(here, gpus - first) for first in range(0, gpus, here)]
    return {one.tier: [one.written * count / gpus for count in hosts] for one in traffic}
