"""The smallest changes that make a scenario fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from simoffload.errors import InputError
from simoffload.planning.fit.kinds import KINDS, enough, first_steps
from simoffload.planning.fit.variants import Variants
from simoffload.results.capacity import Change
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario
from simoffload.simulation.needs import tier_needs

__all__ = ["smallest_changes", "with_changes"]

R = TypeVar("R", bound=SimulationResult)

_MOST_PAIRS = 4


def smallest_changes(scenario: LoadedScenario) -> tuple[Change, ...]:
    """Of each kind of change the smallest that makes the scenario fit; pairs where none does alone.

    Every change was tried on the scenario. Empty if it fits as it is, or if nothing that was tried helps.
    Raises InputError for what DeepSpeed would refuse.
    """
    if all(use.fits for use in tier_needs(scenario)):
        return ()
    variants = Variants(scenario)
    alone = tuple(change for kind in KINDS for change in kind(variants))
    return alone or tuple(islice(_pairs(variants), _MOST_PAIRS))


def _pairs(variants: Variants) -> Iterator[Change]:
    """Changes that go as far as they can, each with the first that then is enough."""
    for step in first_steps(variants):
        alone = tuple(enough(variants, step))  # a setting that does more than the remedies say
        if alone:
            yield from alone
            continue
        try:
            first = variants.changed_by(*step.assignments)
            second = next((change for kind in KINDS[1:] for change in kind(first)), None)
        except InputError:  # not a step of this scenario
            continue
        if second is not None:
            yield second._replace(
                kind=f"{step.kind} + {second.kind}",
                words=f"{step.words}, and {second.words}",
                assignments=(*step.assignments, *second.assignments),
            )


def with_changes(scenario: LoadedScenario, result: R) -> R:
    """The result of the scenario with the changes that would make it fit, if it does not."""
    return result if result.fits else replace(result, changes=smallest_changes(scenario))
