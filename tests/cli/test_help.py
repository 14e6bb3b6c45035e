"""Help answers at once and says what there is."""

from __future__ import annotations

import subprocess
import sys

import pytest

import simoffload

HEAVY = {"jinja2", "numpy", "pandas", "plotly", "pydantic", "simpy", "yaml"}
COMMANDS = ["run", "compare", "sweep", "fit", "advise", "check", "profiles", "scenarios", "models", "schema"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, simoffload.cli\n"
        "status = simoffload.cli.main(['--help'])\n"
        "print(status, *{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *modules = done.stderr.split()
    assert status == "0"
    assert HEAVY.isdisjoint(modules)
    assert "example:" in done.stdout
    assert all(f"\n    {command}" in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(program, command: str) -> None:
    answer = program(command, "--help")
    assert answer.status == 0
    assert answer.out.startswith(f"usage: simoffload {command}")


def test_version(program) -> None:
    assert program("--version") == (0, f"simoffload {simoffload.__version__}\n", "")


def test_module_runs_as_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simoffload", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"simoffload {simoffload.__version__}\n"
