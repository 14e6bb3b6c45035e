"""Every broken input gives one clear line for each problem, exit status 2, and touches nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from simoffload.cli import main
from tests.broken import advice, checkpoints, commands, documents, profiles, scenarios, settings, training
from tests.broken.slips import DRIVE, DS_CONFIG, PLATFORM, SCENARIO, Case
from tests.broken.training import FSDP, TRAINING

CASES = (
    *scenarios.CASES,
    *settings.CASES,
    *documents.CASES,
    *profiles.CASES,
    *commands.CASES,
    *advice.CASES,
    *training.CASES,
    *checkpoints.CASES,
)


def lay_out(case: Case, folder: Path) -> None:
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_broken_input(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    lay_out(case, folder)
    before = snapshot(tmp_path)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(case.stdin)))
    status = main(case.argv)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (status, out) == (2, ""), err
    assert "Traceback" not in err
    assert str(tmp_path) not in err, "files are called what the user called them"
    assert len(lines) == len(case.lines), err
    for line, (start, *texts) in zip(lines, case.lines, strict=True):
        assert line.startswith(f"error: {start}")
        assert [text for text in texts if text not in line] == [], line
    assert snapshot(tmp_path) == before


def test_the_corpus_is_large_and_its_cases_differ() -> None:
    assert len(CASES) >= 70
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("s.yaml", SCENARIO),
        ("t.yaml", TRAINING),
        ("f.yaml", FSDP),
        ("d.yaml", DRIVE),
        ("p.yaml", PLATFORM),
        ("ds.json", DS_CONFIG),
    ],
)
def test_what_the_slips_are_made_from_is_good(
    name: str,
    content: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    assert main(["check", name]) == 0
    assert capsys.readouterr().err == ""
