"""A sweep of a few points that take no time, and the program that runs it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, closing
from pathlib import Path
from typing import Any

import pytest

from simoffload.cli import main
from simoffload.documents import parse_yaml
from simoffload.extensions.sweep.definition import Sweep, define_sweep
from tests.cli.conftest import SCENARIO


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


Define = Callable[..., Sweep]


@pytest.fixture
def define(tmp_path: Path) -> Define:
    """A sweep of the small scenario with the given text after it and options of ``define_sweep``."""

    def made(text: str = "", **options: Any) -> Sweep:
        return define_sweep(parse_yaml(SCENARIO + text, name="small.yaml", root=tmp_path), **options)

    return made


Process = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, repository: Path) -> Iterator[Process]:
    """Start ``simoffload sweep`` in the folder of the scenario, as a process of its own."""
    all_of_them: list[subprocess.Popen[str]] = []

    def started(*description: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "simoffload", "sweep", *description],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(repository)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        all_of_them.append(process)
        return process

    yield started
    for process in all_of_them:
        process.kill()
        process.communicate()


@pytest.fixture
def written_here(tmp_path: Path, scenario_file: Path) -> Callable[..., bytes]:
    """What ``simoffload sweep`` of the small scenario writes in this process."""

    def write(*description: str) -> bytes:
        out = tmp_path / "here.csv"
        with chdir(tmp_path):
            assert (
                main(["sweep", scenario_file.name, *description, "--quiet", "--workers", "1", "-o", str(out)])
                == 0
            )
        return out.read_bytes()

    return write


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process that ends well says."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def simulated(journal: Path) -> list[int]:
    """The points in a journal, also while another process has it open and writes it."""
    while journal.exists():
        try:
            with closing(sqlite3.connect(f"file:{journal}?mode=ro&immutable=1", uri=True)) as database:
                if not database.execute("SELECT * FROM sqlite_master WHERE name = 'rows'").fetchall():
                    return []
                return [point for (point,) in database.execute("SELECT point FROM rows")]
        except sqlite3.DatabaseError:  # a transaction is being written
            time.sleep(0.001)
    return []
