"""Change a line of the package at a time, and see which test fails: ``python -m tests.mutations [NUMBER]``.

It runs by hand, after a change of many tests, in a copy of the checkout. ``mutations.yaml`` has the changes,
a constant, a sign, or a rule left out, each with the tests near it; those that they miss are tried on the
quick golden answers. One that passes lacks a test that states the rule.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).resolve().parents[1]
_LIMIT_S = 300
GOLDEN = "tests/test_golden.py"


class Mutation(NamedTuple):
    """A Mutation is one wrong line."""

    what: str
    file: str
    old: str
    new: str
    tests: str


def mutations() -> list[Mutation]:
    """Return all changes that should be found."""
    return [Mutation(**row) for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())]


def mutated(mutation: Mutation) -> str:
    """Return the text of the file with the change."""
    text = (HERE / mutation.file).read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} has {text.count(mutation.old)} times: {mutation.old}")
    return text.replace(mutation.old, mutation.new)


def _caught(copy: Path, tests: list[str]) -> str:
    """Return the first test that fails in a copy of the checkout, "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-pno:cacheprovider", *tests]
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    environment |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"more than {_LIMIT_S} s"
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, re.MULTILINE)
    return found[1] if found else "" if done.returncode == 0 else done.stdout[-300:] + done.stderr[-300:]


def main(numbers: list[int]) -> int:
    """Try the changes with these numbers, or all; return how many passed."""
    listed = subprocess.run(["git", "ls-files"], cwd=HERE, capture_output=True, text=True, check=True)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in listed.stdout.splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / name, copy / name)
        for number, one in enumerate(mutations(), 1):
            if numbers and number not in numbers:
                continue
            (copy / one.file).write_text(mutated(one))
            found = _caught(copy, one.tests.split()) or _caught(copy, [GOLDEN])
            (copy / one.file).write_text((HERE / one.file).read_text())
            missed += not found
            print(f"{number:2d} {one.what}: {found or 'NO TEST FAILS'}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(bool(main([int(one) for one in sys.argv[1:]])))
