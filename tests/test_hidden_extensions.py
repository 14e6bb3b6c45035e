"""Without the folder of one extension all else works, and one sentence says what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import simoffload.extensions

FOLDERS = sorted(one.parent.name for one in Path(simoffload.extensions.__path__[0]).glob("*/__init__.py"))
USUAL = (
    "run ddn/bloom-7b1",
    "fit ddn/bloom-7b1",
    "compare ddn/bloom-7b1 --on dram,raid",
    "advise --help",
)
ASKED = {
    "programs": ("run fsdp/llama-3.1-8b", "run ddn/bloom-7b1 --set strategy.kind=flexgen"),
    "purchases": ("compare bloom-7b1 --budget 5000", "compare bloom-7b1 --platforms rtx-4090-desktop"),
    "serving": ("stream serving/llama-3.1-8b-chat --slo ttft=2s",),
    "storage": (
        "run checkpoint/mlperf-8b",
        "check checkpoint/mlperf-8b",
        "fit checkpoint/llama-3.1-8b-training",
        "run training/bloom-7b1 --set checkpoint.tier=raid",
    ),
    "sweep": ("sweep ddn/bloom-7b1 --axis workload.batch_size=1,2",),
    "web": ("serve gpt-oss-120b",),
}
"""What asks for each extension."""
PROGRAM = """
import contextlib, io, json, sys

hidden, *lines = json.loads(sys.argv[1])


class Hides:
    def find_spec(self, name, path=None, target=None):
        if f"{name}.".startswith(f"{hidden}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hides())
from simoffload.cli import main

found = []
for line in lines:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = main(line.split())
        except SystemExit as end:
            status = end.code
    found.append((int(status or 0), out.getvalue(), errors.getvalue()))
print(json.dumps(found))
"""


def without(folder: str, *lines: str) -> dict[str, tuple[int, str, str]]:
    """Status, output and errors of commands in a process that cannot import an extension's folder."""
    asked = json.dumps([f"simoffload.extensions.{folder}", *lines])
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=True)
    return dict(zip(lines, map(tuple, json.loads(done.stdout)), strict=True))


def test_each_extension_is_asked_for() -> None:
    assert set(FOLDERS) == ASKED.keys()


@pytest.mark.parametrize("folder", FOLDERS)
def test_all_else_works_without_it(folder: str) -> None:
    found = without(folder, *USUAL, *ASKED[folder])
    for line in USUAL:
        status, out, errors = found[line]
        assert (status, errors, bool(out)) == (0, "", True), line
    for line in ASKED[folder]:
        status, out, errors = found[line]
        assert (status, out) == (2, ""), line
        assert len(errors.splitlines()) == 1
        assert f"{folder} (No module named 'simoffload.extensions.{folder}')" in errors
