"""What DeepSpeed's host thread spends per event, from per-module traces of small models.

Small models make the GPU and the copies negligible: what is left of a pass is the Python thread. The
coordinator's replay says which events fell into the hooks of which module; a least-squares fit divides the
measured time of the modules among the events.
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
"""The model and its stack, whose own code runs once in a pass: they make ``pass_overhead``."""
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
"""How much longer the same code takes in models of real size, whose hundreds of modules do not stay in the
CPU's caches. Launches take 1.03 times, hooks after a module 1.09 times as long (medians over the fit set of
per-module traces against those of small models), together about 60 % of the thread's time; what is before a
module cannot be told from waiting there and is taken as unchanged: 0.6 x 1.06 + 0.4. An estimate, made with
the fit set's steps in view; nothing offloaded, the traces show 1.00 (docs/measurements/host-thread.md)."""
_ROUNDS = 3
"""Corrections by simulation; the third changes nothing visible."""
_REWEIGHTINGS = 20
_NEGLIGIBLE = 2e-6  # [s] residuals below this are not weighted up further


class CallTimes(NamedTuple):
    """One call of a module in a traced decode step."""

    launch: float
    """[s] the module's own code, without the modules that it calls."""
    before: float
    """[s] of the hooks before it."""
    after: float
    """[s] of the hooks after it."""
    events: Mapping[str, float]
    """How often each cost falls due."""
    copies: float
    """[s] in which the thread only waits for copies."""


class Traced(NamedTuple):
    """A run of a small model."""

    rows: tuple[CallTimes, ...]
    seconds: float
    """[s] of a decode step that was not traced."""
    plan: ZeroInferencePlan

    @property
    def collective(self) -> bool:
        """Whether parameters are put together from several ranks."""
        return not self.plan.placement.settings.copies_directly(self.plan.placement.ranks)

    @property
    def calls(self) -> float:
        """How often a step gathers."""
        keys = ("fetch_call", "prefetch_call")
        return sum(row.events.get(key, 0.0) for row in self.rows for key in keys)

    def simulated(self, values: Mapping[str, float]) -> float:
        """[s] of a decode step with these costs in place of the machine's."""
        machine = self.plan.machine
        known = machine.host.deepspeed
        update = {key: getattr(known, key).model_copy(update={"value": values[key]}) for key in values}
        host = machine.host.model_copy(update={"deepspeed": known.model_copy(update=update)})
        plan = replace(self.plan, machine=replace(machine, host=host))
        decode = plan.forward("decode 1", 1, plan.workload.prompt_length + 1)
        return execute(plan.schedule(decode)).makespan * 1e-12


class HostCosts(NamedTuple):
    """The fit."""

    values: dict[str, float]
    """[s] by the names of ``DeepSpeedCosts``; those that the traces do not show are left out."""
    mean_residual: float
    """Mean relative difference between fitted and measured time of a pass."""
    worst_residual: float
    rows: int


def traced(run: Mapping[str, Any], plan: ZeroInferencePlan, *, copy_latency: float) -> Traced:
    """Join a record of a run with the plan's events, module by module.

    ``copy_latency`` [s] is what one small copy takes. Raises ValueError if the modules are not the plan's.
    """
    rows = tuple(_rows(run, plan, copy_latency))
    return Traced(rows, _untraced(run), plan)


def _rows(run: Mapping[str, Any], plan: ZeroInferencePlan, copy_latency: float) -> Iterator[CallTimes]:
    trace = run["traces"]["decode 1"]["modules"]
    visits = plan.layered.visits
    if len(trace["module"]) != len(visits):
        raise ValueError(f"{len(trace['module'])} modules were called, the model has {len(visits)}")
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
    """Fit the costs to runs on one rank, and what a gathering call costs more to those on several.

    First the modules' own code, then the hooks before and after it. A linear layer launches more slowly
    when its parameters have just come: that goes to ``fetch_wait``. Least absolute residuals, so that one
    late interrupt does not count, no cost below zero; then all are scaled by one factor so that the
    simulated steps take as long as the untraced ones of the same models, in which interrupts do count.
    ``collective_call`` makes the same true of several ranks.
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
    """[s] of a row that the costs known so far do not explain."""
    known = sum(values.get(key, 0.0) * count for key, count in row.events.items() if key not in _LAUNCH)
    return _launch_left(row, values) + row.before + row.after - row.copies - known


def _launch_left(row: CallTimes, values: Mapping[str, float]) -> float:
    """[s] that a linear layer takes to launch beyond the costs known; other modules do not differ."""
    if not row.events.get("linear_call"):
        return 0.0
    return row.launch - sum(values.get(key, 0.0) * row.events.get(key, 0.0) for key in _LAUNCH)


def _solve(keys: Sequence[str], rows: Sequence[CallTimes], target: Sequence[float]) -> dict[str, float]:
    """The costs that explain ``target``; keys that no row has are left out."""
    table = np.array([[row.events.get(key, 0.0) for key in keys] for row in rows])
    present = [index for index, key in enumerate(keys) if table.size and table[:, index].any()]
    if not present:
        return {}
    found = non_negative(table[:, present], np.array(target))
    return {keys[index]: float(value) for index, value in zip(present, found, strict=True)}


def non_negative(
    table: NDArray[np.float64], target: NDArray[np.float64], *, negligible: float = _NEGLIGIBLE
) -> NDArray[np.float64]:
    """Least absolute residuals by reweighting; a column that would become negative is set to zero.

    Residuals below ``negligible`` are not weighted up further.
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
    """[s] that the modules called by each module take."""
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
    """[s] that tracing costs a module: traced step less untraced ones."""
    step = run["traces"]["decode 1"]
    more = float(step["seconds"]) - _untraced(run)
    return max(0.0, more / len(step["modules"]["module"]))


def _untraced(run: Mapping[str, Any]) -> float:
    """[s] median of the decode steps."""
    steps = (one for one in run["passes"] if one["repetition"] and one["name"] != "prefill")
    return median(float(one["seconds"]) for one in steps)


def _launch_events(plan: ZeroInferencePlan, module: Any) -> dict[str, float]:
    if module.kind == "linear":
        return {"linear_call": 1, "operation": operations(plan.model, module)}
    call = 0 if module.kind in {"attention", "container"} else 1
    return {"module_call": call, "operation": operations(plan.model, module)}


class _Counter(CoordinatorSink):
    """Counts the coordinator's calls, module by module."""

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
