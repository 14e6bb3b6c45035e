"""``simoffload stream``: requests that arrive at a replica of a scenario's plan."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from simoffload.cli.answer import Question, Reply, answering
from simoffload.cli.console import Console, ExitCode
from simoffload.cli.option_types import add_costs, add_json, add_model, add_output, add_overrides, add_parts
from simoffload.cli.sources import CommandChanges, load
from simoffload.errors import InputError

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


@answering
def simulate_stream(arguments: Namespace, console: Console) -> Question[StreamResult]:
    """Simulate the stream of a scenario, and find the load that service levels allow."""
    changes = CommandChanges.of(arguments, model=arguments.model)
    from simoffload.extensions.serving.streams import chat_overrides, stream, with_requests_named
    from simoffload.planning.costs import load_costs
    from simoffload.scenario import names_model

    model = arguments.scenario or arguments.model or ""
    of_model = names_model(model)
    usual = chat_overrides(changes.overrides) if of_model else ()
    prices = load_costs(arguments.costs)
    naming = partial(_naming_model, model, changes.overrides) if usual else nullcontext
    with naming():
        scenario = load(
            arguments.scenario,
            changes._replace(overrides=(*usual, *changes.overrides)),
            uses=("stream",),
            console=console,
        )
        scenario = with_requests_named(scenario) if of_model else scenario

    def ask() -> StreamResult:
        with naming():
            return stream(scenario, slo=arguments.slo, costs=prices, exact_steps=arguments.exact_steps)

    limits = scenario.scenario.engine.limits
    return Question(ask, partial(_reply, arguments), limits, limits.timeout)


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


def _reply(arguments: Namespace, found: StreamResult) -> Reply:
    from simoffload.extensions.serving.report import stream_document

    kept = not arguments.slo or found.best is not None
    code = ExitCode.FAILED if found.stopped else ExitCode.of(kept)
    return Reply(stream_document(found, command=arguments.line), found.to_dict, code)
