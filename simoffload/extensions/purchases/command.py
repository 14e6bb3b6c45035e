"""``simoffload compare MODEL --platforms``: which machine for a model; ``advise --search``: what to buy."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from simoffload.cli import planning
from simoffload.cli.answer import Question, Reply, answering
from simoffload.cli.arguments import add_service
from simoffload.cli.console import Console, ExitCode
from simoffload.cli.option_types import given_limits, listed, positive
from simoffload.cli.sources import CommandChanges, refusal
from simoffload.documents import Edit
from simoffload.errors import InputError, shortened

if TYPE_CHECKING:
    from simoffload.extensions.purchases.machines import Machines
    from simoffload.extensions.purchases.search import Search, SimulatedPurchase
    from simoffload.planning.advise import Advice
    from simoffload.planning.costs import CostList
    from simoffload.planning.evaluator import Evaluator
    from simoffload.results import SimulationResult
    from simoffload.scenario import LoadedScenario

Usual = Callable[[Namespace, Console], ExitCode]
"""The command that these options are added to."""


class Budget(NamedTuple):
    """A Budget is an amount of money for a whole machine, or for what is bought beyond the present one."""

    amount: float
    is_beyond: bool | None
    """Whether it is beyond the present machine; None: if a machine is named."""


def budget(text: str) -> Budget:
    """Read an amount of money above zero: +AMOUNT is beyond the present machine, "AMOUNT total" all of it."""
    amount = text.removesuffix("total").rstrip()
    total, beyond = amount != text, amount.startswith("+")
    if total and beyond:
        raise argparse.ArgumentTypeError(f'"{shortened(text)}" is both beyond the machine and its total')
    digits = amount.replace(",", "").removeprefix("+")
    number = positive(text, digits, 'an amount above 0, such as 1500, +1500 or "40000 total"')
    return Budget(number, beyond if total or beyond else None)


# -- ``simoffload compare MODEL --platforms`` -------------------------------------------------------
# Which machine for a model.


def add_to_compare(parser: argparse.ArgumentParser) -> None:
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
    return _which_machine(arguments, console)


@answering
def _which_machine(arguments: Namespace, _console: Console) -> Question[Machines]:
    from simoffload.extensions.purchases.machines import compare_machines
    from simoffload.planning.costs import load_costs
    from simoffload.planning.question import check_context

    model, budget = _model_alone(arguments), arguments.budget
    overrides = CommandChanges.of(arguments).overrides

    def ask() -> Machines:
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
        return found

    limits = given_limits(overrides)
    return Question(ask, partial(_reply, arguments), limits, limits.timeout)


def _reply(arguments: Namespace, found: Machines) -> Reply:
    from simoffload.extensions.purchases.report import which_machine_document

    document = which_machine_document(found, command=arguments.line)
    code = ExitCode.FAILED if found.stopped else ExitCode.of(found.answered)
    return Reply(document, found.to_dict, code)


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


# -- ``simoffload advise --search`` ----------------------------------------------------------------
# What to buy beside the changes.


def add_to_advise(parser: argparse.ArgumentParser) -> None:
    """Add the options to those of ``advise``."""
    parser.add_argument(
        "--search",
        action="store_true",
        help="also search the catalogue for purchases, together with other programs and formats",
    )
    parser.add_argument(
        "--budget",
        type=budget,
        metavar="AMOUNT",
        help="largest amount to spend beyond the machine that is named (the same as +AMOUNT), or for a whole "
        'machine if none is named (the same as "AMOUNT total")',
    )
    add_service(parser, "service level that purchases must meet")
    parser.add_argument(
        "--platforms", type=listed, action="extend", metavar="ID,…", help="also consider these machines"
    )
    parser.set_defaults(command=advise)


@answering
def advise(arguments: Namespace, console: Console) -> Question[Any]:
    """List changes that help with their costs, and what to buy within a budget and a service level."""
    searches = arguments.search or arguments.slo or arguments.platforms or arguments.budget
    return planning.ask_advice(arguments, console, partial(_beside, arguments) if searches else None)


def _beside(
    arguments: Namespace, scenario: LoadedScenario, capacity: SimulationResult, prices: CostList
) -> planning.SearchBeside:
    """Read the limits of purchases, and return the search within them."""
    from simoffload.planning.service_levels import parse_services

    budget, extra = _budgets(arguments.budget, scenario, capacity, prices, named=_names_machine(arguments))
    service = parse_services(arguments.slo, type(capacity))
    platforms = [
        planning.referred_platform(scenario, one, "--platforms") for one in arguments.platforms or ()
    ]
    for name in platforms:  # an unknown one is refused before long work starts
        scenario.platform(Edit.at("platform", name))

    def look(evaluator: Evaluator, advice: Advice) -> planning.FoundBeside:
        from simoffload.extensions.purchases.search import search_catalogue
        from simoffload.extensions.purchases.search_report import search_document

        found = search_catalogue(
            evaluator,
            budget=budget,
            extra=extra,
            service=service,
            objective=arguments.objective,
            platforms=platforms,
            costs=prices,
            advice=advice,
        )
        owned = advice.economics.purchase
        document = search_document(found, budget=budget, service=service, owned=owned)
        looked = found.combinations - found.outcomes.get("were not looked at", 0)
        stopped = f"{looked:,} of {found.combinations:,} combinations were looked at: {found.stopped}"
        return planning.FoundBeside(
            document,
            found.to_dict(),
            dict(_scenarios(found)),
            answered=found.best is not None,
            stopped=stopped if found.stopped else "",
            service=service,
        )

    return look


def _scenarios(found: Search) -> Iterator[tuple[str, tuple[SimulatedPurchase, str]]]:
    """Yield the best purchase and the front by name, each with a few words."""
    if found.best is not None:
        yield "best", (found.best, f"best by {found.objective.name}: {', '.join(found.best.description)}")
    for rank, point in enumerate(found.front, start=1):
        yield f"front-{rank:02d}", (point, ", ".join(point.description))


def _budgets(
    given: Budget | None,
    scenario: LoadedScenario,
    capacity: SimulationResult,
    prices: CostList,
    *,
    named: bool,
) -> tuple[float | None, float | None]:
    """Return the budgets for a whole machine and for what is bought beyond the present one, of which at most
    one is given: an amount without a sign is beyond the machine where one is ``named``. Raises InputError for
    the second one where a price of the machine is unknown."""
    from simoffload.planning.economics import economics

    if given is None:
        return None, None
    if not (named if given.is_beyond is None else given.is_beyond):
        return given.amount, None
    now = economics(scenario, capacity, prices)
    if now.purchase is None:
        lacks = f"no price is known of {', '.join(now.bill.missing)}"
        all_of_it = f'write "{given.amount:g} total" for all of it'
        text = f"{lacks}, so that nothing is known to be beyond it; {all_of_it}, or give prices (--costs)"
        raise InputError.at(f"{given.amount:g}", text, path="--budget")
    return None, given.amount


def _names_machine(arguments: Namespace) -> bool:
    """Return whether a command line names a machine: by its parts, its platform or a scenario of it."""
    from simoffload.documents import split_assignment
    from simoffload.scenario import names_model

    source = arguments.scenario or arguments.model
    parts = (arguments.gpu, arguments.gpus, arguments.memory, arguments.drive)
    placed = any(":" in one for one in arguments.on or ())
    overrides = any(split_assignment(one)[0] == "platform" for one in arguments.overrides)
    return not names_model(source) or placed or overrides or any(one is not None for one in parts)
