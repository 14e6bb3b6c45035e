"""``simoffload compare``."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from simoffload.cli.console import Console
from simoffload.documents import parse_yaml
from simoffload.planning.compare import compare
from simoffload.scenario import read_scenario

pytestmark = pytest.mark.usefixtures("known")

WIDE = ("--set", "workload.output_length=1")


def compared(answer) -> dict[str, dict]:
    return {row["label"]: row for row in json.loads(answer.out)["compared"]}


def test_one_scenario_on_several_targets(program) -> None:
    answer = program("compare", "small.yaml", "--on", "gpu,dram,nfs", *WIDE)
    assert answer.status == 0
    lines = answer.out.splitlines()
    assert [next(line for line in lines if line.startswith(f"  {tier} ")) for tier in ("hbm", "dram", "nfs")]


def test_targets_may_be_given_one_by_one(program) -> None:
    rows = compared(program("compare", "small.yaml", "--on", "dram", "--on", "gpu,nfs", "--json", *WIDE))
    assert list(rows) == ["dram", "hbm", "nfs", "vllm"]


def test_the_settings_of_the_fastest_are_there_to_copy(program) -> None:
    """A ds_config is shown as a command is: the whole of it."""
    text = program("compare", "small.yaml", "--on", "gpu", *WIDE).out.partition("What to type\n")[2]
    assert text.startswith("  with the fastest, hbm\n")
    written = text.partition("ds_config.json\n")[2].partition("\n\n")[0]
    assert json.loads(written)["zero_optimization"]["stage"] == 3


def test_the_baseline_is_added_also_where_the_target_does_not_fit(program) -> None:
    few = 'profiles={"host/dgx-a100-1tib": {"memory_capacity": "17 GiB"}}'
    answer = program("compare", "small.yaml", "--on", "dram", "--json", *WIDE, "--set", few)
    assert answer.status == 3, "of what was asked for"
    rows = compared(answer)
    assert {label: row["result"]["fits"] for label, row in rows.items()} == {
        "dram": False,
        "vllm": True,
    }


def test_ratios_refer_to_the_first_by_default(program) -> None:
    rows = compared(program("compare", "small.yaml", "--on", "dram,gpu", "--json", *WIDE))
    assert rows["dram"]["ratio"] == 1
    assert rows["hbm"]["ratio"] < 1
    assert rows["hbm"]["baseline"] == "dram"


def test_ratios_refer_to_the_baseline(program) -> None:
    rows = compared(
        program("compare", "small.yaml", "--on", "dram,gpu", "--baseline", "gpu", "--json", *WIDE)
    )
    assert rows["hbm"]["ratio"] == 1
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
    assert rows["hbm"]["ratio"] is None
    assert rows["dram"]["ratio"] == 1


def test_none_fits(program) -> None:
    answer = program("compare", "small.yaml", "--set", "model=bloom-mod-1", "--on", "gpu,dram", *WIDE)
    assert answer.status == 3
    assert len(re.findall(r"^  \w+ +does not fit$", answer.out, re.MULTILINE)) == 2


TIGHT = ("--set", "strategy.ds_config.zero_optimization.offload_param.buffer_size=1000", *WIDE)
"""Swap buffers in which no parameter has room: DeepSpeed would stop on storage, and nowhere else."""


def test_what_deepspeed_refuses_is_a_row_among_the_others(program) -> None:
    answer = program("compare", "small.yaml", "--on", "raid,dram", *TIGHT)
    assert answer.status == 0
    rendered = " ".join(answer.out.split())
    assert "raid is refused: strategy.ds_config.zero_optimization.offload_param.buffer_size: " in rendered
    assert "DeepSpeed would stop here" in rendered
    assert re.search(r"^  raid +refused$", answer.out, re.MULTILINE)
    both = program("fit", "small.yaml", "--on", "raid,dram", *TIGHT)
    assert (both.status, "refused: " in both.out, "  dram     fits\n" in both.out) == (0, True, True)


def test_refused_rows_in_all_files(program, tmp_path) -> None:
    answer = program("compare", "small.yaml", "--on", "raid,dram", "--json", "--output-dir", "out", *TIGHT)
    rows = compared(answer)
    assert (rows["raid"]["result"]["fits"], rows["dram"]["result"]["fits"]) == (False, True)
    (why,) = rows["raid"]["result"]["refused"]
    assert "DeepSpeed would stop here" in why
    assert "economics" not in rows["raid"]
    assert (rows["raid"]["ratio"], rows["dram"]["ratio"]) == (None, 1)
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        table = {row["label"]: row for row in csv.DictReader(file)}
    assert [table[label]["refused"] for label in ("raid", "dram")] == [why, ""]
    for name in ("report.md", "report.html"):
        assert "refused: strategy.ds_config" in (tmp_path / "out" / name).read_text()


def test_where_all_are_refused_it_is_an_error(program, tmp_path) -> None:
    answer = program("compare", "small.yaml", "--on", "raid,nfs", "--output-dir", "out", *TIGHT)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("DeepSpeed would stop here") == 1, "for both the same, said once"
    assert not (tmp_path / "out").exists()


def test_a_target_that_reaches_its_limits_is_a_row_too(program) -> None:
    """Reading from drives takes more operations than copying from host memory."""
    answer = program("compare", "small.yaml", "--on", "raid,dram", "--max-events", "4000")
    assert answer.status == 0
    assert 'refused: the pass "first pass" has' in " ".join(answer.out.split())
    answer = program("compare", "small.yaml", "--on", "raid,dram", "--max-events", "10")
    assert (answer.status, answer.out) == (1, "")
    assert "(--max-events) allows 10" in answer.err


def test_refused_and_too_large_is_no_error_and_no_answer(program) -> None:
    large = ("--set", "model=bloom-mod-1")
    assert program("compare", "small.yaml", "--on", "raid,dram", *large, *TIGHT).status == 3


def test_an_unknown_target_ends_it_before_anything_is_simulated(program) -> None:
    answer = program("compare", "small.yaml", "--on", "raid,dram,tape", *TIGHT)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith('error: --on: no tier "tape"')


@pytest.mark.parametrize("baseline", [None, "raid"])
def test_published_ratios_stand_beside_the_shipped_study(program, baseline: str | None) -> None:
    chosen = ("--baseline", baseline) if baseline else ()
    answer = program("compare", "ddn/bloom-7b1", "--on", "raid,nfs", *chosen)
    row = next(line for line in answer.out.splitlines() if line.startswith("  nfs   "))
    assert "published" in answer.out
    assert "10×" in row


def test_changed_work_has_no_published_ratio(program) -> None:
    answer = program("compare", "ddn/bloom-7b1", "--on", "raid,nfs", "--set", "workload.batch_size=8", *WIDE)
    assert "published" not in answer.out


def test_the_same_from_python(program) -> None:
    rows = compared(program("compare", "small.yaml", "--on", "dram,gpu", "--json", *WIDE))
    comparison = compare(read_scenario("small.yaml", overrides=WIDE[1:]), ["dram", "gpu"])
    frame = comparison.to_frame()
    assert list(frame.index) == list(rows) == ["dram", "hbm", "vllm"]
    assert list(frame["ratio"]) == [row["ratio"] for row in rows.values()]
    assert comparison.ranking == ("vllm", "hbm", "dram")


def test_progress_names_the_target() -> None:
    reported: list[str] = []
    scenario = read_scenario("ddn/bloom-7b1", overrides=WIDE[1:])
    compare(scenario, ["dram", "raid"], progress=reported.append)
    labels = ["dram", "raid", "vllm"]
    begun = [f"{number} of 3: {label}" for number, label in enumerate(labels, 1)]
    assert [line for line in reported if re.fullmatch(r"\d of 3: \w+", line)][-3:] == begun
    assert "2 of 3: raid: simulating prefill" in reported


@pytest.mark.parametrize("width", [60, None])
def test_no_number_is_cut_for_lack_of_room(program, tmp_path, monkeypatch, width) -> None:
    """Of several scenarios with long names on several targets; without a terminal there are 100 columns."""
    text = (tmp_path / "small.yaml").read_text()
    names = [f"my own experiment with {kind} on dgx-a100, second try" for kind in ("zero", "drives", "nfs")]
    for name in names:
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: small", f"name: {name}"))
    files, on = [f"{name}.yaml" for name in names], ("--on", "dram,raid,nfs")
    monkeypatch.setattr(Console, "width", 1000)
    wide = program("compare", *files, *on, *WIDE).out
    if width is None:
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
    else:
        monkeypatch.setattr(Console, "width", width)
    narrow = program("compare", *files, *on, *WIDE).out
    assert "…" not in narrow.partition("\nWarning")[2]  # the verdict has two lines, whatever names are like
    assert max(map(len, narrow.splitlines())) <= (width or 100)
    rows = [re.split("  +", line.strip()) for line in wide.splitlines() if line.strip().startswith("my own")]
    cells = [cell for row in rows for cell in row[1:] if cell != "baseline"]
    numbers = [re.findall(r"\d\S*(?: \S+)?$", cell)[0] for cell in cells]
    assert len(numbers) > 9 * 10, "times and costs of nine results"
    for number in numbers:
        assert number in narrow, number


def test_two_names_of_one_target_are_refused(program) -> None:
    answer = program("compare", "small.yaml", "--on", "gpu,dram,hbm", *WIDE)
    assert answer == (2, "", 'error: --on: target "hbm" is given twice, as gpu and hbm\n')


def test_targets_with_the_same_places_are_listed_once(program) -> None:
    answer = program("fit", "training/bloom-7b1", "--on", "dram+raid,dram")
    assert answer.status == 0
    assert answer.err.startswith("dram is the same as dram+raid; it is listed once\n")


def test_other_strategies_are_other_scenarios(program, tmp_path: Path) -> None:
    small = parse_yaml((tmp_path / "small.yaml").read_text(), name="small.yaml").data
    others = {"whole": {"kind": "transformers", "ranks": 2}, "memory": {"weights": "dram"}}
    for name, strategy in others.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**small, "name": name, "strategy": strategy}))
    answer = program("compare", "small.yaml", "whole.yaml", "memory.yaml", "--json")
    assert answer.status == 0, answer.err
    targets = {row["label"]: row["result"]["target"] for row in json.loads(answer.out)["compared"]}
    assert targets == {"small": "raid", "whole": "hbm", "memory": "dram"}


def test_memory_that_would_do_is_said(program) -> None:
    """Drives and a filesystem are compared, and the GPUs hold the model."""
    answer = program("compare", "storage/llama-3.1-405b", "--on", "raid0,lustre", "--json", *WIDE)
    assert list(compared(answer)) == ["raid0", "lustre"]
    assert json.loads(answer.out)["nearer"][0]["label"] == "dram"


def test_several_models_are_rows_of_one_table(program) -> None:
    answer = program("compare", "small.yaml", "--models", "bloom-1b1,bloom-3b", *WIDE)
    assert answer.status == 0, answer.err
    table = answer.out.partition("\n  model ")[2].partition("80 % interval")[0].splitlines()
    names = [line.split()[0] for line in table[1:] if line.strip()]
    assert names == ["bloom-560m", "bloom-1b1", "bloom-3b"]
    rows = compared(program("compare", "small.yaml", "--models", "bloom-3b", "--json", *WIDE))
    assert list(rows) == ["small", "small, bloom-3b"]
    assert rows["small, bloom-3b"]["result"]["model"]["name"] == "bloom-3b"


def test_models_on_targets(program) -> None:
    answer = program("compare", "small.yaml", "--models", "bloom-3b", "--on", "dram,raid", "--json", *WIDE)
    assert {"small dram", "small, bloom-3b raid"} <= compared(answer).keys()


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("bloom-176", '--models: model: unknown model "bloom-176"; did you mean "bloom-176b"?'),
        ("bloom-3b,bloom-3b", "simoffload compare: the model bloom-3b is given twice"),
    ],
)
def test_models_that_are_wrong(models: str, message: str, program) -> None:
    answer = program("compare", "small.yaml", "--models", models)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.err
