"""Where something is written, to say it when it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from simoffload.documents import Document
from simoffload.errors import InputError, Problem

__all__ = ["DocumentLocation"]


class DocumentLocation(NamedTuple):
    """An entry of a document."""

    document: Document
    keys: tuple[str | int, ...]

    @property
    def folder(self) -> Path:
        """Where relative paths that are written here start."""
        root = self.document.root
        return Path(self.document.path).parent if root is None else root

    def problem(self, message: str, *, at_key: bool = False) -> Problem:
        """A problem at this place (at its key if ``at_key``)."""
        return self.document.problem(self.keys, message, at_key=at_key)

    def error(self, message: str) -> InputError:
        """The same as an exception."""
        return InputError((self.problem(message),))

    @contextmanager
    def referring(self) -> Iterator[None]:
        """Around reading a file to which this place refers: what is wrong with it as a whole is told here."""
        try:
            yield
        except InputError as error:
            raise InputError(
                one if one.line or one.key else self.problem(f"{one.path}: {one.message}")
                for one in error.problems
            ) from None
