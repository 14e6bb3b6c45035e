"""One simulated forward pass, summarized."""

from __future__ import annotations

from typing import NamedTuple

from simoffload.results.attribution import Attribution, attribute
from simoffload.results.timeline import Timeline
from simoffload.schedule.bounds import link_times, stream_times

__all__ = ["LinkUse", "PassResult", "Share", "summarize_pass"]

_PICO = 1e-12
_SATURATED = 0.5  # of the time that a link is in use: from there on the link, not the transfer, sets the pace


class Share(NamedTuple):
    """One cause of time."""

    cause: str
    exposed_s: float
    """[s] on the chain of operations that determined the pass; these sum to its time."""
    busy_s: float
    """[s] in all on the deciding rank, hidden behind something else or not."""
    limit: str
    """What held a transfer back: a link that was full, or the single transfer's own limit."""


class LinkUse(NamedTuple):
    """What crossed a link."""

    link: str
    size: int
    """[B]"""
    busy_s: float
    """[s] with at least one transfer."""
    saturated_s: float
    """[s] filled to capacity."""
    capacity: int
    """[B/s]"""


class PassResult(NamedTuple):
    """Time, causes and traffic of one pass."""

    name: str
    new_tokens: int
    context: int
    time_s: float
    shares: tuple[Share, ...]
    """Largest exposed time first."""
    links: tuple[LinkUse, ...]
    """Links that carried anything, busiest first."""
    bounds: dict[str, float]
    """[s] that no schedule can beat, by resource: bytes over bandwidth, GPU work, host work."""

    @property
    def bottleneck(self) -> Share:
        """The cause with most exposed time."""
        return self.shares[0]

    @property
    def bound_s(self) -> float:
        """[s] the largest of the bounds."""
        return max(self.bounds.values())

    @property
    def bound_by(self) -> str:
        """The resource that sets ``bound_s``."""
        return max(self.bounds, key=lambda name: (self.bounds[name], name))


def summarize_pass(timeline: Timeline, *, new_tokens: int, context: int) -> PassResult:
    """Turn a recorded run into its summary."""
    attribution = attribute(timeline)
    return PassResult(
        name=timeline.schedule.name,
        new_tokens=new_tokens,
        context=context,
        time_s=timeline.makespan * _PICO,
        shares=_shares(timeline, attribution),
        links=_links(timeline),
        bounds=_bounds(timeline),
    )


def _shares(timeline: Timeline, attribution: Attribution) -> tuple[Share, ...]:
    limits = _limits(timeline)
    return tuple(
        Share(name, attribution.exposed.get(name, 0) * _PICO, busy * _PICO, limits.get(name, ""))
        for name, busy in sorted(
            attribution.busy.items(),
            key=lambda item: (-attribution.exposed.get(item[0], 0), -item[1], item[0]),
        )
    )


def _limits(timeline: Timeline) -> dict[str, str]:
    """For every kind of transfer the link that was full most of the time it was in use, if any was."""
    limits = {}
    for route in timeline.schedule.routes:
        ratios = [
            (timeline.link_saturated[link] / timeline.link_busy[link], timeline.schedule.links[link].name)
            for hops in route.hops
            for link, _ in hops
            if timeline.link_busy[link]
        ]
        full = max(ratios, default=(0.0, ""))
        limits[route.name] = full[1] if full[0] >= _SATURATED else "what one transfer reaches by itself"
    return limits


def _links(timeline: Timeline) -> tuple[LinkUse, ...]:
    uses = [
        LinkUse(link.name, size, busy * _PICO, full * _PICO, link.capacity // link.scale)
        for link, size, busy, full in zip(
            timeline.schedule.links,
            timeline.link_bytes,
            timeline.link_busy,
            timeline.link_saturated,
            strict=True,
        )
        if size
    ]
    return tuple(sorted(uses, key=lambda use: (-use.busy_s, use.link)))


def _bounds(timeline: Timeline) -> dict[str, float]:
    """Each stream's own work on its busiest rank, and each link's bytes over its capacity [s]."""
    schedule = timeline.schedule
    bounds: dict[str, float] = {}
    for (_, stream), time in stream_times(schedule).items():
        name = f"{schedule.streams[stream]} stream"
        bounds[name] = max(bounds.get(name, 0.0), time * _PICO)
    for link, time in zip(schedule.links, link_times(schedule), strict=True):
        if time:
            bounds[link.name] = time * _PICO
    return bounds
