"""``simoffload serve``: a page on which all inputs can be changed."""

from __future__ import annotations

from argparse import Namespace

from simoffload.cli.console import Console, ExitCode
from simoffload.cli.option_types import given_limits
from simoffload.cli.sources import CommandChanges, load
from simoffload.errors import InputError

DEFAULT_LIMITS = ("engine.timeout=60 s", "engine.memory=2 GiB", "engine.max_events=1000000000")
"""Limits of each question of a page, where the command line has no others: our choice."""


def serve(arguments: Namespace, console: Console) -> ExitCode:
    """Serve the page until Ctrl-C, beginning with the scenario that was named."""
    from simoffload.web.scenarios import variant_of
    from simoffload.web.server import serve
    from simoffload.web.state import State

    changes = CommandChanges.of(arguments, model=arguments.model)
    limits = given_limits((*DEFAULT_LIMITS, *changes.overrides))
    name, start = arguments.scenario or arguments.model, None
    if name:
        scenario = load(arguments.scenario, changes, console=console)
        start = State((variant_of(scenario, name, changes.overrides),))
    elif any(one != "--set" and not one.startswith("engine.") for one in changes.options):
        raise InputError.at("", "name a scenario or a model to change", path="simoffload serve")
    serve(arguments.host, arguments.port, limits=limits, start=start, say=console.print_lines)
    return ExitCode.OK
