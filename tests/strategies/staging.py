"""What a schedule stages at the same time on its way to GPUs, to be compared with what its plan declares.

Weights are in HBM from the beginning of their copy to the end of the last kernel that may use them: in the
part of the first kernel that waits for them, until a kernel waits for others. Keys and values, and parameters
that DeepSpeed fetches, are there until the end of the kernel that waits for them. Bytes of files are in a
buffer of host memory from the beginning of the read to the end of the copy that follows it. Blocks of a
connector are copied to their place in the cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple
from unittest.mock import patch

from simoffload.engine.loop import execute
from simoffload.recent import Recent
from simoffload.schedule import Cause, Op, Program, Schedule, builder
from simoffload.schedule.ir import Block
from simoffload.strategies.base import PhaseSeries
from simoffload.strategies.programs import zero_inference

_OTHERS = {"hidden states", "queries", "result of attention"}
"""Labels of copies to the GPU of what is neither weights nor cache."""


@contextmanager
def parts_apart() -> Iterator[None]:
    """Let each part of a pass be a block of its own, so that a schedule says where parts begin."""

    def apart(numbers: Sequence[int], distinct: Sequence[tuple[str, tuple[Op, ...]]]) -> tuple[Block, ...]:
        return tuple(Block(*distinct[number]) for number in numbers)

    with (
        patch.object(builder, "_folded", apart),
        patch.object(zero_inference, "_LAYERED", Recent()),
        patch.object(zero_inference, "_TEMPLATES", Recent()),
    ):
        yield


class Done(NamedTuple):
    """An operation of one rank, in the order of its program."""

    op: Op
    part: int
    ordinal: int
    start: int
    end: int
    behind: Sequence[int]
    """Number of the last operation of each stream that has ended before, itself included."""


def operations(schedule: Schedule, program: Program) -> list[Done]:
    """The operations of the first rank of a program."""
    columns = execute(schedule, steady_state=False).all_operations
    rank, first = program.ranks.start, program.streams.start
    times = {
        (block, at): (start, end)
        for who, block, _, at, start, end in zip(*columns, strict=True)
        if who == rank
    }
    history: list[list[list[int]]] = [[] for _ in program.streams]
    found = []
    for part, block in enumerate(schedule.blocks):
        assert block.repeat == 1, "not within parts_apart()"
        for at, op in enumerate(block.ops):
            if op.stream not in program.streams:
                continue
            own = history[op.stream - first]
            before = [own[-1:], *(_awaited(history, one, program) for one in op.after)]
            known = [[-1] * len(history), *(one for some in before for one in some)]
            behind = list(map(max, zip(*known, strict=True)))
            behind[op.stream - first] = len(own)
            own.append(behind)
            found.append(Done(op, part, len(own) - 1, *times[part, at], behind))
    return found


def _awaited(history: Sequence[list[list[int]]], one: Any, program: Program) -> list[list[int]]:
    if one.stream not in program.streams or one.peers >= 0:
        return []
    known = history[one.stream - program.streams.start]
    return known[len(known) - 1 - one.back :][:1] if one.back < len(known) else []


def staged(plan: Any, schedule: Schedule) -> Counter[str]:
    """The most bytes that each tier has staged for one rank at the same time, as the engine times it, and in
    the order of the program, in which the host thread asks for memory whether the link is free or not.

    For DeepSpeed only the second: it releases parameters in the order of its host thread, and PyTorch gives
    their memory away again when kernels have ended, for which it waits if there is too little.
    """
    most = Counter[str]()
    for program in schedule.parts:
        timed = operations(schedule, program)
        ordered = [one._replace(start=at, end=at + (one.end > one.start)) for at, one in enumerate(timed)]
        for done in (ordered,) if plan.zero3 else (timed, ordered):
            for tier, spans in _spans(plan, schedule, program, done).items():
                events = sorted(
                    [(end, -size) for _, end, size in spans] + [(at, size) for at, _, size in spans]
                )
                most[tier] = max(most[tier], *accumulate(size for _, size in events))
    return most


def _spans(
    plan: Any, schedule: Schedule, program: Program, done: Sequence[Done]
) -> dict[str, list[tuple[int, int, int]]]:
    """Beginning, end and size of what is staged, by tier."""
    spans: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    connector = plan.cache.connector
    direct = connector is not None and not connector.staged(plan.machine)
    kernels = [one for one in done if one.op.kind == "compute" and one.end > one.start]
    copies = [one for one in done if one.op.kind == "copy"]
    brought = [one for one in done if _is_brought(plan, schedule, one.op)]
    users = _first(kernels, brought, program)
    known = {each for each in users if each is not None}
    for one, user in zip(brought, users, strict=True):
        if user is None:  # in the next pass
            end = done[-1].end
        elif plan.zero3 or _cause(schedule, one.op).moves_cache:
            end = kernels[user].end
        else:
            end = _released(kernels, user, known)
        spans["hbm"].append((one.start, max(one.end, end), one.op.size))
    reads = [
        one for one in done if one.op.kind == "read" and not (direct and _cause(schedule, one.op).moves_cache)
    ]
    for one, copy in zip(reads, _first(copies, reads, program), strict=True):
        spans["dram"].append((one.start, one.end if copy is None else copies[copy].end, one.op.size))
    return spans


def _cause(schedule: Schedule, op: Op) -> Cause:
    return schedule.routes[op.route].cause


def _is_brought(plan: Any, schedule: Schedule, op: Op) -> bool:
    if op.route < 0 or op.label in _OTHERS:
        return False
    cause = _cause(schedule, op)
    if cause.kind == "host-to-gpu":
        return not (cause.moves_cache and plan.cache.connector)
    return plan.zero3 and cause.kind == "all-gather"


def _first(others: Sequence[Done], some: Sequence[Done], program: Program) -> list[int | None]:
    """The first of other operations that begins after each of some operations has ended."""
    behind = [list(accumulate(column, max)) for column in zip(*(one.behind for one in others), strict=True)]
    numbers = [
        bisect_left(behind[one.op.stream - program.streams.start], one.ordinal) if behind else 0
        for one in some
    ]
    return [number if number < len(others) else None for number in numbers]


def _released(kernels: Sequence[Done], user: int, users: set[int]) -> int:
    """End of the last kernel of a part that may use what a kernel of it uses first."""
    last = user
    while last + 1 < len(kernels) and kernels[last + 1].part == kernels[user].part and last + 1 not in users:
        last += 1
    return max(one.end for one in kernels[user : last + 1])


def declared(plan: Any) -> Counter[str]:
    """What a plan declares to stage: on the GPU that computes what is offloaded, and in a host for a rank."""
    held = plan.held
    if plan.driven > 1:  # of which another one may be fuller
        held = (*plan._on_gpu(plan.main), *(one for one in held if one.tier != "hbm"))
    found = Counter[str]()
    for one in held:
        if one.kind == "staging":
            found[one.tier] += one.size
    found["dram"] //= plan.machine.ranks_per_node(plan.degrees.ranks)
    return found


def excess(plan: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """What passes stage beyond what the plan declares: bytes staged and declared, by phase and tier; of a
    plan that was made within ``parts_apart``."""
    most, found = declared(plan), {}
    for phase in plan.phases:
        if phase.kind in ("prefill", "decode"):
            one = phase.step(2) if isinstance(phase, PhaseSeries) else phase
            for tier, size in staged(plan, one.schedule({})).items():
                if size > most[tier]:
                    found[one.name, tier] = size, most[tier]
    return found
