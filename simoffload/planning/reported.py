"""Answers that show themselves in Python as their report begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from simoffload.report.document import ReportDocument

Report: TypeAlias = "ReportDocument"


class ReportedAnswer(ABC):
    """A ReportedAnswer is shown as its sentence, and in a notebook with its chart."""

    @abstractmethod
    def _report(self) -> Report:
        """Return the report of the answer."""

    def __repr__(self) -> str:
        from simoffload.report.notebook import opening

        return opening(self._report())

    def _repr_html_(self) -> str:
        from simoffload.report.notebook import frame

        return frame(self._report())

    def plot(self) -> Figure | None:
        """Return the first chart of its report; None of an answer that has none."""
        from simoffload.report.notebook import first_chart

        return first_chart(self._report())

    def to_frame(self) -> pd.DataFrame:
        """Return the first table of its report, numbers in the units that its columns name."""
        from simoffload.report.notebook import first_table

        return first_table(self._report())
