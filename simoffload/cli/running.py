"""``simoffload run`` and ``compare``: simulate one scenario, or several side by side."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from simoffload.cli.answer import TABLE, TRACE, Question, Reply, Writer, answering
from simoffload.cli.console import Console, ExitCode
from simoffload.cli.sources import (
    CommandChanges,
    load,
    move_once,
    naming_others,
    refusal,
    scenario_set,
)
from simoffload.limits import sharing

if TYPE_CHECKING:
    from simoffload.planning.advise import EvaluatedChange
    from simoffload.planning.answers import Answer
    from simoffload.planning.compare import Comparison
    from simoffload.planning.costs import CostList
    from simoffload.report.comparison import Published
    from simoffload.scenario import LoadedScenario

# -- ``simoffload run`` and ``simoffload compare`` -------------------------------------------------


_Simulated: TypeAlias = "tuple[Answer, Sequence[EvaluatedChange]]"
"""The answer to a scenario, and what to change next."""


def _placed(arguments: Namespace, console: Console) -> LoadedScenario:
    """Load the scenario, on the tiers that ``--on`` names."""
    target = arguments.on
    targets = None if target is None else (target,)
    changes = CommandChanges.of(arguments, model=arguments.model)
    scenario = load(arguments.scenario, changes, targets=targets, console=console)
    return scenario if target is None else move_once(scenario, target, overrides=arguments.overrides)


def _run(arguments: Namespace, console: Console) -> Question[_Simulated]:
    """Ask for the simulation of one scenario."""
    if arguments.trace and arguments.output_dir is None:
        raise refusal("run", "--trace needs --output-dir")
    scenario, explain = _placed(arguments, console), arguments.explain
    from simoffload.planning.answers import simulate
    from simoffload.planning.costs import load_costs

    prices, to_folder = load_costs(arguments.costs), arguments.output_dir is not None

    def ask() -> _Simulated:
        with naming_others(scenario, arguments.on):
            result = simulate(scenario, costs=prices, explain=explain, keep_timelines=to_folder)
            # Worked out here, and kept for the report.
            _ = result.remedies, result.explanation, result.next_changes
            unread = explain or (console.as_json and not to_folder)
            return result, () if unread else _following(scenario, result, prices)

    limits = scenario.scenario.engine.limits
    time = limits.timeout if explain else None
    return Question(ask, partial(_reply, scenario, arguments), limits, time, shared=True)


# An explanation simulates many more scenarios, which share the time and have the memory each.
run = answering(_run, at_once=lambda arguments: not arguments.explain)


def _following(scenario: LoadedScenario, result: Answer, prices: CostList) -> Sequence[EvaluatedChange]:
    """Return what to change next, where a time was asked for; nothing where a limit is reached."""
    if result.step is None or scenario.choice is None:
        return ()
    from simoffload.errors import WorkLimitError
    from simoffload.planning.evaluator import Evaluator
    from simoffload.planning.next_steps import next_steps

    with suppress(WorkLimitError), sharing(scenario.scenario.engine.timeout):
        return next_steps(Evaluator(scenario, result=result.result), prices)
    return ()


def _reply(scenario: LoadedScenario, arguments: Namespace, found: _Simulated) -> Reply:
    """Make the report of a result; without ``--explain`` the first screen is printed."""
    from simoffload.report.first_screen import first_screen, next_texts
    from simoffload.report.from_result import result_document
    from simoffload.report.presentation import presentation

    result, following = found
    wording = presentation(result)
    document = result_document(result, command=arguments.line)
    document = document._replace(better=next_texts(following) or document.better)
    note, files = "", dict[str, Writer]()
    if arguments.trace and wording.shown is not None:
        from simoffload.exchange.chrome_trace import write_trace

        files[TRACE] = partial(write_trace, result.timelines[wording.shown.name])
        if wording.unit_name != "pass":
            part = f'"{wording.shown.name}", the longest part of the {wording.unit_name}'
            note = f"{TRACE} shows {part}"
    screen = () if arguments.explain else first_screen(scenario, result, following)
    return Reply(document, result.to_dict, ExitCode.of(result.fits), screen, files, result.all_warnings, note)


@answering
def compare(arguments: Namespace, console: Console) -> Question[Comparison]:
    """Simulate several scenarios, or one on several targets; print one table and write one page."""
    scenarios = _compared_scenarios(arguments, console)
    from simoffload.planning.compare import compare_scenarios
    from simoffload.planning.costs import load_costs

    prices = load_costs(arguments.costs)

    def ask() -> Comparison:
        comparison = compare_scenarios(
            scenarios,
            baseline=_baseline(arguments.baseline, scenarios),
            objective=arguments.objective,
            costs=prices,
            measured=arguments.measured,
            keep_timelines=arguments.output_dir is not None,
            unoffloaded=bool(arguments.on or not arguments.scenarios),
            free_settings=_at_best_settings(arguments),
        )
        _ = comparison.fits or [one.remedies for one in comparison.results.values()]  # kept for the report
        return comparison

    limits = next(iter(scenarios.values())).scenario.engine.limits
    return Question(ask, partial(_compared, scenarios, arguments), limits)


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


def _compared(scenarios: dict[str, LoadedScenario], arguments: Namespace, comparison: Comparison) -> Reply:
    from simoffload.exchange.files import write_csv
    from simoffload.report.comparison import exact_name
    from simoffload.report.from_comparison import comparison_document

    names = {label: exact_name(result) for label, result in comparison.results.items()}
    document = comparison_document(
        tuple(comparison.results.values()),
        published=_published(comparison, scenarios, names),
        baseline=names[comparison.baseline] if comparison.baseline is not None else None,
        notes=comparison.notes,
        measured=comparison.measured,
        command=arguments.line,
    )._replace(better=comparison.better)
    columns, rows = comparison.table()
    table = partial(write_csv, columns=columns, rows=rows)
    warnings = [f"{name}: {text}" for name, one in comparison.results.items() for text in one.warnings]
    fits = any(comparison.results[label].fits for label in scenarios)  # not only what was added
    return Reply(document, comparison.to_dict, ExitCode.of(fits), files={TABLE: table}, warnings=warnings)


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
