"""The simulation of a scenario, which connects the other layers: plan, check what fits, execute,
summarize."""

from __future__ import annotations

from dataclasses import replace

from simoffload.hardware import input_sources
from simoffload.limits import keep, limited, now_doing
from simoffload.results import SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation.metrics import measures_of
from simoffload.simulation.runner import Execution, Runner, Scope, remembering
from simoffload.strategies import Plan

__all__ = ["Execution", "Runner", "Scope", "fit", "remembering", "simulate", "with_sources"]


@limited
def simulate(
    scenario: LoadedScenario,
    *,
    keep_timelines: bool = False,
    scope: Scope = "all",
    execution: Execution | None = None,
) -> SimulationResult:
    """Simulate a scenario; the result of one that does not fit has no times.

    ``scope`` says what a question needs of the result, so that no more is simulated. Raises InputError for
    settings that DeepSpeed refuses, SimulationError if the engine cannot finish, and WorkLimitError if one of
    the scenario's limits is exceeded.
    """
    _begin(scenario)
    measures, plan = measures_of(scenario), scenario.plan()
    scenario.check_positions()
    result = measures.capacity(plan)
    if scope == "all":
        result = _configured(scenario, plan, result)
    if not result.fits:
        return result
    runner = Runner(scenario, keep=keep_timelines, scope=scope, execution=execution)
    result = measures.timed(plan, result, runner)
    if not runner.complete:
        return result
    return with_sources(scenario, plan, result)


def with_sources(scenario: LoadedScenario, plan: Plan, result: SimulationResult) -> SimulationResult:
    """Return a result with what the machine's numbers rest on, which decides the error of its times."""
    basis = plan.basis
    known = input_sources(
        scenario.machine,
        ranks=result.gpus,
        host_costs=basis.host_costs,
        cpu_costs=basis.cpu_costs,
        gpu_rates=basis.gpu_rates,
    )
    return replace(result, provenance=replace(result.provenance, sources=known))


@limited
def fit(scenario: LoadedScenario) -> SimulationResult:
    """Return whether the scenario fits, tier by tier, without times; raises what :func:`simulate` raises."""
    _begin(scenario)
    plan = scenario.plan()
    return _configured(scenario, plan, measures_of(scenario).capacity(plan))


def _configured(scenario: LoadedScenario, plan: Plan, result: SimulationResult) -> SimulationResult:
    """Return a result with the files that configure real programs."""
    return replace(result, provenance=replace(result.provenance, exports=scenario.exports_of(plan)))


def _begin(scenario: LoadedScenario) -> None:
    keep(scenario.scenario.engine.limits)
    now_doing("planning")
