"""Comparison of recorded runs with their predictions, as data and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, get_args

from simoffload.documents import Document, Edit
from simoffload.errors import InputError, Problem, SimulationError, printable
from simoffload.extensions.serving.simulate import StreamSimulation
from simoffload.extensions.serving.streams import simulated_stream
from simoffload.hardware import Machine, load_platform
from simoffload.hardware import Path as LinkPath
from simoffload.hardware.library import is_path
from simoffload.models import SINGLE, Attention, ModelShape, forward_cost
from simoffload.planning.confidence import confidence
from simoffload.planning.errors import Comparable
from simoffload.progress import steps
from simoffload.report.formatting import columns
from simoffload.results import InferenceResult, SimulationResult, by_name
from simoffload.results.capacity import peak_uses
from simoffload.results.timeline import Timeline
from simoffload.scenario import LoadedScenario, ScenarioCache, resolve
from simoffload.simulation import simulate
from simoffload.strategies import in_new_form
from simoffload.strategies.base import memory_stages, traffic
from simoffload.strategies.passes.pass_writer import ForwardPass
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from simoffload.strategies.training.state import DEEPSPEED_ADAM
from simoffload.units import format_bytes, plural
from simoffload.workload import Inference
from simoffload_calibrate.micro.profiles import base_platform
from simoffload_calibrate.records import (
    EngineFacts,
    LayerStarts,
    RecordedRun,
    Records,
    StreamRow,
    layer_starts,
    read_records,
    stream_rows,
)
from simoffload_calibrate.runs import offload_words

# -- predictions -----------------------------------------------------------------------------------

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
    elsewhere: bool = False
    """Whether its measurements are those of another machine of the kind."""


class Prediction(NamedTuple):
    """The simulated and naive times of a run's passes, or the reason why there are none."""

    reason: str = ""
    """The reason why there are no times; empty if there are times."""
    seconds: dict[str, float] = {}  # noqa: RUF012 - never changed
    """[s] Simulated time by pass, with the names of ``RecordedRun.measured``."""
    intervals: dict[str, tuple[float, float]] = {}  # noqa: RUF012
    """[s] P10 and P90 of the time by pass: 80 % of real runs are expected between them."""
    compared: dict[str, Comparable] = {}  # noqa: RUF012
    """The real runs by whose errors an interval is as wide as it is, by pass."""
    naive: dict[str, float] = {}  # noqa: RUF012
    """[s] Time by pass as bytes over bandwidth."""
    model: ModelShape | None = None
    decode: Timeline | None = None
    """The timeline of the first simulated decode step."""
    kv_blocks: int | None = None
    """The number of KV blocks that vLLM's engine has room for; None if the run states it."""
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
        scenario = recorded_scenario(run, within)
        plan = scenario.plan()
        short = [
            use.sentence() for use in peak_uses(memory_stages(plan), scenario.machine.tiers) if not use.fits
        ]
        if short:
            return Prediction(f"does not fit: {'; '.join(short)}", model=scenario.model)
        if run.engine is not None:
            prediction = _served(run, scenario, within)
        else:
            prediction = _PREDICTED[kind](scenario, within, first)
    except InputError as error:
        return Prediction("; ".join(f"{one.key}: {one.message}".removeprefix(": ") for one in error.problems))
    except SimulationError as error:
        return Prediction(str(error))
    return prediction._replace(remarks=(*_remarks(run), *plan.warnings))


def recorded_scenario(run: RecordedRun, within: Setting) -> LoadedScenario:
    """Return the scenario of a run on the platform of a setting. Raises InputError."""
    return resolve(Document("", _scenario(run, within)), cache=within.cache)


def _scenario(run: RecordedRun, within: Setting) -> dict[str, Any]:
    model = dict(run.model)
    if model.get("attention") is None and run.attention in get_args(Attention):
        model["attention"] = run.attention
    strategy: dict[str, Any] = {"kind": "deepspeed", "ranks": run.ranks, "ds_config": run.ds_config}
    equipment: dict[str, Any] = {}
    if run.strategy is not None:
        strategy = dict(in_new_form(run.strategy)[0])
        if run.engine is not None and run.engine.cudagraph_capture_sizes:
            strategy["max_cudagraph_capture_size"] = max(run.engine.cudagraph_capture_sizes)
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


def _remarks(run: RecordedRun) -> Iterator[str]:
    if run.attention is not None and run.attention not in get_args(Attention):
        yield f'attention "{run.attention}" is not modelled; the family\'s default is predicted'
    if run.compilations:
        yield f"{plural(run.compilations, 'kernel')} compiled during the run, which no prediction contains"


def _inference(scenario: LoadedScenario, within: Setting, first: bool) -> Prediction:
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
    predicted = _predicted(result, within, {name: metric for name, (metric, _) in passes.items()})
    if not isinstance(plan, ZeroInferencePlan):
        return predicted._replace(model=scenario.model)
    return predicted._replace(
        naive={name: naive_seconds(plan, forward) for name, (_, forward) in passes.items()},
        model=scenario.model,
        decode=result.timelines[result.decode[0].name] if result.decode else None,
    )


_ANY_REQUESTS: dict[str, Any] = {
    "arrivals": {"kind": "constant", "request_rate": 1},
    "prompt": {"kind": "fixed", "tokens": 1},
    "output": {"kind": "fixed", "tokens": 1},
}
_LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "async_scheduling",
    "enable_prefix_caching",
)
"""Keys of a stream that an engine of vLLM states."""


def _served(run: RecordedRun, scenario: LoadedScenario, within: Setting) -> Prediction:
    """Predict a batch or a stream of vLLM."""
    engine = run.engine
    assert engine is not None
    stated = (run.stream or {}).get("kv_blocks") or (run.strategy or {}).get("kv_blocks")
    blocks = None if stated else StreamSimulation(_streamed(scenario, engine)).limits.blocks
    if run.requests is None:
        found, names = _inference(scenario, within, first=False), run.measured()
        seconds = {name: found.seconds[name] for name in names if name in found.seconds}
        return found._replace(seconds=seconds, kv_blocks=blocks)
    result = simulated_stream(stream_simulation(run, scenario))
    metrics = {one: f"{one.replace(' ', '_')}_s" for one in run.requests.figures()}
    return Prediction(
        seconds={one: result.estimates[metric].value for one, metric in metrics.items()},
        intervals={one: result.intervals[metric] for one, metric in metrics.items()},
        model=scenario.model,
        kv_blocks=blocks,
    )


def stream_simulation(run: RecordedRun, scenario: LoadedScenario) -> StreamSimulation:
    """Return the simulation of a recorded stream, with the limits and the KV blocks of the engine."""
    assert run.requests is not None
    assert run.engine is not None
    streamed = _streamed(scenario, run.engine).edited(Edit(("stream", "kv_blocks"), run.engine.kv_blocks))
    return StreamSimulation(streamed, recorded=(run.requests.rows, run.engine.cudagraph_capture_sizes))


def _streamed(scenario: LoadedScenario, engine: EngineFacts) -> LoadedScenario:
    """Return the scenario with a stream that has the limits of an engine."""
    limits = {key: getattr(engine, key) for key in _LIMITS}
    return scenario.edited(Edit(("stream",), {**_ANY_REQUESTS, **limits}))


def _training(scenario: LoadedScenario, within: Setting, _first: bool) -> Prediction:
    names = ("forward", "backward", "optimizer", "step")
    predicted = _predicted(simulate(scenario), within, {name: f"{name}_s" for name in names})
    plan = scenario.plan()
    naive = naive_training(plan) if isinstance(plan, ZeroTrainingPlan) else {}
    return predicted._replace(naive=naive, model=scenario.model)


def _predicted(result: SimulationResult, within: Setting, metrics: Mapping[str, str]) -> Prediction:
    """Return the time and the interval of each pass, given the metric that is its time."""
    values, sure = result.metrics(), confidence(result, elsewhere=within.elsewhere)
    seconds = {name: value for name, metric in metrics.items() if (value := values[metric]) is not None}
    known = {name: metric for name, metric in metrics.items() if values[metric] and metric in result.composed}
    intervals = {name: sure.interval(metric) for name, metric in known.items()}
    compared = {name: sure.comparable(metric) for name, metric in known.items()}
    return Prediction(seconds=seconds, intervals=intervals, compared=compared)


_PREDICTED: dict[str, Callable[[LoadedScenario, Setting, bool], Prediction]] = {
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
    ((batch, tokens, context, _),) = forward.batch
    cost = forward_cost(model, batch=batch, new_tokens=tokens, context=context)
    gpu = machine.accelerator
    peak = getattr(gpu.compute, model.dtype) or gpu.compute.float32
    return {"flops": cost.flops / peak.value, "hbm": cost.bytes / gpu.hbm_rate}


def _top(machine: Machine, path: LinkPath, *, sharing: int = 1) -> float:
    """Return the rate [B/s] of a very large transfer when ``sharing`` ranks use all its links."""
    alone = max(rate for _, rate in path.curve.points)
    shared = (machine.resources[index].capacity / float(share) for index, share in path.hops)
    return min(alone, min(shared, default=alone) / sharing)


# -- comparisons -----------------------------------------------------------------------------------

SCHEMA = "simoffload/calibrate-compare/1"
_PROFILE_PLACES = ("platform.yaml", "profile/platform.yaml")


class ComparedPass(NamedTuple):
    """The measured and the predicted time of one pass of a run."""

    name: str
    """first pass, prefill or decode (the median step); in training forward, backward, optimizer or step; of a
    stream "ttft mean", "tpot p99" and the like."""
    measured: float | None
    """[s]"""
    predicted: float | None
    """[s] The simulated time."""
    naive: float | None
    """[s] The time of bytes over bandwidth."""
    interval: tuple[float, float] | None = None
    """[s] P10 and P90 of the predicted time: 80 % of real runs are expected between them."""
    compared: Comparable | None = None
    """The real runs by whose errors the interval is as wide as it is."""

    @property
    def inside(self) -> bool | None:
        """Whether the measured time is inside the interval; None if one of the two is missing."""
        if self.measured is None or self.interval is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width over the predicted time."""
        if self.predicted is None or self.interval is None:
            return None
        return (self.interval[1] - self.interval[0]) / 2 / self.predicted

    @property
    def error(self) -> float | None:
        """The relative error of the simulation: (predicted - measured) / measured."""
        return _relative(self.predicted, self.measured)

    @property
    def naive_error(self) -> float | None:
        """The relative error of the naive prediction: (naive - measured) / measured."""
        return _relative(self.naive, self.measured)


class ComparedRun(NamedTuple):
    """One recorded run and its prediction."""

    run: RecordedRun
    passes: tuple[ComparedPass, ...]
    reason: str
    """The reason why there is no prediction; empty if there is one."""
    remarks: tuple[str, ...]
    streams: tuple[StreamRow, ...]
    layers: LayerStarts | None
    kv_blocks: tuple[int, int | None] | None = None
    """The numbers of KV blocks that vLLM's engine had, and for which its plan has room."""

    def find(self, name: str) -> ComparedPass | None:
        """Return a pass by its name; None if the run has no such pass."""
        return next((one for one in self.passes if one.name == name), None)


class ComparedFile(NamedTuple):
    """All runs of one file with their predictions."""

    path: Path
    platform: str
    """Id or path of the platform for the predictions."""
    machine: dict[str, Any]
    runs: tuple[ComparedRun, ...]
    remarks: tuple[str, ...]


class Errors(NamedTuple):
    """The errors of several predictions of one kind of pass."""

    runs: int
    mean: float
    """The mean of the absolute errors."""
    worst: float
    """The error of the largest size, with its sign."""
    inside: int | None = None
    """The number of measured times inside their 80 % interval; None if a prediction has none."""
    half_width: float | None = None
    """The median of half of the intervals' width over the predicted time."""


def _relative(value: float | None, measured: float | None) -> float | None:
    return None if value is None or measured is None else value / measured - 1


def compare_file(
    path: Path,
    *,
    platform: str | None = None,
    own_profile: bool = True,
    first: bool = True,
    profiles: Mapping[str, Any] | None = None,
    elsewhere: bool | None = None,
) -> ComparedFile:
    """Predict every run of a file of ``calibrate deepspeed`` or ``vllm`` and compare it with what was
    measured.

    Parameters
    ----------
    platform
        Id or path of a platform. Without one, ``platform.yaml`` or ``profile/platform.yaml`` next to the
        file (unless ``own_profile`` is False), else the shipped platform most like that machine.
    first
        Simulate the first pass as well.
    profiles
        Changes to the platform's numbers, as in the section ``profiles`` of a scenario.
    elsewhere
        Whether the platform's measurements are those of another machine of the kind. By default those of one
        that ``platform`` names are, unless they state the machine and the day of the runs.

    Raises
    ------
    InputError
        If the file is not such a record, or no platform is found.
    """
    records = read_records(path)
    if not records.runs:
        raise InputError([Problem(str(path), None, None, "runs", "none of its runs was completed")])
    chosen, remarks = _platform(path, records, platform, own_profile)
    other = platform is None and bool(remarks)
    within = _setting(chosen, deepspeed=records.deepspeed, other_storage=other, profiles=profiles)
    if elsewhere is None:
        elsewhere = platform is not None and not _of_the_day(records, load_platform(chosen).machine())
    within = within._replace(elsewhere=elsewhere)
    named = steps(records.runs, lambda run: run.name)
    runs = [_compare(run, within, first=first) for run in named]
    return ComparedFile(path, chosen, records.machine, tuple(runs), remarks)


def _platform(path: Path, records: Records, named: str | None, own: bool) -> tuple[str, tuple[str, ...]]:
    gpu = records.gpu
    if named is not None:
        return named, _other_gpu(named, gpu)
    for place in _PROFILE_PLACES if own else ():
        neighbour = path.parent / place
        if neighbour.is_file():
            return str(neighbour) if neighbour.is_absolute() else f"./{neighbour}", ()
    try:
        shipped = base_platform(gpu, gpus=records.gpus)
    except InputError:
        has = f'no shipped platform has the GPU "{gpu}"' if gpu else "these runs had no GPU"
        text = f"no {' or '.join(_PROFILE_PLACES)} next to the file, and {has}"
        problem = Problem(str(path), None, None, "machine.gpu", f"{text}; name a platform with --platform")
        raise InputError([problem]) from None
    return shipped, (f"predicted with the shipped {shipped}, not with a profile of this machine",)


def _of_the_day(records: Records, machine: Machine) -> bool:
    """Return whether measurements of a machine are of the day of the runs, on a machine like theirs."""
    about, cores = records.machine, f"{records.machine.get('cores')} cores"
    stated = [one for one in machine.inputs() if one.origin == "measured" and one.date == records.date]
    return any(all(word in one.source for word in (str(about.get("cpu")), cores)) for one in stated)


def _other_gpu(platform: str, gpu: str) -> tuple[str, ...]:
    """Return a remark if the platform's GPU is not the one of the runs."""
    try:
        usual, chosen = load_platform(base_platform(gpu)), load_platform(platform)
    except InputError:  # no shipped platform has this GPU, or the platform is wrong and is refused later
        return ()
    if chosen.accelerator.name.startswith(usual.accelerator.name):
        return ()
    return (f'the runs used "{gpu}", but {chosen.profile.id} has {chosen.accelerator.name}',)


def _setting(platform: str, **about: Any) -> Setting:
    try:
        return setting(platform, **about)
    except InputError as error:
        named = [one if one.path else one._replace(path="--platform") for one in error.problems]
        raise InputError(named) from None


def _compare(run: RecordedRun, settings: Setting, *, first: bool) -> ComparedRun:
    measured = run.measured()
    prediction = predict(run, settings, first=first)
    predicted, naive, intervals = prediction.seconds, prediction.naive, prediction.intervals
    names = dict.fromkeys([*measured, *predicted])
    passes = tuple(
        ComparedPass(
            name,
            measured.get(name),
            predicted.get(name),
            naive.get(name),
            intervals.get(name),
            prediction.compared.get(name),
        )
        for name in names
        if first or name != "first pass"
    )
    streams: tuple[StreamRow, ...] = ()
    layers = None
    if prediction.decode is not None and prediction.model is not None:
        streams = stream_rows(run, prediction.decode)
        layers = layer_starts(run, prediction.model, prediction.decode)
    blocks = None if run.engine is None else (run.engine.kv_blocks, prediction.kv_blocks)
    return ComparedRun(run, passes, prediction.reason, prediction.remarks, streams, layers, blocks)


def errors(runs: Iterable[ComparedRun], *names: str, naive: bool = False) -> Errors | None:
    """Return the errors of the passes ``names`` over all runs that have both times; None if none has.

    Errors of the simulation also state how many measured times are inside the 80 % interval.
    """
    passes = [one for run in runs for name in names if (one := run.find(name)) is not None]
    values = [error for one in passes if (error := one.naive_error if naive else one.error) is not None]
    if not values:
        return None
    found = Errors(len(values), sum(map(abs, values)) / len(values), max(values, key=abs))
    widths = [one.half_width for one in passes if one.inside is not None and one.half_width is not None]
    if naive or len(widths) < len(values):
        return found
    return found._replace(inside=sum(bool(one.inside) for one in passes), half_width=median(widths))


def to_dict(files: Sequence[ComparedFile]) -> dict[str, Any]:
    """Return the comparison as plain data, with times in seconds."""
    runs, left_out = _summarized(files)
    summary = {
        name: {
            "predicted": _plain(errors(runs, name)),
            "naive": _plain(errors(runs, name, naive=True)),
        }
        for name in _SUMMARY_PASSES
    }
    return {
        "schema": SCHEMA,
        "files": [
            {
                "path": str(file.path),
                "platform": file.platform,
                "machine": file.machine,
                "remarks": list(file.remarks),
                "runs": [_run(run) for run in file.runs],
            }
            for file in files
        ],
        "summary": {"runs": len(runs), "left_out": left_out, **summary},
    }


def _summarized(files: Sequence[ComparedFile]) -> tuple[list[ComparedRun], int]:
    """Return the runs whose errors are summarized, and the number of those that are left out: in which
    kernels were compiled, which no prediction contains."""
    runs = [run for file in files for run in file.runs]
    found = [run for run in runs if not run.run.compilations]
    return found, len(runs) - len(found)


def _plain(summary: Errors | None) -> dict[str, Any] | None:
    return {key: value for key, value in summary._asdict().items() if value is not None} if summary else None


def _run(compared: ComparedRun) -> dict[str, Any]:
    run, layers = compared.run, compared.layers
    return {
        "name": run.name,
        "model": run.model,
        "workload": run.workload,
        **({} if run.stream is None else {"stream": run.stream}),
        "ranks": run.ranks,
        "offload": run.offload,
        "ds_config": run.ds_config,
        "strategy": run.strategy,
        **({} if compared.kv_blocks is None else _blocks(*compared.kv_blocks)),
        "reason": compared.reason or None,
        "remarks": list(compared.remarks),
        "passes": [
            {
                **one._replace(compared=None)._asdict(),
                **({} if one.compared is None else {"compared": one.compared._asdict()}),
                **by_name(one, "inside error naive_error"),
            }
            for one in compared.passes
        ],
        "streams": [row._asdict() for row in compared.streams],
        "layers": None
        if layers is None
        else {
            "measured": list(layers.measured),
            "simulated": list(layers.simulated),
            "largest_deviation": layers.largest,
        },
    }


def _blocks(measured: int, predicted: int | None) -> dict[str, Any]:
    error = _relative(predicted, measured)
    return {"kv_blocks": {"measured": measured, "predicted": predicted, "error": error}}


_SUMMARY_PASSES = ("decode", "prefill", "step", "ttft mean", "tpot mean")
"""The passes whose errors over all files are summarized."""
_TIMES = ("measured", "predicted", "error", "80 % interval", "inside", "naive", "error")
_HEAD = ("run", "ranks", "offload", "pass", *_TIMES)
_RIGHT = {1, 4, 5, 6, 7, 9, 10}
_LONGEST = 48
_LEGEND = (
    "times in ms; decode is the median step; 80 % of measured times are expected inside the interval; naive "
    "is bytes over bandwidth with everything else hidden"
)
_PER_STEP = "one decode step on rank 0, ms"
_PER_STEP_LEGEND = (
    "measured: tracing slows the host thread, which waits within fetches; gathers include the wait for other "
    "ranks, and move includes appends to the cache (part of compute in the simulation)"
)


def comparison_text(files: Sequence[ComparedFile], *, streams: bool = False) -> str:
    """Return a table for each file with the reasons of missing predictions, and the summary of all files."""
    lines: list[str] = []
    for file in files:
        lines += _file(file)
        if streams:
            lines += [line for run in file.runs for line in _streams(run)]
            lines.append(_PER_STEP_LEGEND)
        lines.append("")
    return "\n".join((*lines, *_summary(files)))


def _file(file: ComparedFile) -> Iterator[str]:
    yield printable(f"{file.path}, predicted with {file.platform}")
    yield from (printable(f"remark: {text}") for text in file.remarks)
    rows = [row for run in file.runs for row in _rows(run)]
    if rows:
        yield from (line.rstrip() for line in columns([_HEAD, *rows], right=_RIGHT))
        yield _LEGEND
    engines = {
        (one.run.engine, one.kv_blocks): f"of {one.run.name}" for one in reversed(file.runs) if one.kv_blocks
    }
    for (_, (measured, predicted)), whose in reversed(engines.items()):
        stated = (
            "stated" if predicted is None else f"predicted {predicted:,}, {predicted / measured - 1:+.1%}"
        )
        yield printable(f"KV blocks {whose}: {measured:,} ({stated})")
    for run in file.runs:
        if run.reason:
            yield printable(f"{run.run.name}: no prediction: {run.reason}")
    by_message: dict[str, list[str]] = {}
    for run in file.runs:
        for text in run.remarks:
            by_message.setdefault(text, []).append(run.run.name)
    for text, names in by_message.items():
        subject = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        yield printable(f"remark on {subject}: {text}")


def _rows(compared: ComparedRun) -> Iterator[tuple[str, ...]]:
    run = compared.run
    name = run.name if len(run.name) <= _LONGEST else f"{run.name[: _LONGEST - 1]}…"
    row_head = (name, str(run.ranks), offload_words(run.offload, run.optimizer, training=run.training))
    for one in compared.passes:
        times = (_ms(one.measured), _ms(one.predicted), _percent(one.error))
        ends = f"{_ms(one.interval[0])} to {_ms(one.interval[1])}" if one.interval else ""
        inside = {True: "yes", False: "no", None: ""}[one.inside]
        yield (*row_head, one.name, *times, ends, inside, _ms(one.naive), _percent(one.naive_error))
        row_head = ("", "", "")


def _streams(compared: ComparedRun) -> Iterator[str]:
    if not compared.streams:
        return
    yield ""
    yield printable(f"{compared.run.name}, {plural(compared.run.ranks, 'rank')}: {_PER_STEP}")
    rows = [(row.name, _stream(row, row.measured), _stream(row, row.simulated)) for row in compared.streams]
    layers = compared.layers
    if layers is not None:
        last = len(layers.measured) - 1
        rows += [
            (f"layer {index} begins", _ms(layers.measured[index]), _ms(layers.simulated[index]))
            for index in dict.fromkeys((0, last // 2, last))
        ]
    yield from (
        f"  {line}".rstrip() for line in columns([("", "measured", "simulated"), *rows], right={1, 2})
    )
    if layers is not None:
        number = max(range(len(layers.deviations)), key=lambda index: abs(layers.deviations[index]))
        yield f"  layers begin up to {layers.largest:.1%} of the step too early or too late (layer {number})"


def _stream(row: StreamRow, value: float | None) -> str:
    return _ms(value) if row.unit == "s" or value is None else format_bytes(value)


def _summary(files: Sequence[ComparedFile]) -> Iterator[str]:
    runs, left_out = _summarized(files)
    parts = [plural(len(runs), "run")]
    if left_out:
        which = f"{left_out} more {'is' if left_out == 1 else 'are'}"
        parts = [f"{parts[0]}; {which} left out, as kernels were compiled while they were timed"]
    for name in _SUMMARY_PASSES:
        ours, naive = errors(runs, name), errors(runs, name, naive=True)
        if ours:
            text = f"{name} ({ours.runs}): error {_error_text(ours)}"
            if ours.inside is not None:
                text += f", {ours.inside} inside the 80 % interval"
            parts.append(f"{text}; naive {_error_text(naive)}" if naive else text)
    yield ". ".join(parts) + "."


def _error_text(summary: Errors) -> str:
    return f"{summary.mean:.1%} on average, {summary.worst:+.1%} at worst"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"
