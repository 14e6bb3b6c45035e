"""The exceptions of simoffload, as a tree.

SimoffloadError
├── InputError              a scenario, profile, model or option is wrong; carries every problem found
│   ├── PlacementError      a tier that the machine has, but the strategy cannot use
│   └── CapacityError       a tier is too small for what a stream of requests needs
└── SimulationError         the engine stopped before the end
    ├── DeadlockError       operations remain and none can start
    ├── StalledClockError   events pass and simulated time does not
    ├── ShortcutError       a verified shortcut gives another result than the full run
    └── WorkLimitError      the run would need more time, memory or events than allowed

An answer such as "does not fit" is a result, not an error.

SimPy rebuilds an exception that crosses a process as ``type(e)(*e.args)``: every class here survives that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Self

_ECHO, _PLACE, _WORD, _MESSAGE = 60, 200, 160, 2000
"""Longest part [characters] of a user's text, of a path or key, of a word, and of a message that is shown."""
_LONG_WORD = re.compile(rf"\S{{{_WORD + 1},}}")


def printable(text: str) -> str:
    """Escape characters that a terminal would interpret instead of show: control, direction and zero-width
    characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str, most: int = _ECHO) -> str:
    """Return a user's text for a message: safe to print, and truncated beyond ``most`` characters."""
    shown = printable(text[: most + 1])
    return shown if len(text) <= most and len(shown) <= 2 * most else f"{shown[:most]}…"


def _bounded(problem: Problem) -> Problem:
    """Return the problem with every part cut to a readable length; a path keeps its end."""
    path, _, _, key, message = problem
    if len(path) > _PLACE:
        path = f"…{path[-_ECHO:]}"
    if len(key) > _PLACE:
        key = shortened(key, _PLACE)
    if len(message) > _WORD:
        message = _LONG_WORD.sub(lambda word: f"{word[0][:_WORD]}…", message)
        message = message if len(message) <= _MESSAGE else f"{message[:_MESSAGE]}…"
    return problem._replace(path=path, key=key, message=message)


class Problem(NamedTuple):
    """One problem with the input; its text is one line that is safe to print.

    >>> print(Problem("a.yaml", 6, 5, "tiers[1].capcity", 'unknown key; did you mean "capacity"?'))
    a.yaml:6:5: tiers[1].capcity: unknown key; did you mean "capacity"?
    """

    path: str
    """The file as the user named it; empty where there is none."""
    line: int | None
    """Line in the file, counted from 1."""
    column: int | None
    """Column in characters, counted from 1."""
    key: str
    """Position in the document, e.g. ``tiers[1].capacity``; empty for the document itself."""
    message: str

    def __str__(self) -> str:
        numbers = (str(number) for number in (self.line, self.column) if number is not None)
        place = ":".join(part for part in (self.path, *numbers) if part)
        return printable(": ".join(part for part in (place, self.key, self.message) if part))


class SimoffloadError(Exception):
    """The base class of all errors that simoffload raises on purpose."""


class InputError(SimoffloadError):
    """The input is wrong; ``problems`` holds every problem found, and ``str()`` has one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(map(_bounded, problems))
        super().__init__(self.problems)

    @classmethod
    def at(cls, key: str, message: str, *, path: str = "") -> Self:
        """Return an error for one problem at ``key``; ``path`` is its file or option (default: the input)."""
        return cls((Problem(path, None, None, key, message),))

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class PlacementError(InputError):
    """The strategy cannot use a tier that the machine has."""


class CapacityError(InputError):
    """A tier is too small, where no result can say so: a stream has no cache to run with."""


class SimulationError(SimoffloadError):
    """The engine stopped before the end of the schedule."""


class DeadlockError(SimulationError):
    """Operations remain and none of them can start."""


class StalledClockError(SimulationError):
    """Events pass and simulated time does not."""


class ShortcutError(SimulationError):
    """Folding, jumping or interpolating changed a result: a bug in simoffload."""


class WorkLimitError(SimulationError):
    """The run would need more time, memory or events than allowed."""
