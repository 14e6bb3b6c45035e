"""Writes a run down as columns."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.engine.network import LinkUse
from simoffload.errors import SimulationError
from simoffload.results.timeline import Timeline
from simoffload.schedule import Schedule

__all__ = ["Recorder"]


class Recorder:
    """Fills a timeline; with ``record`` off it keeps the totals only."""

    def __init__(self, schedule: Schedule, *, record: bool) -> None:
        self._timeline = Timeline(schedule)
        self._record = record
        self._add_rank = self._timeline.rank.append
        self._add_block = self._timeline.block.append
        self._add_iteration = self._timeline.iteration.append
        self._add_position = self._timeline.position.append
        self._add_start = self._timeline.start.append
        self._add_end = self._timeline.end.append
        self._last_end = 0

    def add(self, rank: int, block: int, iteration: int, position: int, start: int, end: int) -> None:
        """Note an operation that ends now, at ``end`` [ps].

        Raises SimulationError if the time does not fit into the timeline's 64-bit columns.
        """
        self._last_end = end
        if not self._record:
            return
        try:
            self._add_end(end)
        except OverflowError:
            raise SimulationError(
                f"an operation ends after {end / 86400e12:.0f} simulated days; a timeline holds times up "
                "to 2^63 ps (106 days): run with record=False, or simulate less of it"
            ) from None
        self._add_start(start)
        self._add_rank(rank)
        self._add_block(block)
        self._add_iteration(iteration)
        self._add_position(position)

    def finish(self, links: Sequence[LinkUse], *, events: int) -> Timeline:
        """Return the timeline with its totals filled in."""
        timeline = self._timeline
        timeline.makespan = self._last_end
        timeline.link_bytes = tuple(link.bytes for link in links)
        timeline.link_busy = tuple(link.busy for link in links)
        timeline.link_saturated = tuple(link.saturated for link in links)
        timeline.events = events
        return timeline
