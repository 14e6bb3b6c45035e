"""Several scenarios, or one on several targets, by label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from simoffload.cli.console import Console
from simoffload.cli.sources import load, move, with_strategy
from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.scenario import LoadedScenario

__all__ = ["refusal", "scenario_set"]


def scenario_set(
    sources: Sequence[str],
    targets: Sequence[str] | None,
    *,
    overrides: Sequence[str],
    strategies: Sequence[str] = (),
    command: str,
    console: Console,
) -> dict[str, LoadedScenario]:
    """Every scenario, as it is and with each of the ``strategies`` (files), on every target.

    Raises InputError with everything that is wrong.
    """
    scenario_of = partial(load, overrides=overrides, targets=targets, console=console)
    if len(sources) == 1 and not strategies and targets:
        return _once(move(scenario_of(sources[0]), targets), console)
    named: dict[str, LoadedScenario] = {}
    for name, scenario in _by_name(sources, scenario_of, command).items():
        named[name] = scenario
        for file in strategies:
            other = with_strategy(scenario, file)
            if other.name in named:
                raise refusal(command, f"two strategies are called {other.name}; rename a file")
            named[other.name] = other
    if not targets:
        return named
    found: dict[str, LoadedScenario] = {}
    for name, scenario in named.items():
        retargeted = move(scenario, targets).items()
        found |= _once({f"{name} {target}": case for target, case in retargeted}, console)
    return found


def _once(found: dict[str, LoadedScenario], console: Console) -> dict[str, LoadedScenario]:
    """One scenario on several targets, without what an earlier label already means: the optimizer of ``dram``
    may lie in ``dram``, too."""
    kept: dict[str, LoadedScenario] = {}
    for label, case in found.items():
        twin = next((other for other, known in kept.items() if _same(case, known)), None)
        if twin is None:
            kept[label] = case
        else:
            console.note(f"{label} is the same as {twin}, and told once")
    return kept


def _same(one: LoadedScenario, other: LoadedScenario) -> bool:
    return one.places == other.places and one.document.data == other.document.data


def _by_name(
    sources: Sequence[str], scenario_of: Callable[[str], LoadedScenario], command: str
) -> dict[str, LoadedScenario]:
    """Load every scenario and label it with its name; where names are equal, with its file as well."""
    problems: list[Problem] = []
    loaded: list[tuple[str, LoadedScenario]] = []
    for source in sources:
        try:
            loaded.append((source, scenario_of(source)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(dict.fromkeys(problems))
    names = [scenario.name for _, scenario in loaded]
    found = {
        scenario.name if names.count(scenario.name) == 1 else f"{scenario.name} ({source})": scenario
        for source, scenario in loaded
    }
    if len(found) < len(loaded):
        raise refusal(command, "a scenario is given twice")
    return found


def refusal(command: str, message: str) -> InputError:
    """A command line that makes no sense, as "simoffload compare: …"."""
    return InputError((Problem(f"simoffload {command}", None, None, "", message),))
