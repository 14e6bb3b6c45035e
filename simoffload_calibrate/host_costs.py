"""Small models whose passes take almost only the time of the Python thread, and what each cost adds to them.

In a small model the GPU and the copies are negligible, so a pass lasts as long as the host thread works: the
sum of costs, each times the number of its events. In decode steps the replay of DeepSpeed's coordinator gives
these numbers, in training simulations with one cost slightly larger. Per-module traces of decode steps show
how the sum divides among launches and hooks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simoffload.engine import execute
from simoffload.errors import InputError, Problem
from simoffload.hardware import TrainingCosts
from simoffload.strategies.passes.timing import operations
from simoffload.strategies.plan import StepPart
from simoffload.strategies.programs.zero_inference import ZeroInferencePlan
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from simoffload.strategies.zero.coordinator import CoordinatorSink, Tensor
from simoffload_calibrate.micro.noise import lower_quartile

INFERENCE = (
    "module_call",
    "operation",
    "linear_call",
    "hook",
    "hook_input",
    "fetch_call",
    "prefetch_call",
    "gathered_parameter",
    "copy_call",
    "fetch_wait",
    "released_parameter",
    "pass_overhead",
    "collective_call",
)
"""Costs of ``DeepSpeedCosts`` that small models show; the last one only on several ranks."""
TRAINING = tuple(TrainingCosts.model_fields)
COSTS = (*INFERENCE, *TRAINING)
REAL_MODELS = 1.04
"""The factor on times for models of real size, whose hundreds of modules do not stay in the CPU's caches.

Launches take 1.03 times and hooks after a module 1.09 times as long (medians over the fit set of per-module
traces against those of small models), together about 60 % of the thread's time; hooks before a
module cannot be separated from waiting and are assumed unchanged: 0.6 x 1.06 + 0.4. This is an estimate from
the fit set; with nothing offloaded the traces show 1.00 (docs/measurements/host-thread.md)."""
_BACKWARD = ("backward_call", "gradient", "reduce_call", "boundary_gradient")
_BACKWARD_OF_REAL_MODELS = 1.12
"""The same factor for costs of the backward pass: a layer of OPT takes 8.3 ms in a model of 8 layers, 9.3 ms
in one of 24 and 9.2 ms in one of 48 (docs/measurements/training.md)."""
_DEEP = 16
"""The number of layers from which a model's modules exceed the CPU's caches, as those of real models do: its
costs have the factors already."""
_HEAD = 2
"""The model and its stack, whose own code runs once in a pass and is the cost ``pass_overhead``."""
_LAUNCH = ("module_call", "operation", "linear_call")
SCALED = frozenset(COSTS) - {"graph"}
"""Costs that are times, and so longer on a slower host; the other is a share."""
_NUDGE = {"graph": 0.05}
"""The increase of a cost for counting its events; others get ``_NUDGE_S``."""
_NUDGE_S = 20e-6  # [s]
_PICO = 1e-12
_FEW = 8
"""The number of repetitions from which a lower quartile is used: parts of training steps have four to six."""
TRACED = "traced"


class Observation(NamedTuple):
    """A measured time of a small model, and how it depends on the costs near some values of them."""

    model: str
    """The name of the small model."""
    kind: str
    """decode, forward, backward, optimizer, or traced: modules with equal events in a decode step."""
    ranks: int
    seconds: float
    """[s]"""
    spread: float
    """Relative standard deviation of that time by its repetitions; 0 if there is one only."""
    base: float
    """[s] Time that no cost explains: copies and kernels that the thread waits for."""
    counts: NDArray[np.float64]
    """Change of the time with each of ``COSTS``: its number of events, or the time that a share lengthens."""

    def predicted(self, values: Mapping[str, float]) -> float:
        """Return the time [s] with these costs of ``COSTS``."""
        return self.base + float(self.counts @ np.array([values[key] for key in COSTS]))


Plan = ZeroInferencePlan | ZeroTrainingPlan


def of_real_models(values: Mapping[str, float]) -> dict[str, float]:
    """Return the costs in models of real size from those in shallow ones."""
    factors = dict.fromkeys(SCALED, REAL_MODELS) | dict.fromkeys(_BACKWARD, _BACKWARD_OF_REAL_MODELS)
    return {key: value * factors.get(key, 1.0) for key, value in values.items()}


def _is_deep(plan: Plan) -> bool:
    return plan.model.num_hidden_layers >= _DEEP


def _of_repetitions(times: Sequence[float]) -> tuple[float, float]:
    """Return the lower quartile of the times [s], of fewer than ``_FEW`` their median, and its relative
    standard deviation, 0 for a single time.

    A host that is shared with others has stretches of time, of seconds to minutes, in which everything takes
    up to twice as long; the lower quartile is the time without them. Of a few times it would be nearly the
    shortest, which no real run reaches, so their median is returned (docs/measurements/host-thread.md). By
    how much a host changes its speed is its factor's spread.
    """
    middle = lower_quartile(times) if len(times) >= _FEW else float(median(times))
    return middle, float(np.log(times).std() / np.sqrt(len(times)))


def simulated(plan: Plan, part: StepPart | None, values: Mapping[str, float]) -> float:
    """Return the simulated time [s] of a decode step, or of a ``part`` of a training step.

    ``values`` are costs of shallow models, used instead of the machine's.
    """
    machine = plan.machine
    if _is_deep(plan):
        values = of_real_models(values)
    update: dict[str, Any] = {}
    for name in ("deepspeed", "training"):
        known = getattr(machine.host, name)
        keys = values.keys() & type(known).model_fields.keys()
        costs = {key: getattr(known, key).model_copy(update={"value": values[key]}) for key in keys}
        update[name] = known.model_copy(update=costs)
    host = machine.host.model_copy(update=update)
    plan = replace(plan, machine=replace(machine, host=host))
    if isinstance(plan, ZeroTrainingPlan):
        assert part is not None
        return execute(plan.schedule(part)).makespan * _PICO
    decode = plan.forward("decode 1", 1, plan.workload.prompt_length + 1)
    return execute(plan.schedule(decode)).makespan * _PICO


# -- decode steps ---------------------------------------------------------------------------------


def decode_observation(
    run: Mapping[str, Any], plan: ZeroInferencePlan, around: Mapping[str, float]
) -> Observation:
    """Return the decode step of a small model; ``around`` are costs near the machine's.

    The thread is never idle long enough to hide a cost, so that each adds its number of events.
    """
    events: Counter[str] = Counter({"pass_overhead": 1})
    for one in module_events(plan):
        events.update(one)
    deep = of_real_models(dict.fromkeys(COSTS, 1.0)) if _is_deep(plan) else {}
    counts = np.array([events[key] * deep.get(key, 1.0) for key in COSTS])
    base = simulated(plan, None, around) - float(counts @ np.array([around[key] for key in COSTS]))
    return Observation(
        run["name"], "decode", run["ranks"], *_of_repetitions(_decode_times(run)), base, counts
    )


def _decode_times(run: Mapping[str, Any]) -> list[float]:
    """Return the times [s] of the decode steps without tracing."""
    return [float(one["seconds"]) for one in run["passes"] if one["repetition"] and one["name"] != "prefill"]


def rough_factor(runs: Iterable[tuple[Mapping[str, Any], Plan]], known: Mapping[str, float]) -> float:
    """Return the median of measured over simulated times with the costs ``known``, of a part of each run."""
    ratios = []
    for run, plan in runs:
        if isinstance(plan, ZeroTrainingPlan):
            part = plan.parts[0]
            times = _part_times(run, part, plan)
        else:
            part, times = None, _decode_times(run)
        if times:
            ratios.append(median(times) / simulated(plan, part, known))
    return median(ratios) if ratios else 1.0


def trace_observations(
    run: Mapping[str, Any], plan: ZeroInferencePlan, *, copy_latency: float
) -> Iterator[Observation]:
    """Return the traced times of modules with equal events, for a model on one rank.

    Launches and hooks are separate, except where a module waits for its parameters: its launch is slower
    then, which belongs to ``fetch_wait``. ``copy_latency`` [s] is the time of one small copy. Raises
    ValueError if the record has other modules than the plan.
    """
    groups: dict[tuple[tuple[str, float], ...], list[tuple[float, float]]] = defaultdict(list)
    rows = list(_rows(run, plan, copy_latency))
    for own, hooks, events, copies in rows[_HEAD:]:
        launch = {key: count for key, count in events.items() if key in _LAUNCH}
        rest = {key: count for key, count in events.items() if key not in _LAUNCH}
        if events.get("fetch_wait"):
            groups[_signature(events)].append((own + hooks, copies))
        else:
            groups[_signature(rest)].append((hooks, copies))
            if launch:
                groups[_signature(launch)].append((own, 0.0))
    head: Counter[str] = Counter({"pass_overhead": 1})
    for _, _, events, _ in rows[:_HEAD]:
        head.update(events)
    groups[_signature(head)].append(
        (sum(own + hooks for own, hooks, _, _ in rows[:_HEAD]), sum(row[3] for row in rows[:_HEAD]))
    )
    for signature, times in groups.items():
        counts = np.array([dict(signature).get(key, 0.0) for key in COSTS])
        seconds = median(time for time, _ in times)
        base = median(copies for _, copies in times)
        if seconds > 0 and counts.any():
            yield Observation(run["name"], TRACED, run["ranks"], seconds, 0.0, base, counts)


def _signature(events: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((key, float(count)) for key, count in events.items() if count))


def _rows(
    run: Mapping[str, Any], plan: ZeroInferencePlan, copy_latency: float
) -> Iterator[tuple[float, float, dict[str, float], float]]:
    """Return for each module the time of its own code and of its hooks [s], its events, and the time [s] that
    it only waits for copies."""
    trace = run["traces"]["decode 1"]["modules"]
    visits = plan.layered.visits
    if len(trace["module"]) != len(visits):
        key = f'sections.hooks.runs["{run["name"]}"].traces["decode 1"].modules'
        text = (
            f"{len(trace['module'])} modules were called, but the model has {len(visits)}; measure with the "
            "versions of docs/CALIBRATION.md, or with --skip hooks"
        )
        raise InputError([Problem("", None, None, key, text)])
    begin, fetched, launched, released = (
        np.array(trace[key]) * 1e-6 for key in ("fetch", "fetched", "launched", "released")
    )
    inside = _inside(begin, released)
    overhead = _overhead(run)
    for index, events in enumerate(module_events(plan)):
        own = float(launched[index] - fetched[index] - inside[index])
        hooks = float(fetched[index] - begin[index] + released[index] - launched[index]) - overhead
        copies = copy_latency * events.get("fetch_call", 0.0) if events.get("copy_call") else 0.0
        yield own, hooks, events, copies


def module_events(plan: ZeroInferencePlan) -> list[dict[str, float]]:
    """Return the number of events of each module of a decode step, by the names of their costs."""
    settings, ranks = plan.placement.settings, plan.placement.ranks
    copied = settings.device != "none" and settings.copies_directly(ranks)
    found = []
    for visit, seen in zip(plan.layered.visits, _events(plan), strict=True):
        events: dict[str, float] = {"hook": 1, "hook_input": visit[0].touched}
        events |= {key: float(count) for key, count in seen.items()}
        if copied:
            events["copy_call"] = events.get("gathered_parameter", 0.0)
        if ranks > 1:
            events["collective_call"] = events.get("fetch_call", 0.0) + events.get("prefetch_call", 0.0)
        for module in visit:
            for key, count in _launch_events(plan, module).items():
                events[key] = events.get(key, 0.0) + count
        found.append(events)
    return found


def _inside(begin: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time [s] of the modules that each module calls."""
    taken = np.zeros(len(begin))
    stack: list[int] = []
    for index in range(len(begin)):
        while stack and end[stack[-1]] <= begin[index]:
            stack.pop()
        if stack:
            taken[stack[-1]] += end[index] - begin[index]
        stack.append(index)
    return taken


def _overhead(run: Mapping[str, Any]) -> float:
    """Return the time [s] that tracing costs per module: the traced step minus untraced ones."""
    step = run["traces"]["decode 1"]
    more = float(step["seconds"]) - median(_decode_times(run))
    return max(0.0, more / len(step["modules"]["module"]))


def _launch_events(plan: ZeroInferencePlan, module: Any) -> dict[str, float]:
    if module.kind == "linear":
        return {"linear_call": 1, "operation": operations(plan.model, module)}
    call = 0 if module.kind in {"attention", "container"} else 1
    return {"module_call": call, "operation": operations(plan.model, module)}


class _Counter(CoordinatorSink):
    """A sink of the coordinator's replay that counts events, module by module."""

    def __init__(self) -> None:
        self.rows: list[Counter[str]] = []

    def gather(self, _handle: int, tensors: Sequence[Tensor], /, *, prefetch: bool) -> None:
        self.rows[-1]["prefetch_call" if prefetch else "fetch_call"] += 1
        self.rows[-1]["gathered_parameter"] += len(tensors)

    def fetch_event(self) -> None:
        self.rows[-1]["fetch_wait"] = 1

    def release(self, count: int, /) -> None:
        self.rows[-1]["released_parameter"] += count


def _events(plan: ZeroInferencePlan) -> list[Counter[str]]:
    counter = _Counter()
    for event in plan.layered.replay(counter):
        if event.kind == "fetch":
            counter.rows.append(Counter())
    return counter.rows


# -- training steps -------------------------------------------------------------------------------


def training_observations(
    run: Mapping[str, Any], plan: ZeroTrainingPlan, around: Mapping[str, float]
) -> Iterator[Observation]:
    """Return the parts of the training steps of a small model that were measured.

    Simulating a part with one cost slightly larger gives the number of its events.
    """
    for part in plan.parts:
        times = _part_times(run, part, plan)
        if not times:
            continue
        base = simulated(plan, part, around)
        counts = np.zeros(len(COSTS))
        for index, key in enumerate(COSTS):
            nudge = _NUDGE.get(key, _NUDGE_S)
            counts[index] = (simulated(plan, part, {**around, key: around[key] + nudge}) - base) / nudge
        base -= float(counts @ np.array([around[key] for key in COSTS]))
        yield Observation(run["name"], part.phase, run["ranks"], *_of_repetitions(times), base, counts)


def _part_times(run: Mapping[str, Any], part: StepPart, plan: ZeroTrainingPlan) -> list[float]:
    """Return the times [s] of a part of a recorded run."""
    last = plan.workload.gradient_accumulation_steps - 1

    def belongs(one: Mapping[str, Any]) -> bool:
        step = one.get("micro_step", 0)
        if one["name"] != part.phase:
            return False
        if part.phase == "forward":
            return True
        if part.phase == "optimizer" or part.boundary:
            return bool(step == last)
        return bool(step == 0 if part.micro_step == 0 else 0 < step < last)

    return [float(one["seconds"]) for one in run["passes"] if belongs(one)]


def all_repetitions(raw: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """Return the small models of a ``part`` of a record: runs, training or held_back.

    They have the passes of all rounds; the section itself keeps the quiet half of them.
    """
    passes: dict[str, list[Any]] = defaultdict(list)
    for one in raw.get("rounds", ()):
        if one["section"].startswith("hooks_"):
            for run in one["found"].get(part, ()):
                passes[run["name"]] += run["passes"]
    runs = raw["sections"].get("hooks", {}).get(part, ())
    return [{**run, "passes": passes.get(run["name"]) or run["passes"]} for run in runs]
