"""The program: it runs a command and turns every error into a message and an exit status."""

from __future__ import annotations

import contextlib
import datetime  # noqa: F401  # pydantic's core panics if an interrupt comes while it imports this
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from simoffload.cli.arguments import parse
from simoffload.cli.console import Console, ExitCode
from simoffload.errors import CapacityError, InputError, Problem, SimulationError, WorkLimitError, shortened
from simoffload.limits import Interrupted, count_whole_process, interrupt


def run(argv: Sequence[str], *, own_process: bool = False) -> int:
    """Run one command and return its exit status.

    ``own_process`` = the process does nothing else and may be ended here.
    """
    if own_process:
        count_whole_process()
    console = Console(as_json="--json" in argv)
    received: list[int] = []
    try:
        with _stoppable(received):
            status = _guarded(argv, console, received, own_process=own_process)
        console.close()
    except KeyboardInterrupt:  # a second one, while the first was handled
        return _stopped(console, received)
    except BrokenPipeError:
        console.abandon()
        return ExitCode.PIPE_CLOSED
    except OSError as error:
        return _unwritable(error, console)
    return status


@contextlib.contextmanager
def _stoppable(received: list[int]) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, and record which signal came, because an interrupted library may raise an
    error of its own. Where an answer can be made of what was found so far, the first Ctrl-C asks for it."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be caught
        yield
        return

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        if number == signal.SIGTERM or not interrupt():
            raise KeyboardInterrupt

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        """Interrupt again where Python would only print the interrupt, as it does in a destructor."""
        if issubclass(unraisable.exc_type, Interrupted):
            return  # by a limit, which interrupts again
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, os.kill, (os.getpid(), received[-1])).start()
        else:
            hook(unraisable)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # otherwise the caller wants it ignored
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    hook, sys.unraisablehook = sys.unraisablehook, again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopped(console: Console, received: Sequence[int]) -> int:
    terminated = signal.SIGTERM in received
    text = "terminated" if terminated else "interrupted"
    console.note(text)
    if console.as_json and not console.answered:
        console.fail([Problem("", None, None, "", text)])
    return _ended_by(received)


def _ended_by(received: Sequence[int]) -> ExitCode:
    return ExitCode.TERMINATED if signal.SIGTERM in received else ExitCode.INTERRUPTED


def _guarded(argv: Sequence[str], console: Console, received: Sequence[int], *, own_process: bool) -> int:
    """Turn every exception of a command into a message and a status."""
    try:
        if sys.flags.optimize > 1:
            text = "simoffload reads its metrics from docstrings: use python -O, or PYTHONOPTIMIZE=1, instead"
            raise InputError.at("", text, path="python -OO")
        arguments = parse(argv)
        status = int(arguments.command(arguments, console))
        return _ended_by(received) if received else status
    except SystemExit as stop:  # argparse, after --help and --version
        return int(stop.code or 0)
    except InputError as error:
        console.fail(error.problems)
        return ExitCode.DOES_NOT_FIT if isinstance(error, CapacityError) else ExitCode.BAD_INPUT
    except SimulationError as error:
        if received:  # before anything was found
            return _stopped(console, received)
        console.fail([Problem("", None, None, "", str(error))])
        if own_process and isinstance(error, WorkLimitError):
            console.close()
            os._exit(ExitCode.FAILED)  # freeing the gigabytes that the error refers to takes seconds
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return _stopped(console, received)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _unwritable(error, console)
    except BaseException as error:  # libraries in Rust raise what is no Exception
        if received:
            return _stopped(console, received)
        if os.environ.get("SIMOFFLOAD_DEBUG") == "1":
            import traceback

            console.note(traceback.format_exc().rstrip())
        console.fail([_unexpected(error)])
        return ExitCode.FAILED


def _unexpected(error: BaseException) -> Problem:
    """Return what to say about an error in code: its place, if it is in a program of the user's own."""
    import traceback
    from sysconfig import get_paths

    what = f"{type(error).__name__}: {error}".replace("\n", " ").rstrip(": ")
    libraries = map(get_paths().get, ("stdlib", "platstdlib", "purelib", "platlib"))
    known = (str(Path(__file__).parents[1]), *filter(None, libraries), "<")
    own = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(known)]
    if own:
        debug = "SIMOFFLOAD_DEBUG=1 shows the traceback"
        return Problem(own[-1].filename, own[-1].lineno, None, "", f"error in this code: {what}; {debug}")
    return Problem("", None, None, "", f"internal error: {what} (please report)")


def _unwritable(error: OSError, console: Console) -> int:
    """Report that a file or the output cannot be written."""
    what = shortened(str(error.filename or "the output"))
    console.fail([Problem("", None, None, "", f"cannot write {what}: {error.strerror or error}")])
    try:
        console.close()
    except OSError:
        console.abandon()
    return ExitCode.FAILED
