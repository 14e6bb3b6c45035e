"""Published figures as data: one CSV file a publication, one row a figure."""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Reference", "load_references"]


class Reference(NamedTuple):
    """A published figure, and what to simulate to predict it."""

    id: str
    source: str
    locator: str
    """Where exactly it was printed."""
    scenario: str
    """Name of a shipped scenario."""
    overrides: str
    """``a.b=value``, separated by semicolons: how the run differs from the scenario."""
    target: str
    """Tier that holds the weights; empty where that is the scenario's word, as in training."""
    relative_to: str
    """Tier that a ratio refers to, or further overrides."""
    metric: str
    published: str
    """A number, or an order of tiers."""
    unit: str
    rule: str
    """``within`` a relative tolerance, within a ``factor``, ``between`` two numbers, ``at_most``,
    ``at_least``, ``equal``, or only ``report``."""
    tolerance: str
    """Of ``within`` and ``factor`` a number, of ``between`` as in "2.0 to 2.4"."""
    note: str

    @property
    def publication(self) -> str:
        """The prefix of the id that all figures of one publication share."""
        return self.id.partition("-")[0]


def load_references() -> tuple[Reference, ...]:
    """All published figures, in the order of the files."""
    folder = files("simoffload.validation").joinpath("references")
    tables = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".csv")), key=lambda e: e.name
    )
    return tuple(
        Reference(**row)
        for table in tables
        for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    )
