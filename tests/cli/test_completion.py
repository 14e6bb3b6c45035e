"""Completion in a shell: what Tab proposes, and the script for each shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import Program
from tests.examples import one_in


def proposed(line: str) -> list[str]:
    """The words that are proposed after a line, as the script of bash asks for them."""
    code = "import os; os.dup2(1, 8); os.dup2(2, 9); import simoffload.cli; simoffload.cli.main()"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    return run.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    one_in(
        2,
        [
            ("simoffload a", ["advise"]),
            ("simoffload run ddn/bloom-7", ["ddn/bloom-7b1"]),
            ("simoffload run x --gpu rtx-409", ["rtx-4090"]),
            ("simoffload run x --set workload.batch", ["workload.batch_size="]),
            ("simoffload reach x --by strategy.ds_config.aio.queue", ["strategy.ds_config.aio.queue_depth"]),
            ("simoffload profiles show titan-rtx-", ["titan-rtx-2gpu"]),
        ],
    ),
)
def test_what_tab_proposes(line: str, words: list[str]) -> None:
    assert proposed(line) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(program: Program, shell: str) -> None:
    answer = program("completion", shell)
    assert answer.status == 0
    assert "simoffload" in answer.out
    assert "_ARGCOMPLETE" in answer.out
