"""Help answers at once and says what there is."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

import simoffload
from simoffload.cli.arguments import _COMMANDS, _EXAMPLE, parse

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
    assert "examples:" in done.stdout
    assert all(f"\n    {command}" in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(program, command: str) -> None:
    answer = program(command, "--help")
    assert answer.status == 0
    assert answer.out.startswith(f"example: simoffload {command} ")
    assert f"\nusage: simoffload {command}" in answer.out


def test_every_example_of_a_command_is_valid() -> None:
    """Each names options and keys that exist; what takes files is only parsed."""
    for command, example in _EXAMPLE.items():
        assert example.startswith(command)
        parse(shlex.split(example))


@pytest.mark.parametrize("command", ["profiles", "scenarios", "models", "calibrate"])
def test_every_action_has_help_with_an_example(program, command: str) -> None:
    found = re.findall(r"^    ([a-z]+)(?: |$)", program(command, "--help").out, re.MULTILINE)
    assert found
    for action in found:
        assert program(command, action, "--help").out.startswith(f"example: simoffload {command} {action}")


def test_profiles_of_gpus_are_those_of_accelerators(program) -> None:
    assert program("profiles", "list", "gpu") == program("profiles", "list", "accelerator")
    assert 'did you mean "accelerator"?' in program("profiles", "list", "acelerator").err


def test_notices_come_after_the_answer_and_are_wrapped() -> None:
    command = [sys.executable, "-m", "simoffload", "fit", "qwen3-8b", "--gpu", "rtx-4090"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    lines = done.stdout.splitlines()
    notice = next(number for number, line in enumerate(lines) if line.startswith("on rtx-4090-desktop; also"))
    assert 0 < notice == len(lines) - 2  # a line and its rest
    assert max(map(len, lines[notice:])) <= 100


def test_the_program_alone_says_what_answers_what(program) -> None:
    answer = program()
    assert answer.status == 0
    assert all(name in answer.out for name in _COMMANDS if name not in ("completion", "schema"))


def test_version(program) -> None:
    assert program("--version") == (0, f"simoffload {simoffload.__version__}\n", "")


def test_module_runs_as_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simoffload", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"simoffload {simoffload.__version__}\n"
