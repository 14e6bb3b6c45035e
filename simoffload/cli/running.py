"""``simoffload run``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, Progress
from simoffload.cli.exits import Exit
from simoffload.cli.folder import REPORT, RESULT, TRACE, OutputFolder, Writer, json_writer
from simoffload.cli.sources import load
from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.results.passes import PassResult
    from simoffload.results.result import SimulationResult

__all__ = ["run"]


def run(arguments: Namespace, console: Console) -> Exit:
    """Simulate one scenario, print the answer and write what was asked for."""
    if arguments.trace and arguments.output_dir is None:
        raise InputError((Problem("simoffload run", None, None, "", "--trace needs --output-dir"),))
    folder = OutputFolder.of(arguments)
    scenario = load(arguments.scenario, overrides=arguments.overrides)
    from simoffload.planning.fit import with_changes
    from simoffload.report.kinds import words
    from simoffload.report.text import result_text
    from simoffload.simulation import simulate

    with Progress(console) as progress:
        result = simulate(scenario, keep_timelines=folder is not None, progress=progress)
        result = with_changes(scenario, result)
    told = words(result)
    written = folder.write(_files(result, arguments, told.shown)) if folder else ()
    console.answer(result_text(result, color=console.color, width=console.width), result.to_dict())
    if console.as_json:
        console.warn(result.warnings)
    if written:
        console.say("wrote " + ", ".join(map(str, written)))
    if arguments.trace and told.whole != "pass" and told.shown:
        console.note(f'{TRACE} shows "{told.shown.name}", the part of the {told.whole} that takes longest')
    return Exit.OK if result.fits else Exit.DOES_NOT_FIT


def _files(result: SimulationResult, arguments: Namespace, shown: PassResult | None) -> dict[str, Writer]:
    from simoffload.exchange.chrome_trace import write_trace
    from simoffload.report.page import write_report

    files: dict[str, Writer] = {
        RESULT: json_writer(result.to_dict()),
        REPORT: lambda path: write_report(result, path, command=arguments.line),
    }
    if arguments.trace and shown is not None:
        timeline = result.timelines[shown.name]
        files[TRACE] = lambda path: write_trace(timeline, path)
    return files
