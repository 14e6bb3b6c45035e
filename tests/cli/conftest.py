"""A small scenario that runs in a fraction of a second, and the program in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simoffload.cli import main
from simoffload.planning import evaluator

SCENARIO = """\
name: small
model: bloom-560m
platform: dgx-a100
workload: {batch_size: 2, prompt_length: 8, output_length: 4}
strategy:
  ranks: 2
  weights: raid
  ds_config:
    zero_optimization: {offload_param: {buffer_size: 4e9}}
"""


class Answer(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


Program = Callable[..., Answer]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The program, in a folder that holds ``small.yaml``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)

    def run(*argv: str) -> Answer:
        status = main(argv)
        return Answer(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def _records() -> dict[str, Any]:
    return {}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, _records: dict[str, Any]) -> None:
    """Let the command share what it simulates with those of other tests, by the content of scenarios."""
    monkeypatch.setattr(evaluator, "_SharedWork", partial(evaluator._SharedWork, records=_records))
