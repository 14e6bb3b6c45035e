"""``simoffload serve``: a page on which all inputs can be changed."""

from __future__ import annotations

from argparse import Namespace

from simoffload.cli.console import Console, ExitCode
from simoffload.cli.sources import CommandChanges, load


def serve(arguments: Namespace, console: Console) -> ExitCode:
    """Serve the page until Ctrl-C, beginning with the scenario that was named."""
    from simoffload.web.server import serve
    from simoffload.web.state import State, Variant

    start = None
    if arguments.scenario or arguments.model:
        from simoffload.documents import yaml_text

        changes = CommandChanges.of(arguments, model=arguments.model)
        scenario = load(arguments.scenario, changes, console=console)
        start = State((Variant(yaml_text(scenario.document.data)),))
    serve(arguments.host, arguments.port, start=start, say=console.print_lines)
    return ExitCode.OK
