"""One stream of one rank and how far it has got."""

from __future__ import annotations

from simoffload.engine.program import Segment, Step

__all__ = ["Lane"]


class Lane:
    """Works through the segments of its stream, one operation after the other."""

    __slots__ = (
        "block",
        "done",
        "index",
        "iteration",
        "number",
        "rank",
        "segment",
        "segments",
        "siblings",
        "start",
        "step",
        "steps",
        "stream",
        "waiters",
    )

    def __init__(self, *, number: int, rank: int, stream: int, segments: tuple[Segment, ...]) -> None:
        self.number = number  # among the lanes of all ranks
        self.rank = rank
        self.stream = stream
        self.segments = iter(segments)
        self.segment = next(self.segments, None)
        self.iteration = 0
        self.index = 0
        self.block = -1 if self.segment is None else self.segment.block
        self.steps: tuple[Step, ...] = () if self.segment is None else self.segment.steps
        self.step: Step | None = None if self.segment is None else self.steps[0]
        self.start = -1  # [ps] of the operation under way; -1 = it waits
        self.done = 0
        self.siblings: tuple[Lane, ...] = ()  # the lanes of this rank, by stream
        self.waiters: list[tuple[int, Lane]] = []  # (value of `done` that is awaited, by whom)

    def advance(self) -> None:
        """Go on to the next operation; ``step`` is None after the last."""
        self.done += 1
        self.index += 1
        if self.index < len(self.steps):
            self.step = self.steps[self.index]
            return
        segment = self.segment
        assert segment is not None
        self.index = 0
        self.iteration += 1
        if self.iteration == segment.repeat:
            self.iteration = 0
            self.segment = segment = next(self.segments, None)
            if segment is None:
                self.step = None
                return
            self.block, self.steps = segment.block, segment.steps
        self.step = self.steps[0]

    def unmet(self, step: Step) -> tuple[Lane, int] | None:
        """Return a lane that has not got far enough for ``step``, and how far it has to get."""
        siblings, iteration = self.siblings, self.iteration
        for stream, per_iteration, offset in step.needs:
            needed = offset + iteration * per_iteration
            other = siblings[stream]
            if other.done < needed:
                return other, needed
        return None

    def waits(self, step: Step) -> bool:
        """Whether another lane has not got far enough for ``step``; if so, that one knows who waits."""
        siblings, iteration = self.siblings, self.iteration
        for stream, per_iteration, offset in step.needs:
            needed = offset + iteration * per_iteration
            if siblings[stream].done < needed:
                siblings[stream].waiters.append((needed, self))
                return True
        return False

    def skip(self, iterations: int) -> None:
        """Be as far as after so many more iterations of the current segment."""
        assert self.segment is not None
        self.iteration += iterations
        self.done += iterations * len(self.segment.steps)
