"""How fast the engine replays a schedule of the size of a real decode step."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simoffload.engine import execute
from simoffload.schedule import Block, Dependency, Link, Op, Route, Schedule

HOST, COPY, COMPUTE = 0, 1, 2
MICROSECOND = 1_000_000  # [ps]


def fetch_and_compute(*, ranks: int, layers: int, modules: int) -> Schedule:
    """Every module: a hook, a copy of 64 MB over a link that two ranks share, a kernel."""
    links = tuple(Link(f"switch {pair}", 25_000_000_000) for pair in range((ranks + 1) // 2))
    hops = tuple(((rank // 2, 1),) for rank in range(ranks))
    route = Route("host to device", hops=hops, cap=20_000_000_000)
    module = (
        Op("hook", "module", HOST, fixed=30 * MICROSECOND),
        Op("copy", "module", COPY, size=64_000_000, route=0, after=(Dependency(HOST),)),
        Op("compute", "module", COMPUTE, fixed=900 * MICROSECOND, after=(Dependency(COPY),)),
    )
    return Schedule(
        name="decode",
        ranks=ranks,
        streams=("host", "copy", "compute"),
        links=links,
        routes=(route,),
        blocks=(Block("layer", module * modules, repeat=layers),),
    )


@pytest.mark.parametrize("ranks", [1, 8])
def test_decode_step(benchmark: BenchmarkFixture, ranks: int) -> None:
    schedule = fetch_and_compute(ranks=ranks, layers=70, modules=10)
    timeline = benchmark.pedantic(execute, args=(schedule,), rounds=3)
    assert len(timeline) == ranks * 70 * 10 * 3
