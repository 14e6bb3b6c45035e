"""Placements of the key-value cache: which fit, with how many sequences and how many tokens each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simoffload.planning.alternatives import ANSWERS_CHANGE
from simoffload.planning.evaluator import Asked, Evaluator, evaluator_of
from simoffload.planning.sizing import Limit, batch_limit, context_limit
from simoffload.results import Change, TierUse, by_name
from simoffload.workload import Inference


@dataclass(frozen=True)
class CachePlacement:
    """A CachePlacement is the scenario with its key-value cache elsewhere, or as it is."""

    change: Change
    """Change to the placement; without edits for the present one."""
    there: Evaluator = field(repr=False, compare=False)
    """Evaluator of the scenario with the change."""
    uses: tuple[TierUse, ...]
    """What each tier must hold with the batch and the lengths of the scenario."""

    @property
    def placement(self) -> str:
        """Description of the placement, such as "dram, static"."""
        return self.change.description

    @property
    def lacking(self) -> tuple[TierUse, ...]:
        """Tiers that are too small."""
        return tuple(use for use in self.uses if not use.fits)

    @property
    def fits(self) -> bool:
        """Whether all tiers are large enough."""
        return not self.lacking

    @property
    def outside(self) -> int:
        """What tiers other than HBM must hold [B]."""
        return sum(use.needed for use in self.uses if use.tier != "hbm")

    @property
    def move(self) -> str:
        """Description of the move, which says whether answers change."""
        text = f"key-value cache on {self.placement}"
        return text if self.change.same_work else f"{text} {ANSWERS_CHANGE}"


@dataclass(frozen=True)
class CacheLimits(CachePlacement):
    """CacheLimits are the largest batch and the longest context with the cache in one placement."""

    batch: Limit
    """Number of sequences, with the lengths of the scenario."""
    full: tuple[str, ...]
    """Tiers that a larger batch overfills."""
    context: Limit
    """[tokens] of prompt and output, with the batch of the scenario, up to the positions of the model."""

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


def cache_limits(scenario: Asked) -> tuple[CacheLimits, ...]:
    """Return what fits with each placement of the key-value cache that the program of a scenario has.

    The prompt grows for the longest context, up to the positions that the model was made for. Empty for other
    work than inference, and where there is no choice. Raises InputError for a scenario that its program
    refuses; placements that it refuses are left out.
    """
    evaluator = evaluator_of(scenario)
    workload = evaluator.workload
    if not isinstance(workload, Inference):
        return ()
    return tuple(_limits(evaluator, one, workload) for one in placements(evaluator))


def placements(evaluator: Evaluator) -> tuple[CachePlacement, ...]:
    """Return the placements of the key-value cache that the program does not refuse; empty where there is no
    choice."""
    found = []
    for one in evaluator.changes("cache") if isinstance(evaluator.workload, Inference) else ():
        uses = evaluator.needs(*one.edits)
        if uses is not None:
            found.append(CachePlacement(one, evaluator.changed_by(*one.edits), uses))
    return tuple(found) if len(found) > 1 else ()


_LARGER = 8
"""Largest factor by which a batch grows with a move of the cache: the largest that ``advise`` tries without
one."""


def cache_options(evaluator: Evaluator) -> Iterator[Change]:
    """Yield the other placements of the key-value cache, and those that hold the largest batch with it, as
    options of ``advise``.

    If the present placement fits, and no other leaves less outside HBM, it is in HBM: other tiers and fewer
    bits are then worth their price only for a larger batch, and are left out with the present one.
    """
    known = placements(evaluator)
    now = next((one for one in known if not one.change.edits), None)
    least = min((one.outside for one in known), default=0)
    resident = now is not None and now.fits and now.outside == least
    for one in known:
        if one.change.edits and not (resident and (one.outside > least or not one.change.same_work)):
            yield one.change._replace(description=one.move)
    if now is not None and now.fits:
        yield from _with_larger_batches(now, known)


def _with_larger_batches(now: CachePlacement, known: Sequence[CachePlacement]) -> Iterator[Change]:
    """Yield the first placement with the largest batch, if it is larger than that of ``now``: in the present
    format, and in another."""
    work = now.there.workload
    assert isinstance(work, Inference)
    batch = work.batch_size
    held = {id(one): one.there.largest_batch(most=_LARGER * batch) or 0 for one in known}
    for same in (True, False):
        of_format = [one for one in known if one.change.same_work == same]
        one = max(of_format, key=lambda one: held[id(one)], default=now)
        most = held[id(one)]
        if most > max(held[id(now)], batch):
            yield one.change._replace(
                description=f"{one.move}, batch {most} instead of {batch}",
                edits=(*one.change.edits, *one.there.batch(most)),
                key=f"{one.change.key}-batch-{most}",
            )


def _limits(evaluator: Evaluator, one: CachePlacement, workload: Inference) -> CacheLimits:
    there, positions = one.there, evaluator.scenario.model.max_position_embeddings
    context = context_limit(there, workload, positions=positions)
    batch, unit = batch_limit(there, workload), there.strategy.sizes(workload.batch_size).unit
    most = batch.most or 0
    more = most + (1 if most < unit else unit)
    beyond = there.needs(*there.batch(more)) or ()
    full = tuple(use.tier for use in beyond if not use.fits)
    return CacheLimits(one.change, there, one.uses, batch, full, context)
