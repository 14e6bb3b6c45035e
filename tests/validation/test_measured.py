"""Recorded runs beside predictions: which errors count, the tables and the figures."""

from __future__ import annotations

import re
import runpy
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from simoffload.calibration.compare import ComparedPass, ComparedRun, Errors, errors
from simoffload.calibration.records import RecordedRun
from simoffload.errors import InputError
from simoffload.planning.confidence import calibration_errors, csv_text
from simoffload.validation import __main__ as program
from simoffload.validation.errors_table import error_rows
from simoffload.validation.figures import captions, passes
from simoffload.validation.markdown import BEGIN, END
from simoffload.validation.measured import (
    ERROR_LIMITS,
    MeasuredRun,
    Verdict,
    compare_measured,
    counted,
    verdicts,
)
from simoffload.validation.measured_tables import MEASURED_BEGIN, MEASURED_END, measured_tables
from simoffload.validation.setting_pairs import changed, setting_pairs
from tests.calibration.recorded import ds_config, fsdp, inference, trace, training, write


def measured(
    name: str = "a",
    *,
    part: str = "holdout",
    decode: tuple[float, float, float] | None = (1.0, 1.1, 0.5),
    **changes: object,
) -> MeasuredRun:
    """A run whose decode step has these times: measured, predicted, naive [s]."""
    run = RecordedRun.model_validate(inference(name, **changes))
    passes = (ComparedPass("decode", *decode),) if decode else ()
    return MeasuredRun(part, "box", ComparedRun(run, passes, "" if decode else "no", (), (), None), True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two machines, one in each set."""
    root = tmp_path_factory.mktemp("measured")
    traced = {"decode 1": trace()}
    zero = ds_config(stage3_prefetch_bucket_size=0)
    nvme = ds_config("nvme", offload_param={"buffer_size": 300_000})
    write(root / "fit" / "box-1", inference("tiny one"), inference("plain", traces=traced), training())
    write(
        root / "holdout" / "box-2",
        inference("plain", traces=traced),
        inference("bucket", ds_config=zero, times={"first": 1.0, "prefill": 0.06, "decode": [0.042]}),
        inference("both", ranks=2, traces=traced),
        inference("drives", ds_config=nvme),
        name="runs-1.json",
    )
    (root / "holdout" / "box-2" / "micro.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def runs(folder: Path) -> tuple[MeasuredRun, ...]:
    return compare_measured(folder)


def test_every_file_of_runs_is_found_and_the_first_pass_is_left_out(runs: tuple[MeasuredRun, ...]) -> None:
    found = [(run.part, run.machine, run.compared.run.name) for run in runs]
    assert found == [
        *(("fit", "box-1", name) for name in ("tiny one", "plain", "trained")),
        *(("holdout", "box-2", name) for name in ("plain", "bucket", "both", "drives")),
    ]
    assert all(run.compared.find("first pass") is None for run in runs)


def test_an_empty_folder_is_no_error(tmp_path: Path) -> None:
    assert compare_measured(tmp_path) == ()
    assert captions(()) == []
    assert measured_tables((), ()) == "No recorded runs lie in `simoffload/validation/measured/`.\n"


def test_a_wrong_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "fit" / "box").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        compare_measured(tmp_path)


def test_small_models_do_not_count(runs: tuple[MeasuredRun, ...]) -> None:
    assert [one.run.name for one in counted(runs, part="fit")] == ["plain", "trained"]
    assert len(counted(runs)) == 6


def test_runs_of_fsdp_count_apart_with_a_profile_of_the_other_set(tmp_path: Path, repository: Path) -> None:
    write(tmp_path / "fit" / "box", fsdp("in view"))
    profile = repository / "simoffload/validation/measured/fit/h200-2x-l"
    for path in profile.glob("*.yaml"):
        (tmp_path / "fit" / "box" / path.name).write_text(path.read_text())
    write(tmp_path / "holdout" / "box", fsdp("held out", cpu_offload=True))
    runs = compare_measured(tmp_path)
    assert [(run.part, run.group, run.own_profile) for run in runs] == [
        ("fit", "fsdp", True),
        ("holdout", "fsdp", True),
    ]
    assert counted(runs) == []
    assert verdicts(runs) == ()
    for part, row in zip(("fit", "holdout"), error_rows(runs), strict=True):
        (one,) = counted(runs, part=part, group="fsdp")
        error = one.find("step").error
        assert (row.group, row.part, row.work, row.place, row.runs) == ("fsdp", part, "step", "memory", 1)
        assert (row.mean, row.worst) == (abs(error), error)
    text = measured_tables(runs, compare_measured(tmp_path, own_profile=False))
    assert "### FSDP" in text
    assert "| holdout | box | held out |" in text
    assert "### Training" not in text


def test_errors_by_set_with_bars_for_held_out_runs() -> None:
    rows = [
        measured(part="fit", decode=(1.0, 1.5, 0.1)),
        measured(decode=(1.0, 1.02, 0.4)),
        measured(decode=(1.0, 0.94, 0.6)),
        measured(decode=None),
    ]
    fit, holdout = verdicts(rows)
    assert (fit.part, fit.name, fit.bar, fit.holds) == ("fit", "decode", None, None)
    assert (holdout.ours.runs, holdout.ours.mean, holdout.ours.worst) == pytest.approx((2, 0.04, -0.06))
    assert holdout.naive.mean == pytest.approx(0.5)
    assert holdout.bar == ERROR_LIMITS["decode"]
    assert holdout.holds is True


@pytest.mark.parametrize(
    ("mean", "worst", "holds"),
    [(0.05, 0.12, True), (0.05, -0.12, True), (0.051, 0.1, False), (0.01, -0.13, False)],
)
def test_a_bar_holds_for_the_mean_and_the_worst(mean: float, worst: float, holds: bool) -> None:
    verdict = Verdict(
        "holdout", "decode", Errors(3, mean, worst), Errors(3, 0.5, 0.5), ERROR_LIMITS["decode"]
    )
    assert verdict.holds is holds


def test_errors_by_work_and_place() -> None:
    nvme = ds_config("nvme", offload_param={"buffer_size": 300_000})
    rows = [
        measured(decode=(1.0, 1.02, 0.4)),
        measured(decode=(1.0, 0.94, 0.6), ranks=2),
        measured(decode=(1.0, 1.25, 0.6), ds_config=nvme),
        measured(decode=None),
    ]
    memory, drives = error_rows(rows)
    assert (memory.part, memory.work, memory.place, memory.runs) == ("holdout", "decode", "memory", 2)
    assert (memory.mean, memory.worst) == pytest.approx((0.04, -0.06))
    assert (memory.fewest_gpus, memory.most_gpus) == (1, 2)
    assert (drives.place, drives.mean, drives.most_gpus) == ("nvme", 0.25, 1)


# -- knobs --------------------------------------------------------------------------------------


def test_knobs_that_differ_from_the_default() -> None:
    config = ds_config(
        aio={"block_size": 8 << 20, "queue_depth": 8},
        stage3_prefetch_bucket_size=5e7,
        stage3_param_persistence_threshold=0,
        offload_param={"pin_memory": False},
    )
    run = RecordedRun.model_validate(inference(ds_config=config))
    assert changed(run) == {
        "stage3_param_persistence_threshold": 0,
        "pin_memory": False,
        "block_size": 8 << 20,
    }


def test_pairs_differ_in_one_knob_only() -> None:
    zero = ds_config(stage3_prefetch_bucket_size=0)
    rows = [
        measured("bucket", ds_config=zero, decode=(2.0, 1.8, 1.0)).compared,
        measured("default", decode=(1.0, 1.2, 1.0)).compared,
        measured("other work", ds_config=zero, ranks=2).compared,
        measured("two", ds_config=ds_config(stage3_prefetch_bucket_size=0, overlap_comm=False)).compared,
    ]
    bucket, overlap = setting_pairs(rows)
    assert (bucket.setting, bucket.before, bucket.after) == ("stage3_prefetch_bucket_size", 50_000_000, 0)
    assert (bucket.base.run.name, bucket.other.run.name) == ("default", "bucket")
    assert bucket.ratio("decode") == pytest.approx((2.0, 1.5))
    assert bucket.ratio("prefill") is None
    assert (overlap.setting, overlap.before, overlap.after) == ("overlap_comm", True, False)
    assert (overlap.base.run.name, overlap.other.run.name) == ("bucket", "two")


# -- tables -------------------------------------------------------------------------------------


def test_tables(folder: Path, runs: tuple[MeasuredRun, ...]) -> None:
    text = measured_tables(runs, compare_measured(folder, own_profile=False), [("images/a.svg", "A plot")])
    lines = text.splitlines()
    assert "![A plot](images/a.svg)" in lines
    assert "No profile was measured on fit/box-1, holdout/box-2: a shipped one stands in." in lines
    heads = [line for line in lines if line.startswith("### ")]
    assert heads == [
        "### Errors",
        "### Held-out runs",
        "### Runs that were in view",
        "### Training",
        "### With shipped profiles alone",
        "### Knobs",
        "### Host thread",
    ]
    held = [line for line in lines if line.startswith("| holdout | decode | mean 5%, worst 12% |")]
    assert len(held) == 1
    assert any(
        line.startswith("| holdout | box-2 | opt, hidden_size 256 | cpu | stage3_pre") for line in lines
    )
    assert any(
        line.startswith("| fit | box-1 | opt, hidden_size 256 | cpu | none | 1 | 1 | 16 | ") for line in lines
    )
    assert not any(line.startswith("- trained: ") for line in lines)
    assert sum(line.startswith("- drives: platform") for line in lines) == 1
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_a_knobs_ratios_stand_side_by_side() -> None:
    rows = [
        measured("default", decode=(1.0, 1.2, 1.0)),
        measured("bucket", ds_config=ds_config(stage3_prefetch_bucket_size=0), decode=(2.0, 1.8, 1.0)),
    ]
    rows = [
        row._replace(compared=row.compared._replace(passes=(*row.compared.passes, _prefill(row.compared))))
        for row in rows
    ]
    text = measured_tables(rows, rows)
    assert "| stage3_prefetch_bucket_size | 50,000,000 → 0 | 1 | 2.000 | 1.500 | 2.000 | 1.500 |" in text


def _prefill(compared: ComparedRun) -> ComparedPass:
    return compared.passes[0]._replace(name="prefill")


# -- figures ------------------------------------------------------------------------------------


def test_the_figures_that_a_page_names(runs: tuple[MeasuredRun, ...]) -> None:
    names, texts = zip(*captions(runs), strict=True)
    assert names == ("measured-scatter.svg", "timeline-1-gpu.svg", "timeline-2-gpus.svg")
    assert "plain, 1 GPU(s), holdout set, machine box-2" in texts[1]


@pytest.fixture(scope="module")
def drawing(repository: Path) -> dict[str, Any]:
    """What docs/figures.py defines."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return runpy.run_path(str(repository / "docs" / "figures.py"))


def test_figures_are_svg_and_always_the_same(
    drawing: dict[str, Any], runs: tuple[MeasuredRun, ...], tmp_path: Path
) -> None:
    first = [path.read_text() for path in drawing["draw"](runs, tmp_path)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name for name, _ in captions(runs)]
    assert [path.read_text() for path in drawing["draw"](runs, tmp_path)] == first
    for text in first:
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "plain, 1 GPU(s), holdout set, machine box-2" in first[1]


def test_every_point_is_drawn(drawing: dict[str, Any], runs: tuple[MeasuredRun, ...]) -> None:
    points = list(passes(runs))
    (axes,) = drawing["scatter"](points).axes
    drawn = {dots.get_label(): len(dots.get_offsets()) for dots in axes.collections}
    assert drawn["bytes over bandwidth"] == len(points)
    both = ("held out", "in view")
    assert sum(drawn[f"decode step, {part}"] for part in both) == 4
    assert sum(drawn[f"prefill, {part}"] for part in both) == 4
    assert sum(drawn[f"training, {part}"] for part in both) == len(points) - 8


# -- the page -----------------------------------------------------------------------------------

PAGE = f"top\n{MEASURED_BEGIN}\nstale\n{MEASURED_END}\n{BEGIN}\nkept\n{END}\n"


def test_the_page_gets_tables(
    runs: tuple[MeasuredRun, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "compare_measured", lambda **_: runs)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    description = ["--only", "measured", "--write", str(page), "--errors", str(tmp_path / "errors.csv")]
    monkeypatch.setattr(sys, "argv", ["validation", *description])
    assert program.main() == 0
    assert (tmp_path / "errors.csv").read_text() == csv_text(error_rows(runs))
    text = page.read_text()
    assert "stale" not in text
    assert text.startswith(f"top\n{MEASURED_BEGIN}\n\n### Errors\n")
    assert text.endswith(f"{MEASURED_END}\n{BEGIN}\nkept\n{END}\n")
    assert all(f"![{about}](images/{name})" in text for name, about in captions(runs))


def test_only_published_figures_when_some_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "compare_measured", lambda **_: pytest.fail("was not asked for"))
    monkeypatch.setattr(sys, "argv", ["validation", "ddn-memory-176b"])
    assert program.main() == 0
    assert "| ddn-memory-176b |" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_documentation_has_the_marks(repository: Path) -> None:
    text = (repository / "docs" / "VALIDATION.md").read_text()
    assert text.count(MEASURED_BEGIN) == text.count(MEASURED_END) == 1
    assert text.count(BEGIN) == text.count(END) == 1


@pytest.mark.slow
def test_the_page_has_the_errors_of_the_recorded_runs(repository: Path) -> None:
    """Every recorded run is predicted, and docs/VALIDATION.md and the shipped table tell what came of it."""
    runs = compare_measured()
    assert {(run.part, run.machine) for run in runs} >= {("fit", "h200-4x-b"), ("holdout", "h200-4x-d")}
    assert len(counted(runs, part="holdout")) == 32
    page = (repository / "docs" / "VALIDATION.md").read_text()
    for verdict in verdicts(runs):
        rendered = re.search(rf"^\| {verdict.part} \| {verdict.name} \|.*$", page, re.MULTILINE)
        assert rendered is not None
        assert f" {verdict.ours.mean:.1%} |" in rendered[0]
        assert f" {verdict.ours.worst:+.1%} |" in rendered[0]
    sharded = errors(counted(runs, part="holdout", group="fsdp"), "step")
    assert sharded is not None
    assert sharded.runs == 14
    assert sharded.mean < 0.20, "docs/limits.md: 18 %"
    assert abs(sharded.worst) < 0.36, "docs/limits.md: 35 %"
    assert csv_text(error_rows(runs)) == csv_text(calibration_errors())
