"""What functions take in Python as commands do: a model and a machine, mappings, loaded hardware."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simoffload as so

SCENARIO: dict[str, Any] = {
    "name": "mine",
    "model": "qwen3-8b",
    "platform": "rtx-4090-desktop",
    "workload": {"kind": "inference", "batch_size": 2, "prompt_length": 100, "output_length": 20},
    "strategy": {"kind": "vllm"},
}


def test_a_model_and_a_gpu_are_the_scenario_of_the_question() -> None:
    asked = so.question("qwen3-8b", gpu="rtx-4090")
    assert so.simulate("qwen3-8b", gpu="rtx-4090").metrics() == so.simulate(asked).metrics()
    assert so.fit("qwen3-8b", gpu="rtx-4090").capacity == so.fit(asked).capacity
    assert so.largest("qwen3-8b", gpu="rtx-4090") == so.largest(asked)


def test_a_model_alone_says_which_machine_it_needs() -> None:
    with pytest.raises(so.InputError, match='a model needs a machine: gpu="ID", such as gpu="rtx-4090"'):
        so.simulate("qwen3-8b")


def test_a_mapping_is_a_scenario() -> None:
    mine = so.load_scenario(SCENARIO)
    assert (mine.name, mine.document.data["workload"]["batch_size"]) == ("mine", 2)
    larger = so.load_scenario(SCENARIO, overrides={"workload.batch_size": np.int64(4)})
    assert larger.document.data["workload"]["batch_size"] == 4
    assert so.simulate(mine, overrides={"workload.batch_size": 4}).metrics() == so.simulate(larger).metrics()
    both = so.compare_scenarios({"two": SCENARIO, "four": larger})
    assert both.results["four"].tokens_per_s > both.results["two"].tokens_per_s  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "scenario: name: required key is missing"),
        ({**SCENARIO, "name": {1, 2}}, "scenario: is no plain data: set cannot be written in a file"),
        ({**SCENARIO, "workload": {"kind": "inference", "batchsize": 2}}, 'did you mean "batch_size"?'),
    ],
)
def test_a_wrong_mapping_is_refused(source: dict[str, Any], message: str) -> None:
    with pytest.raises(so.InputError) as error:
        so.load_scenario(source)
    assert message in str(error.value)


def test_a_wrong_override_names_its_key() -> None:
    with pytest.raises(so.InputError, match=r"workload\.batchsize: unknown key"):
        so.simulate(SCENARIO, overrides={"workload.batchsize": 2})
    with pytest.raises(so.InputError, match="overrides: is no plain data"):
        so.simulate(SCENARIO, overrides={"workload.batch_size": object()})


def test_loaded_hardware_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desktop = so.load_platform("rtx-4090-desktop")
    by_id = so.question("qwen3-8b", "rtx-4090-desktop")
    assert so.question("qwen3-8b", desktop).document.data == by_id.document.data
    drive = next(one for one in so.list_profiles("drive") if one.id == "samsung-980-pro-2tb")
    there = so.question("qwen3-32b", gpu="rtx-4090", drive=drive, program="deepspeed", on="nvme")
    assert there.places[0] == "nvme"
    monkeypatch.chdir(tmp_path)
    own = Path("machine.yaml")
    shipped = Path(str(so.__file__)).parents[1] / "hardware_profiles/platform/rtx-4090-desktop.yaml"
    own.write_text(shipped.read_text().replace("id: rtx-4090-desktop", "id: mine"))
    assert so.question("qwen3-8b", so.load_platform(own)).machine.platform == "mine"


def test_axes_are_mappings_of_values_and_ranges() -> None:
    texts = so.sweep(SCENARIO, "workload.batch_size=1,2", "workload.output_length=8,16", workers=1)
    values = {"workload.batch_size": [1, 2], "workload.output_length": range(8, 17, 8)}
    assert so.sweep(SCENARIO, values, workers=1).rows == texts.rows
    doubled = {"workload.batch_size": {"min": 1, "max": 4, "n": 3, "scale": "log"}}
    found = so.sweep("qwen3-8b", doubled, gpu="rtx-4090", workers=1)
    assert [row["workload.batch_size"] for row in found.rows] == [1, 2, 4]
    assert "batch_size=4 is best" in repr(found)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"workload.batchsize": [1]}, 'unknown key; did you mean "batch_size"?'),
        ({"workload.batch_size": []}, "must be a list of at least 1"),
        ({"workload.batch_size": {"min": 1}}, "range.max: required key is missing"),
        ({"workload.batch_size": range(10**9)}, "more than the 1,000,000 values that a sweep may have"),
        ({"workload.batch_size": range(10**30)}, "more than the 1,000,000 values that a sweep may have"),
        ({"workload.batch_size": {"choices": range(10**9)}}, "a range of more than 1,000,000 values is too"),
        (
            {"workload.batch_size": range(1, 2000), "workload.output_length": range(2, 2000)},
            "1,999 x 1,998 = 3,994,002 points are more than 1,000,000; take fewer values",
        ),
    ],
)
def test_a_wrong_axis_is_refused(axes: dict[str, Any], message: str) -> None:
    with pytest.raises(so.InputError) as error:
        so.sweep(SCENARIO, axes, workers=1)
    assert message in str(error.value)


def test_an_axis_that_is_given_twice_is_refused() -> None:
    axis = {"workload.batch_size": [1]}
    for axes in ((axis, axis), (axis, "workload.batch_size=2")):
        with pytest.raises(so.InputError, match=r"axes: workload\.batch_size: is given twice"):
            so.sweep(SCENARIO, *axes, workers=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers: must be a whole number above 0, got 0"),
        ({"workers": "2"}, "workers: must be a whole number above 0, got '2'"),
        ({"resume": True}, "resume: needs output, the file whose journal it continues"),
        ({"resume": True, "overwrite": True, "output": "a.csv"}, "resume: keeps what overwrite=True would"),
        ({"constraints": [1]}, "constraints: must be a text or a list of texts, got [1]"),
        ({"constraints": "batchsize < 2"}, 'constraints: "batchsize < 2": there is no "batchsize"'),
        ({"axes": {"workload.batch_size": [1]}}, "axes: are given without this name, after the first"),
        ({"worker": 2}, 'worker: is no argument; did you mean "workers"?'),
    ],
)
def test_a_wrong_option_of_a_sweep_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(so.InputError, match=f"^{re.escape(message)}"):
        so.sweep(SCENARIO, {"workload.batch_size": [1, 2]}, **{"workers": 1} | options)


def test_the_objective_of_a_sweep_decides_which_point_is_best() -> None:
    axis = {"workload.batch_size": [1, 4]}
    assert "batch_size=4 is best" in repr(so.sweep(SCENARIO, axis, workers=1))
    assert "batch_size=1 is best" in repr(so.sweep(SCENARIO, axis, workers=1, objective="ttft"))
    with pytest.raises(so.InputError, match=r"^objective: fast: is not one of "):
        so.sweep(SCENARIO, axis, workers=1, objective="fast")


def test_one_constraint_is_a_text() -> None:
    found = so.sweep(SCENARIO, {"workload.batch_size": [1, 2]}, constraints="batch_size < 2", workers=1)
    assert [row["workload.batch_size"] for row in found.rows] == [1]


def test_a_sweep_tells_how_far_it_is_writes_its_rows_and_continues(tmp_path: Path) -> None:
    lines: list[str] = []
    output, axis = tmp_path / "rows.csv", {"workload.batch_size": [1, 2]}
    first = so.sweep(SCENARIO, axis, workers=1, output=output, progress=lines.append)
    assert lines == ["0 of 2 points", "1 of 2 points", "2 of 2 points"]
    assert len(output.read_text().splitlines()) == 3
    with pytest.raises(so.InputError, match="continue it with resume=True, or start again with overwrite"):
        so.sweep(SCENARIO, axis, workers=1, output=output)
    lines.clear()
    assert so.sweep(SCENARIO, axis, workers=1, output=output, resume=True, progress=lines.append) == first
    assert lines == ["2 of 2 points"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 8}, "batch_size: is no argument; a key of a scenario goes into overrides"),
        ({"drives": "x"}, 'drives: is no argument; did you mean "drive"'),
        ({"gpus": 2.5}, "gpus: must be a whole number from 0, got 2.5"),
        ({"gpus": True}, "gpus: must be a whole number from 0, got True"),
        ({"gpus": -1}, "gpus: must be a whole number from 0, got -1"),
        ({"gpus": 10**9}, "gpus: no shipped platform has 1000000000 GPUs rtx-4090; the largest has 2"),
        ({"memory": "0GB"}, 'memory: must be above 0, got "0GB"; write e.g. 64GB'),
        ({"context": 5}, "context: 5 tokens have no room for 2,048 in and 512 out; give"),
        ({"context": 0}, "context: must be a whole number above 0, got 0"),
        ({"progress": True}, "progress: must be a function such as print, got True"),
        ({"memory": 64}, "memory: must be a text, got 64"),
        ({"program": 3}, "program: must be a text, got 3"),
        ({"on": 3}, "on: must be a text, got 3"),
    ],
)
def test_what_is_no_argument_is_refused(options: dict[str, Any], message: str) -> None:
    """A batch that nobody read was the answer for one sequence."""
    with pytest.raises(so.InputError, match=re.escape(message)):
        so.simulate("qwen3-8b", gpu="rtx-4090", **options)


def test_none_is_what_is_not_given_and_a_text_is_one_item() -> None:
    none: dict[str, Any] = dict.fromkeys(("gpus", "memory", "drive", "program", "on", "context"))
    plain, given = so.fit("qwen3-8b", gpu="rtx-4090"), so.fit("qwen3-8b", gpu="rtx-4090", **none)
    assert given.capacity == plain.capacity
    found = so.question("qwen3-8b", gpu="rtx-4090", overrides="workload.batch_size=2")
    assert found.document.data["workload"]["batch_size"] == 2


def test_requests_of_a_chat_arrive_at_a_model() -> None:
    lines: list[str] = []
    found = so.stream("qwen3-8b", gpu="rtx-4090", overrides={"stream.num_prompts": 50}, progress=lines.append)
    assert any("replication 1" in one for one in lines)
    assert any("requests of a chat arrive" in one for one in found.scenario.remarks)


def test_models_are_compared_by_their_names() -> None:
    models = ["qwen3-8b", "llama-3.1-8b"]
    found = so.compare(models=models, gpu="rtx-4090")
    assert list(found.results) == models
    assert found.results["qwen3-8b"].metrics() == so.simulate("qwen3-8b", gpu="rtx-4090").metrics()
    listed = so.compare(models, ["hbm", "dram"], gpu="rtx-4090")
    assert [one for one in listed.results if "qwen3-8b" in one][:2] == ["qwen3-8b hbm", "qwen3-8b dram"]
    beside = so.compare("accelerate/opt-30b", models=["opt-13b"])
    assert [one.rpartition(", ")[2] for one in beside.results][1] == "opt-13b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "scenario: is missing; name scenarios or models, such as models=[…]"),
        ({"scenario": []}, "scenario: is missing"),
        ({"scenario": [1, 2]}, "scenario: must be a LoadedScenario, a text, a path, a mapping or a list of"),
        ({"models": "qwen3-8b"}, "models: must be a list of texts or paths, got 'qwen3-8b'"),
        ({"models": ["qwen3-8b", "qwen9"]}, "qwen9: no such file, and no shipped scenario or model"),
        (
            {"scenario": "accelerate/opt-30b", "models": ["qwen9"]},
            'models: model.name: unknown model "qwen9"',
        ),
        ({"scenario": ["qwen3-8b", "qwen3-8b"]}, "scenario: two of them are called qwen3-8b"),
        (
            {"scenario": "qwen3-8b", "targets": "llama-3.1-8b"},
            "targets: llama-3.1-8b is a model; give several",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: dict[str, Any], message: str) -> None:
    machine: dict[str, Any] = {} if "accelerate/opt-30b" in arguments.values() else {"gpu": "rtx-4090"}
    with pytest.raises(so.InputError, match=f"^{re.escape(message)}"):
        so.compare(**arguments, **machine)


def test_results_that_are_called_alike_have_the_labels_that_are_given() -> None:
    cards = {"mine": so.question("qwen3-8b", gpu="rtx-4090"), "new": so.question("qwen3-8b", gpu="rtx-5090")}
    found = so.compare_scenarios(cards)
    assert "new gives" in repr(found)
    assert {one.label for one in found.results.values()} == set(cards)
    apart = so.compare("accelerate/opt-30b", ["dram", "nvme"])
    assert {one.label for one in apart.results.values()} == {""}


def test_a_place_names_the_platform_of_a_model() -> None:
    found = so.question("qwen3-8b", on="rtx-4090-2gpu:hbm")
    assert (found.machine.platform, found.places[0]) == ("rtx-4090-2gpu", "hbm")
    for place in ("all", "rtx-4090-2gpu:all"):
        with pytest.raises(so.InputError, match=f"^on: {place}: stands for several places"):
            so.question("qwen3-8b", gpu="rtx-4090", on=place)
