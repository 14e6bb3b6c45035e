"""Measure the time of questions that need several simulations, also as a multiple of one simulation.

python benchmarks/bench_planning.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import simoffload as so

RUNS = 3
TARGETS = ("gpu", "dram", "raid", "nfs", "ai400x2")


def seconds(work: Callable[[], object]) -> float:
    """Return the median time of some runs [s]."""
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    scenario = so.load_scenario("ddn/bloom-176b").on("raid")
    result, costs = so.simulate(scenario), so.load_costs()
    one = seconds(lambda: so.simulate(scenario))
    questions: dict[str, Callable[[], object]] = {
        "simulate": lambda: so.simulate(scenario),
        "economics": lambda: so.economics(scenario, result, costs),
        "compare, five targets": lambda: so.compare(scenario, TARGETS, costs=costs),
        "storage_curve": lambda: so.storage_curve(scenario),
        "sensitivity": lambda: so.sensitivity(scenario),
        "advise": lambda: so.advise(scenario, costs=costs),
        "search_catalogue": lambda: so.search_catalogue(scenario, costs=costs),
        "machines_needed": lambda: so.machines_needed(scenario),
        "largest": lambda: so.largest(scenario),
    }
    print("BLOOM-176B from RAID    [s]   simulations' time")
    for name, work in questions.items():
        took = seconds(work)
        print(f"{name:22} {took:6.2f} {took / one:10.1f}x")


if __name__ == "__main__":
    main()
