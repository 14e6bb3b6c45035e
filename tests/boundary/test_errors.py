"""Errors can be pickled between processes, and their text is safe to print."""

from __future__ import annotations

import pickle

import pytest

from simoffload import errors
from simoffload.errors import (
    CapacityError,
    DeadlockError,
    InputError,
    PlacementError,
    Problem,
    ShortcutError,
    SimoffloadError,
    SimulationError,
    StalledClockError,
    WorkLimitError,
    printable,
)

UNKNOWN = Problem("a.yaml", 6, 5, "tiers[1].capcity", 'unknown key; did you mean "capacity"?')

EVERY_ERROR = [
    SimoffloadError("stop"),
    InputError((UNKNOWN,)),
    PlacementError((UNKNOWN,)),
    CapacityError((UNKNOWN,)),
    SimulationError("stop"),
    DeadlockError("2 operations wait for each other"),
    StalledClockError("100000 events at 3 ps"),
    ShortcutError("2 ps and 3 ps"),
    WorkLimitError("more than 1000 events"),
]


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_every_error_can_be_rebuilt(error: SimoffloadError) -> None:
    for copy in (type(error)(*error.args), pickle.loads(pickle.dumps(error))):
        assert type(copy) is type(error)
        assert copy.args == error.args
        assert str(copy) == str(error)


def test_every_error_is_tried() -> None:
    classes = {one for name, one in vars(errors).items() if name.endswith("Error")}
    assert classes == {type(error) for error in EVERY_ERROR}


def test_the_tree() -> None:
    assert issubclass(InputError, SimoffloadError)
    assert issubclass(SimulationError, SimoffloadError)
    assert not issubclass(InputError, SimulationError)
    for error in (DeadlockError, ShortcutError, StalledClockError, WorkLimitError):
        assert issubclass(error, SimulationError)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (UNKNOWN, 'a.yaml:6:5: tiers[1].capcity: unknown key; did you mean "capacity"?'),
        (Problem("a.yaml", 6, None, "", "not text in UTF-8"), "a.yaml:6: not text in UTF-8"),
        (Problem("a.yaml", None, None, "", "no such file"), "a.yaml: no such file"),
        (Problem("--set", None, None, "a.b", "must be text"), "--set: a.b: must be text"),
        (Problem("", None, None, "aio.queue_depth", "must be text"), "aio.queue_depth: must be text"),
        (Problem("", None, None, "", "nothing to do"), "nothing to do"),
    ],
)
def test_a_problem_is_one_line(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_an_input_error_has_a_line_for_each_problem() -> None:
    error = InputError([UNKNOWN, Problem("b.yaml", 1, 1, "", "not text")])
    assert error.problems == (UNKNOWN, Problem("b.yaml", 1, 1, "", "not text"))
    assert str(error) == f"{UNKNOWN}\nb.yaml:1:1: not text"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("raid0 µs 中 😀", "raid0 µs 中 😀"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("a\u202eb\u200bc", "a\\u202eb\\u200bc"),
        ("\x07\x7f\x9b", "\\x07\\x7f\\x9b"),
        ("\udc80", "\\udc80"),
        ("\u2028", "\\u2028"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert str(Problem(text, None, None, text, text)) == f"{shown}: {shown}: {shown}"
