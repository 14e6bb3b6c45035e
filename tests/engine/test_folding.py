"""Which ranks are alike, and what their links carry when they are run as one."""

from __future__ import annotations

from simoffload.engine import execute
from simoffload.engine.fold import fold_ranks
from simoffload.schedule import Block, Cause, Link, Op, Route, Schedule


def nodes(capacities: list[int], *, distinct: tuple[int, ...] = ()) -> Schedule:
    """Ranks that read over a shared storage and each over a link of its own."""
    links = (Link("storage", 1000), *(Link(f"nic{rank}", size) for rank, size in enumerate(capacities)))
    hops = tuple(((0, 2), (1 + rank, 1)) for rank in range(len(capacities)))
    ops = (Op("read", "", 0, size=700, route=0),)
    routes = (Route(Cause.own("read"), hops, 10**6),)
    return Schedule("nodes", len(capacities), ("io",), links, routes, (Block("b", ops, 5),), distinct)


def test_ranks_on_equal_links_are_folded() -> None:
    folding = fold_ranks(nodes([300] * 8))
    assert folding.classes == (tuple(range(8)),)
    assert folding.links == (0, *[1] * 8)
    assert folding.schedule.ranks == 1
    assert folding.schedule.routes[0].hops == (((0, 16), (1, 1)),)


def test_fast_and_slow_nodes_form_two_classes() -> None:
    folding = fold_ranks(nodes([300, 50, 300, 50]))
    assert folding.classes == ((0, 2), (1, 3))
    assert folding.schedule.routes[0].hops == (((0, 4), (1, 1)), ((0, 4), (2, 1)))


def test_neighbours_of_neighbours_distinguish_ranks() -> None:
    """All own links are alike; but two ranks share a switch, and the third has one to itself."""
    links = (Link("switch", 100), Link("switch too", 100), *(Link(f"nic{i}", 50) for i in range(3)))
    hops = (((2, 1), (0, 1)), ((3, 1), (0, 1)), ((4, 1), (1, 1)))
    ops = (Op("read", "", 0, size=70, route=0),)
    schedule = Schedule("s", 3, ("io",), links, (Route(Cause.own("r"), hops, 10**6),), (Block("b", ops),))
    folding = fold_ranks(schedule)
    assert folding.classes == ((0, 1), (2,))
    assert folding.links == (0, 1, 2, 2, 3)


def test_ranks_of_different_numbers_are_not_folded() -> None:
    """A turn in a queue or a seed of noise would break the symmetry that the links have."""
    timeline = execute(nodes([300] * 4, distinct=(0, 1, 2, 3)))
    assert timeline.how.separate_ranks == "no two ranks are identical"
    assert timeline.classes == ()
    assert fold_ranks(nodes([300] * 4, distinct=(7, 1, 1, 7))).classes == ((0, 3), (1, 2))


def test_rates_round_as_if_every_rank_were_run() -> None:
    """1000 B/s for 8 ranks with coefficient 2: 62.5 B/s each, rounded down to 62; the link is full."""
    folded, full = (
        execute(nodes([300] * 8)),
        execute(nodes([300] * 8), rank_symmetry=False, steady_state=False),
    )
    assert folded.makespan == full.makespan == 5 * -(-700 * 10**12 // 62)
    assert folded.link_bytes == full.link_bytes == (5 * 8 * 2 * 700, *[5 * 700] * 8)
    assert folded.link_saturated == full.link_saturated == (folded.makespan, *[0] * 8)


def test_ten_thousand_ranks_take_no_longer_to_run() -> None:
    timeline = execute(
        nodes([300] * 10_000)._replace(
            links=(Link("storage", 10**9), *[Link(f"n{i}", 300) for i in range(10_000)])
        )
    )
    assert timeline.entries <= 5
    assert len(timeline) == 50_000
