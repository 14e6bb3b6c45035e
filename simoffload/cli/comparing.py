"""``simoffload compare``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, Progress
from simoffload.cli.exits import Exit
from simoffload.cli.folder import REPORT, RESULT, OutputFolder, Writer, json_writer
from simoffload.cli.sources import load
from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.planning import Comparison
    from simoffload.scenario import LoadedScenario

__all__ = ["compare"]


def compare(arguments: Namespace, console: Console) -> Exit:
    """Simulate several scenarios, or one on several targets; print one table and write one page."""
    folder = OutputFolder.of(arguments)
    cases = _cases(arguments)
    from simoffload.planning import compare_scenarios
    from simoffload.report.text import compare_text

    with Progress(console) as progress:
        comparison = compare_scenarios(cases, baseline=arguments.baseline, progress=progress)
    written = folder.write(_files(comparison)) if folder else ()
    results = tuple(comparison.results.values())
    text = compare_text(results, baseline=_baseline(comparison), color=console.color, width=console.width)
    console.answer(text, comparison.to_dict())
    if console.as_json:
        for label, result in comparison.results.items():
            console.warn(f"{label}: {warning}" for warning in result.warnings)
    if written:
        console.say("wrote " + ", ".join(map(str, written)))
    return Exit.OK if comparison.fits else Exit.DOES_NOT_FIT


def _files(comparison: Comparison) -> dict[str, Writer]:
    from simoffload.report.page import write_comparison

    return {
        RESULT: json_writer(comparison.to_dict()),
        REPORT: lambda path: write_comparison(
            tuple(comparison.results.values()), path, baseline=_baseline(comparison)
        ),
    }


def _baseline(comparison: Comparison) -> str | None:
    """The baseline by the name that reports know it under."""
    if comparison.baseline is None:
        return None
    result = comparison.results[comparison.baseline]
    return f"{result.name}@{result.target}"


def _cases(arguments: Namespace) -> dict[str, LoadedScenario]:
    """What is compared, by label."""
    if arguments.on:
        if len(arguments.scenarios) > 1:
            raise _refusal(f"--on moves one scenario, and {len(arguments.scenarios)} are given")
        from simoffload.planning import on_targets

        return on_targets(load(arguments.scenarios[0], overrides=arguments.overrides), arguments.on)
    if len(arguments.scenarios) == 1:
        raise _refusal(
            "one scenario is no comparison; give several, or --on TARGET,… for one on several targets"
        )
    return _by_name(arguments.scenarios, arguments.overrides)


def _by_name(sources: list[str], overrides: list[str]) -> dict[str, LoadedScenario]:
    """Load every scenario and label it with its name; where names are equal, with its file as well."""
    problems: list[Problem] = []
    loaded: list[tuple[str, LoadedScenario]] = []
    for source in sources:
        try:
            loaded.append((source, load(source, overrides=overrides)))
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
