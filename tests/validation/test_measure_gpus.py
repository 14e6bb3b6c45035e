"""The script that measures a host with several GPUs, with a program of that name that notes its arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "validation" / "measure_gpus.sh"
PROGRAM = """\
#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in
*"$FAILING"*) exit 2 ;;
esac
while [ "$1" != -o ]; do shift; done
mkdir "$2"
"""


def measured(tmp_path: Path, *arguments: str, failing: str = "nothing") -> tuple[int, list[str]]:
    """Return the exit status of the script, and the calls of the program."""
    program, calls = tmp_path / "bin" / "simoffload", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CALLS": str(calls), "FAILING": failing}
    found = subprocess.run(
        ["sh", SCRIPT, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    return found.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_it_measures_runs_and_measures_again_into_a_new_folder(tmp_path: Path) -> None:
    status, calls = measured(tmp_path, "8", "new/folder")
    assert status == 0
    lists, limits = SCRIPT.parent / "runs", "--time 600 --case-time 180 -o new/folder"
    assert calls == [
        "calibrate micro --gpus 8 -o new/folder/before",
        f"calibrate deepspeed {lists}/several-gpus.yaml --ranks 8 {limits}/several-gpus",
        f"calibrate deepspeed {lists}/several-gpus-holdout.yaml --ranks 8 {limits}/several-gpus-holdout",
        "calibrate micro --gpus 8 --only hooks,copies --quick -o new/folder/after",
    ]
    assert all(Path(line.split()[2]).is_file() for line in calls[1:3])


@pytest.mark.parametrize("failing", ["before", "several-gpus.yaml", "after"])
def test_a_part_that_fails_does_not_prevent_the_others(tmp_path: Path, failing: str) -> None:
    status, calls = measured(tmp_path, "4", "folder", failing=failing)
    assert (status, len(calls)) == (1, 4)


@pytest.mark.parametrize("arguments", [(), ("3", "folder"), ("8",)])
def test_other_arguments_are_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    status, calls = measured(tmp_path, *arguments)
    assert status == 2
    assert calls == []
