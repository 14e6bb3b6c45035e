"""Recorded runs and predictions: which errors count, the tables and the figures."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from simoffload.calibration.compare import ComparedPass, ComparedRun, Errors
from simoffload.calibration.records import RecordedRun
from simoffload.errors import InputError
from tests.calibration.recorded import ds_config, fsdp, inference, trace, training, write
from validation.measured import (
    ERROR_LIMITS,
    MeasuredRun,
    Verdict,
    changed,
    compare_measured,
    counted,
    error_rows,
    setting_pairs,
    verdicts,
)
from validation.measured_tables import measured_tables

KINDS = ("decode step", "prefill", "training")
PROFILE = Path(__file__).parents[2] / "validation/measured/fit/h200-2x-l"


def measured(
    name: str = "a",
    *,
    part: str = "holdout",
    decode: tuple[float, float, float] | None = (1.0, 1.1, 0.5),
    **changes: object,
) -> MeasuredRun:
    """Return a run whose decode step has these measured, predicted and naive times [s]."""
    run = RecordedRun.model_validate(inference(name, **changes))
    passes = (ComparedPass("decode", *decode),) if decode else ()
    return MeasuredRun(part, "box", ComparedRun(run, passes, "" if decode else "no", (), (), None))


def copy_profile(folder: Path) -> None:
    """Write the profile of a measured machine without a drive."""
    for path in PROFILE.glob("*.yaml"):
        shutil.copy(path, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two machines, one in each set."""
    root = tmp_path_factory.mktemp("measured")
    traced = {"decode 1": trace()}
    zero = ds_config(stage3_prefetch_bucket_size=0)
    nvme = ds_config("nvme", offload_param={"buffer_size": 300_000})
    write(root / "fit" / "box-1", inference("small one"), inference("plain", traces=traced), training())
    write(
        root / "holdout" / "box-2",
        inference("plain", traces=traced),
        inference("bucket", ds_config=zero, times={"first": 1.0, "prefill": 0.06, "decode": [0.042]}),
        inference("both", ranks=2, traces=traced),
        inference("drives", ds_config=nvme),
        name="runs-1.json",
    )
    (root / "holdout" / "box-2" / "micro.json").write_text("{}")
    for box in (root / "fit" / "box-1", root / "holdout" / "box-2"):
        copy_profile(box)
    return root


@pytest.fixture(scope="module")
def runs(folder: Path) -> tuple[MeasuredRun, ...]:
    return compare_measured(folder)


def test_every_file_of_runs_is_found_and_the_first_pass_is_left_out(runs: tuple[MeasuredRun, ...]) -> None:
    found = [(run.part, run.machine, run.compared.run.name) for run in runs]
    assert found == [
        *(("fit", "box-1", name) for name in ("small one", "plain", "trained")),
        *(("holdout", "box-2", name) for name in ("plain", "bucket", "both", "drives")),
    ]
    assert all(run.compared.find("first pass") is None for run in runs)


def test_a_wrong_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "fit" / "box").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        compare_measured(tmp_path)


def test_a_machine_without_its_profile_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "fit" / "box", inference("plain"))
    with pytest.raises(ValueError, match="predicted with the shipped dgx-h200"):
        compare_measured(tmp_path)
    assert len(compare_measured(tmp_path, own_profile=False)) == 1


def test_runs_are_counted_by_set(runs: tuple[MeasuredRun, ...]) -> None:
    assert [one.run.name for one in counted(runs, part="fit")] == ["small one", "plain", "trained"]
    assert len(counted(runs)) == 7


def test_runs_of_fsdp_count_apart_with_a_profile_of_the_other_set(tmp_path: Path) -> None:
    write(tmp_path / "fit" / "box", fsdp("in view"))
    copy_profile(tmp_path / "fit" / "box")
    write(tmp_path / "holdout" / "box", fsdp("held out", cpu_offload=True))
    runs = compare_measured(tmp_path)
    assert [(run.part, run.group) for run in runs] == [("fit", "fsdp"), ("holdout", "fsdp")]
    assert counted(runs) == []
    assert list(verdicts(runs)) == []
    for part, row in zip(("fit", "holdout"), error_rows(runs), strict=True):
        (one,) = counted(runs, part=part, group="fsdp")
        error = one.find("step").error
        assert (row.group, row.part, row.work, row.place, row.runs) == ("fsdp", part, "step", "memory", 1)
        assert (row.mean, row.worst) == (round(abs(error), 4), round(error, 4))
    text = measured_tables(runs, compare_measured(tmp_path, own_profile=False))
    assert "| holdout | box | held out |" in text


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


# -- settings --------------------------------------------------------------------------------------


def test_settings_that_differ_from_the_default() -> None:
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


def test_pairs_differ_in_one_setting_only() -> None:
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
    heads = [line for line in lines if line.startswith("### ")]
    assert heads == [
        "### Errors",
        "### Held-out runs",
        "### Runs of the fit set",
        "### Training",
        "### FSDP",
        "### With shipped profiles alone",
        "### Settings",
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


def test_ratios_of_a_setting_are_in_one_row() -> None:
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


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return import_module("validation.figures")


def test_figures_are_svg_and_always_the_same(figures: ModuleType, runs: tuple[MeasuredRun, ...]) -> None:
    drawn = figures.drawings(runs)
    names = [one.name for one in drawn]
    assert names == ["measured-scatter.svg", "timeline-1-gpu.svg", "timeline-2-gpus.svg"]
    assert "plain, 1 GPU, holdout set, machine box-2" in drawn[1].about
    texts = [one.svg() for one in drawn]
    assert [one.svg() for one in figures.drawings(runs)] == texts
    assert all(ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg" for text in texts)
    assert "plain, 1 GPU, holdout set, machine box-2" in texts[1]


def test_every_point_is_drawn(figures: ModuleType, runs: tuple[MeasuredRun, ...]) -> None:
    points = figures.points(runs)
    (axes,) = figures.scatter(points).axes
    drawn = {dots.get_label(): len(dots.get_offsets()) for dots in axes.collections}
    assert drawn["bytes over bandwidth"] == len(points)
    both = ("held out", "fit set")
    counts = {pass_: sum(drawn[f"{pass_}, {part}"] for part in both) for pass_ in KINDS}
    assert counts == {"decode step": 5, "prefill": 5, "training": len(points) - 10}
