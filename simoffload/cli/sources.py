"""Where a scenario comes from: a file, the shipped ones, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simoffload.errors import InputError, Problem

if TYPE_CHECKING:
    from simoffload.documents import Document
    from simoffload.scenario import LoadedScenario

__all__ = ["STDIN", "STDIN_NAME", "load", "move", "read"]

STDIN = "-"
STDIN_NAME = "<stdin>"
_STDIN_LIMIT = 1 << 21  # [B] above the limit for documents, which then says what is wrong


def read(source: str) -> Document:
    """Read a document from a file or from standard input."""
    from simoffload.documents import parse_yaml, read_document

    if source != STDIN:
        return read_document(Path(source))
    return parse_yaml(_stdin_text(), name=STDIN_NAME, root=Path())


def _stdin_text() -> str:
    data = sys.stdin.buffer.read(_STDIN_LIMIT)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError((Problem(STDIN_NAME, None, None, "", "is not text in UTF-8"),)) from None


def load(source: str, *, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Load a scenario from a file, by the name of a shipped one, or from standard input."""
    from simoffload.scenario import load_scenario, resolve

    if source == STDIN:
        return resolve(read(source), overrides=overrides)
    return load_scenario(source, overrides=overrides)


def move(scenario: LoadedScenario, targets: Sequence[str]) -> dict[str, LoadedScenario]:
    """The same work on every target of ``--on``."""
    from simoffload.planning import on_targets

    try:
        return on_targets(scenario, targets)
    except InputError as error:
        named = (one if one.path else one._replace(path="--on") for one in error.problems)
        raise InputError(named) from None
