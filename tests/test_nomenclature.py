"""Every name that a result is told under is explained, with the unit that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simoffload.planning.compare import Comparison
from simoffload.planning.costs import FORMULAS
from simoffload.planning.sweep.definition import RESERVED
from simoffload.report.sections.speed import unit_of
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.scenario import load_scenario
from simoffload.simulation import fit

PAGE = (Path(__file__).parents[1] / "docs" / "nomenclature.md").read_text()
ROWS = [
    [cell.strip() for cell in line.split("|")[1:4]] for line in PAGE.splitlines() if line.startswith("| ")
]
UNITS = {name: unit for names, _, unit in ROWS for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("kind", [InferenceResult, TrainingResult, CheckpointResult])
def test_metrics_are_explained_with_their_unit(kind: type[SimulationResult]) -> None:
    assert {name: UNITS.get(name, "missing") for name in kind.formulas} == {
        name: unit_of(name) for name in kind.formulas
    }


def test_columns_of_a_sweep_are_explained() -> None:
    assert sorted(RESERVED - UNITS.keys()) == []


def test_costs_are_explained() -> None:
    assert sorted(FORMULAS.keys() - UNITS.keys()) == []


def test_columns_of_a_comparison_are_explained() -> None:
    results = {"x": fit(load_scenario("xinnor/llama-1b")), "y": fit(load_scenario("checkpoint/mlperf-8b"))}
    columns, _ = Comparison(results).table()
    said_by_itself = {"model", "platform", "workload"}
    assert sorted(set(columns) - said_by_itself - UNITS.keys()) == []
