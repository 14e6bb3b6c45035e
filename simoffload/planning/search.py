"""One search for all questions about changes: ways to do the work, and what is not beaten by others.

Memory is asked before time, and a least time (``Evaluator.least``) before an exact one, so that only what may
be among the best is simulated to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from simoffload.errors import PlacementError
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.replaced import replaced
from simoffload.planning.serving import class_of, held_by_gpus, in_format, in_gpus, weight_formats
from simoffload.planning.splits import divisions
from simoffload.results import Change
from simoffload.scenario import LoadedScenario
from simoffload.strategies.tunables import RESIDENT, Placement, moving
from simoffload.workload import Checkpointing, Training

Way = Callable[[Evaluator], Change | None]
"""Function that returns how the work is done on a machine in one way, which may depend on what fits there;
None where it is not possible."""


def program_ways(evaluator: Evaluator) -> Iterator[Way]:
    """Yield the ways to do the work of inference that replace its program: GPUs that hold the weights, and
    divisions between them and other tiers, in each format."""

    def held(kind: str, name: str) -> Way:
        return lambda there: held_by_gpus(there, kind, name)

    for way in (*(held(*one) for one in in_gpus(evaluator)), *(one.most for one in divisions(evaluator))):
        yield _replacing(way)


def only_with(evaluator: Evaluator, purchase: Change, tiers: Sequence[str]) -> Iterator[Change]:
    """Yield a purchase with each way to do the work that is not possible without it."""
    there = evaluator.changed_by(*purchase.edits)
    for way in (*map(_if_it_fits, places(evaluator.scenario, tiers)), *program_ways(evaluator)):
        change = way(there)
        if change is not None and not evaluator.fits(*change.edits):
            yield change._replace(
                kind=purchase.kind,
                description=f"{purchase.description}, with {change.description}",
                edits=(*purchase.edits, *change.edits),
                key=f"{purchase.key}-{change.key}",
            )


def _if_it_fits(change: Change) -> Way:
    return lambda there: change if there.fits(*change.edits) else None


def _replacing(way: Way) -> Way:
    def on(there: Evaluator) -> Change | None:
        change = way(there)
        return None if change is None else replaced(there, change)

    return on


def with_formats(evaluator: Evaluator, change: Change) -> Iterator[Change]:
    """Yield a change, and the same with the weights in each format that its program loads."""
    yield change
    kinds = (edit.value["kind"] for edit in change.edits if edit.path == ("strategy",))
    kind = next(kinds, evaluator.strategy.kind)
    for name in weight_formats(evaluator.scenario, class_of(kind)):
        yield in_format(evaluator, change, name)


class _Point(NamedTuple):
    rank: int
    price: float
    speed: float


class Frontier:
    """A Frontier holds what was found so far, and tells what it beats.

    What keeps the answers is beaten by what keeps them only, everything else by both.
    """

    def __init__(self) -> None:
        self._points: list[_Point] = []

    def add(self, rank: int, *, price: float, speed: float) -> None:
        """Add a point that counts from now on."""
        if not self.beats(rank, price=price, speed=speed):
            self._points.append(_Point(rank, price, speed))

    def beats(self, rank: int, *, price: float, speed: float) -> bool:
        """Return whether a point is neither cheaper nor faster than one that was added."""
        return any(one.rank <= rank and one.price <= price and one.speed >= speed for one in self._points)


# -- places of the states -------------------------------------------------------------------------


def places(scenario: LoadedScenario, tiers: Sequence[str]) -> Iterator[Change]:
    """Yield other tiers for the weights or checkpoints and, in training, for the optimizer."""
    strategy = scenario.scenario.strategy
    for placement in _placements(scenario, tiers):
        description = placement_words(scenario, placement, ranks=strategy.ranks)
        edits = moving(strategy, placement, scenario.machine)
        yield Change("placement", description, edits, key=f"on-{placement}")


def resident(scenario: LoadedScenario) -> Iterator[Change]:
    """Yield a full copy of all states on each GPU, instead of states that are partitioned or offloaded."""
    strategy = scenario.scenario.strategy
    with suppress(PlacementError):
        if edits := moving(strategy, Placement(RESIDENT), scenario.machine):
            without = f", without {strategy.traits.method}" if strategy.traits.method else ""
            description = f"a whole copy of the model in each GPU{without}"
            yield Change("placement", description, edits, key="on-resident")


def _placements(scenario: LoadedScenario, tiers: Sequence[str]) -> Iterator[Placement]:
    """Yield placements of the strategy that differ from the present one."""
    names = scenario.machine.tiers
    possible = scenario.placements.possible
    if not isinstance(scenario.scenario.workload, Training):
        yield from (one for one in possible if one.weights not in tiers and one.optimizer is None)
        return
    weights, now = tiers[0], tiers[-1]
    pairs = [Placement(weights, tier) for tier in names]
    pairs += [Placement("hbm", "dram"), *(Placement(tier, tier) for tier in names)]
    yield from (pair for pair in dict.fromkeys(pairs) if pair in possible and pair != (weights, now))


def placement_words(scenario: LoadedScenario, placement: Placement, *, ranks: int) -> str:
    """Describe a placement: "weights on dram, optimizer on nvme", with what the strategy adds to it."""
    work, (weights, optimizer) = scenario.scenario.workload, placement
    description = f"{'checkpoints' if isinstance(work, Checkpointing) else 'weights'} on {weights}"
    description += f", optimizer on {optimizer}" if optimizer else ""
    return description + scenario.placements.caveat(weights, ranks)
