"""Every option simulated: what it is ranked by, its gain, its cost, and why others are impossible."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from simoffload.brief import brief
from simoffload.documents import Edit, Location
from simoffload.errors import InputError, SimulationError, WorkLimitError
from simoffload.limits import limited
from simoffload.planning.advise.options import memory, options_of
from simoffload.planning.alternatives import only_with
from simoffload.planning.confidence import confidence, margin
from simoffload.planning.costs import CostList, Figure, dates_of, load_costs, present
from simoffload.planning.economics import COST_METRICS, Economics, economics
from simoffload.planning.evaluator import Evaluation, Evaluator, EvaluatorSource, evaluator_of
from simoffload.planning.question import QuestionOptions
from simoffload.planning.reported import ReportedAnswer
from simoffload.planning.service_levels import metric_named, short_name
from simoffload.progress import Watcher, steps, watched_by
from simoffload.results import Change, Metric, SimulationResult, by_name
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import BEYOND
from simoffload.workload import Checkpointing, Inference

if TYPE_CHECKING:
    import pandas as pd

# -- what changes and purchases are ranked by ------------------------------------------------------
# Throughput, latency, cost, or any metric.


_NAMED = ("throughput", "latency", "cost")
"""The most work per time, the shortest time (of a request, an update, a checkpoint), or, among purchases, the
least money per unit of work."""
_MOST = 1e6
"""The largest gain that is given: that of a time that vanishes."""


@dataclass(frozen=True)
class Objective:
    """An Objective is what changes and purchases are ranked by."""

    name: str
    """The name of the metric, or "throughput", "latency" or "cost"."""
    metric: Metric | None = None

    def to_dict(self) -> str:
        """Return its name as a plain value."""
        return self.name

    @property
    def is_latency(self) -> bool:
        """Whether it is the time of one request, update or checkpoint."""
        return self.name == "latency"

    @property
    def is_of_costs(self) -> bool:
        """Whether it is a metric of costs, of which no simulation of a part says what the whole has."""
        return self.name in COST_METRICS and self.metric is COST_METRICS[self.name]

    def by(self, result: SimulationResult) -> str:
        """Return the name of the metric that it is of a result."""
        if self.metric is not None:
            return self.metric.name
        return result.latency_by if self.is_latency else result.unit_by

    def asked(self, result: SimulationResult) -> str:
        """Return the name of the metric by which a result is compared with others."""
        if self.name == "cost":
            return "cost_per_million_tokens" if result.tokens else "cost_per_run"
        of_work = "tokens_per_s" if "tokens_per_s" in result.declared else result.unit_by
        return of_work if self.name == "throughput" else self.by(result)

    def judging(self, result: SimulationResult) -> SimulationResult:
        """Return a result that is judged by the metric that was named, if it has it itself."""
        named = self.metric is not None and self.metric.name in result.declared
        return replace(result, asked=self.metric.name) if named and self.metric else result

    def value(self, result: SimulationResult, cost: Economics | None) -> float | None:
        """Return its value of a result that costs so much; None without one, or if it does not fit."""
        if not result.fits:
            return None
        if not self.is_of_costs:
            return result.metrics().get(self.by(result))
        return cost.metrics().get(self.name) if cost is not None else None

    def ranking(self, result: SimulationResult, cost: Economics | None = None) -> float | None:
        """Return the number by which a result is ranked, the smallest first; None without a value.

        It is the value, or 1 / value of a metric whose larger values are better.
        """
        value = self.value(result, cost)
        if value is None or self.metric is None or not self.metric.larger:
            return value
        return 1 / value if value else math.inf

    def speed(self, result: SimulationResult, cost: Economics | None = None) -> float:
        """Return 1 / ``ranking``: the largest is the best; zero without a value."""
        number = self.ranking(result, cost)
        if number is None:
            return 0.0
        return 1 / number if number else math.inf

    def bound(self, least: SimulationResult, *, times: float = 1) -> float:
        """Return the largest ``speed`` of results that take no less time than ``least`` per step, with up to
        so many ``times`` as many sequences."""
        if self.is_of_costs:
            return math.inf
        return self.speed(least) * (times if self.grows_with_batch(least) else 1)

    def grows_with_batch(self, result: SimulationResult) -> bool:
        """Return whether a larger batch may be better without being faster."""
        if self.metric is None or self.metric.name == result.unit_by:
            return not self.is_latency
        return self.metric.unit.name != "s"

    def gain(self, before: float | None, after: float | None) -> float | None:
        """Return how many times better a ranking has become, at most a million; None without one before, and
        0 without one after."""
        if before is None:
            return None
        return 0.0 if after is None else before / max(after, before / _MOST)


def objective_of(scenario: LoadedScenario, asked: str | None) -> Objective:
    """Return the objective that is asked for, a metric of which a direction is better among them; by default
    latency where one sequence at a time is generated (``batch_size`` 1), otherwise throughput.

    Raises InputError for an unknown one.
    """
    if asked is None:
        asked = "latency" if one_at_a_time(scenario) else "throughput"
    if asked in _NAMED:
        return Objective(asked)
    kind = scenario.scenario.workload.kind
    metric = metric_named(asked, kind, besides=(*_NAMED, *COST_METRICS.values()))
    return Objective(metric.name, metric)


def check_improvable(objective: Objective, result: SimulationResult, cost: Economics) -> None:
    """Raise InputError if a scenario that fits has no value of a metric, or one that no factor improves."""
    number, metric = objective.ranking(result, cost), objective.metric
    if metric is not None and result.fits and (not number or math.isinf(number)):
        value = objective.value(result, cost)
        has = "has no value" if value is None else f"is {metric.text(value)}"
        text = f"{has} in this scenario, which no change improves by a factor; name another objective"
        raise InputError.at(short_name(metric), text, path="--objective")


def one_at_a_time(scenario: LoadedScenario) -> bool:
    """Return whether one sequence at a time is generated."""
    work = scenario.scenario.workload
    return isinstance(work, Inference) and work.batch_size == 1


def sequences_at_once(scenario: LoadedScenario) -> int:
    """Return the number of sequences that all replicas process together; 0 for checkpoints."""
    work = scenario.scenario.workload
    return 0 if isinstance(work, Checkpointing) else work.batch_size * scenario.scenario.strategy.replicas


# -- every option simulated ------------------------------------------------------------------------
# Its gain, its cost, and why others are impossible.


SCHEMA = "simoffload/advice/1"
TOGETHER = "settings"
"""Key of the change that combines all settings that gain."""
WORTH = 1.005
"""Smallest relative speed that counts as an improvement: the least that three digits show."""
EQUAL = 1.02
"""Ratio of gains up to which two changes gain as much, however sure that is: our choice, as for what a
verdict names."""
SOONER = 1.1
"""Smallest gain of the time to the first token alone that is reported (our choice)."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedChange(Evaluation):
    """A change that was simulated, with what it gains and what it costs."""

    __repr__ = brief

    change: Change
    gain: float | None
    """Speed relative to the unchanged scenario, or how many times better the metric of the objective is; None
    if that does not fit."""
    extra: float | None
    """Purchase price beyond the unchanged scenario, in the list's currency; None without prices."""
    prices: tuple[Figure, ...] = ()
    """Prices of what has to be bought."""
    margin: float = 0.0
    """Gain beyond 1 from which the 80 % interval of the gain does not contain 1."""
    throughput: float | None = None
    """Throughput relative to the unchanged scenario, by time per ``unit``; None if that does not fit."""
    only_throughput: bool = False
    """Whether it processes more sequences at once, none of them faster, where latency is the objective."""
    instead: Change | None = None
    """Change that costs nothing and gains as much as this purchase, within the uncertainty; None without."""

    @property
    def is_free(self) -> bool:
        """Whether nothing has to be bought."""
        return self.extra == 0

    @property
    def price_dates(self) -> str:
        """Return the first and the last date of the prices of what has to be bought."""
        return dates_of(self.prices)

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """80 % interval of the gain; None where there is none."""
        return None if self.gain is None else (self.gain / (1 + self.margin), self.gain * (1 + self.margin))

    @property
    def helps(self) -> bool:
        """Whether the change makes the scenario fit, or gains more than the predictions may be wrong."""
        return not self.only_throughput and (self.gain is None or self.gain >= max(WORTH, 1 + self.margin))

    def first_token_gain(self, now: SimulationResult) -> float:
        """Return the time to the first token ``now`` over that with a changed setting; 1 if further tokens
        come faster, too, or slower."""
        if self.change.kind != "setting" or self.helps or (self.gain or 0.0) * WORTH < 1:
            return 1.0
        before, then = (one.metrics().get("ttft_s") for one in (now, self.result))
        return before / then if before and then else 1.0

    @property
    def gain_per_cost(self) -> float | None:
        """(gain - 1) for every 1000 of the currency; None where nothing has to be bought."""
        return (self.gain - 1) / self.extra * 1000 if self.gain is not None and self.extra else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self.change, "key description kind changes=edits same_answers=same_work quality"),
            **by_name(self, "gain gain_interval margin throughput_gain=throughput only_throughput"),
            **by_name(self, "extra_cost=extra price_dates gain_per_1000=gain_per_cost"),
            "as_much_for_nothing": None if self.instead is None else self.instead.key,
            **by_name(self.result, "fits"),
            "metrics": self.result.metrics(),
            "intervals": {name: list(ends) for name, ends in confidence(self.result).intervals().items()},
            **by_name(self.result, "bottleneck limit"),
            "economics": self.economics.metrics(),
            **by_name(self.economics, "missing_prices=missing"),
            **by_name(self.result.provenance, "exports"),
        }


@dataclass(frozen=True, repr=False)
class Advice(ReportedAnswer):
    """The Advice lists what single changes to a scenario gain."""

    report = "simoffload.report.from_result:advice_document"

    scenario: LoadedScenario
    result: SimulationResult
    economics: Economics
    tried: tuple[EvaluatedChange, ...]
    """Simulated changes: those that keep the answers before those that do not, the largest gain first."""
    impossible: tuple[Change, ...]
    """Changes that the program, the machine or its memory refuses, each with its reason (``barred``)."""
    objective: Objective
    """What ``gain`` is of: the time of a request or step for "latency", the metric that was named, for others
    the throughput."""
    untried: tuple[Change, ...] = ()
    """Changes whose simulation a limit of time, memory or operations stopped, which is their ``barred``."""
    number_tried: int = 0
    """Number of changes with an answer: those of ``tried`` and ``impossible``, and those that were the same
    in other words as another."""
    stopped: str = ""
    """Why not all changes were tried; empty if no limit was reached."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each change that was tried: what it is, its gain with P10 and P90, whether it
        helps, its cost, and the metrics it leads to."""
        import pandas as pd

        rows = [
            {
                "change": one.change.description,
                "kind": one.change.kind,
                **dict(zip(("gain_p10", "gain_p90"), one.gain_interval or (None, None), strict=True)),
                "gain": one.gain,
                "helps": one.helps,
                "extra": one.extra,
                **one.result.metrics(),
            }
            for one in self.tried
        ]
        return pd.DataFrame(rows)

    @property
    def price_dates(self) -> str:
        """Return the first and the last date of the prices of all that would have to be bought."""
        return dates_of(price for one in self.tried if one.extra for price in one.prices)

    @property
    def extent(self) -> str:
        """What part of the changes was tried, and why no more; empty if all were."""
        if not self.stopped:
            return ""
        number = self.number_tried + len(self.untried)
        part = f"{self.number_tried:,} of {number:,} changes were tried" if number else "no change was tried"
        return f"{part}: {self.stopped}"

    @property
    def helping(self) -> tuple[EvaluatedChange, ...]:
        """Changes that gain more than the predictions may be wrong, in the order of ``tried``."""
        return tuple(one for one in self.tried if one.helps)

    @property
    def larger_batches(self) -> tuple[EvaluatedChange, ...]:
        """Changes that gain throughput, but no latency, which is the objective: the largest first."""
        found = [one for one in self.tried if one.only_throughput and (one.throughput or 0.0) >= WORTH]
        return tuple(sorted(found, key=lambda one: (one.change.rank, -(one.throughput or 0.0))))

    @property
    def sooner(self) -> tuple[EvaluatedChange, ...]:
        """Settings with which the first token comes earlier, further ones as before: the earliest first."""
        found = [one for one in self.tried if one.first_token_gain(self.result) >= SOONER]
        return tuple(sorted(found, key=lambda one: -one.first_token_gain(self.result)))

    @property
    def uncertain(self) -> tuple[EvaluatedChange, ...]:
        """Changes whose gain is within its 80 % interval, in the order of ``tried``: no recommendations."""
        rest = (one for one in self.tried if not one.helps and not one.only_throughput)
        return tuple(one for one in rest if (one.gain or 0.0) >= WORTH)

    @property
    def new_warnings(self) -> dict[str, list[str]]:
        """Warnings about placements with the same answers that help or may help, with the descriptions of
        these changes; without those that the unchanged scenario has, and what intervals say of accuracy."""
        known, found = set(map(_about, self.result.warnings)), dict[str, list[str]]()
        placed = (one for one in (*self.helping, *self.uncertain) if one.change.kind == "placement")
        for one in (one for one in placed if one.change.same_work):
            for text in one.result.warnings:
                if _about(text) not in known and not text.startswith(BEYOND):
                    found.setdefault(text, []).append(one.change.description)
        return found

    def decisions(self, ranked: Iterable[EvaluatedChange]) -> tuple[EvaluatedChange, ...]:
        """Return the first of all changes that set the same keys to other numbers, such as batch sizes."""
        first: dict[Hashable, EvaluatedChange] = {}
        for one in ranked:
            first.setdefault(_setting(one.change), one)
        return tuple(first.values())

    def range_tried(self, change: Change) -> tuple[float, float] | None:
        """Return the smallest and the largest number tried for the key that a change sets; None for one."""
        all_changes = (*(one.change for one in self.tried), *self.impossible, *self.untried)
        values: dict[Location, set[float]] = {}
        for other in all_changes:
            for edit in other.edits if _setting(other) == _setting(change) else ():
                if _is_number(edit.value):
                    values.setdefault(edit.path, set()).add(edit.value)
        varied = next((one for one in values.values() if len(one) > 1), None)
        return (min(varied), max(varied)) if varied and change.key != TOGETHER else None

    @property
    def by_cost(self) -> tuple[EvaluatedChange, ...]:
        """Changes that help and cost money, the largest gain per cost first; without those for which another
        one that costs nothing gains as much."""
        paid = [one for one in self.helping if one.gain_per_cost is not None and one.instead is None]
        return tuple(sorted(paid, key=lambda one: (one.change.rank, -(one.gain_per_cost or 0.0))))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; a change has the warnings that the unchanged scenario lacks."""
        known = frozenset(self.result.warnings)
        return {
            "schema": SCHEMA,
            **by_name(self, "objective result economics"),
            "options": [
                {**one.to_dict(), "warnings": [text for text in one.result.warnings if text not in known]}
                for one in self.tried
            ],
            "by_cost": [one.change.key for one in self.by_cost],
            "uncertain": [one.change.key for one in self.uncertain],
            "larger_batches": [one.change.key for one in self.larger_batches],
            "impossible": [by_name(one, "key description why=barred") for one in self.impossible],
            "untried": [by_name(one, "key description why=barred") for one in self.untried],
            **by_name(self, "number_tried stopped"),
        }


def _about(warning: str) -> str:
    """Return what a warning is about: its text up to its first number."""
    return re.split(r"\d", warning, maxsplit=1)[0]


def _setting(change: Change) -> Hashable:
    """Return what a change sets: equal for changes that differ only in a number."""
    values = ((edit.path, "" if _is_number(edit.value) else repr(edit.value)) for edit in change.edits)
    return change.kind, tuple(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


Options = Callable[[Evaluator, SimulationResult, CostList], Sequence[Change]]
"""Function that lists the changes to try."""


def advise(
    scenario: EvaluatorSource,
    *,
    objective: str | None = None,
    costs: CostList | None = None,
    progress: Watcher | None = None,
    options: Options | None = None,
    pairs: bool = True,
    **machine: Unpack[QuestionOptions],
) -> Advice:
    """Simulate a scenario with one change at a time, and rank the changes by what they gain.

    Changes that keep the answers come first. The gain is of the throughput, or for the ``objective``
    "latency" of the time of a whole request, an update or a checkpoint, which is the default where one
    sequence at a time is generated (``batch_size`` 1), or of any metric of results or costs with a better
    direction. "cost" decides between purchases alone. ``options`` lists the changes, by default all that are
    known; ``pairs`` adds more host memory with what is possible only then. Raises InputError for an unknown
    objective, and what ``simulate`` raises for the unchanged scenario; a change that cannot be made is listed
    as impossible, one that a limit stops as untried. ``machine`` as in ``simulate``.
    """
    known = load_costs() if costs is None else costs
    evaluator = evaluator_of(scenario, **machine)
    with watched_by(progress):
        trial = _Evaluating(evaluator, known, objective_of(evaluator.scenario, objective))
        try:
            listed = limited(options or options_of)(evaluator, trial.result, known)
        except WorkLimitError as error:
            listed, trial.stopped = (), str(error)
        for option in steps(listed, lambda option: option.key):
            trial.evaluate(option)
        if pairs:
            trial.evaluate_pairs()
    together = _together(trial.tried)
    if together is not None:
        trial.evaluate(together)
        single = max(one.gain or 0.0 for one in trial.tried if one.change.kind == "setting")
        # Settings may stand in each other's way: what gains less than one of them is no advice.
        trial.tried = [
            one for one in trial.tried if one.change is not together or (one.gain or 0.0) >= single
        ]
    trial.sort()
    return Advice(
        trial.scenario,
        trial.result,
        trial.now,
        tuple(_different(trial.tried, trial.scenario, trial.result)),
        tuple(trial.impossible),
        trial.objective,
        tuple(trial.untried),
        trial.number_tried,
        trial.stopped,
    )


class _Evaluating:
    """An _Evaluating simulates one change of a scenario after the other."""

    def __init__(self, evaluator: Evaluator, costs: CostList, objective: Objective) -> None:
        self._evaluator, self._costs = evaluator, costs
        self.scenario, self.objective = evaluator.scenario, objective
        self.result = objective.judging(evaluator.answer()[1])
        self.now = economics(self.scenario, self.result, costs)
        check_improvable(objective, self.result, self.now)
        self._present = present(self.scenario, self.result, costs)
        self.tried: list[EvaluatedChange] = []
        self.impossible: list[Change] = []
        self.untried: list[Change] = []
        self.number_tried = 0
        self.stopped = ""

    def evaluate(self, change: Change) -> None:
        """Simulate a change, and list it as tried, impossible or untried."""
        why = change.barred
        if not why:
            try:
                found, answer = self._evaluator.answer(*change.edits)
                why = "; ".join(answer.advice)
            except WorkLimitError as error:
                self.stopped = self.stopped or str(error)
                self.untried.append(change._replace(barred=str(error)))
                return
            except (InputError, SimulationError) as error:
                why = _why(error)
        self.number_tried += 1
        if why:
            self.impossible.append(change._replace(barred=why))
        else:
            self.tried.append(self._compared(change, found, self.objective.judging(answer)))

    def evaluate_pairs(self) -> None:
        """Simulate more host memory with what is possible only then, if it is faster than anything alone."""
        tiers = tuple(dict.fromkeys(self.result.targets))
        for purchase in memory(self.scenario):
            if purchase.barred or self.stopped:
                return
            alone = self._fastest()
            try:
                best = limited(self._best_of)(only_with(self._evaluator, purchase, tiers))
            except WorkLimitError as error:
                self.stopped = str(error)
                return
            for rank, (time, change) in sorted(best.items()):
                if time * WORTH < min(alone[: rank + 1]):
                    self.evaluate(change)

    def _best_of(self, changes: Iterable[Change]) -> dict[int, tuple[float, Change]]:
        """Return the change with the least time, and that time, of those with the same answers and of
        others."""
        best: dict[int, tuple[float, Change]] = {}
        for change in steps(changes, lambda change: change.key):
            with suppress(InputError, SimulationError):
                scenario, least = self._evaluator.answer(*change.edits, scope="first")
                time = self._ranking(scenario, least)
                if time and time < best.get(change.rank, (math.inf,))[0]:
                    best[change.rank] = time, change
        return best

    def _fastest(self) -> list[float]:
        """Return the shortest time with as many sequences at once, with the same answers and with others."""
        now = sequences_at_once(self.scenario)
        times = [[_number(self.objective.ranking(self.result, self.now))], [math.inf]]
        for one in self.tried:
            if sequences_at_once(one.scenario) == now:
                times[one.change.rank].append(self._ranking_of(one))
        return [min(each) for each in times]

    def _compared(
        self, change: Change, scenario: LoadedScenario, result: SimulationResult
    ) -> EvaluatedChange:
        cost = economics(scenario, result, self._costs)
        now = self.objective.ranking(self.result, self.now)
        gain = self.objective.gain(now, self.objective.ranking(result, cost))
        before, after = self.result.unit_s, result.unit_s
        found = EvaluatedChange(
            change=change,
            scenario=scenario,
            result=result,
            economics=cost,
            gain=gain,
            extra=cost.bill.beyond(self._present) if change.priced else None,
            prices=cost.bill.added(self._present),
            margin=self._margin(result) if gain else 0.0,
            throughput=before / after if before and after else None,
        )
        more = sequences_at_once(scenario) > sequences_at_once(self.scenario)
        slower = more and gain is not None and (change.kind == "workload" or not found.helps)
        return replace(found, only_throughput=self.objective.is_latency and slower)

    def _margin(self, result: SimulationResult, before: SimulationResult | None = None) -> float:
        """Return how uncertain the ratio of a result and the one ``before`` is, by default the unchanged one:
        that of the work, from which costs and energy follow, for metrics that are no time of passes."""
        by, both = self.objective.by, (before or self.result, result)
        if self.objective.metric is not None and all(by(one) in one.composed for one in both):
            return margin(*both, by=by(result))
        return margin(*both, by="latency_by" if self.objective.is_latency else "unit_by")

    def sort(self) -> None:
        """Bring the changes into the order of report: what costs nothing comes before purchases that gain as
        much, of which each knows the best such change that does the same work (``instead``)."""
        found: list[EvaluatedChange] = []
        for one in sorted(self.tried, key=self.order):
            equal = (at for at, other in enumerate(found) if self._replaces(one, other))
            found.insert(next(equal, len(found)), one)
        free = [one for one in found if one.change.kind != "workload"]
        self.tried = [
            replace(one, instead=next((other.change for other in free if self._replaces(other, one)), None))
            for one in found
        ]

    def _replaces(self, free: EvaluatedChange, paid: EvaluatedChange) -> bool:
        """Return whether a change that costs nothing gains as much as a purchase, within the uncertainty of
        their ratio, or within ``EQUAL``."""
        if self.objective.is_of_costs or not (free.helps and paid.helps):
            return False  # costs are what it is about
        if not free.is_free or paid.is_free:
            return False
        if self.order(free)[:2] != self.order(paid)[:2]:
            return False
        less, more = sorted((self._ranking_of(free), self._ranking_of(paid)))
        return more <= less * max(EQUAL, 1 + self._margin(paid.result, free.result))

    def order(self, one: EvaluatedChange) -> tuple[int, bool, float]:
        """Return the order of report: the same answers first, then, where one sequence at a time is asked
        for, as many sequences, then what is fastest."""
        more = sequences_at_once(one.scenario) > sequences_at_once(self.scenario)
        single = one_at_a_time(self.scenario)
        return one.change.rank, more and single, self._ranking_of(one)

    def _ranking_of(self, one: EvaluatedChange) -> float:
        return _number(self.objective.ranking(one.result, one.economics))

    def _ranking(self, scenario: LoadedScenario, result: SimulationResult) -> float | None:
        cost = economics(scenario, result, self._costs) if self.objective.is_of_costs else None
        return self.objective.ranking(result, cost)


def _number(ranking: float | None) -> float:
    """Return a ranking, the last one where there is none."""
    return math.inf if ranking is None else ranking


def _different(
    tried: Iterable[EvaluatedChange], base: LoadedScenario, unchanged: SimulationResult
) -> Iterator[EvaluatedChange]:
    """Yield the changes without those that are the same in other words as an earlier one, or as no change.

    They help exactly as much, or the same program runs with the same settings.
    """
    answers: list[tuple[Any, ...]] = []
    programs = [_program(base, unchanged)]
    for one in tried:
        needs = [(use.tier, use.needed, use.capacity) for use in one.result.capacity]
        answer = one.result.metrics(), needs, one.extra, one.change.priced
        program = _program(one.scenario, one.result)
        if (one.helps and answer in answers) or (program[0] and program in programs):
            continue
        answers.append(answer)
        programs.append(program)
        yield one


def _program(scenario: LoadedScenario, result: SimulationResult) -> tuple[Any, ...]:
    """Return what a user types, for what else, and with which times; nothing is typed if it is empty."""
    rest = {key: value for key, value in scenario.document.data.items() if key != "strategy"}
    needs = [(use.tier, use.needed) for use in result.capacity]  # adapters are in no exported file
    return result.provenance.exports, rest, result.gpus, result.targets, result.metrics(), needs


def _together(tried: Sequence[EvaluatedChange]) -> Change | None:
    """Return all settings that gain alone as one change, the best of each key; None if that is one setting or
    none."""
    helping = [one for one in tried if one.change.kind == "setting" and (one.gain or 0.0) >= WORTH]
    best: dict[Location, Edit] = {}
    for one in sorted(helping, key=lambda one: one.gain or 0.0):
        best |= {each.path: each for each in one.change.edits}
    if any({each.path: each for each in one.change.edits} == best for one in helping) or not helping:
        return None
    names = ", ".join(str(path[-1]) for path in best)
    description = f"all settings that gain alone, combined ({names})"
    return Change("setting", description, tuple(best.values()), key=TOGETHER)


def _why(error: InputError | SimulationError) -> str:
    if isinstance(error, InputError):
        return "; ".join(problem.message for problem in error.problems)
    return str(error)
