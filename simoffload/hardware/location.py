"""A position in a document, at which a problem with the value there is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from simoffload.documents import Document
from simoffload.errors import InputError, Problem

__all__ = ["DocumentLocation"]


class DocumentLocation(NamedTuple):
    """An entry of a document, given by the keys that lead to it."""

    document: Document
    keys: tuple[str | int, ...]

    @property
    def folder(self) -> Path:
        """The folder from which relative paths in this document start."""
        root = self.document.root
        return Path(self.document.path).parent if root is None else root

    def problem(self, message: str, *, at_key: bool = False) -> Problem:
        """Return a problem located at this entry (at its key if ``at_key``)."""
        return self.document.problem(self.keys, message, at_key=at_key)

    def error(self, message: str) -> InputError:
        """Return a problem located at this entry, as an exception."""
        return InputError((self.problem(message),))

    @contextmanager
    def referring(self) -> Iterator[None]:
        """Report at this entry whatever is wrong, as a whole, with a file that is read within this
        context."""
        try:
            yield
        except InputError as error:
            raise InputError(
                one if one.line or one.key else self.problem(f"{one.path}: {one.message}")
                for one in error.problems
            ) from None
