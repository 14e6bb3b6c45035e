"""What the process's exit status means."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """Exit statuses of every command."""

    OK = 0
    FAILED = 1
    """The simulation could not finish, the output not be written, or there is a mistake in simoffload."""
    BAD_INPUT = 2
    """A file, an option or a value is wrong."""
    DOES_NOT_FIT = 3
    """The question is sound, and the answer is that memory is too small."""
    INTERRUPTED = 130
    """Ctrl-C, as shells count it."""
    PIPE_CLOSED = 141
    """Whoever read the output went away, as shells count it."""
    TERMINATED = 143
    """SIGTERM, which ``timeout`` and schedulers send, as shells count it."""
