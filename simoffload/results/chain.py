"""The chain of operations that determined how long a run took.

Every operation began at the end of another one. Walking back from the last gives a chain without gaps or
overlaps. In what a timeline holds once and repeats, the walk itself repeats: once it comes to the same
operation some periods earlier, whole rounds are counted and not walked.
"""

from __future__ import annotations

from typing import NamedTuple

from simoffload.results.timeline import Timeline

__all__ = ["Link", "Place", "last_of", "walk"]


class Place(NamedTuple):
    """An operation of a class of ranks, found in a timeline."""

    track: int
    """Index into ``Timeline.tracks``."""
    entry: int
    copy: int
    """Periods after the one that is held."""


class Link(NamedTuple):
    """A part of the chain."""

    track: int
    entry: int
    times: int
    """How often the chain goes through it, one period earlier or later."""


def last_of(timeline: Timeline, stream: int | None = None) -> Place | None:
    """What ends last, on a ``stream`` if one is named; of several the one that began first."""
    best: tuple[int, int, Place] | None = None  # -end, start, place: the least one
    for number, track in enumerate(timeline.tracks):
        if not track.end or stream not in (None, track.stream):
            continue
        ordinal = len(track) - 1
        end = track.end_of(ordinal)
        while ordinal and track.end_of(ordinal - 1) == end:
            ordinal -= 1
        found = -end, track.start_of(ordinal), Place(number, *track.find(ordinal))
        best = found if best is None else min(best, found)
    return best[2] if best else None


def walk(timeline: Timeline, last: Place) -> list[Link]:
    """The chain that ends with ``last``, from its end to its beginning."""
    chain: list[Link] = []
    met: dict[tuple[int, int], tuple[int, int]] = {}  # -> (copy, length of the chain) when it was come to
    place: Place | None = last
    copy = last.copy
    while place is not None:
        if place.copy < copy:
            known = met.get(place[:2])
            if known is None:
                met[place[:2]] = place.copy, len(chain)
            else:
                place = _skip(timeline, chain, place, *known)
                met.clear()
        elif place.copy > copy:  # another period's copies are counted anew
            met.clear()
        copy = place.copy
        chain.append(Link(place.track, place.entry, 1))
        place = _before(timeline, place)
    return chain


def _before(timeline: Timeline, place: Place) -> Place | None:
    """What ended as an operation began."""
    number, entry, copy = place
    tracks = timeline.tracks
    track = tracks[number]
    after = track.after[entry]
    if after < 0:
        if not track.repeats:
            return Place(number, entry - 1, 0) if entry else None
        ordinal = track.ordinal(entry, copy) - 1
        return Place(number, *track.find(ordinal)) if ordinal >= 0 else None
    ordinal, number = divmod(after, len(tracks))
    other = tracks[number]
    if copy:
        ordinal += copy * _size(timeline, number, _window(timeline, place))
    return Place(number, *other.find(ordinal))


def _window(timeline: Timeline, place: Place) -> int:
    repeat = timeline.tracks[place.track].repeat_of(place.entry)
    assert repeat is not None
    return repeat.window


def _size(timeline: Timeline, track: int, window: int) -> int:
    """Operations of a track in each period of a steady state."""
    return next((one.size for one in timeline.tracks[track].repeats if one.window == window), 0)


def _skip(timeline: Timeline, chain: list[Link], place: Place, copy: int, since: int) -> Place:
    """Count rounds of the chain's last part, up to where the walk might reach what was before."""
    round_ = copy - place.copy
    rounds = (place.copy - _reach(timeline, _window(timeline, place))) // round_
    if rounds < 1:
        return place
    chain[since:] = [link._replace(times=link.times * (1 + rounds)) for link in chain[since:]]
    return place._replace(copy=place.copy - rounds * round_)


def _reach(timeline: Timeline, window: int) -> int:
    """Periods of a steady state that its operations reach back, at most."""
    repeats = [
        next((one for one in track.repeats if one.window == window), None) for track in timeline.tracks
    ]
    most = 1
    for track, repeat in zip(timeline.tracks, repeats, strict=True):
        if repeat is None:
            continue
        for after in track.after[repeat.first : repeat.last]:
            ordinal, number = divmod(after, len(repeats))
            other = repeats[number]
            if after >= 0 and other is not None:
                most = max(most, -((ordinal - other.ordinal) // other.size))
    return most
