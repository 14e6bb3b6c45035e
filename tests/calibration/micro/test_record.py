"""``micro.json`` is written and read back, and other files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload_calibrate.micro.record import read_record, record_text
from tests.calibration.micro.machine import record


def test_there_and_back(tmp_path: Path) -> None:
    raw = record()
    (tmp_path / "micro.json").write_text(record_text(raw))
    assert read_record(tmp_path / "micro.json") == raw


def test_a_record_may_be_larger_than_a_document(tmp_path: Path) -> None:
    """A measurement in three rounds writes more than 1 MB and more than 50,000 entries."""
    rounds = [{"section": "hooks_decode", "found": [float(number) for number in range(120_000)]}]
    raw = record() | {"schema": "simoffload/micro/2", "options": {}, "rounds": rounds, "probes": []}
    file = tmp_path / "micro.json"
    file.write_text(record_text(raw | {"unfinished": []}))
    assert file.stat().st_size > 1_000_000
    assert read_record(file)["rounds"] == rounds


def test_no_number_is_infinite() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        record_text({"seconds": float("inf")})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "simoffload/result/1"}, 'schema: not a record of "calibrate micro"'),
        ({"schema": None}, 'the key "schema" is missing'),
        ({"sections": []}, "sections: missing or of the wrong type"),
        ({"machine": None}, "machine: missing or of the wrong type"),
        ({"date": 5}, "date: missing or of the wrong type"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "micro.json"
    file.write_text(json.dumps(record() | change))
    with pytest.raises(InputError, match=message) as caught:
        read_record(file)
    assert str(caught.value).startswith(str(file))


def test_a_record_of_many_rounds_is_read_back(tmp_path: Path) -> None:
    """One GPU gives more than the 1 MB that a scenario may have."""
    raw = record()
    raw["rounds"] = [{"section": "dram", "found": {"seconds": [0.125] * 1000}} for _ in range(300)]
    (tmp_path / "micro.json").write_text(record_text(raw))
    assert (tmp_path / "micro.json").stat().st_size > 1_000_000
    assert read_record(tmp_path / "micro.json") == raw


def test_what_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "micro.json"
    for text in ("[1, 2", '{"schema": NaN}', "[]"):
        file.write_text(text)
        with pytest.raises(InputError, match=r"not valid JSON|not a record"):
            read_record(file)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"schema": [1,', "was the file cut off?"),
        ('{"schema": tru', "was the file cut off?"),
        ('{"schema": "simoff', "was the file cut off?"),
        ("schema: a\nsections: b\n", "--from-json and --resume read the record that calibrate micro writes"),
    ],
)
def test_a_file_that_is_not_json_may_be_cut_off_or_another_one(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "micro.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_record(path)
    assert str(caught.value).endswith(hint)
