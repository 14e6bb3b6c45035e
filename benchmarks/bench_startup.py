"""Measure the CPU time of processes (a short run, an import, --help) next to those of another checkout.

python benchmarks/bench_startup.py [OTHER_CHECKOUT] [PAIRS]

Both take turns, and ratios are those of pairs, so that changes of the machine's speed do not matter. Without
another checkout the reference is a process that imports only the libraries that every run needs.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PAIRS = 15
LIBRARIES = ["-c", "import pydantic, yaml, simpy, rich.console, rich.table"]
PROCESSES = {
    "run ddn/bloom-176b": ["-m", "simoffload", "run", "ddn/bloom-176b"],
    "import simoffload.scenario": ["-c", "import simoffload.scenario"],
    "--help": ["-m", "simoffload", "--help"],
}


def cpu_s(arguments: list[str], checkout: Path) -> float:
    """Return the user and system time of a process [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(
        [sys.executable, *arguments], cwd="/", env=environment, stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compared(turns: Sequence[tuple[list[str], Path]], pairs: int) -> str:
    """Return the median times of two processes that take turns [s], and median and range of their ratios."""
    here, there = [], []
    for pair in range(pairs):
        times = {at: cpu_s(*turns[at]) for at in ((0, 1) if pair % 2 else (1, 0))}
        here.append(times[0])
        there.append(times[1])
    ratios = [one / two for one, two in zip(here, there, strict=True)]
    middle = " ".join(f"{statistics.median(each):9.3f}" for each in (here, there, ratios))
    return f"{middle} {min(ratios):8.3f} {max(ratios):8.3f}"


def main() -> None:
    given = sys.argv[1:]
    other = Path(given[0]).resolve() if given else None
    pairs = int(given[1]) if len(given) > 1 else PAIRS
    beside = str(other) if other else "imports of libraries"
    print(f"CPU time, medians of {pairs} pairs    here [s]  other [s]   ratio    least     most")
    for name, arguments in PROCESSES.items():
        turns = [(arguments, HERE), (arguments, other) if other else (LIBRARIES, HERE)]
        for turn in turns:
            cpu_s(*turn)  # compiles the modules to bytecode
        print(f"{name:32} {compared(turns, pairs)}")
    print(f"other: {beside}")


if __name__ == "__main__":
    main()
