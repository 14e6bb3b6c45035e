"""``simoffload run``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.cli.console import Console, Progress
from simoffload.cli.exit_codes import ExitCode
from simoffload.cli.output import (
    DOCUMENT,
    MARKDOWN,
    REPORT,
    RESULT,
    TABLE,
    TRACE,
    OutputFolder,
    Writer,
    json_writer,
)
from simoffload.cli.sources import load
from simoffload.errors import InputError, Problem
from simoffload.limits import limited, now_doing

if TYPE_CHECKING:
    from pathlib import Path

    from simoffload.report.document import ReportDocument
    from simoffload.results.passes import PassResult
    from simoffload.results.result import SimulationResult

__all__ = ["run"]


def run(arguments: Namespace, console: Console) -> ExitCode:
    """Simulate one scenario, print the answer and write what was asked for."""
    if arguments.trace and arguments.output_dir is None:
        raise InputError((Problem("simoffload run", None, None, "", "--trace needs --output-dir"),))
    folder = OutputFolder.of(arguments)
    # An explanation simulates many scenarios more, each within the limits.
    answer = (_answer if arguments.explain else limited(_answer))(arguments, folder, console)
    console.answer(answer.text, answer.data)
    if console.as_json:
        console.warn(answer.result.all_warnings)
    if answer.written:
        console.print_lines("wrote " + ", ".join(map(str, answer.written)))
    shown, unit_name = answer.shown, answer.unit_name
    if arguments.trace and unit_name != "pass" and shown:
        console.note(f'{TRACE} shows "{shown.name}", the part of the {unit_name} that takes longest')
    return ExitCode.OK if answer.result.fits else ExitCode.DOES_NOT_FIT


class _RunAnswer(NamedTuple):
    text: str
    data: Mapping[str, Any]
    result: SimulationResult
    written: tuple[Path, ...]
    shown: PassResult | None
    unit_name: str
    """What the shown pass is a part of."""


def _answer(arguments: Namespace, folder: OutputFolder | None, console: Console) -> _RunAnswer:
    scenario = load(arguments.scenario, overrides=arguments.overrides, console=console)
    from simoffload.planning.answers import simulate
    from simoffload.planning.costs import load_costs
    from simoffload.report.from_result import result_document
    from simoffload.report.presentation import presentation
    from simoffload.report.terminal import terminal_text

    prices = load_costs(arguments.costs)
    with Progress(console) as progress:
        result = simulate(
            scenario,
            costs=prices,
            explain=arguments.explain,
            keep_timelines=folder is not None,
            progress=progress,
        )
        data = result.to_dict()
    now_doing("reporting")
    shown = presentation(result).shown
    document = result_document(result, command=arguments.line)
    written = folder.write(_files(result, data, document, trace=arguments.trace)) if folder else ()
    text = terminal_text(document, color=console.color, width=console.width)
    return _RunAnswer(text, data, result, written, shown, presentation(result).unit_name)


def _files(
    result: SimulationResult, data: Mapping[str, Any], document: ReportDocument, *, trace: bool
) -> dict[str, Writer]:
    from simoffload.exchange.chrome_trace import write_trace
    from simoffload.report.html import write_html
    from simoffload.report.long_table import write_long_table
    from simoffload.report.markdown import write_markdown
    from simoffload.report.presentation import presentation

    files: dict[str, Writer] = {
        RESULT: json_writer(data),
        REPORT: partial(write_html, document),
        MARKDOWN: partial(write_markdown, document),
        DOCUMENT: json_writer(document.to_dict()),
        TABLE: partial(write_long_table, document),
    }
    shown = presentation(result).shown
    if trace and shown is not None:
        files[TRACE] = partial(write_trace, result.timelines[shown.name])
    return files
