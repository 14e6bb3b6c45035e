"""Operations per second of the engine, beside those of a bare SimPy timeout loop.

    python benchmarks/bench_engine.py [--iterations 4800] [--ranks 8]

The schedule has the size of one decode step of BLOOM-mod-2 at module granularity: 35 operations a
layer, 14 of them transfers and 5 of those collective.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Generator, Sequence

from simpy import Environment
from simpy.events import Timeout

from simoffload.engine import execute
from simoffload.schedule import Block, Dependency, Link, Op, Route, Schedule

HOST, READ, COPY, GATHER, COMPUTE = range(5)
MICROSECOND = 10**6  # [ps]
MODULES = 5


def decode_step(*, iterations: int, ranks: int, uneven: bool) -> Schedule:
    """A layer of five modules: hook, read, copy, gather, launch, compute; every rank on its own PCIe link.

    With ``uneven`` the links of higher ranks are slower, so that flows start and end one by one.
    """
    storage, memory, fabric, first_pcie = range(4)
    slower = 1_300_000_000 if uneven else 0
    links = (
        Link("storage", 48_000_000_000),
        Link("memory", 150_000_000_000),
        Link("fabric", 2_400_000_000_000),
        *(Link(f"pcie{rank}", max(1, 25_000_000_000 - slower * rank)) for rank in range(ranks)),
    )
    pcie = [first_pcie + rank for rank in range(ranks)]
    routes = (
        Route("read", tuple(((storage, 1), (memory, 1), (link, 1)) for link in pcie), 7_000_000_000, 8),
        Route("copy", tuple(((memory, 1), (link, 1)) for link in pcie), 24_500_000_000, 4),
        Route("gather", tuple(((fabric, 1),) for _ in pcie), 230_000_000_000),
    )
    ops: list[Op] = []
    for module in range(MODULES):
        name = f"module{module}"
        ops.append(Op("hook", name, HOST, fixed=60 * MICROSECOND))
        if module:
            ops.append(
                Op("read", name, READ, 20 * MICROSECOND, 2_000_000 * (module + 1), 0, (Dependency(HOST, 3),))
            )
        ops.append(Op("copy", name, COPY, 5 * MICROSECOND, 2_000_000 * (module + 1), 1, (Dependency(READ),)))
        gather = (Dependency(COPY), Dependency(HOST))
        ops.append(Op("gather", name, GATHER, 10 * MICROSECOND, 14_000_000, 2, gather, collective=True))
        ops.append(Op("wait", name, HOST, after=(Dependency(GATHER),)))
        ops.append(Op("launch", name, HOST, fixed=8 * MICROSECOND))
        ops.append(
            Op("compute", name, COMPUTE, 90 * MICROSECOND, after=(Dependency(HOST), Dependency(GATHER)))
        )
    ops.append(Op("hook", "layer", HOST, fixed=30 * MICROSECOND))
    return Schedule(
        name="decode",
        ranks=ranks,
        streams=("host", "read", "copy", "gather", "compute"),
        links=links,
        routes=routes,
        blocks=(Block("layer", tuple(ops), iterations),),
    )


def timeouts_per_second(count: int = 500_000) -> float:
    """How many timeouts one bare SimPy process gets through."""

    def ticks(environment: Environment) -> Generator[Timeout, None, None]:
        for _ in range(count):
            yield environment.timeout(1)

    environment = Environment()
    environment.process(ticks(environment))
    started = time.perf_counter()
    environment.run()
    return count / (time.perf_counter() - started)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=4800)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args(arguments)
    bare = timeouts_per_second()
    print(f"bare SimPy: {bare:,.0f} timeouts/s")
    for name, uneven in (("ranks in step", False), ("ranks out of step", True)):
        schedule = decode_step(iterations=options.iterations, ranks=options.ranks, uneven=uneven)
        started = time.perf_counter()
        timeline = execute(schedule)
        seconds = time.perf_counter() - started
        rate = len(timeline) / seconds
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"{name}: {len(timeline):,} operations in {seconds:.1f} s, {rate:,.0f}/s "
            f"({bare / rate:.1f} bare timeouts each), {timeline.events:,} clock events, "
            f"peak {peak:.0f} MB, makespan {timeline.makespan / 1e12:.6f} s"
        )


if __name__ == "__main__":
    main()
