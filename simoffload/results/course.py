"""Whether two runs of one program take the same course, so that what lies between them is known."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from simoffload.results.timeline import Timeline
from simoffload.results.track import Track
from simoffload.schedule import Schedule

__all__ = ["same_course"]

_LARGEST = 300_000
"""Operations up to which two runs that do not repeat alike are compared."""


def same_course(one: Timeline, other: Timeline) -> bool:
    """Whether every run between these two has its times on straight lines between theirs.

    Both are of one program, in which only one fixed duration x differs, wherever it occurs. Three things are
    asked of them. Every transfer takes as long here as there, and either all keep one rate, or those that
    overlap are shifted against there as one. Of transfers that may share a link no two moments (bytes begin
    to move, the last has arrived) are in one order here and in the other there. Every operation begins, here
    and there, at the end of one and the same that it waits for. (The first two hold by themselves for
    transfers whose rate does not depend on others.)

    Then put all times on straight lines over x. The third makes each beginning the latest of what it waits
    for, since a line that is above others at both ends is above them everywhere between. The second leaves
    transfers together that were so at one of the ends, so that by the first each has its rates, for as long.
    So these are the times of the run with that x; and as each is a sum of durations, its slope is a whole
    number, and nothing is rounded.
    """
    if one.classes != other.classes:
        return False
    if not _alike(one, other):
        if max(len(one), len(other)) > _LARGEST:
            return False
        one, other = _unrolled(one), _unrolled(other)
    return _transfers(one, other) and all(
        _begins_alike(one, other, number, entry)
        for number, (here, there) in enumerate(zip(one.tracks, other.tracks, strict=True))
        if here.after != there.after
        for entry in range(len(here.end))
        if here.after[entry] != there.after[entry]
    )


def _alike(one: Timeline, other: Timeline) -> bool:
    """Whether the same entries are held and the same ones repeated."""
    return all(
        len(here.end) == len(there.end)
        and [repeat[:3] for repeat in here.repeats] == [repeat[:3] for repeat in there.repeats]
        for here, there in zip(one.tracks, other.tracks, strict=True)
    )


def _unrolled(timeline: Timeline) -> Timeline:
    """The same without anything counted."""
    tracks = timeline.tracks
    sizes = [{repeat.window: repeat.size for repeat in track.repeats} for track in tracks]

    def unrolled(track: Track) -> Track:
        steps = []
        start, end, afters = array("q"), array("q"), array("q")
        for piece in track.pieces():
            repeat = track.repeat_of(piece.first)
            for copy in range(piece.times):
                for entry in range(piece.first, piece.last):
                    later, after = copy * piece.length, track.after[entry]
                    if repeat and copy and after >= 0:
                        after += copy * sizes[after % len(tracks)].get(repeat.window, 0) * len(tracks)
                    steps.append(track.steps[entry])
                    start.append(track.start[entry] + later)
                    end.append(track.end[entry] + later)
                    afters.append(after)
        return replace(track, steps=steps, start=start, end=end, after=afters, repeats=())

    return replace(timeline, tracks=tuple(map(unrolled, tracks)))


# -- beginnings ---------------------------------------------------------------------------------


def _begins_alike(one: Timeline, other: Timeline, number: int, entry: int) -> bool:
    """Whether an operation that began after different ones might as well have begun after one and the same:
    of those that it waited for, one ended when it began, here and there."""
    track, twin = one.tracks[number], other.tracks[number]
    repeat = track.repeat_of(entry)
    return all(
        any(
            one.tracks[waited].end_of(ordinal) == here and other.tracks[waited].end_of(ordinal) == there
            for waited, ordinal in _awaited(one, number, own)
        )
        or here == there == 0
        for own in {track.ordinal(entry, copy) for copy in (0, repeat.times if repeat else 0)}
        for here, there in [(track.start_of(own), twin.start_of(own))]
    )


def _awaited(timeline: Timeline, number: int, ordinal: int) -> Iterator[tuple[int, int]]:
    """What an operation waits for: tracks and ordinals; for a collective, on every rank."""
    track = timeline.tracks[number]
    step = track.steps[track.find(ordinal)[0]]
    streams = len(timeline.schedule.streams)
    ranks = range(len(timeline.ranks_by_class)) if step.op.collective else (track.rank,)
    for rank in ranks:
        if ordinal:
            yield rank * streams + track.stream, ordinal - 1
        for stream, per_iteration, offset in step.needs:
            needed = offset + step.iteration(ordinal) * per_iteration
            if needed > 0:
                yield rank * streams + stream, needed - 1


# -- transfers ----------------------------------------------------------------------------------

_Moment = tuple[int, int, int]
"""Here [ps], there [ps], transfers more."""


def _transfers(one: Timeline, other: Timeline) -> bool:
    """Whether transfers take as long, at the same rates, and those that may meet are in one order."""
    if not one.shared:
        return True
    copies = max(_copies(one), _copies(other))
    group = _meeting(one.schedule)
    moments: dict[int, list[_Moment]] = {}
    for here, there in zip(one.tracks, other.tracks, strict=True):
        for piece, second in zip(here.pieces(), there.pieces(), strict=True):
            chosen = _chosen(piece.times, copies)
            for entry in range(piece.first, piece.last):
                op = here.steps[entry].op
                if not op.size or op.route not in one.shared:
                    continue
                start, end = (here.start[entry], there.start[entry]), (here.end[entry], there.end[entry])
                if end[0] - start[0] != end[1] - start[1]:
                    return False
                mine = moments.setdefault(group[op.route], [])
                for copy in chosen:
                    early, late = copy * piece.length, copy * second.length
                    mine += [
                        (start[0] + early + op.fixed, start[1] + late + op.fixed, 1),
                        (end[0] + early, end[1] + late, -1),
                    ]
    constant = one.constant_rates and other.constant_rates
    return all(_ordered(sorted(found), constant=constant) for found in moments.values())


def _copies(timeline: Timeline) -> int:
    """Copies of each period to look at, at its beginning and at its end: all that overlap are among them."""
    spans: dict[int, tuple[int, int, int]] = {}  # by steady state: begin, end, length
    for track in timeline.tracks:
        for repeat in track.repeats:
            begin, end = track.start[repeat.first], track.end[repeat.last - 1]
            earliest, latest, _ = spans.get(repeat.window, (begin, end, 0))
            spans[repeat.window] = min(begin, earliest), max(end, latest), repeat.length
    return max([1 - (-(end - begin) // length) for begin, end, length in spans.values()], default=1)


def _chosen(times: int, copies: int) -> range | list[int]:
    if times <= 2 * copies:
        return range(times)
    return [*range(copies), *range(times - copies, times)]


def _ordered(moments: list[_Moment], *, constant: bool) -> bool:
    """Whether moments are in one order there too, and rates the same."""
    going = 0
    for (first, second, more), (next_first, next_second, _) in pairwise(moments):
        if next_second < second:
            return False
        going += more
        # Transfers that overlap, directly or through others, must be shifted by one and the same time.
        if not constant and going and second - first != next_second - next_first:
            return False
    return True


def _meeting(program: Schedule) -> list[int]:
    """For each route the lowest number of a route that it meets on a link, at one or more removes."""
    group = list(range(len(program.routes)))
    first: dict[int, int] = {}  # route on each link

    def root(route: int) -> int:
        while group[route] != route:
            route = group[route]
        return route

    for number, route in enumerate(program.routes):
        for link in {link for hops in route.hops for link, _ in hops}:
            other, mine = root(first.setdefault(link, number)), root(number)
            group[max(mine, other)] = min(mine, other)
    return [root(number) for number in range(len(group))]
