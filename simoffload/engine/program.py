"""A schedule as the executor reads it: per stream the segments that its operations form."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.schedule import Block, Op, Schedule

__all__ = ["Need", "Segment", "Step", "compile_streams"]


class Need(NamedTuple):
    """A stream of the same rank must have done ``offset + iteration * per_iteration`` operations."""

    stream: int
    per_iteration: int
    offset: int


class Step(NamedTuple):
    """An operation with everything about it that does not depend on rank or iteration."""

    position: int
    """Index into ``Block.ops``."""
    fixed: int
    size: int
    route: int
    collective: bool
    needs: tuple[Need, ...]


class Segment(NamedTuple):
    """The operations of one block that run on one stream."""

    block: int
    repeat: int
    steps: tuple[Step, ...]


def compile_streams(schedule: Schedule) -> tuple[tuple[Segment, ...], ...]:
    """Return the segments of every stream; blocks in which a stream has nothing to do are left out."""
    segments: list[list[Segment]] = [[] for _ in schedule.streams]
    written = [0] * len(schedule.streams)
    for index, block in enumerate(schedule.blocks):
        per_iteration = _operations_per_stream(block, len(schedule.streams))
        steps: list[list[Step]] = [[] for _ in schedule.streams]
        before = list(written)
        for position, op in enumerate(block.ops):
            needs = _needs(op, before, per_iteration)
            steps[op.stream].append(Step(position, op.fixed, op.size, op.route, op.collective, needs))
            before[op.stream] += 1
        for stream, own in enumerate(steps):
            if own:
                segments[stream].append(Segment(index, block.repeat, tuple(own)))
            written[stream] += per_iteration[stream] * block.repeat
    return tuple(tuple(own) for own in segments)


def _operations_per_stream(block: Block, streams: int) -> list[int]:
    counts = [0] * streams
    for op in block.ops:
        counts[op.stream] += 1
    return counts


def _needs(op: Op, before: list[int], per_iteration: list[int]) -> tuple[Need, ...]:
    """Turn dependencies that count back into counts from the start; ``before`` holds for iteration 0."""
    if len(op.after) == 1:
        stream, back = op.after[0]
        return () if stream == op.stream else (Need(stream, per_iteration[stream], before[stream] - back),)
    nearest: dict[int, int] = {}
    for stream, back in op.after:
        if stream != op.stream:  # a stream keeps its own order anyway
            nearest[stream] = min(back, nearest.get(stream, back))
    return tuple(
        [Need(stream, per_iteration[stream], before[stream] - back) for stream, back in nearest.items()]
    )
