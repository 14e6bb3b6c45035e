"""The command line. Nothing heavy is imported before a command needs it: ``--help`` must answer at once.

Nor is anything here that is not in the interpreter already: until ``main`` is called, Ctrl-C is a traceback.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit status; without ``argv`` that of this process."""
    if argv is None:
        _stop_at_once()
        _open_streams()
    from simoffload.cli.program import run

    return run(sys.argv[1:] if argv is None else argv, own_process=argv is None)


def _stop_at_once() -> None:
    """Until there is something to clean up, let signals end the process without a traceback."""
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
    """Put something in the place of standard streams that were closed.

    Otherwise the next file that is opened would get the number of one, and what is printed. What cannot be
    read or written fails as it would on the closed stream, but for errors, which nobody wants to hear.
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
