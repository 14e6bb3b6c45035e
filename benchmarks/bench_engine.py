"""Measure what rank symmetry and steady state save: full, folded, jumped and both, by layers and ranks.

    python benchmarks/bench_engine.py [--runs 5] [--layers 480 4800] [--ranks 1 8 64]

The schedule has the size of one decode step of BLOOM-mod-2 at module granularity: 35 operations a layer, 14
of them transfers and 5 of those collective. Times are medians of this process's CPU time, which other work on
the machine disturbs less; ratios are more reliable than times. All variants must end at the same picosecond.
A second table has ranks that all differ, which cannot be folded.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Generator, Sequence

from simpy import Environment
from simpy.events import Timeout

from simoffload.engine import execute
from simoffload.results.timeline import Timeline
from simoffload.schedule import Block, Cause, Dependency, Link, Op, Route, Schedule

HOST, READ, COPY, GATHER, COMPUTE = range(5)
MICROSECOND = 10**6  # [ps]
MODULES = 5
MOST = 40_000
"""The most layers x ranks that are run in full."""


def decode_step(*, iterations: int, ranks: int, uneven: bool) -> Schedule:
    """Return layers of five modules (hook, read, copy, gather, launch, compute), each rank on its own PCIe
    link.

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
        Route(
            Cause.own("read"),
            tuple(((storage, 1), (memory, 1), (link, 1)) for link in pcie),
            7_000_000_000,
            8,
        ),
        Route(Cause.own("copy"), tuple(((memory, 1), (link, 1)) for link in pcie), 24_500_000_000, 4),
        Route(Cause.own("gather"), tuple(((fabric, 1),) for _ in pcie), 230_000_000_000),
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
    """Return the number of timeouts per second of one bare SimPy process."""

    def ticks(environment: Environment) -> Generator[Timeout, None, None]:
        for _ in range(count):
            yield environment.timeout(1)

    environment = Environment()
    environment.process(ticks(environment))
    started = time.perf_counter()
    environment.run()
    return count / (time.perf_counter() - started)


def median_s(
    schedule: Schedule, *, rank_symmetry: bool, steady_state: bool, runs: int
) -> tuple[float, Timeline]:
    """Return the median CPU time [s] of some runs, and the timeline."""
    times = []
    for _ in range(runs):
        started = time.process_time()
        timeline = execute(schedule, rank_symmetry=rank_symmetry, steady_state=steady_state)
        times.append(time.process_time() - started)
    return statistics.median(times), timeline


def line(layers: int, ranks: int, *, uneven: bool, runs: int) -> str:
    """Return one line of the table: each variant's time, and its speed-up over the full run."""
    schedule = decode_step(iterations=layers, ranks=ranks, uneven=uneven)
    full, timeline = median_s(schedule, rank_symmetry=False, steady_state=False, runs=1)
    cells = [f"{layers:7,} {ranks:6} {len(timeline):10,} {full * 1e3:10,.1f}"]
    for rank_symmetry, steady_state in ((True, False), (False, True), (True, True)):
        seconds, short = median_s(
            schedule, rank_symmetry=rank_symmetry, steady_state=steady_state, runs=runs if steady_state else 1
        )
        if short.makespan != timeline.makespan or short.link_busy != timeline.link_busy:
            raise SystemExit(
                f"rank_symmetry={rank_symmetry}, steady_state={steady_state} differs from the full run"
            )
        cells.append(f"{seconds * 1e3:10,.1f} {full / seconds:8,.1f}x")
    jumps = ", ".join(f"period {one.period} at {one.iteration}" for one in short.how.skipped)
    return " ".join(cells) + f"  {jumps or '; '.join(short.how.not_steady)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[480, 4800])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    print(f"bare SimPy: {timeouts_per_second():,.0f} timeouts/s")
    for what, uneven in (("identical ranks", False), ("ranks that all differ", True)):
        print(f"\n{what}")
        print(f" layers  ranks operations  full [ms] {'fold':>13} {'':>6} {'jump':>13} {'':>6} {'both':>13}")
        for layers in options.layers:
            for ranks in options.ranks[: 2 if uneven else None]:
                if layers * ranks <= MOST:
                    print(line(layers, ranks, uneven=uneven, runs=options.runs), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"\npeak memory {peak:.0f} MB")


if __name__ == "__main__":
    main()
