"""Small schedules and small sets of flows that hypothesis makes up."""

from __future__ import annotations

from hypothesis import strategies as st

from simoffload.hardware.paths import Demand
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Peers, Program, Route, Schedule

# Few distinct values, so that things often happen at the same time.
CAPACITIES = st.sampled_from([10**6, 3 * 10**6, 10**9]) | st.integers(10**6, 10**10)
SIZES = st.sampled_from([0, 1, 1000, 10**6]) | st.integers(0, 10**7)
TIMES = st.sampled_from([0, 1, 10**6, 10**9]) | st.integers(0, 10**10)


def hops(links: int, *, longest: int = 3) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    crossed = st.lists(st.integers(0, links - 1), unique=True, max_size=min(longest, links))
    return crossed.flatmap(
        lambda chosen: st.tuples(*(st.tuples(st.just(link), st.integers(1, 4)) for link in chosen))
    )


@st.composite
def sharings(
    draw: st.DrawFn, *, flows: int = 8, links: int = 5, rates: st.SearchStrategy[int] | None = None
) -> tuple[list[Demand], list[int]]:
    """Flows and the capacities of the links that they cross."""
    rates = rates or st.integers(1, 30) | st.integers(1, 10**12)
    capacities = draw(st.lists(rates, min_size=1, max_size=links))
    demand = st.builds(Demand, hops(len(capacities)), rates, st.integers(1, 6))
    return draw(st.lists(demand, min_size=1, max_size=flows)), capacities


def operations(
    streams: int, routes: int, *, times: st.SearchStrategy[int], sizes: st.SearchStrategy[int], back: int
) -> st.SearchStrategy[Op]:
    """Operations that wait for up to two others; ``back`` is how far back these may be."""
    waits = st.builds(Dependency, st.integers(0, streams - 1), st.integers(0, back), st.just(-1))
    return operations_on(st.integers(0, streams - 1), routes, times=times, sizes=sizes, waits=waits)


def operations_on(
    streams: st.SearchStrategy[int],
    routes: int,
    *,
    times: st.SearchStrategy[int],
    sizes: st.SearchStrategy[int],
    waits: st.SearchStrategy[Dependency],
) -> st.SearchStrategy[Op]:
    return st.builds(
        Op,
        kind=st.just("copy"),
        label=st.just(""),
        stream=streams,
        fixed=times,
        size=sizes,
        route=st.integers(0, routes - 1),
        after=st.lists(waits, max_size=2).map(tuple),
        collective=st.sampled_from([False, False, False, True]),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    ranks = draw(st.integers(1, 3))
    streams = draw(st.integers(1, 4))
    capacities = draw(st.lists(CAPACITIES, min_size=1, max_size=4))
    links = tuple(Link(f"link{i}", capacity) for i, capacity in enumerate(capacities))
    per_rank = st.tuples(*[hops(len(links))] * ranks)
    route = st.builds(Route, st.just("route"), per_rank, CAPACITIES, st.integers(1, 3))
    routes = draw(st.lists(route, min_size=1, max_size=3))
    op = operations(streams, len(routes), times=TIMES, sizes=SIZES, back=5)
    block = st.builds(
        Block,
        st.just("block"),
        st.lists(op, min_size=1, max_size=5).map(tuple),
        st.integers(1, 3),
    )
    blocks = draw(st.lists(block, min_size=1, max_size=3))
    return Schedule(
        "generated", ranks, tuple(f"stream{i}" for i in range(streams)), links, tuple(routes), tuple(blocks)
    )


@st.composite
def long_schedules(draw: st.DrawFn, *, most: int = 40) -> Schedule:
    """Like ``schedules``, with up to 5 ranks of which some are alike, and with blocks that repeat often.

    Ranks share some links and have copies of others, which may be of different capacities (skewed nodes) or
    be crossed with different coefficients (skewed shards).
    """
    ranks = draw(st.integers(1, 5))
    streams = draw(st.integers(1, 4))
    kinds = [draw(st.integers(0, 1)) for _ in range(ranks)]
    own = [10**9, draw(st.sampled_from([10**9, 10**9, 7 * 10**8 + 1]))]
    skew = [1, draw(st.sampled_from([1, 1, 2]))]
    shared = draw(st.sampled_from([10**9, 3 * 10**9 + 7, 10**10]))
    links = (
        Link("shared", shared),
        Link("other", draw(CAPACITIES)),
        *(Link(f"own{rank}", own[kind]) for rank, kind in enumerate(kinds)),
    )
    routes = []
    for _ in range(draw(st.integers(1, 3))):
        crossed = draw(st.sampled_from([(0,), (0, 2), (2,), (0, 1, 2), (1,), ()]))
        per_rank = tuple(
            tuple((link if link < 2 else 2 + rank, skew[kind] if link == 0 else 1) for link in crossed)
            for rank, kind in enumerate(kinds)
        )
        routes.append(Route(Cause.own("route"), per_rank, draw(st.sampled_from([10**8, 10**9, 10**10]))))
    times = st.sampled_from([0, 10**6, 3 * 10**6, 10**9]) | st.integers(0, 10**7)
    sizes = st.sampled_from([0, 1000, 10**6]) | st.integers(0, 10**6)
    op = operations(streams, len(routes), times=times, sizes=sizes, back=9)
    ops = st.lists(op, min_size=1, max_size=6).map(tuple)
    block = st.builds(Block, st.just("block"), ops, st.integers(1, 3) | st.integers(4, most))
    blocks = tuple(draw(st.lists(block, min_size=1, max_size=4)))
    names = tuple(f"stream{i}" for i in range(streams))
    return Schedule("generated", ranks, names, links, tuple(routes), blocks)


@st.composite
def program_schedules(draw: st.DrawFn, *, most: int = 40) -> Schedule:
    """Two programs, of up to 3 ranks each, that wait for each other's ranks and for other ranks of their own.

    They have routes over a link that all share and over one for each kind of rank.
    """
    ranks = [range(one := draw(st.integers(1, 3))), range(one, one + draw(st.integers(1, 3)))]
    streams = [range(one := draw(st.integers(1, 2))), range(one, one + draw(st.integers(1, 2)))]
    programs = [Program(f"program{i}", *both) for i, both in enumerate(zip(ranks, streams, strict=True))]
    count = ranks[1].stop
    kinds = [draw(st.sampled_from([1, 1, 2])) for _ in range(count)]
    capacities = [draw(st.sampled_from([10**9, 3 * 10**9 + 7, 10**10])), 10**9, 7 * 10**8 + 1]
    links = tuple(Link(f"link{i}", capacity) for i, capacity in enumerate(capacities))
    routes = []
    for crossed in (draw(st.sampled_from(["shared", "own", "both"])) for _ in range(2)):
        ways = {"shared": [0], "own": [-1], "both": [0, -1]}[crossed]
        per_rank = tuple(tuple((kind if way else 0, 1) for way in ways) for kind in kinds)
        routes.append(Route(Cause.own("route"), per_rank, draw(st.sampled_from([10**8, 10**9, 10**10]))))
    times = st.sampled_from([0, 10**6, 3 * 10**6, 10**9]) | st.integers(0, 10**7)
    sizes = st.sampled_from([0, 1000, 10**6]) | st.integers(0, 10**6)
    peers = tuple(draw(_peers(own, other, count)) for own in ranks for other in ranks)
    ops = st.one_of(
        *(
            operations_on(
                st.sampled_from(streams[own]),
                len(routes),
                times=times,
                sizes=sizes,
                waits=st.sampled_from([(own, -1), (0, 2 * own), (1, 2 * own + 1)]).flatmap(
                    lambda kind: st.builds(
                        Dependency, st.sampled_from(streams[kind[0]]), st.integers(0, 9), st.just(kind[1])
                    )
                ),
            )
            for own in range(2)
        )
    )
    written = st.lists(ops, min_size=1, max_size=6).map(tuple)
    block = st.builds(Block, st.just("block"), written, st.integers(1, 3) | st.integers(4, most))
    blocks = tuple(draw(st.lists(block, min_size=1, max_size=3)))
    names = tuple(f"stream{i}" for i in range(streams[1].stop))
    return Schedule(
        "generated", count, names, links, tuple(routes), blocks, programs=tuple(programs), peers=peers
    )


@st.composite
def _peers(draw: st.DrawFn, own: range, other: range, ranks: int) -> Peers:
    """For some ranks which others they wait for: the one of the same number, all, or any."""
    some = st.lists(st.sampled_from(other), unique=True, max_size=2).map(tuple)
    chosen = draw(
        st.sampled_from([[(other[i % len(other)],) for i in range(3)], [tuple(other)] * 3])
        | st.lists(some, min_size=3, max_size=3)
    )
    return tuple(chosen[rank - own.start] if rank in own else () for rank in range(ranks))


def slowed(schedule: Schedule, factor: int) -> Schedule:
    """All rates divided by ``factor``, all fixed times multiplied by it."""
    return schedule._replace(
        links=tuple(link._replace(capacity=link.capacity // factor) for link in schedule.links),
        routes=tuple(route._replace(cap=route.cap // factor) for route in schedule.routes),
        blocks=tuple(
            block._replace(ops=tuple(op._replace(fixed=op.fixed * factor) for op in block.ops))
            for block in schedule.blocks
        ),
    )


@st.composite
def nested_schedules(draw: st.DrawFn) -> Schedule:
    """Schedules in which blocks with the same operations come again, alone and in groups that recur."""
    base = draw(long_schedules() | program_schedules())
    contents = [block.ops for block in base.blocks]
    block = st.builds(
        Block, st.just("block"), st.sampled_from(contents), st.integers(1, 3) | st.integers(4, 12)
    )
    groups = st.tuples(st.lists(block, min_size=1, max_size=4), st.integers(1, 8))
    blocks = [one for group, times in draw(st.lists(groups, min_size=1, max_size=3)) for one in group * times]
    return base._replace(blocks=tuple(blocks))
