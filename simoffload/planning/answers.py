"""The whole answer to a scenario: what is simulated, and what planning adds when it is asked for.

Command line and Python call the same two functions. Nothing of planning is imported or worked out before a
result is asked for its remedies, its costs or its confidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Unpack

import simoffload.simulation as simulation
from simoffload.limits import keep, limited, now_doing
from simoffload.planning.question import QuestionOptions, loaded
from simoffload.progress import Watcher, watched_by
from simoffload.results import ProgramChoice, Remedies, SimulationResult
from simoffload.scenario import LoadedScenario, ScenarioSource

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from simoffload.planning.advise import Advice
    from simoffload.planning.caches import CacheLimits
    from simoffload.planning.confidence import Confidence
    from simoffload.planning.costs import CostList
    from simoffload.planning.economics import Economics
    from simoffload.planning.evaluator import Evaluator
    from simoffload.planning.explanation import Explanation


def simulate(
    scenario: ScenarioSource,
    *,
    costs: CostList | None = None,
    explain: bool = False,
    keep_timelines: bool = False,
    progress: Watcher | None = None,
    **machine: Unpack[QuestionOptions],
) -> SimulationResult:
    """Simulate a scenario; where it does not fit, the result says so and holds no times.

    ``scenario`` is a loaded scenario, its content as a mapping, the path of its file, the name of a shipped
    one, or with a ``gpu`` or a ``platform`` that of a model; so it is in all public functions that take a
    scenario. ``machine`` is what ``run`` takes: ``gpu``, ``gpus``, ``memory``, ``drive``, ``platform``,
    ``program``, ``on``, ``context``, and ``overrides`` (``{"workload.batch_size": 8}``).
    The result answers ``remedies``, ``costs`` and ``confidence`` when it is asked for them; ``costs`` is a
    list of prices and powers, the shipped one by default. With ``explain`` it also answers ``explanation``
    and ``next_changes``, which take many simulations, and reports tell them.
    Raises InputError for what DeepSpeed would refuse, SimulationError if the engine cannot finish, and
    WorkLimitError beyond one of the scenario's limits.
    """
    scenario = loaded(scenario, **machine)
    with watched_by(progress):
        result = simulation.simulate(scenario, keep_timelines=keep_timelines)
    planner = ScenarioPlanner(scenario, costs, explains=explain, progress=progress)
    return replace(result, planner=planner)


def fit(scenario: ScenarioSource, **machine: Unpack[QuestionOptions]) -> SimulationResult:
    """Answer only whether the scenario fits, tier by tier, and when asked what would make it fit;
    ``machine`` as in ``simulate``.

    Raises what :func:`simulate` raises.
    """
    scenario = loaded(scenario, **machine)
    return replace(simulation.fit(scenario), planner=ScenarioPlanner(scenario, priced=False))


@dataclass(frozen=True)
class ScenarioPlanner:
    """Works out what follows from the result of a scenario, once somebody asks for it."""

    scenario: LoadedScenario
    prices: CostList | None = None
    """None = the shipped list."""
    priced: bool = True
    """Whether costs were asked for, or its memory alone."""
    explains: bool = False
    """Whether it is asked for explanations."""
    progress: Watcher | None = None
    _evaluators: list[Evaluator] = field(default_factory=list, repr=False, compare=False)
    """The one that all further simulations ask, once there is one."""

    def opening(self, result: SimulationResult) -> str:
        """Return the first lines that a terminal shows of a result; nothing is searched for."""
        from simoffload.report.notebook import result_opening

        return result_opening(self.scenario, result)

    def frame(self, result: SimulationResult) -> str:
        """Return the beginning of its page, without what takes further simulations."""
        from simoffload.report.from_result import brief_document
        from simoffload.report.notebook import frame

        planner = None if result.step is None else replace(self, explains=False)
        return frame(brief_document(replace(result, planner=planner)))

    def figure(self, result: SimulationResult) -> Figure:
        """Draw where the time goes, or what each tier must hold."""
        from simoffload.report import charts, plotting

        drawn = charts.capacity(result.capacity) if result.step is None else charts.causes(result.step)
        return plotting.of_plotly(drawn)

    def remedies(self, result: SimulationResult) -> Remedies | None:  # noqa: ARG002
        """Search for the smallest changes, within the limits of the scenario."""
        from simoffload.planning.remedies import search_changes

        return search_changes(self.scenario)

    @limited
    def caches(self, result: SimulationResult) -> tuple[CacheLimits, ...]:  # noqa: ARG002
        """Return what fits with each placement of the key-value cache, where only memory was asked for;
        raises WorkLimitError beyond one of the scenario's limits."""
        if self.priced:
            return ()
        from simoffload.planning.caches import cache_limits

        keep(self.scenario.scenario.engine.limits)
        now_doing("planning")
        return cache_limits(self.scenario)

    def costs(self, result: SimulationResult) -> Economics | None:
        """Return the costs by the list of prices and powers; None where only memory was asked for."""
        if not self.priced:
            return None
        from simoffload.planning.economics import economics

        return economics(self.scenario, result, self.prices)

    def confidence(self, result: SimulationResult) -> Confidence:
        """Return the expected error, from predictions of real runs of the same kind."""
        from simoffload.planning.confidence import confidence

        return confidence(result)

    def explanation(self, result: SimulationResult) -> Explanation | None:
        """Explain the result by further simulations, each within the limits of the scenario."""
        if not self.explains:
            return None
        from simoffload.planning.explanation import explain

        with watched_by(self.progress):
            return explain(self._evaluator(result))

    def next_changes(self, result: SimulationResult) -> Advice | None:
        """Rank changes by further simulations, each within the limits of the scenario."""
        if not self.explains:
            return None
        from simoffload.planning.advise import advise

        return advise(self._evaluator(result), costs=self.prices, progress=self.progress)

    def choice(self, result: SimulationResult) -> ProgramChoice | None:  # noqa: ARG002
        """Return how the program of the scenario was chosen."""
        return self.scenario.choice

    def _evaluator(self, result: SimulationResult) -> Evaluator:
        from simoffload.planning.evaluator import Evaluator

        if not self._evaluators:
            self._evaluators.append(Evaluator(self.scenario, result=result))
        return self._evaluators[0]
