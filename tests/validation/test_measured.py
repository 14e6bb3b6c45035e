"""Recorded runs and predictions: which errors count, the tables and the figures."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from importlib import import_module
from math import exp, hypot, log
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from simoffload.errors import InputError
from simoffload.planning.errors import Comparable, ErrorTable, RealTimes
from simoffload_calibrate.compare import ComparedPass, ComparedRun
from simoffload_calibrate.records import RecordedRun, read_records
from tests.calibration.recorded import ds_config, fsdp, inference, trace, training, write
from validation.accuracy import (
    ALL,
    DECODE,
    Limit,
    accuracy_table,
    class_table,
    coverage,
    held_out,
    limit_table,
    short_table,
    summary_table,
    summed,
)
from validation.measured import (
    MeasuredRun,
    Observed,
    Profile,
    changed,
    compare_measured,
    counted,
    error_rows,
    left_out,
    measured_machines,
    observed_runs,
    same_kind,
    setting_pairs,
)
from validation.measured_tables import measured_tables

MICRO: dict[str, Any] = {"schema": "simoffload/micro/1", "date": "2026-11-20", "skipped": {}}
KINDS = ("decode step", "prefill", "training")
PROFILE = Path(__file__).parents[2] / "validation/measured/fit/h200-2x-l"


def measured(
    name: str = "a",
    *,
    part: str = "holdout",
    decode: tuple[float, float, float] | None = (1.0, 1.1, 0.5),
    interval: tuple[float, float] | None = None,
    machine: str = "box",
    **changes: object,
) -> MeasuredRun:
    """Return a run whose decode step has these measured, predicted and naive times [s]."""
    run = RecordedRun.model_validate(inference(name, **changes))
    passes = (ComparedPass("decode", *decode, interval),) if decode else ()
    compared = ComparedRun(run, passes, "" if decode else "no", (), (), None)
    return MeasuredRun(part, machine, "2026-11-21", compared)


def by_profile(folder: Path) -> dict[Profile, tuple[MeasuredRun, ...]]:
    return {profile: compare_measured(folder, profile) for profile in get_args(Profile)}


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
    record = {
        **MICRO,
        "machine": {"gpu": {"name": "NVIDIA H200"}, "gpus": 2},
        "sections": {"hooks": {}, "dram": {}},
    }
    (root / "holdout" / "box-2" / "micro.json").write_text(json.dumps(record))
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
    with pytest.raises(ValueError, match="predicted with the shipped h200-1gpu-vm"):
        compare_measured(tmp_path)
    assert len(compare_measured(tmp_path, "shipped")) == 1
    assert compare_measured(tmp_path, "same kind") == ()


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
    assert DECODE.errors(runs) is None
    assert ALL.errors(runs).runs == 1
    rows = error_rows(observed_runs(runs))
    assert {(row.program, row.machine) for row in rows} == {("fsdp", "box")}
    for part in ("fit", "holdout"):
        (one,) = counted(runs, part=part, group="fsdp")
        found = [ratio for row in rows if row.held_out is (part == "holdout") for ratio in row.ratios]
        assert sorted(found) == sorted(round(1 / (each.error + 1), 3) for each in one.passes)
    text = measured_tables(by_profile(tmp_path))
    assert "| holdout | box | held out |" in text


def test_an_interval_is_without_the_errors_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine took twice as long as predicted, and this one as long."""
    time = Comparable("zero", "link", "own")
    rows = [
        RealTimes(*time[:3], machine, True, (ratio,) * 5) for machine, ratio in (("box", 1.0), ("b", 2.0))
    ]
    monkeypatch.setattr("validation.measured.calibration_errors", lambda: ErrorTable(tuple(rows)))
    run = measured(decode=(1.0, 1.1, 0.5))
    passes = (run.compared.passes[0]._replace(compared=time),)
    (found,) = left_out([run._replace(compared=run.compared._replace(passes=passes))])
    assert found.compared.passes[0].interval == pytest.approx((1.1 / 1.2, 1.1 * exp(hypot(log(2), log(1.2)))))
    (seen,) = observed_runs([found])
    assert (seen.machine, seen.held_out, seen.ratio) == ("box", True, pytest.approx(1 / 1.1))


def test_classes_have_the_times_inside_of_other_machines() -> None:
    time = Comparable("zero", "link", "own")
    times = [
        Observed(time, machine, True, ratio) for machine, ratio in (("a", 1.0), ("b", 1.5)) for _ in range(6)
    ]
    table = class_table(ErrorTable(tuple(error_rows(times))), times)
    assert table.splitlines()[2] == (
        "| zero | link | own | 12 | 2 | 16.7% | 1.00 to 1.72 | 1.66 | 6 of 12 (50%) |"
    )


# -- accuracy by profile -------------------------------------------------------------------------

WIDE, NARROW = (0.8, 1.25), (1.01, 1.05)


def test_a_cell_has_errors_and_intervals_of_held_out_runs() -> None:
    own = [
        measured("a", decode=(1.0, 1.0, 0.5), interval=WIDE),
        measured("b", decode=(1.0, 1.2, 0.5), interval=NARROW, ranks=2),
        measured("seen", part="fit", decode=(1.0, 9.0, 0.5), interval=NARROW),
    ]
    rows = accuracy_table({"own": own, "shipped": own[:1]}).splitlines()
    assert rows[2:] == [
        "| decode step | 2 · 10.0% · +20.0% · 50% · ±12% | 1 · 0.0% · +0.0% · 100% · ±22% |",
        "| decode step, 1 GPU | 1 · 0.0% · +0.0% · 100% · ±22% | 1 · 0.0% · +0.0% · 100% · ±22% |",
        "| decode step, 2 GPUs | 1 · 20.0% · +20.0% · 0% · ±2% |  |",
        "| all times | 2 · 10.0% · +20.0% · 50% · ±12% | 1 · 0.0% · +0.0% · 100% · ±22% |",
    ]
    rows = short_table({"own": own, "same kind": ()}).splitlines()
    assert rows[2:] == [
        "| measured on the same machine | 10.0 %, worst +20 % | no such runs | no such runs | 50 % |",
        "| measured on another machine of the kind | no such runs | no such runs | no such runs |  |",
    ]


def test_the_summary_has_a_row_for_each_program() -> None:
    """Times of which one took a quarter less, and one twice what was predicted."""
    own = summed([(0.75, True), (2.0, False)])
    rows = summary_table([("A: a token", None, own, "page"), ("B", summed([]), own, "page")]).splitlines()
    cell = "41.7 %, worst −50 %; 1 of 2 inside"
    assert rows[2:] == [
        f"| {name} |  | {cell} | [runs](validation/page.md) |" for name in ("A: a token", "B")
    ]


def test_coverage_is_said_in_words() -> None:
    """A time that was measured outside of its interval was predicted too fast or too slow."""
    inside = measured("a", decode=(1.0, 1.0, 0.5), interval=WIDE)
    fast = measured("b", decode=(2.0, 1.0, 0.5), interval=WIDE)
    slow = measured("c", decode=(0.5, 1.0, 0.5), interval=WIDE, ranks=2)
    text = coverage({"own": [inside, slow], "same kind": [fast], "shipped": [inside, inside, fast, slow]})
    assert (
        "inside were 50 % with the profile that was measured on the same machine (1 of 2), 0 % with that of "
        "another machine of the kind (0 of 1) and 50 % with a shipped one (2 of 4); of those on one GPU "
        "100 %, 0 % and 67 %. With a shipped profile, 1 of the 2 others were predicted too fast."
    ) in text


@pytest.mark.parametrize(
    ("decode", "interval", "met"),
    [
        ((1.0, 1.06, 0.5), WIDE, {"mean error": True, "worst error": True, "inside": False}),
        ((1.0, 1.1, 0.5), NARROW, {"mean error": False, "worst error": True, "inside": False}),
        ((1.0, 0.79, 0.5), NARROW, {"mean error": False, "worst error": False, "half-width": True}),
        ((1.0, 1.0, 0.5), (0.5, 2.0), {"half-width": False, "inside": False}),
    ],
)
def test_limits_are_met_or_not(
    decode: tuple[float, float, float], interval: tuple[float, float], met: dict[str, bool]
) -> None:
    """All of the times inside are too many for an 80 % interval."""
    rows = [
        line.split(" | ")
        for line in limit_table({"own": [measured(decode=decode, interval=interval)]}).splitlines()[2:]
    ]
    found = {cells[2]: cells[-1] == "met |" for cells in rows}
    assert {name: found[name] for name in met} == met
    assert {cells[0] for cells in rows} == {"| measured on the same machine"}


def test_a_limit_without_runs_has_no_value() -> None:
    assert Limit("own", DECODE, "inside", 0.95, 0.65).value([]) is None


def test_how_many_machines_and_days_were_held_out() -> None:
    rows = [
        measured(machine="h200-a", part="fit"),
        measured(machine="h200-a"),
        measured(machine="h100-b"),
        measured(machine="h200-c")._replace(date="2026-11-22"),
    ]
    assert held_out(rows) == (
        "3 held-out runs on 1 machine with H100 and 2 machines with H200, measured on 2 days (2026-11-21, "
        "2026-11-22); other runs of 1 of these machines were used during development"
    )


def test_a_run_is_predicted_with_another_machine_of_its_kind(tmp_path: Path) -> None:
    """It has the GPU and enough of them, and of these as few as possible; then the longest record counts."""

    def machine(
        name: str, gpu: str = "NVIDIA H200", gpus: int = 1, sections: tuple[str, ...] = ("hooks",)
    ) -> None:
        folder = tmp_path / "fit" / name
        folder.mkdir(parents=True)
        (folder / "platform.yaml").touch()
        about = {"gpu": {"name": gpu}, "gpus": gpus}
        record = {**MICRO, "machine": about, "sections": {key: {} for key in sections}}
        (folder / "micro.json").write_text(json.dumps(record))

    def chosen(name: str, run: dict[str, Any], **about: Any) -> str | None:
        path = write(tmp_path / "holdout" / name, run, **about)
        found = same_kind(tmp_path, name, read_records(path))
        return found and Path(found).parent.name

    machine("a-four", gpus=4, sections=("hooks", "copies", "hbm"))
    machine("b-other", gpu="NVIDIA H100")
    machine("c-short")
    machine("d-long", sections=("hooks", "copies"))
    machine("e-long", sections=("hooks", "hbm"))
    machine("f-sharded", sections=("fsdp", "copies", "hbm"))
    assert chosen("new", inference()) == "d-long"
    assert chosen("d-long", inference()) == "e-long"
    assert chosen("hundred", inference(), gpu="NVIDIA H100") == "b-other"
    assert chosen("sharded", fsdp()) == "f-sharded"
    assert chosen("f-sharded", fsdp()) is None
    assert chosen("old", inference(), gpu="NVIDIA A100") is None


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


def test_tables(folder: Path) -> None:
    text = measured_tables(by_profile(folder), measured_machines(folder), [("images/a.svg", "A plot")])
    lines = text.splitlines()
    assert "![A plot](images/a.svg)" in lines
    heads = [line for line in lines if line.startswith("### ")]
    assert heads == [
        "### Machines",
        "### Errors and intervals by profile",
        "### Errors with own profiles",
        "### Held-out runs",
        "### Runs of the fit set",
        "### Training",
        "### FSDP",
        "### Accelerate and tensor parallelism",
        "### Each run by profile",
        "### Settings",
    ]
    assert "| box-1 | NVIDIA H200 | 1 | 2026-11-21 |  | 2 inference, 1 training |  |" in lines
    assert "| box-2 | NVIDIA H200 | 2 | 2026-11-20 | dram, hooks |  | 4 inference |" in lines
    assert sum(line.startswith("| holdout | decode | 3 | ") for line in lines) == 1
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
    text = measured_tables({"own": rows, "shipped": rows})
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
