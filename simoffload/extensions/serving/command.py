"""``simoffload stream``: requests that arrive at a replica of a scenario's plan."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.option_types import add_costs, add_json, add_model, add_output, add_overrides, add_parts
from simoffload.cli.output import OutputFolder, Printed, report_files
from simoffload.cli.sources import CommandChanges, load
from simoffload.errors import InputError
from simoffload.limits import keep, limited, now_doing, sharing

if TYPE_CHECKING:
    from simoffload.extensions.serving.streams import StreamResult


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("scenario", metavar="SCENARIO", nargs="?", help="a scenario with a section stream")
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="METRIC=LIMIT",
        help="also find the largest rate, or number of users, at which enough requests keep all limits: "
        "ttft=2s, tpot=50ms, e2el=20s; attain=0.99 says how many (default: 0.9); may be repeated",
    )
    parser.add_argument(
        "--exact-steps", action="store_true", help="simulate every step instead of interpolating between some"
    )
    add_costs(parser)
    add_model(parser)
    add_parts(parser)
    add_overrides(parser)
    add_json(parser)
    add_output(parser)
    parser.set_defaults(command=simulate_stream)


def simulate_stream(arguments: Namespace, console: Console) -> ExitCode:
    """Simulate the stream of a scenario, and find the load that service levels allow."""
    folder = OutputFolder.of(arguments)
    changes = CommandChanges.of(arguments, model=arguments.model)
    from simoffload.extensions.serving.streams import chat_overrides, stream, with_requests_named
    from simoffload.planning.costs import load_costs
    from simoffload.scenario import names_model

    model = arguments.scenario or arguments.model or ""
    of_model = names_model(model)
    usual = chat_overrides(changes.overrides) if of_model else ()
    prices = load_costs(arguments.costs)
    with _naming_model(model, changes.overrides) if usual else nullcontext():
        scenario = load(
            arguments.scenario,
            changes._replace(overrides=(*usual, *changes.overrides)),
            uses=("stream",),
            console=console,
        )
        scenario = with_requests_named(scenario) if of_model else scenario
        with sharing(scenario.scenario.engine.timeout), Waiting(console, partial=True):
            found = stream(scenario, slo=arguments.slo, costs=prices, exact_steps=arguments.exact_steps)
    answer = _answer(found, folder, arguments, console)
    answer.show(console)
    answer.list_files(console)
    if found.stopped:
        return ExitCode.FAILED
    return ExitCode.DOES_NOT_FIT if arguments.slo and found.best is None else ExitCode.OK


@contextmanager
def _naming_model(model: str, stated: Sequence[str]) -> Iterator[None]:
    """Let problems of the usual stream of a model name the model, unless the command line ``stated`` keys of
    the stream."""
    try:
        yield
    except InputError as error:
        if any(one.lstrip().startswith("stream") for one in stated):
            raise
        raise type(error)(
            one._replace(path=model) if (one.path, one.key.partition(".")[0]) == ("--set", "stream") else one
            for one in error.problems
        ) from None


@limited
def _answer(
    found: StreamResult, folder: OutputFolder | None, arguments: Namespace, console: Console
) -> Printed:
    from simoffload.extensions.serving.report import stream_document

    keep(found.scenario.scenario.engine.limits)
    now_doing("reporting")
    document = stream_document(found, command=arguments.line)
    data = found.to_dict()
    return Printed.of(document, data, folder, report_files(document, data) if folder else {}, console)
