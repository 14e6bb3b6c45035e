"""The whole answer to a scenario: what is simulated, and what planning adds when it is asked for.

Command line and Python call the same two functions. Nothing of planning is imported or worked out before an
answer is asked for its remedies, its costs or its confidence.
"""

from __future__ import annotations

from abc import ABCMeta
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, Unpack

import simoffload.simulation as simulation
from simoffload.extending import at
from simoffload.limits import keep, limited, now_doing
from simoffload.planning.question import QuestionOptions, loaded
from simoffload.progress import Watcher, watched_by
from simoffload.results import Change, Metric, ProgramChoice, Remedies, SimulationResult, by_name
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
) -> Answer:
    """Simulate a scenario; where it does not fit, the result says so and holds no times.

    ``scenario`` is a loaded scenario, its content as a mapping, the path of its file, the name of a shipped
    one, or with a ``gpu`` or a ``platform`` that of a model; so it is in all public functions that take a
    scenario. ``machine`` is what ``run`` takes: ``gpu``, ``gpus``, ``memory``, ``drive``, ``platform``,
    ``program``, ``on``, ``context``, and ``overrides`` (``{"workload.batch_size": 8}``).
    The answer has all that the result has, and ``remedies``, ``costs`` and ``confidence`` when they are asked
    for; ``costs`` is a list of prices and powers, the shipped one by default. With ``explain`` it also has
    ``explanation`` and ``next_changes``, which take many simulations, and reports tell them.
    Raises InputError for what DeepSpeed would refuse, SimulationError if the engine cannot finish, and
    WorkLimitError beyond one of the scenario's limits.
    """
    scenario = loaded(scenario, **machine)
    with watched_by(progress):
        result = simulation.simulate(scenario, keep_timelines=keep_timelines)
    return Answer.of(result, scenario=scenario, prices=costs, explains=explain, progress=progress)


def fit(scenario: ScenarioSource, **machine: Unpack[QuestionOptions]) -> Answer:
    """Answer only whether the scenario fits, tier by tier, and when asked what would make it fit;
    ``machine`` as in ``simulate``.

    Raises what :func:`simulate` raises.
    """
    scenario = loaded(scenario, **machine)
    return Answer.of(simulation.fit(scenario), scenario=scenario, priced=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer(SimulationResult):
    """An Answer is a result with what planning finds beside it, each when it is first asked for.

    It is of the kind of its result, too, such as an ``InferenceResult``. One without a scenario, as each is
    in another process, knows no more than its result.
    """

    scenario: LoadedScenario | None = field(default=None, compare=False)
    prices: CostList | None = field(default=None, compare=False)
    """None = the shipped list."""
    priced: bool = field(default=True, compare=False)
    """Whether costs were asked for, or its memory alone."""
    explains: bool = field(default=False, compare=False)
    """Whether it is asked for explanations."""
    searches: bool = field(default=True, compare=False)
    """Whether it looks for changes that make it fit."""
    progress: Watcher | None = field(default=None, compare=False)

    @classmethod
    def of(cls, result: SimulationResult, **others: Any) -> Answer:
        """Return a result as an answer, with ``others`` as fields, its scenario and prices among them."""
        if isinstance(result, Answer):
            return replace(result, **others) if others else result
        known = {one.name: getattr(result, one.name) for one in fields(result)}
        return _kind(type(result))(**known | others)

    @property
    def result(self) -> SimulationResult:
        """The result alone, as the simulation returned it."""
        _, kind = type(self).__bases__
        alone: SimulationResult = kind(**{one.name: getattr(self, one.name) for one in fields(kind)})
        return alone

    @cached_property
    def remedies(self) -> Remedies | None:
        """Smallest changes that make it fit, searched for within the scenario's limits; None if it fits."""
        if self.scenario is None or not self.searches or self.fits or self.refused:
            return None
        from simoffload.planning.remedies import search_changes

        return search_changes(self.scenario)

    @cached_property
    def caches(self) -> tuple[CacheLimits, ...]:
        """What fits with each placement of the key-value cache; () if more than memory was computed.

        Raises WorkLimitError beyond one of the scenario's limits.
        """
        return () if self.scenario is None or self.refused or self.priced else _caches(self.scenario)

    @cached_property
    def costs(self) -> Economics | None:
        """Bill, power, energy and cost by the list of prices; None if nothing was simulated."""
        if self.scenario is None or self.refused or not self.priced:
            return None
        from simoffload.planning.economics import economics

        return economics(self.scenario, self, self.prices)

    @cached_property
    def confidence(self) -> Confidence:
        """Expected error of the times, from predictions of real runs of the same kind, which says so where
        there are none."""
        from simoffload.planning.confidence import confidence

        return confidence(self)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Sensitivity and storage bandwidth, by further simulations within the limits of the scenario; None
        without times or unless requested."""
        if self._evaluator is None:
            return None
        from simoffload.planning.explanation import explain

        with watched_by(self.progress):
            return explain(self._evaluator)

    @cached_property
    def next_changes(self) -> Advice | None:
        """Simulated changes, ranked by gain, within the limits of the scenario; None without times or unless
        requested."""
        if self._evaluator is None:
            return None
        from simoffload.planning.advise import advise

        return advise(self._evaluator, costs=self.prices, progress=self.progress)

    @cached_property
    def _evaluator(self) -> Evaluator | None:
        """What all explanations ask; None unless they were requested."""
        if self.scenario is None or self.step is None or not self.explains:
            return None
        from simoffload.planning.evaluator import Evaluator

        return Evaluator(self.scenario, result=self.result)

    @property
    def choice(self) -> ProgramChoice | None:
        """How the program was chosen; None if the scenario states it."""
        return None if self.scenario is None else self.scenario.choice

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return P10 and P90 of every predicted time and rate, by metric; empty without times."""
        return {} if self.step is None else self.confidence.intervals()

    @property
    def compared_metric(self) -> Metric:
        """Metric by which verdicts, orders, ties and charts compare results: the one that is asked for, or
        else, and without costs where it is one of them, the usual one of the kind of work."""
        if self.asked and self.asked not in self.declared and self.costs is not None:
            return self.costs.declared[self.asked]
        return super().compared_metric

    def value_of(self, name: str) -> float | None:
        """Return the value of a metric of the result or of its costs; None without one."""
        if name in self.declared or self.costs is None or not self.fits:
            return super().value_of(name)
        return self.costs.metrics().get(name)

    def written(self, metric: Metric) -> str:
        """Return the value of a metric of the result or of its costs, with its unit: "8.41 J", "0.5 USD"."""
        currency = self.costs.costs.currency if self.costs and metric.unit.name == "currency" else ""
        return f"{super().written(metric)} {currency}".rstrip()

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The warnings, and sentences about changes that would make it fit but are impossible."""
        return (*self.warnings, *(self.remedies.barred if self.remedies else ()))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; bytes and seconds are numbers.

        This computes remedies, confidence and costs, and the explanation if it was requested.
        """
        costs, remedies = self.costs, self.remedies
        explanation, advice = self.explanation, self.next_changes
        found = super().to_dict()
        if remedies is not None:
            found["changes"] = [_change(one) for one in remedies.changes]
            found["changes_tried"] = list(remedies.tried)
            found |= {"changes_stopped": remedies.stopped} if remedies.stopped else {}
            found["warnings"] = list(self.all_warnings)
        if self.choice is not None:
            found |= by_name(self, "choice")
        if self.caches:
            found["caches"] = [one.to_dict() for one in self.caches]
        if costs is not None:
            found["confidence"] = self.confidence.to_dict() if self.step else None
            found["intervals"] = {name: list(ends) for name, ends in self.intervals().items()}
            found["economics"] = costs.to_dict()
        if explanation is not None and advice is not None:
            found["explanation"] = explanation.to_dict()
            found["next"] = [one.to_dict() for one in advice.helping]
        return found

    def plot(self) -> Figure:
        """Return a plotly figure: the exposed and hidden time of each cause, or what each tier must hold.

        Raises ValueError for a result that was unpickled or refused.
        """
        if self.scenario is None or self.refused:
            raise ValueError(
                "only a result of simulate(), fit() or compare() that is not refused has a chart"
            )
        figure: Figure = at("simoffload.report.charts:result_chart")(self)
        return figure

    def __repr__(self) -> str:
        if self.scenario is None:
            return super().__repr__()
        return str(at("simoffload.report.notebook:result_opening")(self.scenario, self))

    def _repr_html_(self) -> str | None:
        return None if self.scenario is None else str(at("simoffload.report.notebook:result_frame")(self))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_OFFERED]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the result alone, as a scenario has machines and price lists."""
        return Answer.of, (self.result,)

    def __copy__(self) -> Self:
        return replace(self)

    def __deepcopy__(self, _memo: Any) -> Self:
        return replace(self)


_OFFERED = (
    *("all_warnings", "choice", "confidence", "costs", "explanation", "intervals", "next_changes", "plot"),
    "remedies",
)


_KINDS: dict[type[SimulationResult], type[Answer]] = {}


def _kind(kind: type[SimulationResult]) -> type[Answer]:
    """Return the class of answers whose results are of a kind, with its metrics."""
    if kind not in _KINDS:
        qualified = f"Answer[{kind.__qualname__}]"
        about = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": qualified}
        made: type[Any] = ABCMeta(kind.__name__, (Answer, kind), about)
        made.declared = kind.declared
        _KINDS.setdefault(kind, dataclass(frozen=True, kw_only=True, repr=False)(made))
    return _KINDS[kind]  # one class, whichever thread was the first


@limited
def _caches(scenario: LoadedScenario) -> tuple[CacheLimits, ...]:
    from simoffload.planning.caches import cache_limits

    keep(scenario.scenario.engine.limits)
    now_doing("planning")
    return cache_limits(scenario)


def _change(one: Change) -> dict[str, Any]:
    headroom = {use.tier: use.headroom for use in one.uses}
    return by_name(one, "kind description quality set=assignments") | {"headroom_bytes": headroom}
