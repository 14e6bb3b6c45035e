"""The example about explanations runs, and prints what the page says it prints."""

from __future__ import annotations

import ast
import re
from math import exp
from pathlib import Path

import pytest

from simoffload.cli import main
from simoffload.planning.errors import _UNLIKE, calibration_errors

PAGE = (Path(__file__).parents[1] / "docs" / "explanations.md").read_text()


@pytest.fixture(autouse=True)
def _example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Path("drives.yaml").write_text(example)


def test_the_example_prints_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert main(["run", "drives.yaml", "--explain"]) == 0
    assert shown in capsys.readouterr().out


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "explanations.md", "exec"), {})
    first, enough, interval = capsys.readouterr().out.splitlines()
    assert first == "host.pageable -0.62"
    assert enough.startswith("{'drive/samsung-pm1733-3.84tb': {'read': '")
    low, high = ast.literal_eval(interval)
    assert 1.5 < low < high < 5


def test_the_page_has_the_factors() -> None:
    assert f"**What machines differ by, {exp(calibration_errors().between):.2f} either way,**" in PAGE
    assert f"**{_UNLIKE} either way**" in PAGE
