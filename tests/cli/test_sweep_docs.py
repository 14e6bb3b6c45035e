"""The examples of docs/sweeps.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simoffload.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "sweeps.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scenario of the page."""
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    name = re.match(r"# (\S+)\n", text)
    assert name is not None
    (tmp_path / name.group(1)).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path / name.group(1)


def test_the_example_is_right(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", example.name]) == 0
    assert main(["sweep", example.name, "--dry-run"]) == 0
    out = capsys.readouterr().out
    # Batches 1 to 32 on eight ranks; ai400x2 at each of 8 rates, 3 other tiers at the highest; 3 buckets.
    assert f"{6 * (8 + 3) * 3} points of {7 * 4 * 3 * 8} combinations" in out


def test_the_command_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r"```\nsimoffload (sweep .*?)```", DOCS.read_text(), re.DOTALL)
    assert command is not None
    assert main([*command.group(1).replace("\\\n", " ").split(), "--dry-run"]) == 0
    assert "9 points of 9 combinations" in capsys.readouterr().out


def test_the_program_is_right(example: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    small = example.read_text().replace("176b\nplatform", "560m\nplatform").partition("sweep:")[0]
    example.write_text(small.replace("ranks: 8", "ranks: 1").replace("output_length: 33", "output_length: 1"))
    exec(compile(code, str(DOCS), "exec"), {"path": example})
    assert len((example.parent / "result.csv").read_text().splitlines()) == 4
