"""Comparison of the same work on several targets."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

from pydantic import TypeAdapter

from simoffload.documents import quoted
from simoffload.errors import InputError, Problem, SimulationError, WorkLimitError
from simoffload.limits import keep, limited, now_doing
from simoffload.planning.advise import objective_of
from simoffload.planning.alternatives import in_gpus, in_place_of_target, without_offloading
from simoffload.planning.answers import Answer
from simoffload.planning.confidence import margin, tie
from simoffload.planning.costs import CostList, load_costs
from simoffload.planning.economics import Costed, CostVerdict, Economics, verdicts
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.free_settings import FreeSettings, Judge, best_settings, unjudged
from simoffload.planning.measured import MeasuredSource, MeasuredTable, MeasuredValue
from simoffload.planning.question import QuestionOptions, loaded, opened, with_model
from simoffload.planning.reported import ReportedAnswer
from simoffload.planning.targets import on_targets
from simoffload.progress import Watcher, steps, watched_by
from simoffload.results import ADDED, Change, SimulationResult, by_name, with_intervals
from simoffload.scenario import (
    LoadedScenario,
    ScenarioSource,
    canonical_target,
    names_model,
    read_scenario,
)
from simoffload.simulation import fit, simulate
from simoffload.simulation.metrics import refused
from simoffload.strategies.base import moving
from simoffload.units import format_bytes, format_number
from simoffload.workload import Checkpointing

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# -- published time ratios between tiers, to print next to simulated ones --------------------------


class PublishedRatio(NamedTuple):
    """A published time per token on one tier, relative to that on another."""

    scenario: str
    """Name of the shipped scenario that reproduces the publication."""
    target: str
    relative_to: str
    ratio: float
    note: str
    """The words of the publication."""

    @property
    def source(self) -> str:
        """Return the tiers and the words, as "nfs over raid: around 10x longer"."""
        return f"{self.target} over {self.relative_to}: {self.note}"


@cache
def shipped_ratios() -> tuple[PublishedRatio, ...]:
    """Return the table ``published_ratios.csv``, which ``python -m validation`` writes."""
    text = (files("simoffload.planning") / "published_ratios.csv").read_text("utf-8")
    rows = TypeAdapter(tuple[PublishedRatio, ...])
    return rows.validate_python(tuple(csv.DictReader(io.StringIO(text))))


def published_ratios(scenario: LoadedScenario, baseline: str) -> dict[str, tuple[float, str]]:
    """Return the published time on each tier over that on ``baseline``, with the words of the publication.

    The result is empty unless the scenario is, up to its target, one that is shipped to reproduce a
    publication.
    """
    ratios = [one for one in shipped_ratios() if one.scenario.rpartition("/")[2] == scenario.name]
    if not ratios or not _same_work(scenario, read_scenario(ratios[0].scenario)):
        return {}
    # Every ratio is followed in both directions until no tier is added.
    known: dict[str, tuple[float, tuple[str, ...]]] = {baseline: (1.0, ())}
    for _ in ratios:
        for one in ratios:
            forth = (one.relative_to, one.target, one.ratio)
            back = (one.target, one.relative_to, 1 / one.ratio)
            for start, end, ratio in (forth, back):
                if start in known and end not in known:
                    known[end] = (known[start][0] * ratio, (*known[start][1], one.source))
    return {tier: (ratio, "; ".join(sources)) for tier, (ratio, sources) in known.items() if tier != baseline}


def _same_work(one: LoadedScenario, other: LoadedScenario) -> bool:
    """Return whether two scenarios differ in nothing but the tier of the weights."""
    mine, theirs = (
        {**each.document.data, "strategy": {**each.document.data["strategy"], "weights": None}}
        for each in (one, other)
    )
    return bool(mine == theirs)


# -- other settings with nearly the same answer ----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NearerPlace:
    """A NearerPlace holds what is compared in memory that the machine has, simulated."""

    label: str
    """Label of its row in the comparison, where that is asked for."""
    change: Change
    """The edits of the offers that lead to it; ``same_work`` is false for weights with fewer bits."""
    scenario: LoadedScenario
    result: SimulationResult
    fastest: str
    """Label of the best of the offers that it makes needless."""
    gain: float
    """Time on that offer divided by the time here (``SimulationResult.compared_s``)."""

    @property
    def text(self) -> str:
        """Return where it is, how much of that is filled, how fast it is, and whether answers change."""
        result = self.result
        filled = (use for use in result.capacity if use.tier in result.targets)
        room = ", ".join(
            f"{_size(use.needed)} of {_size(use.capacity)} {use.scope} ({use.tier})" for use in filled
        )
        metric = result.compared_metric
        time = metric.text(result.value_of(metric.name) or 0.0)
        time = f"{metric.column} {time}" if metric.unit.name == "s" else time
        faster = f"{format_number(self.gain)} times as {self._how} as {self.fastest}"
        check = "" if self.change.same_work else ", but check the quality of its answers first"
        return f"{self.change.description}: {room}, {time}, {faster}{check}"

    def better(self, *, named: bool) -> str:
        """Return how much better it is, and with what: "5.7 times as fast as raid with the weights in host
        memory", or unless it is ``named`` how, "750 times with them in fp8 in the same GPUs (other
        answers)"."""
        where = "in the same GPUs" if self.result.in_gpus else "in host memory"
        form = "" if self.change.same_work else f"in {self.result.model.rpartition(', ')[2]} "
        check = "" if self.change.same_work else " (other answers)"
        what = f"as {self._how} as {self.fastest} with the weights" if named else "with them"
        return f"{format_number(self.gain, digits=2)} times {what} {form}{where}{check}"

    @property
    def _how(self) -> str:
        return "fast" if self.result.compared_metric.unit.name in ("s", "1/s") else "good"

    def is_as(self, other: NearerPlace) -> bool:
        """Return whether two places are the same for the same work, whatever storage the offers have."""
        mine, theirs = ((one.change.key, one.scenario.machine.platform, one.result) for one in (self, other))
        return mine[:2] == theirs[:2] and mine[2].metrics() == theirs[2].metrics()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        change = by_name(self.change, "description same_work changes=edits")
        return {**by_name(self, "label fastest gain text"), **change, "metrics": self.result.metrics()}


def _size(count: int) -> str:
    return format_bytes(count, binary=True)


@dataclass
class NearerSearch:
    """A NearerSearch finds where the work of offers of storage would fit into memory of their machines."""

    judged: Judge = unjudged
    found: list[NearerPlace] = field(default_factory=list)
    stopped: str = ""
    """The limit that kept it from trying all places; empty if it tried them."""

    def run(
        self, offers: Mapping[str, LoadedScenario], results: Mapping[str, SimulationResult]
    ) -> NearerSearch:
        """Find places, within the limits of an offer for the whole search, and return the search itself.

        For each work, that is the fastest place with the same answers and, unless that is in the GPUs, the
        form of the weights with most bits that fits there; neither if it is slower than an offer. None unless
        all offers that have times are on storage, and for checkpoints, which must outlive the memory.
        """
        timed = {label: time for label in offers if (time := results[label].compared_s)}
        if all(_on_storage(offers[label]) for label in timed):
            try:
                self._search(offers, timed)
            except WorkLimitError as error:
                self.stopped = str(error)
        return self

    @limited
    def _search(self, offers: Mapping[str, LoadedScenario], timed: Mapping[str, float]) -> None:
        for label in steps(sorted(timed, key=timed.__getitem__), str):
            keep(offers[label].scenario.engine.limits)
            now_doing("looking for memory that would do")
            evaluator = Evaluator(offers[label])
            candidates = [one for one in _candidates(evaluator) if evaluator.fits(*one.edits)]
            same = [one for one in candidates if one.same_work]
            fewer = [one for one in candidates if not one.same_work]
            named = steps(same, attrgetter("description"))
            places = [one for each in named if (one := self._place(evaluator, each, label, timed[label]))]
            best = sorted(places, key=lambda one: -one.gain)[:1]
            if not any(one.result.in_gpus for one in places):
                named = steps(fewer, attrgetter("description"))
                fitting = (self._place(evaluator, each, label, timed[label]) for each in named)
                best += list(islice((one for one in fitting if one), 1))
            self.found += [one for one in best if not any(one.is_as(other) for other in self.found)]

    def _place(self, evaluator: Evaluator, change: Change, offer: str, time: float) -> NearerPlace | None:
        """Return a place with its simulation; None if it is slower, is refused or has too many operations."""
        label = in_place_of_target(offer, change.key, evaluator.scenario)
        try:
            scenario = evaluator.edited(*change.edits)
            scenario = replace(scenario, remarks=(f"{ADDED}: {change.description}",))
            result = self.judged(scenario, simulate(scenario))
        except (InputError, SimulationError):
            return None
        except WorkLimitError as error:
            self.stopped = str(error)
            return None
        if not result.compared_s or result.compared_s > time:
            return None
        return NearerPlace(
            label=label,
            change=change,
            scenario=scenario,
            result=result,
            fastest=offer,
            gain=time / result.compared_s,
        )


def _on_storage(scenario: LoadedScenario) -> bool:
    """Return whether a scenario keeps anything but checkpoints on storage."""
    checkpoints = isinstance(scenario.scenario.workload, Checkpointing)
    return not checkpoints and any(tier in scenario.machine.targets for tier in scenario.places)


def _candidates(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the placements of the strategy in memory, and the weights in the GPUs, those with most bits
    first."""
    strategy, machine = evaluator.strategy, evaluator.scenario.machine
    for one in evaluator.scenario.placements.possible:
        rows = [machine.tiers[tier].row for tier in one if tier is not None]
        if all(row.is_memory for row in rows):
            named = ("GPU memory" if row.is_gpu else "host memory" for row in rows)
            where = " and ".join(dict.fromkeys(named))
            held = "the weights" if one.optimizer is None else "the weights and optimizer states"
            described = f"{where} would hold {held}"
            yield Change("placement", described, moving(strategy, one, machine), key=str(one))
    divided = filter(None, (one.replacing(evaluator) for one in in_gpus(evaluator)))
    yield from sorted(divided, key=lambda one: -evaluator.edited(*one.edits).model.weight_bytes)


# -- comparisons -----------------------------------------------------------------------------------

SCHEMA = "simoffload/comparison/1"
AS_CONFIGURED = ", as configured"
"""End of the label of an offer with the settings of its scenario, beside it at its best free settings."""


@dataclass(frozen=True, repr=False)
class Comparison(ReportedAnswer):
    """A Comparison holds results by label, in the order requested, and their baseline."""

    results: dict[str, Answer]
    baseline: str | None = None
    """Label that ratios refer to; None = of each model and kind of work the first result that has times."""
    nearer: tuple[NearerPlace, ...] = ()
    """Memory that the machines have and that would do, where everything compared is on storage."""
    nearer_stopped: str = ""
    """The limit that kept the comparison from trying all such memory; empty if it tried it."""
    free_settings: Mapping[str, FreeSettings] = field(default_factory=dict)
    """What was found for each offer whose settings were searched for, by label."""
    measured: tuple[MeasuredValue, ...] = ()
    """Values of real runs, beside what is predicted for them."""

    def _report(self) -> Any:
        from simoffload.report.from_comparison import agreed, comparison_document

        # What does not fit has no scenario, so that nothing searches for what makes it fit.
        shown = (one if one.step else replace(one, scenario=None) for one in self.results.values())
        document = comparison_document(tuple(shown), notes=self.notes, measured=self.measured)
        return agreed(document._replace(better=self.better), self.measured)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about settings of offers and about nearer places that would do, for reports."""
        return (*self._settings_notes, *self._nearer_notes)

    @property
    def better(self) -> str:
        """What would be better than the best offer, in a few words; empty where nothing is known to be."""
        found = ", ".join(one.better(named=not at) for at, one in enumerate(self.nearer))
        return f"no storage at all: {found}" if found else ""

    @property
    def _settings_notes(self) -> Iterator[str]:
        for label, one in self.free_settings.items():
            if one.changes:
                settings = ", ".join(change.description for change in one.changes)
                yield f"{label} is at its best settings that cost nothing: {settings}"
        reasons = dict.fromkeys(one.stopped for one in self.free_settings.values() if one.stopped)
        for why in reasons:
            labels = (label for label, one in self.free_settings.items() if one.stopped == why)
            yield f"{', '.join(labels)}: not all settings that cost nothing were tried: {why}"
        if self.free_settings and not any(one.changes for one in self.free_settings.values()):
            yield "no setting that costs nothing makes any of them better"

    @property
    def _nearer_notes(self) -> tuple[str, ...]:
        stopped = "whether other memory of the machine would do was not found out: "
        missing = (f"{stopped}{self.nearer_stopped}",) if self.nearer_stopped else ()
        if not self.nearer:
            return missing
        places = "; ".join(one.text for one in self.nearer)
        return (f"memory that the machine has would do, without storage: {places}", *missing)

    @property
    def economics(self) -> dict[str, Economics]:
        """Costs of each answer, by label; empty where only memory was asked for."""
        costs = {label: result.costs for label, result in self.results.items()}
        return {label: one for label, one in costs.items() if one is not None}

    @property
    def fits(self) -> bool:
        """Whether at least one of the targets is large enough."""
        return any(result.fits for result in self.results.values())

    def baseline_of(self, label: str) -> str | None:
        """Label of the result of the same model and kind that the ratio of ``label`` refers to, if any has
        times; work that makes one token is another kind than work that makes more."""
        mine = self.results[label]
        comparable = (
            one for one, result in self.results.items() if _comparable(result, mine) and result.compared_s
        )
        return next((one for one in comparable if self.baseline in {None, one}), None)

    def ratio(self, label: str) -> float | None:
        """Time (``compared_by``) on ``label`` divided by that of its baseline; None where either has none."""
        mine, theirs = self._times(label, "compared_s")
        return mine / theirs if mine and theirs else None

    def throughput_ratio(self, label: str) -> float | None:
        """Tokens (checkpoints) per second on ``label`` over those on its baseline; None where ``ratio``
        is."""
        mine, theirs = self._times(label, "unit_s")
        return theirs / mine if mine and theirs else None

    def _times(self, label: str, name: str) -> tuple[float | None, float | None]:
        """Return a time of a result and of its baseline [s]."""
        baseline = self.baseline_of(label)
        theirs = None if baseline is None else getattr(self.results[baseline], name)
        return getattr(self.results[label], name), theirs

    def margin(self, label: str) -> float | None:
        """Smallest significant relative difference between ``label`` and its baseline, beyond which the 80 %
        interval of their ratio does not contain 1; None where there is no other to differ from."""
        pair = self._pair(label)
        return margin(*pair) if pair else None

    def tie(self, label: str) -> bool | None:
        """Whether ``label`` and its baseline differ by less than ``margin``; None where that is None."""
        pair = self._pair(label)
        return tie(*pair) if pair else None

    def _pair(self, label: str) -> tuple[SimulationResult, SimulationResult] | None:
        """Return a result and its baseline, if these are two different results with times."""
        mine, baseline = self.results[label], self.baseline_of(label)
        if baseline is None or baseline == label or mine.compared_s is None:
            return None
        return mine, self.results[baseline]

    @property
    def ranking(self) -> tuple[str, ...]:
        """Labels of the simulated results, the shortest time (``SimulationResult.compared_by``) first."""
        times = {label: time for label, result in self.results.items() if (time := result.compared_s)}
        return tuple(sorted(times, key=times.__getitem__))

    @property
    def cost_verdicts(self) -> tuple[CostVerdict, ...]:
        """Cheapest answer per unit of work, and the prices at which the next one would be cheaper."""
        judged = {label: one for label, one in self.results.items() if not one.superseded}
        costs = self.economics
        return verdicts(Costed(label, one, costs[label]) for label, one in judged.items() if label in costs)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "schema": SCHEMA,
            "ranking": list(self.ranking),
            "cost_verdicts": [one.to_dict() for one in self.cost_verdicts],
            "nearer": [one.to_dict() for one in self.nearer],
            **({"nearer_stopped": self.nearer_stopped} if self.nearer_stopped else {}),
            **({"free_settings": self._settings_by_label} if self.free_settings else {}),
            **({"measured": [one.to_dict() for one in self.measured]} if self.measured else {}),
            "compared": [
                {
                    "label": label,
                    "baseline": self.baseline_of(label),
                    **self._relation(label),
                    "intervals": {name: list(ends) for name, ends in result.intervals().items()},
                    "result": SimulationResult.to_dict(result),
                    **({"economics": self.economics[label].to_dict()} if label in self.economics else {}),
                }
                for label, result in self.results.items()
            ],
        }

    @property
    def _settings_by_label(self) -> dict[str, dict[str, Any]]:
        return {label: one.to_dict() for label, one in self.free_settings.items()}

    def plot(self, *, log: bool = False) -> Figure:
        """Return a plotly figure: the compared time of each result with its interval, the fastest on top.

        With ``log`` the axis is logarithmic. If only memory was computed: the fullest tier of each.
        """
        from simoffload.report.comparison import capacity_compared, groups, times_compared
        from simoffload.report.plotting import of_plotly

        found = groups(tuple(self.results.values()))
        timed = any(result.step is not None for result in self.results.values())
        return of_plotly(times_compared(found, log=log) if timed else capacity_compared(found))

    def to_frame(self) -> pd.DataFrame:
        """One row per label: model, platform, target, fits or why it is refused, all metrics with P10 and P90
        (``tpot_s``, ``tpot_s_p10``, ``tpot_s_p90``), costs (none where a price is missing) and
        ``missing_prices``, bottleneck and its limit, ratio, tie, measured values (``tpot_s_measured``),
        warnings.

        With other work than inference in it also the kind of work and, of training, the optimizer's tier;
        what a kind lacks is missing.
        """
        import pandas as pd

        return pd.DataFrame.from_dict(self._rows(), orient="index")

    def table(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Return the same as plain values: the names of the columns, the label's first, and the rows."""
        found = self._rows()
        columns = tuple(dict.fromkeys(name for row in found.values() for name in row))
        return ("label", *columns), [(label, *map(row.get, columns)) for label, row in found.items()]

    def _relation(self, label: str) -> dict[str, Any]:
        """Return how a result compares with its baseline."""
        return {
            "ratio": self.ratio(label),
            "throughput_ratio": self.throughput_ratio(label),
            "tie_with_baseline": self.tie(label),
            "margin": self.margin(label),
        }

    def _rows(self) -> dict[str, dict[str, Any]]:
        return {
            label: {
                **by_name(result, "model platform target"),
                **self._particular(result),
                "fits": result.fits,
                "refused": "; ".join(result.refused) or None,
                **with_intervals(result.metrics(), result.intervals()),
                **self._priced(label),
                **by_name(result, "bottleneck limit bound_fraction"),
                **self._relation(label),
                **{f"{one.metric.name}_measured": one.value for one in self.measured if one.label == label},
                "warnings": "; ".join(result.warnings) or None,
            }
            for label, result in self.results.items()
        }

    def _priced(self, label: str) -> dict[str, Any]:
        """Return the costs of a result, with the parts of which a price or power is missing."""
        one = self.economics.get(label)
        return {} if one is None else {**one.metrics(), "missing_prices": ", ".join(one.missing) or None}

    def _particular(self, result: SimulationResult) -> dict[str, str]:
        """Return what tells results apart where some of them are not of inference."""
        if all(each.kind == "inference" for each in self.results.values()):
            return {}
        found = {"workload": result.kind}
        return found | {"optimizer_target": result.targets[1]} if result.targets[1:] else found


def _comparable(one: SimulationResult, other: SimulationResult) -> bool:
    """Return whether the times of two results can be set in relation."""
    return (type(one), one.model, one.compared_by) == (type(other), other.model, other.compared_by)


def compare(
    scenario: ScenarioSource | Sequence[ScenarioSource] | None = None,
    targets: str | Sequence[str] | None = None,
    *,
    models: Sequence[str | Path] = (),
    baseline: str | None = None,
    objective: str | None = None,
    costs: CostList | None = None,
    measured: MeasuredSource | None = None,
    keep_timelines: bool = False,
    progress: Watcher | None = None,
    **machine: Unpack[QuestionOptions],
) -> Comparison:
    """Simulate a scenario on each of several targets, or several scenarios, and say what each costs.

    ``scenario`` is one, or a list of several, of which each may be the name of a model on the machine that
    ``machine`` names; ``models`` are others to compare it with, or with each other. Each result has the label
    of its target in ``on_targets``, after the name of its scenario if there are several, or this name.
    ``measured`` are values of real runs to set beside the predictions: a mapping of labels to metrics and
    numbers, ``{"raid": {"tokens_per_s": 12.3}}``, a data frame, or the path of a CSV file. Where weights are
    offloaded and the GPUs of the machine could hold them together, a result without offloading follows
    (``vllm``, or ``transformers`` where vLLM does not run). ``baseline`` is one of the targets; by default
    the first that has times. ``objective`` is the metric that decides which is best, as ``advise`` takes it;
    by default tokens/s of the whole request. ``costs`` is a list of prices and powers, the shipped one by
    default. Where all targets are storage and memory that is there would do, ``nearer`` of the comparison
    says so. What DeepSpeed or the strategy would refuse is
    a result that says so, as is one that reaches its limits. ``machine`` as in ``simulate``. Raises
    InputError for an unknown target, and if all are refused, before anything is simulated; WorkLimitError if
    no other answer is left.
    """
    if isinstance(targets, str) and names_model(targets):
        raise InputError.at("targets", f"{targets} is a model; give several models as a list")
    targets = [targets] if isinstance(targets, str) else targets
    retargeted = named = _named_scenarios(scenario, models, machine)
    if targets is not None:
        retargeted = {
            label if len(named) == 1 else f"{name} {label}": one
            for name, asked in named.items()
            for label, one in on_targets(asked, targets).items()
        }
    baseline = None if baseline is None else canonical_target(baseline)
    return compare_scenarios(
        retargeted,
        baseline=baseline,
        objective=objective,
        costs=costs,
        measured=measured,
        keep_timelines=keep_timelines,
        progress=progress,
        unoffloaded=targets is not None,
    )


def _named_scenarios(
    scenario: ScenarioSource | Sequence[ScenarioSource] | None,
    models: Sequence[str | Path],
    machine: QuestionOptions,
) -> dict[str, LoadedScenario]:
    """Return what is compared by name. Raises InputError for nothing, and for a name that two have."""
    if scenario is None:
        given = [opened(model, **machine) for model in models]
    else:
        several = isinstance(scenario, Sequence) and not isinstance(scenario, str)
        sources = cast("Sequence[ScenarioSource]", scenario if several else [scenario])
        given = [opened(one, **machine) for one in sources]
        given += [with_model(one, str(model)) for one in tuple(given) for model in models]
    if not given:
        raise InputError.at("scenario", "is missing; name scenarios or models, such as models=[…]")
    count = Counter(one.name for one in given)
    if twice := [name for name, number in count.items() if number > 1]:
        text = f"two of them are called {twice[0]}; compare_scenarios takes a name for each"
        raise InputError.at("scenario", text)
    return {one.name: one for one in given}


def compare_scenarios(
    scenarios: Mapping[str, ScenarioSource],
    *,
    baseline: str | None = None,
    objective: str | None = None,
    costs: CostList | None = None,
    measured: MeasuredSource | None = None,
    keep_timelines: bool = False,
    progress: Watcher | None = None,
    unoffloaded: bool = False,
    free_settings: bool = False,
) -> Comparison:
    """Simulate several scenarios; see ``compare``. The limits of each hold for it alone, those of one for the
    whole search for nearer memory.

    With ``free_settings``, each label means its scenario at its best free settings (``best_settings``) for
    the objective; where these differ from those of the scenario, a result "…, as configured" follows. With
    ``unoffloaded``, the same work without offloading is added: for each label that ends in a target, or once.
    """
    table = None if measured is None else MeasuredTable(measured)
    known = {label: loaded(scenario) for label, scenario in scenarios.items()}
    judged = _judge(objective, load_costs() if costs is None else costs)
    for scenario in known.values() if objective is not None else ():
        objective_of(scenario, objective)  # refuses an unknown one before anything is simulated
    capacities = compare_fit(known, baseline=baseline)  # what is refused is known before the first runs
    results: dict[str, SimulationResult] = {**capacities.results}
    if table is not None:
        table.values(capacities.results)  # refuses what is wrong before anything is simulated
    for label, scenario in without_offloading(known, results) if unoffloaded else ():
        with suppress(WorkLimitError):
            results[label] = fit(scenario)
            known[label] = scenario
    offers = {label: known[label] for label in scenarios}
    with watched_by(progress):
        _simulate(known, results, offers, keep_timelines=keep_timelines)
        answers = {label: judged(known[label], result) for label, result in results.items()}
        if objective is not None:
            _check_value(objective, answers.values())
        found = _at_best_settings(known, answers, offers if free_settings else (), judged, keep_timelines)
        offers = {label: known[label] for label in scenarios}
        search = NearerSearch(judged).run(offers, answers)
    answers = _labelled(known, answers)
    return replace(
        capacities,
        results=answers,
        nearer=tuple(search.found),
        nearer_stopped=search.stopped,
        free_settings=found,
        measured=() if table is None else table.values(answers),
    )


def _judge(objective: str | None, prices: CostList) -> Callable[[LoadedScenario, SimulationResult], Answer]:
    """Return what gives results their costs, and the metric by which an objective compares them."""

    def judged(scenario: LoadedScenario, result: SimulationResult) -> Answer:
        asked = "" if objective is None else objective_of(scenario, objective).asked(result)
        return Answer.of(result, scenario=scenario, prices=prices, asked=asked)

    return judged


def _at_best_settings(
    known: dict[str, LoadedScenario],
    results: dict[str, Answer],
    offers: Collection[str],
    judged: Judge,
    keep_timelines: bool,
) -> dict[str, FreeSettings]:
    """Replace offers by what they are at their best free settings, each followed by what it was before where
    that differs; return what was found, by label."""
    timed = [label for label in offers if results[label].compared_s is not None]
    found = {
        label: best_settings(known[label], results[label], judged=judged, keep_timelines=keep_timelines)
        for label in steps(timed, lambda label: f"{label}: free settings")
    }
    configured, before = dict(known), dict(results)
    known.clear()
    results.clear()
    changed = any(one.changes for one in found.values())
    for label, scenario in configured.items():
        if label not in before:  # it was added, and stopped by a limit
            continue
        shown = replace(before[label], label=label) if changed else before[label]
        known[label], results[label] = scenario, shown
        best = found.get(label)
        if best is not None and best.changes:
            was = f"{label}{AS_CONFIGURED}"
            known[label] = best.scenario
            results[label] = Answer.of(best.result, label=label, settings=best.text)
            known[was] = scenario
            name = f"{shown.name}{AS_CONFIGURED}"
            results[was] = replace(shown, name=name, label=was, superseded=True)
    return found


def _check_value(objective: str, results: Collection[SimulationResult]) -> None:
    """Raise InputError if no result that fits has a value of the objective."""
    timed = [one for one in results if one.step is not None]
    if timed and all(one.compared_s is None for one in timed):
        text = "has no value in any of them; name another objective"
        raise InputError.at(objective, text, path="--objective")


def _simulate(
    known: Mapping[str, LoadedScenario],
    results: dict[str, SimulationResult],
    offers: Collection[str],
    *,
    keep_timelines: bool,
) -> None:
    """Add the times of the scenarios that fit to their results; raises why there are none of the offers."""
    stopped: InputError | WorkLimitError | None = None
    for label in steps([label for label in known if results[label].fits], str):
        try:
            results[label] = simulate(known[label], keep_timelines=keep_timelines)
        except (InputError, WorkLimitError) as error:
            stopped, results[label] = error, refused(known[label], error)
            if label not in offers:
                del results[label]
    if stopped is not None and not any(results[label].fits for label in offers):
        raise stopped


def compare_fit(scenarios: Mapping[str, LoadedScenario], *, baseline: str | None = None) -> Comparison:
    """Answer only which of several scenarios fit.

    Raises InputError if there are none or all of them are refused, WorkLimitError if all reach their limits.
    """
    if not scenarios:
        raise InputError.at("", "there is nothing to compare; name at least one target or scenario")
    if baseline is not None and baseline not in scenarios:
        known = ", ".join(scenarios)
        message = f"{quoted(baseline)} is not one of what is compared: {known}"
        raise InputError.at("baseline", message)
    results: dict[str, SimulationResult] = {}
    problems: list[Problem] = []
    stopped: WorkLimitError | None = None
    for label in steps(scenarios, str):
        scenario = scenarios[label]
        try:
            results[label] = fit(scenario)
        except InputError as error:
            results[label] = refused(scenario, error)
            problems += [_named(problem, label) for problem in error.problems]
        except WorkLimitError as error:
            stopped, results[label] = error, refused(scenario, error)
    if all(result.refused for result in results.values()):
        raise stopped or InputError(dict.fromkeys(problems))
    return Comparison(_labelled(scenarios, results), baseline)


def _labelled(
    scenarios: Mapping[str, LoadedScenario], results: Mapping[str, SimulationResult]
) -> dict[str, Answer]:
    """Return the results with their labels as names, if something else than weights was moved, whose tiers
    name results, or if these are called alike."""
    from simoffload.report.comparison import need_labels

    parts = any(scenario.moved_part for scenario in scenarios.values())
    labelled = parts or need_labels(results.values())
    return {
        label: Answer.of(result, label=label) if labelled else Answer.of(result)
        for label, result in results.items()
    }


def _named(problem: Problem, label: str) -> Problem:
    return problem if problem.path else problem._replace(path=label)
