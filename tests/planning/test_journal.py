"""The journal survives whatever ends the process that writes it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.errors import InputError
from simoffload.extensions.sweep.journal import Journal, JournalRow, SweepId, beside
from simoffload.results.inference import InferenceResult
from simoffload.results.training import TrainingResult

SWEEP = SweepId("ab" * 32, 9)
METRICS = dict.fromkeys({name for name, one in InferenceResult.declared.items() if not one.optional}, 0.625)
SIMULATED = {
    "metrics": METRICS,
    "intervals": {"ttft_s": (0.5, 0.75)},
    "decode_bound": 0.0,
    "bottleneck": "reading weights",
    "limit": "a full link",
    "bound_fraction": 0.5,
    "fits": True,
    "extrapolates": False,
    "advice": None,
    "warnings": None,
}
TOO_LARGE = {**dict.fromkeys(SIMULATED), "fits": False, "extrapolates": False}
ROWS = [
    JournalRow(point=0, **SIMULATED),
    JournalRow(point=4, error="a \u00e9 \U0001f600"),
    JournalRow(point=7, **{**TOO_LARGE, "metrics": dict.fromkeys(TrainingResult.declared)}),
]
DAMAGED = "the journal is damaged: "


def resumed(path: Path, sweep: SweepId = SWEEP) -> Journal:
    return Journal.resumed(path, sweep, expected=frozenset(range(9)))


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        resumed(path).close()
    (problem,) = caught.value.problems
    assert problem.path == str(path)
    assert len(problem.message) < 300
    return problem.message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "r.csv.journal"
    journal = Journal.created(path, SWEEP)
    journal.append(ROWS[:2])
    journal.append(ROWS[2:])
    journal.close()
    return path


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def test_what_was_added_is_there(path: Path) -> None:
    journal = resumed(path)
    assert [journal.row(row.point) for row in ROWS] == ROWS
    assert [point for point in range(9) if point in journal.done] == [0, 4, 7]
    with pytest.raises(KeyError):
        journal.row(1)
    journal.close()
    assert not beside(path).exists()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_as_they_were(number: float) -> None:
    row = JournalRow(point=1, **{**SIMULATED, "metrics": dict.fromkeys(METRICS, number)})
    again = JournalRow.model_validate_json(row.plain())
    assert again == row
    assert json.loads(row.plain())["metrics"] == row.metrics


WRITER = """
import os, sys
from pathlib import Path
from simoffload.extensions.sweep.journal import Journal, JournalRow, SweepId

journal = Journal.created(Path(sys.argv[1]), SweepId(*eval(sys.argv[2])))
for point in range(9):
    journal.append([JournalRow(point=point, error="x" * 5000)])
    print(point, flush=True)
    if point == 5:
        journal._database.execute("BEGIN EXCLUSIVE")
        journal._database.execute("PRAGMA cache_spill = 1")
        journal._database.execute("UPDATE rows SET data = 'half'")
        os.kill(os.getpid(), 9)
"""


def test_a_process_that_is_killed_within_a_chunk_loses_that_chunk_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.csv.journal"
    description = [sys.executable, "-c", WRITER, str(path), repr(tuple(SWEEP))]
    ended = subprocess.run(description, capture_output=True, text=True, check=False)
    assert ended.returncode == -9
    journal = resumed(path)
    assert len(journal) == len(ended.stdout.split()) == 6
    assert journal.row(5).error == "x" * 5000
    journal.close()


def test_a_point_counts_once(path: Path) -> None:
    journal = resumed(path)
    journal.append([JournalRow(point=4, error="again"), JournalRow(point=5, error="new")])
    assert (journal.row(4), len(journal)) == (ROWS[1], 4)
    journal.close()


@pytest.mark.parametrize("content", [b"index,fits\n0,true\n", b"some notes", b"{}\n", b"\0" * 9000])
def test_other_files_are_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert "is not the journal of a sweep" in refusal(path)
    assert path.read_bytes() == content


def test_another_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    execute(path, "CREATE TABLE sweep (notes TEXT)", "INSERT INTO sweep VALUES ('dear')")
    assert "is not the journal of a sweep" in refusal(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT * FROM sweep").fetchall() == [("dear",)]


def cut(content: bytes) -> bytes:
    return content[:-4096]


def scribbled(content: bytes) -> bytes:
    return content[:4096] + b"A" * (len(content) - 4096)


DAMAGES = {"notes": b"some notes", "zeros": b"\0" * 9000, "cut": cut, "scribbled": scribbled}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_whatever_is_there_is_replaced(path: Path, damage: Any) -> None:
    path.write_bytes(damage(path.read_bytes()) if callable(damage) else damage)
    other = SWEEP._replace(points=8)
    journal = Journal.created(path, other)
    assert len(journal) == 0
    journal.append(ROWS[:1])
    with pytest.raises(InputError, match="another sweep is writing to it"):
        Journal.created(path, other)
    journal.append(ROWS[1:])
    journal.close()
    again = resumed(path, other)
    assert [again.row(row.point) for row in ROWS] == ROWS
    again.close()
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.write_bytes(b"")
    journal = Journal.created(path, SWEEP)
    journal.append(ROWS)
    journal.close()
    assert len(resumed(path)) == 3


def test_the_journal_of_another_sweep_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    for other in (SWEEP._replace(sweep_hash="cd" * 32), SWEEP._replace(points=8)):
        with pytest.raises(InputError, match="belongs to another sweep"):
            resumed(path, other)
    monkeypatch.setattr("simoffload.extensions.sweep.journal.__version__", "9.9")
    with pytest.raises(InputError, match=r"was written by simoffload .*, and this is 9\.9"):
        resumed(path)
    assert path.read_bytes() == before


def test_two_processes_cannot_write_it_at_once(path: Path) -> None:
    first = resumed(path)
    for opened in (resumed, lambda it: Journal.created(it, SWEEP)):
        with pytest.raises(InputError, match="another sweep is writing to it"):
            opened(path)
    first.append([JournalRow(point=1, error="still mine")])
    first.close()
    again = resumed(path)
    assert len(again) == 4
    again.close()


def test_a_file_without_its_end_is_damaged(path: Path) -> None:
    """Whoever cuts a file off, it is not the sweep: chunks are added whole."""
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) - 4096, 4096 + 100):
        path.write_bytes(content[:length])
        assert refusal(path).startswith(DAMAGED)
        assert path.read_bytes() == content[:length]


GOOD = {"point": 8, **SIMULATED}
NONSENSE = {
    "a list": {"point": [], "error": "x"},
    "nothing": {},
    "a list of rows": [GOOD],
    "a flag": {**GOOD, "point": True},
    "a fraction": {**GOOD, "point": 8.0},
    "another key": {**GOOD, "colour": "blue"},
    "only a number": {"point": 8},
    "a missing key": {key: value for key, value in GOOD.items() if key != "advice"},
    "an error and metrics": {**GOOD, "error": "it failed"},
    "an error that is none": {"point": 8, "error": None},
    "metrics as a list": {**GOOD, "metrics": [1]},
    "no metrics": {**GOOD, "metrics": {}},
    "metrics that are none": {**GOOD, "metrics": None},
    "a missing metric": {**GOOD, "metrics": {"e2e_s": 0.625}},
    "an unknown metric": {**GOOD, "metrics": {**METRICS, "colour": 0.625}},
    "a metric of other work": {**GOOD, "metrics": {**METRICS, "optimizer_s": 0.625}},
    "a metric as text": {**GOOD, "metrics": {**METRICS, "e2e_s": "fast"}},
    "a metric that is no float": {**GOOD, "metrics": {**METRICS, "e2e_s": 10**400}},
    "an error as a number": {"point": 8, "error": 3},
    "an error that no table can hold": {"point": 8, "error": "\ud800"},
    "a flag as text": {**GOOD, "fits": "yes"},
    "a flag that is none": {**GOOD, "fits": None},
    "a number as a flag": {**GOOD, "bound_fraction": True},
    "a huge point": {**GOOD, "point": 10**4000},
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_a_row_that_says_nonsense_is_told_and_nothing_is_overwritten(path: Path, data: object) -> None:
    text = json.dumps(data)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO rows VALUES (?, ?)", (8, text))
    before = path.read_bytes()
    assert refusal(path).startswith(f"{DAMAGED}the row of point 8 ")
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"point": 1e999}', '{"point": NaN}', "9" * 5000])
def test_a_row_that_is_no_json_is_told(path: Path, text: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO rows VALUES (?, ?)", (8, text))
    assert "the row of point 8 is not a result" in refusal(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rows SET point = 5 WHERE point = 4",
        "UPDATE rows SET data = 17 WHERE point = 4",
        "UPDATE rows SET data = x'00' WHERE point = 4",
        "DROP TABLE rows",
    ],
)
def test_what_others_write_into_it_is_told(path: Path, statement: str) -> None:
    execute(path, statement)
    assert refusal(path).startswith(DAMAGED)


def test_a_full_disk_is_told_as_one(path: Path) -> None:
    journal = resumed(path)
    journal._database.execute("PRAGMA max_page_count = 3")
    with pytest.raises(OSError, match="full") as caught:
        journal.append([JournalRow(point=1, error="x" * 50_000)])
    assert caught.value.errno == 28
    assert len(journal) == 3
    journal.close()
    again = resumed(path)
    assert len(again) == 3, "the chunk was taken back whole"
    again.close()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        path = tmp_path / "nowhere" / "r.csv.journal"
    else:
        tmp_path.chmod(0o500)
        path = tmp_path / "r.csv.journal"
    with pytest.raises(InputError, match="cannot be written"):
        Journal.created(path, SWEEP)
