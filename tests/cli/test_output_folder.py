"""``--output-dir``: what is written, what is refused, and that nothing is ever half there."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simoffload.cli.answer import OutputFolder
from simoffload.errors import InputError
from simoffload.exchange.files import replacing

WRITTEN = ["report.html", "report.json", "report.md", "result.json"]
FAST = ("--set", "workload.output_length=1")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_result_and_page(program, tmp_path: Path) -> None:
    answer = program("run", "small.yaml", "--output-dir", "new/out", "--json", *FAST)
    out = tmp_path / "new" / "out"
    assert names(out) == WRITTEN
    assert json.loads((out / "result.json").read_text()) == json.loads(answer.out)
    assert (out / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert "Verdict: bloom-560m runs with its weights on raid: " in (out / "report.md").read_text()
    assert (
        "wrote new/out/result.json, new/out/report.html, new/out/report.md, new/out/report.json" in answer.err
    )


def test_trace(program, tmp_path: Path) -> None:
    answer = program("run", "small.yaml", "--output-dir", "out", "--trace", *FAST)
    pages = "out/report.html, out/report.md, out/report.json"
    assert answer.out.splitlines()[-1] == f"wrote out/result.json, {pages}, out/trace.json"
    assert json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]


def test_compare_writes_one_page(program, tmp_path: Path) -> None:
    answer = program("compare", "small.yaml", "--on", "dram,raid", "--output-dir", "out", "--json", *FAST)
    assert names(tmp_path / "out") == [*WRITTEN, "table.csv"]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(answer.out)


def test_the_table_of_a_comparison_has_a_row_for_each_target(program, tmp_path: Path) -> None:
    program("compare", "small.yaml", "--on", "dram,raid", "--output-dir", "out", *FAST)
    compared = json.loads((tmp_path / "out" / "result.json").read_text())["compared"]
    rows = table(tmp_path / "out" / "table.csv")
    assert [(row["label"], row["fits"], row["tpot_s"]) for row in rows] == [
        ("dram", "true", ""),
        ("raid", "true", ""),
        ("vllm", "true", ""),
    ]
    for row, one in zip(rows, compared, strict=True):
        assert float(row["ratio"]) == one["ratio"]
        assert float(row["e2e_s"]) == one["result"]["metrics"]["e2e_s"]


def test_what_does_not_fit_is_written_too(program, tmp_path: Path) -> None:
    too_large = ("--set", "model=bloom-176b", "--set", "strategy.weights=gpu")
    assert program("run", "small.yaml", *too_large, "--output-dir", "out", "--trace").status == 3
    assert names(tmp_path / "out") == WRITTEN


def test_our_earlier_files_are_replaced_and_stale_ones_go(program, tmp_path: Path) -> None:
    assert program("run", "small.yaml", "--output-dir", "out", "--trace", *FAST).status == 0
    assert program("run", "small.yaml", "--output-dir", "out", *FAST).status == 0
    assert names(tmp_path / "out") == WRITTEN


def test_overwrite_leaves_other_files(program, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert program("run", "small.yaml", "--output-dir", "out", *FAST).status == 2
    assert program("run", "small.yaml", "--output-dir", "out", "--overwrite", *FAST).status == 0
    assert names(tmp_path / "out") == ["notes.txt", *WRITTEN]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_a_failure_leaves_everything_as_it_was(tmp_path: Path, error: BaseException, exists: bool) -> None:
    out = tmp_path / "out"
    if exists:
        OutputFolder(out, overwrite=False).write({"result.json": lambda path: path.write_text("old")})

    def fail(path: Path) -> None:
        path.write_text("half a pa")
        raise error

    files = {"result.json": lambda path: path.write_text("new"), "report.html": fail}
    expected = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        OutputFolder(out, overwrite=True).write(files)
    assert names(tmp_path) == (["out"] if exists else [])
    if exists:
        assert [(entry.name, entry.read_text()) for entry in out.iterdir()] == [("result.json", "old")]


def test_a_full_disk_is_told_of_the_folder_that_was_named(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        with replacing(path):
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError) as caught:
        OutputFolder(tmp_path / "out", overwrite=False).write({"report.html": fail})
    reported = f"--output-dir: {tmp_path / 'out'}: cannot be written: No space left on device"
    assert str(caught.value) == reported


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.json").symlink_to(tmp_path / "precious.txt")
    with pytest.raises(InputError, match="not a plain file"):
        OutputFolder(tmp_path / "out", overwrite=True)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(InputError, match="broken link"):
        OutputFolder(tmp_path / "nowhere", overwrite=True)
