"""Measured values beside predicted ones: where they come from, how they compare, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import simoffload as so
from simoffload.cli import main

SCENARIO = "accelerate/opt-30b"
VALUES: dict[str, dict[str, Any]] = {
    "dram": {"tokens_per_s": 0.4, "ttft": "9 s", "source": "own run"},
    "nvme": {"tpot_s": 1e-3},
}


@pytest.fixture(scope="module")
def comparison() -> so.Comparison:
    return so.compare(SCENARIO, ["dram", "nvme"], measured=VALUES)


def test_values_stand_beside_predictions(comparison: so.Comparison) -> None:
    rate, first, step = comparison.measured
    assert (rate.label, rate.metric.name, rate.value, rate.source) == ("dram", "tokens_per_s", 0.4, "own run")
    assert (first.metric.name, first.value) == ("ttft_s", 9.0)
    predicted = comparison.results["dram"].metrics()["tokens_per_s"]
    assert predicted is not None
    assert rate.ratio == predicted / 0.4
    low, high = comparison.results["dram"].intervals()["tokens_per_s"]
    assert rate.inside is (low <= 0.4 <= high)
    assert step.inside is False  # no real token takes a millisecond there
    assert comparison.to_frame().loc["dram", "ttft_s_measured"] == 9.0
    assert [one["label"] for one in comparison.to_dict()["measured"]] == ["dram", "dram", "nvme"]


def test_what_python_shows_ends_with_how_they_agree(comparison: so.Comparison) -> None:
    assert " of 3 measured values are within their 80 % intervals; predicted over " in repr(comparison)
    assert "measured values are within" in (comparison._repr_html_() or "")


def test_a_data_frame_says_the_same(comparison: so.Comparison) -> None:
    frame = pd.DataFrame.from_dict(VALUES, orient="index")
    for table in (frame, frame.reset_index(names="label")):
        again = so.compare(SCENARIO, ["dram", "nvme"], measured=table)
        assert [one.to_dict() for one in again.measured] == [one.to_dict() for one in comparison.measured]


@pytest.mark.parametrize(
    ("metric", "cell", "value"),
    [
        ("tokens_per_s", "17 tokens/s", 17.0),
        ("tokens_per_s", "17tok/s", 17.0),
        ("tokens_per_s", " 1.7e1 t/s ", 17.0),
        ("tpot_s", "17 ms", 0.017),
    ],
)
def test_a_cell_may_have_the_unit_of_its_column(metric: str, cell: str, value: float) -> None:
    (found,) = so.compare(SCENARIO, ["dram"], measured={"dram": {metric: cell}}).measured
    assert found.value == value


def test_one_scenario_has_its_own_name() -> None:
    found = so.compare("qwen3-8b", gpu="rtx-4090", measured={"qwen3-8b": {"tokens_per_s": 50}})
    assert found.measured[0].predicted == found.results["qwen3-8b"].metrics()["tokens_per_s"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("label,tokens_per_s\nraid,1\n", '2: label: "raid" is not one of what is compared; it is dram, nvme'),
        (
            "label,tokens_per_t\ndram,1\n",
            'tokens_per_t: is no metric of inference; did you mean "tokens_per_s"?',
        ),
        (
            "label,tokens_per_s\ndram,fast\n",
            '2: tokens_per_s: "fast" is no number [1/s]; write 17 or "17 tokens/s"',
        ),
        ("label,tokens_per_s\ndram,17 ms\n", '2: tokens_per_s: "17 ms" is no number [1/s]'),
        ("label,tokens_per_s\ndram,17 samples/s\n", '2: tokens_per_s: "17 samples/s" is no number [1/s]'),
        ("label,ttft\ndram,-2\n", '2: ttft_s: must be above zero and finite, not "-2"'),
        ("label,ttft\ndram,2 m\n", '2: ttft_s: "2 m" is no number [s]'),
        ("label,ttft\ndram,nan\n", '2: ttft_s: must be above zero and finite, not "nan"'),
        ("label,ttft\ndram,1\ndram,2\n", "dram: ttft_s: is given twice"),
        ("label,ttft\ndram,1,2\n", "2: has more cells than the first line, which has 2"),
        ("name,ttft\ndram,1\n", "1: 'label' is missing; write a first line such as"),
        ("label,source\ndram,me\n", "1: there is no column of a metric"),
        ("label,ttft\n", "has no rows"),
        ("", "1: 'label' is missing"),
    ],
)
def test_a_wrong_table_is_refused_before_anything_is_simulated(
    table: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simoffload.planning.compare.simulate", None)
    Path("table.csv").write_text(table)
    assert main(["compare", SCENARIO, "--on", "dram,nvme", "--measured", "table.csv"]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", SCENARIO, "--on", "dram,nvme", "--measured", "none.csv"]) == 2
    assert "none.csv: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (3, "measured: must be a text, a path, a mapping of texts to a mapping or a DataFrame, got 3"),
        ({"dram": 3}, "measured: must be a text, a path, a mapping of texts to a mapping or a DataFrame"),
    ],
)
def test_what_is_no_table_is_refused(table: Any, message: str) -> None:
    with pytest.raises(so.InputError, match=message):
        so.compare(SCENARIO, ["dram"], measured=table)


def test_the_command_prints_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("label,tokens_per_s,source\ndram,0.4,own run\nnvme,,\n")
    command = ["compare", SCENARIO, "--on", "dram,nvme", "--measured", "table.csv"]
    assert main([*command, "--output-dir", "out"]) == 0
    printed = capsys.readouterr().out
    assert "Measured and predicted" in printed
    assert "dram  tokens/s  0.4 tokens/s" in printed
    (value,) = json.loads(Path("out/result.json").read_text())["measured"]
    assert (value["label"], value["measured"], value["source"]) == ("dram", 0.4, "own run")
    page = Path("out/report.html").read_text()
    assert "black diamonds: measured" in page
    assert "measured: 0.4 tokens/s" in page  # over its diamond


def test_a_machine_for_a_model_takes_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "qwen3-8b", "--budget", "5000", "--measured", "table.csv"]) == 2
    assert "leave out --measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,tokens_per_s\ndram,\n", "has no value"),
        ("label,tokens_per_s,tokens_per_s\ndram,15,16\n", "tokens_per_s: is the name of two columns"),
    ],
)
def test_values_that_nobody_would_see_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(so.InputError, match=message):
        so.compare("micron/opt-30b", ["dram", "gen5"], measured=tmp_path / "table.csv")


def test_a_cell_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("label,tokens_per_s\n" + "x" * 200_000)
    with pytest.raises(so.InputError, match=r"long\.csv:\d+: is no CSV: field larger than field limit"):
        so.compare("micron/opt-30b", ["dram", "gen5"], measured=tmp_path / "long.csv")
