"""The example about explanations runs, and prints what the page says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simoffload.cli import main
from simoffload.planning.explanation import ASSUMED

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
    first, doubt, enough, error = capsys.readouterr().out.splitlines()
    assert first == "pageable -0.62"
    assert doubt == "('pageable',)"
    assert enough.startswith("{'drive/samsung-pm1733-3.84tb': {'read': '")
    assert 0 < float(error) < 0.2


def test_what_is_assumed_is_told() -> None:
    estimate, spec, measured = (f"{ASSUMED[origin]:.0%}".replace("%", " %") for origin in ASSUMED)
    assert (
        f"{estimate} for an estimate, {spec} for a published specification, {measured} for a measurement"
        in PAGE
    )
