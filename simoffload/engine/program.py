"""A schedule as the executor reads it: per stream the segments that its operations form."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from simoffload.schedule import Dependency, Schedule

__all__ = ["Need", "Segment", "Step", "compile_streams"]


Need = tuple[int, int, int]
"""(stream, per_iteration, offset): that stream of the same rank must have done ``offset + iteration *
per_iteration`` operations."""


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
    shape = tuple(
        [(block.repeat, tuple([(op.stream, op.after) for op in block.ops])) for block in schedule.blocks]
    )
    few = sum([len(ops) for _, ops in shape]) <= _FEW
    needs = (_needs if few else _needs.__wrapped__)(len(schedule.streams), shape)
    segments: list[list[Segment]] = [[] for _ in schedule.streams]
    for index, (block, of_block) in enumerate(zip(schedule.blocks, needs, strict=True)):
        steps: list[list[Step]] = [[] for _ in schedule.streams]
        for position, ((_, _, stream, fixed, size, route, _, collective), own) in enumerate(
            zip(block.ops, of_block, strict=True)
        ):
            steps[stream].append(Step(position, fixed, size, route, collective, own))
        for stream, mine in enumerate(steps):
            if mine:
                segments[stream].append(Segment(index, block.repeat, tuple(mine)))
    return tuple(tuple(own) for own in segments)


_Shape = tuple[tuple[int, tuple[tuple[int, tuple[Dependency, ...]], ...]], ...]
"""Of every block how often it repeats, and the stream and dependencies of its operations."""

_FEW = 10_000
"""Operations of the largest program whose needs are remembered."""


@lru_cache(maxsize=16)
def _needs(streams: int, shape: _Shape) -> tuple[tuple[tuple[Need, ...], ...], ...]:
    """Of every operation of every block; passes of one program differ in durations only."""
    found = []
    written = [0] * streams
    for repeat, ops in shape:
        per_iteration = [0] * streams
        for stream, _ in ops:
            per_iteration[stream] += 1
        before = list(written)
        needs = []
        for stream, after in ops:
            needs.append(_needs_of(stream, after, before, per_iteration) if after else ())
            before[stream] += 1
        found.append(tuple(needs))
        written = [count + repeat * more for count, more in zip(written, per_iteration, strict=True)]
    return tuple(found)


def _needs_of(
    own: int, after: tuple[Dependency, ...], before: list[int], per_iteration: list[int]
) -> tuple[Need, ...]:
    """Turn dependencies that count back into counts from the start; ``before`` holds for iteration 0."""
    if len(after) == 1:
        stream, back = after[0]
        return () if stream == own else ((stream, per_iteration[stream], before[stream] - back),)
    nearest: dict[int, int] = {}
    for stream, back in after:
        if stream != own:  # a stream keeps its own order anyway
            nearest[stream] = min(back, nearest.get(stream, back))
    return tuple([(stream, per_iteration[stream], before[stream] - back) for stream, back in nearest.items()])
