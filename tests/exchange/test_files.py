"""Files are written completely or not at all; CSV files contain no formulas for spreadsheets."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.exchange.files import replacing, write_csv


def test_a_new_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt") as file:
        file.write("whole\n")
        assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "a.txt").read_text() == "whole\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines(["half", 1])  # type: ignore[list-item]
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/a.txt", "its folder does not exist; create it first"),
        ("folder", "is a folder, not a file"),
        ("", "is a folder, not a file"),
        ("folder/file/a.txt", "its folder does not exist; create it first"),
        ("x" * 300 + ".html", "cannot be used: File name too long"),
        ("\ud800.html", "cannot be used: its name holds half of a surrogate pair"),
        ("a\0.html", "cannot be used: its name holds a NUL character"),
    ],
)
def test_what_cannot_be_written_is_refused_by_the_name_given(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")
    with pytest.raises(InputError) as caught, replacing(tmp_path / name):
        pytest.fail("the work is not begun")
    (problem,) = caught.value.problems
    assert (problem.path[-20:], problem.message) == (str(tmp_path / name)[-20:], reason)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_is_told_of_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught, replacing(tmp_path / "a.txt"):
        raise OSError(28, "No space left on device")
    assert str(caught.value) == f"{tmp_path / 'a.txt'}: cannot be written: No space left on device"
    assert not list(tmp_path.iterdir())


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120 + ".html")  # 245 bytes
    with replacing(path) as file:
        file.write("whole")
    assert path.read_text() == "whole"


def test_rows_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_csv(path, ("name", "fits", "seconds"), [('a, "b"', True, 0.25), ("two\nlines", False, None)])
    assert path.read_text() == 'name,fits,seconds\n"a, ""b""",true,0.25\n"two\nlines",false,\n'
    with path.open(newline="") as file:
        assert list(csv.reader(file))[2] == ["two\nlines", "false", ""]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("\t=1", "'\t=1"),
        ("-5", "-5"),
        ("-5.5e-3", "-5.5e-3"),
        ("-5 GB/s", "-5 GB/s"),
        ("a=1", "a=1"),
    ],
)
def test_formulas_become_text(tmp_path: Path, text: str, written: str) -> None:
    write_csv(tmp_path / "rows.csv", ("cell",), [(text,)])
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert list(csv.reader(file))[1] == [written]
