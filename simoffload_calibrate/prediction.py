"""Predictions of recorded runs: by simulation, and naively as bytes over bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from simoffload.documents import Document
from simoffload.errors import InputError, SimulationError
from simoffload.hardware import Machine, load_platform
from simoffload.hardware import Path as LinkPath
from simoffload.hardware.library import is_path
from simoffload.models import SINGLE, Attention, ModelShape, forward_cost
from simoffload.planning.confidence import confidence
from simoffload.results import InferenceResult, SimulationResult
from simoffload.results.capacity import peak_uses
from simoffload.results.timeline import Timeline
from simoffload.scenario import LoadedScenario, ScenarioCache, resolve
from simoffload.simulation import simulate
from simoffload.strategies.held import memory_stages, traffic
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from simoffload.strategies.training.state import DEEPSPEED_ADAM
from simoffload.workload import Inference
from simoffload_calibrate.records import RecordedRun

_UNKNOWN_DISK, _ANY_DRIVE = "disk", "samsung-980-pro-2tb"
"""Tier for Accelerate's files on a machine whose drives were not measured, and its drive, which does not
matter: the files are read from the page cache."""
_STORAGE_KINDS = ("nvme", "nvmeof", "nfs", "pfs")


class Setting(NamedTuple):
    """The platform and versions with which all runs of a file are predicted."""

    platform: str
    """Id or path of the platform."""
    storage: str | None
    """The tier for runs with weights on storage."""
    no_storage: str
    """The reason why there is no such tier."""
    deepspeed: str | None
    """The version of DeepSpeed that ran."""
    cache: ScenarioCache
    """The files that all runs share."""
    profiles: Mapping[str, Any]
    """Changes to numbers of its profiles, as in the section ``profiles`` of a scenario."""


class Prediction(NamedTuple):
    """The simulated and naive times of a run's passes, or the reason why there are none."""

    reason: str = ""
    """The reason why there are no times; empty if there are times."""
    seconds: dict[str, float] = {}  # noqa: RUF012 - never changed
    """[s] Simulated time by pass, with the names of ``RecordedRun.measured``."""
    intervals: dict[str, tuple[float, float]] = {}  # noqa: RUF012
    """[s] P10 and P90 of the time by pass: 80 % of real runs are expected between them."""
    naive: dict[str, float] = {}  # noqa: RUF012
    """[s] Time by pass as bytes over bandwidth."""
    model: ModelShape | None = None
    decode: Timeline | None = None
    """The timeline of the first simulated decode step."""
    remarks: tuple[str, ...] = ()


def setting(
    platform: str,
    *,
    deepspeed: str | None,
    other_storage: bool = False,
    profiles: Mapping[str, Any] | None = None,
) -> Setting:
    """Read a platform by id or path; ``other_storage`` means that its drives are not those of the runs, and
    ``profiles`` changes numbers of its profiles.

    Raises InputError for a platform that is missing or invalid.
    """
    machine = load_platform(platform).machine(nodes=1)
    tier = _storage_tier(machine)
    reason = f'platform "{machine.platform}" has no storage tier; measure one with calibrate micro --storage'
    if tier is not None and other_storage:
        text = f'platform "{machine.platform}" was chosen by its GPU, so its drives are not those of this run'
        tier, reason = None, f"{text}; name a platform with --platform"
    return Setting(platform, tier, reason, deepspeed, ScenarioCache(), profiles or {})


def _storage_tier(machine: Machine) -> str | None:
    if "nvme" in machine.tiers:
        return "nvme"
    by_kind = ((kind, name) for kind in _STORAGE_KINDS for name, t in machine.tiers.items() if t.kind == kind)
    return next((name for _, name in by_kind), None)


def predict(run: RecordedRun, within: Setting, *, first: bool = False) -> Prediction:
    """Simulate the passes of a run, including its first one if ``first`` is set.

    A refused configuration or a tier that is too small becomes the reason of a prediction without times.
    """
    kind = str(run.workload.get("kind", "inference"))
    if kind not in _PREDICTED:
        return Prediction(f"no {kind} strategy yet")
    if "nvme" in (run.offload, run.optimizer) and within.storage is None and run.group != "accelerate":
        return Prediction(within.no_storage)
    try:
        scenario = resolve(Document("", _scenario(run, within)), cache=within.cache)
        plan = scenario.plan()
        short = [
            use.sentence() for use in peak_uses(memory_stages(plan), scenario.machine.tiers) if not use.fits
        ]
        if short:
            return Prediction(f"does not fit: {'; '.join(short)}", model=scenario.model)
        prediction = _PREDICTED[kind](scenario, first)
    except InputError as error:
        return Prediction("; ".join(f"{one.key}: {one.message}".removeprefix(": ") for one in error.problems))
    except SimulationError as error:
        return Prediction(str(error))
    return prediction._replace(remarks=(*_remarks(run), *plan.warnings))


def _scenario(run: RecordedRun, within: Setting) -> dict[str, Any]:
    model = dict(run.model)
    if model.get("attention") is None and run.attention in get_args(Attention):
        model["attention"] = run.attention
    kind = "zero_training" if run.workload.get("kind") == "training" else "zero_inference"
    strategy: dict[str, Any] = {"kind": kind, "ranks": run.ranks, "ds_config": run.ds_config}
    equipment: dict[str, Any] = {}
    if run.strategy is not None:
        strategy = dict(run.strategy)
        if strategy.get("offload_folder") is not None:
            strategy["offload_folder"] = within.storage or _UNKNOWN_DISK
            if within.storage is None:
                strategy["page_cache"] = True
                equipment["tiers"] = {_UNKNOWN_DISK: {"profile": _ANY_DRIVE, "at": ["cpu"]}}
    elif within.deepspeed is not None:
        strategy["deepspeed_version"] = within.deepspeed
    if run.kv_cache is not None:
        strategy["kv_cache"] = run.kv_cache
    if run.training and run.threads is not None:
        strategy["cpu_threads"] = run.threads.omp
    if run.training and run.optimizer == "nvme":
        strategy["optimizer"] = within.storage
    if run.offload == "nvme" and run.strategy is None:
        strategy["weights"] = within.storage
    return {
        "name": run.name,
        "model": model,
        "platform": str(Path(within.platform).absolute()) if is_path(within.platform) else within.platform,
        "workload": run.workload,
        "strategy": strategy,
        "equipment": equipment,
        "profiles": within.profiles,
    }


def _remarks(run: RecordedRun) -> tuple[str, ...]:
    if run.attention is None or run.attention in get_args(Attention):
        return ()
    return (f'attention "{run.attention}" is not modelled; the family\'s default is predicted',)


def _inference(scenario: LoadedScenario, first: bool) -> Prediction:
    plan, workload = scenario.plan(), scenario.scenario.workload
    assert isinstance(workload, Inference)
    assert isinstance(plan, InferencePlan)
    result = simulate(scenario, keep_timelines=True)
    assert isinstance(result, InferenceResult)
    prompt, middle = workload.prompt_length, (1 + workload.decode_steps) // 2
    passes = {"prefill": ("ttft_s", plan.forward("prefill", prompt, prompt))}
    if first:
        first_pass = plan.forward("first pass", prompt, prompt, first=True)
        passes = {"first pass": ("first_pass_s", first_pass), **passes}
    if middle:
        passes["decode"] = ("tpot_s", plan.forward(f"decode {middle}", 1, prompt + middle))
    predicted = _predicted(result, {name: metric for name, (metric, _) in passes.items()})
    if not isinstance(plan, ZeroInferencePlan):
        return predicted._replace(model=scenario.model)
    return predicted._replace(
        naive={name: naive_seconds(plan, forward) for name, (_, forward) in passes.items()},
        model=scenario.model,
        decode=result.timelines[result.decode[0].name] if result.decode else None,
    )


def _training(scenario: LoadedScenario, _first: bool) -> Prediction:
    names = ("forward", "backward", "optimizer", "step")
    predicted = _predicted(simulate(scenario), {name: f"{name}_s" for name in names})
    plan = scenario.plan()
    naive = naive_training(plan) if isinstance(plan, ZeroTrainingPlan) else {}
    return predicted._replace(naive=naive, model=scenario.model)


def _predicted(result: SimulationResult, metrics: Mapping[str, str]) -> Prediction:
    """Return the time and the interval of each pass, given the metric that is its time."""
    values, known = result.metrics(), confidence(result).intervals()
    seconds = {name: value for name, metric in metrics.items() if (value := values[metric]) is not None}
    intervals = {name: known[metric] for name, metric in metrics.items() if metric in known}
    return Prediction(seconds=seconds, intervals=intervals)


_PREDICTED: dict[str, Callable[[LoadedScenario, bool], Prediction]] = {
    "inference": _inference,
    "training": _training,
}
"""The function that predicts a run, by kind of workload; other kinds have no prediction."""


def naive_seconds(plan: ZeroInferencePlan, forward: ForwardPass) -> float:
    """Return the naive time [s] of a pass: its largest bound, as if everything else were hidden."""
    return max(naive_bounds(plan, forward).values())


def naive_bounds(plan: ZeroInferencePlan, forward: ForwardPass) -> dict[str, float]:
    """Return the time [s] of one pass by resource: work of a rank over the top rate of its profile.

    "copy" is a rank's offloaded bytes over one GPU's rate from host memory; "read" its bytes on storage over
    its share of the storage's rate; "gather" received bytes over the GPU's own links (PCIe if it has none);
    "flops" FLOP over the data sheet's peak; "hbm" bytes over the rate of HBM. Persistent parameters are not
    moved.
    """
    machine, place, model = plan.machine, plan.placement, plan.model
    settings, ranks, size = place.settings, place.ranks, place.dtype_bytes
    moving = [tensor for tensor in plan.tensors if not tensor.persistent]
    moved_bytes = sum(tensor.slice_numel for tensor in moving) * size
    bounds = _work(model, machine, forward)
    if settings.device != "none":
        bounds["copy"] = moved_bytes / _top(machine, machine.host_to_device(0, pinned=settings.pin_memory))
    read = sum(tensor.slice_numel for tensor in moving if tensor.on_nvme) * size
    if read:
        path = machine.storage_read(place.tier, 0, gds=settings.use_gds)
        bounds["read"] = read / _top(machine, path, sharing=ranks)
    if ranks > 1:
        bounds["gather"] = moved_bytes * (ranks - 1) / _top(machine, machine.gather(0, ranks))
    return bounds


def naive_training(plan: ZeroTrainingPlan) -> dict[str, float]:
    """Return the naive time [s] of a training step by phase.

    A phase takes FLOP over the data sheet's peak or bytes over bandwidth, whichever is longer. Adam's bytes
    move at the peak rate of host memory; all traffic of storage belongs to the optimizer.
    """
    machine, settings, places, model, facts = plan.machine, plan.settings, plan.places, plan.model, plan.facts
    peak = (getattr(machine.accelerator.compute, model.dtype) or machine.accelerator.compute.float32).value
    numel = sum(tensor.slice_numel for tensor in plan.parameters.tensors)
    trained = sum(tensor.slice_numel for tensor in plan.state.trained)
    here = machine.ranks_per_node(places.ranks)
    steps = plan.workload.gradient_accumulation_steps
    offloaded = settings.params.device not in (None, "none")
    down = numel * model.dtype_bytes / _top(machine, machine.host_to_device(0, pinned=True))
    copies = steps * down if offloaded else 0.0
    forward = max(facts.forward_flops / peak, copies)
    back = (2 * facts.forward_flops + facts.recomputed_flops) / peak
    if settings.optimizer_device == "none":
        adam = DEEPSPEED_ADAM * trained / machine.accelerator.hbm_rate
        up = 0.0
    else:
        adam = DEEPSPEED_ADAM * trained * here / machine.host.memory_bandwidth.value
        size = (steps * settings.gradient_bytes + SINGLE) * trained
        up = size / _top(machine, machine.device_to_host(0, pinned=True))
    for stored in traffic(plan):
        read = _top(machine, machine.storage_read(stored.tier, 0), sharing=here)
        write = _top(machine, machine.storage_write(stored.tier, 0), sharing=here)
        adam += (stored.read / read + stored.written / write) / places.ranks
    times = {"forward": forward, "backward": max(back, copies, up), "optimizer": adam}
    return times | {"step": sum(times.values())}


def _work(model: ModelShape, machine: Machine, forward: ForwardPass) -> dict[str, float]:
    ((batch, tokens, context),) = forward.batch
    cost = forward_cost(model, batch=batch, new_tokens=tokens, context=context)
    gpu = machine.accelerator
    peak = getattr(gpu.compute, model.dtype) or gpu.compute.float32
    return {"flops": cost.flops / peak.value, "hbm": cost.bytes / gpu.hbm_rate}


def _top(machine: Machine, path: LinkPath, *, sharing: int = 1) -> float:
    """Return the rate [B/s] of a very large transfer when ``sharing`` ranks use all its links."""
    alone = max(rate for _, rate in path.curve.points)
    shared = (machine.resources[index].capacity / float(share) for index, share in path.hops)
    return min(alone, min(shared, default=alone) / sharing)
