"""``simoffload sweep``."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from simoffload.extensions.sweep.command import progress_line
from simoffload.extensions.sweep.run import Counts

AXES = ("--axis", "workload.batch_size=1,2", "--axis", "strategy.weights=dram,raid")
HERE = ("--workers", "1")
SECTION = """\
sweep:
  axes:
    workload.batch_size: {choices: [1, 2, 1]}
    profiles.ddn-ai400x2.read: {range: {min: 20 GB/s, max: 80 GB/s, n: 3, scale: log}}
  constraints: ["read > '25 GB/s'"]
"""


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_the_table_lies_beside_its_journal(program) -> None:
    answer = program("sweep", "small.yaml", *AXES, *HERE)
    verdict, rest = answer.out.split("\n", 1)
    assert (answer.status, rest) == (0, "4 points\nwrote small-sweep.csv\n")
    assert verdict.startswith("Verdict: batch_size=2, weights=dram is best: ")  # of two axes
    found = [(row["workload.batch_size"], row["strategy.weights"]) for row in rows("small-sweep.csv")]
    assert found == [("1", "dram"), ("1", "raid"), ("2", "dram"), ("2", "raid")]
    assert sorted(path.name for path in Path().iterdir()) == [
        "small-sweep.csv",
        "small-sweep.csv.journal",
        "small.yaml",
    ]


def test_a_page_lies_beside_the_table(program) -> None:
    page = ("sweep", "small.yaml", *AXES, *HERE, "-o", "page.html")
    assert program(*page).out.endswith("\n4 points\nwrote small-sweep.csv, page.html\n")
    text = Path("page.html").read_text()
    assert "is best: " in text
    assert text.count('role="img"') == 3
    Path("small-sweep.csv").unlink()
    Path("small-sweep.csv.journal").unlink()
    again = program(*page)
    assert again.status == 2
    assert "page.html exists; name another file or give --overwrite" in again.err
    assert program(*page, "--overwrite").status == 0


def test_axes_in_the_file(program, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text((tmp_path / "small.yaml").read_text() + SECTION)
    answer = program("sweep", "small.yaml", "-o", "r.csv", "--set", "strategy.weights=ai400x2", *HERE)
    assert answer.out.splitlines()[1] == "6 points, 2 equal to another point"
    times = [(row["profiles.ddn-ai400x2.read"], float(row["e2e_s"])) for row in rows("r.csv")]
    assert [read for read, _ in times] == ["40 GB/s", "80 GB/s"] * 3
    assert times[0] == times[4]
    assert program("run", "small.yaml").status == 0
    assert program("check", "small.yaml").out == "small.yaml: ok (scenario)\n"


def test_a_section_is_checked(program, tmp_path: Path) -> None:
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(text + SECTION.replace("n: 3", "n: 3, step: 1 GB/s"))
    answer = program("check", "small.yaml")
    assert answer.status == 2
    assert answer.err.startswith("error: small.yaml:13:")
    assert "give either step or n" in answer.err


def test_dry_run_says_what_would_be_done_and_does_nothing(program) -> None:
    argv = ("sweep", "small.yaml", "--axis", "workload.batch_size=1,2,4,1", "--constraint", "batch_size < 3")
    answer = program(*argv, "--dry-run")
    assert answer.out.splitlines() == [
        "3 points of 4 combinations (4 workload.batch_size)",
        "1 of them is equal to another point; 2 simulations",
        "first point: workload.batch_size = 1",
    ]
    data = json.loads(program(*argv, "--dry-run", "--json").out)
    assert (data["points"], data["duplicates"], data["example"]) == (3, 1, {"workload.batch_size": 1})
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_summary_for_programs(program) -> None:
    argv = (
        "--axis",
        "strategy.ranks=99,1,1",
        "-o",
        "a.json",
        "-o",
        "b.csv",
        *HERE,
        "--json",
    )
    answer = program("sweep", "small.yaml", *argv)
    assert answer.status == 0
    assert json.loads(answer.out) == {
        "schema": "simoffload/sweep/1",
        "points": 3,
        "duplicates": 1,
        "resumed": 0,
        "failed": 1,
        "does_not_fit": 0,
        "outputs": ["a.json", "b.csv"],
        "journal": "a.json.journal",
    }


@pytest.mark.parametrize(
    ("axis", "status"),
    [("model=bloom-mod-1,bloom-560m", 0), ("model=bloom-mod-1", 3), ("strategy.ranks=99,98", 1)],
)
def test_status(program, axis: str, status: int) -> None:
    answer = program("sweep", "small.yaml", "--axis", axis, "--set", "strategy.weights=gpu", *HERE)
    assert answer.status == status


def test_what_was_begun_is_continued_or_replaced_only_on_request(program) -> None:
    argv = ("sweep", "small.yaml", *AXES, *HERE, "-o", "r.csv")
    assert program(*argv).status == 0
    before = Path("r.csv").read_bytes()
    journal = Path("r.csv.journal")
    with closing(sqlite3.connect(journal)) as database, database:
        rows = database.execute("SELECT * FROM rows ORDER BY point").fetchall()
        database.execute("DELETE FROM rows WHERE point > 1")
    Path("r.csv").write_text("half")
    answer = program(*argv)
    assert answer.status == 2
    assert answer.err.startswith("error: r.csv.journal: a sweep was started here; continue it with --resume")
    answer = program(*argv, "--resume")
    assert answer.out.splitlines()[1] == "4 points, 2 simulations taken from the journal"
    assert Path("r.csv").read_bytes() == before
    with closing(sqlite3.connect(journal)) as database:
        assert database.execute("SELECT * FROM rows ORDER BY point").fetchall() == rows
    answer = program(*argv, "--resume", "--set", "workload.output_length=5")
    assert answer.status == 2
    assert "belongs to another sweep" in answer.err
    assert program(*argv, "--overwrite", "--set", "workload.output_length=5").status == 0
    assert Path("r.csv").read_bytes() != before
    journal.unlink()
    for more in ((), ("--resume",)):
        answer = program(*argv, *more)
        assert (answer.status, answer.out) == (2, "")
        assert answer.err.startswith("error: r.csv: exists and has no journal")


@pytest.mark.parametrize(
    ("argv", "reported"),
    [
        ((), "small.yaml: nothing to vary"),
        (("--axis", "workload.batch=1"), '--axis: workload.batch: unknown key; did you mean "batch_size"?'),
        ((*AXES, "-o", "r.txt"), "r.txt: the name of a result must end in .csv, .json, .parquet"),
        ((*AXES, "-o", "r.csv", "-o", "r.csv"), "r.csv: is given twice"),
        ((*AXES, "-o", "none/r.csv"), "none/r.csv: its folder does not exist; create it first"),
        (
            (*AXES, "--workers", "0"),
            'simoffload sweep: argument --workers: "0" is not a whole number above 0',
        ),
        ((*AXES, "--chunk", "x"), 'simoffload sweep: argument --chunk: "x" is not a whole number above 0'),
        ((*AXES, "--max-points", "3"), "sweep.axes: 2 x 2 = 4 points are more than 3"),
        (
            (*AXES, "--resume", "--overwrite"),
            "--resume: keeps what --overwrite",
        ),
        ((*AXES, "--set", "model=nosuch"), '--set: model: unknown model "nosuch"'),
        ((*AXES, "--constraint", "batch < 1"), '--constraint: "batch < 1": there is no "batch"'),
    ],
)
def test_slips_are_told_before_anything_is_written(program, argv: tuple[str, ...], reported: str) -> None:
    answer = program("sweep", "small.yaml", *argv)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {reported}"), answer.err
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_missing_extras_are_named(program, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    answer = program("sweep", "small.yaml", *AXES, "-o", "r.parquet")
    assert answer.status == 2
    assert (
        answer.err
        == "error: r.parquet: Parquet needs pyarrow; install it with: pip install 'simoffload[parquet]'\n"
    )
    answer = program("sweep", "small.yaml", *AXES, "--cluster", "tcp://127.0.0.1:8786")
    assert answer.status == 2
    assert "pip install 'simoffload[cluster]'" in answer.err
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_standard_input(program, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, Path("small.yaml").read_bytes())
    os.close(writer)
    with os.fdopen(reader) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert program("sweep", "-", "--axis", "workload.batch_size=1", *HERE).status == 0
    assert len(rows("sweep.csv")) == 1


# ---- progress ----


def test_lines_of_progress_without_a_terminal(program) -> None:
    answer = program("sweep", "small.yaml", *AXES, *HERE)
    shown, start, warned = answer.err.partition("warning: ")
    assert re.fullmatch(r"(\d/4  [\d.e+]+/s(  \d:\d\d left)?\n){1,4}", shown), answer.err
    assert shown.splitlines()[-1].startswith("4/4  ")
    quiet = program("sweep", "small.yaml", *AXES, *HERE, "--overwrite", "--quiet").err
    assert quiet == start + warned != ""


@pytest.mark.parametrize(
    ("counts", "elapsed", "line"),
    [
        (Counts(1000, 0), 0.0, "0/1,000"),
        (Counts(10_000, 2_500), 10.0, "2,500/10,000  250/s  0:30 left"),
        (Counts(10_000, 2_500, resumed=2_000, failed=3), 10.0, "2,500/10,000  50/s  2:30 left  3 failed"),
        (Counts(100_000, 10), 10.0, "10/100,000  1/s  27:46:30 left"),
        (Counts(5, 5), 2.0, "5/5  2.5/s"),
    ],
)
def test_rate_and_time_left(counts: Counts, elapsed: float, line: str) -> None:
    assert progress_line(counts, elapsed) == line


def test_a_bar_on_a_terminal(tmp_path: Path, repository: Path, program) -> None:
    del program  # which writes the scenario
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "simoffload", "sweep", "small.yaml", *AXES, *HERE]
    environment = {**os.environ, "PYTHONPATH": str(repository), "TERM": "xterm"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=False,
        timeout=120,
    )
    os.close(theirs)
    shown, warning, _ = os.read(ours, 65536).decode().partition("warning: ")
    os.close(ours)
    assert (done.returncode, warning) == (0, "warning: ")
    *drawn, last = shown.split("\r")
    lines = [line for line in drawn if line.strip()]
    bars = [line for line in lines if re.match(r"\[[#.]{24}\] \d/4", line)]  # a slow report has lines, too
    assert bars[0] == f"[{'.' * 24}] 0/4"
    assert re.fullmatch(r"\[#{24}\] 4/4  [\d.]+/s", bars[-1])
    assert (last, drawn[-1]) == ("", " " * len(lines[-1])), "erased before the answer"


def test_a_value_that_check_would_refuse_is_refused_before_anything_runs(program, tmp_path: Path) -> None:
    argv = ("--axis", "workload.batch_size=1,2,0", "--axis", "model=bloom-560m,bloom-9b", "-o", "r.csv")
    answer = program("sweep", "small.yaml", *argv)
    assert answer == (
        2,
        "",
        (
            "error: --axis: workload.batch_size: must be at least 1, got 0\n"
            'error: --axis: model: unknown model "bloom-9b"; did you mean "bloom-7b1"?\n'
        ),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_a_folder_holds_what_other_commands_write(program) -> None:
    words = ("sweep", "small.yaml", "--axis", "workload.batch_size=1,2", *HERE, "--output-dir", "out")
    answer = program(*words)
    assert answer.status == 0, answer.err
    assert answer.out.startswith("Verdict: batch_size=2 is best: ")
    names = {"result.json", "report.html", "report.md", "report.json", "table.csv"}
    assert {path.name for path in Path("out").iterdir()} == names
    assert len(Path("out/table.csv").read_text().splitlines()) == 3
    assert not list(Path().glob("*journal*")), "complete"
    assert program(*words).status == 0, "its own files are replaced"
    Path("out/note.txt").touch()
    refused = program(*words)
    assert refused.status == 2
    assert 'it contains "note.txt"' in refused.err


def test_a_model_and_parts_are_swept(program) -> None:
    axis = ("--axis", "workload.prompt_length=8,16", *HERE, "-o", "model.csv")
    answer = program("sweep", "opt-125m", "--gpu", "rtx-4090", *axis)
    assert answer.status == 0, answer.err
    assert len(Path("model.csv").read_text().splitlines()) == 3
