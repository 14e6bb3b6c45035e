"""``simoffload compare``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from simoffload.cli.console import Console, Progress
from simoffload.cli.exits import Exit
from simoffload.cli.folder import MARKDOWN, REPORT, RESULT, TABLE, OutputFolder, Writer, json_writer
from simoffload.cli.sources import load, move
from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.planning import Comparison
    from simoffload.report.comparison import Published
    from simoffload.report.sections import Section
    from simoffload.results.result import SimulationResult
    from simoffload.scenario import LoadedScenario

__all__ = ["compare"]


def compare(arguments: Namespace, console: Console) -> Exit:
    """Simulate several scenarios, or one on several targets; print one table and write one page."""
    folder = OutputFolder.of(arguments)
    cases = _cases(arguments, console)
    from simoffload.planning import compare_scenarios
    from simoffload.planning.costs import load_costs
    from simoffload.report.comparison_text import compare_text

    prices = load_costs(arguments.costs)
    with Progress(console) as progress:
        comparison = compare_scenarios(
            cases,
            baseline=arguments.baseline,
            costs=prices,
            keep_timelines=folder is not None,
            progress=progress,
        )
    told = _told(comparison, cases)
    written = folder.write(_files(comparison, told, command=arguments.line)) if folder else ()
    text = compare_text(
        told.results,
        published=told.published,
        baseline=told.baseline,
        more=told.more,
        color=console.color,
        width=console.width,
    )
    console.answer(text, comparison.to_dict())
    if console.as_json:
        for label, result in comparison.results.items():
            console.warn(f"{label}: {warning}" for warning in result.warnings)
    if written:
        console.say("wrote " + ", ".join(map(str, written)))
    return Exit.OK if comparison.fits else Exit.DOES_NOT_FIT


class _Told(NamedTuple):
    """What reports are made of: names there are those that reports know."""

    results: tuple[SimulationResult, ...]
    baseline: str | None
    published: dict[str, Published]
    more: tuple[Section, ...]


def _told(comparison: Comparison, cases: dict[str, LoadedScenario]) -> _Told:
    from simoffload.report.comparison import Published, exact_name
    from simoffload.report.sections.costs import Costed, costs_compared
    from simoffload.validation import published_ratios

    names = {label: exact_name(result) for label, result in comparison.results.items()}
    published: dict[str, Published] = {}
    for label, case in cases.items():
        result, base = comparison.results[label], comparison.baseline_of(label)
        ratios = published_ratios(case, comparison.results[base].target) if base is not None else {}
        if result.target in ratios:
            published[names[label]] = Published(*ratios[result.target])
    baseline = names[comparison.baseline] if comparison.baseline is not None else None
    priced = [Costed(label, comparison.results[label], one) for label, one in comparison.economics.items()]
    return _Told(tuple(comparison.results.values()), baseline, published, costs_compared(priced))


def _files(comparison: Comparison, told: _Told, *, command: str) -> dict[str, Writer]:
    from simoffload.exchange.csv_rows import write_csv
    from simoffload.report.comparison import groups
    from simoffload.report.markdown import write_markdown
    from simoffload.report.page import write_comparison
    from simoffload.report.story import story_of_several

    results, baseline, published, more = told
    found = groups(results, published=published, baseline=baseline)
    columns, rows = comparison.table()
    page = partial(
        write_comparison, results, published=published, baseline=baseline, command=command, more=more
    )
    return {
        RESULT: json_writer(comparison.to_dict()),
        REPORT: page,
        MARKDOWN: partial(write_markdown, story_of_several(found, more=more, command=command)),
        TABLE: partial(write_csv, columns=columns, rows=rows),
    }


def _cases(arguments: Namespace, console: Console) -> dict[str, LoadedScenario]:
    """What is compared, by label."""
    scenario_of = partial(load, overrides=arguments.overrides, targets=arguments.on, console=console)
    if arguments.on:
        if len(arguments.scenarios) == 1:
            return move(scenario_of(arguments.scenarios[0]), arguments.on)
        each = _by_name(arguments.scenarios, scenario_of)
        moved = {name: move(scenario, arguments.on) for name, scenario in each.items()}
        return {f"{name} {target}": case for name, cases in moved.items() for target, case in cases.items()}
    if len(arguments.scenarios) == 1:
        raise _refusal(
            "one scenario is no comparison; give several, or --on TARGET,… for one on several targets"
        )
    return _by_name(arguments.scenarios, scenario_of)


def _by_name(sources: list[str], scenario_of: Callable[[str], LoadedScenario]) -> dict[str, LoadedScenario]:
    """Load every scenario and label it with its name; where names are equal, with its file as well."""
    problems: list[Problem] = []
    loaded: list[tuple[str, LoadedScenario]] = []
    for source in sources:
        try:
            loaded.append((source, scenario_of(source)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(dict.fromkeys(problems))
    names = [scenario.name for _, scenario in loaded]
    cases = {
        scenario.name if names.count(scenario.name) == 1 else f"{scenario.name} ({source})": scenario
        for source, scenario in loaded
    }
    if len(cases) < len(loaded):
        raise _refusal("a scenario is given twice")
    return cases


def _refusal(message: str) -> InputError:
    return InputError((Problem("simoffload compare", None, None, "", message),))
