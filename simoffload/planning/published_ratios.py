"""Published time ratios between tiers, to print next to simulated ones."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from pydantic import TypeAdapter

from simoffload.scenario import LoadedScenario, load_scenario


class PublishedRatio(NamedTuple):
    """A published time per token on one tier, relative to that on another."""

    scenario: str
    """Name of the shipped scenario that reproduces the publication."""
    target: str
    relative_to: str
    ratio: float
    note: str
    """The words of the publication."""

    @property
    def source(self) -> str:
        """Return the tiers and the words, as "nfs over raid: around 10x longer"."""
        return f"{self.target} over {self.relative_to}: {self.note}"


@cache
def shipped_ratios() -> tuple[PublishedRatio, ...]:
    """Return the table ``published_ratios.csv``, which ``python -m validation`` writes."""
    text = (files("simoffload.planning") / "published_ratios.csv").read_text("utf-8")
    rows = TypeAdapter(tuple[PublishedRatio, ...])
    return rows.validate_python(tuple(csv.DictReader(io.StringIO(text))))


def published_ratios(scenario: LoadedScenario, baseline: str) -> dict[str, tuple[float, str]]:
    """Return the published time on each tier over that on ``baseline``, with the words of the publication.

    The result is empty unless the scenario is, up to its target, one that is shipped to reproduce a
    publication.
    """
    ratios = [one for one in shipped_ratios() if one.scenario.rpartition("/")[2] == scenario.name]
    if not ratios or not _same_work(scenario, load_scenario(ratios[0].scenario)):
        return {}
    # Every ratio is followed in both directions until no tier is added.
    known: dict[str, tuple[float, tuple[str, ...]]] = {baseline: (1.0, ())}
    for _ in ratios:
        for one in ratios:
            forth = (one.relative_to, one.target, one.ratio)
            back = (one.target, one.relative_to, 1 / one.ratio)
            for start, end, ratio in (forth, back):
                if start in known and end not in known:
                    known[end] = (known[start][0] * ratio, (*known[start][1], one.source))
    return {tier: (ratio, "; ".join(sources)) for tier, (ratio, sources) in known.items() if tier != baseline}


def _same_work(one: LoadedScenario, other: LoadedScenario) -> bool:
    """Return whether two scenarios differ in nothing but the tier of the weights."""
    mine, theirs = (
        {**each.document.data, "strategy": {**each.document.data["strategy"], "weights": None}}
        for each in (one, other)
    )
    return bool(mine == theirs)
