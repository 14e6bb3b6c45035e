"""``simoffload fit``: what each tier must hold, machines needed, the largest work."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.output import Answer, OutputFolder, report_files
from simoffload.cli.sources import CommandChanges, refusal, scenario_set
from simoffload.errors import InputError, WorkLimitError
from simoffload.limits import keep, limited, now_doing, sharing
from simoffload.progress import steps

if TYPE_CHECKING:
    from simoffload.report.document import ReportDocument
    from simoffload.results import SimulationResult
    from simoffload.scenario import LoadedScenario

_SCHEMA = "simoffload/fit/1"

T = TypeVar("T")


def fit(arguments: Namespace, console: Console) -> ExitCode:
    """Say what each tier must hold, how many machines are needed, or how large the work can be."""
    folder = OutputFolder.of(arguments)
    targets = None if arguments.machines else arguments.on
    found = _answer(arguments, targets, console)
    files = report_files(found.document, found.data) if folder else {}
    answer = limited(Answer.of)(found.document, found.data, folder, files, console)
    answer.show(console)
    answer.list_files(console)
    return ExitCode.OK if found.fits else ExitCode.DOES_NOT_FIT


class _FitAnswer(NamedTuple):
    document: ReportDocument
    data: dict[str, Any]
    fits: bool


def _answer(arguments: Namespace, targets: tuple[str, ...] | None, console: Console) -> _FitAnswer:
    if arguments.slo and not arguments.best_batch:
        raise refusal("fit", "--slo needs --best-batch; reach finds other numbers that keep service levels")
    found = scenario_set(
        arguments.scenarios or [arguments.model],
        targets,
        CommandChanges.of(arguments, model=arguments.model),
        command="fit",
        console=console,
    )
    if arguments.machines:
        return _machines(found, arguments.on, console)
    if arguments.largest:
        return _largest(found, console)
    if arguments.best_batch:
        return _best_batch(found, arguments.slo, console)
    if len(found) > 1 or targets:
        return _several(found, arguments.line, console)
    ((_, scenario),) = found.items()
    return _one(scenario, arguments.line, console)


def _one(scenario: LoadedScenario, command: str, console: Console) -> _FitAnswer:
    from simoffload.planning.answers import fit

    with sharing(scenario.scenario.engine.timeout):
        with Waiting(console, partial=True):
            result = fit(scenario)
            missing = _planned(result)
        if missing:
            console.note(f"other caches and changes that make it fit are left out: {missing}")
            result = replace(result, planner=None)
        return _reported(scenario, result, command)


def _planned(result: SimulationResult) -> str:
    """Work out what is told beside the memory, which is kept for the report; return the limit that was
    reached."""
    try:
        _ = result.caches, result.remedies
    except WorkLimitError as error:
        return str(error)
    return ""


@limited
def _reported(scenario: LoadedScenario, result: SimulationResult, command: str) -> _FitAnswer:
    from simoffload.report.from_result import result_document

    keep(scenario.scenario.engine.limits)
    now_doing("reporting")
    return _FitAnswer(result_document(result, command=command), result.to_dict(), result.fits)


def _several(found: dict[str, LoadedScenario], command: str, console: Console) -> _FitAnswer:
    from simoffload.planning.compare import compare_fit
    from simoffload.report.from_comparison import comparison_document

    with Waiting(console, partial=True):
        comparison = compare_fit(found)
        results = tuple(comparison.results.values())
        _ = [result.remedies for result in results]  # worked out here, and kept for the report
    document = limited(comparison_document)(results, command=command)
    return _FitAnswer(document, comparison.to_dict(), comparison.fits)


class _Each(NamedTuple, Generic[T]):
    """Answers for several scenarios, and why others have none; the limits of each apply to it alone."""

    answers: list[T]
    stopped: dict[str, str]

    @property
    def reasons(self) -> list[str]:
        """Reasons why scenarios have no answer."""
        return [f"{label}: {why}" for label, why in self.stopped.items()]

    def as_answer(
        self, name: str, document: ReportDocument, rows: list[dict[str, Any]], *, fits: bool
    ) -> _FitAnswer:
        """Return the answers under ``name``, with what was stopped."""
        return _FitAnswer(document, {"schema": _SCHEMA, name: rows, "stopped": self.stopped}, fits)


def _each(
    found: dict[str, LoadedScenario], question: Callable[[LoadedScenario], T], console: Console
) -> _Each[T]:
    """Ask a question about each scenario. Raises InputError or WorkLimitError if none has an answer."""
    answers: list[T] = []
    stopped: dict[str, str] = {}
    with Waiting(console, partial=True):
        for label in steps(found, str):
            try:
                answers.append(question(found[label]))
            except (InputError, WorkLimitError) as error:
                if len(stopped) == len(found) - 1:
                    raise
                stopped[label] = (
                    "; ".join(one.message for one in error.problems)
                    if isinstance(error, InputError)
                    else str(error)
                )
    return _Each(answers, stopped)


def _machines(
    found: dict[str, LoadedScenario], tiers: tuple[str, ...] | None, console: Console
) -> _FitAnswer:
    """Count the machines that each scenario needs; ``tiers`` are those to offload to."""
    from simoffload.planning.sizing import MachinesNeeded, machines_needed
    from simoffload.report.from_fit import machines_document

    def needed(scenario: LoadedScenario) -> MachinesNeeded:
        keep(scenario.scenario.engine.limits)
        try:
            return machines_needed(scenario, tiers=tiers)
        except InputError as error:
            named = (one if one.path else one._replace(path="--on", key="") for one in error.problems)
            raise InputError(named) from None

    each = _each(found, limited(needed), console)
    document = machines_document(each.answers, stopped=each.reasons)
    fits = any(count.machines for one in each.answers for count in one.counts)
    return each.as_answer("machines", document, [one.to_dict() for one in each.answers], fits=fits)


def _largest(found: dict[str, LoadedScenario], console: Console) -> _FitAnswer:
    from simoffload.planning.sizing import Largest, largest
    from simoffload.report.from_fit import largest_document

    def held(scenario: LoadedScenario) -> Largest:
        keep(scenario.scenario.engine.limits)
        return largest(scenario)

    each = _each(found, limited(held), console)
    document = largest_document(each.answers, stopped=each.reasons)
    fits = any(limit.most for one in each.answers for limit in (one.batch, one.context, one.layers))
    return each.as_answer("largest", document, [one.to_dict() for one in each.answers], fits=fits)


def _best_batch(found: dict[str, LoadedScenario], slo: Sequence[str], console: Console) -> _FitAnswer:
    from simoffload.planning.reach import BestBatch, best_batch
    from simoffload.report.from_fit import best_batch_document

    def best(scenario: LoadedScenario) -> BestBatch:
        # Its parts are limited one by one, so that what they found is kept.
        with sharing(scenario.scenario.engine.timeout):
            return best_batch(scenario, slo=slo)

    each = _each(found, best, console)
    partly = [
        f"{one.name}, {one.target}: not every batch was tried: {one.stopped}"
        for one in each.answers
        if one.stopped
    ]
    document = best_batch_document(each.answers, stopped=[*each.reasons, *partly])
    fits = any(one.best is not None for one in each.answers)
    return each.as_answer("best_batch", document, [one.to_dict() for one in each.answers], fits=fits)
