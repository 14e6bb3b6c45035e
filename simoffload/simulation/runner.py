"""Carrying out a plan's schedules, and keeping what was asked for."""

from __future__ import annotations

from collections.abc import Callable

from simoffload.engine import execute
from simoffload.results.passes import PassResult, summarize_pass
from simoffload.results.timeline import Timeline
from simoffload.scenario import LoadedScenario
from simoffload.schedule import Schedule

__all__ = ["Progress", "Runner"]

Progress = Callable[[str], None]
"""Called with a line of text when a pass begins."""


class Runner:
    """Runs the passes of one scenario."""

    def __init__(self, scenario: LoadedScenario, *, keep: bool, progress: Progress | None) -> None:
        self._scenario, self._keep, self._progress = scenario, keep, progress
        self.timelines: dict[str, Timeline] = {}

    def run(
        self,
        name: str,
        schedule: Callable[[], Schedule],
        *,
        new_tokens: int,
        context: int,
        ends_with: str | None = None,
    ) -> PassResult:
        """Execute a schedule; SimulationError if the engine cannot finish it.

        ``ends_with`` names the stream with which the pass ends although others may go on.
        """
        if self._progress:
            self._progress(f"{self._scenario.name}: {name}")
        timeline = execute(schedule(), max_events=self._scenario.scenario.engine.max_events)
        if self._keep:
            self.timelines[name] = timeline
        return summarize_pass(timeline, new_tokens=new_tokens, context=context, ends_with=ends_with)
