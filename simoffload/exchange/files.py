"""Writing a file whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """Open a text file that takes the place of ``path`` when the block ends well, and vanishes otherwise.

    Raises OSError, as ``open`` does.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("x", encoding="utf-8", newline="\n") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
