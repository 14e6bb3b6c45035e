"""Standard output, standard error and the exit status of the program."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from enum import IntEnum
from io import TextIOWrapper
from threading import Timer
from types import TracebackType
from typing import Any, Self, TextIO

from simoffload.errors import Problem, printable

_ERROR_SCHEMA = "simoffload/error/1"
_PATIENCE = 1.0  # [s] shorter work shows no progress


class ExitCode(IntEnum):
    """The exit status of a command."""

    OK = 0
    FAILED = 1
    """The simulation could not finish, the output could not be written, or simoffload has a bug."""
    BAD_INPUT = 2
    """A file, an option or a value is wrong."""
    DOES_NOT_FIT = 3
    """The input is valid, and the answer is that the memory is too small, or that no value keeps the service
    levels."""
    INTERRUPTED = 130
    """The status after Ctrl-C, as shells count it."""
    PIPE_CLOSED = 141
    """The reader of the output closed the pipe, as shells count it."""
    TERMINATED = 143
    """The status after SIGTERM, which ``timeout`` and schedulers send, as shells count it."""


class Console:
    """Writes answers to standard output and everything else to standard error.

    With ``--json`` standard output carries exactly one JSON document, be it an answer or an error.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(
                    errors="backslashreplace"
                )  # a terminal that lacks a character shows its code

    @property
    def color(self) -> bool:
        """Whether to use ANSI colours (see https://no-color.org)."""
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """Width of a line [characters]."""
        return min(140, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 100

    def answer(self, text: str, data: Any) -> None:
        """Print an answer: as text (already escaped), or with ``--json`` as one document."""
        sys.stdout.write(self.rendered(text, data))

    def rendered(self, text: str, data: Any) -> str:
        """Return an answer as :meth:`answer` prints it."""
        return _json(data) if self.as_json else text.rstrip("\n") + "\n"

    def print_lines(self, text: str) -> None:
        """Print lines that belong to the answer; with ``--json`` they go to standard error."""
        if self.as_json:
            self.note(text)
        else:
            sys.stdout.write(_lines(text))

    def note(self, text: str) -> None:
        """Print lines that are not part of the answer."""
        self.draw(_lines(text))

    def draw(self, text: str) -> None:
        """Write to standard error unchanged; if it is closed, write nothing."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            _to_nowhere(sys.stderr)

    def warn(self, warnings: Iterable[str]) -> None:
        """Print warnings, one to a line."""
        for warning in warnings:
            self.note(f"warning: {warning}")

    def fail(self, problems: Iterable[Problem]) -> None:
        """Print problems, one to a line."""
        problems = list(problems)
        if self.as_json:
            try:
                plain = [problem._asdict() for problem in problems]
                sys.stdout.write(_json({"schema": _ERROR_SCHEMA, "problems": plain}))
                sys.stdout.flush()
                return
            except BrokenPipeError:
                raise
            except OSError:  # such as a full disk
                self.abandon()
        for problem in problems:
            self.note(f"error: {problem}")

    def close(self) -> None:
        """Flush the output. Raises OSError if that fails, as on a closed pipe."""
        sys.stdout.flush()

    def abandon(self) -> None:
        """Discard output that cannot be written, so that the interpreter does not report it at exit."""
        _to_nowhere(sys.stdout)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _lines(text: str) -> str:
    return "".join(f"{printable(line)}\n" for line in text.split("\n"))


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a stream, with what it has buffered, to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Progress:
    """Shows the current activity when it takes long and standard error is a terminal.

    A context manager that is called with a line at the start of each activity; lines appear after one second
    of work.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._watched = sys.stderr.isatty()
        self._latest = ""
        self._visible = False
        self._began = time.monotonic()
        self._timer = Timer(_PATIENCE, self._appear)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._watched:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def __call__(self, line: str) -> None:
        """Show the activity that starts now."""
        self._latest = line
        if self._visible:
            self._show()

    def _appear(self) -> None:
        self._visible = True
        if self._latest:
            self._show()

    def _show(self) -> None:
        self._console.note(f"[{time.monotonic() - self._began:5.1f} s] {self._latest} …")
