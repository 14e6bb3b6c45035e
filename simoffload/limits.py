"""Limits of time, memory and operations, which apply from reading a scenario to reporting its answer.

A limit applies while a function decorated with :func:`limited` runs; of nested ones the outermost counts. The
clock and the memory of the process are checked every hundredth of a second and the function is interrupted
wherever it is, so that no loop has to check. In the main thread a timer signal does this, which also
interrupts C code that looks for signals (``re``, arithmetic of huge integers, reading). Elsewhere (another
thread, Windows, a program with a timer of its own) a thread does, which can only interrupt between steps of
Python. A single call of other C code cannot be interrupted, so that code that may build a huge sequence in
one call checks first (:func:`count_elements`). Operations are counted as they are written
(``ScheduleBuilder``), since each takes memory and time.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from math import inf
from typing import NamedTuple, ParamSpec, TypeVar

from simoffload.errors import WorkLimitError
from simoffload.progress import working_on

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_MEMORY = 4 << 30
"""Default limit [B] of the memory for one question: our choice; small machines have several times as much."""
LEAST_MEMORY = 256 << 20
"""Smallest limit [B] that may be set: our choice; a shipped scenario took 45 MB in total, 86 MB with its
report."""
_INTERVAL = 0.01
"""Time [s] between two checks, in which loops of Python allocate at most some tens of megabytes."""
_AGAIN = 0.1
"""Time [s] after which a function that did not end is interrupted again: libraries may swallow the first
interruption."""


class Limits(NamedTuple):
    """The limits of answering one question."""

    timeout: float | None = None
    """Time [s] from the question to the answer; None: unlimited."""
    memory: int = DEFAULT_MEMORY
    """Memory that answering may take [B]."""
    max_events: int | None = None
    """Operations of one pass, on all ranks; None: unlimited."""

    def within(self, most: Limits) -> Limits:
        """Return the smaller one of each limit of both."""
        events = [one for one in (self.max_events, most.max_events) if one is not None]
        times = [one for one in (self.timeout, most.timeout) if one is not None]
        return Limits(min(times, default=None), min(self.memory, most.memory), min(events, default=None))


_CTRL_C = "Ctrl-C"
_SHARED = "engine.timeout (--timeout), which all parts of the answer share"
_ELEMENT = 16
"""Memory [B] of an element of a sequence while it is built: a pointer, and one in its copy."""


class Interrupted(BaseException):
    """Raised in the middle of a function that has reached a limit; no ``except Exception`` catches it."""


class _LostInterruptions:
    """Suppresses reports of interruptions that Python drops, as in a destructor; another interruption
    follows."""

    def __init__(self, otherwise: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._otherwise = otherwise

    def __call__(self, lost: sys.UnraisableHookArgs, /) -> None:
        if not isinstance(lost.exc_value, Interrupted):
            self._otherwise(lost)


class _Alarm:
    """Calls a function of the main thread again and again, between its steps and within its C code.

    It is a timer of the system, which a process has only once: ``is_free`` tells whether nobody uses it.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._before = signal.signal(signal.SIGALRM, lambda *_: look())
        signal.setitimer(signal.ITIMER_REAL, _INTERVAL, _INTERVAL)

    @staticmethod
    def is_free() -> bool:
        """Return whether this is the main thread and its timer is not used."""
        return (
            hasattr(signal, "setitimer")
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
            and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        )

    def stop(self) -> None:
        """Stop the timer and restore what was there before."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


class _Looker:
    """A thread that calls a function again and again until it is stopped."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._over = threading.Event()
        self._look = look
        threading.Thread(target=self._run, name="simoffload limits", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread; it may call the function once more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._look()


class _Watch:
    """The resources that one outermost limited function has used so far."""

    def __init__(self, held_before: int) -> None:
        self.limits = Limits().within(_process.most)
        self.doing = "reading the scenario"
        self.reached = ""
        """The limit that was reached, as text; empty while there is none."""
        self._began, self._until = time.monotonic(), _current.until
        self._held_before = held_before
        self._thread = threading.get_ident()
        self._closed = False
        self._again = 0.0
        """Time from which the function may be interrupted again."""
        self._lock = threading.Lock()
        self._alarm: _Alarm | _Looker | None = None

    def begin(self) -> None:
        """Begin to interrupt the thread of the function, which is this one, beyond a limit."""
        if _Alarm.is_free():
            self._alarm = _Alarm(self._interrupt_here)
        else:
            self._alarm = _Looker(self._interrupt_there)

    def close(self) -> None:
        """Stop watching: afterwards the function's thread is not interrupted any more."""
        while True:
            try:
                self._close()
                for _ in range(2):
                    pass  # a pending interruption is raised here
                _current.watch = None
                if self._alarm is not None:
                    self._alarm.stop()
            except Interrupted:
                continue
            return

    def _close(self) -> None:
        if not isinstance(self._alarm, _Looker):  # an alarm is in this thread, which cannot wait for itself
            self._closed = True
            return
        with self._lock:
            self._closed = True

    @property
    def memory_left(self) -> int:
        """The memory [B] until the limit is reached."""
        return self.limits.memory - (_resident() - self._held_before)

    def error(self) -> WorkLimitError:
        """Return the error to raise when a limit was reached."""
        return WorkLimitError(self.reached)

    def _interrupt_here(self) -> None:
        """Interrupt the function, in whose thread this is called, if it is beyond a limit."""
        if not self._closed and self._is_due():
            raise Interrupted

    def _interrupt_there(self) -> None:
        """Interrupt the function in its thread if it is beyond a limit."""
        if not self._is_due():
            return
        with self._lock:
            if not self._closed:
                _interrupt(self._thread)

    def _is_due(self) -> bool:
        """Return whether the function is beyond a limit and was not interrupted just now."""
        if time.monotonic() < self._again or not self.is_beyond():
            return False
        self._again = time.monotonic() + _AGAIN
        return True

    def is_beyond(self) -> bool:
        """Return whether a limit was reached, and record it in ``reached``."""
        if not self.reached:
            timeout, memory, _ = self.limits
            if _process.is_interrupted:
                exceeded = _CTRL_C
            elif timeout is not None and time.monotonic() - self._began > timeout:
                exceeded = f"engine.timeout (--timeout) after {timeout:g} s"
            elif time.monotonic() > self._until:
                exceeded = f"{_SHARED},"
            elif _resident() - self._held_before > memory:
                exceeded = f"engine.memory (--memory-limit) at {memory / (1 << 30):.3g} GiB"
            else:
                return False
            self.reached = _stopped(exceeded, self.doing)
        return True


class _Current(threading.local):
    watch: _Watch | None = None
    until: float = inf
    """Time of the clock at which all limited functions end."""


class _Process:
    most = Limits(memory=sys.maxsize)
    """Limits that no question exceeds, whatever it sets."""
    ours = False
    """Whether the process serves only simoffload, as the command line does."""
    on_interrupt: Callable[[], object] | None = None
    """Function to call on an interruption; None where nothing is interruptible."""
    is_interrupted = False


_current = _Current()
_process = _Process()


def count_whole_process() -> None:
    """Count all memory of the process from now on, not only what a question adds to it."""
    _process.ours = True


def restrict(most: Limits) -> None:
    """Set limits that no question of this process exceeds from now on, whatever limits it has of its own."""
    _process.most = most


def limited(function: Callable[P, T]) -> Callable[P, T]:
    """Make limits apply while ``function`` runs: those that :func:`keep` sets in it, otherwise the defaults.

    The function raises WorkLimitError when it reaches one.
    """

    @wraps(function)
    def limited_function(*args: P.args, **kwargs: P.kwargs) -> T:
        if _current.watch is not None:
            return function(*args, **kwargs)
        if not isinstance(sys.unraisablehook, _LostInterruptions):
            sys.unraisablehook = _LostInterruptions(sys.unraisablehook)
        check_time()
        watch = _current.watch = _Watch(0 if _process.ours else _resident())
        try:
            try:
                watch.begin()
                answer = function(*args, **kwargs)
            finally:
                watch.close()
        except Interrupted:
            watch.close()
            # The interruption stays its context and keeps all objects of the function alive: freeing
            # gigabytes takes seconds, which the caller may spend or avoid.
            raise watch.error() from None
        except MemoryError:
            doing = f"while {watch.doing}"
            raise WorkLimitError(f"stopped by the memory of this machine {doing}; simulate less") from None
        except Exception:
            if watch.reached:  # perhaps what a library made of the interruption
                raise watch.error() from None
            raise
        if watch.is_beyond():
            raise watch.error()
        return answer

    return limited_function


@contextmanager
def sharing(timeout: float | None) -> Iterator[None]:
    """Make all limited functions inside share a time [s], besides their own limits; None: only those."""
    before = _current.until
    _current.until = min(before, inf if timeout is None else time.monotonic() + timeout)
    try:
        yield
    finally:
        _current.until = before


@contextmanager
def interruptible(on_interrupt: Callable[[], object]) -> Iterator[None]:
    """Let :func:`interrupt` end all limited functions inside: what they found so far is the answer."""
    _process.on_interrupt = on_interrupt
    try:
        yield
    finally:
        _process.on_interrupt, _process.is_interrupted = None, False


def interrupt() -> bool:
    """End all limited functions inside :func:`interruptible` as a limit does; return whether there can be any
    that have not ended so before."""
    if _process.on_interrupt is None or _process.is_interrupted:
        return False
    _process.is_interrupted = True
    _process.on_interrupt()
    return True


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the interpreter from searching for garbage in cycles: a simulation makes little of it, and many
    objects that live until its end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def check_time() -> None:
    """Raise WorkLimitError if the shared time is over, or after an interruption."""
    if _process.is_interrupted or time.monotonic() > _current.until:
        raise WorkLimitError(_stopped(_CTRL_C if _process.is_interrupted else _SHARED))


def _stopped(reached: str, doing: str = "") -> str:
    """Return what a WorkLimitError says about a limit that was reached."""
    when = f" while {doing}" if doing else ""
    return f"stopped by {reached}{when}" + (
        "" if reached == _CTRL_C else "; raise the limit, or simulate less"
    )


def time_left() -> float:
    """Return what is left of the shared time [s]; infinite if none is shared."""
    return _current.until - time.monotonic()


def keep(limits: Limits) -> None:
    """Set the limits of the question that is being answered."""
    if _current.watch is not None:
        _current.watch.limits = limits.within(_process.most)


def now_doing(what: str) -> None:
    """Set the activity that progress shows and a message about a limit names, such as "planning"."""
    working_on(what)
    if _current.watch is not None:
        _current.watch.doing = what


def count_elements(number: int) -> None:
    """Raise WorkLimitError if a sequence of ``number`` elements would exceed the remaining memory.

    Call it before a single call builds the sequence, which cannot be interrupted.
    """
    watch = _current.watch
    if watch is not None and number * _ELEMENT > watch.memory_left:
        most = watch.limits.memory / (1 << 30)
        raise WorkLimitError(
            f"stopped by engine.memory (--memory-limit) at {most:.3g} GiB while {watch.doing}, before "
            f"{number:,} tensors were listed; raise the limit, or simulate less"
        )


def count_operations(name: str, number: int) -> None:
    """Raise WorkLimitError if a pass called ``name`` may not have ``number`` operations on all ranks."""
    most = None if _current.watch is None else _current.watch.limits.max_events
    if most is not None and number > most:
        raise WorkLimitError(
            f'the pass "{name}" has at least {number:,} operations; engine.max_events (--max-events) allows '
            f"{most:,}; raise the limit, or simulate less"
        )


def _interrupt(thread: int) -> None:
    """Raise an interruption in another thread.

    It is never taken back: Python 3.11 then keeps looking for it, with a profiler forever.
    """
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))


def _resident() -> int:
    """Return the memory [B] that the process holds; where the system does not report it, the peak so far."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)  # a hundred times a second: no objects around it
        try:
            pages = os.read(file, 200).split()[1]
        finally:
            os.close(file)
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return _peak()


def _peak() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes if os.uname().sysname == "Darwin" else kibibytes * 1024
