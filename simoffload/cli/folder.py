"""The folder of ``--output-dir``: only our own files are replaced, and all of them or none."""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from simoffload.errors import InputError, Problem

__all__ = [
    "MARKDOWN",
    "RECOMMENDED",
    "REPORT",
    "RESULT",
    "TABLE",
    "TRACE",
    "OutputFolder",
    "Writer",
    "copier",
    "json_writer",
    "text_writer",
]

Writer = Callable[[Path], object]
"""Writes one file to the given path."""

RESULT, REPORT, MARKDOWN, TABLE = "result.json", "report.html", "report.md", "table.csv"
TRACE = "trace.json"
RECOMMENDED = "recommended"
"""A folder in it that is replaced as a whole."""
_OURS = {RESULT, REPORT, MARKDOWN, TABLE, TRACE}
_SIGNATURE = b'"schema": "simoffload/'  # near the beginning of every result.json that we write


def json_writer(data: Any) -> Writer:
    """Write plain values as JSON."""
    return lambda path: path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def text_writer(text: str) -> Writer:
    """Write text as it is."""
    return lambda path: path.write_text(text, encoding="utf-8")


def copier(source: Path) -> Writer:
    """Copy a file."""
    return lambda path: shutil.copyfile(source, path)


class OutputFolder:
    """A folder that results are written to."""

    @classmethod
    def of(cls, arguments: Namespace) -> Self | None:
        """The folder that a command line names, if it does."""
        path = arguments.output_dir
        return cls(path, overwrite=arguments.overwrite) if path is not None else None

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        """Look before anything is computed; InputError if the folder cannot be used."""
        self._path = path
        try:
            self._check(overwrite=overwrite)
        except OSError as error:
            raise self._refusal(f"cannot be used: {error.strerror or error}") from None

    def _check(self, *, overwrite: bool) -> None:
        if not self._path.exists():
            if self._path.is_symlink():
                raise self._refusal("is a link to nowhere")
            above = next(parent for parent in self._path.absolute().parents if parent.exists())
            if not above.is_dir():
                raise self._refusal(f'lies below "{above.name}", which is no folder')
            return
        if not self._path.is_dir():
            raise self._refusal("is a file, not a folder")
        present = sorted(entry.name for entry in self._path.iterdir())
        for name in _OURS.intersection(present):
            entry = self._path / name
            if entry.is_symlink() or not entry.is_file():
                raise self._refusal(f'"{name}" in it is not a plain file')
        inner = self._path / RECOMMENDED
        if inner.is_symlink() or (inner.exists() and not inner.is_dir()):
            raise self._refusal(f'"{RECOMMENDED}" in it is not a plain folder')
        foreign = [name for name in present if name not in (*_OURS, RECOMMENDED)]
        if overwrite or not present or (not foreign and self._is_ours()):
            return
        held = f'"{foreign[0]}"' if foreign else "files of another program"
        raise self._refusal(f"is not empty (it holds {held}); choose another folder or give --overwrite")

    def _is_ours(self) -> bool:
        result = self._path / RESULT
        if not result.is_file():
            return False
        with result.open("rb") as file:
            return _SIGNATURE in file.read(200)

    def _refusal(self, message: str) -> InputError:
        return InputError((Problem("--output-dir", None, None, str(self._path), message),))

    def write(self, files: Mapping[str, Writer]) -> tuple[Path, ...]:
        """Write all files, or leave the folder as it was; InputError if that cannot be done.

        The files are made in a temporary folder beside their places and moved when all are complete.
        """
        try:
            return self._write(files)
        except OSError as error:
            raise self._refusal(f"cannot be written: {error.strerror or error}") from None

    def _write(self, files: Mapping[str, Writer]) -> tuple[Path, ...]:
        existed = self._path.exists()
        place = self._path if existed else self._path.parent
        place.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=".simoffload-", dir=place))
        try:
            for name, writer in files.items():
                (workshop / name).parent.mkdir(parents=True, exist_ok=True)
                writer(workshop / name)
            self._path.mkdir(exist_ok=True)
            for stale in _OURS.difference(files):
                (self._path / stale).unlink(missing_ok=True)
            if (self._path / RECOMMENDED).exists():
                (self._path / RECOMMENDED).rename(workshop / "stale")
            for name in dict.fromkeys(name.partition("/")[0] for name in files):
                (workshop / name).replace(self._path / name)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
        return tuple(self._path / name for name in files)
