"""Writes a run down as columns."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.engine.network import LinkUse
from simoffload.errors import SimulationError
from simoffload.results.timeline import Columns, Repeat, Timeline
from simoffload.schedule import Schedule

__all__ = ["Recorder"]


class Recorder:
    """Fills a timeline; with ``record`` off it keeps the totals only."""

    def __init__(self, schedule: Schedule, *, record: bool) -> None:
        self._schedule = schedule
        self._columns = Columns.empty()
        self._record = record
        self._add_rank = self._columns.rank.append
        self._add_block = self._columns.block.append
        self._add_iteration = self._columns.iteration.append
        self._add_position = self._columns.position.append
        self._add_start = self._columns.start.append
        self._add_end = self._columns.end.append
        self._skipped = 0
        self._last_end = 0
        self._repeats: list[Repeat] = []

    @property
    def entries(self) -> int:
        """Operations noted so far."""
        return len(self._columns.end)

    def add(self, rank: int, block: int, iteration: int, position: int, start: int, end: int) -> None:
        """Note an operation that ends now, at ``end`` [ps], without what was skipped.

        Raises SimulationError if the time does not fit into the timeline's 64-bit columns.
        """
        self._last_end = end
        if not self._record:
            return
        skipped = self._skipped
        try:
            self._add_end(end + skipped)
        except OverflowError:
            raise SimulationError(
                f"an operation ends after {(end + skipped) / 86400e12:.0f} simulated days; a timeline holds "
                "times up to 2^63 ps (106 days): run with record=False, or simulate less of it"
            ) from None
        self._add_start(start + skipped)
        self._add_rank(rank)
        self._add_block(block)
        self._add_iteration(iteration)
        self._add_position(position)

    def repeat(self, first: int, *, times: int, iterations: int, length: int) -> None:
        """What was noted from entry ``first`` on happens ``times`` times more, every ``length`` [ps]."""
        self._skipped += times * length
        if self._record:
            self._repeats.append(Repeat(first, self.entries, times, iterations, length))

    def finish(self, links: Sequence[LinkUse], *, events: int) -> Timeline:
        """Return the timeline with its totals filled in."""
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
