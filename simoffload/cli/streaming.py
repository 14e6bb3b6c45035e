"""``simoffload stream``: requests that arrive at a replica of a scenario's plan."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.output import Answer, OutputFolder, report_files
from simoffload.cli.sources import CommandChanges, load
from simoffload.limits import keep, limited, now_doing, sharing

if TYPE_CHECKING:
    from simoffload.planning.streams import StreamResult


def simulate_stream(arguments: Namespace, console: Console) -> ExitCode:
    """Simulate the stream of a scenario, and find the load that service levels allow."""
    folder = OutputFolder.of(arguments)
    scenario = load(arguments.scenario, CommandChanges.of(arguments, model=arguments.model), console=console)
    from simoffload.planning.costs import load_costs
    from simoffload.planning.streams import stream

    prices = load_costs(arguments.costs)
    with sharing(scenario.scenario.engine.timeout), Waiting(console, partial=True):
        found = stream(scenario, slo=arguments.slo, costs=prices, exact_steps=arguments.exact_steps)
    answer = _answer(found, folder, arguments, console)
    answer.show(console)
    answer.list_files(console)
    if found.stopped:
        return ExitCode.FAILED
    return ExitCode.DOES_NOT_FIT if arguments.slo and found.best is None else ExitCode.OK


@limited
def _answer(
    found: StreamResult, folder: OutputFolder | None, arguments: Namespace, console: Console
) -> Answer:
    from simoffload.report.from_stream import stream_document

    keep(found.scenario.scenario.engine.limits)
    now_doing("reporting")
    document = stream_document(found, command=arguments.line)
    data = found.to_dict()
    return Answer.of(document, data, folder, report_files(document, data) if folder else {}, console)
