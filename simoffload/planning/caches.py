"""Placements of the key-value cache: which fit, with how many sequences and how many tokens each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.serving import ANSWERS_CHANGE
from simoffload.planning.sizing import Limit, batch_limit, context_limit
from simoffload.results import Change, TierUse, by_name
from simoffload.scenario import ScenarioSource, loaded
from simoffload.workload import Inference


class CacheLimits(NamedTuple):
    """CacheLimits are the largest batch and the longest context with the cache in one placement."""

    change: Change
    """Change to the placement; without edits for the present one."""
    uses: tuple[TierUse, ...]
    """What each tier must hold with the batch and the lengths of the scenario."""
    batch: Limit
    """Number of sequences, with the lengths of the scenario."""
    full: tuple[str, ...]
    """Tiers that a larger batch overfills."""
    context: Limit
    """[tokens] of prompt and output, with the batch of the scenario, up to the positions of the model."""
    batch_edits: Callable[[int], tuple[Edit, ...]]
    """Function that returns the edits for a batch in this placement."""

    @property
    def placement(self) -> str:
        """Description of the placement, such as "dram, static"."""
        return self.change.description

    @property
    def lacking(self) -> tuple[TierUse, ...]:
        """Tiers that are too small."""
        return tuple(use for use in self.uses if not use.fits)

    @property
    def outside(self) -> int:
        """What tiers other than HBM must hold [B]."""
        return sum(use.needed for use in self.uses if use.tier != "hbm")

    @property
    def fits(self) -> bool:
        """Whether all tiers are large enough."""
        return not self.lacking

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes, ``lacking_bytes`` what each
        tier lacks."""
        return {
            **by_name(self, "placement"),
            "now": not self.change.edits,
            "set": list(self.change.assignments),
            **by_name(self, "fits"),
            "lacking_bytes": {use.tier: -use.headroom for use in self.lacking},
            **by_name(self, "batch_size=batch full context"),
        }


def cache_limits(scenario: ScenarioSource, *, evaluator: Evaluator | None = None) -> tuple[CacheLimits, ...]:
    """Return what fits with each placement of the key-value cache that the program of a scenario has.

    The prompt grows for the longest context, up to the positions that the model was made for. Empty for other
    work than inference, and where there is no choice. Raises InputError for a scenario that its program
    refuses; placements that it refuses are left out.
    """
    evaluator = evaluator or Evaluator(loaded(scenario))
    workload = evaluator.workload
    if not isinstance(workload, Inference):
        return ()
    found = [_limits(evaluator, one, workload) for one in evaluator.changes("cache")]
    possible = tuple(one for one in found if one is not None)
    return possible if len(possible) > 1 else ()


_LARGER = 8
"""Largest factor by which a batch grows with a move of the cache: the largest that ``advise`` tries without
one."""


def cache_options(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the other placements of the key-value cache, and those that hold the largest batch with it, as
    options of ``advise``.

    If the present placement fits, and no other leaves less outside HBM, it is in HBM: other tiers and fewer
    bits are then worth their price only for a larger batch, and are left out with the present one.
    """
    limits = cache_limits(evaluator.scenario, evaluator=evaluator)
    now = next((one for one in limits if not one.change.edits), None)
    least = min((one.outside for one in limits), default=0)
    resident = now is not None and now.fits and now.outside == least
    for one in limits:
        if one.change.edits and not (resident and (one.outside > least or not one.change.same_work)):
            yield one.change._replace(description=_move_of(one))
    if now is not None and now.fits:
        yield from _with_larger_batches(now, limits)


def _move_of(one: CacheLimits) -> str:
    text = f"key-value cache on {one.placement}"
    return text if one.change.same_work else f"{text} {ANSWERS_CHANGE}"


def _with_larger_batches(now: CacheLimits, limits: tuple[CacheLimits, ...]) -> Iterator[Change]:
    """Yield the first placement with the largest batch, if it is larger than that of ``now``: in the present
    format, and in another."""
    most, batch = _LARGER * now.batch.now, now.batch.now

    def held(one: CacheLimits) -> int:
        return min(one.batch.most or 0, most)

    for same in (True, False):
        of_format = [one for one in limits if one.change.same_work == same]
        one = max(of_format, key=held, default=now)
        if held(one) > max(held(now), batch):
            yield one.change._replace(
                description=f"{_move_of(one)}, batch {held(one)} instead of {batch}",
                edits=(*one.change.edits, *one.batch_edits(held(one))),
                key=f"{one.change.key}-batch-{held(one)}",
            )


def _limits(evaluator: Evaluator, change: Change, workload: Inference) -> CacheLimits | None:
    try:
        there = evaluator.changed_by(*change.edits)
    except InputError:
        return None
    uses = there.needs()
    if uses is None:
        return None
    positions = evaluator.scenario.model.max_position_embeddings
    context = context_limit(there, workload, positions=positions)
    batch, unit = batch_limit(there, workload), there.strategy.sizes(workload.batch_size).unit
    most = batch.most or 0
    more = most + (1 if most < unit else unit)
    beyond = there.needs(*there.batch(more)) or ()
    full = tuple(use.tier for use in beyond if not use.fits)
    return CacheLimits(change, uses, batch, full, context, there.batch)
