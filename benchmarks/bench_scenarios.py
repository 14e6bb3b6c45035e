"""Measure the time of complete scenarios and of the parts of a decode step (medians).

python benchmarks/bench_scenarios.py [NAME…]
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable

import simoffload as so
from simoffload.engine import execute
from simoffload.results.passes import summarize_pass

RUNS = 7
NAMES = ("ddn/bloom-7b1", "ddn/bloom-176b", "ddn/bloom-mod-1", "ddn/bloom-mod-2")
STREAMED = "strategy.kv_cache={tier: dram, implementation: streamed}"
ANSWERS = (
    ("ddn/bloom-176b", ("workload.output_length=101",)),
    ("ddn/bloom-mod-2", ("workload.output_length=2",)),
    ("ddn/bloom-mod-2", ("workload.output_length=2", "model={name: bloom-mod-2, num_hidden_layers: 480}")),
    ("zero-inference-2022/opt-30b", ()),
    ("gpt-fast/llama-2", (STREAMED, "workload.prompt_length=3000")),
    ("zero-inference-2022/opt-30b", (STREAMED,)),
    ("training/bloom-7b1", ()),
    ("training/bloom-mod-2", ()),
)


def main(names: tuple[str, ...]) -> None:
    print("a decode step    operations    run  plan [ms]  execute  summary    peak")
    for name in names:
        rows = [one(name) for _ in range(RUNS)]
        measured = [row[2:] for row in rows]
        plan, run, summary = (statistics.median(column) * 1e3 for column in zip(*measured, strict=True))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"{name:16} {rows[0][0]:10,} {rows[0][1]:6,} {plan:10.1f} {run:8.1f} {summary:8.1f} "
            f"{peak:5.0f} MB"
        )
    if names == NAMES:
        print("\na complete scenario [ms], loaded again each time, and from the same objects")
        for name, overrides in ANSWERS:
            answer(name, list(overrides))


def one(name: str) -> tuple[float, ...]:
    """Return all operations of a step, those that ran, and CPU times [s] of planning, executing and
    summarizing.

    The scenario is loaded again for each call.
    """
    scenario = so.load_scenario(name)
    started = time.process_time()
    plan = scenario.plan()
    schedule = plan.schedule(plan.forward("decode 1", 1, 9))
    planned = time.process_time()
    timeline = execute(schedule)
    executed = time.process_time()
    summarize_pass(timeline, new_tokens=1, context=9)
    summarized = time.process_time()
    return len(timeline), timeline.entries, planned - started, executed - planned, summarized - executed


def answer(name: str, overrides: list[str]) -> None:
    """Print the time of a simulation with everything new, and with the schedules of the previous one."""
    scenario = so.load_scenario(name, overrides=overrides)
    so.simulate(scenario)
    anew = median_ms(lambda: so.load_scenario(name, overrides=overrides))
    again = median_ms(lambda: scenario)
    print(f"{name:28} {anew:9,.1f} {again:9,.1f}  {', '.join(overrides)}")


def median_ms(load: Callable[[], so.LoadedScenario]) -> float:
    """Return the median CPU time [ms] of simulating what ``load`` returns."""
    times = []
    for _ in range(RUNS):
        scenario = load()
        started = time.process_time()
        so.simulate(scenario)
        times.append(time.process_time() - started)
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
