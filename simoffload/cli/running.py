"""``simoffload run``, ``compare``, ``stream`` and ``serve``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.output import TRACE, OutputFolder, Printed, report_files
from simoffload.cli.sources import (
    CommandChanges,
    load,
    move_once,
    naming_others,
    refusal,
    scenario_set,
)
from simoffload.limits import keep, limited, now_doing, sharing

if TYPE_CHECKING:
    from simoffload.planning.advise import Tried
    from simoffload.planning.answers import Answer
    from simoffload.planning.compare import Comparison
    from simoffload.planning.costs import CostList
    from simoffload.report.comparison import Published
    from simoffload.scenario import LoadedScenario

# -- ``simoffload run`` and ``simoffload compare`` -------------------------------------------------


def run(arguments: Namespace, console: Console) -> ExitCode:
    """Simulate one scenario, print the answer and write the files that were asked for."""
    if arguments.trace and arguments.output_dir is None:
        raise refusal("run", "--trace needs --output-dir")
    folder = OutputFolder.of(arguments)
    # An explanation simulates many more scenarios, which share the time and have the memory each.
    question = _run if arguments.explain else limited(_run)
    answered = question(arguments, folder, console)
    answered.answer.show(console)
    console.warn(answered.warnings)
    answered.answer.list_files(console)
    if answered.trace_note:
        console.note(answered.trace_note)
    return ExitCode.OK if answered.fits else ExitCode.DOES_NOT_FIT


def _placed(arguments: Namespace, console: Console) -> LoadedScenario:
    """Load the scenario, on the tiers that ``--on`` names."""
    target = arguments.on
    targets = None if target is None else (target,)
    changes = CommandChanges.of(arguments, model=arguments.model)
    scenario = load(arguments.scenario, changes, targets=targets, console=console)
    return scenario if target is None else move_once(scenario, target, overrides=arguments.overrides)


class _Run(NamedTuple):
    answer: Printed
    fits: bool
    warnings: tuple[str, ...]
    """Warnings to print beside the answer, if it does not tell them itself."""
    trace_note: str


def _run(arguments: Namespace, folder: OutputFolder | None, console: Console) -> _Run:
    scenario = _placed(arguments, console)
    from simoffload.planning.answers import simulate
    from simoffload.planning.costs import load_costs

    prices = load_costs(arguments.costs)
    shared = scenario.scenario.engine.timeout if arguments.explain else None
    with sharing(shared):
        with Waiting(console, partial=True), naming_others(scenario, arguments.on):
            result = simulate(
                scenario, costs=prices, explain=arguments.explain, keep_timelines=folder is not None
            )
            # Worked out here, and kept for the report.
            _ = result.remedies, result.explanation, result.next_changes
            unread = arguments.explain or (console.as_json and folder is None)
            following = () if unread else _following(scenario, result, prices)
        with Waiting(console):
            return _reported(scenario, result, following, folder, arguments, console)


def _following(scenario: LoadedScenario, result: Answer, prices: CostList) -> Sequence[Tried]:
    """Return what to change next, where a time was asked for; nothing where a limit is reached."""
    if result.step is None or scenario.choice is None:
        return ()
    from simoffload.errors import WorkLimitError
    from simoffload.planning.evaluator import Evaluator
    from simoffload.planning.next_steps import next_steps

    with suppress(WorkLimitError), sharing(scenario.scenario.engine.timeout):
        return next_steps(Evaluator(scenario, result=result.result), prices)
    return ()


@limited
def _reported(
    scenario: LoadedScenario,
    result: Answer,
    following: Sequence[Tried],
    folder: OutputFolder | None,
    arguments: Namespace,
    console: Console,
) -> _Run:
    """Make the report of a result and write its files; without ``--explain`` the first screen is printed."""
    from simoffload.report.first_screen import first_screen, next_texts
    from simoffload.report.from_result import result_document
    from simoffload.report.presentation import presentation

    keep(scenario.scenario.engine.limits)
    now_doing("reporting")
    data = result.to_dict() if folder or console.as_json else None
    wording = presentation(result)
    document = result_document(result, command=arguments.line)
    document = document._replace(better=next_texts(following) or document.better)
    note, files = "", report_files(document, data) if folder else {}
    if arguments.trace and wording.shown is not None:
        from simoffload.exchange.chrome_trace import write_trace

        files[TRACE] = partial(write_trace, result.timelines[wording.shown.name])
        if wording.unit_name != "pass":
            part = f'"{wording.shown.name}", the longest part of the {wording.unit_name}'
            note = f"{TRACE} shows {part}"
    screen = () if arguments.explain else first_screen(scenario, result, following)
    answer = Printed.of(document, data, folder, files, console, screen=screen)
    return _Run(answer, result.fits, tuple(result.all_warnings) if console.as_json else (), note)


def compare(arguments: Namespace, console: Console) -> ExitCode:
    """Simulate several scenarios, or one on several targets; print one table and write one page."""
    folder = OutputFolder.of(arguments)
    scenarios = _compared_scenarios(arguments, console)
    from simoffload.planning.compare import compare_scenarios
    from simoffload.planning.costs import load_costs

    prices = load_costs(arguments.costs)
    with Waiting(console, partial=True):
        comparison = compare_scenarios(
            scenarios,
            baseline=_baseline(arguments.baseline, scenarios),
            objective=arguments.objective,
            costs=prices,
            measured=arguments.measured,
            keep_timelines=folder is not None,
            unoffloaded=bool(arguments.on or not arguments.scenarios),
            free_settings=_at_best_settings(arguments),
        )
        _ = comparison.fits or [one.remedies for one in comparison.results.values()]  # kept for the report
    with Waiting(console):
        answer = _compared(comparison, scenarios, folder, arguments, console)
    answer.show(console)
    if console.as_json:
        for label, result in comparison.results.items():
            console.warn(f"{label}: {warning}" for warning in result.warnings)
    answer.list_files(console)
    fits = any(comparison.results[label].fits for label in scenarios)  # not only what was added
    return ExitCode.OK if fits else ExitCode.DOES_NOT_FIT


def _at_best_settings(arguments: Namespace) -> bool:
    """Return whether offers are compared at their best free settings: if that is asked for, and by default
    several drives, and tiers for models that are named alone, of which nobody stated settings."""
    from simoffload.scenario import names_model

    if arguments.settings is not None:
        return bool(arguments.settings == "best")
    named = all(map(names_model, arguments.scenarios or arguments.models))
    return len(arguments.offers) > 1 or bool(arguments.on and named)


def _compared_scenarios(arguments: Namespace, console: Console) -> dict[str, LoadedScenario]:
    """Return what a command line compares by label; models without a scenario are compared with each other.

    Raises InputError where that is nothing, or one alone.
    """
    drives = arguments.drive or ()
    sources, models = arguments.scenarios, arguments.models
    if not sources:
        sources, models = models, ()
    if not sources:
        text = "the following arguments are required: SCENARIO, or --models NAME,…"
        raise refusal("compare", f"{text}; see simoffload compare --help")
    several = len(drives) > 1
    alone = not (arguments.on or models or several)
    if len(sources) == 1 and alone and not arguments.measured:
        message = (
            "one scenario is not a comparison; give several scenarios, --on TARGET,…, --drive ID,ID, "
            "--models NAME,…, --platforms ID,… or --measured FILE"
        )
        raise refusal("compare", _several_gpus(arguments) or message)
    if several and arguments.on:
        raise refusal("compare", "several drives are offers, each on a tier of its own; leave out --on")
    arguments.drive, arguments.offers = None if several else next(iter(drives), None), drives
    return scenario_set(
        sources,
        arguments.on,
        CommandChanges.of(arguments),
        models=models,
        drives=drives if several else (),
        command="compare",
        console=console,
    )


def _several_gpus(arguments: Namespace) -> str:
    """Return what to type where several GPUs are named to be compared; "" for others."""
    from simoffload.scenario import MachineParts

    cards = [one.strip() for one in (arguments.gpu or "").split(",") if one.strip()]
    if len(cards) < 2:
        return ""
    machines = ",".join(MachineParts(gpu=card, gpus=arguments.gpus).platforms()[0] for card in cards)
    return (
        f"--gpu names one GPU; compare the machines that have them: simoffload compare "
        f"{arguments.scenarios[0]} --platforms {machines}"
    )


def _baseline(name: str | None, scenarios: dict[str, LoadedScenario]) -> str | None:
    """Return the label of the baseline, with "hbm" for "gpu" as in all labels."""
    from simoffload.scenario import canonical_target

    if name is None or name in scenarios:
        return name
    scenario, space, target = name.rpartition(" ")
    label = f"{scenario}{space}{canonical_target(target)}"
    return label if label in scenarios else name


@limited
def _compared(
    comparison: Comparison,
    scenarios: dict[str, LoadedScenario],
    folder: OutputFolder | None,
    arguments: Namespace,
    console: Console,
) -> Printed:
    from simoffload.exchange.files import write_csv
    from simoffload.report.comparison import exact_name
    from simoffload.report.from_comparison import comparison_document

    keep(next(iter(scenarios.values())).scenario.engine.limits)
    now_doing("reporting")
    names = {label: exact_name(result) for label, result in comparison.results.items()}
    document = comparison_document(
        tuple(comparison.results.values()),
        published=_published(comparison, scenarios, names),
        baseline=names[comparison.baseline] if comparison.baseline is not None else None,
        notes=comparison.notes,
        measured=comparison.measured,
        command=arguments.line,
    )._replace(better=comparison.better)
    data = comparison.to_dict()
    columns, rows = comparison.table()
    table = partial(write_csv, columns=columns, rows=rows)
    files = report_files(document, data, table=table) if folder else {}
    return Printed.of(document, data, folder, files, console)


def _published(
    comparison: Comparison, scenarios: dict[str, LoadedScenario], names: dict[str, str]
) -> dict[str, Published]:
    """Return the published ratios by the names of results that reports know."""
    from simoffload.planning.compare import published_ratios
    from simoffload.report.comparison import Published

    published: dict[str, Published] = {}
    for label, scenario in scenarios.items():
        result, base = comparison.results[label], comparison.baseline_of(label)
        ratios = published_ratios(scenario, comparison.results[base].target) if base is not None else {}
        if result.target in ratios:
            published[names[label]] = Published(*ratios[result.target])
    return published
