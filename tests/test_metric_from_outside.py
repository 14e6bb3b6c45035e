"""A metric that is declared in one place outside the package is in every command, page and reference."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.extensions.web.questions import answer
from simoffload.extensions.web.state import State, Variant
from simoffload.planning.advise.evaluate import objective_of
from simoffload.planning.service_levels import parse_service
from simoffload.results import registered

ROOT = Path(__file__).parents[1]
SCENARIO, NAME, LABEL, COLUMN = "ddn/bloom-7b1", "moved_bytes", "moved for a token", "moved"


@pytest.fixture(autouse=True)
def metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's metric, known until the end of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("own_metric", None)
    __import__("own_metric")
    yield
    forget_metrics()


def forget_metrics() -> None:
    """Take what was registered from outside from the kinds of results."""
    for kind, name in list(registered):
        delattr(kind, name)
        del registered[kind, name], kind.declared[name]


def lines(name: str) -> list[str]:
    return Path(name).read_text().splitlines()


def expected(batch: int = 4) -> float:
    """What a token moves [B], of a simulation: all links of its first decode step."""
    result: Any = so.simulate(so.load_scenario(SCENARIO, overrides=[f"workload.batch_size={batch}"]))
    return sum(one.size for one in result.decode[0].links if one.unit == "B") / (batch * result.replicas)


def test_its_value_by_hand() -> None:
    """A step moves the weights once for all sequences, so that four times as many need a quarter each."""
    assert expected(8) / expected(32) == pytest.approx(4.0, rel=0.01)


def test_tab_offers_it() -> None:
    assert NAME in dir(so.simulate(SCENARIO))


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_advice_ranks_by_it() -> None:
    objective = objective_of(so.load_scenario(SCENARIO), NAME)
    few, many = (
        so.simulate(so.load_scenario(SCENARIO, overrides=[f"workload.batch_size={batch}"]))
        for batch in (8, 32)
    )
    gain = objective.gain(objective.ranking(few), objective.ranking(many))
    assert gain == pytest.approx(4.0, rel=0.01)


def test_run_has_it_on_the_terminal_in_json_and_in_every_file(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ran(capsys, "run", SCENARIO, "--set", "workload.batch_size=4", "--explain", "--output-dir", "out")
    assert LABEL in shown
    found = json.loads(Path("out/result.json").read_text())
    assert found["metrics"][NAME] == pytest.approx(expected(), rel=1e-12)
    assert found["formulas"][NAME].startswith("bytes over all links")
    for name in ("report.html", "report.md", "report.json"):
        assert LABEL in Path("out", name).read_text(), name
    assert json.loads(ran(capsys, "run", SCENARIO, "--json"))["metrics"][NAME] > 0


def test_a_comparison_has_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ran(capsys, "compare", SCENARIO, "--on", "dram,raid", "--output-dir", "out")
    assert f" {COLUMN} " in shown
    assert f"{NAME} = bytes over all links" in shown
    assert f">{COLUMN}<" in Path("out/report.html").read_text()
    head, *rows = csv.reader(lines("out/table.csv"))
    moved = {row[0]: float(row[head.index(NAME)]) for row in rows}
    assert {"dram", "raid"} <= moved.keys()
    assert all(value > 0 for value in moved.values())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_sweep_has_its_column_from_every_worker(capsys: pytest.CaptureFixture[str], workers: str) -> None:
    files = ("-o", "s.csv", "-o", "s.html", "--workers", workers)
    ran(capsys, "sweep", SCENARIO, "--axis", "workload.batch_size=4,8", *files)
    rows = list(csv.DictReader(lines("s.csv")))
    values = [float(row[NAME]) for row in rows]
    assert values == pytest.approx([expected(4), expected(8)], rel=1e-12)
    assert f">{COLUMN}<" in Path("s.html").read_text()


def test_reach_fit_and_advise_keep_it_as_a_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, sizes in {"_DRIVES": (4,), "_MEMORY": (1,), "_BATCH": (1, 2)}.items():
        monkeypatch.setattr(f"simoffload.extensions.purchases.search.{name}", sizes)
    limit = f"{NAME}={expected(8) * 8 / 5.5 / 1e9} GB"
    words = ("--by", "workload.batch_size", "--within", "1..16", "--slo", limit)
    found = json.loads(ran(capsys, "reach", SCENARIO, *words, "--json"))
    assert found["least"]["value"] == "6"  # the bytes of a step do not depend on the batch
    assert NAME in ran(capsys, "reach", SCENARIO, *words)
    assert NAME in ran(capsys, "fit", SCENARIO, "--best-batch", "--slo", limit)
    assert f"{NAME} ≤" in ran(capsys, "advise", SCENARIO, "--search", "--slo", limit)
    assert parse_service(limit, so.InferenceResult).metric.label == LABEL


def test_the_page_and_the_reference_have_it() -> None:
    page = answer(State((Variant(SCENARIO),)))
    assert LABEL in [name for name, _, _ in page.metrics]
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert f"| `{NAME}` | {LABEL} | bytes over all links" in pages["_metrics"]("../nomenclature.md")


def test_a_metric_has_a_name_of_its_own() -> None:
    @so.metric()
    def tpot_s(_result: Any) -> float | None:
        """Speed [1/s]: 1 / tpot_s."""
        return 0.0

    @so.metric()
    def batch_size(_result: Any) -> float | None:
        """Batch: batch_size."""
        return 0.0

    @so.metric(column="TPOT")
    def pace_s(_result: Any) -> float | None:
        """Pace [s]: tpot_s."""
        return 0.0

    for one, why in (
        (tpot_s, "has tpot_s already"),
        (batch_size, "already"),
        (pace_s, "the column TPOT"),
    ):
        with pytest.raises(ValueError, match=why):
            so.InferenceResult.register(one)
    again = registered[so.InferenceResult, NAME]
    assert so.InferenceResult.register(again) is again


@pytest.mark.parametrize("text", [None, "Speed", "Speed [m/s]: of everything."])
def test_its_docstring_says_what_it_is(text: str | None) -> None:
    def speed(_result: Any) -> float | None:
        return 0.0

    speed.__doc__ = text
    with pytest.raises(ValueError, match="speed: write its docstring as"):
        so.metric()(speed)
