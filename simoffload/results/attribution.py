"""Attribution of the time of a pass: the chain of operations that determined its length, by cause.

Every operation began when another one ended. Going back from the last operation, each time to the predecessor
that ended last, gives a chain without gaps or overlaps, so the times along it sum exactly to the makespan. In
the repeated part of a timeline the chain repeats, too: when it reaches the same operation a number of periods
earlier, the remaining rounds are added up instead of followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from simoffload.results.timeline import OperationPlace, Timeline
from simoffload.schedule import Cause, CauseKind, HostMemory, OpKind, Schedule

# -- the text of a cause of time, for reports and files --------------------------------------------
# It is made here alone and never read back.


_TEXTS: Mapping[CauseKind, str] = {
    "host-thread": "host thread",
    "update-wait": "waiting for the CPU update",
    "gpu-compute": "GPU compute",
    "gpu-optimizer": "optimizer on the GPU",
    "gpu-gradients": "gradients on the GPU",
    "gathered-copies": "GPU copies of gathered tensors",
    "in-place": "weights read in host memory",
    "host-to-gpu": "host to GPU",
    "gpu-to-host": "GPU to host",
    "gpu-to-gpu": "GPU {} to GPU {}",
    "stage-to-stage": "stage to stage",
    "all-gather": "all-gather",
    "all-reduce": "all-reduce",
    "gradient-reduction": "reduction of gradients",
    "broadcast": "broadcast",
    "column-broadcast": "broadcast of selected columns",
    "read": "read",
    "write": "write",
    "mapped-copies": "copying mapped files",
    "host-copies": "copies in host memory",
    "new-pages": "new pages for copies",
    "new-pinned-memory": "new pinned memory",
    "page-cache-entry": "entering the page cache",
    "crc32": "crc32",
    "cpu-work": "CPU work",
    "cpu-adam": "CPU Adam",
    "cpu-adamw": "CPU AdamW of PyTorch",
    "cpu-casts": "CPU casts and scaling",
    "cpu-overflow-check": "CPU overflow check",
    "cpu-attention": "attention on the CPU",
    "cpu-products": "CPU compute",
    "cache-stores": "storing keys and values",
    "tensor-loops": "loops over tensors",
    "to-io-buffer": "into the I/O buffer",
    "to-array": "into a NumPy array",
    "to-snapshot": "into the snapshot",
    "to-optimizer": "into the optimizer",
    "to-page-cache": "into the page cache",
    "from-page-cache": "from the page cache",
    "file-to-file": "from file to file",
    "own": "",
}
_MEMORY: Mapping[HostMemory, str] = {
    "pinned": "",
    "pageable": ", pageable",
    "never written": ", pageable, never written",
}


@lru_cache(maxsize=1024)
def cause_text(cause: Cause) -> str:
    """Return a cause as text, such as "raid read" or "GPU to host (key-value cache on dram)"."""
    way = f"{_way(cause)}{_MEMORY[cause.memory]}"
    where = f" on {cause.tier}" if cause.moves_cache else ""
    return f"{way} ({cause.purpose}{where})" if cause.purpose else way


def _way(cause: Cause) -> str:
    """Return the kind of a cause as text, with the tier or the GPUs that belong to it."""
    text = _TEXTS[cause.kind]
    match cause.kind:
        case "own":
            return cause.name
        case "read" | "write":
            return f"{cause.tier or 'storage'} {text}"
        case "gpu-to-gpu":
            return text.format(*cause.gpus)
    return " ".join((text, *map(str, cause.gpus)))


# -- attribution of the time of a pass -------------------------------------------------------------


class OperationRef(NamedTuple):
    """An OperationRef identifies an operation of a class of ranks in a timeline."""

    track: int
    """Index of the track in ``Timeline.tracks``."""
    ordinal: int


PathSegment = tuple[int, int, int]
"""Part of the critical path: a track, an entry of it, and how often the chain contains it."""


def last_of(timeline: Timeline, stream: int | None = None) -> OperationRef | None:
    """Return the operation that ends last, of all streams or of one ``stream``; of several, the one that
    began first."""
    best: tuple[int, int, OperationRef] | None = None  # (-end, start, place) of the operation that ends last
    for number, track in enumerate(timeline.tracks):
        if not track.end or stream not in (None, track.stream):
            continue
        ordinal = len(track) - 1
        end = track.end_of(ordinal)
        while ordinal and track.end_of(ordinal - 1) == end:
            ordinal -= 1
        found = -end, track.start_of(ordinal), OperationRef(number, ordinal)
        best = found if best is None else min(best, found)
    return best[2] if best else None


def end_of(timeline: Timeline, ends_with: str | None = None) -> int:
    """Return the time [ps] at which the last operation ends, of all streams or of the one with a label."""
    if ends_with is None:
        return timeline.makespan
    stream = timeline.schedule.labels.index(ends_with)
    tracks = (track for track in timeline.tracks if track.stream == stream and track.end)
    return max((track.end_of(len(track) - 1) for track in tracks), default=0)


def critical_path(timeline: Timeline, last: OperationRef) -> list[PathSegment]:
    """Return the chain that ends with ``last``, from its end to its beginning."""
    tracks, count = timeline.tracks, len(timeline.tracks)
    path: list[PathSegment] = []
    # By track, entry and window: the round, and the length of the chain, when it was reached in this item.
    met: dict[tuple[int, int, int], tuple[int, int]] = {}
    number, place = last.track, tracks[last.track].find(last.ordinal)
    while True:
        track, (item, at, slot, entry) = tracks[number], place
        first, _ = track.spans[track.items[item].windows[slot]]
        afters = track.after
        while afters[entry] < 0 and entry > first:
            path.append((number, entry, 1))
            entry -= 1
        path.append((number, entry, 1))
        own, after = track.ordinals[item], afters[entry]
        if after < 0:
            ordinal = own[slot] + at * (own[-1] - own[0]) - 1
            if ordinal < 0:
                return path
        else:
            ordinal, number = divmod(after, count)
            window = track.items[item].windows[slot]
            track = tracks[number]
            own = track.ordinals[item]
            ordinal += own[slot] + at * (own[-1] - own[0]) - track.recorded[window]
        begin = own[slot] + at * (own[-1] - own[0])
        if ordinal >= begin:  # in the same window, most often
            first, _ = track.spans[track.items[item].windows[slot]]
            place = OperationPlace(item, at, slot, first + ordinal - begin)
            continue
        place = track.find(ordinal)
        if place.item != item:
            met.clear()
        elif place.round < at:
            key = number, place.entry, place.slot
            known = met.get(key)
            if known is not None:
                before, since = known
                rounds = place.round // (before - place.round)
                path[since:] = [(one, entry, times * (1 + rounds)) for one, entry, times in path[since:]]
                ordinal -= (
                    rounds * (before - place.round) * (track.ordinals[item][-1] - track.ordinals[item][0])
                )
                place = track.find(ordinal)
                met.clear()
            else:
                met[key] = place.round, len(path)


Group = Literal["GPU", "host", "transfers", "storage", "waiting"]
"""Category of a cause of time: work of the GPU or of the host's processors, transfers between memories and
collectives, reads and writes of storage, or waiting for an update that an earlier step started."""


class _Meaning(NamedTuple):
    """A _Meaning is what the time of a kind of operations counts as."""

    cause: CauseKind
    """Cause of the time of operations without a route; a route has its own."""
    group: Group
    """Category of those without a route."""
    moving: Group
    """Category of those with a route."""
    empty: bool = False
    """Whether those without a route have no bytes to move, and so neither time nor a cause."""


_MEANINGS: Mapping[OpKind, _Meaning] = {
    "hook": _Meaning("host-thread", "host", "host"),
    "launch": _Meaning("host-thread", "host", "host"),
    "wait": _Meaning("update-wait", "waiting", "waiting"),
    "pages": _Meaning("new-pages", "host", "host"),
    "pin": _Meaning("new-pinned-memory", "host", "host"),
    "cached": _Meaning("page-cache-entry", "host", "host"),
    "checksum": _Meaning("crc32", "host", "host"),
    "cpu": _Meaning("cpu-work", "host", "host", empty=True),
    "copy": _Meaning("gathered-copies", "GPU", "transfers"),
    "stage": _Meaning("host-copies", "host", "transfers", empty=True),
    "read": _Meaning("read", "storage", "storage", empty=True),
    "write": _Meaning("write", "storage", "storage", empty=True),
    "gather": _Meaning("all-gather", "GPU", "transfers", empty=True),
    "all-reduce": _Meaning("all-reduce", "GPU", "transfers", empty=True),
    "send": _Meaning("stage-to-stage", "GPU", "transfers", empty=True),
    "compute": _Meaning("gpu-compute", "GPU", "transfers"),
    "concat": _Meaning("gathered-copies", "GPU", "transfers"),
    "reduce": _Meaning("gpu-gradients", "GPU", "transfers"),
    "update": _Meaning("gpu-optimizer", "GPU", "transfers"),
}


class Attribution(NamedTuple):
    """Attribution is the time of a pass by cause, by stream and by link."""

    end: int
    """End of the critical path [ps]."""
    exposed: dict[Cause, int]
    """[ps] on the critical path by cause, largest first; the values sum to ``end``."""
    busy: dict[Cause, int]
    """[ps] of each cause in total, on the critical path or not, on the rank with the most."""
    groups: dict[Cause, Group]
    """Category of each cause of time."""
    exposed_streams: dict[str, int]
    """[ps] on the critical path, by stream."""
    busy_streams: dict[str, int]
    """[ps] of work in total, by stream, on the rank with the most."""
    exposed_links: dict[str, int]
    """[ps] on the critical path of transfers over each link."""
    on_gpus: int
    """Working time of all GPUs, added up [ps]."""


_Kind = tuple[OpKind, int, int]
"""Key of an operation: its kind, stream and route."""
_Key = TypeVar("_Key", Cause, str)


def cause_of(kind: OpKind, route: int, schedule: Schedule) -> Cause:
    """Return what the time of an operation goes to; ``route`` is negative where nothing is moved."""
    return schedule.routes[route].cause if route >= 0 else Cause(_MEANINGS[kind].cause)


def _group(kind: _Kind) -> Group:
    name, _, route = kind
    return _MEANINGS[name].moving if route >= 0 else _MEANINGS[name].group


def _is_empty(kind: _Kind, duration: int) -> bool:
    """Return whether operations have nothing to do, as a cache of no tokens has nothing to write."""
    name, _, route = kind
    return not duration and route < 0 and _MEANINGS[name].empty


def attribute(timeline: Timeline, *, ends_with: str | None = None) -> Attribution:
    """Split the makespan of a run by cause, by stream and by link.

    With ``ends_with``, split the time until the last operation of the stream with that label ends.
    """
    schedule = timeline.schedule
    labels = schedule.labels
    last = last_of(timeline, None if ends_with is None else labels.index(ends_with))
    exposed, exposed_streams, exposed_links = Counter[Cause](), Counter[str](), Counter[str]()
    totals = _on_chain(timeline, last)
    for (kind, number), duration in totals.items():
        if _is_empty(kind, duration):
            continue
        _, stream, route = kind
        exposed[cause_of(kind[0], kind[2], schedule)] += duration
        exposed_streams[labels[stream]] += duration
        if route >= 0:
            for link, _ in schedule.routes[route].hops[timeline.ranks_by_class[number][0]]:
                exposed_links[schedule.links[link].name] += duration
    by_cause, by_stream = _work(timeline)
    groups = _groups(schedule)
    end = sum(totals.values())
    on_gpus = 0
    for ranks, mine in zip(timeline.ranks_by_class, by_cause, strict=True):
        program = next(part for part in schedule.parts if ranks[0] in part.ranks)
        work = sum(time for cause, time in mine.items() if groups[cause] == "GPU")
        # The work of a GPU is at most the time of the pass, although several of its streams work.
        on_gpus += len(ranks) * min(work, end * schedule.gpus_of(program))
    return Attribution(
        end,
        _largest_first(exposed),
        _largest_first(_most(exposed, by_cause)),
        groups,
        dict(exposed_streams),
        dict(_most(exposed_streams, by_stream, order=labels)),
        dict(exposed_links),
        on_gpus,
    )


def _groups(schedule: Schedule) -> dict[Cause, Group]:
    kinds = {(op.kind, op.stream, op.route) for ops, _ in schedule.contents for op in ops}
    return {cause_of(kind[0], kind[2], schedule): _group(kind) for kind in kinds}


def _on_chain(timeline: Timeline, last: OperationRef | None) -> dict[tuple[_Kind, int], int]:
    """Return the times [ps] by kind and class of ranks on the chain that ends with ``last``; they sum to its
    end."""
    totals: dict[tuple[_Kind, int], int] = {}
    for number, entry, times in critical_path(timeline, last) if last else ():
        track = timeline.tracks[number]
        op = track.steps[entry].op
        key = (op.kind, op.stream, op.route), track.rank
        totals[key] = totals.get(key, 0) + times * (track.end[entry] - track.start[entry])
    return totals


def _most(
    exposed: Counter[_Key], by_rank: Sequence[Counter[_Key]], *, order: Sequence[_Key] = ()
) -> Counter[_Key]:
    """Return the work of each cause on the rank with the most, and at least the work on the critical path.

    The critical path may change ranks at a collective, so it can contain more of a cause than any single
    rank.
    """
    most = Counter(exposed)
    for mine in by_rank:
        for name in order or mine:
            if name in mine:
                most[name] = max(most[name], mine[name])
    return most


def _work(timeline: Timeline) -> tuple[list[Counter[Cause]], list[Counter[str]]]:
    """Return the times [ps] by cause and by stream, for each class of ranks."""
    schedule, labels = timeline.schedule, timeline.schedule.labels
    classes = len(timeline.ranks_by_class)
    by_cause = [Counter[Cause]() for _ in range(classes)]
    by_stream = [Counter[str]() for _ in range(classes)]
    for track in timeline.tracks:
        totals: dict[_Kind, int] = {}
        for first, last, times in track.totals():
            columns = track.steps[first:last], track.start[first:last], track.end[first:last]
            for step, start, end in zip(*columns, strict=True):
                key = step.op.kind, track.stream, step.op.route
                totals[key] = totals.get(key, 0) + times * (end - start)
        for kind, duration in totals.items():
            if _is_empty(kind, duration):
                continue
            by_cause[track.rank][cause_of(kind[0], kind[2], schedule)] += duration
            by_stream[track.rank][labels[track.stream]] += duration
    return by_cause, by_stream


def _largest_first(times: Counter[Cause]) -> dict[Cause, int]:
    return dict(sorted(times.items(), key=lambda item: (-item[1], cause_text(item[0]))))
