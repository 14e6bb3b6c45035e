"""Measure the time of questions that need several simulations, also as a multiple of one simulation.

python benchmarks/bench_planning.py [OTHER_CHECKOUT] [PAIRS]

With another checkout the CPU time of whole processes that answer such questions is compared with that there,
in pairs. Both should have compiled modules, or neither (PYTHONDONTWRITEBYTECODE).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import simoffload as so

sys.path.insert(0, str(Path(__file__).parent))

from bench_startup import HERE, compared

RUNS = 3
PAIRS = 3
COMMANDS = (
    "advise serving/llama-3.1-70b",
    "advise micron/opt-66b",
    "advise training/bloom-7b1",
    "run --explain ddn/bloom-7b1",
    "run --explain ddn/bloom-176b",
    "run training/bloom-mod-2",
    "fit ddn/bloom-176b",
    "fit --machines training/bloom-mod-2",
    "stream serving/llama-3.1-8b-chat --set stream.num_prompts=10000",
)
RATES = "--axis profiles.ddn-ai400x2.read=range(min=20GB/s,max=90GB/s,n={})"
SWEEPS = (
    f"sweep ddn/bloom-176b {RATES.format(300)}",
    f"sweep ddn/bloom-176b {RATES.format(30)} --axis workload.batch_size=range(min=1,max=64,n=10,scale=log)",
)
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
    if given := sys.argv[1:]:
        pairs = int(given[1]) if len(given) > 1 else PAIRS
        print(f"CPU time, medians of {pairs} pairs         here [s]  other [s]   ratio    least     most")
        with tempfile.TemporaryDirectory() as folder:
            for command in (
                *COMMANDS,
                *(f"{one} --quiet --overwrite -o {folder}/sweep.csv" for one in SWEEPS),
            ):
                words = ["-m", "simoffload", *command.split()]
                turns = [(words, at) for at in (HERE, Path(given[0]).resolve())]
                print(f"{command.partition(' --quiet')[0]:36} {compared(turns, pairs)}")
        return
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
