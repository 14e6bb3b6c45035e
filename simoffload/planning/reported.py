"""Answers that show themselves in Python as their report begins.

Reports know what planning finds; planning knows reports by their names alone.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar

from simoffload.extending import at

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class ReportedAnswer(ABC):
    """A ReportedAnswer is shown as its sentence, and in a notebook with its chart."""

    report: ClassVar[str]
    """The function that is called with the answer and returns its report, as "module:function"."""

    def _report(self) -> Any:
        return at(self.report)(self)

    def _shown(self, what: str) -> Any:
        return at(f"simoffload.report.notebook:{what}")(self._report())

    def __repr__(self) -> str:
        return str(self._shown("opening"))

    def _repr_html_(self) -> str:
        return str(self._shown("frame"))

    def plot(self) -> Figure | None:
        """Return the first chart of its report; None of an answer that has none."""
        figure: Figure | None = self._shown("first_chart")
        return figure

    def to_frame(self) -> pd.DataFrame:
        """Return the first table of its report, numbers in the units that its columns name."""
        table: pd.DataFrame = self._shown("first_table")
        return table
