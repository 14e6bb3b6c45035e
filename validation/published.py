"""This module predicts published figures; ``published/`` has a CSV file per publication with a row per
figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from simoffload.extensions.storage.result import CheckpointResult
from simoffload.models import SINGLE
from simoffload.planning.compare import PublishedRatio
from simoffload.planning.confidence import confidence
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import StorageTraffic, TrainingResult
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import fit, simulate
from simoffload.strategies.base import movable
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from simoffload.strategies.training.state import DEEPSPEED_ADAM, TORCH_ADAM, TORCH_ADAM_NEW
from validation.references import PublishedRow, Reference, Value, load_references

_BILLION = 1e9
_GIB = 1 << 30


def ratio_rows() -> list[PublishedRatio]:
    """Return the published ratios between tiers for the table of the package."""
    ratios = [one for one in load_references() if one.metric == "ratio" and one.target]
    return [
        PublishedRatio(one.scenario, one.target, one.relative_to, float(one.published), one.note)
        for one in ratios
    ]


# -- metrics of a scenario itself: bytes, requests, and Adam on the CPU alone ---------------------


def _plan(scenario: LoadedScenario) -> ZeroTrainingPlan:
    plan = scenario.plan()
    if not isinstance(plan, ZeroTrainingPlan):
        raise TypeError(f"{scenario.name}: this figure is about training under ZeRO")
    return plan


def _requests(scenario: LoadedScenario, *, written: bool) -> float:
    """Count one rank's requests of a complete aio block, from the start to the end of the first step."""
    plan = _plan(scenario)
    block, threads = plan.settings.params.block_size, plan.settings.params.threads
    transferred = (one for stage in plan.first_io for one in stage.transfers if one.written is written)
    return float(sum(one.full_requests(block=block, threads=threads) for one in transferred))


def _first_gib(scenario: LoadedScenario, *, written: bool) -> float:
    """Return the traffic of all ranks [GiB], from the start to the end of the first step."""
    transfers = (one for stage in _plan(scenario).first_io for one in stage.transfers)
    size = sum(one.size for one in transfers if one.written is written)
    return size * scenario.scenario.strategy.ranks / _GIB


def _adam(scenario: LoadedScenario, numel: float, implementation: str = "deepspeed") -> float:
    """Return the time of Adam on one rank's threads [s], with all ranks of a host at work.

    Bytes over the rate that the host's profile gives for so many threads: that of Adam for DeepSpeed's
    kernel, that of element-by-element loops for PyTorch.
    """
    ranks = scenario.machine.ranks_per_node(scenario.scenario.strategy.ranks)
    threads = _plan(scenario).places.threads
    cpu = scenario.machine.host.cpu_optimizer
    if implementation == "torch":
        traffic = TORCH_ADAM + TORCH_ADAM_NEW * SINGLE
        return traffic * numel / cpu.loops_rate(threads, processes=ranks)
    return DEEPSPEED_ADAM * numel / cpu.rate(threads, processes=ranks)


PLAN_METRICS: dict[str, Callable[[LoadedScenario], float]] = {
    "fits": lambda scenario: float(fit(scenario).fits),
    "weights_gb": lambda scenario: scenario.model.weight_bytes / 1e9,
    "requests_read": lambda scenario: _requests(scenario, written=False),
    "requests_written": lambda scenario: _requests(scenario, written=True),
    "first_read_gib": lambda scenario: _first_gib(scenario, written=False),
    "first_written_gib": lambda scenario: _first_gib(scenario, written=True),
    "space_gib": lambda scenario: (
        sum(use.needed for use in fit(scenario).capacity if use.kind not in {"hbm", "dram"}) / _GIB
    ),
    "checkpoint_gib": lambda scenario: movable(scenario.plan())[0] / _GIB,
    # all of the model's parameters on one rank
    "cpu_adam_ms": lambda scenario: 1e3 * _adam(scenario, scenario.model.num_parameters),
    "cpu_adam_s_per_billion": lambda scenario: _adam(scenario, _BILLION),
    "torch_adam_s_per_billion": lambda scenario: _adam(scenario, _BILLION, "torch"),
}
"""The metrics that do not need a simulation."""

# -- metrics of a result --------------------------------------------------------------------------


def _named(metric: str) -> Callable[[SimulationResult], float | None]:
    return lambda result: result.metrics()[metric]


def _until_it_returns(result: SimulationResult) -> float | None:
    """Return the rate of a checkpoint until the call of save returns [GiB/s]."""
    metrics = result.metrics()
    size, time = metrics["checkpoint_bytes"], metrics["blocking_s"]
    return size / time / _GIB if size and time else None


def _traffic_per_parameter(result: SimulationResult, size: Callable[[StorageTraffic], int]) -> float | None:
    """Return the traffic of a training step per parameter on all storage tiers [B]."""
    traffic = result.traffic if isinstance(result, TrainingResult) else ()
    return sum(map(size, traffic)) / result.parameters


def _blocks(result: SimulationResult) -> Any:
    """Return the result of a scenario with a connector of the cache."""
    return result


RESULT_METRICS: dict[str, Callable[[SimulationResult], float | None]] = {
    **{
        name: _named(name)
        for kind in (InferenceResult, TrainingResult, CheckpointResult)
        for name in kind.declared
    },
    "decode_tokens_per_s_per_gpu": lambda result: (
        (result.metrics()["decode_tokens_per_s"] or 0.0) / result.ranks
    ),
    "per_token_ms": lambda result: (result.unit_s or 0.0) * 1e3,
    "kv_load_ms": lambda result: 1e3 * _blocks(result).load.time_s,
    "kv_load_gb_per_s": lambda result: (
        sum(one.read for one in _blocks(result).traffic) / _blocks(result).load.time_s / 1e9
    ),
    "kv_both_ways_gb_per_s": lambda result: (
        sum(one.read + one.written for one in _blocks(result).traffic) / _blocks(result).load.time_s / 1e9
    ),
    "ttft_and_store_ms": lambda result: 1e3 * (_blocks(result).prefill.time_s + _blocks(result).store.time_s),
    "e2e_days": lambda result: (result.metrics()["e2e_s"] or 0.0) / 86_400,
    "gib_per_s": _until_it_returns,
    "read_b_per_parameter": lambda result: _traffic_per_parameter(result, lambda traffic: traffic.read),
    "written_b_per_parameter": lambda result: _traffic_per_parameter(result, lambda traffic: traffic.written),
}

# -- predictions ----------------------------------------------------------------------------------


@cache
def _scenario(name: str, overrides: str, target: str) -> LoadedScenario:
    if target:
        return _scenario(name, overrides, "").on(target)
    return read_scenario(name, overrides=[part for part in overrides.split(";") if part])


@cache
def _result(name: str, overrides: str, target: str) -> SimulationResult | None:
    scenario = _scenario(name, overrides, target)
    return simulate(scenario) if fit(scenario).fits else None


def _simulated(reference: Reference) -> SimulationResult | None:
    """Return the result of a reference's scenario; None if it does not fit."""
    return _result(reference.scenario, reference.overrides, reference.target)


def _time(reference: Reference) -> float | None:
    """Return the time per token [s]; None if the work does not fit."""
    result = _simulated(reference)
    return result.unit_s if result else None


def _ratio(reference: Reference) -> float | None:
    """Return the ratio of the time per token to that of the tier, or overrides, that it refers to."""
    other = reference.relative_to
    if "=" in other:
        both = ";".join(part for part in (reference.overrides, other) if part)
        base = _time(reference._replace(overrides=both))
    else:
        base = _time(reference.on(other))
    time = _time(reference)
    return time / base if time and base else None


def _order(reference: Reference) -> str:
    """Sort the tiers of the published order by predicted time; tiers that do not fit are left out."""
    times = {tier: _time(reference.on(tier)) for tier in reference.published.split(" < ")}
    return " < ".join(sorted((tier for tier in times if times[tier]), key=lambda tier: times[tier] or 0.0))


def predict(reference: Reference) -> Value:
    """Return the value that the simulator gives for a published figure."""
    metric = reference.metric
    if metric == "order":
        return _order(reference)
    if metric == "ratio":
        return _ratio(reference)
    if metric in PLAN_METRICS:
        return PLAN_METRICS[metric](_scenario(reference.scenario, reference.overrides, reference.target))
    result = _simulated(reference)
    return RESULT_METRICS[metric](result) if result else None


def compare_published(ids: Sequence[str] = ()) -> tuple[PublishedRow, ...]:
    """Predict published figures: those whose id begins with one of ``ids``, or all."""
    wanted = (one for one in load_references() if not ids or one.id.startswith(tuple(ids)))
    return tuple(PublishedRow(one, predict(one), _interval(one)) for one in wanted)


def _interval(reference: Reference) -> tuple[float, float] | None:
    """Return the 80 % interval of a prediction that is judged by it."""
    if reference.rule != "inside" or (result := _simulated(reference)) is None:
        return None
    return confidence(result).interval(reference.metric)


# -- tables ---------------------------------------------------------------------------------------

_HEAD = """\
| id | scenario | predicted | published | error | limit | met | note |
|---|---|---:|---:|---:|---|---|---|
"""


def published_tables(rows: Iterable[PublishedRow]) -> str:
    """Write one Markdown table per publication."""
    parts = []
    for _, group in groupby(rows, key=lambda row: row.reference.publication):
        figures = list(group)
        judged = [row.holds for row in figures if row.holds is not None]
        roles = Counter(row.reference.role for row in figures)
        without_limit = roles["judged"] - len(judged)
        summary = f"{sum(judged)} of {len(judged)} limits are met; {without_limit} figures have no limit."
        if roles["input"] or roles["in view"]:
            summary += f" Not judged: {roles['input']} inputs and {roles['in view']} that were in view."
        title = figures[0].reference.source
        parts.append(f"### {title}\n\n{summary}\n\n{_HEAD}" + "\n".join(map(_line, figures)))
    return "\n\n".join(parts) + "\n"


def limits_met(rows: Iterable[PublishedRow]) -> str:
    """Return a sentence: how many limits of published figures are met."""
    judged = [row.holds for row in rows if row.holds is not None]
    return f"{sum(judged)} of {len(judged)} limits of published figures are met."


def _line(row: PublishedRow) -> str:
    reference = row.reference
    cells = (
        reference.id,
        _setting(reference),
        _text(row.predicted, reference.metric),
        f"{_text(reference.value, reference.metric)} {reference.unit}".strip(),
        "" if row.error is None else f"{row.error:+.1%}",
        _bar(row) if reference.role == "judged" else "",
        {True: "yes", False: "**no**", None: ""}[row.holds] if reference.role == "judged" else reference.role,
        "; ".join(part for part in (reference.number, reference.note) if part),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _setting(reference: Reference) -> str:
    """Return the scenario and the tier of its weights or, in training, all changes."""
    where = reference.scenario
    if reference.target:
        where += f" on {reference.target}"
    elif reference.overrides:
        where += f": {reference.overrides.replace(';', '; ')}"
    return f"{where} over {reference.relative_to}" if reference.relative_to else where


def _text(value: Value, metric: str) -> str:
    if value is None or (metric == "fits" and not value):
        return "does not fit"
    if metric == "fits":
        return "fits"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _bar(row: PublishedRow) -> str:
    reference = row.reference
    tolerance = reference.tolerance
    match reference.rule:
        case "within":
            return f"±{100 * float(tolerance):g}%"
        case "factor":
            return f"factor {tolerance}"
        case "between":
            return tolerance
        case "report":
            return ""
        case "inside":
            low, high = row.interval or (0.0, 0.0)
            return f"{_text(low, reference.metric)} to {_text(high, reference.metric)}"
    return reference.rule.replace("_", " ")
