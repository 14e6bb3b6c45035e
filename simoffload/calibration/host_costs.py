"""Fit of the time that DeepSpeed's host thread spends per event, from per-module traces of small models.

In small models the GPU and the copies are negligible, so a pass lasts as long as the Python thread. The
replay of the coordinator tells which events happen in the hooks of each module; a least-squares fit divides
the measured time of the modules among the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simoffload.engine import execute
from simoffload.errors import InputError, Problem
from simoffload.strategies.coordinator import CoordinatorSink, Tensor
from simoffload.strategies.timing import operations
from simoffload.strategies.zero_inference import ZeroInferencePlan

__all__ = [
    "REAL_MODELS",
    "CallTimes",
    "HostCosts",
    "Traced",
    "fit_host_costs",
    "non_negative",
    "traced",
]

_HEAD = 2
"""The model and its stack, whose own code runs once in a pass and is the cost ``pass_overhead``."""
_LAUNCH = ("module_call", "operation", "linear_call")
_BEFORE = (
    "hook",
    "hook_input",
    "fetch_call",
    "prefetch_call",
    "gathered_parameter",
    "copy_call",
    "fetch_wait",
)
_AFTER = ("hook", "released_parameter")
REAL_MODELS = 1.04
"""The factor on times for models of real size, whose hundreds of modules do not stay in the CPU's caches.

Launches take 1.03 times and hooks after a module 1.09 times as long (medians over the fit set of per-module
traces against those of small models), together about 60 % of the thread's time; hooks before a
module cannot be separated from waiting and are assumed unchanged: 0.6 x 1.06 + 0.4. This is an estimate from
the fit set; with nothing offloaded the traces show 1.00 (docs/measurements/host-thread.md)."""
_ROUNDS = 3
"""The number of corrections by simulation; the third has no visible effect."""
_REWEIGHTINGS = 20
_NEGLIGIBLE = 2e-6  # [s] residuals below this are not weighted up further


class CallTimes(NamedTuple):
    """One call of a module in a traced decode step."""

    launch: float
    """[s] Time of the module's own code, without the modules that it calls."""
    before: float
    """[s] Time of the hooks before the module."""
    after: float
    """[s] Time of the hooks after the module."""
    events: Mapping[str, float]
    """The number of events, by the name of their cost."""
    copies: float
    """[s] Time that the thread only waits for copies."""


class Traced(NamedTuple):
    """A traced run of a small model, with its plan."""

    rows: tuple[CallTimes, ...]
    seconds: float
    """[s] Time of a decode step without tracing."""
    plan: ZeroInferencePlan

    @property
    def collective(self) -> bool:
        """Whether parameters are gathered from several ranks."""
        return not self.plan.placement.settings.copies_directly(self.plan.placement.ranks)

    @property
    def calls(self) -> float:
        """The number of gathers in a step."""
        keys = ("fetch_call", "prefetch_call")
        return sum(row.events.get(key, 0.0) for row in self.rows for key in keys)

    def simulated(self, values: Mapping[str, float]) -> float:
        """Return the simulated time [s] of a decode step with these costs instead of the machine's."""
        machine = self.plan.machine
        known = machine.host.deepspeed
        update = {key: getattr(known, key).model_copy(update={"value": values[key]}) for key in values}
        host = machine.host.model_copy(update={"deepspeed": known.model_copy(update=update)})
        plan = replace(self.plan, machine=replace(machine, host=host))
        decode = plan.forward("decode 1", 1, plan.workload.prompt_length + 1)
        return execute(plan.schedule(decode)).makespan * 1e-12


class HostCosts(NamedTuple):
    """The fitted costs of inference and the residuals of the fit."""

    values: dict[str, float]
    """[s] Costs by the names of ``DeepSpeedCosts``; costs that the traces do not contain are absent."""
    mean_residual: float
    """The mean relative difference between the fitted and the measured time of a pass."""
    worst_residual: float
    rows: int


def traced(run: Mapping[str, Any], plan: ZeroInferencePlan, *, copy_latency: float) -> Traced:
    """Combine the record of a run with the plan's events, module by module.

    ``copy_latency`` [s] is the time of one small copy. Raises InputError if the record has other modules
    than the plan.
    """
    rows = tuple(_rows(run, plan, copy_latency))
    return Traced(rows, _untraced(run), plan)


def _rows(run: Mapping[str, Any], plan: ZeroInferencePlan, copy_latency: float) -> Iterator[CallTimes]:
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
    offloaded = plan.placement.settings.device != "none"
    direct = plan.placement.settings.copies_directly(plan.placement.ranks)
    for index, (visit, seen) in enumerate(zip(visits, _events(plan), strict=True)):
        events: dict[str, float] = {"hook": 1, "hook_input": visit[0].touched}
        events |= {key: float(count) for key, count in seen.items()}
        copies = 0.0
        if offloaded and direct:
            events["copy_call"] = events.get("gathered_parameter", 0.0)
            copies = copy_latency * events.get("fetch_call", 0.0)
        own = float(launched[index] - fetched[index] - inside[index])
        before = float(fetched[index] - begin[index]) - overhead / 2
        after = float(released[index] - launched[index]) - overhead / 2
        for module in visit:
            for key, count in _launch_events(plan, module).items():
                events[key] = events.get(key, 0.0) + count
        yield CallTimes(own, before, after, events, copies)


def fit_host_costs(runs: Iterable[Traced]) -> HostCosts:
    """Fit the costs to runs on one rank, and the extra cost of a gathering call to runs on several ranks.

    The modules' own code comes first, then the hooks before and after it. A linear layer launches more
    slowly when its parameters have just arrived; that time belongs to ``fetch_wait``. Absolute residuals are
    minimized, so that a single late interrupt does not matter, and no cost is negative. Then one factor
    scales all costs so that the simulated steps take as long as the untraced ones of the same models, which
    include interrupts. ``collective_call`` does the same for several ranks.
    """
    every = list(runs)
    alone = [run for run in every if not run.collective]
    together = [run for run in every if run.collective]
    values = _one_rank([row for run in alone for row in run.rows[_HEAD:]])
    heads = [sum(row.launch + _left(row, values) for row in run.rows[:_HEAD]) for run in alone]
    values["pass_overhead"] = max(0.0, median(heads))
    for _ in range(_ROUNDS):
        factor = sum(run.seconds for run in alone) / sum(run.simulated(values) for run in alone)
        values = {key: value * factor for key, value in values.items()}
    if together:
        calls = sum(run.calls for run in together)
        values["collective_call"] = 0.0
        for _ in range(_ROUNDS):
            missing = sum(run.seconds - run.simulated(values) for run in together)
            values["collective_call"] = max(0.0, values["collective_call"] + missing / calls)
    residuals = [abs(run.simulated(values) / run.seconds - 1) for run in every]  # of the small models
    rows = sum(len(run.rows) for run in every)
    values = {key: value * REAL_MODELS for key, value in values.items()}
    return HostCosts(values, float(np.mean(residuals)), max(residuals), rows)


def _one_rank(rows: Sequence[CallTimes]) -> dict[str, float]:
    quiet = [row for row in rows if not row.events.get("fetch_wait")]
    values = _solve(_LAUNCH, quiet, [row.launch for row in quiet])
    values |= _solve(_BEFORE, rows, [row.before - row.copies for row in rows])
    after = _solve(_AFTER, rows, [row.after for row in rows])
    values["released_parameter"] = after.get("released_parameter", 0.0)
    values["hook"] = values.get("hook", 0.0) + after.get("hook", 0.0)
    slower = [_launch_left(row, values) for row in rows if row.events.get("fetch_wait")]
    values["fetch_wait"] = values.get("fetch_wait", 0.0) + (max(0.0, median(slower)) if slower else 0.0)
    return values


def _left(row: CallTimes, values: Mapping[str, float]) -> float:
    """Return the time [s] of a row that the costs known so far do not explain."""
    known = sum(values.get(key, 0.0) * count for key, count in row.events.items() if key not in _LAUNCH)
    return _launch_left(row, values) + row.before + row.after - row.copies - known


def _launch_left(row: CallTimes, values: Mapping[str, float]) -> float:
    """Return the launch time [s] of a linear layer beyond the known costs; 0 for other modules."""
    if not row.events.get("linear_call"):
        return 0.0
    return row.launch - sum(values.get(key, 0.0) * row.events.get(key, 0.0) for key in _LAUNCH)


def _solve(keys: Sequence[str], rows: Sequence[CallTimes], target: Sequence[float]) -> dict[str, float]:
    """Return the costs that explain ``target``; keys that no row has are absent."""
    table = np.array([[row.events.get(key, 0.0) for key in keys] for row in rows])
    present = [index for index, key in enumerate(keys) if table.size and table[:, index].any()]
    if not present:
        return {}
    costs = non_negative(table[:, present], np.array(target))
    return {keys[index]: float(value) for index, value in zip(present, costs, strict=True)}


def non_negative(
    table: NDArray[np.float64], target: NDArray[np.float64], *, negligible: float = _NEGLIGIBLE
) -> NDArray[np.float64]:
    """Minimize absolute residuals by reweighting; a column that would become negative is set to zero.

    The weight of residuals does not grow further below ``negligible``.
    """
    used = list(range(table.shape[1]))
    result = np.zeros(table.shape[1])
    while used:
        weight = np.ones(len(target))
        for _ in range(_REWEIGHTINGS):
            found, *_ = np.linalg.lstsq(table[:, used] * weight[:, None], target * weight, rcond=None)
            residual = np.abs(target - table[:, used] @ found)
            weight = 1 / np.sqrt(np.maximum(residual, negligible))
        if found.min() >= 0:
            result[used] = found
            return result
        del used[int(found.argmin())]
    return result


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
    more = float(step["seconds"]) - _untraced(run)
    return max(0.0, more / len(step["modules"]["module"]))


def _untraced(run: Mapping[str, Any]) -> float:
    """Return the median time [s] of the decode steps without tracing."""
    steps = (one for one in run["passes"] if one["repetition"] and one["name"] != "prefill")
    return median(float(one["seconds"]) for one in steps)


def _launch_events(plan: ZeroInferencePlan, module: Any) -> dict[str, float]:
    if module.kind == "linear":
        return {"linear_call": 1, "operation": operations(plan.model, module)}
    call = 0 if module.kind in {"attention", "container"} else 1
    return {"module_call": call, "operation": operations(plan.model, module)}


class _Counter(CoordinatorSink):
    """A sink of the coordinator's replay that counts events, module by module."""

    def __init__(self) -> None:
        self.rows: list[Counter[str]] = []

    def gather(self, tensors: Sequence[Tensor], /, *, prefetch: bool) -> int:
        self.rows[-1]["prefetch_call" if prefetch else "fetch_call"] += 1
        self.rows[-1]["gathered_parameter"] += len(tensors)
        return len(self.rows)

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
