"""``simoffload reach``: which values of a number keep the service levels."""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.output import Answer, OutputFolder, report_files
from simoffload.cli.sources import CommandChanges, load
from simoffload.errors import InputError
from simoffload.limits import keep, limited, now_doing, sharing

if TYPE_CHECKING:
    from simoffload.planning.reach import Reach


def find_values(arguments: Namespace, console: Console) -> ExitCode:
    """Find the values of one number with which a scenario keeps service levels."""
    folder = OutputFolder.of(arguments)
    _refuse_both(arguments)
    scenario = load(arguments.scenario, CommandChanges.of(arguments, model=arguments.model), console=console)
    from simoffload.planning.reach import reach

    with sharing(scenario.scenario.engine.timeout), Waiting(console, partial=True):
        found = reach(scenario, slo=arguments.slo, by=arguments.by, within=arguments.within)
    answer = _answer(found, folder, arguments, console)
    answer.show(console)
    answer.list_files(console)
    if found.stopped:
        console.note(f"not every value was tried: {found.stopped}")
    if found.reached:
        return ExitCode.OK
    return ExitCode.FAILED if found.stopped else ExitCode.DOES_NOT_FIT


def _refuse_both(arguments: Namespace) -> None:
    """Raise InputError where ``--set`` sets the number that ``--by`` varies, or something within it."""
    from simoffload.documents import parse_path, split_assignment

    def keys(path: str) -> str:
        section, *inner = parse_path(path)
        if section == "profiles" and inner:  # by kind/id or id, whose dots need no quotes in --by
            inner[0] = str(inner[0]).rpartition("/")[2]
        return ".".join(map(str, (section, *inner, "")))

    try:
        varied = keys(arguments.by)
    except InputError:
        return  # which is told with what can be varied
    for assignment in arguments.overrides:
        path = split_assignment(assignment)[0]
        if keys(path).startswith(varied):
            raise InputError.at(arguments.by, f"is also set by --set {path}; give one of them", path="--by")


@limited
def _answer(found: Reach, folder: OutputFolder | None, arguments: Namespace, console: Console) -> Answer:
    from simoffload.report.from_reach import reach_document

    keep(found.scenario.scenario.engine.limits)
    now_doing("reporting")
    document = reach_document(found, run=_run_line(found, arguments), command=arguments.line)
    data = found.to_dict()
    return Answer.of(document, data, folder, report_files(document, data) if folder else {}, console)


def _run_line(found: Reach, arguments: Namespace) -> str:
    """Return the command that simulates the scenario with the value that was found."""
    changes = CommandChanges.of(arguments, model=arguments.model)
    value = (word for one in (found.value.options if found.value else ()) for word in ("--set", one))
    scenario = [arguments.scenario] if arguments.scenario else []
    return shlex.join(["simoffload", "run", *scenario, *changes.options, *value])
