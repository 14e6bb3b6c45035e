"""The command line. Heavy modules are imported only when a command needs them, so that ``--help`` is fast.

This module imports only what the interpreter has loaded: until ``main`` runs, Ctrl-C prints a traceback.
"""

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit status; without ``argv`` the command of this process."""
    if argv is not None:
        from simoffload.cli.program import run

        return run(argv)
    _stop_at_once()
    _open_streams()
    _start_lightly()
    if "_ARGCOMPLETE" in os.environ:
        from simoffload.cli.completion import complete

        complete()
    from simoffload.cli.program import run

    status = run(sys.argv[1:], own_process=True)
    gc.freeze()  # all objects end with the process; the interpreter need not collect them first
    return status


def _start_lightly() -> None:
    """Switch off work of the interpreter that helps only long runs and other programs."""
    # Modules, schemas and some simulations are up to a million objects that stay, and little that is done
    # makes cycles: collecting garbage while they are created takes a tenth of a run.
    gc.set_threshold(1_000_000)
    # Pydantic would search all installed packages for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _stop_at_once() -> None:
    """Let signals end the process without a traceback, as long as there is nothing to clean up."""
    import _signal as signal  # type: ignore[import-not-found]  # what signal is made of, without its enums

    def stop(number: int, _frame: object) -> None:
        message = b"terminated\n" if number == signal.SIGTERM else b"interrupted\n"
        try:  # noqa: SIM105 - contextlib would have to be imported first
            os.write(2, message)
        except OSError:
            pass
        os._exit(128 + number)  # as shells count it

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored
        signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def _open_streams() -> None:
    """Replace standard streams that were closed.

    Otherwise the next file that is opened would get the descriptor of one, and the text printed to it.
    Reading and writing fail as on the closed stream; only messages on standard error are dropped.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # gets the lowest number that is free
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
