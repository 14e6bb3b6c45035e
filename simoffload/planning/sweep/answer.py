"""The answer of a sweep in memory, as Python asks for it and as reports show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from simoffload.documents import read_document
from simoffload.planning.sweep.definition import define_sweep, find_points
from simoffload.planning.sweep.run import run_sweep
from simoffload.scenario import LoadedScenario, locate

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


@dataclass(frozen=True)
class SweepResult:
    """A SweepResult has a row for each point of a sweep."""

    name: str
    """Name of the scenario that is varied."""
    axes: tuple[str, ...]
    """Names of the columns with the values that were varied, such as "workload.batch_size"."""
    rows: tuple[dict[str, Any], ...]
    """Values by column: index, axes, metrics [s], [1/s] with P10 and P90, ``fits``, ``error`` and so on."""
    scenario: Mapping[str, Any] = field(default_factory=dict)
    """The scenario that is varied, as in its file."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the result that ``run_sweep`` wrote as JSON. Raises OSError if there is no such file."""
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(found["rows"])
        columns = list(rows[0])
        axes = tuple(columns[1 : 1 + len(found["axes"])])
        return cls(str(found["scenario"].get("name", "")), axes, rows, found["scenario"])

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each point, with a type for each column and units in the names of metrics."""
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def plot(self) -> Figure:
        """Return a chart: a heat map of two axes, or else the best value of each value of the first axis."""
        from simoffload.report.plotting import of_plotly
        from simoffload.report.sweep_charts import overview

        return of_plotly(overview(self))


def sweep(
    scenario: LoadedScenario | str | Path,
    *axes: str,
    constraints: Sequence[str] = (),
    workers: int | None = None,
) -> SweepResult:
    """Simulate a scenario at all combinations of the values of axes.

    An axis is a text such as "workload.batch_size=1,4,16"; those of the scenario's section ``sweep`` are
    varied, too. ``constraints`` are conditions for points, and ``workers`` is the number of processes, by
    default one for each core. Raises InputError for axes or constraints that are invalid.
    """
    source = scenario.document if isinstance(scenario, LoadedScenario) else read_document(locate(scenario))
    defined = define_sweep(source, axes=axes, constraints=constraints)
    with TemporaryDirectory() as folder:
        table = Path(folder, "sweep.json")
        run_sweep(defined, find_points(defined), [table], workers=workers)
        return SweepResult.read(table)
