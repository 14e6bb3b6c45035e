"""All decode steps of a generation from a few simulated ones.

Of step to step only one thing changes: the attention reads a longer cache, and lasts x. From the course of a
simulated step it can be known how long later ones take (``longer``), to the picosecond, as long as nothing
else comes to decide. Where that cannot be known the step in the middle is simulated and each half looked at
again; what is left after ``MOST`` simulated steps is interpolated, and how far simulated steps lay from the
line between their neighbours is the bound that is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from simoffload.errors import ShortcutError
from simoffload.results.passes import PassResult
from simoffload.results.timeline import Timeline

__all__ = ["MOST", "Decoding", "Simulated", "decode", "verify_decoding"]

MOST = 9
"""Steps that are simulated before the rest is interpolated."""
_REMEMBERED = 4096
"""Steps whose durations are kept: they are looked at, and then added up."""
_SAFETY = 2
"""By which the largest distance that was seen is multiplied for the bound: our choice."""

Durations = tuple[int, ...]


class Simulated(NamedTuple):
    """One simulated decode step."""

    step: int
    durations: Durations
    """[ps] of the GPU's work, module by module."""
    result: PassResult
    timeline: Timeline

    @property
    def time(self) -> int:
        """[ps]"""
        return self.timeline.makespan


class Decoding(NamedTuple):
    """All decode steps."""

    simulated: tuple[Simulated, ...]
    """In order of context."""
    total: int
    """[ps] of all steps."""
    bound: float = 0.0
    """Relative to a step's time, how far an interpolated step may be off; 0 = all are exact."""
    estimated: int = 0
    """Steps that are not known exactly."""


Later = Callable[[Simulated, int], int | None]
"""Time [ps] of a step, from a simulated one before it; None where it has to be simulated to know."""


def decode(
    steps: int,
    durations: Callable[[int], Durations],
    run: Callable[[int], Simulated],
    later: Later,
    *,
    most: int = MOST,
) -> Decoding:
    """Times of the decode steps 1 … ``steps``; ``run`` simulates one, ``durations`` says what differs."""
    if steps == 0:
        return Decoding((), 0)
    durations = lru_cache(maxsize=_REMEMBERED)(durations)
    known = {1: run(1)}
    open_ends: list[tuple[int, int]] = [(1, steps)] if steps > 1 else []
    done: list[_Stretch] = []
    while open_ends:
        low, high = open_ends.pop(0)
        stretch = _certain(known[low], high, durations, later)
        if stretch is None:
            if high not in known:
                known[high] = run(high)
            stretch = _Stretch(known[low], known[high].durations, known[high].time, high)
            if high - low > 1 and len(known) < most:
                middle = (low + high) // 2
                known[middle] = run(middle)
                open_ends += [(low, middle), (middle, high)]
                continue
            stretch = stretch._replace(estimated=high - low > 1)
        done.append(stretch)
    simulated = tuple(known[step] for step in sorted(known))
    # Each stretch without its first step, which is the last one of the stretch before.
    total = known[1].time + sum(one.inner(durations) + one.time for one in done)
    estimated = sum(one.last - one.low.step - 1 for one in done if one.estimated)
    bound = _SAFETY * max(_distances(simulated), default=0.0) if estimated else 0.0
    return Decoding(simulated, total, bound, estimated)


def verify_decoding(found: Decoding, full: Decoding) -> None:
    """Raise ShortcutError unless all steps together take as long as in ``full``, or within the bound."""
    difference = abs(found.total - full.total)
    allowed = found.bound * sum(one.time for one in full.simulated) if found.estimated else 0
    if difference > allowed:
        bound = f"; the bound is {allowed:.0f} ps" if allowed else ""
        raise ShortcutError(
            f"decode steps take {found.total} ps interpolated and {full.total} ps simulated one by one{bound}"
        )


class _Stretch(NamedTuple):
    """The steps after a simulated one, up to one whose time is known, too."""

    low: Simulated
    durations: Durations
    """Of the last."""
    time: int
    """[ps] of the last."""
    last: int
    estimated: bool = False

    def inner(self, durations: Callable[[int], Durations]) -> int:
        """[ps] of all steps between the two."""
        return sum([self.at(durations(step)) for step in range(self.low.step + 1, self.last)])

    def at(self, between: Durations) -> int:
        """[ps] of a step between: in equal parts per picosecond that the attention lasts longer."""
        rise = self.time - self.low.time
        for mine, low, high in zip(between, self.low.durations, self.durations, strict=True):
            if low != high:
                return self.low.time + (2 * rise * (mine - low) + high - low) // (2 * (high - low))
        return self.low.time


def _certain(
    low: Simulated, last: int, durations: Callable[[int], Durations], later: Later
) -> _Stretch | None:
    """The steps up to ``last``, if all of them are on straight lines over the one duration that changes."""
    final = durations(last)
    grow = [i for i, pair in enumerate(zip(low.durations, final, strict=True)) if pair[0] != pair[1]]
    stay = [i for i in range(len(final)) if i not in grow]
    if len({low.durations[i] for i in grow}) > 1:
        return None
    fixed = [final[i] for i in stay]
    for step in range(low.step + 1, last + 1):
        own = durations(step)
        values = {own[i] for i in grow}
        if len(values) > 1 or [own[i] for i in stay] != fixed:
            return None
        if grow and not low.durations[grow[0]] <= own[grow[0]] <= final[grow[0]]:
            return None
    time = later(low, last) if grow else low.time
    return None if time is None else _Stretch(low, final, time, last)


def _distances(simulated: tuple[Simulated, ...]) -> Iterator[float]:
    """How far each simulated step is from the line between its neighbours, relative to its time."""
    for low, middle, high in zip(simulated, simulated[1:], simulated[2:], strict=False):
        line = _Stretch(low, high.durations, high.time, high.step)
        yield abs(line.at(middle.durations) - middle.time) / middle.time
