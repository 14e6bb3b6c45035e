"""Passes that follow one another, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from simoffload.results.passes import LinkUse, PassResult, Share, StreamUse
from simoffload.results.times import Time

__all__ = ["combined"]


def combined(name: str, parts: Sequence[tuple[PassResult, Fraction]]) -> PassResult:
    """Put passes that follow one another together, each as often as it happens; times and bytes add up."""
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
    )


def _sum_shares(parts: Sequence[tuple[PassResult, Fraction]]) -> tuple[Share, ...]:
    """By cause; what held a transfer back is said of the pass in which it took longest."""
    found: dict[str, Share] = {}
    longest: dict[str, Time] = {}
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
    return tuple(sorted(found.values(), key=lambda share: (-share.exposed_ps, -share.busy_ps, share.cause)))


def _sum_links(parts: Sequence[tuple[PassResult, float]]) -> tuple[LinkUse, ...]:
    found: dict[str, LinkUse] = {}
    for one, count in parts:
        for use in one.links:
            known = found.get(use.link, use._replace(size=0, busy_s=0.0, saturated_s=0.0, exposed_s=0.0))
            found[use.link] = known._replace(
                size=known.size + round(use.size * count),
                busy_s=known.busy_s + use.busy_s * count,
                saturated_s=known.saturated_s + use.saturated_s * count,
                exposed_s=known.exposed_s + use.exposed_s * count,
            )
    return tuple(sorted(found.values(), key=lambda use: (-use.busy_s, use.link)))


def _sum_streams(parts: Sequence[tuple[PassResult, float]]) -> tuple[StreamUse, ...]:
    busy = _sums((use.stream, use.busy_s * count) for one, count in parts for use in one.streams)
    exposed = _sums((use.stream, use.exposed_s * count) for one, count in parts for use in one.streams)
    return tuple(StreamUse(name, busy[name], exposed[name]) for name in busy)


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for key, value in pairs:
        totals[key] = totals.get(key, 0.0) + value
    return totals
