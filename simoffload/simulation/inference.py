"""Inference: one prefill and the decode steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simoffload.engine import execute
from simoffload.results.capacity import peak_uses
from simoffload.results.inference import InferenceResult
from simoffload.results.passes import PassResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import common
from simoffload.simulation.runner import Runner
from simoffload.strategies import ForwardPass, Plan, Resident
from simoffload.units import format_bytes, format_seconds
from simoffload.workload import Inference

__all__ = ["inference_capacity", "simulate_inference"]

_SAME = 1e-3  # first and last decode step closer than this: what lies between is not worth simulating


def inference_capacity(scenario: LoadedScenario, plan: Plan, workload: Inference) -> InferenceResult:
    """The result without times."""
    return InferenceResult(
        **common(scenario, plan),
        batch_size=workload.batch_size,
        prompt_length=workload.prompt_length,
        output_length=workload.output_length,
    )


def simulate_inference(
    scenario: LoadedScenario, plan: Plan, workload: Inference, runner: Runner
) -> InferenceResult:
    """Add the times of all passes to what fits. Raises SimulationError if the engine cannot finish."""
    result = inference_capacity(scenario, plan, workload)
    if not result.fits:
        return result

    def run(forward: ForwardPass) -> PassResult:
        return runner.run(
            forward.name,
            lambda: plan.schedule(forward),
            new_tokens=forward.new_tokens,
            context=forward.context,
        )

    prompt = workload.prompt_length
    cold = run(ForwardPass("first pass", prompt, prompt, first=True)) if plan.traced else None
    prefill = run(ForwardPass("prefill", prompt, prompt))
    decode, total, spread = _decode(scenario, workload, run)
    result = replace(
        result,
        first_pass=cold,
        prefill=prefill,
        decode=decode,
        decode_total_s=total,
        decode_spread=spread,
        timelines=runner.timelines,
    )
    return replace(result, warnings=(*result.warnings, *_hurts(scenario, workload, result)))


def _decode(
    scenario: LoadedScenario, workload: Inference, run_pass: Callable[[ForwardPass], PassResult]
) -> tuple[tuple[PassResult, ...], float, float]:
    """Simulate decode steps; return them, the time of all steps [s] and the interpolation's residual."""
    steps = workload.decode_steps
    if steps == 0:
        return (), 0.0, 0.0

    def run(step: int) -> PassResult:
        return run_pass(ForwardPass(f"decode {step}", 1, workload.prompt_length + step))

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


def _hurts(scenario: LoadedScenario, workload: Inference, result: InferenceResult) -> tuple[str, ...]:
    """Warn when weights are offloaded although a whole copy fits in each GPU."""
    if result.target == "hbm":
        return ()
    inner = scenario.scenario
    resident = Resident(ranks=inner.strategy.ranks).plan(scenario.model, workload, scenario.machine)
    if not all(use.fits for use in peak_uses(resident.moments, scenario.machine.tiers)):
        return ()
    assert result.step is not None
    step = ForwardPass("decode 1", result.step.new_tokens, result.step.context)
    fast = execute(resident.schedule(step)).makespan * 1e-12
    size, times = format_bytes(scenario.model.weight_bytes), result.step.time_s / fast
    text = f"offloading hurts here: a copy of the weights ({size}) fits on every GPU; without ZeRO"
    return (f"{text} a pass takes {format_seconds(fast)}, {times:.3g} times less",)
