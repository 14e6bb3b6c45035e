"""``simoffload fit``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from simoffload.cli.cases import cases
from simoffload.cli.console import Console, Progress
from simoffload.cli.exits import Exit
from simoffload.errors import InputError

if TYPE_CHECKING:
    from simoffload.scenario import LoadedScenario

__all__ = ["fit"]

_SCHEMA = "simoffload/fit/1"


def fit(arguments: Namespace, console: Console) -> Exit:
    """Say what each tier must hold; how many machines it takes; how large the work can be."""
    targets = None if arguments.machines else arguments.on
    found = cases(arguments.scenarios, targets, overrides=arguments.overrides, command="fit", console=console)
    if arguments.machines:
        return _machines(found, arguments.on, console)
    if arguments.largest:
        return _largest(found, console)
    if len(found) > 1 or targets:
        return _several(found, console)
    ((_, scenario),) = found.items()
    return _one(scenario, console)


def _one(scenario: LoadedScenario, console: Console) -> Exit:
    from simoffload.planning.fit import with_changes
    from simoffload.report.text import result_text
    from simoffload.simulation import fit

    with Progress(console) as progress:
        progress("what would make it fit")
        result = with_changes(scenario, fit(scenario))
    console.answer(result_text(result, color=console.color, width=console.width), result.to_dict())
    return Exit.OK if result.fits else Exit.DOES_NOT_FIT


def _several(found: dict[str, LoadedScenario], console: Console) -> Exit:
    from simoffload.planning import compare_fit
    from simoffload.report.comparison_text import compare_text

    comparison = compare_fit(found)
    results = tuple(comparison.results.values())
    console.answer(compare_text(results, color=console.color, width=console.width), comparison.to_dict())
    return Exit.OK if comparison.fits else Exit.DOES_NOT_FIT


def _machines(found: dict[str, LoadedScenario], tiers: tuple[str, ...] | None, console: Console) -> Exit:
    """``tiers`` are those to offload to."""
    from simoffload.planning.fit import machines_needed
    from simoffload.report.fit_text import machines_text

    needed = []
    with Progress(console) as progress:
        for label, scenario in found.items():
            progress(label)
            try:
                needed.append(machines_needed(scenario, tiers=tiers))
            except InputError as error:
                named = (one if one.path else one._replace(path="--on", key="") for one in error.problems)
                raise InputError(named) from None
    data = {"schema": _SCHEMA, "machines": [one.to_dict() for one in needed]}
    console.answer(machines_text(needed, color=console.color, width=console.width), data)
    fits = any(count.machines for one in needed for count in one.counts)
    return Exit.OK if fits else Exit.DOES_NOT_FIT


def _largest(found: dict[str, LoadedScenario], console: Console) -> Exit:
    from simoffload.planning.fit import largest
    from simoffload.report.fit_text import largest_text

    held = []
    with Progress(console) as progress:
        for label, scenario in found.items():
            progress(label)
            held.append(largest(scenario))
    data = {"schema": _SCHEMA, "largest": [one.to_dict() for one in held]}
    console.answer(largest_text(held, color=console.color, width=console.width), data)
    fits = any(limit.most for one in held for limit in (one.batch, one.context, one.layers))
    return Exit.OK if fits else Exit.DOES_NOT_FIT
