"""What whole scenarios cost: one decode step of each DDN model, planned, executed and summarized (medians).

python benchmarks/bench_scenarios.py [NAME…]
"""

from __future__ import annotations

import resource
import statistics
import sys
import time

import simoffload as so
from simoffload.engine import execute
from simoffload.results.passes import summarize_pass
from simoffload.strategies import ForwardPass

RUNS = 7
NAMES = ("ddn/bloom-7b1", "ddn/bloom-176b", "ddn/bloom-mod-1", "ddn/bloom-mod-2")


def main(names: tuple[str, ...]) -> None:
    print("scenario         operations    run  plan [ms]  execute  summary  again    peak")
    for name in names:
        rows = [one(name) for _ in range(RUNS)]
        measured = [row[2:] for row in rows]
        plan, run, summary, again = (
            statistics.median(column) * 1e3 for column in zip(*measured, strict=True)
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"{name:16} {rows[0][0]:10,} {rows[0][1]:6,} {plan:10.1f} {run:8.1f} {summary:8.1f} "
            f"{again:6.1f} {peak:5.0f} MB"
        )


def one(name: str) -> tuple[float, ...]:
    """Operations, those of them that were run, and CPU times [s]: of planning, executing and summarizing a
    step, and of the whole of another step with a longer context."""
    scenario = so.load_scenario(name)
    started = time.process_time()
    plan = scenario.plan()
    schedule = plan.schedule(ForwardPass("decode 1", 1, 9))
    planned = time.process_time()
    timeline = execute(schedule)
    executed = time.process_time()
    summarize_pass(timeline, new_tokens=1, context=9)
    summarized = time.process_time()
    later = execute(plan.schedule(ForwardPass("decode 100", 1, 108)))
    summarize_pass(later, new_tokens=1, context=108)
    ended = time.process_time()
    return (
        len(timeline),
        len(timeline.recorded.end),
        planned - started,
        executed - planned,
        summarized - executed,
        ended - summarized,
    )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
