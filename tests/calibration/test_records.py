"""Files of ``calibrate deepspeed`` are read, and wrong ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload_calibrate.records import read_records
from tests.calibration.recorded import fsdp, inference, record, trace, training, write


def test_times_of_the_second_generation_count(tmp_path: Path) -> None:
    run = read_records(write(tmp_path, inference())).runs[0]
    assert run.measured() == {"first pass": 0.9, "prefill": 0.030, "decode": 0.021}
    assert not run.training
    assert run.offload == "cpu"


def test_training_sums_micro_steps_and_takes_the_lower_median_after_the_first_steps(tmp_path: Path) -> None:
    run = read_records(write(tmp_path, training())).runs[0]
    assert run.training
    assert run.measured() == {"forward": 4.0, "backward": 4.0, "optimizer": 2.0, "step": 10.0}
    assert list(run.measured()) == ["forward", "backward", "optimizer", "step"]


def test_whole_steps_of_fsdp_count_before_the_sum_of_their_parts(tmp_path: Path) -> None:
    sharded, offloaded = read_records(write(tmp_path, fsdp(), fsdp(cpu_offload=True))).runs
    assert sharded.measured() == {"forward": 0.2, "backward": 0.5, "optimizer": 0.3, "step": 1.1}
    assert (sharded.group, sharded.offload, sharded.optimizer) == ("fsdp", "none", "none")
    assert (offloaded.offload, offloaded.optimizer) == ("cpu", "cpu")


def test_a_suffix_of_the_build_is_no_part_of_the_version(tmp_path: Path) -> None:
    data = record(inference())
    data["machine"]["deepspeed"] = "0.19.8+abc123"
    (tmp_path / "runs.json").write_text(json.dumps(data))
    assert read_records(tmp_path / "runs.json").deepspeed == "0.19.8"


def _without_a_time(data: dict[str, Any]) -> None:
    del data["runs"][0]["passes"][0]["seconds"]


def _of_another_schema(data: dict[str, Any]) -> None:
    data["schema"] = "simoffload/deepspeed-runs/9"


def _of_nothing(data: dict[str, Any]) -> None:
    del data["runs"][0]["ds_config"]


def _negative(data: dict[str, Any]) -> None:
    data["runs"][0]["passes"][0]["seconds"] = -1


def _torn(data: dict[str, Any]) -> None:
    data["runs"][0]["traces"] = {"decode 1": trace()}
    data["runs"][0]["traces"]["decode 1"]["modules"]["fetch"].pop()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_a_time, "runs[0].passes[0].seconds: required key is missing"),
        (_of_another_schema, 'schema: must be "simoffload/deepspeed-runs/1"'),
        (_of_nothing, "a run must have either ds_config or strategy"),
        (_negative, "runs[0].passes[0].seconds: must be at least 1e-09, got -1"),
        (_torn, "all columns of a trace must have the same length, not "),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, spoil: Any, message: str) -> None:
    data = record(inference())
    spoil(data)
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 1,\n "runs": [', "runs.json:2:11: not valid JSON"),
        ('{"schema": 1, "runs": NaN}', "NaN is not a number"),
        ("[]", 'not a record of "calibrate deepspeed"'),
        ('{"name": "a scenario"}', 'not a record of "calibrate deepspeed"'),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert message in str(caught.value)


def test_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_records(tmp_path / "runs.json")
    with pytest.raises(InputError, match=r"is a folder, not a file; name the runs\.json of"):
        read_records(tmp_path)


def test_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text in UTF-8"):
        read_records(tmp_path / "runs.json")
