"""Search for the smallest changes that make a scenario fit: one of each kind, or several together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, product

from simoffload.documents import Edit
from simoffload.errors import InputError, WorkLimitError
from simoffload.limits import keep, limited, now_doing
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.remedies import (
    BOUGHT,
    KINDS,
    Kind,
    adapters,
    adapters_of,
    context,
    each,
    enough,
    halved,
    other_strategies,
    precision,
    settings,
)
from simoffload.planning.replaced import replaced
from simoffload.progress import steps
from simoffload.results import Change, Remedies
from simoffload.scenario import LoadedScenario, ScenarioSource, loaded
from simoffload.simulation.capacity import memory_footprint
from simoffload.workload import Checkpointing, Training


def first_steps(evaluator: Evaluator) -> Iterator[Change]:
    """Yield what may be the first of several changes, each as far as it goes, the smaller changes first."""
    workload = evaluator.workload
    yield from halved(evaluator)
    if isinstance(workload, Training) and not workload.gradient_checkpointing:
        keys = ("workload", "gradient_checkpointing")
        yield Change("setting", "gradient_checkpointing set", (Edit(keys, True),))
    last = list(evaluator.changes("partition"))[-1:]
    yield from last
    every = evaluator.changes("tier")
    moves = [one for one in every if one.same_work and (not last or last[0].description in one.description)]
    yield from sorted(moves, key=lambda step: len(step.edits))
    if not isinstance(workload, Checkpointing) and workload.batch_size > 1:
        yield Change("batch", f"batch {workload.batch_size} → 1{each(evaluator)}", evaluator.batch(1))


_MOST = 4
"""Maximum number of combined changes that are reported."""
_PAIRS, _THREES, _LORA_PAIRS, _LORA_THREES = 100, 50, 60, 30
"""Maximum number of plans for a search of combinations: our choice, seconds for the largest models."""


def smallest_changes(scenario: ScenarioSource) -> tuple[Change, ...]:
    """Return the smallest change of each kind that makes the scenario fit, and combinations where no single
    one does.

    Every change was tried on the scenario. Empty if it fits unchanged, or if nothing that was tried helps.
    Adapters, which train something else, come last. Raises InputError for what DeepSpeed would refuse.
    """
    return search_changes(loaded(scenario)).changes


def search_changes(scenario: LoadedScenario) -> Remedies:
    """Return the changes of ``smallest_changes`` that are found within the limits of the scenario, and a
    record of those tried."""
    found = _Found(Evaluator(scenario))
    stopped = ""
    try:
        _search(found)
    except WorkLimitError as error:
        stopped = str(error)
    changes = (*sorted(found.changes, key=_first_to_last), *sorted(found.adapters, key=_first_to_last))
    kept = tuple(replaced(found.evaluator, one) for one in changes)
    return Remedies(kept, tuple(found.evaluator.effort.tried), found.barred, stopped)


@dataclass
class _Found:
    """What a search has found so far."""

    evaluator: Evaluator
    changes: list[Change] = field(default_factory=list)
    adapters: list[Change] = field(default_factory=list)
    barred: tuple[str, ...] = ()
    """Sentences about changes of the unchanged scenario that are impossible."""


@limited
def _search(found: _Found) -> None:
    evaluator, changes = found.evaluator, found.changes
    keep(evaluator.scenario.scenario.engine.limits)
    now_doing("planning")
    if all(use.fits for use in memory_footprint(evaluator.scenario)):
        return
    for kind in steps((*KINDS, other_strategies), lambda kind: kind.__name__.replace("_", " ")):
        changes += kind(evaluator)
    found.barred = tuple(evaluator.effort.barred)
    if all(change.kind in BOUGHT for change in changes):  # also report what costs nothing
        several = _of_several(evaluator)
        changes += [one for one in several if not changes or not _is_bought(one)]
    found.adapters += adapters(evaluator)
    if not found.adapters and all(_parts(change) for change in changes):
        first = list(adapters_of(evaluator))
        found.adapters += islice(_pairs(evaluator, first, KINDS, most=_LORA_PAIRS), len(first))
        if not changes and not found.adapters:
            both = product(first[-1:], first_steps(evaluator))
            found.adapters += islice(_threes(evaluator, both, most=_LORA_THREES), _MOST)


def _of_several(evaluator: Evaluator) -> list[Change]:
    """Return pairs of changes, and triples where no pair suffices without a purchase."""
    steps = list(first_steps(evaluator))
    pairs = list(islice(_pairs(evaluator, steps, KINDS[2:], most=_PAIRS), _MOST))
    if not all(map(_is_bought, pairs)):
        return pairs
    return [*pairs, *islice(_threes(evaluator, combinations(steps, 2), most=_THREES), _MOST)]


def _is_bought(change: Change) -> bool:
    return change.kind.rpartition(" + ")[2] in BOUGHT


def _first_to_last(change: Change) -> tuple[int, int]:
    """Return the order of report: changes that keep the answers, and single ones, before others."""
    return change.rank, _parts(change)


def _parts(change: Change) -> int:
    """Return the number of kinds of changes after the first."""
    return change.kind.count(" + ")


def _pairs(
    evaluator: Evaluator, steps: Iterable[Change], kinds: Sequence[Kind], *, most: int
) -> Iterator[Change]:
    """Yield each step with the first change that then suffices; at most ``most`` plans are made."""
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
            yield step.followed_by(second)


def _threes(evaluator: Evaluator, both: Iterable[tuple[Change, Change]], *, most: int) -> Iterator[Change]:
    """Yield two steps with the first setting, length or precision that then suffices."""
    steps = (one.with_(other) for one, other in both if not _same_keys(one, other))
    return _pairs(evaluator, steps, (settings, context, precision), most=most)


def _same_keys(one: Change, other: Change) -> bool:
    mine, others = ({each.path for each in step.edits} for step in (one, other))
    return not mine.isdisjoint(others)
