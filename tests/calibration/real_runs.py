"""Runs of real DeepSpeed, Accelerate and transformers that several tests look at, all started together.

Most of a run on the CPU is the start of its processes: one command makes all runs that the collected tests
want, and those with equal numbers of ranks share processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_WANTED: dict[str, Mapping[str, Any]] = {}
_REFUSED: dict[str, Mapping[str, Any]] = {}


class Recorded(NamedTuple):
    """The content of ``runs.json``."""

    runs: dict[str, dict[str, Any]]
    """The record of each run by its name."""
    errors: dict[str, str]
    """The reason of each failed run by its name."""
    data: dict[str, Any]
    """The whole file."""


def want(runs: Mapping[str, Mapping[str, Any]], *, refused: bool = False) -> None:
    """Have runs made for the tests of a module, which calls this when it is imported; the keys are their
    names. With ``refused`` they must fail."""
    assert not runs.keys() & (_WANTED.keys() | _REFUSED.keys()), "names must differ"
    (_REFUSED if refused else _WANTED).update(runs)


def record(folder: Path) -> Recorded:
    """Make all runs that are wanted with ``simoffload calibrate deepspeed``."""
    # A failure ends its processes, so those that must fail come last.
    runs = [{**run, "name": name} for name, run in (*_WANTED.items(), *_REFUSED.items())]
    (folder / "wanted.json").write_text(json.dumps({"runs": runs}))
    out = folder / "out"
    command = [sys.executable, "-m", "simoffload", "calibrate", "deepspeed", str(folder / "wanted.json")]
    environment = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, "-o", str(out)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    data: dict[str, Any] = json.loads((out / "runs.json").read_text()) if (out / "runs.json").exists() else {}
    errors = {one["name"]: one["error"] for one in data.get("failed", ())}
    log = (out / "log.txt").read_text()[-4000:] if (out / "log.txt").exists() else ""
    assert errors.keys() == _REFUSED.keys(), done.stderr + log
    assert done.returncode == bool(errors), done.stderr + log
    assert all(reason in done.stderr for reason in errors.values())
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "runs.json"], "swap files are left"
    return Recorded({run["name"]: run for run in data["runs"]}, errors, data)
