"""The costs of the reference host, from which the fit of every other host starts."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).with_name("reference_costs.csv")
REFERENCE_PROBE = "probe"
"""The row of the table with the level of a probe (``micro.noise.probe_level``) on the reference host.

Its spread is that of a factor from probes alone, our choice: they do what hooks do, but not all of it."""


class ReferenceCost(NamedTuple):
    """A cost of the reference host."""

    cost: str
    """A name of ``DeepSpeedCosts`` or ``TrainingCosts``, or ``REFERENCE_PROBE``."""
    value: float
    """[s] In shallow models; ``graph`` is a share."""
    spread: float
    """Relative standard deviation among hosts, their factors apart."""
    machines: int
    """The number of hosts on which it was measured; 0 for an estimate."""
    source: str


@cache
def reference_costs() -> dict[str, ReferenceCost]:
    """Read the table, which ``python -m validation.reference_costs`` writes."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        rows = [
            ReferenceCost(
                row["cost"],
                float(row["value"]),
                float(row["spread"]),
                int(row["machines"]),
                row["source"],
            )
            for row in csv.DictReader(file)
        ]
    return {row.cost: row for row in rows}
