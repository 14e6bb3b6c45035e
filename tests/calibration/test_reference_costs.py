"""The table of the reference host's costs, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

from simoffload_calibrate.host_costs import COSTS
from simoffload_calibrate.reference import REFERENCE_PROBE, reference_costs

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "host-thread.md"


def test_the_table_has_every_cost_and_only_machines_of_the_fit_set() -> None:
    table = reference_costs()
    assert set(COSTS) < set(table)
    holdout = {path.name for path in (PAGE.parents[2] / "validation/measured/holdout").iterdir()}
    fit = {path.name for path in (PAGE.parents[2] / "validation/measured/fit").iterdir()}
    for row in table.values():
        names = set(row.source.partition(" on ")[2].split(", ")) if row.machines else set()
        assert len(names) == row.machines
        assert not names & (holdout - fit)
        assert 0 < row.spread <= 0.5


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text("utf-8")
    for cost, row in reference_costs().items():
        if cost != REFERENCE_PROBE:
            (line,) = [line for line in page.splitlines() if line.startswith(f"| `{cost}`")]
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            unit = 1.0 if cost == "graph" else 1e6
            assert abs(float(cells[1]) / (row.value * unit) - 1) < 2e-3, line
            assert cells[2] == f"{row.spread:.0%}".replace("%", " %"), line
