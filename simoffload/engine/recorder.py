"""Writes a run down as columns."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.engine.network import LinkUse
from simoffload.errors import SimulationError
from simoffload.results.timeline import Columns, Repeat, Timeline
from simoffload.schedule import Schedule

__all__ = ["Recorder"]

_LATEST = 2**63 - 1
"""[ps] that a column holds."""
_ROWS = 4096
"""Operations that are noted before they become columns, in which they take less memory."""


class Recorder:
    """Fills a timeline; with ``record`` off it keeps the totals only."""

    def __init__(self, schedule: Schedule, *, record: bool) -> None:
        self._schedule = schedule
        self._columns = Columns.empty()
        self._record = record
        self._noted: list[tuple[int, int, int, int, int, int]] = []  # rows that are yet to become columns
        self._skipped = 0
        self._last_end = 0
        self._repeats: list[Repeat] = []

    @property
    def entries(self) -> int:
        """Operations noted so far."""
        return len(self._columns.end) + len(self._noted)

    def add(self, rank: int, block: int, iteration: int, position: int, start: int, end: int) -> None:
        """Note an operation that ends now, at ``end`` [ps], without what was skipped.

        Raises SimulationError if the time does not fit into the timeline's 64-bit columns.
        """
        self._last_end = end
        if not self._record:
            return
        skipped = self._skipped
        if end + skipped > _LATEST:
            raise SimulationError(
                f"an operation ends after {(end + skipped) / 86400e12:.0f} simulated days; a timeline holds "
                "times up to 2^63 ps (106 days): run with record=False, or simulate less of it"
            )
        self._noted.append((rank, block, iteration, position, start + skipped, end + skipped))
        if len(self._noted) >= _ROWS:
            self._to_columns()

    def _to_columns(self) -> None:
        for column, values in zip(self._columns, zip(*self._noted, strict=True), strict=False):
            column.extend(values)
        self._noted.clear()

    def repeat(self, first: int, *, times: int, iterations: int, length: int) -> None:
        """What was noted from entry ``first`` on happens ``times`` times more, every ``length`` [ps]."""
        self._skipped += times * length
        if self._record:
            self._repeats.append(Repeat(first, self.entries, times, iterations, length))

    def finish(self, links: Sequence[LinkUse], *, events: int) -> Timeline:
        """Return the timeline with its totals filled in."""
        self._to_columns()
        return Timeline(
            self._schedule,
            recorded=self._columns,
            repeats=tuple(self._repeats),
            makespan=self._last_end + self._skipped,
            link_bytes=tuple(link.bytes for link in links),
            link_busy=tuple(link.busy for link in links),
            link_saturated=tuple(link.saturated for link in links),
            events=events,
        )
