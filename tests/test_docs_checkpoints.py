"""The examples about checkpoints and data run, and print what the page says they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simoffload.cli import main
from simoffload.workload import Checkpointing, Dataset, Writer

PAGE = (Path(__file__).parents[1] / "docs" / "checkpoints-and-data.md").read_text()


def test_examples_run_and_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for example in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        name = re.match(r"# (\S+)\n", example)
        assert name is not None
        Path(name.group(1)).write_text(example)
    assert main(["run", "saved.yaml", "--explain"]) == 0
    assert shown in capsys.readouterr().out
    assert main(["run", "trained.yaml", "--output-dir", "out"]) == 0
    report = Path("out/report.md").read_text()
    assert [name for name in ("Checkpoint", "Data", "Drive endurance") if f"\n{name}\n" not in report] == []


@pytest.mark.parametrize("model", [Checkpointing, Writer, Dataset])
def test_every_key_is_told(model: type[Checkpointing]) -> None:
    description = set(re.findall(r"\w+", PAGE))
    assert [name for name in model.model_fields if name not in description] == []
