"""What whole scenarios cost: one decode step of each DDN model, planned, executed and summarized.

python benchmarks/bench_scenarios.py [NAME…]
"""

from __future__ import annotations

import resource
import sys
import time

import simoffload as so
from simoffload.engine import execute
from simoffload.results.passes import summarize_pass
from simoffload.strategies import ForwardPass

NAMES = ("ddn/bloom-7b1", "ddn/bloom-176b", "ddn/bloom-mod-1", "ddn/bloom-mod-2")


def main(names: tuple[str, ...]) -> None:
    print("scenario         operations    plan  execute  summary   per op     peak")
    for name in names:
        started = time.perf_counter()
        schedule = so.load_scenario(name).plan().schedule(ForwardPass("decode 1", 1, 9))
        planned = time.perf_counter()
        timeline = execute(schedule)
        executed = time.perf_counter()
        summarize_pass(timeline, new_tokens=1, context=9)
        ended = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"{name:16} {len(timeline):10,} {planned - started:5.1f} s {executed - planned:6.1f} s "
            f"{ended - executed:6.1f} s {(ended - started) / len(timeline) * 1e6:5.1f} µs {peak:5.0f} MB"
        )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
