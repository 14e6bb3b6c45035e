"""``simoffload compare MODEL --platforms`` and ``--budget``: which machine for a model."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.cli.option_types import budget, given_limits, listed
from simoffload.cli.output import Answer, OutputFolder, report_files
from simoffload.cli.sources import CommandChanges, refusal
from simoffload.limits import keep, limited, now_doing, sharing

if TYPE_CHECKING:
    from simoffload.extensions.purchases.machines import Machines

Usual = Callable[[Namespace, Console], ExitCode]
"""The command that these options are added to."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options to those of ``compare``."""
    parser.add_argument(
        "--platforms",
        type=listed,
        action="extend",
        metavar="ID,…",
        help="which machine for a MODEL (rtx-4090-desktop,dgx-spark): each with its best program and format",
    )
    parser.add_argument(
        "--budget",
        type=budget,
        metavar="AMOUNT",
        help="which machine for a MODEL: all that cost no more, or those of --platforms, such as 5000",
    )
    parser.set_defaults(command=partial(compare, parser.get_default("command")))


def compare(usual: Usual, arguments: Namespace, console: Console) -> ExitCode:
    """Compare machines for a model, each with its best program; what is no question of machines is the
    ``usual`` comparison."""
    if not (arguments.platforms or arguments.budget):
        return usual(arguments, console)
    folder = OutputFolder.of(arguments)
    from simoffload.extensions.purchases.machines import compare_machines
    from simoffload.planning.costs import load_costs
    from simoffload.planning.question import check_context

    model, budget = _model_alone(arguments), arguments.budget
    overrides = CommandChanges.of(arguments).overrides
    with sharing(given_limits(overrides).timeout), Waiting(console, partial=True):
        found = compare_machines(
            model,
            arguments.platforms or (),
            budget=None if budget is None else budget.amount,
            program=arguments.program,
            overrides=overrides,
            costs=load_costs(arguments.costs),
        )
        for one in found.offers:
            if one.scenario is not None:
                check_context(one.scenario, overrides)
    answer = _which_machine(found, folder, arguments, console)
    answer.show(console)
    answer.list_files(console)
    return ExitCode.OK if found.answered else ExitCode.DOES_NOT_FIT


@limited
def _which_machine(
    found: Machines, folder: OutputFolder | None, arguments: Namespace, console: Console
) -> Answer:
    from simoffload.extensions.purchases.report import which_machine_document

    keep(given_limits(arguments.overrides))
    now_doing("reporting")
    document, data = which_machine_document(found, command=arguments.line), found.to_dict()
    return Answer.of(document, data, folder, report_files(document, data) if folder else {}, console)


def _model_alone(arguments: Namespace) -> str:
    """Return the one model for which machines are compared. Raises InputError for anything else beside it."""
    from simoffload.scenario import names_model

    named = [*arguments.scenarios, *arguments.models]
    if len(named) != 1 or not names_model(named[0]):
        raise refusal("compare", "--platforms and --budget compare machines for one model: name one MODEL")
    given = {
        "--on": arguments.on,
        "--drive": arguments.drive,
        "--gpu": arguments.gpu,
        "--gpus": arguments.gpus is not None,
        "--memory": arguments.memory,
        "--baseline": arguments.baseline,
        "--objective": arguments.objective,
        "--measured": arguments.measured,
        "--settings": arguments.settings,
    }
    if others := [option for option, value in given.items() if value]:
        text = (
            "--platforms and --budget compare whole machines, by tokens/s of the whole request; leave out "
            f"{', '.join(others)}"
        )
        raise refusal("compare", text)
    if arguments.budget is not None and arguments.budget.is_beyond:
        raise refusal(
            "compare", "no machine is named that the budget could be beyond; leave out the plus sign"
        )
    return str(named[0])
