"""All decode steps of a generation from a few simulated ones.

Of step to step only one thing changes: the attention reads a longer cache, and lasts x. Where two steps take
the same course (``same_course``), all times of the steps between them lie on straight lines over x, so that
their passes are known to the picosecond. Where they do not, the step between them is simulated and each half
looked at again; what is left after ``MOST`` simulated steps is interpolated, and how far simulated steps lay
from the line between their neighbours is the bound that is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from simoffload.errors import ShortcutError
from simoffload.results.course import same_course
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


def decode(
    steps: int, durations: Callable[[int], Durations], run: Callable[[int], Simulated], *, most: int = MOST
) -> Decoding:
    """Times of the decode steps 1 … ``steps``; ``run`` simulates one, ``durations`` says what differs."""
    if steps == 0:
        return Decoding((), 0)
    durations = lru_cache(maxsize=_REMEMBERED)(durations)
    known = {1: run(1)}
    alike = steps > 1 and durations(steps) == known[1].durations
    if steps > 1:
        known[steps] = known[1]._replace(step=steps) if alike else run(steps)
    open_ends: list[tuple[int, int]] = [(1, steps)]
    done: list[_Stretch] = []
    while open_ends:
        low, high = open_ends.pop(0)
        stretch = _Stretch(known[low], known[high])
        if high - low < 2 or stretch.exact(durations):
            done.append(stretch)
            continue
        if len(known) >= most:
            done.append(stretch._replace(estimated=True))
            continue
        middle = (low + high) // 2
        known[middle] = run(middle)
        open_ends += [(low, middle), (middle, high)]
    total = sum(one.time for one in known.values()) + sum(stretch.inner(durations) for stretch in done)
    estimated = sum(one.high.step - one.low.step - 1 for one in done if one.estimated)
    simulated = tuple(known[step] for step in sorted(known) if not (alike and step == steps))
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
    """The steps between two simulated ones."""

    low: Simulated
    high: Simulated
    estimated: bool = False

    def exact(self, durations: Callable[[int], Durations]) -> bool:
        """Whether all steps between are on straight lines over the one duration that changes."""
        changed = self._changed()
        if len(changed) > 1:
            return False
        ends = sorted(next(iter(changed))) if changed else [0, 0]
        for step in range(self.low.step + 1, self.high.step):
            between = durations(step)
            if not all(
                mine == low if low == high else ends[0] <= mine <= ends[1]
                for mine, low, high in zip(between, self.low.durations, self.high.durations, strict=True)
            ):
                return False
            if len({one for one, low, high in self._zipped(between) if low != high}) > 1:
                return False
        return not changed or same_course(self.low.timeline, self.high.timeline)

    def _changed(self) -> set[tuple[int, int]]:
        pairs = zip(self.low.durations, self.high.durations, strict=True)
        return {(low, high) for low, high in pairs if low != high}

    def _zipped(self, between: Durations) -> Iterator[tuple[int, int, int]]:
        return zip(between, self.low.durations, self.high.durations, strict=True)

    def inner(self, durations: Callable[[int], Durations]) -> int:
        """[ps] of all steps between the two."""
        return sum(self.at(durations(step)) for step in range(self.low.step + 1, self.high.step))

    def at(self, between: Durations) -> int:
        """[ps] of a step between: in equal parts per picosecond that the attention lasts longer."""
        rise = self.high.time - self.low.time
        for mine, low, high in self._zipped(between):
            if low != high:
                return self.low.time + (2 * rise * (mine - low) + high - low) // (2 * (high - low))
        return self.low.time


def _distances(simulated: tuple[Simulated, ...]) -> Iterator[float]:
    """How far each simulated step is from the line between its neighbours, relative to its time."""
    for low, middle, high in zip(simulated, simulated[1:], simulated[2:], strict=False):
        yield abs(_Stretch(low, high).at(middle.durations) - middle.time) / middle.time
