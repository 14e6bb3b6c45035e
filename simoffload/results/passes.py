"""Summary of one simulated pass, and the combination of several passes.

Times are exact: whole picoseconds, or fractions of them for a part that does not occur in every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from simoffload.brief import brief
from simoffload.results.attribution import Attribution, Group, attribute, cause_text, end_of
from simoffload.results.metrics import by_name
from simoffload.results.timeline import Timeline
from simoffload.schedule import Cause, LinkUnit, link_time, stream_times

Time = int | Fraction
"""Exact duration in picoseconds [ps]."""
_PICO = 1e-12


def seconds(time: Time) -> float:
    """Return a time [ps] in [s], rounded to the nearest floating-point number."""
    return float(time) * _PICO


def largest_remainder(parts: Sequence[Time]) -> tuple[int, ...]:
    """Round the parts of a time [ps] to whole picoseconds that sum to the rounded total.

    The largest-remainder method: all parts are rounded down, then those that lost most are raised by one, the
    first of equal ones first. No part changes by a picosecond or more.
    """
    low = [part.__floor__() for part in parts]
    missing = round(sum(parts)) - sum(low)
    lost = sorted(range(len(parts)), key=lambda number: low[number] - parts[number])
    for number in lost[:missing]:
        low[number] += 1
    return tuple(low)


_SATURATED = 0.5  # fraction of its time in use from which a saturated link is called the limit (our choice)

_LATENCY = 0.3  # fraction of a transfer's time from which latency is called the limit (our choice)


class Share(NamedTuple):
    """A Share is the time of one cause of a pass."""

    cause: Cause
    group: Group
    """Category of the cause, such as host or storage."""
    exposed_ps: Time
    """[ps] on the critical path; over all causes these sum exactly to the time of the pass."""
    busy_ps: Time
    """[ps] in total, on the critical path or not, on the rank with the most."""
    limit: str
    """What limits a transfer: a saturated link, its latency, or the rate of a single one; "" for other
    work."""
    size: int = 0
    """[B] moved on all ranks, for a transfer."""

    @property
    def cause_text(self) -> str:
        """Text of the cause, such as "raid read"."""
        return cause_text(self.cause)

    @property
    def exposed_s(self) -> float:
        """[s] see ``exposed_ps``."""
        return seconds(self.exposed_ps)

    @property
    def busy_s(self) -> float:
        """[s] see ``busy_ps``."""
        return seconds(self.busy_ps)


class GroupShare(NamedTuple):
    """A GroupShare is the time of all causes of one category."""

    group: Group
    exposed_ps: Time
    """[ps] on the critical path; over all groups these sum exactly to the time of the pass."""
    hidden_ps: Time
    """[ps] not on the critical path; causes that overlap each other are all counted."""

    @property
    def exposed_s(self) -> float:
        """[s] see ``exposed_ps``."""
        return seconds(self.exposed_ps)

    @property
    def hidden_s(self) -> float:
        """[s] see ``hidden_ps``."""
        return seconds(self.hidden_ps)


class StreamUse(NamedTuple):
    """A StreamUse is the time of one stream, on the rank where it is busiest."""

    stream: str
    busy_s: float
    """[s] of all operations of the stream."""
    exposed_s: float
    """[s] of its operations on the critical path."""


class LinkUse(NamedTuple):
    """A LinkUse is the traffic and the time of one link."""

    link: str
    size: int
    """[B] over the link, or in another ``unit``."""
    busy_s: float
    """[s] in which at least one transfer used the link."""
    saturated_s: float
    """[s] in which the link was used to its capacity."""
    capacity: int
    """[B/s], or ``unit`` per second."""
    exposed_s: float = 0.0
    """[s] of transfers over the link on the critical path."""
    unit: LinkUnit = "B"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the capacity as plain values."""
        size = "bytes" if self.unit == "B" else "core_ns"
        return by_name(self, f"link {size}=size busy_s saturated_s exposed_s")


class PassResult(NamedTuple):
    """A PassResult holds time, causes and traffic of one pass."""

    name: str
    new_tokens: int
    context: int
    time_ps: Time
    shares: tuple[Share, ...]
    """Time by cause, the largest exposed time first."""
    links: tuple[LinkUse, ...]
    """Links that carried traffic, the busiest first."""
    bounds: dict[str, float]
    """Lower bounds on the time of any schedule [s], by resource: bytes over bandwidth, GPU work, host
    work."""
    streams: tuple[StreamUse, ...] = ()
    """Time of each stream of the deciding rank, in the schedule's order."""
    unfinished_s: float = 0.0
    """[s] for which other streams continue after the stream with which the pass ends."""
    gpus_s: float = 0.0
    """[s] of work of all GPUs, added up."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def time_s(self) -> float:
        """[s] from its begin to its end."""
        return seconds(self.time_ps)

    @property
    def groups(self) -> tuple[GroupShare, ...]:
        """Exposed and hidden time by group, largest exposed time first."""
        exposed, hidden = dict[Group, Time](), dict[Group, Time]()
        for share in self.shares:
            exposed[share.group] = exposed.get(share.group, 0) + share.exposed_ps
            hidden[share.group] = hidden.get(share.group, 0) + share.busy_ps - share.exposed_ps
        order = sorted(exposed, key=lambda group: (-exposed[group], -hidden[group], group))
        return tuple(GroupShare(group, exposed[group], hidden[group]) for group in order)

    @property
    def bottleneck(self) -> Share:
        """Cause with the largest exposed time."""
        return self.shares[0]

    @property
    def bound_s(self) -> float:
        """Largest of the lower bounds on the time [s]."""
        return max(self.bounds.values())

    @property
    def bound_by(self) -> str:
        """Resource that sets ``bound_s``; the first of several equal ones."""
        return max(self.bounds, key=self.bounds.__getitem__)


def summarize_pass(
    timeline: Timeline,
    *,
    new_tokens: int,
    context: int,
    ends_with: str | None = None,
    detailed: bool = True,
    bounded: bool = False,
) -> PassResult:
    """Summarize the timeline of a pass.

    ``ends_with`` is the label of the stream whose last operation ends the pass. Work of other streams after
    that counts as busy time and traffic of this pass. Without ``detailed`` there are only its times and, if
    ``bounded``, their bounds.
    """
    name = timeline.schedule.name
    if not detailed:
        end = end_of(timeline, ends_with)
        left, bounds = seconds(timeline.makespan - end), _bounds(timeline, end) if bounded else {}
        return PassResult(name, new_tokens, context, end, (), (), bounds, unfinished_s=left)
    attribution = attribute(timeline, ends_with=ends_with)
    end = attribution.end
    return PassResult(
        name=name,
        new_tokens=new_tokens,
        context=context,
        time_ps=end,
        shares=_shares(timeline, attribution),
        links=_links(timeline, attribution),
        bounds=_bounds(timeline, end),
        streams=tuple(
            StreamUse(name, seconds(busy), seconds(attribution.exposed_streams.get(name, 0)))
            for name, busy in attribution.busy_streams.items()
        ),
        unfinished_s=seconds(timeline.makespan - end),
        gpus_s=seconds(attribution.on_gpus),
    )


def _shares(timeline: Timeline, attribution: Attribution) -> tuple[Share, ...]:
    limits, sizes = _limits(timeline, attribution), _sizes(timeline)
    shares = [
        Share(
            cause,
            attribution.groups[cause],
            attribution.exposed.get(cause, 0),
            busy,
            limits.get(cause, ""),
            sizes[cause],
        )
        for cause, busy in attribution.busy.items()
    ]
    return _in_order(shares)


def _in_order(shares: Iterable[Share]) -> tuple[Share, ...]:
    """Return shares with the largest exposed time first, of equal ones by their text."""
    return tuple(sorted(shares, key=lambda share: (-share.exposed_ps, -share.busy_ps, share.cause_text)))


def _sizes(timeline: Timeline) -> Counter[Cause]:
    """Return the bytes [B] that each kind of transfer moved on all ranks."""
    schedule = timeline.schedule
    ranks = [len(program.ranks) for program in schedule.owners]
    sizes: Counter[Cause] = Counter()
    for ops, times in schedule.contents:
        for op in ops:
            if op.size:
                sizes[schedule.routes[op.route].cause] += op.size * times * ranks[op.stream]
    return sizes


def _limits(timeline: Timeline, attribution: Attribution) -> dict[Cause, str]:
    """Return what limits each kind of transfer: its latency, the link that was saturated most of the time, or
    the rate of a single transfer; CPU work that does not saturate its memory is limited by the CPU."""
    fullest: dict[Cause, tuple[float, str]] = {}
    for route in timeline.schedule.routes:
        # Of equal links, that of the first rank, which the table of links shows.
        for link in dict.fromkeys([link for hops in route.hops for link, _ in hops]):
            if timeline.link_busy[link]:
                ratio = timeline.link_saturated[link] / timeline.link_busy[link]
                if ratio > fullest.get(route.cause, (-1.0, ""))[0]:
                    fullest[route.cause] = ratio, timeline.schedule.links[link].name
    latency = _fixed(timeline)
    limits = {}
    for cause, (filled, full) in fullest.items():
        on_cpu = attribution.groups.get(cause) == "host"
        if latency[cause] >= _LATENCY * attribution.busy.get(cause, 1):
            limits[cause] = "the speed of the CPU" if on_cpu else "the latency of each transfer"
        elif filled >= _SATURATED:
            limits[cause] = full
        else:
            limits[cause] = "the speed of the CPU" if on_cpu else "the rate of a single transfer"
    return limits


def _fixed(timeline: Timeline) -> Counter[Cause]:
    """Return the time [ps] of each kind of transfer before bytes move, for the program with the most."""
    schedule = timeline.schedule
    owners = schedule.owners
    fixed = {program.name: Counter[Cause]() for program in owners}
    for ops, times in schedule.contents:
        for op in ops:
            if op.route >= 0:
                fixed[owners[op.stream].name][schedule.routes[op.route].cause] += op.fixed * times
    most: Counter[Cause] = Counter()
    for each in fixed.values():
        most |= each
    return most


def _links(timeline: Timeline, attribution: Attribution) -> tuple[LinkUse, ...]:
    def exposed(name: str) -> float:
        return seconds(attribution.exposed_links.get(name, 0))

    uses = [
        LinkUse(
            link.name,
            size,
            seconds(busy),
            seconds(full),
            link.capacity // link.scale,
            exposed(link.name),
            link.unit,
        )
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


_WORK = ("compute", "host")
"""Streams whose work is a lower bound for every schedule."""


def _bounds(timeline: Timeline, end: int) -> dict[str, float]:
    """Return lower bounds on the time of any schedule [s], at most up to ``end`` [ps]: the bytes of each link
    over its bandwidth, and the work of GPUs and hosts.

    Copies on a compute stream, such as those of transformers' offloaded cache, are part of its work.
    """
    schedule = timeline.schedule
    bounds: dict[str, float] = {}
    copying = {op.stream for ops, _ in schedule.contents for op in ops if op.size}
    ranks = [members[0] for members in timeline.ranks_by_class]
    for (_, stream), time in stream_times(schedule, ranks).items():
        if schedule.streams[stream] in _WORK:
            name: str = schedule.device_of(stream).kind
            if name != "host thread":
                name = f"compute stream of the {name}" if stream in copying else f"{name} compute"
            bounds[name] = max(bounds.get(name, 0.0), seconds(time))
    for link, load in zip(schedule.links, timeline.link_loads, strict=True):
        if load:
            bounds[link.name] = seconds(link_time(load, link))
    return {name: min(bound, seconds(end)) for name, bound in bounds.items()}


def aggregate(name: str, parts: Sequence[tuple[PassResult, Fraction]]) -> PassResult:
    """Combine passes that follow one another, each with its number of occurrences; times and bytes are added
    up."""
    weighted = [(one, float(count)) for one, count in parts]
    return PassResult(
        name=name,
        new_tokens=parts[0][0].new_tokens,
        context=parts[0][0].context,
        time_ps=sum(one.time_ps * count for one, count in parts),
        shares=_sum_shares(parts),
        links=_sum_links(weighted),
        bounds=_sums((key, value * count) for one, count in weighted for key, value in one.bounds.items()),
        streams=_sum_streams(weighted),
        gpus_s=sum(one.gpus_s * count for one, count in weighted),
    )


def _sum_shares(parts: Sequence[tuple[PassResult, Fraction]]) -> tuple[Share, ...]:
    """Add up shares by cause; the limit of a transfer is that of the pass in which it took the longest."""
    found: dict[Cause, Share] = {}
    longest: dict[Cause, Time] = {}
    for one, count in parts:
        for share in one.shares:
            known = found.get(share.cause, share._replace(exposed_ps=0, busy_ps=0, limit="", size=0))
            limit, busy = known.limit, share.busy_ps * count
            if busy >= longest.get(share.cause, 0):
                limit, longest[share.cause] = share.limit, busy
            found[share.cause] = known._replace(
                exposed_ps=known.exposed_ps + share.exposed_ps * count,
                busy_ps=known.busy_ps + busy,
                limit=limit,
                size=known.size + round(share.size * count),
            )
    return _in_order(found.values())


def _sum_links(parts: Sequence[tuple[PassResult, float]]) -> tuple[LinkUse, ...]:
    found: dict[str, tuple[LinkUse, list[float]]] = {}
    for one, count in parts:
        for use in one.links:
            _, sums = found.setdefault(use.link, (use, [0, 0.0, 0.0, 0.0]))
            sums[0] += round(use.size * count)
            sums[1] += use.busy_s * count
            sums[2] += use.saturated_s * count
            sums[3] += use.exposed_s * count
    uses = [
        use._replace(size=int(size), busy_s=busy, saturated_s=saturated, exposed_s=exposed)
        for use, (size, busy, saturated, exposed) in found.values()
    ]
    return tuple(sorted(uses, key=lambda use: (-use.busy_s, use.link)))


def _sum_streams(parts: Sequence[tuple[PassResult, float]]) -> tuple[StreamUse, ...]:
    busy = _sums((use.stream, use.busy_s * count) for one, count in parts for use in one.streams)
    exposed = _sums((use.stream, use.exposed_s * count) for one, count in parts for use in one.streams)
    return tuple(StreamUse(name, busy[name], exposed[name]) for name in busy)


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for key, value in pairs:
        totals[key] = totals.get(key, 0.0) + value
    return totals
