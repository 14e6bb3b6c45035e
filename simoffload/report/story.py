"""A result, or several side by side, from the answer to its origin: what page and Markdown file both tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simoffload.report.comparison import Group, group_verdict, in_common, warnings
from simoffload.report.comparison_sections import costs_of, overview
from simoffload.report.sections import Section, background, findings, planned
from simoffload.report.sections.background import inputs, limits, scenario, versions
from simoffload.report.summary import headline, verdict
from simoffload.results.result import SimulationResult

__all__ = ["Story", "story_of", "story_of_several"]


class Story(NamedTuple):
    """Everything that is told, in the order of reading."""

    headline: tuple[str, ...]
    """What it is about, in a few words each."""
    fits: bool | None
    """None for several results."""
    verdicts: tuple[str, ...]
    """The answer, in a sentence for each model and kind of work."""
    warnings: tuple[str, ...]
    findings: tuple[Section, ...]
    background: tuple[Section, ...]
    each: tuple[tuple[str, Story], ...] = ()
    """Of several results, each under its name."""


def story_of(result: SimulationResult, *, command: str = "") -> Story:
    """The story of one result, with what it answers when asked; ``command`` is what reproduces it."""
    return Story(
        headline(result),
        result.fits,
        (verdict(result),),
        result.all_warnings,
        (*findings(result), *planned(result)),
        background(result, command=command),
    )


def story_of_several(found: Sequence[Group], *, command: str = "") -> Story:
    """The story of results side by side; otherwise like ``story_of``."""
    rows = [(f"{group.title}, {row.label}", row.result) for group in found for row in group.rows]
    results = [result for _, result in rows]
    numbers = tuple(dict.fromkeys(one for result in results for one in result.provenance.inputs))
    origins = Counter(origin for _, _, _, origin, _, _ in numbers)
    programs = dict.fromkeys(one for result in results for one in result.provenance.versions.items())
    profiles = dict.fromkeys(one for result in results for one in result.provenance.profiles)
    return Story(
        in_common(results) or ("comparison",),
        None,
        tuple(map(group_verdict, found)),
        tuple(warnings(found)),
        (*overview(found), *costs_of(found)),
        (inputs(numbers, origins), versions(programs, profiles, command), limits()),
        tuple((label, _one_of_several(result)) for label, result in rows),
    )


def _one_of_several(result: SimulationResult) -> Story:
    """What is told of each; what it costs and what it was computed from is told of all together."""
    return story_of(replace(result, planner=None))._replace(
        background=(scenario(result.provenance.scenario),)
    )
