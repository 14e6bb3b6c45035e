"""``simoffload serve``: a page on which all inputs can be changed."""

from __future__ import annotations

import argparse
from argparse import Namespace
from functools import partial

from simoffload.cli.console import Console, ExitCode
from simoffload.cli.option_types import add_json, add_model, add_overrides, add_parts, given_limits, port
from simoffload.cli.sources import CommandChanges, load
from simoffload.errors import InputError


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("scenario", metavar="SCENARIO", nargs="?", help="what the page begins with")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at; one that other machines reach needs the token that is printed "
        "(default: %(default)s, this machine alone)",
    )
    parser.add_argument(
        "--port", type=port, default=8050, help="port to listen at; 0: any (default: %(default)s)"
    )
    add_model(parser)
    add_parts(parser)
    add_overrides(parser)
    add_json(parser)
    parser.set_defaults(command=serve, needs_scenario=False)  # the page has one of its own


DEFAULT_LIMITS = ("engine.timeout=60 s", "engine.memory=2 GiB", "engine.max_events=1000000000")
"""Limits of each question of a page, where the command line has no others: our choice."""


def serve(arguments: Namespace, console: Console) -> ExitCode:
    """Serve the page until Ctrl-C, beginning with the scenario that was named."""
    from simoffload.extensions.web.scenarios import model_files, open_models, variant_of
    from simoffload.extensions.web.server import serve
    from simoffload.extensions.web.state import State

    changes = CommandChanges.of(arguments, model=arguments.model)
    limits = given_limits((*DEFAULT_LIMITS, *changes.overrides))
    name, start = arguments.scenario or arguments.model, None
    prepare = None
    if name:
        scenario = load(arguments.scenario, changes, uses=("workload", "stream"), console=console)
        prepare = partial(open_models, model_files(scenario))
        prepare()
        start = State((variant_of(scenario, name, changes.overrides),))
    elif any(one != "--set" and not one.startswith("engine.") for one in changes.options):
        raise InputError.at("", "name a scenario or a model to change", path="simoffload serve")
    host, port = arguments.host, arguments.port
    serve(host, port, limits=limits, start=start, prepare=prepare, say=console.print_lines)
    return ExitCode.OK
