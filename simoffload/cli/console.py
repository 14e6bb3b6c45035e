"""Standard output, standard error and the exit status of the program."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from enum import IntEnum
from io import TextIOWrapper
from textwrap import wrap
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Self, TextIO

from simoffload.errors import Problem, printable
from simoffload.limits import interruptible
from simoffload.progress import Progress, clock, watched_by

_ERROR_SCHEMA = "simoffload/error/1"
_PATIENCE = 1.0  # [s] shorter work shows no progress
_BAR, _UNKNOWN_WIDTH = 24, 80  # [characters]
_OFTEN, _SELDOM = 0.2, 10.0  # [s] between two lines of progress: in place of each other, and below each other


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

    @classmethod
    def of(cls, fits: object) -> Self:
        """Return the status of an answer: whether something fits, or keeps the service levels."""
        return cls.OK if fits else cls.DOES_NOT_FIT


class Console:
    """Writes answers to standard output and everything else to standard error.

    With ``--json`` standard output carries exactly one JSON document, be it an answer or an error.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.answered = False
        """Whether something of the answer was written."""
        self._drawn = 0
        """Length [characters] of the line on standard error that the next output replaces."""
        self._lock = Lock()  # progress is drawn by a thread
        self._notices: list[str] = []
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
        self.print_answer(self.rendered(text, data))

    def print_answer(self, rendered: str) -> None:
        """Print an answer that is already rendered."""
        self.answered = True
        sys.stdout.write(rendered)
        self._print_notices()

    def rendered(self, text: str, data: Any) -> str:
        """Return an answer as :meth:`answer` prints it."""
        return _json(data) if self.as_json else text.rstrip("\n") + "\n"

    def print_lines(self, text: str) -> None:
        """Print lines that belong to the answer; with ``--json`` they go to standard error."""
        if self.as_json:
            self.note(text)
        else:
            sys.stdout.write(_lines(text))
            sys.stdout.flush()  # who waits for an address reads it through a pipe, too

    def note(self, text: str) -> None:
        """Print lines that are not part of the answer."""
        self.draw(_lines(text))

    def notice(self, text: str) -> None:
        """Print what the reader of the answer should know, wrapped and after it; without one, nothing."""
        if text not in self._notices:
            self._notices.append(text)
        if self.answered:
            self._print_notices()

    def _print_notices(self) -> None:
        notices, self._notices = self._notices, []
        if notices:
            sys.stdout.flush()  # so that the answer is first where both are one terminal
        for text in notices:
            width = min(self.width, _terminal_width()) if sys.stderr.isatty() else self.width
            self.note("\n".join(wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)))

    def draw(self, text: str) -> None:
        """Write to standard error unchanged; if it is closed, write nothing."""
        with self._lock:
            self._write(self._blank() + text)
            self._drawn = 0

    @property
    def overwrites(self) -> bool:
        """Whether standard error is a terminal on which a line can take the place of another."""
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def overwrite(self, line: str) -> None:
        """Write a line to standard error, cut to the width of the terminal, that the next output replaces."""
        with self._lock:
            shown = printable(line)[: _terminal_width() - 1]
            self._write(f"{self._blank()}{shown}")
            self._drawn = len(shown)

    def erase(self) -> None:
        """Erase the line of :meth:`overwrite`."""
        if self._drawn:
            self.draw("")

    def _blank(self) -> str:
        """Return the text that erases what is drawn, without codes that a terminal may lack."""
        return f"\r{' ' * self._drawn}\r" if self._drawn else ""

    def _write(self, text: str) -> None:
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
        problems, self._notices = list(problems), []
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


def _terminal_width() -> int:
    """Return the width [characters] of standard error."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _UNKNOWN_WIDTH
    except OSError:
        return _UNKNOWN_WIDTH


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a stream, with what it has buffered, to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Waiting:
    """Shows how far a question is to whoever waits for its answer.

    A context manager around the question. On a terminal, one line on standard error appears after a second
    and is erased at the end. With ``partial`` the first Ctrl-C ends the question with what it found so far;
    the first line of the answer then says how far it was.
    """

    def __init__(self, console: Console, *, partial: bool = False) -> None:
        self._console, self._partial = console, partial
        self._progress = Progress()
        self._reached = ""
        """How far the question was when it was interrupted."""
        self._began = time.monotonic()
        self._over = Event()
        self._thread = Thread(target=self._follow, name="simoffload progress", daemon=True)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(watched_by(self._progress))
        if self._partial:
            self._open.enter_context(interruptible(self._interrupt))
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.ident is not None:  # it has begun
            self._thread.join()
        self._console.erase()
        self._open.close()
        if self._reached and kind is None:
            self._console.note(f"not complete: {self._reached}")

    def _interrupt(self) -> None:
        at = self._progress.line
        self._reached = f"stopped by Ctrl-C at {at}" if at else "stopped by Ctrl-C"

    def _follow(self) -> None:
        console, wait = self._console, _PATIENCE
        show, pause = (console.overwrite, _OFTEN) if console.overwrites else (console.note, _SELDOM)
        while not self._over.wait(wait):
            line = waiting_line(self._progress, time.monotonic() - self._began)
            show("stopping; Ctrl-C again ends at once" if self._reached else line)
            wait = pause


def waiting_line(progress: Progress, elapsed: float) -> str:
    """Return what is done of what, the time so far and the time left, and what happens now."""
    total, left = progress.total, progress.time_left()
    done = f"{bar(progress.share)} {progress.done:,}/{total:,}  " if total else ""
    times = clock(elapsed) if left is None else f"{clock(elapsed)}, {clock(left)} left"
    return f"{done}{times}  {progress.now or 'working'}"


def bar(share: float) -> str:
    """Return a bar of which a part is filled."""
    filled = int(_BAR * share)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"
