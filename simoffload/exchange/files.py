"""Writing a file whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from simoffload.documents import exists, file_errors
from simoffload.errors import InputError, Problem

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """Open a text file that takes the place of ``path`` when the block ends well, and vanishes otherwise.

    Raises InputError where the file cannot be written.
    """
    target = Path(path)
    if exists(target) and target.is_dir():
        raise _refusal(target, "this is a folder, not a file")
    if not target.parent.is_dir():
        raise _refusal(target, "its folder does not exist; make it first")
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("x", encoding="utf-8", newline="\n") as file:
            yield file
        partial.replace(target)
    except OSError:
        with file_errors(target, what="cannot be written"):
            raise
    finally:
        partial.unlink(missing_ok=True)


def _refusal(path: Path, message: str) -> InputError:
    return InputError([Problem(str(path), None, None, "", message)])
