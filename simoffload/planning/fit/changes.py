"""The smallest changes that make a scenario fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice, product

from simoffload.errors import InputError
from simoffload.planning.fit.evaluator import Evaluator
from simoffload.planning.fit.remedies import (
    BOUGHT,
    KINDS,
    Kind,
    adapters,
    adapters_of,
    context,
    enough,
    first_steps,
    precision,
    settings,
)
from simoffload.results.capacity import Change, Remedies
from simoffload.scenario import LoadedScenario
from simoffload.simulation.capacity import memory_footprint
from simoffload.strategies.base import Move

__all__ = ["search_changes", "smallest_changes"]

_MOST = 4
"""Changes of several parts that are told."""
_PAIRS, _THREES, _LORA_PAIRS, _LORA_THREES = 60, 30, 40, 20
"""Runs that are planned in search of them: our choice, seconds for the largest models."""


def smallest_changes(scenario: LoadedScenario) -> tuple[Change, ...]:
    """Of each kind of change the smallest that makes the scenario fit; several at once where none does alone.

    Every change was tried on the scenario. Empty if it fits as it is, or if nothing that was tried helps.
    Adapters, which train something else, come last. Raises InputError for what DeepSpeed would refuse.
    """
    return search_changes(scenario).changes


def search_changes(scenario: LoadedScenario) -> Remedies:
    """The same, and what was tried."""
    if all(use.fits for use in memory_footprint(scenario)):
        return Remedies((), ())
    evaluator = Evaluator(scenario)
    found = [change for kind in KINDS for change in kind(evaluator)]
    barred = tuple(evaluator.effort.barred)  # by the scenario as it is
    if all(change.kind in BOUGHT for change in found):  # what costs nothing is told beside it
        found += [one for one in _of_several(evaluator) if not found or not _is_bought(one)]
    lora = list(adapters(evaluator))
    if not lora and all(_parts(change) for change in found):
        steps = list(adapters_of(evaluator))
        lora = list(islice(_pairs(evaluator, steps, KINDS, most=_LORA_PAIRS), 1))
        if not found and not lora:
            both = product(steps[-1:], first_steps(evaluator))
            lora = _first_of(_threes(evaluator, both, most=_LORA_THREES))
    return Remedies(
        (*sorted(found, key=_parts), *sorted(lora, key=_parts)), tuple(evaluator.effort.tried), barred
    )


def _of_several(evaluator: Evaluator) -> list[Change]:
    """Pairs; threes where no pair is enough without buying something."""
    steps = list(first_steps(evaluator))
    pairs = _first_of(_pairs(evaluator, steps, KINDS[2:], most=_PAIRS))
    if not all(map(_is_bought, pairs)):
        return pairs
    return [*pairs, *_first_of(_threes(evaluator, combinations(steps, 2), most=_THREES))]


def _is_bought(change: Change) -> bool:
    return change.kind.rpartition(" + ")[2] in BOUGHT


def _parts(change: Change) -> int:
    """How many kinds of changes it is made of."""
    return change.kind.count(" + ")


def _first_of(found: Iterator[Change]) -> list[Change]:
    return list(islice(found, _MOST))


def _pairs(
    evaluator: Evaluator, steps: Iterable[Move], kinds: Sequence[Kind], *, most: int
) -> Iterator[Change]:
    """Changes that go as far as they can, each with the first that then is enough; ``most`` are planned."""
    before = evaluator.effort.planned
    for step in steps:
        if evaluator.effort.planned - before >= most:
            return
        alone = tuple(enough(evaluator, step))  # a setting that does more than the remedies say
        if alone:
            yield from alone
            continue
        try:
            first = evaluator.changed_by(*step.edits)
            second = next((change for kind in kinds for change in kind(first)), None)
        except InputError:  # not a step of this scenario
            continue
        if second is not None:
            yield second._replace(
                kind=f"{step.kind} + {second.kind}",
                description=f"{step.description}, and {second.description}",
                edits=(*step.edits, *second.edits),
            )


def _threes(evaluator: Evaluator, both: Iterable[tuple[Move, Move]], *, most: int) -> Iterator[Change]:
    """Two changes that go as far as they can, with the first setting or length that then is enough."""
    steps = (one.with_(other) for one, other in both if not _same_keys(one, other))
    return _pairs(evaluator, steps, (settings, context, precision), most=most)


def _same_keys(one: Move, other: Move) -> bool:
    mine, others = ({each.path for each in step.edits} for step in (one, other))
    return not mine.isdisjoint(others)
