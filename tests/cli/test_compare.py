"""``simoffload compare``."""

from __future__ import annotations

import json

import pytest

from simoffload.planning import compare
from simoffload.scenario import load_scenario

WIDE = ("--set", "workload.output_length=1")


def compared(answer) -> dict[str, dict]:
    return {row["label"]: row for row in json.loads(answer.out)["compared"]}


def test_one_scenario_on_several_targets(program) -> None:
    answer = program("compare", "small.yaml", "--on", "gpu,dram,nfs", *WIDE)
    assert answer.status == 0
    lines = answer.out.splitlines()
    assert [next(line for line in lines if line.startswith(tier)) for tier in ("hbm", "dram", "nfs")]


def test_ratios_refer_to_the_first_by_default(program) -> None:
    rows = compared(program("compare", "small.yaml", "--on", "dram,gpu", "--json", *WIDE))
    assert rows["dram"]["ratio"] == 1
    assert rows["gpu"]["ratio"] < 1
    assert rows["gpu"]["baseline"] == "dram"


def test_ratios_refer_to_the_baseline(program) -> None:
    rows = compared(
        program("compare", "small.yaml", "--on", "dram,gpu", "--baseline", "gpu", "--json", *WIDE)
    )
    assert rows["gpu"]["ratio"] == 1
    assert rows["dram"]["ratio"] > 1


def test_targets_on_another_platform(program) -> None:
    rows = compared(program("compare", "small.yaml", "--on", "dram,dgx-h100:dram", "--json", *WIDE))
    assert rows["dgx-h100:dram"]["result"]["platform"] == "dgx-h100"
    assert rows["dgx-h100:dram"]["ratio"] < 1


def test_several_scenarios(program, tmp_path) -> None:
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "large.yaml").write_text(text.replace("small", "large").replace("560m", "3b"))
    answer = program("compare", "small.yaml", "large.yaml", "--json", *WIDE)
    rows = compared(answer)
    assert list(rows) == ["small", "large"]
    assert json.loads(answer.out)["ranking"] == ["small", "large"]
    assert [row["baseline"] for row in rows.values()] == ["small", "large"]


def test_some_do_not_fit(program) -> None:
    answer = program(
        "compare", "small.yaml", "--set", "model=bloom-176b", "--on", "gpu,dram", "--json", *WIDE
    )
    rows = compared(answer)
    assert answer.status == 0
    assert rows["gpu"]["ratio"] is None
    assert rows["dram"]["ratio"] == 1


def test_none_fits(program) -> None:
    answer = program("compare", "small.yaml", "--set", "model=bloom-mod-1", "--on", "gpu,dram", *WIDE)
    assert answer.status == 3
    assert answer.out.count("does not fit") == 2


@pytest.mark.parametrize("baseline", [None, "raid"])
def test_published_ratios_stand_beside_the_shipped_study(program, baseline: str | None) -> None:
    chosen = ("--baseline", baseline) if baseline else ()
    answer = program("compare", "ddn/bloom-7b1", "--on", "raid,nfs", *chosen)
    row = next(line for line in answer.out.splitlines() if line.startswith("nfs"))
    assert "published" in answer.out
    assert "10×" in row


def test_changed_work_has_no_published_ratio(program) -> None:
    answer = program("compare", "ddn/bloom-7b1", "--on", "raid,nfs", "--set", "workload.batch_size=8", *WIDE)
    assert "published" not in answer.out


def test_the_same_from_python(program) -> None:
    rows = compared(program("compare", "small.yaml", "--on", "dram,gpu", "--json", *WIDE))
    comparison = compare(load_scenario("small.yaml", overrides=WIDE[1:]), ["dram", "gpu"])
    frame = comparison.to_frame()
    assert list(frame.index) == ["dram", "gpu"]
    assert list(frame["ratio"]) == [row["ratio"] for row in rows.values()]
    assert comparison.ranking == ("gpu", "dram")


def test_progress_names_the_target() -> None:
    said: list[str] = []
    scenario = load_scenario("ddn/bloom-7b1", overrides=WIDE[1:])
    compare(scenario, ["dram", "raid"], progress=said.append)
    assert [line.partition(":")[0] for line in said] == ["dram", "dram", "raid", "raid"]
