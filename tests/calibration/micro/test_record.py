"""``micro.json`` is written and read back, and other files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload.calibration.micro.record import read_record, record_text
from simoffload.errors import InputError
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
        ({"schema": None}, "not null"),
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


def test_what_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "micro.json"
    file.write_text("[1, 2")
    with pytest.raises(InputError):
        read_record(file)
