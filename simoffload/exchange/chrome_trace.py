"""Timelines as Chrome Trace Event JSON, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" of the Chromium project: complete events ("X") with ``ts`` and ``dur`` in
microseconds, one process a rank, named with its program, one thread a stream, named with its device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from simoffload.errors import printable
from simoffload.exchange.files import replacing
from simoffload.results import Interval, Timeline, cause_text
from simoffload.schedule import Op, Schedule


def write_trace(timeline: Timeline, path: str | Path, *, max_events: int = 200_000) -> None:
    """Write a timeline; of a longer one only the first ``max_events`` operations to end, which the file
    notes.

    There is at least one operation, and all that end at the same time as the last one. Operations without
    duration are left out. Raises InputError if the file cannot be written.
    """
    # The limit is a point in time, so that all ranks are cut off together.
    last = next(islice(timeline, max_events - 1, None)) if len(timeline) > max_events else None
    until = last.end if last else timeline.makespan
    with replacing(path) as file:
        file.write('{"displayTimeUnit":"ns","otherData":')
        file.write(_dump(_about(timeline, until)))
        file.write(',"traceEvents":[\n')
        file.write(",\n".join(_tracks(timeline.schedule)))
        for event in _events(timeline, until):
            file.write(",\n" + event)
        file.write("\n]}\n")


def _about(timeline: Timeline, until: int) -> dict[str, Any]:
    """Return what the viewer shows under "Info and stats"."""
    info = {
        "pass": printable(timeline.schedule.name),
        "simulated_s": timeline.makespan * 1e-12,
        "operations": len(timeline),
        "truncated": until < timeline.makespan,
    }
    if until < timeline.makespan:
        info["shown_until_s"] = until * 1e-12
        info["note"] = "this is only the beginning: operations that ended later are left out"
    return info


def _tracks(schedule: Schedule) -> Iterator[str]:
    labels = schedule.labels
    for program in schedule.parts:
        for rank in program.ranks:
            yield _meta("process_name", rank, 0, name=printable(schedule.rank_label(rank)))
            yield _meta("process_sort_index", rank, 0, sort_index=rank)
            for tid in program.streams:
                yield _meta("thread_name", rank, tid, name=printable(labels[tid]))
                yield _meta("thread_sort_index", rank, tid, sort_index=tid)


def _meta(kind: str, rank: int, tid: int, **args: object) -> str:
    return _dump({"ph": "M", "name": kind, "pid": rank, "tid": tid, "args": args})


def _events(timeline: Timeline, until: int) -> Iterator[str]:
    schedule = timeline.schedule
    heads: dict[Op, str] = {}
    for done in timeline:
        if done.end > until:
            return
        if done.end == done.start:
            continue
        if done.op not in heads:
            heads[done.op] = _head(done.op, schedule)
        yield _event(done, heads[done.op], schedule)


def _head(op: Op, schedule: Schedule) -> str:
    """Return the common part of all events of an operation, without the closing brace."""
    args: dict[str, Any] = {"kind": op.kind}
    if op.size:
        args |= {"bytes": op.size, "route": printable(cause_text(schedule.routes[op.route].cause))}
    text = _dump({"ph": "X", "cat": op.kind, "name": printable(op.label), "tid": op.stream, "args": args})
    return text[:-2]


def _event(done: Interval, head: str, schedule: Schedule) -> str:
    # Both ends are truncated to nanoseconds, so that neighbours on a stream still do not overlap.
    start, end = done.start // 1000, done.end // 1000
    block = json.dumps(printable(schedule.blocks[done.block].name))
    where = f',"block":{block},"iteration":{done.iteration}}}'
    return (
        f'{head}{where},"pid":{done.rank},"ts":{_microseconds(start)}1,"dur":{_microseconds(end - start)}}}'
    )


def _microseconds(nanoseconds: int) -> str:
    """Return exact decimals.

    Perfetto multiplies by 1000 in floating point and truncates; the "1" that follows ``ts``, a tenth of a
    nanosecond, prevents the result from becoming the nanosecond before.
    """
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03}"


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
