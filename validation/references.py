"""Published figures: the rows of the CSV files in ``published/``, and the rules for their predictions."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

Value = float | str | None
"""A number, an order of tiers, or None if the work does not fit."""

Role = Literal["judged", "input", "in view"]
"""What a figure is for: to judge the predictions; an input, from which a number was set; or in view, because
a number was set with figures like it, or changed with its error known. Limits of these two do not count."""

_FOLDER = Path(__file__).parent / "published"


class Reference(NamedTuple):
    """A published figure, and the scenario that predicts it."""

    id: str
    source: str
    locator: str
    """The page, table or figure that contains it."""
    scenario: str
    """The name of a shipped scenario."""
    overrides: str
    """Differences from the scenario as ``a.b=value``, separated by semicolons."""
    target: str
    """The tier of the weights; empty if the scenario decides, as in training."""
    relative_to: str
    """The tier that a ratio refers to, or further overrides."""
    metric: str
    published: str
    """A number, or an order of tiers."""
    unit: str
    rule: str
    """The rule for the prediction: ``within`` a relative tolerance, within a ``factor``, ``between`` two
    numbers, ``at_most``, ``at_least``, ``equal``, the published number ``inside`` the 80 % interval of the
    prediction, or no rule (``report``)."""
    tolerance: str
    """A number for ``within`` and ``factor``, or a text such as "2.0 to 2.4" for ``between``."""
    note: str
    role: Role = "judged"
    number: str = ""
    """The number of the simulator that was set with the figure, or could have been, with its file."""

    @property
    def publication(self) -> str:
        """Return the prefix of the id, which all figures of one publication share."""
        return self.id.partition("-")[0]

    @property
    def value(self) -> float | str:
        """Return the published value as a number, unless it is an order of tiers."""
        return self.published if self.metric == "order" else float(self.published)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return both numbers of the rule ``between``."""
        low, _, high = self.tolerance.partition(" to ")
        return float(low), float(high)

    def on(self, target: str) -> Reference:
        """Return the same work with the weights on another tier."""
        return self._replace(target=target)


class PublishedRow(NamedTuple):
    """A published figure with its prediction."""

    reference: Reference
    predicted: Value
    interval: tuple[float, float] | None = None
    """80 % interval of the prediction, of a time or a rate of a result."""

    @property
    def error(self) -> float | None:
        """Return (predicted - published) / published; None if they are not numbers."""
        if not isinstance(self.predicted, float) or self.reference.metric == "fits":
            return None
        return self.predicted / float(self.reference.published) - 1

    @property
    def holds(self) -> bool | None:
        """Return whether the prediction satisfies the rule; None without a rule, or if it is not judged."""
        reference = self.reference
        if reference.rule == "report" or reference.role != "judged":
            return None
        if reference.rule == "inside":
            low, high = self.interval or (0.0, 0.0)
            return low <= float(reference.published) <= high
        if reference.rule == "equal":
            return self.predicted == reference.value
        return isinstance(self.predicted, float) and RULES[reference.rule](reference, self.predicted)


RULES: dict[str, Callable[[Reference, float], bool]] = {
    "within": lambda ref, value: abs(value / float(ref.published) - 1) <= float(ref.tolerance),
    "factor": lambda ref, value: (
        1 / float(ref.tolerance) <= value / float(ref.published) <= float(ref.tolerance)
    ),
    "at_most": lambda ref, value: value <= float(ref.published),
    "at_least": lambda ref, value: value >= float(ref.published),
    "between": lambda ref, value: ref.bounds[0] <= value <= ref.bounds[1],
}


def load_references() -> tuple[Reference, ...]:
    """Read all published figures, in the order of the files."""
    tables = [path.read_text("utf-8").splitlines() for path in sorted(_FOLDER.glob("*.csv"))]
    rows: Iterable[dict[str, Any]] = (row for table in tables for row in csv.DictReader(table))
    return tuple(Reference(**row) for row in rows)
