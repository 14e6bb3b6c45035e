"""The one place that wires the layers: plan, check what fits, execute, summarize."""

from __future__ import annotations

import platform as interpreter
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from simoffload import __version__
from simoffload.engine import execute
from simoffload.errors import InputError
from simoffload.results.capacity import TierUse, tier_uses
from simoffload.results.passes import PassResult, summarize_pass
from simoffload.results.result import Provenance, SimulationResult
from simoffload.results.timeline import Timeline
from simoffload.scenario import LoadedScenario
from simoffload.strategies import ForwardPass, Plan, Resident
from simoffload.units import format_bytes, format_seconds

__all__ = ["Progress", "fit", "simulate"]

Progress = Callable[[str], None]
"""Called with a line of text when a pass begins."""

_SAME = 1e-3  # first and last decode step closer than this: what lies between is not worth simulating


def simulate(
    scenario: LoadedScenario, *, keep_timelines: bool = False, progress: Progress | None = None
) -> SimulationResult:
    """Simulate a scenario; where it does not fit, the result says so and holds no times.

    Raises InputError for what DeepSpeed would refuse and SimulationError if the engine cannot finish.
    """
    plan = scenario.plan()
    result = _capacity(scenario, plan)
    if not result.fits:
        return result
    runner = _Runner(scenario, plan, keep_timelines, progress)
    workload = scenario.scenario.workload
    prompt = workload.prompt_length
    cold = runner.run(ForwardPass("first pass", prompt, prompt, first=True)) if plan.traced else None
    prefill = runner.run(ForwardPass("prefill", prompt, prompt))
    decode, total, spread = _decode(scenario, runner)
    result = replace(
        result,
        first_pass=cold,
        prefill=prefill,
        decode=decode,
        decode_total_s=total,
        decode_spread=spread,
        timelines=runner.timelines,
    )
    return replace(result, warnings=(*result.warnings, *_hurts(scenario, result)))


def fit(scenario: LoadedScenario) -> SimulationResult:
    """Answer only whether the scenario fits, tier by tier."""
    return _capacity(scenario, scenario.plan())


class _Runner:
    """Runs passes and keeps what was asked for."""

    def __init__(self, scenario: LoadedScenario, plan: Plan, keep: bool, progress: Progress | None) -> None:
        self._scenario, self._plan, self._keep, self._progress = scenario, plan, keep, progress
        self.timelines: dict[str, Timeline] = {}

    def run(self, forward: ForwardPass) -> PassResult:
        if self._progress:
            self._progress(f"{self._scenario.name}: {forward.name}")
        schedule = self._plan.schedule(forward)
        timeline = execute(schedule, max_events=self._scenario.scenario.engine.max_events)
        if self._keep:
            self.timelines[forward.name] = timeline
        return summarize_pass(timeline, new_tokens=forward.new_tokens, context=forward.context)


def _decode(scenario: LoadedScenario, runner: _Runner) -> tuple[tuple[PassResult, ...], float, float]:
    """Simulate decode steps; return them, the time of all steps [s] and the interpolation's residual."""
    workload = scenario.scenario.workload
    steps = workload.decode_steps
    if steps == 0:
        return (), 0.0, 0.0

    def run(step: int) -> PassResult:
        return runner.run(ForwardPass(f"decode {step}", 1, workload.prompt_length + step))

    if scenario.scenario.engine.tokens == "off" or steps <= 2:
        every = tuple(run(step) for step in range(1, steps + 1))
        return every, sum(one.time_s for one in every), 0.0
    first, last = run(1), run(steps)
    if abs(last.time_s - first.time_s) <= _SAME * first.time_s:
        return (first, last), steps * (first.time_s + last.time_s) / 2, abs(last.time_s / first.time_s - 1)
    halfway = (1 + steps) // 2
    middle = run(halfway)
    chord = first.time_s + (last.time_s - first.time_s) * (halfway - 1) / (steps - 1)
    total = _trapezoid(first.time_s, middle.time_s, halfway) + _trapezoid(
        middle.time_s, last.time_s, steps - halfway + 1
    )
    return (first, middle, last), total - middle.time_s, abs(middle.time_s / chord - 1)


def _trapezoid(first: float, last: float, count: int) -> float:
    """Sum of ``count`` equally spaced values on the straight line from ``first`` to ``last``."""
    return count * (first + last) / 2


def _capacity(scenario: LoadedScenario, plan: Plan) -> SimulationResult:
    inner, model, machine = scenario.scenario, scenario.model, scenario.machine
    uses = tier_uses(plan.memory, machine.tiers)
    return SimulationResult(
        name=inner.name,
        model=model.name,
        dtype=model.dtype,
        parameters=model.num_parameters,
        platform=machine.platform,
        target=plan.target,
        ranks=inner.strategy.ranks,
        batch_size=inner.workload.batch_size,
        prompt_length=inner.workload.prompt_length,
        output_length=inner.workload.output_length,
        capacity=uses,
        advice=_advice(scenario, plan, uses),
        warnings=(*plan.warnings, *_context_warning(scenario), *_beyond(plan)),
        extrapolations=plan.extrapolations,
        provenance=Provenance(
            scenario=scenario.document.data,
            profiles=tuple((use.kind, use.id, use.sha256) for use in machine.profiles),
            inputs=tuple(machine.inputs()),
            versions={
                "simoffload": __version__,
                "simpy": version("simpy"),
                "python": interpreter.python_version(),
            },
        ),
    )


def _advice(scenario: LoadedScenario, plan: Plan, uses: tuple[TierUse, ...]) -> tuple[str, ...]:
    """For each tier that is too small: by how much, and what to do about its largest part."""
    return tuple(f"{use.sentence()}; {_remedy(scenario, plan, use)}" for use in uses if not use.fits)


def _remedy(scenario: LoadedScenario, plan: Plan, use: TierUse) -> str:
    largest = max(use.terms, key=lambda term: term.size)
    if largest.remedy:
        return f"{largest.remedy} (largest part: {largest.name})"
    for tier in sorted(scenario.machine.tiers.values(), key=lambda tier: tier.capacity):
        if tier.kind == "hbm" or tier.name == plan.target or tier.capacity < scenario.model.weight_bytes:
            continue
        if _fits_on(scenario, tier.name):
            size = format_bytes(tier.capacity, binary=tier.kind == "dram")
            return f"smallest tier that holds the weights: {tier.name} ({size})"
    return "no other tier of this platform is large enough"


def _fits_on(scenario: LoadedScenario, tier: str) -> bool:
    try:
        uses = tier_uses(scenario.on(tier).plan().memory, scenario.machine.tiers)
    except InputError:
        return False
    return all(use.fits for use in uses)


def _context_warning(scenario: LoadedScenario) -> tuple[str, ...]:
    limit, needed = scenario.model.max_position_embeddings, scenario.scenario.workload.max_context
    if limit is None or needed <= limit:
        return ()
    return (f"context of {needed} tokens is more than the {limit} that {scenario.model.name} was made for",)


def _beyond(plan: Plan) -> tuple[str, ...]:
    return tuple(f"beyond the calibrated range: {text}" for text in plan.extrapolations)


def _hurts(scenario: LoadedScenario, result: SimulationResult) -> tuple[str, ...]:
    """Warn when weights are offloaded although a whole copy fits in each GPU."""
    if result.target == "hbm":
        return ()
    inner = scenario.scenario
    resident = Resident(ranks=inner.strategy.ranks).plan(scenario.model, inner.workload, scenario.machine)
    if not all(use.fits for use in tier_uses(resident.memory, scenario.machine.tiers)):
        return ()
    assert result.step is not None
    step = ForwardPass("decode 1", result.step.new_tokens, result.step.context)
    fast = execute(resident.schedule(step)).makespan * 1e-12
    size, times = format_bytes(scenario.model.weight_bytes), result.step.time_s / fast
    text = f"offloading hurts here: a copy of the weights ({size}) fits on every GPU; without ZeRO"
    return (f"{text} a pass takes {format_seconds(fast)}, {times:.3g} times less",)
