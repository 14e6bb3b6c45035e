"""The examples of docs/fit.md run, and print what the page says they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from simoffload.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "fit.md").read_text()
SHOWN = re.findall(r"```console\n\$ simoffload (.*?)\n(.*?)```", PAGE, re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_commands_print_what_is_shown(command: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(shlex.split(command))
    assert capsys.readouterr().out == output
    assert status == (3 if "\nVerdict: bloom-mod-2 does not fit" in output else 0)


@pytest.mark.parametrize("program", PROGRAMS, ids=["changes", "machines", "largest"])
def test_programs_run(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program, "docs/fit.md", "exec"), {})
    rendered = capsys.readouterr().out
    assert rendered.startswith(
        ("weights on dram ('strategy.weights=dram',)\n", "2 {'hbm': 3, 'raid': 1}\n", "57 363 622")
    )


def test_examples_are_there() -> None:
    assert (len(SHOWN), len(PROGRAMS)) == (4, 3)
