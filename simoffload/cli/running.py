"""``simoffload run`` and ``simoffload fit``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from simoffload.cli.console import Console, Progress
from simoffload.cli.exits import Exit
from simoffload.cli.folder import REPORT, RESULT, TRACE, OutputFolder, Writer, json_writer
from simoffload.cli.sources import load, move
from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.planning.explanation import Explanation
    from simoffload.results.result import SimulationResult
    from simoffload.scenario import LoadedScenario

__all__ = ["fit", "run"]


def run(arguments: Namespace, console: Console) -> Exit:
    """Simulate one scenario, print the answer and write what was asked for."""
    if arguments.trace and arguments.output_dir is None:
        raise InputError((Problem("simoffload run", None, None, "", "--trace needs --output-dir"),))
    folder = OutputFolder.of(arguments)
    scenario = load(arguments.scenario, overrides=arguments.overrides)
    from simoffload.planning.explanation import explain
    from simoffload.report.kinds import words
    from simoffload.report.text import result_text
    from simoffload.simulation import simulate

    with Progress(console) as progress:
        result = simulate(scenario, keep_timelines=folder is not None, progress=progress)
        explanation = explain(scenario, progress=progress) if arguments.explain and result.fits else None
    told, data = words(result), _data(result, explanation)
    written = folder.write(_files(result, explanation, data, arguments)) if folder else ()
    text = result_text(result, explanation=explanation, color=console.color, width=console.width)
    console.answer(text, data)
    if console.as_json:
        console.warn(result.warnings)
    if written:
        console.say("wrote " + ", ".join(map(str, written)))
    if arguments.trace and told.whole != "pass" and told.shown:
        console.note(f'{TRACE} shows "{told.shown.name}", the part of the {told.whole} that takes longest')
    return Exit.OK if result.fits else Exit.DOES_NOT_FIT


def _data(result: SimulationResult, explanation: Explanation | None) -> dict[str, Any]:
    """The result as plain values, with how sure it is and, where that was asked for, why."""
    from simoffload.planning.confidence import confidence

    sure = confidence(result).to_dict() if result.step else None
    explained = {"explanation": explanation.to_dict()} if explanation else {}
    return result.to_dict() | {"confidence": sure} | explained


def _files(
    result: SimulationResult, explanation: Explanation | None, data: dict[str, Any], arguments: Namespace
) -> dict[str, Writer]:
    from simoffload.exchange.chrome_trace import write_trace
    from simoffload.report.kinds import words
    from simoffload.report.page import write_report

    shown = words(result).shown
    files: dict[str, Writer] = {
        RESULT: json_writer(data),
        REPORT: lambda path: write_report(result, path, explanation=explanation, command=arguments.line),
    }
    if arguments.trace and shown is not None:
        timeline = result.timelines[shown.name]
        files[TRACE] = lambda path: write_trace(timeline, path)
    return files


def fit(arguments: Namespace, console: Console) -> Exit:
    """Say what each tier must hold, for one scenario or for it on several targets."""
    scenario = load(arguments.scenario, overrides=arguments.overrides)
    if arguments.on:
        return _fit_on(scenario, arguments.on, console)
    from simoffload.report.text import result_text
    from simoffload.simulation import fit

    result = fit(scenario)
    console.answer(result_text(result, color=console.color, width=console.width), result.to_dict())
    return Exit.OK if result.fits else Exit.DOES_NOT_FIT


def _fit_on(scenario: LoadedScenario, targets: tuple[str, ...], console: Console) -> Exit:
    from simoffload.planning import compare_fit
    from simoffload.report.comparison_text import compare_text

    comparison = compare_fit(move(scenario, targets))
    results = tuple(comparison.results.values())
    console.answer(compare_text(results, color=console.color, width=console.width), comparison.to_dict())
    return Exit.OK if comparison.fits else Exit.DOES_NOT_FIT
