"""A task of several processes that measure subsets of themselves.

Without GPUs, a copy only advances the clock of its process, by a time that ranks 0 and 2 share, and ranks 1
and 3. So other work on the machine changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from simoffload_calibrate.child import Job
from simoffload_calibrate.micro import links, timing

_COPY_S = 4e-3
"""[s] Time of a copy that shares with no other."""
_READING_S = 1e-6
"""[s] Time between two readings of a clock without a copy."""


def measure(job: Job) -> dict[str, Any]:
    """Measure copies in two rounds and collectives in one."""
    rank, ranks = job.rank, job.ranks
    now, copying = 0.0, [rank]

    def elapse(seconds: float) -> float:
        nonlocal now
        now += seconds
        return now

    def copy(*_: Any, **__: Any) -> Callable[[], object]:
        return lambda: elapse(_COPY_S * sum(other % 2 == rank % 2 for other in copying))

    def seconds_by_rank(*args: Any, members: Sequence[int], **options: Any) -> list[list[float]]:
        nonlocal copying
        copying = list(members)
        return timing.seconds_by_rank(*args, members=members, **options)

    clock = SimpleNamespace(perf_counter=lambda: elapse(_READING_S), monotonic=time.monotonic)
    timing.time, links.seconds_by_rank = clock, seconds_by_rank
    links._copy = copy
    links._host_buffer = lambda size, **_: torch.empty(size, dtype=torch.uint8)
    links._GATHERED = [1 << 12]
    links._TOGETHER, links._SUBSET, links._SUBSET_S = [1 << 10, 1 << 12], 1 << 12, 0.02
    data = {"counts": [1, 2, 3, ranks], "round": 1}
    job = job._replace(data=data)
    return {
        "rounds": [
            links.measure_copies_together(job._replace(data={**data, "round": number})) for number in (1, 2)
        ],
        "shared": links.measure_copies_subsets(job),
        "without time": links.measure_copies_subsets(job._replace(until=time.monotonic() - 1)),
        "collectives": links.measure_collectives(job._replace(data={"counts": [2, ranks]})),
    }
