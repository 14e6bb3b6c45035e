"""CSV that spreadsheets show and do not compute."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simoffload.exchange.files import write_csv


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
